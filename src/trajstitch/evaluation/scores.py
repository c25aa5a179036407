"""Scores: returns of policies in the simulator, raw and normalised, and success in mazes, with their spread."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Info
from trajstitch.errors import InputError
from trajstitch.evaluation import envs
from trajstitch.evaluation.envs import env_options
from trajstitch.evaluation.mazes import MazeEnv
from trajstitch.evaluation.normalise import normalise, reference_scores
from trajstitch.evaluation.rollout import actor, play
from trajstitch.evaluation.stats import interval, spread
from trajstitch.policies.planner import ActionPlanner
from trajstitch.policies.policy import Policy, stacked
from trajstitch.policies.policy_files import load_policy, policy_info
from trajstitch.progress import Tell, silent


@dataclass(frozen=True)
class Scores:
    """Returns and lengths of E episodes of each of P policies."""

    env_id: str
    physics: str
    returns: NDArray[np.float64]  # [P, E], raw
    length: NDArray[np.int64]  # [P, E]
    reference: tuple[float, float] | None
    reached: NDArray[np.int64] | None = None  # [P, E], steps to the goal; -1: not reached; None: there is no goal

    @property
    def raw(self) -> float:
        """Mean return."""
        return float(self.returns.mean())

    @property
    def normalised(self) -> float:
        """Mean normalised score: 0 random, 100 expert; nan where the environment has no reference."""
        return float(self.normalise(self.returns).mean())

    @property
    def steps_to_goal(self) -> float | None:
        """Mean number of steps to the goal, over the episodes that reach it; None if none does."""
        if self.reached is None or not (self.reached >= 0).any():
            return None
        return float(self.reached[self.reached >= 0].mean())

    def normalise(self, returns: NDArray[Any]) -> NDArray[np.float64]:
        """Normalise returns by this environment's reference; nan where there is none."""
        if self.reference is None:
            return np.full_like(returns, np.nan, dtype=np.float64)
        return np.asarray(normalise(returns, self.reference), np.float64)

    def summary(self) -> dict[str, Any]:
        """Return all numbers that reports show of these scores."""
        return {
            "env": self.env_id,
            "physics": self.physics,
            "seeds": self.returns.shape[0],
            "episodes": self.returns.shape[1],
            "raw": _describe(self.returns),
            "normalised": _describe(self.normalise(self.returns)) if self.reference else None,
            "length": float(self.length.mean()),
            "success": None if self.reached is None else _describe(100.0 * (self.reached >= 0)),
            "steps_to_goal": self.steps_to_goal,
        }


def evaluate(
    policy: Policy | ActionPlanner | str | Path,
    env_id: str,
    *,
    episodes: int = 10,
    physics: str = "gymnasium",
    seed: int = 0,
    stochastic: bool = False,
    info: Info | None = None,
    env_horizon: int | None = None,
    tell: Tell = silent,
) -> Scores:
    """Run `episodes` episodes with each policy; episode e of every policy starts in the same state.

    Arguments:
        policy: one policy or planner, several stacked ones, or their file.
        env_id: the Gymnasium id, such as Hopper-v5.
        episodes: episodes per policy.
        physics: gymnasium, or d4rl for the masses of the simulator that recorded D4RL's data.
        seed: the seed of episode 0; episode e has seed + e.
        stochastic: draw actions instead of taking the most likely one.
        info: `info` of the training data, for reference scores and arguments of the environment; a policy file
            has its own.
        env_horizon: the time limit, where the environment has none of its own.
        tell: a callback for progress.
    """
    if info is None and isinstance(policy, str | Path):
        info = policy_info(policy)
    if episodes < 1:
        raise InputError(f"episodes must be at least 1, not {episodes}")
    many = stacked(load_policy(policy) if isinstance(policy, str | Path) else policy)
    count = many.range.low.shape[0] * episodes
    env = envs.make(env_id, count, physics=physics, **env_options(env_id, info, env_horizon))
    returns, length, reached = np.zeros(count), np.zeros(count, np.int64), np.full(count, -1)
    goal_reward = env.goal_reward if isinstance(env, MazeEnv) else None
    try:
        starts = [seed + e for _ in range(count // episodes) for e in range(episodes)]
        played = play(env, actor(many, env, seed if stochastic else None), starts)
        for done, (number, episode) in enumerate(played, 1):
            returns[number] = episode.reward.sum(dtype=np.float64)
            length[number] = len(episode)
            if goal_reward in episode.reward:
                reached[number] = 1 + np.argmax(episode.reward == goal_reward)
            tell(done, count, "episodes")
    finally:
        env.close()
    shape = (count // episodes, episodes)
    return Scores(
        env_id,
        physics,
        returns.reshape(shape),
        length.reshape(shape),
        reference_scores(env_id, info),
        None if goal_reward is None else reached.reshape(shape),
    )


def _describe(scores: NDArray[Any]) -> dict[str, Any]:
    low, high = interval(scores)
    return {
        "mean": float(scores.mean()),
        "std_over_seeds": spread(scores),
        "interval95": [low, high],
        "per_seed": [float(x) for x in scores.mean(1)],
    }
