"""Policy: a network from raw observations to actions within their range.

Every array of a Policy may have a leading axis P: P policies of one shape, trained or rolled out together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from trajstitch.policies.planner import ActionPlanner
from trajstitch.training.networks import MLP, Range, Scale

Played = TypeVar("Played", bound="Policy | ActionPlanner")
Head = Literal["tanh", "gaussian", "tanh-gaussian"]
HEADS: tuple[Head, ...] = ("tanh", "gaussian", "tanh-gaussian")
LOG_STD = (-20.0, 2.0)  # bounds of a Gaussian head's log std, as in SAC


class Policy(eqx.Module):
    """ReLU layers and a head, which turns the output of the last layer into an action.

    tanh             deterministic, squashed into [low, high]
    gaussian         mean and log std in action units, clipped to [low, high]
    tanh-gaussian    mean and log std before squashing by tanh, as in SAC
    """

    scale: Scale
    net: MLP
    range: Range
    head: Head = eqx.field(static=True)

    @staticmethod
    def init(
        scale: Scale, range: Range, key: Array, head: Head = "tanh", width: int = 256, depth: int = 2
    ) -> Policy:
        """Initialise a network of `depth` hidden layers."""
        actions = len(range.low)
        sizes = [len(scale.mean), *[width] * depth, actions if head == "tanh" else 2 * actions]
        return Policy(scale, MLP.init(sizes, key), range, head)

    def __call__(self, obs: Array) -> Array:
        """Compute the output of the last layer for one observation [S]."""
        return self.net(self.scale(obs))

    def moments(self, obs: Array) -> tuple[Array, Array]:
        """Compute mean and log std of a Gaussian head for one observation, before any squashing."""
        mean, log_std = jnp.split(self(obs), 2)
        return mean, jnp.clip(log_std, *LOG_STD)

    def act(self, obs: Array, key: Array | None = None) -> Array:
        """Return the action for one observation: sampled with a key, the most likely one without."""
        if self.head == "tanh":
            return self.range(self(obs))
        mean, log_std = self.moments(obs)
        if key is not None:
            mean = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        return jnp.clip(mean, self.range.low, self.range.high) if self.head == "gaussian" else self.range(mean)

    @property
    def obs_dim(self) -> int:
        """S, the dimensions of an observation."""
        return self.scale.mean.shape[-1]

    @property
    def action_dim(self) -> int:
        """A, the dimensions of an action."""
        return self.range.low.shape[-1]

    @property
    def count(self) -> int | None:
        """P, the number of stacked policies, or None for a single one."""
        return self.range.low.shape[0] if self.range.low.ndim == 2 else None


def stack(policies: Sequence[Played]) -> Played:
    """Stack policies or planners along a new leading axis P."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *policies)


def stacked(policy: Played) -> Played:
    """Return the policy or planner with its axis P, of length 1 where it had none."""
    return stack([policy]) if policy.count is None else policy


def acting(policy: Policy) -> Callable[[Any], Array]:
    """Return the function by which policies act: states [B, S] -> the most likely actions [B, A].

    Of several policies it is the median of their actions, in each dimension: a seed that went astray has no say.
    """
    many = stacked(policy)

    def act(obs: Any) -> Array:
        rows = jnp.asarray(obs)
        return jnp.median(act_all(many, jnp.broadcast_to(rows, (many.count or 1, *rows.shape)), None), 0)

    return act


def fingerprint_of(policy: Policy) -> str:
    """Return a hash of a policy's numbers."""
    digest = hashlib.blake2b(policy.head.encode(), digest_size=16)
    for leaf in jax.tree.leaves(policy):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()


@eqx.filter_jit
def act_all(policy: Policy, obs: Array, key: Array | None) -> Array:
    """Compute actions [P, B, A] of P policies, each for its own observations [P, B, S]."""
    if key is None:
        return eqx.filter_vmap(lambda one, rows: jax.vmap(one.act)(rows))(policy, obs)
    keys = jax.random.split(key, obs.shape[:2])
    return eqx.filter_vmap(lambda one, rows, ks: jax.vmap(one.act)(rows, ks))(policy, obs, keys)
