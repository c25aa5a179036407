"""Methods compared on data sets of D4RL's kinds: scores of the last and best checkpoint, and training speed.

    python -m benchmarks.methods hopper-medium walker2d-medium --methods td3bc iql --shared FOLDER
    python -m benchmarks.methods --tables

FOLDER and the data sets are described in benchmarks/datasets.py. td3tsbc and tsmbop stitch the data first, with
--preset; they and mbop follow the paper's rule for the data set. A run in --runs that was stopped continues from
its last checkpoint. One JSON file per data set is written to --out after each method; --tables prints those files.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import command, setting
from benchmarks.datasets import scoring_of, stored_data
from trajstitch.bench.suites import chosen_settings
from trajstitch.data import Dataset
from trajstitch.evaluation.normalise import normalise
from trajstitch.jobs.improve import improve_run
from trajstitch.jobs.score import RunScores
from trajstitch.jobs.train import train_run
from trajstitch.methods import METHODS
from trajstitch.stitching.presets import PRESETS
from trajstitch.storage.atomic import write_json

NAMES = ("hopper-medium", "halfcheetah-medium", "walker2d-medium")


def measure(method: str, name: str, data: Dataset, args: argparse.Namespace) -> dict[str, Any]:
    """Train, then score every checkpoint; training time does not include scoring."""
    runs = args.runs / name
    options: dict[str, Any] = {"seeds": args.seeds, "steps": args.steps, "every": args.every}
    options |= chosen_settings(method, name) | dict(args.set)
    if method in ("td3tsbc", "tsmbop"):
        _, result = improve_run(data, PRESETS[args.preset], runs / "improve")
        options["improved"] = result.dataset
    resumed = (runs / method).exists()
    begin = time.monotonic()
    run, _ = train_run(method, data, runs / method, **options)
    seconds = time.monotonic() - begin
    scoring = scoring_of(data.info, args.episodes)
    _, scores = train_run(method, data, runs / method, scoring=scoring, **options)
    assert scores is not None
    return {
        "seeds": args.seeds,
        "steps": args.steps,
        # Of all seeds together, compiling included; unknown for a run that was resumed.
        "seconds": None if resumed else round(seconds, 1),
        "steps_a_second": None if resumed else round(args.steps / seconds, 1),
        "metrics": run.metrics()[-1],
        **score_summary(scores),
    }


def score_summary(scores: RunScores) -> dict[str, Any]:
    """Scores of the last and best checkpoint, and the normalised score per seed at every checkpoint."""
    assert scores.reference is not None
    curve = normalise(scores.returns.mean(2), scores.reference)
    return {**scores.summary(), "curve": {"step": scores.step, "per_seed": np.round(curve, 2).tolist()}}


def measure_all(name: str, args: argparse.Namespace) -> None:
    """Every method on one data set; the file is written after each method."""
    data = stored_data(name, args)
    out = args.out / f"{name}.json"
    report: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"methods": {}}
    report |= {"name": name, "fingerprint": data.fingerprint, "transitions": data.transitions}
    for method in args.methods:
        report["methods"][method] = measure(method, name, data, args) | {"command": command("methods")}
        write_json(out, report)
        print(table_row(name, method, report["methods"][method]), flush=True)


def table_row(name: str, method: str, result: dict[str, Any]) -> str:
    """One row of the table: normalised scores of the last and best checkpoint, and steps per second."""
    cells = [name, method, f"{result['seeds']} × {result['steps']:,}"]
    for which in ("last", "best"):
        scores = result[which]["normalised"]
        spread = scores["std_over_seeds"]
        cells.append(f"{scores['mean']:.1f}" + ("" if spread is None else f" ± {spread:.1f}"))
    cells.append("–" if result["steps_a_second"] is None else f"{result['steps_a_second']:,.0f}")
    return "| " + " | ".join(cells) + " |"


def after_switch(methods: dict[str, Any]) -> tuple[float, float]:
    """Mean scores of td3bc and td3tsbc over the checkpoints that they do not share."""
    curves = [methods[name]["curve"] for name in ("td3bc", "td3tsbc")]
    plain, stitched = (dict(zip(curve["step"], curve["per_seed"], strict=True)) for curve in curves)
    steps = [step for step in stitched if step in plain and plain[step] != stitched[step]]
    return float(np.mean([plain[step] for step in steps])), float(np.mean([stitched[step] for step in steps]))


def print_tables(out: Path) -> None:
    """Print all result files in this folder."""
    for file in sorted(out.glob("*.json")):
        report = json.loads(file.read_text())
        for method, result in report["methods"].items():
            print(table_row(report["name"], method, result))
        if {"td3bc", "td3tsbc"} <= report["methods"].keys():
            plain, stitched = after_switch(report["methods"])
            print(f"{report['name']}, mean of all checkpoints after the switch: {plain:.1f} → {stitched:.1f}")


def main() -> None:
    """Measure the methods, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, help="Data sets, such as hopper-medium-expert.")
    parser.add_argument(
        "--methods", nargs="+", choices=tuple(METHODS), default=["td3bc", "iql", "cql"], help="Methods to train."
    )
    parser.add_argument("--shared", type=Path, default=Path("shared"), help="Folder with policies/ and replay/.")
    parser.add_argument("--runs", type=Path, default=Path("runs/methods"), help="Folder of the runs.")
    parser.add_argument("--out", type=Path, default=Path("results/methods"), help="Folder of the result files.")
    parser.add_argument("--transitions", type=int, default=1_000_000, help="Transitions to record per data set.")
    parser.add_argument("--seeds", type=int, default=5, help="Seeds trained side by side.")
    parser.add_argument("--steps", type=int, default=1_000_000, help="Gradient steps.")
    parser.add_argument("--every", type=int, help="Steps between checkpoints; a twentieth of --steps by default.")
    parser.add_argument("--episodes", type=int, default=10, help="Evaluation episodes per seed and checkpoint.")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="standard", help="Preset of the stitching.")
    parser.add_argument(
        "--set",
        nargs="+",
        type=setting,
        default=[],
        metavar="NAME=VALUE",
        help="Method settings; values are JSON.",
    )
    parser.add_argument("--tables", action="store_true", help="Print the tables of the result files in --out.")
    args = parser.parse_args()
    if args.tables:
        print_tables(args.out)
        return
    for name in args.names:
        measure_all(name, args)


if __name__ == "__main__":
    main()
