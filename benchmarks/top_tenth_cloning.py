"""Why clones of the top 10% change after stitching: because of its seams, or its few distinct states?

    trajstitch improve DATA.hdf5 --preset quick --out RUN
    python -m benchmarks.top_tenth_cloning DATA.hdf5 RUN --out results/seams/NAME-clones.json

Clones are trained and scored in the same way on the top 10%

- before stitching (10%BC) and after stitching (TS+10%BC),
- after stitching, without the stitched steps, so that all actions and rewards are recorded ones,
- before stitching, cut to the best trajectories with as many distinct states as the top 10% after stitching,
- after stitching, extended until it has as many distinct states as the top 10% before stitching.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import command
from trajstitch.data import Dataset, Trajectory, from_trajectories
from trajstitch.evaluation.scores import evaluate
from trajstitch.formats import load
from trajstitch.methods.train import train
from trajstitch.storage.atomic import write_json


def distinct_states(improved: Dataset) -> int:
    """Number of recorded states that the steps of improved data start from."""
    assert improved.seams is not None
    return len(np.unique(improved.seams.source))


def without_seams(improved: Dataset) -> Dataset:
    """The recorded steps only; every trajectory is cut where a stitched step was."""
    assert improved.seams is not None
    pieces = []
    for m, trajectory in enumerate(improved):
        seam = np.flatnonzero(improved.seams.stitched[improved.start[m] : improved.start[m + 1]])
        for begin, end in zip([0, *(seam + 1)], [*seam, len(trajectory)], strict=True):
            if end > begin:
                part = slice(begin, end)
                pieces.append(
                    Trajectory(
                        trajectory.obs[begin : end + 1], trajectory.action[part], trajectory.reward[part], False
                    )
                )
    return from_trajectories(pieces, improved.info)


def selections(data: Dataset, improved: Dataset) -> dict[str, Dataset]:
    """The data to clone, by name."""
    before, after = data.top(10), improved.top(10)
    best = np.argsort(-data.returns, kind="stable")
    few = max(1, int(np.searchsorted(np.cumsum(data.length[best]), distinct_states(after), side="right")))
    percent = next((p for p in range(10, 100, 5) if distinct_states(improved.top(p)) >= before.transitions), 100)
    return {
        "before": before,
        "after": after,
        "after, recorded steps only": without_seams(after),
        "before, as few states": data[np.sort(best[:few])],
        f"after, top {percent}%": improved.top(percent),
    }


def clone(data: Dataset, seeds: int, steps: int) -> dict[str, Any]:
    """Clone and score the policies after the last step."""
    policy = train("bc", data, seeds=seeds, steps=steps)
    env_id, physics = str(data.info["env_id"]), str(data.info.get("physics", "gymnasium"))
    scores = evaluate(policy, env_id, episodes=10, seed=10_000, physics=physics, info=data.info)
    return {
        "steps": data.transitions,
        "distinct_states": distinct_states(data) if data.seams else len(np.unique(data.obs[data.row], axis=0)),
        "per_seed": [float(x) for x in scores.normalise(scores.returns).mean(1)],
    }


def main() -> None:
    """Clone each selection and print its score; the file is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="Data set that was improved.")
    parser.add_argument("run", type=Path, help="Run directory of `trajstitch improve`.")
    parser.add_argument("--seeds", type=int, default=5, help="Clones per selection.")
    parser.add_argument("--steps", type=int, default=20_000, help="Gradient steps per clone.")
    parser.add_argument("--out", type=Path, help="File to write the results to.")
    args = parser.parse_args()
    data, improved = load(args.data), load(next(args.run.glob("improved.*")))
    words = [args.data.name, args.run.name, "--seeds", str(args.seeds), "--steps", str(args.steps)]
    found: dict[str, Any] = {"command": command("top_tenth_cloning", words), "clones": {}}
    for name, chosen in selections(data, improved).items():
        entry = clone(chosen, args.seeds, args.steps)
        found["clones"][name] = entry
        score = np.array(entry["per_seed"])
        numbers = f"{entry['steps']:9,} steps {entry['distinct_states']:9,} distinct"
        print(f"{name:28}{numbers} {score.mean():7.1f} ± {score.std(ddof=1):.1f}", flush=True)
        if args.out:
            write_json(args.out, found)


if __name__ == "__main__":
    main()
