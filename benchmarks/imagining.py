"""Policies of model-based methods distilled into data: score of the policy, and of a clone of what it imagines.

    python -m benchmarks.imagining hopper-medium hopper-replay --method morel --shared FOLDER
    python -m benchmarks.imagining --table

FOLDER and the data sets are described in benchmarks/datasets.py. The method is trained on each data set, with its
own world model. Each of its policies is followed in that model (`improve` with the planner policy), and what comes
out, one data set per policy, is cloned and scored beside the policy itself. One JSON file for each data set is
written to --out, after every policy; what it holds is not measured again.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.command import command, setting
from benchmarks.datasets import data_parser, scoring_of, stored_data, stored_reports
from trajstitch.data import Dataset
from trajstitch.evaluation.scores import evaluate
from trajstitch.methods import configure
from trajstitch.methods.method import Method
from trajstitch.methods.model_based import ModelBased
from trajstitch.methods.train import chunk, train, train_steps
from trajstitch.models.world_model import ActionDynamics
from trajstitch.policies.policy import acting
from trajstitch.stitching.improve import Models, improve
from trajstitch.stitching.presets import PRESETS
from trajstitch.storage.atomic import write_json
from trajstitch.training.networks import pick


def train_policies(config: Method, data: Dataset, seeds: int, prepared: Any) -> Any:
    """Train the method, with this world model, and return its policies."""
    begin, policies = time.monotonic(), None
    for state, _ in train_steps(
        config, data, None, range(seeds), chunk(config), lambda *_: None, lambda _: prepared
    ):
        policies = config.policy(state.model)
        print(f"{int(state.step):,} steps, {time.monotonic() - begin:.0f} s", flush=True)
    return policies


def score(policy: Any, data: Dataset, episodes: int) -> list[list[float]]:
    """Return the normalised scores [P, E] of policies."""
    scoring = scoring_of(data.info, episodes)
    found = evaluate(policy, scoring.env_id, physics=scoring.physics, episodes=episodes, info=data.info)
    scores: list[list[float]] = found.normalise(found.returns).tolist()
    return scores


def measure(name: str, args: argparse.Namespace) -> None:
    """Measure one data set."""
    file = args.out / f"{name}.json"
    report: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"name": name, "methods": {}}
    if args.method in report["methods"]:
        return
    data = stored_data(name, args)
    config = configure(args.method, steps=args.steps, **dict(args.set))
    assert isinstance(config, ModelBased)
    begin = time.monotonic()
    prepared = config.prepare(data)
    print(f"{name}: world model, {time.monotonic() - begin:.0f} s", flush=True)
    policies = train_policies(config, data, args.seeds, prepared)
    entry: dict[str, Any] = {"policy": score(policies, data, args.episodes), "clone": [], "imagined": []}
    print(f"{name}: policies {np.mean(entry['policy'], 1).round(1).tolist()}", flush=True)
    model = ActionDynamics(prepared)
    for seed in range(args.seeds):
        own = Models(world=model, policy=acting(pick(policies, seed)))
        made = improve(data, replace(PRESETS["standard"], planner="policy"), seed=seed, models=own).dataset
        clone = train("bc", made, seed=seed, seeds=1, steps=args.clone_steps)
        entry["clone"] += score(clone, data, args.episodes)
        entry["imagined"].append({"steps": made.transitions, "length": float(made.length.mean())})
        entry |= {"command": command("imagining"), "seconds": round(time.monotonic() - begin)}
        report["methods"][args.method] = entry
        write_json(file, report)
        print(row(name, args.method, entry), flush=True)


def row(name: str, method: str, entry: dict[str, Any]) -> str:
    """One row of the table: mean ± std over policies."""
    cells = []
    for kind in ("policy", "clone"):
        means = np.mean(entry[kind], 1)
        cells.append(f"{means.mean():.1f} ± {means.std(ddof=1) if len(means) > 1 else 0:.1f}")
    return f"| {name} | {method} | {' | '.join(cells)} |"


def main() -> None:
    """Measure, or print the table."""
    parser = data_parser(__doc__, "imagining", seeds=3)
    parser.add_argument("--method", choices=("morel", "mopo"), default="morel", help="Method to distil.")
    parser.add_argument("--set", nargs="+", type=setting, default=[], help="Its settings, NAME=VALUE.")
    parser.add_argument("--steps", type=int, default=200_000, help="Gradient steps of the method.")
    parser.add_argument("--clone-steps", type=int, default=50_000, help="Gradient steps of clones.")
    args = parser.parse_args()
    for name in args.names:
        measure(name, args)
    if args.table:
        for report in stored_reports(args.out):
            print("\n".join(row(report["name"], *one) for one in report["methods"].items()))


if __name__ == "__main__":
    main()
