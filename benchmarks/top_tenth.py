"""What makes the top tenth better or worse to clone after stitching: its seams, or how few states it is made of?

    trajstitch improve DATA.hdf5 --preset quick --out RUN
    python benchmarks/top_tenth.py DATA.hdf5 RUN --out results/seams/NAME-clones.json

Clones are trained and scored alike on the top tenth

- before stitching (10%BC) and after it (TS+10%BC),
- after it, with the stitched steps left out: what is left was recorded, action and reward,
- before it, but only as many of the best trajectories as have the number of distinct states of the one after,
- after it, enlarged to the share of the trajectories that has as many distinct states as the one before.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from trajstitch.data import Dataset, Trajectory, from_trajectories
from trajstitch.files import write_json
from trajstitch.formats import load
from trajstitch.methods import train
from trajstitch.scores import evaluate


def distinct(better: Dataset) -> int:
    """How many recorded states the trajectories of improved data start their steps from."""
    assert better.seams is not None
    return len(np.unique(better.seams.source))


def without_seams(better: Dataset) -> Dataset:
    """The recorded steps alone, every trajectory cut in two where a stitched step was."""
    assert better.seams is not None
    pieces = []
    for m, whole in enumerate(better):
        seam = np.flatnonzero(better.seams.stitched[better.start[m] : better.start[m + 1]])
        for begin, end in zip([0, *(seam + 1)], [*seam, len(whole)], strict=True):
            if end > begin:
                part = slice(begin, end)
                pieces.append(
                    Trajectory(whole.obs[begin : end + 1], whole.action[part], whole.reward[part], False)
                )
    return from_trajectories(pieces, better.info)


def choices(data: Dataset, better: Dataset) -> dict[str, Dataset]:
    """What is cloned, by name."""
    before, after = data.top(10), better.top(10)
    best = np.argsort(-data.returns, kind="stable")
    few = max(1, int(np.searchsorted(np.cumsum(data.length[best]), distinct(after), side="right")))
    percent = next((p for p in range(10, 100, 5) if distinct(better.top(p)) >= before.transitions), 100)
    return {
        "before": before,
        "after": after,
        "after, recorded steps only": without_seams(after),
        "before, as few states": data[np.sort(best[:few])],
        f"after, top {percent}%": better.top(percent),
    }


def clone(data: Dataset, seeds: int, steps: int) -> dict[str, Any]:
    """Scores of the last checkpoint."""
    policy = train("bc", data, seeds=seeds, steps=steps)
    env_id, physics = str(data.info["env_id"]), str(data.info.get("physics", "gymnasium"))
    scores = evaluate(policy, env_id, episodes=10, seed=10_000, physics=physics, info=data.info)
    return {
        "steps": data.transitions,
        "distinct_states": distinct(data) if data.seams else len(np.unique(data.obs[data.row], axis=0)),
        "per_seed": [float(x) for x in scores.normalise(scores.returns).mean(1)],
    }


def main() -> None:
    """Clone each, print and write down; what is known is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the data set that was improved")
    parser.add_argument("run", type=Path, help="run directory of `trajstitch improve`")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    data, better = load(asked.data), load(next(asked.run.glob("improved.*")))
    words = f"{asked.data.name} {asked.run.name} --seeds {asked.seeds} --steps {asked.steps}"
    found: dict[str, Any] = {"command": f"python benchmarks/top_tenth.py {words}", "clones": {}}
    for name, chosen in choices(data, better).items():
        entry = clone(chosen, asked.seeds, asked.steps)
        found["clones"][name] = entry
        score = np.array(entry["per_seed"])
        numbers = f"{entry['steps']:9,} steps {entry['distinct_states']:9,} distinct"
        print(f"{name:28}{numbers} {score.mean():7.1f} ± {score.std():.1f}", flush=True)
        if asked.out:
            write_json(asked.out, found)


if __name__ == "__main__":
    main()
