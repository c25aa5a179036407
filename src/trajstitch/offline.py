"""Offline RL: what its methods share, which are transitions to bootstrap from and twin critics of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from trajstitch.data import Dataset
from trajstitch.dynamics import step_table
from trajstitch.errors import InputError
from trajstitch.fit import Table, check_sizes
from trajstitch.method import Method, check_rewards
from trajstitch.nets import MLP, Range, Scale
from trajstitch.policy import Head, Policy


@dataclass(frozen=True)
class OfflineRL(Method):
    """Settings of every such method; a published value each."""

    width: int = 256
    depth: int = 2
    scale: bool = True  # train on observations of mean 0 and std 1
    discount: float = 0.99
    target_rate: float = 0.005  # how fast target networks follow

    def __post_init__(self) -> None:
        check_sizes(self, "width", "depth")
        if not 0 <= self.discount < 1 or not 0 < self.target_rate <= 1:
            raise InputError("discount must be from 0 to below 1 and target_rate above 0 and at most 1")

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """Without a reward no action is better than another."""
        super().check(data, improved)
        check_rewards(data)

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """All transitions, with `done` where the episode really ended: a time-out does not end bootstrapping."""
        return step_table(data)

    def policy(self, model: Any) -> Policy:
        """The actor."""
        return model.actor

    def nets(self, table: Table, key: Array, head: Head) -> tuple[Policy, Critic]:
        """A fresh actor, whose range is that of the data's actions, and a fresh critic."""
        obs, action = table["obs"], table["action"]
        scale = Scale.of(obs) if self.scale else Scale.unit(obs.shape[1])
        span = Range.of(action)
        actor_key, critic_key = jax.random.split(key)
        sizes = [obs.shape[1] + action.shape[1], *[self.width] * self.depth, 1]
        twins = eqx.filter_vmap(lambda k: MLP.init(sizes, k))(jax.random.split(critic_key))
        return Policy.init(scale, span, actor_key, head, self.width, self.depth), Critic(twins, scale, span)


class Critic(eqx.Module):
    """Q(s, a) twice; the arrays of the networks have a leading axis of 2.

    Actions go in as -1 to 1, wherever the data's range lies, so their units do not matter.
    """

    twins: MLP
    scale: Scale
    range: Range

    def __call__(self, obs: Array, action: Array) -> Array:
        """Both values [2] of one state and action."""
        x = self._input(obs, action)
        return eqx.filter_vmap(lambda net: net(x)[0])(self.twins)

    def each(self, obs: Array, action: Array) -> Array:
        """The value [2] each of them gives to an action of its own, of the two [2, A]."""
        return eqx.filter_vmap(lambda net, own: net(self._input(obs, own))[0])(self.twins, action)

    def first(self, obs: Array, action: Array) -> Array:
        """The first one's value, which actors climb."""
        return jax.tree.map(lambda leaf: leaf[0], self.twins)(self._input(obs, action))[0]

    def _input(self, obs: Array, action: Array) -> Array:
        return jnp.concatenate([self.scale(obs), self.range.unit(action)])
