"""Demo: improve data, clone old and new data, and compare the clones (`trajstitch demo`).

maze     walks that are recorded on the spot, none of which leads from the start to the goal; planner optimal
hopper   the embedded data of Hopper; planner greedy, as in the paper
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trajstitch.data import Dataset, Float
from trajstitch.evaluation.mazes import OWN, Maze, MazeEnv, make_maze
from trajstitch.evaluation.rollout import actor, play
from trajstitch.evaluation.scores import Scores
from trajstitch.evaluation.walker import walk
from trajstitch.formats import load
from trajstitch.jobs.improve import improve_run, write_report
from trajstitch.jobs.score import ScoreConfig
from trajstitch.jobs.train import train_run
from trajstitch.models.dynamics import DynamicsConfig
from trajstitch.models.value import ValueConfig
from trajstitch.policies.policy_files import load_policy
from trajstitch.progress import Tell, bars
from trajstitch.report import render
from trajstitch.stitching.improve import Improve, Result
from trajstitch.stitching.presets import PRESETS
from trajstitch.storage.atomic import write_text
from trajstitch.training.loop import Fit

_NAMES = {"bc": "original, BC", "percent_bc": "original, 10% BC", "ts_bc": "improved, BC"}  # in the report


@dataclass(frozen=True)
class HopperDemo:
    """Sizes that take minutes on two cores."""

    steps: int = 6_000  # gradient steps of each policy
    seeds: int = 3
    episodes: int = 10  # per seed
    improve: Improve = PRESETS["quick"]


_MAZE = Improve(
    planner="optimal",
    world=DynamicsConfig(members=4, elites=3, width=128, depth=2, activation="silu", fit=Fit(4_000, 256, 1e-3)),
    value=ValueConfig(width=64, fit=Fit(500, 256, 1e-3)),  # only for cut ends from which no way leads on: few
)


@dataclass(frozen=True)
class MazeDemo:
    """Sizes that take about a minute on two cores."""

    steps: int = 4_000  # gradient steps of each policy
    seeds: int = 3
    episodes: int = 10  # per seed
    width: int = 128  # units per hidden layer of the policies
    recorded: int = 40_000  # steps of walks
    walk_length: int = 60  # a walk leads four cells far; the goal is 22 cells from the start
    improve: Improve = _MAZE


@dataclass(frozen=True, eq=False)
class MazeStory:
    """What the maze demo found."""

    maze: Maze
    data: Dataset
    near_start: int  # walks that pass the start
    near_goal: int  # walks that reach the goal
    from_start_to_goal: int  # walks that do both
    result: Result
    scores: dict[str, Scores]  # of the last checkpoint, by policy
    paths: dict[str, Float]  # [T + 1, 2] the first scored episode of the first seed, by policy
    report: Path


def demo_hopper(
    config: HopperDemo, out: str | Path, seed: int = 0, quiet: bool = False
) -> tuple[dict[str, Scores], Result, Path]:
    """Improve the embedded data, clone the old data, their best tenth and the new data, and score the clones.

    Return the last checkpoint's scores by policy, the improvement, and the path of its report.
    """
    data = load("demo")
    out = Path(out)
    with bars(quiet) as tell:
        run, result = improve_run(data, config.improve, out / "improve", seed=seed, overwrite=True, tell=tell)
        scores = _clone(config, data, result, out, seed, tell)
    report = write_report(run, data, result, {_NAMES[name]: score for name, score in scores.items()})
    return scores, result, report


def demo_maze(config: MazeDemo, out: str | Path, seed: int = 0, quiet: bool = False) -> MazeStory:
    """Record walks in a maze, compose trajectories that reach its goal, and clone and score both."""
    out = Path(out)
    env = make_maze(OWN, config.seeds)
    with bars(quiet) as tell:
        data = walk(OWN, config.recorded, walk_length=config.walk_length, seed=seed, tell=tell("record walks"))
        run, result = improve_run(data, config.improve, out / "improve", seed=seed, overwrite=True, tell=tell)
        scores = _clone(config, data, result, out, seed, tell, width=config.width)
    paths = {name: _first_episode(env, _folder(out, name), _scoring(config, data).seed) for name in scores}
    shown = {_NAMES[name]: score for name, score in scores.items()}
    report = run.path / "report.html"
    write_text(report, render(data, result.dataset, result, run.settings(), shown, maze=env.maze))
    env.close()
    return MazeStory(env.maze, data, *count_walks(env, data), result, scores, paths, report)


def count_walks(env: MazeEnv, data: Dataset) -> tuple[int, int, int]:
    """Count the walks that pass the cell of the start, those that reach the goal, and those that do both."""
    passes = (env.cell_of(data.obs[:, :2]) == env.maze.start[0]).all(1)
    start = np.logical_or.reduceat(passes, data.start[:-1] + np.arange(len(data)))
    goal = data.terminal
    return int(start.sum()), int(goal.sum()), int((start & goal).sum())


def _clone(
    config: HopperDemo | MazeDemo,
    data: Dataset,
    result: Result,
    out: Path,
    seed: int,
    tell: Callable[[str], Tell],
    **settings: Any,
) -> dict[str, Scores]:
    """Clone the old data, their best tenth and the new data; return the last checkpoints' scores."""
    scores = {}
    for name, method, source in (
        ("bc", "bc", data),
        ("percent_bc", "percent-bc", data),
        ("ts_bc", "bc", result.plan or result.dataset),
    ):
        _, scored = train_run(
            method,
            source,
            _folder(out, name),
            seed=seed,
            seeds=config.seeds,
            every=config.steps,
            scoring=_scoring(config, data),
            overwrite=True,
            tell=tell(f"clone {name}"),
            steps=config.steps,
            **settings,
        )
        assert scored is not None
        scores[name] = scored.last
    return scores


def _folder(out: Path, name: str) -> Path:
    return out / name.replace("_", "-")


def _scoring(config: HopperDemo | MazeDemo, data: Dataset) -> ScoreConfig:
    return ScoreConfig(str(data.info["env_id"]), str(data.info.get("physics", "gymnasium")), config.episodes)


def _first_episode(env: MazeEnv, folder: Path, seed: int) -> Float:
    """Return the path of the first seed's policy from the first state in which policies are scored."""
    policies = load_policy(folder / "policy.npz")
    episodes = dict(play(env, actor(policies, env), [seed] * env.count))
    return episodes[0].obs
