"""Mazes that no recorded walk solves: success rates of clones of composed data, and of other methods.

    python -m benchmarks.mazes giant --walks 500 --methods bc percent-bc plan trajectories greedy iql td3bc
    python -m benchmarks.mazes --table

Walks of 200 steps between cells four apart are recorded in OGBench's point maze of this size (its `stitch`
recipe), with the rewards of each of its five tasks. (results/mazes of tasks 2 to 5 were made with walks that were
cut at task 1's goal as well, so steps from there are missing in them.) `plan` clones every state with its best
step, by weight, `trajectories` the composed trajectories of the same improvement, `greedy` those of the paper's
planner; all clones have the same recipe. One JSON file for each size and number of walks is written to --out,
after every method on every task; what it holds already is not measured again.

`trajstitch bench mazes` runs the whole grid with one recipe for all cells, and is what to use for new tables. This
script stays because results/mazes were made by it, with clones of different lengths, and because it counts the
walks that lead from start to goal and keeps the numbers of every improvement.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import command
from trajstitch.data import Dataset
from trajstitch.evaluation.mazes import make_maze
from trajstitch.evaluation.scores import evaluate
from trajstitch.evaluation.walker import WALK_LENGTH, walk
from trajstitch.jobs.improve import improve
from trajstitch.methods.train import train
from trajstitch.stitching.improve import Result
from trajstitch.stitching.presets import PRESETS
from trajstitch.storage.atomic import write_json

# What is trained for a name, and its settings; the discount and the expectile of IQL are OGBench's for mazes.
CLONES = {"bc": "bc", "percent-bc": "percent-bc", "plan": "bc", "trajectories": "bc", "greedy": "bc"}
OTHERS: dict[str, dict[str, Any]] = {
    "iql": {"discount": 0.995, "expectile": 0.9},
    "td3bc": {"discount": 0.995},
    "cql": {"discount": 0.995},
    "diffuser": {},
}


def env_of(size: str, task: int) -> str:
    """OGBench's id of a task."""
    return f"pointmaze-{size}-singletask-task{task}-v0"


def solved(data: Dataset, size: str, task: int) -> int:
    """How many recorded trajectories lead from the task's first cell to its goal."""
    env = make_maze(env_of(size, task), 1)
    start = env.cell_of(env.reset([0], [0])[:, :2])[0]
    first = env.cell_of(data.obs[data.row[data.start[:-1]], :2])
    env.close()
    return int(((first == start).all(1) & data.terminal).sum())


class Task:
    """One task: its data, and what was made of them."""

    def __init__(self, data: Dataset, size: str, number: int, args: argparse.Namespace) -> None:
        self.id, self.args, self.data = env_of(size, number), args, data
        self.made: dict[str, tuple[Result, float]] = {}

    def improved(self, planner: Any) -> Result:
        """The data improved by this planner."""
        if planner not in self.made:
            begin = time.monotonic()
            config = replace(PRESETS[self.args.preset], planner=planner)
            folder = self.args.runs / f"{self.id}-{self.args.walks}-{planner}"
            result = improve(self.data, config, seed=self.args.seed, out=folder)  # goes on where it was
            self.made[planner] = result, time.monotonic() - begin
        return self.made[planner][0]

    def source(self, name: str) -> Dataset:
        """The data that a method is trained on."""
        if name == "greedy":
            return self.improved("greedy").dataset
        if name == "trajectories":
            return self.improved("optimal").dataset
        if name == "plan":
            plan = self.improved("optimal").plan
            assert plan is not None
            return plan
        return self.data

    def measure(self, name: str) -> dict[str, Any]:
        """Train, and score the last checkpoint."""
        source = self.source(name)
        begin = time.monotonic()
        options: dict[str, Any] = {"steps": self.args.steps}
        if name in OTHERS:
            options = {"steps": self.args.value_steps, **OTHERS[name]}
        policy = train(CLONES.get(name, name), source, seed=self.args.seed, seeds=self.args.seeds, **options)
        seconds = time.monotonic() - begin
        scores = evaluate(policy, self.id, episodes=self.args.episodes, seed=10_000, info=self.data.info).summary()
        return {
            "success": scores["success"],
            "steps_to_goal": scores["steps_to_goal"],
            "seconds": round(seconds, 1),
            "steps": options["steps"],
        }

    def facts(self) -> dict[str, Any]:
        """The improvements' own numbers."""
        return {
            planner: {
                "seconds": round(seconds, 1),
                "history": result.history,
                "graph": result.graph,
                "errors": result.errors,
                "trajectories_at_goal": int(result.dataset.terminal.sum()),
            }
            for planner, (result, seconds) in self.made.items()
        }


def measure_size(size: str, args: argparse.Namespace) -> None:
    """All methods on all tasks of one size."""
    out = args.out / f"{size}-{args.walks}.json"
    report: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"tasks": {}}
    report |= {"size": size, "walks": args.walks, "seeds": args.seeds, "episodes": args.episodes}
    for number in args.tasks:
        entry = report["tasks"].setdefault(str(number), {"methods": {}})
        missing = [name for name in args.methods if name not in entry["methods"]]
        if not missing:
            continue
        begin = time.monotonic()
        walks = walk(env_of(size, number), args.walks * WALK_LENGTH, seed=args.seed)
        recorded = time.monotonic() - begin
        task = Task(walks, size, number, args)
        entry |= {
            "transitions": task.data.transitions,
            "reach_the_goal": int(task.data.terminal.sum()),
            "from_start_to_goal": solved(task.data, size, number),
            "recording_seconds": round(recorded, 1),
        }
        for name in missing:
            entry["methods"][name] = task.measure(name) | {"command": command("mazes")}
            entry["improvements"] = entry.get("improvements", {}) | task.facts()
            write_json(out, report)
            success = entry["methods"][name]["success"]["mean"]
            print(f"{size} {args.walks} task {number} {name}: {success:.1f}%", flush=True)


def print_table(out: Path) -> None:
    """Mean success over tasks, seeds and episodes, one row for each file and method."""
    for file in sorted(out.glob("*.json")):
        report = json.loads(file.read_text())
        names = {name: None for task in report["tasks"].values() for name in task["methods"]}
        for name in names:
            found = [task["methods"][name] for task in report["tasks"].values() if name in task["methods"]]
            per_task = [one["success"]["mean"] for one in found]
            cells = " / ".join(f"{mean:.0f}" for mean in per_task)
            print(f"| {report['size']}, {report['walks']} walks | {name} | {np.mean(per_task):.1f} | {cells} |")


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = (*CLONES, *OTHERS)
    parser.add_argument("sizes", nargs="*", default=[], help="medium, large or giant.")
    parser.add_argument("--walks", type=int, default=500, help="Walks of 200 steps to record.")
    parser.add_argument("--tasks", nargs="+", type=int, default=[1, 2, 3, 4, 5], help="Tasks.")
    parser.add_argument(
        "--methods", nargs="+", choices=names, default=["bc", "percent-bc", "plan"], help="Methods."
    )
    parser.add_argument("--preset", choices=tuple(PRESETS), default="quick", help="Preset of the improvements.")
    parser.add_argument("--steps", type=int, default=20_000, help="Gradient steps of clones.")
    parser.add_argument("--value-steps", type=int, default=100_000, help="Gradient steps of other methods.")
    parser.add_argument("--seeds", type=int, default=5, help="Seeds trained side by side.")
    parser.add_argument("--episodes", type=int, default=10, help="Evaluation episodes per seed.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of recording, improvement and training.")
    parser.add_argument("--out", type=Path, default=Path("results/mazes"), help="Folder of the result files.")
    parser.add_argument("--runs", type=Path, default=Path("runs/mazes"), help="Folder of the improvements.")
    parser.add_argument("--table", action="store_true", help="Print the table of the result files.")
    args = parser.parse_args()
    for size in args.sizes:
        measure_size(size, args)
    if args.table:
        print_table(args.out)


if __name__ == "__main__":
    main()
