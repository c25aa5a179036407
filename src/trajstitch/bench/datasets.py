"""Data sets of the suites: D4RL's files where the cache has them, else recorded from policies in a folder.

The folder, `--shared`, holds policies/{d4rl-*-medium-v2,tqc-*-expert}.npz and replay/*-replay.hdf5.

    medium           recorded from D4RL's own medium policy with D4RL's physics
    expert           recorded from the TQC expert with D4RL's physics
    medium-expert    half from the medium policy and half from the expert
    medium-replay    read from the file in replay/: what a SAC agent saw until it was of medium quality
    replay           the same, even where the cache has D4RL's medium-replay
    random           uniform actions with D4RL's physics (D4RL's own are those of an untrained network)
    fraction-X       episodes of the TQC expert with noise on its actions, and X% episodes without

Walks in mazes are recorded by a walker that needs no policy: pointmaze-{medium,large,giant}-{500,5000}-task{1..5}
in OGBench's, maze-100 in our own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shutil import copyfile
from typing import Any

import numpy as np

from trajstitch.data import Dataset, concatenate
from trajstitch.errors import InputError, unknown
from trajstitch.evaluation.collect import RANDOM, collect, collect_mixture
from trajstitch.evaluation.divergence import EXPERT_STD
from trajstitch.evaluation.mazes import OWN, make_maze
from trajstitch.evaluation.walker import WALK_LENGTH, walk
from trajstitch.formats import load, save
from trajstitch.formats.d4rl_download import cached_path
from trajstitch.jobs.score import ScoreConfig
from trajstitch.storage.atomic import remove_left, replacing

ENVS = {"hopper": "Hopper", "halfcheetah": "HalfCheetah", "walker2d": "Walker2d"}
KINDS = ("medium", "medium-expert", "medium-replay", "expert")
LOCOMOTION = tuple(f"{env}-{kind}" for kind in KINDS for env in ENVS)
PERCENTS = ("0", "0.1", "2.5", "5", "10", "20", "30", "40")  # of expert episodes, the paper's
FRACTIONS = tuple(f"{env}-fraction-{percent}" for env in ("hopper", "walker2d") for percent in PERCENTS)
MAZES = tuple(
    f"pointmaze-{size}-{walks}-task{task}"
    for size in ("medium", "large", "giant")
    for walks in (500, 5000)
    for task in range(1, 6)
)
OWN_MAZE = "maze-100"
STORED = ("data.traj", "expert.npz", "expert.traj")  # files of a data set, as `stored_data` makes them
DEMO = "demo"  # the data inside this package
_RANDOM = tuple(f"{env}-random" for env in ENVS)
NAMES = (
    *(*LOCOMOTION, *(f"{env}-replay" for env in ENVS), *_RANDOM, *FRACTIONS, *MAZES),
    *(OWN_MAZE, DEMO, f"{DEMO}-random"),
)
_SEED = 1  # of recorded data
_WALK_SEED = 0  # of walks in mazes
_NOISE = 0.3  # on the expert's actions, std in half-ranges; the paper does not say how much: returns fall by half
_EXPERT_EPISODES = 10  # in whose states clones are compared with the expert, as in the paper


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
    """Record the data set of this name, from the policies in a folder if it needs any; a replay is read there."""
    check_name(name)
    if is_maze(name):
        return _walks(name, transitions)
    env, _, kind = name.partition("-")
    parts = recorded_from(name, shared)
    for file in parts:
        if not file.exists():
            raise InputError(f"{file}, which {name} is made from, does not exist; give its folder with --shared")
    if kind.endswith("replay"):
        return _with_source(load(parts[0]), f"replay of a SAC agent, {parts[0].name}")
    if kind == "random":
        env_id, options = (str(load(DEMO).info["env_id"]), {}) if env == DEMO else _simulator(env)
        data = collect(RANDOM, env_id, transitions, seed=_SEED, **options)
        return _with_source(data, "recorded with uniform actions" + (", D4RL's physics" if options else ""))
    if kind.startswith("fraction"):
        return _with_experts(env, parts[0], float(kind.rpartition("-")[2]), transitions)
    shares = [(str(file), 1 / len(parts)) for file in parts]
    env_id, options = _simulator(env)
    data = collect_mixture(shares, env_id, transitions, seed=_SEED, **options)
    return _with_source(data, f"recorded from {' and '.join(file.name for file in parts)}, D4RL's physics")


def _simulator(env: str) -> tuple[str, dict[str, Any]]:
    """Return the id of D4RL's environment, and the options of collect."""
    return f"{ENVS[env]}-v4", {"physics": "d4rl", "together": 256}


# -- noisy and expert episodes -----------------------------------------------------------------------------------


def _with_experts(env: str, expert: Path, percent: float, transitions: int) -> Dataset:
    """Return episodes with noise, the same ones for every percentage, and expert ones so that they make it up."""
    env_id, options = _simulator(env)
    noisy = collect(expert, env_id, transitions, deterministic=True, noise=_NOISE, seed=_SEED, **options)
    many = expert_count(len(noisy), percent)
    words = f"{len(noisy):,} episodes of {expert.name} with noise {_NOISE:g}, {many:,} with {EXPERT_STD:g}"
    parts = [noisy]
    if many:
        parts.append(_expert_episodes(expert, env, many, _SEED + 1000))
    return _with_source(concatenate(parts), f"{words}, D4RL's physics")


def expert_count(noisy: int, percent: float) -> int:
    """Return how many expert episodes make up this percentage of all; at least one unless the percentage is 0."""
    return max(1, round(noisy * percent / (100 - percent))) if percent else 0


def _expert_episodes(expert: Path, env: str, episodes: int, seed: int) -> Dataset:
    env_id, options = _simulator(env)
    drawn: dict[str, Any] = {"deterministic": True, "noise": EXPERT_STD, "seed": seed}
    return collect(expert, env_id, episodes=episodes, **drawn, **options)


def _store_expert(name: str, folder: Path, shared: Path) -> None:
    """Store the expert of a data set, and episodes of it that are in no data set."""
    env, (expert,) = name.partition("-")[0], recorded_from(name, shared)
    for file in ("expert.npz", "expert.traj"):
        remove_left(folder / file)
    with replacing(folder / "expert.npz", overwrite=True) as part:
        copyfile(expert, part)
    if not (folder / "expert.traj").exists():
        save(_expert_episodes(expert, env, _EXPERT_EPISODES, _SEED + 2000), folder / "expert.traj")


# -- mazes -------------------------------------------------------------------------------------------------------


def is_maze(name: str) -> bool:
    """Whether the data are walks in a maze."""
    return name in (*MAZES, OWN_MAZE)


def maze_parts(name: str) -> tuple[str, int, int]:
    """Return size, walks and task of a data set of walks in OGBench's mazes."""
    _, size, walks, task = name.split("-")
    return size, int(walks), int(task.removeprefix("task"))


def _walks(name: str, transitions: int) -> Dataset:
    """Return walks in the maze of a task, which cuts them at its goal; else those of one size are the same."""
    if name == OWN_MAZE:
        steps = min(int(name.partition("-")[2]) * WALK_LENGTH, transitions)
        return _with_source(walk(OWN, steps, seed=_WALK_SEED), f"{steps:,} steps of a walker")
    size, walks, task = maze_parts(name)
    steps = min(walks * WALK_LENGTH, transitions)
    return _with_source(walk(_maze_id(size, task), steps, seed=_WALK_SEED), f"{steps:,} steps of a walker")


def _maze_id(size: str, task: int) -> str:
    return f"pointmaze-{size}-singletask-task{task}-v0"


# -- files -------------------------------------------------------------------------------------------------------


def recorded_from(name: str, shared: Path) -> list[Path]:
    """Return the files of the folder that a data set is made from."""
    env, _, kind = name.partition("-")
    if kind == "random" or is_maze(name):
        return []
    if kind.endswith("replay"):
        files = [shared / "replay" / f"{env}-replay{ending}" for ending in (".hdf5", ".npz")]
        return [next((file for file in files if file.exists()), files[0])]
    medium = shared / "policies" / f"d4rl-{env}-medium-v2.npz"
    expert = shared / "policies" / f"tqc-{env}-expert.npz"
    words = "expert" if kind.startswith("fraction") else kind
    return [policy for word, policy in (("medium", medium), ("expert", expert)) if word in words]


def in_cache(name: str) -> bool:
    """Whether D4RL's file of this name has been downloaded."""
    return name in (*LOCOMOTION, *_RANDOM) and cached_path(_d4rl(name).removeprefix("d4rl:")).exists()


def check_available(name: str, shared: Path) -> None:
    """Raise InputError if a data set is neither in the cache nor can be recorded."""
    check_name(name)
    if name == DEMO or in_cache(name):
        return
    if name in MAZES:  # which come with a package of their own
        make_maze(_maze_id(*maze_parts(name)[::2]), 1).close()
    missing = [file for file in recorded_from(name, shared) if not file.exists()]
    if missing:
        place = missing[0].relative_to(shared)
        if name in FRACTIONS:
            raise InputError(f"{name} is recorded from an expert; give with --shared a folder that has {place}")
        download = f"; trajstitch inspect {_d4rl(name)} downloads it" if name in LOCOMOTION else ""
        raise InputError(
            f"{name} is not in the cache of D4RL's files{download}, or give with --shared a folder that has "
            f"{place}"
        )


def stored_data(name: str, folder: Path, shared: Path, transitions: int) -> Dataset:
    """Return the data set of this name from a folder; it is made and saved there if it is missing.

    Where there is data.traj, there is also all else that is made from `shared`.
    """
    file = folder / "data.traj"
    if not file.exists():
        made = make_data(name, shared, transitions)
        if name in FRACTIONS:
            _store_expert(name, folder, shared)
        save(made, file)
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
