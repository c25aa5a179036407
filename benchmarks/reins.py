"""What holds rollouts in a learnt world, taken away one after the other: MOPO's scores without it.

    python benchmarks/reins.py halfcheetah-medium.traj --set penalty=0.5 actor_schedule='"constant"'

std: no member is less sure than the data's own spread. range: no state or reward is beyond those of the data.
onward: rollouts go on where they were. All variants share one world and one seed; each is scored at every
checkpoint. Runs go to --runs and go on where they were stopped; --json FILE keeps what is found.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from methods import scored, setting
from stitching import judge_of

from trajstitch import methods
from trajstitch.data import Dataset
from trajstitch.files import write_json
from trajstitch.fit import Table
from trajstitch.formats import load
from trajstitch.keep import keep, recall
from trajstitch.mopo import MOPO
from trajstitch.progress import Tell, silent
from trajstitch.world import World

VARIANTS = ("std range onward", "std range", "std", "none")  # what is there


@dataclass(frozen=True)
class Loose(MOPO):
    """MOPO with some of the reins."""

    reins: str = VARIANTS[0]
    world: str = ""  # file of the members

    def prepare(self, data: Dataset, tell: Tell = silent) -> Any:
        """The world of all variants, made by the first."""
        if not Path(self.world).exists():
            keep(super().prepare(data, tell), Path(self.world))
        return recall(Path(self.world))

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """With a world that lets go."""
        table = super().table(data, prepared)
        world: World = table["world"]
        if "std" not in self.reins:
            world = without(world, lambda w: w.widest, np.inf)
        if "range" not in self.reins:
            world = without(without(world, lambda w: w.least, -np.inf), lambda w: w.most, np.inf)
        return {**table, "world": world}


def without(world: World, rein: Callable[[World], Any], end: float) -> World:
    """The world with this end of a range out of reach."""
    return eqx.tree_at(rein, world, replace_fn=lambda leaf: jnp.full_like(leaf, end))


def main() -> None:
    """Train and score each variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    parser.add_argument("--steps", type=int, default=60_000)
    parser.add_argument("--every", type=int, default=10_000)
    parser.add_argument("--rollouts", type=int, default=2500)
    parser.add_argument("--world-steps", type=int, default=20_000)
    parser.add_argument("--set", nargs="+", type=setting, default=[], metavar="NAME=VALUE")
    parser.add_argument("--runs", type=Path, default=Path("runs/reins"))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    methods.METHODS["loose"] = Loose()
    data = load(asked.data)
    judge = judge_of(data.info)
    asked.runs.mkdir(parents=True, exist_ok=True)
    world = asked.runs / f"world-{data.fingerprint}-{asked.world_steps}.npz"
    results: dict[str, Any] = {}
    for reins in asked.variants:
        options = {"steps": asked.steps, "every": asked.every, "rollouts": asked.rollouts, "terminate": "env"}
        options |= {"world_steps": asked.world_steps, "world": str(world)}
        options |= {"reins": reins, **({} if "onward" in reins else {"onward": 0.0}), **dict(asked.set)}
        path = asked.runs / reins.replace(" ", "-")
        run, judged = methods.train_run("loose", data, path, judge=judge, **options)
        assert judged is not None
        metrics = {
            name: [round(line[name][0], 2) for line in run.metrics()] for name in ("q", "critic_loss", "doubt")
        }
        curve = scored(judged)["curve"]
        results[reins] = {"step": curve["step"], "score": [one[0] for one in curve["per_seed"]], **metrics}
        print(reins, results[reins], flush=True)
    if asked.json:
        about = {"data": Path(asked.data).name, "fingerprint": data.fingerprint, "command": shlex.join(sys.argv)}
        write_json(asked.json, {**about, "variants": results})


if __name__ == "__main__":
    main()
