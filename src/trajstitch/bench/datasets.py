"""Data sets of the suites: D4RL's files where the cache has them, else recorded from policies in a folder.

The folder, `--shared`, holds policies/{d4rl-*-medium-v2,tqc-*-expert}.npz and replay/*-replay.hdf5.

    medium           recorded from D4RL's own medium policy with D4RL's physics
    expert           recorded from the TQC expert with D4RL's physics
    medium-expert    half from the medium policy and half from the expert
    medium-replay    read from the file in replay/: what a SAC agent saw until it was of medium quality
    replay           the same, even where the cache has D4RL's medium-replay
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from trajstitch.data import Dataset
from trajstitch.errors import InputError, unknown
from trajstitch.evaluation.collect import collect_mixture
from trajstitch.formats import load, save
from trajstitch.formats.d4rl_download import cached_path
from trajstitch.jobs.score import ScoreConfig

ENVS = {"hopper": "Hopper", "halfcheetah": "HalfCheetah", "walker2d": "Walker2d"}
KINDS = ("medium", "medium-expert", "medium-replay", "expert")
LOCOMOTION = tuple(f"{env}-{kind}" for kind in KINDS for env in ENVS)
DEMO = "demo"  # the data inside this package
NAMES = (*LOCOMOTION, *(f"{env}-replay" for env in ENVS), DEMO)
_SEED = 1  # of recorded data


def check_name(name: str) -> None:
    """Raise InputError unless there is a data set of this name."""
    if name not in NAMES:
        raise unknown("data set", name, NAMES)


def make_data(name: str, shared: Path, transitions: int) -> Dataset:
    """Load D4RL's data set of this name from the cache, or else record it; `info` says its source."""
    check_name(name)
    if name == DEMO:
        return _first(load(DEMO), transitions)
    return load(_d4rl(name)) if in_cache(name) else record_data(name, shared, transitions)


def record_data(name: str, shared: Path, transitions: int) -> Dataset:
    """Record the data set of this name from the policies in a folder, or read it there if it is a replay."""
    check_name(name)
    env, _, kind = name.partition("-")
    parts = recorded_from(name, shared)
    for file in parts:
        if not file.exists():
            raise InputError(f"{file}, which {name} is made from, does not exist; give its folder with --shared")
    if kind.endswith("replay"):
        return _with_source(load(parts[0]), f"replay of a SAC agent, {parts[0].name}")
    shares = [(str(file), 1 / len(parts)) for file in parts]
    options: dict[str, Any] = {"physics": "d4rl", "seed": _SEED, "together": 256}
    data = collect_mixture(shares, f"{ENVS[env]}-v4", transitions, **options)
    return _with_source(data, f"recorded from {' and '.join(file.name for file in parts)}, D4RL's physics")


def recorded_from(name: str, shared: Path) -> list[Path]:
    """Return the files of the folder that a data set is made from."""
    env, _, kind = name.partition("-")
    if kind.endswith("replay"):
        files = [shared / "replay" / f"{env}-replay{ending}" for ending in (".hdf5", ".npz")]
        return [next((file for file in files if file.exists()), files[0])]
    medium = shared / "policies" / f"d4rl-{env}-medium-v2.npz"
    expert = shared / "policies" / f"tqc-{env}-expert.npz"
    return [policy for word, policy in (("medium", medium), ("expert", expert)) if word in kind]


def in_cache(name: str) -> bool:
    """Whether D4RL's file of this name has been downloaded."""
    return name in LOCOMOTION and cached_path(_d4rl(name).removeprefix("d4rl:")).exists()


def check_available(name: str, shared: Path) -> None:
    """Raise InputError if a data set is neither in the cache nor can be recorded."""
    check_name(name)
    if name == DEMO or in_cache(name):
        return
    missing = [file for file in recorded_from(name, shared) if not file.exists()]
    if missing:
        download = f"; trajstitch inspect {_d4rl(name)} downloads it" if name in LOCOMOTION else ""
        raise InputError(
            f"{name} is not in the cache of D4RL's files{download}, or give with --shared a folder that has "
            f"{missing[0].relative_to(shared)}"
        )


def stored_data(name: str, folder: Path, shared: Path, transitions: int) -> Dataset:
    """Return the data set of this name from a folder; it is made and saved there if it is missing."""
    file = folder / "data.traj"
    if not file.exists():
        save(make_data(name, shared, transitions), file)
    return load(file)


def scoring_of(info: Mapping[str, Any], episodes: int = 10) -> ScoreConfig:
    """Policies are scored in the environment that their data name, with the same physics."""
    return ScoreConfig(str(info["env_id"]), str(info.get("physics", "gymnasium")), episodes)


def _d4rl(name: str) -> str:
    return f"d4rl:{name}-v2"


def _with_source(data: Dataset, source: str) -> Dataset:
    return replace(data, info={**data.info, "source": source})


def _first(data: Dataset, transitions: int) -> Dataset:
    """Return the first trajectories, up to about this many transitions."""
    return data[: max(2, int(np.searchsorted(data.start, transitions)))]
