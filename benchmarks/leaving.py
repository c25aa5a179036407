"""Where a policy that fell in the real environment was before: how fast, how far from the data, how doubtful.

    python benchmarks/leaving.py RUN/checkpoints/000080000.npz DATA RUN/prepared.npz --json FILE

Plays the first policy of the file and looks at the last steps before each end: mean reward, distance to the
nearest state of the data (each column in units of its std), and the discrepancy of the world's members (MOReL's
doubt). Data are measured the same way, at random steps, with the distance to the nearest state of another episode.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.spatial import cKDTree

from trajstitch.data import Dataset
from trajstitch.files import write_json
from trajstitch.formats import load
from trajstitch.keep import recall
from trajstitch.policy import load_policy
from trajstitch.recording import collect
from trajstitch.world import discrepancy, make_world

SPANS = ((0, 5), (5, 20), (20, 50), (50, 100), (100, 200))  # steps before the end


def main() -> None:
    """Play, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy")
    parser.add_argument("data")
    parser.add_argument("world", help="the prepared.npz of an unfinished run of mopo or morel")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    data = load(asked.data)
    world = make_world(recall(asked.world), data)
    doubt = jax.jit(jax.vmap(lambda obs, action: discrepancy(world.believe(obs, action))))
    policy: Any = jax.tree.map(lambda leaf: leaf[0], load_policy(asked.policy))
    where = {"physics": str(data.info["physics"]), "seed": 5, "together": 8}
    played = collect(policy, str(data.info["env_id"]), asked.steps, **where)  # type: ignore[arg-type]
    known, other = data.split(0.5)
    tree = cKDTree(scaled(known, data)[::5])

    def measure(of: Dataset, chosen: Any) -> dict[str, float]:
        distance, _ = tree.query(scaled(of, data)[chosen])
        doubts = np.asarray(doubt(of.obs[of.row][chosen], of.action[chosen]))
        return {
            "reward": round(float(of.reward[chosen].mean()), 2),
            "distance": round(float(np.median(distance)), 2),
            "discrepancy": round(float(np.median(doubts)), 3),
            "discrepancy_99": round(float(np.quantile(doubts, 0.99)), 2),
        }

    left, fell = played.steps_left - 1, np.repeat(played.terminal, played.length)
    report: dict[str, Any] = {"episodes": len(played), "mean_return": round(float(played.returns.mean()), 1)}
    report["data"] = measure(other, np.random.default_rng(0).integers(0, other.transitions, 5000))
    for first, last in SPANS:
        chosen = np.flatnonzero(fell & (first <= left) & (left < last))
        if len(chosen):
            report[f"{first} to {last} steps before the end"] = measure(played, chosen)
    for name, value in report.items():
        print(name, value)
    if asked.json:
        write_json(asked.json, report)


def scaled(of: Dataset, data: Dataset) -> Any:
    """States that steps begin in, each column in units of its std in the data."""
    return of.obs[of.row] / np.maximum(data.obs.std(0), 1e-6)


if __name__ == "__main__":
    main()
