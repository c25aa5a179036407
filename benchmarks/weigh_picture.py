"""The picture of docs/weighing.md: where the weights of a data set lie.

trajstitch weigh demo --preset quick --out runs/weighed.npz
python -m benchmarks.weigh_picture runs/weighed.npz --out docs/weighing.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

from trajstitch.formats import load
from trajstitch.report.weights import draw_along, draw_by_return


def main() -> None:
    """Draw the weights of one data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="A data set with weights.")
    parser.add_argument("--out", type=Path, required=True, help="Image to write; its ending chooses the format.")
    args = parser.parse_args()
    data = load(args.data)
    mpl.rcParams.update({"svg.hashsalt": "trajstitch", "font.size": 9.5})  # the same bytes each time
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.2), layout="constrained")
    draw_by_return(data, left)
    left.set(xlabel="return of a trajectory", ylabel="mean weight of its steps")
    draw_along(data, right)
    right.set(xlabel="share of the episode, %", ylabel="mean weight")
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(args.out, metadata={"Date": None})
    print(f"{len(data)} trajectories drawn to {args.out}")


if __name__ == "__main__":
    main()
