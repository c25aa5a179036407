"""Where a policy that fell in the real environment was before: how fast, how far from the data, how doubtful.

    python benchmarks/leaving.py RUN/checkpoints/000080000.npz DATA RUN/prepared.npz --json FILE

Plays the first policy of the file and looks at the last steps before each end: mean reward, distance to the
nearest state of the data (each column in units of its std), and two kinds of doubt: the discrepancy of the world's
members (MOReL's), and the same in units of the std they predict. Data are measured the same way, at random steps,
with the distance to the nearest state of another episode. `told_apart` is the chance that a step has more doubt
than one of the data: 0.5 says nothing, 1 all.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import cKDTree

sys.path.insert(0, str(Path(__file__).parent))
from reins import without

from trajstitch.data import Dataset
from trajstitch.files import write_json
from trajstitch.formats import load
from trajstitch.keep import recall
from trajstitch.nets import Scale
from trajstitch.policy import load_policy
from trajstitch.recording import collect
from trajstitch.world import Belief, discrepancy, make_world

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
    world = without(make_world(recall(asked.world), data), lambda w: w.widest, np.inf)
    doubt = jax.jit(jax.vmap(lambda obs, action: doubts_of(world.believe(obs, action))))
    policy: Any = jax.tree.map(lambda leaf: leaf[0], load_policy(asked.policy))
    where = {"physics": str(data.info["physics"]), "seed": 5, "together": 8}
    played = collect(policy, str(data.info["env_id"]), asked.steps, **where)  # type: ignore[arg-type]
    known, other = data.split(0.5)
    scale = Scale.of(data.obs)
    tree = cKDTree(scale(jnp.asarray(known.obs[known.row[::5]])))

    def measure(of: Dataset, chosen: Any) -> tuple[dict[str, Any], Any]:
        obs = of.obs[of.row[chosen]]
        distance, _ = tree.query(scale(obs))
        doubts = np.asarray(doubt(obs, of.action[chosen]))
        return {
            "reward": round(float(of.reward[chosen].mean()), 2),
            "distance": round(float(np.median(distance)), 2),
            "discrepancy": round(float(np.median(doubts[:, 0])), 3),
            "discrepancy_99": round(float(np.quantile(doubts[:, 0], 0.99)), 2),
            "in_stds": round(float(np.median(doubts[:, 1])), 2),
        }, doubts

    left, fell = played.steps_left - 1, np.repeat(played.terminal, played.length)
    report: dict[str, Any] = {"episodes": len(played), "mean_return": round(float(played.returns.mean()), 1)}
    usual = np.random.default_rng(0).integers(0, other.transitions, 5000)
    report["data"], of_data = measure(other, usual)
    for first, last in SPANS:
        chosen = np.flatnonzero(fell & (first <= left) & (left < last))
        if len(chosen):
            found, doubts = measure(played, chosen)
            more = (doubts[:, None] > of_data).mean((0, 1))
            told = {"discrepancy": round(float(more[0]), 2), "in_stds": round(float(more[1]), 2)}
            report[f"{first} to {last} steps before the end"] = {**found, "told_apart": told}
    for name, value in report.items():
        print(name, value)
    if asked.json:
        write_json(asked.json, report)


def doubts_of(belief: Belief) -> Any:
    """max_ij ||μ_i - μ_j|| of the next state, and that in units of the std, a root mean square over members."""
    mean, std = belief.mean[:, :-1], belief.std[:, :-1]
    apart = (mean[:, None] - mean[None]) / jnp.sqrt(jnp.mean(std**2, 0))
    return jnp.stack([discrepancy(belief), jnp.max(jnp.linalg.norm(apart, axis=2))])


if __name__ == "__main__":
    main()
