"""World: an ensemble of Gaussians for p(s', r | s, a), to roll policies out in (mopo, morel)."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from trajstitch import envs
from trajstitch.data import Dataset
from trajstitch.dynamics import DynamicsConfig, GaussianStep, change_table, train_elites
from trajstitch.errors import InputError
from trajstitch.fit import History, Table
from trajstitch.progress import Tell, silent
from trajstitch.scores import env_options


class Belief(NamedTuple):
    """What E members think of one step; in the last column of each the reward, before it the next state."""

    mean: Array  # [E, S + 1]
    std: Array  # [E, S + 1]


class World(eqx.Module):
    """The elites, the states that rollouts begin in, where episodes end, and what no rollout goes beyond."""

    member: GaussianStep  # every array with the leading axis E
    start: Array  # [N, S]
    low: Array  # [S], -inf where nothing ends an episode
    high: Array  # [S]
    least: Array  # [S + 1], of each state and the reward in the data
    most: Array  # [S + 1]
    widest: Array  # [E, S + 1], std of the change of each state, and of the reward, in what members learnt from

    def believe(self, obs: Array, action: Array) -> Belief:
        """Of one state and action, raw units; no member is less sure than who knows the data's spread alone."""
        given = jnp.concatenate([obs, action])
        mean, std = eqx.filter_vmap(lambda one: one(given))(self.member)
        return Belief(mean + jnp.append(obs, 0.0), jnp.minimum(std, self.widest))

    def begin(self, count: int, key: Array) -> Array:
        """States of the data [count, S], any of them."""
        return self.start[jax.random.randint(key, (count,), 0, len(self.start))]

    def happen(self, belief: Belief, which: Array, noise: Array) -> tuple[Array, Array, Array]:
        """The next state and reward that member `which` makes of normal noise [S + 1], and whether that is an end.

        Neither leaves the range of the data: beyond it all is guessed, and guesses grow from step to step.
        """
        drawn = belief.mean[which] + belief.std[which] * noise
        ended = ~jnp.all((self.low < drawn[:-1]) & (drawn[:-1] < self.high))
        kept = jnp.clip(drawn, self.least, self.most)
        return kept[:-1], kept[-1], ended


def largest_std(belief: Belief) -> Array:
    """max_i ||σ_i(s,a)||, of next state and reward: what MOPO penalises."""
    return jnp.max(jnp.linalg.norm(belief.std, axis=1))


def discrepancy(belief: Belief) -> Array:
    """max_ij ||μ_i(s,a) - μ_j(s,a)||, of the next state: where MOReL halts."""
    state = belief.mean[:, :-1]
    return jnp.max(jnp.linalg.norm(state[:, None] - state[None], axis=2))


def train_members(
    data: Dataset, config: DynamicsConfig, seed: int = 0, tell: Tell = silent
) -> tuple[GaussianStep, History]:
    """Train on all trajectories but a twentieth, which choose the elites."""
    train, held_out = split_steps(data, seed)
    return train_elites(train, held_out, config, seed, tell)


def split_steps(data: Dataset, seed: int) -> tuple[Table, Table]:
    """What a world of this seed learns from, and what it is judged by."""
    train, held_out = data.split(0.95, seed)
    return _steps(train), _steps(held_out)


def make_world(member: GaussianStep, data: Dataset, bounds: tuple[Any, Any] | None = None) -> World:
    """A world of these members that begins in states of the data; `bounds` are low and high [S]."""
    low, high = bounds or (np.full(data.obs_dim, -np.inf), np.full(data.obs_dim, np.inf))
    start = jnp.asarray(data.obs[data.row])
    low, high = jnp.asarray(low, jnp.float32), jnp.asarray(high, jnp.float32)
    least, most = (jnp.append(end(data.obs, 0), end(data.reward)) for end in (np.min, np.max))
    return World(member, start, low, high, least, most, widest=member.change.std)


def _steps(data: Dataset) -> Table:
    table = change_table(data)
    return {
        "given": np.concatenate([table["given"], data.action], 1),
        "change": np.concatenate([table["change"], data.reward[:, None]], 1),
    }


def env_bounds(data: Dataset) -> tuple[Any, Any]:
    """Low and high [S] between which a state of the data's own environment must lie, or its episode ends."""
    env_id = data.info.get("env_id")
    if not env_id:
        raise InputError("the data name no environment whose rule could end a rollout; use terminate never")
    physics = str(data.info.get("physics", "gymnasium"))
    env = envs.make(str(env_id), 1, physics=physics, **env_options(str(env_id), data.info))
    try:
        if not isinstance(env, envs.NativeEnv):
            raise InputError(f"when an episode of {env_id} ends is not known here; use terminate never")
        low, high = env.healthy_range()
    finally:
        env.close()
    if len(low) != data.obs_dim:
        raise InputError(
            f"the data have {data.obs_dim} observations, but {env_id}, whose rule should end rollouts, has "
            f"{len(low)}; use terminate never"
        )
    return low, high
