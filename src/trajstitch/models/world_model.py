"""World model: an ensemble of Gaussians for p(s', r | s, a), for rollouts of policies (mopo,
morel) and for asking which states an action can reach (stitching/reach.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from trajstitch.data import Dataset, change_table
from trajstitch.models.dynamics import DynamicsConfig, GaussianStep, train_elites
from trajstitch.progress import Tell, silent
from trajstitch.training.loop import History, Table


class Prediction(NamedTuple):
    """Predictions of E members for one step: the next state, and the reward as the last column."""

    mean: Array  # [E, S + 1]
    std: Array  # [E, S + 1]


class World(eqx.Module):
    """The elites, with start states, the bounds beyond which an episode ends, and limits of their predictions."""

    member: GaussianStep  # every array has the leading axis E
    start: Array  # [N, S], states of the data
    low: Array  # [S], a state at or below it ends the episode; -inf: none does
    high: Array  # [S], likewise for a state at or above it
    least: Array  # [S + 1], minimum of each state dimension and of the reward in the data
    most: Array  # [S + 1], maximum of each
    widest: Array  # [E, S + 1], std of the change of each state dimension and of the reward in the training data

    def predict(self, obs: Array, action: Array) -> Prediction:
        """Predict the step from one state and action, in raw units; each std is capped at the data's std."""
        inputs = jnp.concatenate([obs, action])
        mean, std = eqx.filter_vmap(lambda one: one(inputs))(self.member)
        return Prediction(mean + jnp.append(obs, 0.0), jnp.minimum(std, self.widest))

    def begin(self, count: int, key: Array) -> Array:
        """Sample start states [count, S] from the states of the data."""
        return self.start[jax.random.randint(key, (count,), 0, len(self.start))]

    def step(self, prediction: Prediction, which: Array, noise: Array) -> tuple[Array, Array, Array]:
        """Sample next state and reward by member `which` and noise [S + 1]; also return if the episode ends.

        Both are clipped to the range of the data: beyond it members extrapolate, and errors grow step by step.
        """
        sampled = prediction.mean[which] + prediction.std[which] * noise
        ended = ~jnp.all((self.low < sampled[:-1]) & (sampled[:-1] < self.high))
        clipped = jnp.clip(sampled, self.least, self.most)
        return clipped[:-1], clipped[-1], ended


class ActionDynamics(eqx.Module):
    """The elites alone, to ask what an action does; every array of `member` has the leading axis E."""

    member: GaussianStep

    @eqx.filter_jit
    def steps(self, obs: Array, action: Array) -> tuple[Array, Array]:
        """Predict next states [E, B, S] and rewards [E, B] of actions [B, A] in states [B, S], in raw units."""
        inputs = jnp.concatenate([obs, action], 1)
        mean, _ = eqx.filter_vmap(lambda one: jax.vmap(one)(inputs))(self.member)
        return obs + mean[..., :-1], mean[..., -1]


def train_action_dynamics(
    train: Dataset, held_out: Dataset, config: DynamicsConfig, seed: int, tell: Tell = silent
) -> tuple[ActionDynamics, History]:
    """Train all ensemble members in parallel and keep the elites."""
    member, history = train_elites(_steps(train), _steps(held_out), config, seed, tell)
    return ActionDynamics(member), history


def largest_std(prediction: Prediction) -> Array:
    """Compute max_i ||σ_i(s,a)|| over members i, for next state and reward: MOPO penalises it."""
    return jnp.max(jnp.linalg.norm(prediction.std, axis=1))


def discrepancy(prediction: Prediction) -> Array:
    """Compute max_ij ||μ_i(s,a) - μ_j(s,a)|| over members, for the next state: MOReL halts where it is large."""
    state = prediction.mean[:, :-1]
    return jnp.max(jnp.linalg.norm(state[:, None] - state[None], axis=2))


def train_members(
    data: Dataset, config: DynamicsConfig, seed: int = 0, tell: Tell = silent
) -> tuple[GaussianStep, History]:
    """Train on 95% of the trajectories; the held-out rest selects the elites."""
    train, held_out = split_steps(data, seed)
    return train_elites(train, held_out, config, seed, tell)


def split_steps(data: Dataset, seed: int) -> tuple[Table, Table]:
    """Return the training and the validation table of a world model with this seed."""
    train, held_out = replace(data, weight=None).split(0.95, seed)
    return _steps(train), _steps(held_out)


def make_world(member: GaussianStep, data: Dataset, bounds: tuple[Any, Any] | None = None) -> World:
    """Build a world model whose rollouts start in states of the data; `bounds` are low and high [S]."""
    low, high = bounds or (np.full(data.obs_dim, -np.inf), np.full(data.obs_dim, np.inf))
    start = jnp.asarray(data.obs[data.row])
    low, high = jnp.asarray(low, jnp.float32), jnp.asarray(high, jnp.float32)
    least, most = (jnp.append(end(data.obs, 0), end(data.reward)) for end in (np.min, np.max))
    return World(member, start, low, high, least, most, widest=member.change.std)


def _steps(data: Dataset) -> Table:
    table = change_table(data)
    return {
        "given": np.concatenate([table["given"], data.action], 1),
        "change": table["change"],
        "reward": data.reward,
    }
