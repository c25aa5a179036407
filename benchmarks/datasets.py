"""Data sets of D4RL's kinds that scripts record from policies in a folder, --shared: see bench/datasets.py."""

from __future__ import annotations

import argparse
from pathlib import Path

from trajstitch.bench.datasets import record_data, scoring_of
from trajstitch.bench.suites import paper_name
from trajstitch.data import Dataset
from trajstitch.formats import load, save

__all__ = ["add_data_options", "paper_name", "record_data", "scoring_of", "stored_data"]


def stored_data(name: str, args: argparse.Namespace) -> Dataset:
    """The data set of this name from the folder args.runs; it is made and saved there if it is missing."""
    file = args.runs / name / "data.traj"
    if not file.exists():
        save(record_data(name, args.shared, args.transitions), file)
    return load(file)


def add_data_options(parser: argparse.ArgumentParser, runs: str) -> None:
    """Add the options that `stored_data` reads."""
    parser.add_argument("--transitions", type=int, default=300_000, help="Transitions to record per data set.")
    parser.add_argument("--shared", type=Path, default=Path("shared"), help="Folder with policies/ and replay/.")
    parser.add_argument("--runs", type=Path, default=Path(runs), help="Folder of the data sets.")
