"""Data sets of D4RL's kinds, made from policies in a folder, and how policies trained on them are scored.

The folder, --shared of the scripts, holds policies/{d4rl-*-medium-v2,tqc-*-expert}.npz and replay/*-replay.hdf5.

medium           recorded from D4RL's own medium policy with D4RL's physics
medium-expert    half from the medium policy and half from the TQC expert
replay           read from the file
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trajstitch.data import Dataset
from trajstitch.evaluation.collect import collect, collect_mixture
from trajstitch.formats import load, save
from trajstitch.jobs.score import ScoreConfig

ENVS = {"hopper": "Hopper", "halfcheetah": "HalfCheetah", "walker2d": "Walker2d"}


def make_data(name: str, shared: Path, transitions: int) -> Dataset:
    """Make or read the data set of this name, such as hopper-medium-expert."""
    env, _, kind = name.partition("-")
    medium = shared / "policies" / f"d4rl-{env}-medium-v2.npz"
    expert = shared / "policies" / f"tqc-{env}-expert.npz"
    options: dict[str, Any] = {"physics": "d4rl", "seed": 1, "together": 256}
    if kind == "medium":
        return collect(medium, f"{ENVS[env]}-v4", transitions, **options)
    if kind == "medium-expert":
        shares = [(str(medium), 0.5), (str(expert), 0.5)]
        return collect_mixture(shares, f"{ENVS[env]}-v4", transitions, **options)
    files = [shared / "replay" / f"{env}-replay{ending}" for ending in (".hdf5", ".npz")]
    return load(next((file for file in files if file.exists()), files[0]))


def stored_data(name: str, args: argparse.Namespace) -> Dataset:
    """The data set of this name from the folder args.runs; it is made and saved there if it is missing."""
    file = args.runs / name / "data.traj"
    if not file.exists():
        save(make_data(name, args.shared, args.transitions), file)
    return load(file)


def add_data_options(parser: argparse.ArgumentParser, runs: str) -> None:
    """Add the options that `stored_data` reads."""
    parser.add_argument("--transitions", type=int, default=300_000, help="Transitions to record per data set.")
    parser.add_argument("--shared", type=Path, default=Path("shared"), help="Folder with policies/ and replay/.")
    parser.add_argument("--runs", type=Path, default=Path(runs), help="Folder of the data sets.")


def paper_name(name: str) -> str:
    """The paper's name of a data set."""
    env, _, kind = name.partition("-")
    return f"{env}-medium-replay" if kind == "replay" else name


def scoring_of(info: Mapping[str, Any], episodes: int = 10) -> ScoreConfig:
    """Policies are scored in the environment that their data name, with the same physics."""
    return ScoreConfig(str(info["env_id"]), str(info.get("physics", "gymnasium")), episodes)
