"""CQL: SAC with a critic that thinks little of actions the data do not show (Kumar et al., 2020; CQL(H))."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    actor_rate: float = 1e-4  # also of the temperature

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "samples")
        if self.min_q_weight < 0:
            raise InputError(f"min_q_weight must not be below 0, as {self.min_q_weight:g} is")

    def loss(self, model: SoftActorCritic, row: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """SAC's losses, without entropy in the critic's target, and the conservative term."""
        obs, actions = row["obs"], model.actor.action_dim
        noise_key, uniform_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, (2 + 2 * self.samples, actions))
        uniform = jax.random.uniform(uniform_key, (self.samples, actions), minval=-1.0)
        actor_loss, metrics = self.actor_loss(model, obs, noise[0])
        q, critic_loss = self.critic_loss(model, row, noise[1], temperature=0.0)
        still = stop_gradient(model.actor)
        gap = log_integral(model.critic, still, obs, row["next_obs"], noise[2:], uniform) - q
        metrics |= {"critic_loss": critic_loss, "gap": jnp.mean(gap), "q": jnp.mean(q)}
        return critic_loss + self.min_q_weight * jnp.sum(gap) + actor_loss, metrics


def log_integral(
    critic: Critic, actor: Policy, obs: Array, next_obs: Array, noise: Array, uniform: Array
) -> Array:
    """log ∫ exp Q_k(s, a) da [2], actions in half-ranges, by importance sampling.

    A third of the actions each: `uniform` [n, A], from -1 to 1, the policy's at s, and at s', by `noise` [2n, A].
    """
    here, there = (
        jax.vmap(draw, (None, None, 0))(actor, state, part)
        for state, part in zip((obs, next_obs), jnp.split(noise, 2), strict=True)
    )
    span, log_density = actor.range, jnp.full(len(uniform), -uniform.shape[1] * jnp.log(2.0))
    action = jnp.concatenate([span.middle + (span.high - span.low) / 2 * uniform, here[0], there[0]])
    q = jax.vmap(critic, (None, 0))(obs, action)
    weighed = q - jnp.concatenate([log_density, here[1], there[1]])[:, None]
    return jax.nn.logsumexp(weighed, axis=0) - jnp.log(len(weighed))
