"""Followed: a given policy is followed in a world model from recorded states, as far as the model knows.

What the policy does in every recorded state is a data set too, of single steps: a clone of it knows the policy
wherever there are data, however soon rollouts had to stop.

A policy by any method becomes a data set that others can clone, inspect and audit. A rollout stops before a step
about which the model's members disagree more than about almost all recorded steps; MOReL halts there too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from trajstitch.checks import check_sizes
from trajstitch.data import Float
from trajstitch.errors import InputError
from trajstitch.progress import Tell, silent
from trajstitch.stitching.imagined import Rollouts
from trajstitch.stitching.reach import ReachFinder

ActAll = Callable[[Any], Any]  # states [B, S] -> actions [B, A]
_BLOCK = 16384  # states asked about per call
_SAMPLE = 16384  # recorded steps that the limit of disagreement follows from


@dataclass(frozen=True)
class FollowConfig:
    """The planner policy."""

    walks: int = 500  # Rollouts of the policy, half of them from first states, half from any recorded state.
    length: int = 300  # Steps of each, unless it stops before.
    # A rollout stops before a step about which the members disagree more than about this share of recorded steps.
    known: float = 0.99

    def __post_init__(self) -> None:
        check_sizes(self, "walks", "length")
        if not 0 < self.known <= 1:
            raise InputError(f"known must be above 0 and at most 1, not {self.known:g}")


def follow_policy(
    finder: ReachFinder, act: ActAll, config: FollowConfig, seed: int, tell: Tell = silent
) -> Rollouts:
    """Follow a policy in the finder's world model.

    States stay within the range of the data, as members extrapolate beyond it.
    """
    data, rng = finder.data, np.random.default_rng(seed)
    begun = rng.choice(data.row[data.start[:-1]], -(-config.walks // 2))
    first = np.concatenate([begun, rng.choice(data.row, config.walks // 2)])
    limit = _disagreement(finder, rng, config.known)
    low, high = data.obs.min(0), data.obs.max(0)
    state = data.obs[first]
    obs = [state]
    actions: list[Float] = []
    rewards: list[Float] = []
    errors: list[Float] = []
    for step in range(config.length):
        action, after, reward, error = _policy_step(finder, act, state)
        state = np.clip(after, low, high)
        obs.append(state)
        actions.append(action)
        rewards.append(reward)
        errors.append(error)
        tell(step + 1, config.length, "steps")
    error = np.stack(errors, 1)
    # The number of steps before the first that is not known; a rollout whose first step is not has none.
    length = np.where((beyond := error > limit).any(1), beyond.argmax(1), config.length)
    kept = length > 0
    if not kept.any():
        raise InputError("the model knows no step of this policy; the policy does nothing that is in the data")
    states, acted, earned = (np.stack(column, 1)[kept] for column in (obs, actions, rewards))
    ended = np.zeros(len(states), bool)
    return Rollouts(first[kept], states, acted, earned, error[kept], length[kept], ended)


def every_state(finder: ReachFinder, act: ActAll, tell: Tell = silent) -> Rollouts:
    """Return the policy's step from every state in which a step was recorded, each a rollout of its own."""
    data = finder.data
    parts = []
    for a in range(0, data.transitions, _BLOCK):
        rows = data.row[a : a + _BLOCK]
        parts.append((data.obs[rows], *_policy_step(finder, act, data.obs[rows])))
        tell(min(a + _BLOCK, data.transitions), data.transitions, "states")
    obs, action, after, reward, error = (np.concatenate(column) for column in zip(*parts, strict=True))
    ones = np.ones(data.transitions, np.int64)
    states = np.stack([obs, np.clip(after, data.obs.min(0), data.obs.max(0))], 1)
    none = np.zeros(data.transitions, bool)
    return Rollouts(data.row, states, action[:, None], reward[:, None], error[:, None], ones, none)


def checked_actions(action: Any, shape: tuple[int, int]) -> Float:
    """Return a policy's actions as an array; InputError unless they are finite and of this shape [B, A]."""
    found = np.asarray(action, np.float32)
    if found.shape != shape or not np.isfinite(found).all():
        raise InputError(
            f"the policy gives actions of shape {found.shape}, not finite ones of {list(shape)}; give a policy of "
            "the same environment"
        )
    return found


def _policy_step(finder: ReachFinder, act: ActAll, obs: Float) -> tuple[Float, Float, Float, Float]:
    """Return the policy's actions [B, A] in these states, and what the world model says of them."""
    action = checked_actions(act(obs), (len(obs), finder.data.action_dim))
    action = np.clip(action, *map(np.asarray, finder.box))
    return action, *predict_step(finder, obs, action)


def predict_step(finder: ReachFinder, obs: Float, action: Float) -> tuple[Float, Float, Float]:
    """Return next states [B, S], rewards [B] and how much the members disagree, in typical steps [B]."""
    summed = _summed_jit if isinstance(finder.model, eqx.Module) else _summed
    after, reward, error = summed(finder.model, obs, action, finder.unit)
    return np.asarray(after), np.asarray(reward), np.asarray(error)


def _summed(model: Any, obs: Any, action: Any, unit: Any) -> tuple[Array, Array, Array]:
    members, reward = map(jnp.asarray, model.steps(obs, action))
    mean = members.mean(0)
    return mean, reward.mean(0), jnp.sqrt(jnp.sum(((members - mean) / unit) ** 2, -1).mean(0))


_summed_jit = eqx.filter_jit(_summed)


def _disagreement(finder: ReachFinder, rng: np.random.Generator, share: float) -> float:
    """Return the disagreement that this share of recorded steps stays below."""
    data = finder.data
    some = rng.permutation(data.transitions)[:_SAMPLE]
    return float(np.quantile(predict_step(finder, data.obs[data.row[some]], data.action[some])[2], share))
