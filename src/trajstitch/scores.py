"""Scores: what a policy earns in the simulator, raw and normalised, with its spread."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch import envs
from trajstitch.data import Info
from trajstitch.errors import InputError
from trajstitch.planner import Planner
from trajstitch.play import actor, play
from trajstitch.policy import Policy, load_policy, policy_info, stacked
from trajstitch.progress import Tell, silent
from trajstitch.stats import interval, spread

# Returns of a random and of an expert policy, by D4RL's definition of the normalised score.
REFERENCE: Mapping[str, tuple[float, float]] = {
    "Hopper": (-20.272305, 3234.3),
    "HalfCheetah": (-280.178953, 12135.0),
    "Walker2d": (1.629008, 4592.3),
    "Ant": (-325.6, 3879.7),
}


def reference_scores(env_id: str, info: Info | None = None) -> tuple[float, float] | None:
    """(random, expert) return: from the data set's own metadata where it has them, else D4RL's, else None."""
    if info and "ref_min_score" in info and "ref_max_score" in info:
        return float(info["ref_min_score"]), float(info["ref_max_score"])
    return REFERENCE.get(env_id.partition("-")[0])


def normalise(returns: Any, reference: tuple[float, float]) -> Any:
    """100 · (return - random) / (expert - random)."""
    random, expert = reference
    return 100 * (returns - random) / (expert - random)


def env_options(env_id: str, info: Info | None, horizon: int | None = None) -> dict[str, Any]:
    """How the data's own environment was made, where `info` says so of this id: its arguments and time limit."""
    info = info or {}
    options: dict[str, Any] = {"horizon": horizon}
    if info.get("env_id") != env_id:
        return options
    if "env_spec" in info:
        spec = json.loads(str(info["env_spec"]))
        options = {**(spec.get("kwargs") or {}), "horizon": horizon or spec.get("max_episode_steps")}
    if "env_horizon" in info:
        options["horizon"] = horizon or int(info["env_horizon"])
    return options


@dataclass(frozen=True)
class Scores:
    """Returns and lengths of E episodes of each of P policies."""

    env_id: str
    physics: str
    returns: NDArray[np.float64]  # [P, E], raw
    length: NDArray[np.int64]  # [P, E]
    reference: tuple[float, float] | None

    @property
    def raw(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def normalised(self) -> float:
        """Mean normalised score: 0 random, 100 expert; nan where the environment has no reference."""
        return float(self.normalise(self.returns).mean())

    def normalise(self, returns: NDArray[Any]) -> NDArray[np.float64]:
        """By this environment's reference; nan where there is none."""
        if self.reference is None:
            return np.full_like(returns, np.nan, dtype=np.float64)
        return np.asarray(normalise(returns, self.reference), np.float64)

    def summary(self) -> dict[str, Any]:
        """Everything a report says of these scores, as plain numbers."""
        return {
            "env": self.env_id,
            "physics": self.physics,
            "seeds": self.returns.shape[0],
            "episodes": self.returns.shape[1],
            "raw": _describe(self.returns),
            "normalised": _describe(self.normalise(self.returns)) if self.reference else None,
            "length": float(self.length.mean()),
        }


def evaluate(
    policy: Policy | Planner | str | Path,
    env_id: str,
    *,
    episodes: int = 10,
    physics: str = "gymnasium",
    seed: int = 0,
    stochastic: bool = False,
    info: Info | None = None,
    horizon: int | None = None,
    tell: Tell = silent,
) -> Scores:
    """Play `episodes` episodes with each policy; episode e of every policy starts in the same state.

    `info` of the training data brings its own reference scores and the way its environment was made along.
    """
    if info is None and isinstance(policy, str | Path):
        info = policy_info(policy)
    if episodes < 1:
        raise InputError(f"episodes must be at least 1, not {episodes}")
    many = stacked(load_policy(policy) if isinstance(policy, str | Path) else policy)
    count = many.range.low.shape[0] * episodes
    env = envs.make(env_id, count, physics=physics, **env_options(env_id, info, horizon))
    returns, length = np.zeros(count), np.zeros(count, np.int64)
    try:
        starts = [seed + e for _ in range(count // episodes) for e in range(episodes)]
        played = play(env, actor(many, env, seed if stochastic else None), starts)
        for done, (number, episode) in enumerate(played, 1):
            returns[number] = episode.reward.sum(dtype=np.float64)
            length[number] = len(episode)
            tell(done, count, "episodes")
    finally:
        env.close()
    shape = (count // episodes, episodes)
    return Scores(env_id, physics, returns.reshape(shape), length.reshape(shape), reference_scores(env_id, info))


def _describe(scores: NDArray[Any]) -> dict[str, Any]:
    low, high = interval(scores)
    return {
        "mean": float(scores.mean()),
        "std_over_seeds": spread(scores),
        "interval95": [low, high],
        "per_seed": [float(x) for x in scores.mean(1)],
    }
