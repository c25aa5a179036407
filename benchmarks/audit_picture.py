"""The picture of docs/audit.md: real landing errors of seams, by what the model promised.

    trajstitch improve demo --preset quick --planner optimal --out RUN
    trajstitch audit RUN --data demo
    python -m benchmarks.audit_picture RUN/audit.json --out docs/audit.svg

Without promises (planner greedy), landing errors are drawn by the distance bridged.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

from trajstitch.report.audit import draw_bridged, draw_calibration
from trajstitch.report.html import compact


def main() -> None:
    """Draw one audit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("audit", type=Path, help="The audit.json of a run.")
    parser.add_argument("--out", type=Path, required=True, help="Image to write; its ending chooses the format.")
    args = parser.parse_args()
    found = json.loads(args.audit.read_text())
    mpl.rcParams.update({"svg.hashsalt": "trajstitch", "font.size": 9.5})  # the same bytes each time
    figure, ax = plt.subplots(figsize=(4.6, 3.6), layout="constrained")
    draw, along = (draw_calibration, "as promised") if found["promise"] else (draw_bridged, "distance bridged")
    draw(found, ax)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(lambda x, _: compact(x))
    ax.set(xlabel=f"{along}, typical steps", ylabel="landing error in the simulator, typical steps")
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(args.out, metadata={"Date": None})
    print(f"{found['seams']['replayed']} seams drawn to {args.out}")


if __name__ == "__main__":
    main()
