"""The picture of the README: walks of a point in a plane, as recorded and as improved.

    python -m benchmarks.picture --out docs/picture.svg

Half of the walks start at A, cross the middle and end at a place that is worth nothing. Half start at B, cross the
middle too and end at the goal. No recorded walk goes from A to the goal. The data are improved by
`trajstitch.improve` with its real models.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

import trajstitch as ts

GREY, TEAL, RED = "#9aa3ab", "#00798c", "#d1495b"
STARTS = {"A": np.array([-1.0, -0.7]), "B": np.array([-1.0, 0.7])}
ENDS = {"A": np.array([1.0, 0.7]), "B": np.array([1.0, -0.7])}  # B's is the goal
MIDDLE = np.zeros(2)


def walk(start: str, rng: np.random.Generator) -> ts.Trajectory:
    """One noisy walk over the middle; a step earns more the nearer to the goal it ends."""
    state = STARTS[start] + 0.06 * rng.normal(size=2)
    states, actions = [state], []
    for target in (MIDDLE + 0.05 * rng.normal(size=2), ENDS[start] + 0.04 * rng.normal(size=2)):
        while np.linalg.norm(target - state) > 0.06:
            direction = (target - state) / np.linalg.norm(target - state)
            action = np.clip(direction + 0.25 * rng.normal(size=2), -1, 1)
            state = state + 0.08 * action
            states.append(state)
            actions.append(action)
    distance = np.linalg.norm(np.array(states[1:]) - ENDS["B"], axis=1)
    return ts.Trajectory(np.array(states), np.array(actions), np.exp(-((distance / 0.3) ** 2)), terminal=True)


def draw(axes: Axes, data: ts.Dataset, title: str) -> None:
    """Walks, coloured by whether they reach the goal, with their stitched steps."""
    for m, trajectory in enumerate(data):
        from_a = trajectory.obs[0, 1] < 0
        color = TEAL if from_a and at_goal(trajectory) else GREY
        axes.plot(*trajectory.obs.T, color=color, lw=0.9, alpha=0.75 if color == TEAL else 0.45)
        if data.seams is not None:
            landing = 1 + np.flatnonzero(data.seams.stitched[data.start[m] : data.start[m + 1]])
            axes.scatter(trajectory.obs[landing, 0], trajectory.obs[landing, 1], color=RED, s=3, lw=0, zorder=3)
    for name, place in (("A", STARTS["A"]), ("B", STARTS["B"])):
        label(axes, place - [0.16, 0], name)
    label(axes, ENDS["B"] + [0.22, 0], "goal")
    axes.set_title(title, fontsize=10.5, color="#22272b")
    axes.set(xlim=(-1.35, 1.45), ylim=(-1.0, 1.0), aspect="equal")
    axes.axis("off")


def label(axes: Axes, place: NDArray[np.float64], text: str) -> None:
    """A word beside the walks."""
    axes.text(place[0], place[1], text, ha="center", va="center", fontsize=11, weight="bold", color="#22272b")


def at_goal(trajectory: ts.Trajectory) -> bool:
    """Whether a walk ends at the goal."""
    return bool(np.linalg.norm(trajectory.obs[-1] - ENDS["B"]) < 0.25)


def reached(data: ts.Dataset) -> float:
    """The share of the walks from A that end at the goal."""
    from_a = [t for t in data if t.obs[0, 1] < 0]
    return float(np.mean([at_goal(t) for t in from_a]))


def main() -> None:
    """Make the data, improve them and draw both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Image to write; its ending chooses the format.")
    parser.add_argument("--walks", type=int, default=30, help="Walks from each start.")
    parser.add_argument("--iterations", type=int, default=1, help="Iterations of stitching.")
    parser.add_argument("--seed", type=int, default=0, help="Random seed.")
    args = parser.parse_args()
    rng = np.random.default_rng(args.seed)
    data = ts.from_trajectories([walk(start, rng) for start in "AB" for _ in range(args.walks)])
    config = ts.Improve(
        iterations=args.iterations,
        dynamics=ts.DynamicsConfig(width=64, depth=2, fit=ts.Fit(3000, 256, 1e-3)),
        inverse=ts.InverseConfig(width=64, fit=ts.Fit(2000, 256, 1e-3)),
        reward=ts.RewardConfig(width=64, fit=ts.Fit(2000, 256, 1e-3)),
        value=ts.ValueConfig(width=64, fit=ts.Fit(3000, 256, 1e-3)),
    )
    result = ts.improve(data, config, seed=args.seed)
    before, after = reached(data), reached(result.dataset)
    mpl.rcParams["svg.hashsalt"] = "trajstitch"  # the same bytes each time
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.1), layout="constrained")
    draw(axes[0], data, f"recorded: {before:.0%} of the walks from A reach the goal")
    seams = int(result.seams.stitched.sum())
    draw(axes[1], result.dataset, f"improved: {after:.0%}, through {seams} stitched steps (red)")
    figure.savefig(args.out, metadata={"Date": None})
    print(f"walks from A that reach the goal: {before:.0%} -> {after:.0%}; {result.history[-1]}")


if __name__ == "__main__":
    main()
