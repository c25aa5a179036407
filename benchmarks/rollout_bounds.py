"""MOPO's scores when the bounds on its rollouts are removed one after another.

    python -m benchmarks.rollout_bounds halfcheetah-medium.traj --set penalty=0.5 actor_schedule='"constant"'

std              each std that a member predicts is capped at the std of the data
range            states and rewards are clipped to the range of the data
continue_prob    most rollouts continue from their last state instead of starting again in the data

All variants share one world model and one seed. Each is scored at every checkpoint. A run in --runs that was
stopped continues from its last checkpoint.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from benchmarks.command import command, setting
from benchmarks.datasets import scoring_of
from benchmarks.methods import score_summary
from trajstitch.data import Dataset
from trajstitch.formats import load
from trajstitch.jobs.train import train_run
from trajstitch.methods.mopo import MOPO
from trajstitch.models.world_model import World
from trajstitch.progress import Tell, silent
from trajstitch.storage.atomic import write_json
from trajstitch.storage.serialise import restore, store
from trajstitch.training.loop import Table

VARIANTS = ("std range continue_prob", "std range", "std", "none")  # the bounds that are kept


@dataclass(frozen=True)
class MOPOVariant(MOPO):
    """MOPO with only some of the bounds."""

    bounds: str = VARIANTS[0]
    world_file: str = ""  # shared by all variants

    def prepare(self, data: Dataset, tell: Tell = silent) -> Any:
        """Read the world model from the shared file; the first variant trains and writes it."""
        if not Path(self.world_file).exists():
            store(super().prepare(data, tell), Path(self.world_file))
        return restore(Path(self.world_file))

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """MOPO's table, with a world model that lacks the bounds of this variant."""
        table = super().table(data, prepared)
        world: World = table["world"]
        if "std" not in self.bounds:
            world = remove_bound(world, lambda w: w.widest, np.inf)
        if "range" not in self.bounds:
            world = remove_bound(world, lambda w: w.least, -np.inf)
            world = remove_bound(world, lambda w: w.most, np.inf)
        return {**table, "world": world}


def remove_bound(world: World, field: Callable[[World], Any], value: float) -> World:
    """The world model with this field filled with `value`, which is ±infinity."""
    return eqx.tree_at(field, world, replace_fn=lambda leaf: jnp.full_like(leaf, value))


def main() -> None:
    """Train and score each variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="Data set to train on.")
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=VARIANTS,
        default=VARIANTS,
        help="Bounds to keep, one word list per variant.",
    )
    parser.add_argument("--steps", type=int, default=60_000, help="Gradient steps per variant.")
    parser.add_argument("--every", type=int, default=10_000, help="Steps between checkpoints.")
    parser.add_argument("--rollouts", type=int, default=2500, help="Rollouts side by side.")
    parser.add_argument("--world-steps", type=int, default=20_000, help="Gradient steps of the world model.")
    parser.add_argument(
        "--set",
        nargs="+",
        type=setting,
        default=[],
        metavar="NAME=VALUE",
        help="Settings of MOPO; values are JSON.",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/rollout_bounds"), help="Folder of the runs.")
    parser.add_argument("--json", type=Path, help="File to write the results to.")
    args = parser.parse_args()
    data = load(args.data)
    args.runs.mkdir(parents=True, exist_ok=True)
    world_file = args.runs / f"world-{data.fingerprint}-{args.world_steps}.npz"
    results: dict[str, Any] = {}
    for bounds in args.variants:
        settings = {"rollouts": args.rollouts, "world_steps": args.world_steps, "terminate": "env"}
        if "continue_prob" not in bounds:
            settings["continue_prob"] = 0.0
        run, scores = train_run(
            MOPOVariant(bounds=bounds, world_file=str(world_file)),
            data,
            args.runs / bounds.replace(" ", "-"),
            every=args.every,
            scoring=scoring_of(data.info),
            steps=args.steps,
            **{**settings, **dict(args.set)},
        )
        assert scores is not None
        metrics = {
            name: [round(line[name][0], 2) for line in run.metrics()]
            for name in ("q", "critic_loss", "uncertainty")
        }
        curve = score_summary(scores)["curve"]
        results[bounds] = {"step": curve["step"], "score": [seeds[0] for seeds in curve["per_seed"]], **metrics}
        print(bounds, results[bounds], flush=True)
    if args.json:
        about = {
            "data": Path(args.data).name,
            "fingerprint": data.fingerprint,
            "command": command("rollout_bounds"),
        }
        write_json(args.json, {**about, "variants": results})


if __name__ == "__main__":
    main()
