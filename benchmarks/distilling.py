"""Several policies distilled into one file: what their median does, and clones of what it does.

    python -m benchmarks.methods_batched hopper-medium hopper-replay --methods rebrac --runs RUNS --shared FOLDER
    python -m benchmarks.distilling hopper-medium hopper-replay --teacher rebrac --runs RUNS --shared FOLDER
    python -m benchmarks.distilling --table

FOLDER and the data sets are described in benchmarks/datasets.py. RUNS/NAME/rebrac is a finished run, of which the
policies of the last checkpoint are the teachers. The median of their actions is scored, followed in a world model
learned from the data (`improve` with the planner policy), and what comes out is cloned by several seeds: `plan`,
its step from every recorded state, `trajectories`, its rollouts, or `both`. One JSON file for each data set is
written to --out; what it holds is not measured again.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import equinox as eqx
import numpy as np
from jax import Array

from benchmarks.command import command
from benchmarks.datasets import data_parser, stored_data, stored_reports
from benchmarks.imagining import score
from trajstitch.data import concatenate
from trajstitch.jobs.improve import improve
from trajstitch.jobs.run_dir import Run
from trajstitch.methods.train import train
from trajstitch.policies.policy import Policy, acting, stack, stacked
from trajstitch.policies.policy_files import load_policy
from trajstitch.stitching.improve import Models
from trajstitch.stitching.presets import PRESETS
from trajstitch.storage.atomic import write_json
from trajstitch.training.networks import Range, pick

SOURCES = ("plan", "trajectories", "both")


class Median(eqx.Module):
    """Several policies that act as one, to be scored."""

    policies: Policy  # [1, P]: stacked twice, as what is scored has a leading axis

    def act(self, obs: Array, key: Array | None = None) -> Array:
        """Return the median of their actions for one observation."""
        return acting(self.policies)(obs[None])[0]

    @property
    def count(self) -> int:
        """One, as it counts when it is scored."""
        return 1

    @property
    def range(self) -> Range:
        """The range of actions."""
        return pick(self.policies.range, (slice(None), 0))

    @property
    def obs_dim(self) -> int:
        """Dimensions of an observation."""
        return self.policies.obs_dim

    @property
    def action_dim(self) -> int:
        """Dimensions of an action."""
        return self.policies.action_dim


def measure(name: str, args: argparse.Namespace) -> None:
    """Measure one data set."""
    file = args.out / f"{name}.json"
    report: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"name": name, "teachers": {}}
    known = report["teachers"].get(args.teacher, {"clones": {}})
    if not (missing := [source for source in args.sources if source not in known["clones"]]):
        return
    data, begin = stored_data(name, args), time.monotonic()
    run = Run.existing(args.runs / name / args.teacher)
    policies = load_policy(run.checkpoint(run.steps()[-1]))
    assert isinstance(policies, Policy)
    teachers = stacked(policies)
    each = score(teachers, data, args.episodes)
    median = score(Median(stack([teachers])), data, args.episodes * len(each))
    print(f"{name}: each {np.mean(each, 1).round(1).tolist()}, median {np.mean(median):.1f}", flush=True)
    config = replace(PRESETS[args.preset], planner="policy")
    made = improve(data, config, seed=0, models=Models(policy=acting(teachers)))
    assert made.plan is not None
    sources = {"plan": made.plan, "trajectories": made.dataset, "both": concatenate([made.plan, made.dataset])}
    report["teachers"][args.teacher] = {
        "steps": run.steps()[-1],
        "settings": run.settings()["config"],
        "transitions": data.transitions,
        "fingerprint": data.fingerprint,
        "each": each,
        "median": median,
        "imagined": {"steps": made.dataset.transitions, "length": float(made.dataset.length.mean())},
        "seconds": round(time.monotonic() - begin),
        "clones": known["clones"],
    }
    for source in missing:
        begin = time.monotonic()
        clones = train("bc", sources[source], seeds=args.seeds, steps=args.clone_steps)
        known["clones"][source] = {
            "scores": score(clones, data, args.episodes),
            "steps": args.clone_steps,
            "seconds": round(time.monotonic() - begin),
            "command": command("distilling"),
        }
        write_json(file, report)
        print(row(name, args.teacher, report["teachers"][args.teacher], source), flush=True)


def row(name: str, teacher: str, entry: dict[str, Any], source: str) -> str:
    """One row of the table: mean ± std over policies, the median's mean, mean ± std over clones of one source."""
    means = [np.mean(scores, 1) for scores in (entry["each"], entry["clones"][source]["scores"])]
    cells = [f"{one.mean():.1f} ± {one.std(ddof=1):.1f}" for one in means]
    return f"| {name} | {teacher} | {cells[0]} | {np.mean(entry['median']):.1f} | {source} | {cells[1]} |"


def main() -> None:
    """Measure, or print the table."""
    parser = data_parser(__doc__, "distilling", runs="methods_batched")
    parser.add_argument("--teacher", default="rebrac", help="Method whose run is distilled.")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="quick", help="Preset of the world model.")
    parser.add_argument("--sources", nargs="+", choices=SOURCES, default=["plan"], help="What is cloned.")
    parser.add_argument("--clone-steps", type=int, default=50_000, help="Gradient steps of clones.")
    args = parser.parse_args()
    for name in args.names:
        measure(name, args)
    if args.table:
        for report in stored_reports(args.out):
            for teacher, entry in report["teachers"].items():
                print("\n".join(row(report["name"], teacher, entry, source) for source in entry["clones"]))


if __name__ == "__main__":
    main()
