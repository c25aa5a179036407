"""Promises against the simulator: the seams of the optimal planner on data sets of D4RL's kinds, replayed.

    python -m benchmarks.audits hopper-medium hopper-replay --transitions 50000 --preset quick --shared FOLDER
    python -m benchmarks.audits --table

FOLDER and the data sets are described in benchmarks/datasets.py; of replay data larger than --transitions, every
k-th trajectory is taken. One JSON file for each data set is written to --out.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from typing import Any

from benchmarks.command import command
from benchmarks.datasets import data_parser, stored_data, stored_reports
from trajstitch.evaluation.audit import audit
from trajstitch.stitching.improve import improve
from trajstitch.stitching.presets import PRESETS
from trajstitch.storage.atomic import write_json


def measure(name: str, args: argparse.Namespace) -> None:
    """Compose one data set and replay its seams."""
    data = stored_data(name, args)
    data = data[:: max(1, round(data.transitions / args.transitions))]
    begin = time.monotonic()
    result = improve(data, replace(PRESETS[args.preset], planner="optimal"))
    seconds = time.monotonic() - begin
    found = audit(result.dataset, data=data, sample=args.sample)
    report: dict[str, Any] = {
        "name": name,
        "command": command("audits"),
        "transitions": data.transitions,
        "seconds_improve": round(seconds, 1),
        "graph": result.graph,
        "history": result.history,
        "model_errors": result.errors,
        "audit": found.summary(),
    }
    write_json(args.out / f"{name}.json", report)
    print(table_row(report), flush=True)


def table_row(report: dict[str, Any]) -> str:
    """One row of the table: medians in typical steps, and the rank correlation of promise and reality."""
    found, graph = report["audit"], report["graph"]
    promise, real, bridged = found["promise"], found["landing"], found["bridged"]
    return (
        f"| {report['name']} | {found['seams']['replayed']:,} | {bridged['median']:.2f} | "
        f"{promise['promised_median']:.2f} | {real['median']:.2f} | {promise['spearman']:.2f} | "
        f"{found['reward']['bias']:+.3f} | {graph['recorded_value']:.0f} → {graph['planned_value']:.0f} |"
    )


def main() -> None:
    """Measure, or print the table."""
    parser = data_parser(__doc__, "audits", seeds=None)
    parser.add_argument("--preset", choices=tuple(PRESETS), default="standard", help="Preset of the models.")
    parser.add_argument("--sample", type=int, default=20_000, help="Seams to replay; 0: all.")
    args = parser.parse_args()
    for name in args.names:
        measure(name, args)
    if args.table:
        for report in stored_reports(args.out):
            print(table_row(report))


if __name__ == "__main__":
    main()
