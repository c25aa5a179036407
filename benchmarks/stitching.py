"""Scores of TS+BC, BC and 10%BC on data sets of D4RL's kinds, with several stitching seeds and cloning seeds.

    python -m benchmarks.stitching hopper-medium hopper-replay --shared FOLDER --out results/stitching
    python -m benchmarks.stitching --tables

FOLDER and the data sets are described in benchmarks/datasets.py. Options that are not listed below go to
`trajstitch improve`. One JSON file per data set is written to --out; --tables prints those files.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import command
from benchmarks.datasets import record_data, scoring_of
from trajstitch.cli.improve import parse
from trajstitch.data import Dataset
from trajstitch.formats import load, save
from trajstitch.jobs.train import train_run
from trajstitch.stitching.graph import EdgeFinder
from trajstitch.stitching.improve import improve
from trajstitch.storage.atomic import write_json

OWN_COMMAND = [sys.executable, "-m", "benchmarks.stitching"]


def clone(method: str, data: Dataset, out: Path, seeds: int, first: int, steps: int) -> dict[str, Any]:
    """Scores of the last and best checkpoint of cloned policies."""
    scoring = scoring_of(data.info)
    _, scores = train_run(
        method, data, out, seed=first, seeds=seeds, every=steps // 3, scoring=scoring, overwrite=True, steps=steps
    )
    assert scores is not None
    return scores.summary()


def stitch_and_clone(path: Path, seed: int, args: argparse.Namespace, options: list[str]) -> None:
    """Improve the data with one seed and clone the result; --out is written after each clone."""
    begin = time.monotonic()
    data = load(path)
    config = parse("improve", [str(path), "--out", "unused", *options]).settings
    finder = EdgeFinder(data, config.graph, near=np.load(path.parent / "near.npy", mmap_mode="r"))
    result = improve(data, config, seed=1000 * seed, finder=finder)
    improved, seams = result.dataset, result.seams
    report: dict[str, Any] = {
        "seed": seed,
        "seconds_improve": time.monotonic() - begin,
        "iterations": result.history,
        "model_errors": result.errors,
        "graph": result.graph,
        "data": {
            "return_mean": float(improved.returns.mean()),
            "return_std": float(improved.returns.std()),
            "transitions": improved.transitions,
            "stitched": float(seams.stitched.mean()),
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, method in (("ts_bc", "bc"), ("ts_percent_bc", "percent-bc")):
            report[name] = clone(method, improved, Path(folder) / method, args.seeds, 100 * seed, args.steps)
            write_json(args.out, report)


def measure(name: str, args: argparse.Namespace, options: list[str]) -> None:
    """Everything for one data set; files in --out/parts are written as soon as each part is known."""
    data = record_data(name, args.shared, args.transitions)
    parts = args.out / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    sizes = ["--seeds", str(args.seeds), "--steps", str(args.steps)]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        save(data, folder / "data.traj")
        config = parse("improve", [name, "--out", "unused", *options]).settings
        near = EdgeFinder(data, config.graph).near
        assert near is not None
        np.save(folder / "near.npy", near)
        child = [*OWN_COMMAND, str(folder / "data.traj"), *sizes]
        children = [
            subprocess.Popen(
                [*child, "--stitch-seed", str(seed), "--out", str(parts / f"{name}.{seed}.json"), *options]
            )
            for seed in range(1, args.stitch_seeds + 1)
        ]
        report: dict[str, Any] = {
            "name": name,
            "command": command("stitching", [name, *options, *sizes, "--transitions", str(args.transitions)]),
            "transitions": data.transitions,
            "episodes": len(data),
            "return_mean": float(data.returns.mean()),
            "return_std": float(data.returns.std()),
        }
        for method in ("bc", "percent-bc"):
            key = method.replace("-", "_")
            report[key] = clone(method, data, folder / method, args.seeds, 0, args.steps)
        write_json(parts / f"{name}.json", report)
        for process in children:
            process.wait()
    merge(args.out)
    print(table_row(json.loads((args.out / f"{name}.json").read_text())), flush=True)


def merge(out: Path) -> None:
    """Merge the parts of each data set into one file."""
    for base in sorted((out / "parts").glob("*.json")):
        if "." not in base.stem:
            stitched = [
                json.loads(file.read_text()) for file in sorted(base.parent.glob(f"{base.stem}.[0-9]*.json"))
            ]
            write_json(out / base.name, {**json.loads(base.read_text()), "stitched": stitched})


def table_row(report: dict[str, Any]) -> str:
    """One row of the table: last ± std / best of each policy, and the mean return of the data before and after."""

    def last_and_best(summaries: list[dict[str, Any]]) -> str:
        if not summaries:
            return "–"
        values = [
            np.concatenate([np.array(s[which]["normalised"]["per_seed"]) for s in summaries])
            for which in ("last", "best")
        ]
        return f"{values[0].mean():.1f} ± {values[0].std(ddof=1):.1f} / {values[1].mean():.1f}"

    stitched = report["stitched"]
    after = np.mean([s["data"]["return_mean"] for s in stitched]) if stitched else float("nan")
    cells = [report["name"], last_and_best([report["bc"]]), last_and_best([report["percent_bc"]])]
    cells += [last_and_best([s[name] for s in stitched if name in s]) for name in ("ts_bc", "ts_percent_bc")]
    cells += [f"{report['return_mean']:.0f} → {after:.0f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measure the data sets, or one stitching seed of one of them, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="Data sets, such as hopper-medium-expert.")
    parser.add_argument("--shared", type=Path, default=Path("shared"), help="Folder with policies/ and replay/.")
    parser.add_argument("--out", type=Path, default=Path("results/stitching"), help="Folder of the result files.")
    parser.add_argument("--transitions", type=int, default=1_000_000, help="Transitions to record per data set.")
    parser.add_argument("--stitch-seeds", type=int, default=3, help="Number of stitching seeds.")
    parser.add_argument(
        "--stitch-seed", type=int, help="Measure this stitching seed only; used by the script itself."
    )
    parser.add_argument("--seeds", type=int, default=5, help="Clones per data set or stitching seed.")
    parser.add_argument("--steps", type=int, default=50_000, help="Gradient steps per clone.")
    parser.add_argument("--tables", action="store_true", help="Print the tables of the result files in --out.")
    args, options = parser.parse_known_args()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several processes share the GPU
    if args.tables:
        merge(args.out)
        for file in sorted(args.out.glob("*.json")):
            print(table_row(json.loads(file.read_text())))
    elif not args.names:
        parser.error("give at least one data set, or --tables")
    elif args.stitch_seed is not None:
        stitch_and_clone(Path(args.names[0]), args.stitch_seed, args, options)
    else:
        # One process per data set, all at once: none of them fills the machine alone.
        shared_arguments = [word for word in sys.argv[1:] if word not in args.names]
        others = [subprocess.Popen([*OWN_COMMAND, name, *shared_arguments]) for name in args.names[1:]]
        measure(args.names[0], args, options)
        for other in others:
            other.wait()


if __name__ == "__main__":
    main()
