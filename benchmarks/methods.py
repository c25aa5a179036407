"""Methods side by side on data of D4RL's kinds: several seeds each, last and best checkpoint, and how fast.

    python benchmarks/methods.py hopper-medium walker2d-medium --methods td3bc iql --shared FOLDER

FOLDER and the data are those of benchmarks/stitching.py. td3tsbc and tsmbop stitch the data first, with --preset;
they and mbop follow the paper's rule for the data set. Runs go to --runs and go on where they were stopped; one
JSON file a data set is written to --out after each method; `--tables` prints what is there.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from stitching import judge_of, make_data

from trajstitch.data import Dataset
from trajstitch.files import write_json
from trajstitch.formats import load, save
from trajstitch.improving import improve_run
from trajstitch.judge import Judged
from trajstitch.methods import METHODS, train_run
from trajstitch.scores import normalise
from trajstitch.stitch import PRESETS

# Chosen for each data set, as published ones are: the penalty of mopo, the threshold of morel.
MOPO = {"hopper-medium": 5.0, "halfcheetah-medium": 0.5, "walker2d-medium": 1.5}
MOREL = {"hopper-medium": 0.25, "halfcheetah-medium": 0.05, "walker2d-medium": 0.3}
NAMES = ("hopper-medium", "halfcheetah-medium", "walker2d-medium")


def paper_name(name: str) -> str:
    """What the paper calls a data set."""
    env, _, kind = name.partition("-")
    return f"{env}-medium-replay" if kind == "replay" else name


def measure(method: str, name: str, data: Dataset, asked: argparse.Namespace) -> dict[str, Any]:
    """Train, then score every checkpoint; scoring is not counted as training time."""
    runs = asked.runs / name
    options: dict[str, Any] = {"seeds": asked.seeds, "steps": asked.steps, "every": asked.every}
    if method in ("td3tsbc", "mbop", "tsmbop"):
        options["rule"] = paper_name(name)
    if method in ("mopo", "morel"):
        options["terminate"] = "env"  # as published
    if method == "mopo":
        options["penalty"] = MOPO.get(name, 1.0)
    if method == "morel":
        options["threshold"] = MOREL.get(name)
    options |= dict(asked.set)
    if method in ("td3tsbc", "tsmbop"):
        _, result = improve_run(data, PRESETS[asked.preset], runs / "improve")
        options["improved"] = result.dataset
    begun = (runs / method).exists()
    begin = time.monotonic()
    run, _ = train_run(method, data, runs / method, **options)
    seconds = time.monotonic() - begin
    judge = judge_of(data.info, asked.episodes)
    _, judged = train_run(method, data, runs / method, judge=judge, **options)
    assert judged is not None
    return {
        "seeds": asked.seeds,
        "steps": asked.steps,
        "seconds": None
        if begun
        else round(seconds, 1),  # of all seeds, with compiling; unknown where a run went on
        "steps_a_second": None if begun else round(asked.steps / seconds, 1),
        "metrics": run.metrics()[-1],
        **scored(judged),
    }


def setting(word: str) -> tuple[str, Any]:
    """NAME=VALUE, of a method's settings."""
    name, _, value = word.partition("=")
    return name, json.loads(value)


def scored(judged: Judged) -> dict[str, Any]:
    """Last and best, and the normalised score of each seed at every checkpoint."""
    assert judged.reference is not None
    scores = normalise(judged.returns.mean(2), judged.reference)
    return {**judged.summary(), "curve": {"step": judged.step, "per_seed": np.round(scores, 2).tolist()}}


def data_of(name: str, asked: argparse.Namespace) -> Dataset:
    """The data set of this name, made unless it is there."""
    file = asked.runs / name / "data.traj"
    if not file.exists():
        save(make_data(name, asked.shared, asked.transitions), file)
    return load(file)


def measure_all(name: str, asked: argparse.Namespace) -> None:
    """Every method on one data set; each is written down as soon as it is known."""
    data = data_of(name, asked)
    out = asked.out / f"{name}.json"
    report: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"methods": {}}
    report |= {"name": name, "fingerprint": data.fingerprint, "transitions": data.transitions}
    for method in asked.methods:
        report["methods"][method] = measure(method, name, data, asked) | {"command": shlex.join(sys.argv)}
        write_json(out, report)
        print(line(name, method, report["methods"][method]), flush=True)


def line(name: str, method: str, result: dict[str, Any]) -> str:
    """One row of the table: last and best, normalised."""
    cells = [name, method, f"{result['seeds']} × {result['steps']:,}"]
    for which in ("last", "best"):
        scores = result[which]["normalised"]
        spread = scores["std_over_seeds"]
        cells.append(f"{scores['mean']:.1f}" + ("" if spread is None else f" ± {spread:.1f}"))
    cells.append("–" if result["steps_a_second"] is None else f"{result['steps_a_second']:,.0f}")
    return "| " + " | ".join(cells) + " |"


def after_switch(methods: dict[str, Any]) -> tuple[float, float]:
    """Mean scores of td3bc and td3tsbc over the checkpoints they do not share."""
    curves = [methods[name]["curve"] for name in ("td3bc", "td3tsbc")]
    before, after = (dict(zip(one["step"], one["per_seed"], strict=True)) for one in curves)
    own = [step for step in after if step in before and before[step] != after[step]]
    return float(np.mean([before[step] for step in own])), float(np.mean([after[step] for step in own]))


def main() -> None:
    """Measure what is asked for, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=["td3bc", "iql", "cql"])
    parser.add_argument("--shared", type=Path, default=Path("shared"))
    parser.add_argument("--runs", type=Path, default=Path("runs/methods"))
    parser.add_argument("--out", type=Path, default=Path("results/methods"))
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--every", type=int, help="steps between checkpoints; a twentieth of all unless given")
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--preset", choices=tuple(PRESETS), default="standard", help="of the stitching")
    parser.add_argument("--set", nargs="+", type=setting, default=[], metavar="NAME=VALUE", help="of the methods")
    parser.add_argument("--tables", action="store_true")
    asked = parser.parse_args()
    if asked.tables:
        for file in sorted(asked.out.glob("*.json")):
            report = json.loads(file.read_text())
            for method, result in report["methods"].items():
                print(line(report["name"], method, result))
            if {"td3bc", "td3tsbc"} <= report["methods"].keys():
                before, after = after_switch(report["methods"])
                print(f"{report['name']}, mean of all checkpoints after the switch: {before:.1f} → {after:.1f}")
        return
    for name in asked.names:
        measure_all(name, asked)


if __name__ == "__main__":
    main()
