"""The steps before a policy falls in the real environment: their reward, distance to the data, and uncertainty.

    python -m benchmarks.failure_analysis RUN/checkpoints/000080000.npz DATA RUN/prepared.npz --json FILE

The first policy of the file plays in the environment of the data. For the last steps before each fall this
measures the mean reward, the distance to the nearest state of the data (every column divided by its std), and two
kinds of uncertainty of the world model:

discrepancy    largest distance between the means of two ensemble members, as in MOReL
in_stds        the same distance, divided by the std that the members predict

Random steps of the data are measured in the same way, with the distance to the nearest state of another episode.
`told_apart` is the probability that a step before a fall has a higher uncertainty than a step of the data: 0.5
means that the uncertainty does not separate them, 1 that it separates them perfectly.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import cKDTree

from benchmarks.rollout_bounds import remove_bound
from trajstitch.data import Dataset
from trajstitch.evaluation.collect import collect
from trajstitch.formats import load
from trajstitch.models.world_model import Prediction, discrepancy, make_world
from trajstitch.policies.policy_files import load_policy
from trajstitch.storage.atomic import write_json
from trajstitch.storage.serialise import restore
from trajstitch.training.networks import Scale, pick

SPANS = ((0, 5), (5, 20), (20, 50), (50, 100), (100, 200))  # steps before the end of an episode


def main() -> None:
    """Play the policy, measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", help="Policy file, such as a checkpoint of a run.")
    parser.add_argument("data", help="Data set that the policy was trained on.")
    parser.add_argument("world", help="World model: prepared.npz of an unfinished run of mopo or morel.")
    parser.add_argument("--steps", type=int, default=5000, help="Environment steps to play, at least.")
    parser.add_argument("--json", type=Path, help="File to write the results to.")
    args = parser.parse_args()
    data = load(args.data)
    world = remove_bound(make_world(restore(args.world), data), lambda w: w.widest, np.inf)
    uncertainty = jax.jit(jax.vmap(lambda obs, action: uncertainties(world.predict(obs, action))))
    policy: Any = pick(load_policy(args.policy), 0)
    played = collect(
        policy, str(data.info["env_id"]), args.steps, physics=str(data.info["physics"]), seed=5, together=8
    )
    known, other = data.split(0.5)
    scale = Scale.of(data.obs)
    tree = cKDTree(scale(jnp.asarray(known.obs[known.row[::5]])))

    def measure(source: Dataset, steps: Any) -> tuple[dict[str, Any], Any]:
        obs = source.obs[source.row[steps]]
        distance, _ = tree.query(scale(obs))
        found = np.asarray(uncertainty(obs, source.action[steps]))
        return {
            "reward": round(float(source.reward[steps].mean()), 2),
            "distance": round(float(np.median(distance)), 2),
            "discrepancy": round(float(np.median(found[:, 0])), 3),
            "discrepancy_99": round(float(np.quantile(found[:, 0], 0.99)), 2),
            "in_stds": round(float(np.median(found[:, 1])), 2),
        }, found

    left, fell = played.steps_left - 1, np.repeat(played.terminal, played.length)
    report: dict[str, Any] = {"episodes": len(played), "mean_return": round(float(played.returns.mean()), 1)}
    random_steps = np.random.default_rng(0).integers(0, other.transitions, 5000)
    report["data"], of_data = measure(other, random_steps)
    for first, last in SPANS:
        steps = np.flatnonzero(fell & (first <= left) & (left < last))
        if len(steps):
            summary, found = measure(played, steps)
            higher = (found[:, None] > of_data).mean((0, 1))
            told = {"discrepancy": round(float(higher[0]), 2), "in_stds": round(float(higher[1]), 2)}
            report[f"{first} to {last} steps before the end"] = {**summary, "told_apart": told}
    for name, value in report.items():
        print(name, value)
    if args.json:
        write_json(args.json, report)


def uncertainties(prediction: Prediction) -> Any:
    """max_ij ||μ_i - μ_j|| of the next state, and the same divided by the root mean square std of the members."""
    mean, std = prediction.mean[:, :-1], prediction.std[:, :-1]
    apart = (mean[:, None] - mean[None]) / jnp.sqrt(jnp.mean(std**2, 0))
    return jnp.stack([discrepancy(prediction), jnp.max(jnp.linalg.norm(apart, axis=2))])


if __name__ == "__main__":
    main()
