"""Data sets of D4RL's kinds that scripts record from policies in a folder, --shared: see bench/datasets.py."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from trajstitch.bench.datasets import record_data, scoring_of
from trajstitch.bench.suites import paper_name
from trajstitch.data import Dataset
from trajstitch.formats import load, save

__all__ = [
    "add_data_options",
    "data_parser",
    "paper_name",
    "record_data",
    "scoring_of",
    "stored_data",
    "stored_reports",
]


def stored_data(name: str, args: argparse.Namespace) -> Dataset:
    """The data set of this name from the folder args.runs; it is made and saved there if it is missing."""
    file = args.runs / name / "data.traj"
    if not file.exists():
        save(record_data(name, args.shared, args.transitions), file)
    return load(file)


def data_parser(
    doc: str | None, results: str, runs: str | None = None, seeds: int | None = 5
) -> argparse.ArgumentParser:
    """A parser for scripts that measure data sets, each with a result file of its own, and print their table."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[], help="Data sets, such as hopper-replay.")
    if seeds is not None:
        parser.add_argument("--seeds", type=int, default=seeds, help="Policies trained side by side.")
        parser.add_argument("--episodes", type=int, default=10, help="Evaluation episodes per policy.")
    add_data_options(parser, f"runs/{runs or results}")
    parser.add_argument("--out", type=Path, default=Path("results") / results, help="Folder of the result files.")
    parser.add_argument("--table", action="store_true", help="Print the table of the result files.")
    return parser


def stored_reports(out: Path) -> list[dict[str, Any]]:
    """The result files of a folder."""
    return [json.loads(file.read_text()) for file in sorted(out.glob("*.json"))]


def add_data_options(parser: argparse.ArgumentParser, runs: str) -> None:
    """Add the options that `stored_data` reads."""
    parser.add_argument("--transitions", type=int, default=300_000, help="Transitions to record per data set.")
    parser.add_argument("--shared", type=Path, default=Path("shared"), help="Folder with policies/ and replay/.")
    parser.add_argument("--runs", type=Path, default=Path(runs), help="Folder of the data sets.")
