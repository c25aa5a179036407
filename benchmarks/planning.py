"""Planned values that can be believed: how tolerance and caution change a plan, and what its clones earn.

    python -m benchmarks.planning hopper-replay walker2d-replay --shared FOLDER --runs RUNS
    python -m benchmarks.planning --table

FOLDER and the data sets are described in benchmarks/datasets.py. One world model is trained for each data set, and
a plan is made for every tolerance and caution. Beside each plan stand clones (a rate that falls to 0): of every
state with its best step (plan) and of the composed trajectories that were accepted (trajectories); and of the data
as recorded (bc), their best tenth (percent-bc), and of greedy stitching (greedy). One JSON file for each data set
is written to --out, after every score.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.command import command
from benchmarks.datasets import data_parser, scoring_of, stored_data, stored_reports
from trajstitch.data import Dataset
from trajstitch.evaluation.scores import evaluate
from trajstitch.methods.train import train
from trajstitch.models.world_model import train_action_dynamics
from trajstitch.stitching.improve import Improve, Models, improve
from trajstitch.stitching.optimal import OptimalConfig
from trajstitch.stitching.presets import PRESETS
from trajstitch.stitching.reach import ReachConfig
from trajstitch.storage.atomic import write_json


def clone(data: Dataset, source: Dataset, method: str, args: argparse.Namespace) -> dict[str, Any]:
    """Train clones of `source` and score the last checkpoint in the environment of `data`."""
    policy = train(method, source, seeds=args.seeds, steps=args.steps)
    scoring = scoring_of(data.info, args.episodes)
    scores = evaluate(policy, scoring.env_id, physics=scoring.physics, episodes=args.episodes, info=data.info)
    return scores.summary()


def measure(name: str, args: argparse.Namespace) -> None:
    """Every plan and clone on one data set."""
    data = stored_data(name, args)
    out = args.out / f"{name}.json"
    report: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"scores": {}, "plans": {}}
    report |= {"name": name, "fingerprint": data.fingerprint, "command": command("planning")}
    base: Improve = replace(PRESETS[args.preset], planner="optimal")
    world = train_action_dynamics(*data.split(0.95, 0), base.world, 40)[0]

    def score(label: str, source: Dataset, method: str = "bc") -> None:
        if label not in report["scores"]:
            report["scores"][label] = clone(data, source, method, args)
            write_json(out, report)
            print(table_row(report, label), flush=True)

    score("bc", data)
    score("percent-bc", data, "percent-bc")
    for tolerance in args.tolerances:
        for caution in args.cautions:
            label = f"{tolerance:g} {caution:g}"
            if f"plan {label}" in report["scores"]:
                continue
            config = replace(
                base,
                reach=ReachConfig(tolerance=tolerance or None),
                optimal=OptimalConfig(discount=args.discount, caution=caution),
            )
            result = improve(data, config, models=Models(world=world))
            assert result.plan is not None
            seams = result.dataset.seams
            assert seams is not None
            report["plans"][label] = {
                **result.graph,
                **result.errors,
                **result.history[0],
                "steps_that_are_not_recorded": float(np.mean(result.plan.seams.stitched)),  # type: ignore[union-attr]
            }
            score(f"plan {label}", result.plan)
            score(f"trajectories {label}", result.dataset)
    if "greedy" not in report["scores"]:
        score("greedy", improve(data, replace(base, planner="greedy")).dataset)


def table_row(report: dict[str, Any], label: str) -> str:
    """One row of the table."""
    score = report["scores"][label]["normalised"]
    spread = score["std_over_seeds"]
    plan = report["plans"].get(label.partition(" ")[2], {})
    value = f"{plan['recorded_value']:.0f} → {plan['planned_value']:.0f}" if plan else "–"
    return f"| {report['name']} | {label} | {value} | {score['mean']:.1f} ± {spread or 0:.1f} |"


def main() -> None:
    """Measure, or print the table."""
    parser = data_parser(__doc__, "planning")
    parser.add_argument("--tolerances", nargs="+", type=float, default=[0.0], help="Landing errors; 0: chosen.")
    parser.add_argument("--cautions", nargs="+", type=float, default=[0.0, 1.0, 10.0], help="Cautions.")
    parser.add_argument("--discount", type=float, default=0.99, help="Discount of the plans.")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="standard", help="Preset of the models.")
    parser.add_argument("--steps", type=int, default=30_000, help="Gradient steps of clones.")
    args = parser.parse_args()
    for name in args.names:
        measure(name, args)
    if args.table:
        for report in stored_reports(args.out):
            print("\n".join(table_row(report, label) for label in report["scores"]))


if __name__ == "__main__":
    main()
