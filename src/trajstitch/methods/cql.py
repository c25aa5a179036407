"""CQL: SAC with a critic that gives low values to actions outside the data (Kumar et al., 2020; CQL(H))."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient

from trajstitch.checks import check_not_negative, check_sizes
from trajstitch.methods.actor_critic import Critic
from trajstitch.methods.sac import SAC, SoftActorCritic, draw
from trajstitch.policies.policy import Policy
from trajstitch.training.loop import Metrics


@dataclass(frozen=True)
class CQL(SAC):
    """Conservative Q-learning."""

    depth: int = 3  # Hidden layers.
    min_q_weight: float = 5.0  # Weight of the conservative term; 10 suits expert data.
    samples: int = 10  # Actions from each of three sources: uniform, the policy at s, the policy at s'.
    # How many of the sampled actions per state have their value lowered, drawn by weight; 0: all of them.
    pushed: int = 0
    actor_rate: float = 1e-4  # Learning rate of the actor and the temperature.

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "samples")
        check_not_negative(self, "min_q_weight", "pushed")

    def loss(self, model: SoftActorCritic, row: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """Compute SAC's losses, without entropy in the critic's target, plus the conservative term."""
        obs, actions = row["obs"], model.actor.action_dim
        noise_key, uniform_key, choice_key = jax.random.split(key, 3)
        noise = jax.random.normal(noise_key, (2 + 2 * self.samples, actions))
        uniform = jax.random.uniform(uniform_key, (self.samples, actions), minval=-1.0)
        actor_loss, metrics = self.actor_loss(model, obs, noise[0])
        q, critic_loss = self.critic_loss(model, row, noise[1], temperature=0.0)
        sampled = sample(stop_gradient(model.actor), obs, row["next_obs"], noise[2:], uniform)
        gap = log_integral(model.critic, obs, sampled, self.pushed, choice_key) - q
        metrics |= {"critic_loss": critic_loss, "gap": jnp.mean(gap), "q": jnp.mean(q)}
        return critic_loss + self.min_q_weight * jnp.sum(gap) + actor_loss, metrics


class Sample(NamedTuple):
    """Actions from all three sources, and their log densities with actions in half-ranges."""

    action: Array  # [n, A]
    log_density: Array  # [n]


def sample(actor: Policy, obs: Array, next_obs: Array, noise: Array, uniform: Array) -> Sample:
    """Sample a third each: by `uniform` [n, A] in -1 … 1, by the policy at s, and at s', with `noise` [2n, A]."""
    here, there = (
        jax.vmap(draw, (None, None, 0))(actor, state, part)
        for state, part in zip((obs, next_obs), jnp.split(noise, 2), strict=True)
    )
    span, log_density = actor.range, jnp.full(len(uniform), -uniform.shape[1] * jnp.log(2.0))
    action = jnp.concatenate([span.middle + (span.high - span.low) / 2 * uniform, here[0], there[0]])
    return Sample(action, jnp.concatenate([log_density, here[1], there[1]]))


def log_integral(critic: Critic, obs: Array, sampled: Sample, pushed: int, key: Array) -> Array:
    """Estimate log ∫ exp Q_k(s, a) da [2], with actions in half-ranges, by importance sampling.

    Its gradient is the mean of Q's gradients at all samples, with softmax weights. If `pushed` is not 0, only that
    many samples, drawn by these weights, get a gradient: the expectation is the same, and the cost is lower.
    """
    fixed = stop_gradient(critic) if pushed else critic
    weighed = jax.vmap(fixed, (None, 0))(obs, sampled.action) - sampled.log_density[:, None]
    total = jax.nn.logsumexp(weighed, axis=0) - jnp.log(len(weighed))
    if not pushed:
        return total
    which = jax.random.categorical(key, weighed, axis=0, shape=(pushed, 2))
    q = jnp.mean(jax.vmap(critic.each, (None, 0))(obs, sampled.action[which]), 0)
    return total + (q - stop_gradient(q))
