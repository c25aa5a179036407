"""The picture of docs/benchmark.md: methods' means over data sets, with intervals, and each data set's mean.

python -m benchmarks.table_picture results/suites/table1 --data 9 --out docs/table1.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

from trajstitch.bench.tables import read_results, title
from trajstitch.evaluation.stats import mean, stratified_interval


def main() -> None:
    """Draw the last checkpoint of a folder of bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="A folder of trajstitch bench.")
    parser.add_argument("--data", type=int, help="How many of its data sets, from the first on; all unless given.")
    parser.add_argument("--out", type=Path, required=True, help="Image to write; its ending chooses the format.")
    args = parser.parse_args()
    results = read_results(args.folder)
    names = results.grid.data[: args.data]
    scores = {
        method: results.scores(method, "last", names)
        for method in results.methods
        if all(results.runs(method, name, "last") for name in names)
    }
    order = sorted(scores, key=lambda method: mean(scores[method]))
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "trajstitch", "font.size": 9.5})
    figure, ax = plt.subplots(figsize=(8.4, 0.32 * len(order) + 0.8), layout="constrained")
    for y, method in enumerate(order):
        middle, (low, high) = mean(scores[method]), stratified_interval(mean, scores[method])
        ax.barh(y, middle, 0.62, color="#b9d3ea")
        ax.plot([low, high], [y, y], color="#1b4f8a", linewidth=3, solid_capstyle="butt")
        ax.plot(np.nanmean(scores[method], 0), [y] * len(names), "|", color="0.35", markersize=7)
        ax.text(-2, y, f"{title(method)}  {middle:.1f}", ha="right", va="center")
    ax.set(xlim=(0, 120), yticks=[], xlabel=f"normalised score, mean over {len(names)} data sets")
    ax.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(args.out, metadata={"Date": None})
    print(f"{len(order)} methods on {', '.join(names)} drawn to {args.out}")


if __name__ == "__main__":
    main()
