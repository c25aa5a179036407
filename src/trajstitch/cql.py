"""CQL: SAC with a critic that thinks little of actions the data do not show (Kumar et al., 2020; CQL(H))."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from trajstitch.errors import InputError
from trajstitch.fit import Metrics, check_sizes
from trajstitch.offline import Critic
from trajstitch.policy import Policy
from trajstitch.sac import SAC, SoftActorCritic, draw


@dataclass(frozen=True)
class CQL(SAC):
    """Conservative Q-learning."""

    depth: int = 3
    min_q_weight: float = 5.0  # of the conservative term; 10 on data of experts
    samples: int = 10  # actions from each of three sources: uniform, the policy at s, and at s'
    pushed: int = 0  # of them, how many a state are pushed down, drawn by weight; 0: all, each by its weight
    actor_rate: float = 1e-4  # also of the temperature

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "samples")
        for name in ("min_q_weight", "pushed"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} must not be below 0, as {getattr(self, name):g} is")

    def loss(self, model: SoftActorCritic, row: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """SAC's losses, without entropy in the critic's target, and the conservative term."""
        obs, actions = row["obs"], model.actor.action_dim
        noise_key, uniform_key, push_key = jax.random.split(key, 3)
        noise = jax.random.normal(noise_key, (2 + 2 * self.samples, actions))
        uniform = jax.random.uniform(uniform_key, (self.samples, actions), minval=-1.0)
        actor_loss, metrics = self.actor_loss(model, obs, noise[0])
        q, critic_loss = self.critic_loss(model, row, noise[1], temperature=0.0)
        sampled = sample(stop_gradient(model.actor), obs, row["next_obs"], noise[2:], uniform)
        gap = log_integral(model.critic, obs, sampled, self.pushed, push_key) - q
        metrics |= {"critic_loss": critic_loss, "gap": jnp.mean(gap), "q": jnp.mean(q)}
        return critic_loss + self.min_q_weight * jnp.sum(gap) + actor_loss, metrics


class Sample(NamedTuple):
    """Actions from everywhere, and the log density each was drawn with, in half-ranges."""

    action: Array  # [n, A]
    log_density: Array  # [n]


def sample(actor: Policy, obs: Array, next_obs: Array, noise: Array, uniform: Array) -> Sample:
    """A third each: `uniform` [n, A], from -1 to 1, the policy's at s, and at s', by `noise` [2n, A]."""
    here, there = (
        jax.vmap(draw, (None, None, 0))(actor, state, part)
        for state, part in zip((obs, next_obs), jnp.split(noise, 2), strict=True)
    )
    span, log_density = actor.range, jnp.full(len(uniform), -uniform.shape[1] * jnp.log(2.0))
    action = jnp.concatenate([span.middle + (span.high - span.low) / 2 * uniform, here[0], there[0]])
    return Sample(action, jnp.concatenate([log_density, here[1], there[1]]))


def log_integral(critic: Critic, obs: Array, sampled: Sample, pushed: int, key: Array) -> Array:
    """log ∫ exp Q_k(s, a) da [2], actions in half-ranges, by importance sampling.

    Its slope is a mean of the slopes of Q at all samples, by softmax weights. That of `pushed` samples drawn by
    these weights has the same mean, and no slope at the others has to be computed.
    """
    judge = stop_gradient(critic) if pushed else critic
    weighed = jax.vmap(judge, (None, 0))(obs, sampled.action) - sampled.log_density[:, None]
    total = jax.nn.logsumexp(weighed, axis=0) - jnp.log(len(weighed))
    if not pushed:
        return total
    which = jax.random.categorical(key, weighed, axis=0, shape=(pushed, 2))
    q = jnp.mean(jax.vmap(critic.each, (None, 0))(obs, sampled.action[which]), 0)
    return total + (q - stop_gradient(q))
