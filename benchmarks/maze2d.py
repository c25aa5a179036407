"""maze2d, D4RL's mazes with inertia: normalised scores of clones of composed data, and of other methods.

    python -m benchmarks.maze2d --sizes umaze medium large --methods composed look-ahead bc percent-bc iql
    python -m benchmarks.maze2d --table

One million steps of D4RL's walker are recorded in each maze; only their rewards know of the goal. `composed`
clones what `improve` with the planner held makes of them. `look-ahead` is no clone: it plays the plan in the
simulator, a bound for clones. --out is written after every method; what it holds already is not measured again.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import command
from trajstitch.data import Dataset
from trajstitch.evaluation.mazes import make_maze
from trajstitch.evaluation.normalise import normalise, reference_scores
from trajstitch.evaluation.scores import evaluate
from trajstitch.evaluation.stats import interval
from trajstitch.evaluation.walker import walk
from trajstitch.methods.train import train
from trajstitch.models.world_model import train_action_dynamics
from trajstitch.stitching.held import HeldConfig, HeldPlanner
from trajstitch.stitching.improve import Models, Result, improve
from trajstitch.stitching.presets import PRESETS
from trajstitch.stitching.reach import ReachConfig, ReachFinder
from trajstitch.storage.atomic import write_json

OTHERS: dict[str, dict[str, Any]] = {"iql": {"discount": 0.995, "expectile": 0.9}, "td3bc": {"discount": 0.995}}
METHODS = ("composed", "look-ahead", "bc", "percent-bc", *OTHERS)

_EVALUATION_SEED = 20_000  # of the first episode


class Task:
    """One maze: its data, and what was made of them."""

    def __init__(self, size: str, args: argparse.Namespace) -> None:
        self.id, self.args, self.seconds = f"maze2d-{size}-v1", args, {}
        begin = time.monotonic()
        self.data = walk(self.id, args.transitions, seed=args.seed)
        self.seconds["recording"] = time.monotonic() - begin

    @cached_property
    def config(self) -> HeldConfig:
        """The settings of the planner."""
        args = self.args
        return HeldConfig(args.hold, cell=args.cell, caution=args.caution, discount=args.discount)

    @cached_property
    def model(self) -> Any:
        """The world model that `improve` trains too; here it also serves `look-ahead`."""
        begin = time.monotonic()
        halves = self.data.split(0.95, self.args.seed)
        model, _ = train_action_dynamics(*halves, PRESETS[self.args.preset].world, 1000 * self.args.seed + 40)
        self.seconds["world model"] = time.monotonic() - begin
        return model

    @cached_property
    def composed(self) -> Result:
        """The improvement."""
        model, begin = self.model, time.monotonic()
        config = replace(PRESETS[self.args.preset], planner="held", held=self.config)
        made = improve(self.data, config, seed=self.args.seed, models=Models(world=model))
        self.seconds["composing"] = time.monotonic() - begin
        return made

    def source(self, name: str) -> Dataset:
        """The data that a method is trained on."""
        return self.composed.dataset if name == "composed" else self.data

    def measure(self, name: str) -> dict[str, Any]:
        """Train, and score the last checkpoint."""
        if name == "look-ahead":
            return self.play()
        source = self.source(name)
        begin = time.monotonic()
        options: dict[str, Any] = {"steps": self.args.steps, "schedule": "cosine"}
        if name in OTHERS:
            options = {"steps": self.args.value_steps, **OTHERS[name]}
        method = "bc" if name == "composed" else name
        policy = train(method, source, seed=self.args.seed, seeds=self.args.seeds, **options)
        seconds = time.monotonic() - begin
        scores = evaluate(
            policy, self.id, episodes=self.args.episodes, seed=_EVALUATION_SEED, info=self.data.info
        ).summary()
        kept = {k: scores[k] for k in ("normalised", "raw", "success", "steps_to_goal", "seeds", "episodes")}
        return {**kept, "seconds": round(seconds, 1), "steps": options["steps"], "transitions": source.transitions}

    def play(self) -> dict[str, Any]:
        """Score the plan itself: look ahead at every step, in as many episodes as one clone has."""
        count, begin = self.args.episodes, time.monotonic()
        unit = ReachFinder(self.data, self.model, ReachConfig()).unit
        planner = HeldPlanner(self.data, self.model, unit, self.config)
        env = make_maze(self.id, count)
        obs = env.reset(np.arange(count), _EVALUATION_SEED + np.arange(count))
        returns = np.zeros((1, count))
        for _ in range(env.horizon):
            step = env.step(planner.best(obs.astype(np.float32)))
            obs, returns = step.obs, returns + step.reward
        env.close()
        reference = reference_scores(self.id)
        assert reference is not None
        scores = normalise(returns, reference)
        return {
            "normalised": {"mean": float(scores.mean()), "interval95": interval(scores)},
            "success": {"mean": float(100 * (returns > 0).mean())},
            "seeds": 1,
            "episodes": count,
            "seconds": round(time.monotonic() - begin, 1),
        }

    def facts(self) -> dict[str, Any]:
        """The plan's own numbers."""
        return {**asdict(self.config), **self.composed.graph, **self.composed.errors}


def measure(args: argparse.Namespace) -> None:
    """All methods in all mazes."""
    report: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {"mazes": {}}
    for size in args.sizes:
        entry = report["mazes"].setdefault(size, {"methods": {}})
        missing = [name for name in args.methods if name not in entry["methods"]]
        if not missing:
            continue
        task = Task(size, args)
        entry |= {"transitions": task.data.transitions, "trajectories": len(task.data)}
        for name in missing:
            entry["methods"][name] = task.measure(name) | {"command": command("maze2d")}
            if "composed" in vars(task):
                entry["plan"] = task.facts()
            entry["seconds"] = entry.get("seconds", {}) | {k: round(v, 1) for k, v in task.seconds.items()}
            write_json(args.out, report)
            print(f"{size} {name}: {entry['methods'][name]['normalised']['mean']:.1f}", flush=True)


def print_table(out: Path) -> None:
    """Normalised scores, mean ± std over seeds; one row for each method."""
    mazes = json.loads(out.read_text())["mazes"]
    for name in METHODS:
        found = [maze["methods"].get(name) for maze in mazes.values()]
        if any(found):
            cells = [_cell(one) for one in found]
            mean = f"{np.mean([one['normalised']['mean'] for one in found]):.1f}" if all(found) else "–"
            print(f"| {name} | {' | '.join(cells)} | {mean} |")


def _cell(result: dict[str, Any] | None) -> str:
    if result is None:
        return "–"
    scores = result["normalised"]
    return f"{scores['mean']:.1f}" + (f" ± {scores['std_over_seeds']:.1f}" if result["seeds"] > 1 else "")


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = HeldConfig()
    parser.add_argument("--sizes", nargs="+", default=["umaze", "medium", "large"], help="Mazes.")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=["composed", "look-ahead", "bc"], help="Methods."
    )
    parser.add_argument("--transitions", type=int, default=1_000_000, help="Steps of the walker to record.")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="quick", help="Preset of the world model.")
    parser.add_argument("--hold", type=int, default=default.hold, help="Steps for which an action is held.")
    parser.add_argument("--cell", type=float, default=default.cell, help="Size of the net's cells.")
    parser.add_argument("--caution", type=float, default=default.caution, help="Charge for leaving the data.")
    parser.add_argument("--discount", type=float, default=default.discount, help="Discount of the plan.")
    parser.add_argument("--steps", type=int, default=20_000, help="Gradient steps of clones.")
    parser.add_argument("--value-steps", type=int, default=100_000, help="Gradient steps of other methods.")
    parser.add_argument("--seeds", type=int, default=5, help="Seeds trained side by side.")
    parser.add_argument("--episodes", type=int, default=10, help="Evaluation episodes per seed.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of recording, planning and training.")
    parser.add_argument("--out", type=Path, default=Path("results/maze2d.json"), help="The result file.")
    parser.add_argument("--table", action="store_true", help="Print the table of the result file.")
    args = parser.parse_args()
    if not args.table:
        measure(args)
    print_table(args.out)


if __name__ == "__main__":
    main()
