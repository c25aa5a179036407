"""Offline RL: what its methods share, the transitions to bootstrap from and the twin critics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from trajstitch.checks import check_sizes
from trajstitch.data import Dataset, step_table
from trajstitch.errors import InputError
from trajstitch.methods.method import Method, check_rewards
from trajstitch.policies.policy import Head, Policy
from trajstitch.training.loop import Table
from trajstitch.training.networks import MLP, LayerNormMLP, Range, Scale, pick


@dataclass(frozen=True)
class OfflineRL(Method):
    """Settings that all offline RL methods share; the defaults are published values."""

    width: int = 256  # Units per hidden layer.
    depth: int = 2  # Hidden layers.
    scale: bool = True  # Scale observations to mean 0 and std 1; --no-scale leaves them as they are.
    discount: float = 0.99  # Discount of future rewards.
    target_rate: float = 0.005  # Rate at which the target networks follow the trained ones.

    def __post_init__(self) -> None:
        check_sizes(self, "width", "depth")
        if not 0 <= self.discount < 1 or not 0 < self.target_rate <= 1:
            raise InputError("discount must be from 0 to below 1 and target_rate above 0 and at most 1")

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """Raise InputError where all rewards are 0: then no action is better than another."""
        super().check(data, improved)
        check_rewards(data)

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """Return all transitions; `done` marks only real ends, since bootstrapping goes on after a time-out."""
        return step_table(data)

    def policy(self, model: Any) -> Policy:
        """Return the actor."""
        return model.actor

    def nets(self, table: Table, key: Array, head: Head, layer_norm: bool = False) -> tuple[Policy, Critic]:
        """Initialise an actor, whose action range is that of the data, and a critic."""
        obs, action = table["obs"], table["action"]
        scale = Scale.of(obs) if self.scale else Scale.unit(obs.shape[1])
        span = Range.of(action)
        actor_key, critic_key = jax.random.split(key)
        critic = Critic.init(scale, span, critic_key, self.width, self.depth, layer_norm)
        return Policy.init(scale, span, actor_key, head, self.width, self.depth), critic


class Critic(eqx.Module):
    """Twin critics Q(s, a); the arrays of the networks have a leading axis of 2.

    Actions are scaled from the data's range to -1 … 1, so their units do not matter.
    """

    twins: MLP
    scale: Scale
    range: Range

    @staticmethod
    def init(scale: Scale, span: Range, key: Array, width: int, depth: int, layer_norm: bool = False) -> Critic:
        """Initialise critics of states with this scale and actions in this range."""
        sizes = [len(scale.mean) + len(span.low), *[width] * depth, 1]
        kind = LayerNormMLP if layer_norm else MLP
        return Critic(eqx.filter_vmap(lambda k: kind.init(sizes, k))(jax.random.split(key)), scale, span)

    def __call__(self, obs: Array, action: Array) -> Array:
        """Compute both values [2] of one state and action."""
        x = self._input(obs, action)
        return eqx.filter_vmap(lambda net: net(x)[0])(self.twins)

    def each(self, obs: Array, action: Array) -> Array:
        """Compute the value [2] that each critic gives to its own one of two actions [2, A]."""
        return eqx.filter_vmap(lambda net, own: net(self._input(obs, own))[0])(self.twins, action)

    def first(self, obs: Array, action: Array) -> Array:
        """Compute the first critic's value, which actors are trained to maximise."""
        return pick(self.twins, 0)(self._input(obs, action))[0]

    def _input(self, obs: Array, action: Array) -> Array:
        return jnp.concatenate([self.scale(obs), self.range.unit(action)])
