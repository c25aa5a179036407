"""What makes a clone's last checkpoint good: the schedule of the rate, an average of the weights, the width.

    python -m benchmarks.cloning_recipe hopper-medium walker2d-replay --shared FOLDER
    python -m benchmarks.cloning_recipe --table

FOLDER and the data sets are described in benchmarks/datasets.py. Every clone also keeps a moving average of its
weights, which is scored beside it. One JSON file for each data set is written to --out, after every recipe; what
it holds is not measured again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import numpy as np
from jax import Array

from benchmarks.command import command
from benchmarks.datasets import data_parser, stored_data, stored_reports
from benchmarks.imagining import score
from trajstitch.methods.bc import BC
from trajstitch.policies.policy import Policy
from trajstitch.storage.atomic import write_json
from trajstitch.training import loop
from trajstitch.training.loop import Fit, Metrics, Table
from trajstitch.training.networks import polyak_update

RECIPES: dict[str, dict[str, Any]] = {
    "constant": {"schedule": "constant"},
    "cosine": {},
    "cosine, width 512": {"width": 512},
}
DECAY = 0.999  # of the average, per step


class Averaged(eqx.Module):
    """A clone, and the moving average of its weights."""

    now: Policy
    average: Policy


@dataclass(frozen=True)
class AveragedBC(BC):
    """Cloning that keeps an average as well."""

    def init(self, table: Table, key: Array) -> Any:
        """Initialise both alike."""
        policy = super().init(table, key)
        return Averaged(policy, policy)

    def loss(self, model: Any, row: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """Compute the loss of the clone."""
        return super().loss(model.now, row, key)

    def after(self, model: Any) -> Any:
        """Move the average towards the clone."""
        return Averaged(model.now, polyak_update(model.average, model.now, 1 - DECAY))


def measure(name: str, args: argparse.Namespace) -> None:
    """Measure one data set."""
    file = args.out / f"{name}.json"
    report: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"name": name, "recipes": {}}
    data = stored_data(name, args)
    report |= {"transitions": data.transitions, "fingerprint": data.fingerprint}
    for recipe, settings in RECIPES.items():
        if recipe in report["recipes"]:
            continue
        begin, seeds = time.monotonic(), range(args.seeds)
        config = AveragedBC(**settings, fit=Fit(args.steps, 256, 1e-3))
        table = config.table(data)
        for state, _ in loop.run(config, loop.start(config, table, seeds), table, seeds, args.steps):
            trained = state.model
        report["recipes"][recipe] = {
            "steps": args.steps,
            "last": score(trained.now, data, args.episodes),
            "average": score(trained.average, data, args.episodes),
            "seconds": round(time.monotonic() - begin),
            "command": command("cloning_recipe"),
        }
        write_json(file, report)
        print(row(name, recipe, report["recipes"][recipe]), flush=True)


def row(name: str, recipe: str, entry: Mapping[str, Any]) -> str:
    """One row of the table: mean ± std over clones, of their last weights and of the average."""
    means = [np.mean(entry[kind], 1) for kind in ("last", "average")]
    return (
        f"| {name} | {recipe} | " + " | ".join(f"{one.mean():.1f} ± {one.std(ddof=1):.1f}" for one in means) + " |"
    )


def main() -> None:
    """Measure, or print the table."""
    parser = data_parser(__doc__, "cloning", runs="weighing")
    parser.add_argument("--steps", type=int, default=50_000, help="Gradient steps.")
    args = parser.parse_args()
    for name in args.names:
        measure(name, args)
    if args.table:
        for report in stored_reports(args.out):
            print("\n".join(row(report["name"], *one) for one in report["recipes"].items()))


if __name__ == "__main__":
    main()
