"""The picture of docs/planning.md: recorded walks in a maze, and the best steps that a plan found in them.

python -m benchmarks.plan_picture --out docs/planning.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

from trajstitch.evaluation.mazes import OWN, make_maze
from trajstitch.evaluation.walker import walk
from trajstitch.jobs.demo import MazeDemo
from trajstitch.jobs.improve import improve
from trajstitch.report.positions import draw_plan, draw_recorded, window_of


def main() -> None:
    """Record and improve as the demo does, and draw both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Image to write; its ending chooses the format.")
    args = parser.parse_args()
    config = MazeDemo()
    data = walk(OWN, config.recorded, walk_length=config.walk_length, seed=0)
    result = improve(data, config.improve)
    assert result.plan is not None
    env = make_maze(OWN, 1)
    window = window_of(data, env.maze)
    env.close()
    mpl.rcParams.update({"svg.hashsalt": "trajstitch", "font.size": 9.5})  # the same bytes each time
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.4, 3.8), layout="constrained")
    draw_recorded(data, env.maze, window, left)
    draw_plan(result.plan, result.dataset, env.maze, window, right)
    left.set_title("recorded: 60 walks, none from start to goal")
    right.set_title("planned: best steps, and the longest composed trajectory")
    for ax in (left, right):
        ax.set(xticks=[], yticks=[])
    figure.savefig(args.out, metadata={"Date": None})


if __name__ == "__main__":
    main()
