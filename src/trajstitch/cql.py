"""CQL: SAC with a critic that thinks little of actions the data do not show (Kumar et al., 2020; CQL(H))."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.lax import stop_gradient

from trajstitch.errors import InputError
from trajstitch.fit import Fit, Metrics, Table, check_sizes
from trajstitch.nets import follow
from trajstitch.offline import Critic, OfflineRL
from trajstitch.policy import Policy


class Conservative(eqx.Module):
    """What CQL trains."""

    actor: Policy
    critic: Critic
    critic_target: Critic
    log_temperature: Array  # []


@dataclass(frozen=True)
class CQL(OfflineRL):
    """Conservative Q-learning."""

    depth: int = 3
    min_q_weight: float = 5.0  # of the conservative term; 10 on data of experts
    samples: int = 10  # actions from each of three sources: uniform, the policy at s, and at s'
    actor_rate: float = 1e-4  # also of the temperature
    fit: Fit = Fit(steps=1_000_000, batch=256, rate=3e-4)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "samples")
        if self.min_q_weight < 0 or not self.actor_rate > 0:
            raise InputError("min_q_weight must not be below 0 and actor_rate must be above 0")

    def init(self, table: Table, key: Array) -> Conservative:
        """Fresh networks and a temperature of 1."""
        actor, critic = self.nets(table, key, "tanh-gaussian")
        return Conservative(actor, critic, critic, jnp.zeros(()))

    def loss(self, model: Conservative, row: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """Four losses of one transition, each with a gradient for its own part only."""
        obs, next_obs, actions = row["obs"], row["next_obs"], model.actor.action_dim
        noise_key, uniform_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, (2 + 2 * self.samples, actions))
        uniform = jax.random.uniform(uniform_key, (self.samples, actions), minval=-1.0)
        fixed = stop_gradient(model)
        temperature = jnp.exp(fixed.log_temperature)

        action, log_density = draw(model.actor, obs, noise[0])
        policy_q = jnp.min(fixed.critic(obs, action))
        actor_loss = temperature * log_density - policy_q
        # The entropy is kept at minus the number of actions, SAC's choice.
        temperature_loss = -model.log_temperature * (stop_gradient(log_density) - actions)

        next_action, _ = draw(fixed.actor, next_obs, noise[1])
        future = (1 - row["done"]) * jnp.min(fixed.critic_target(next_obs, next_action))
        q = model.critic(obs, row["action"])
        critic_loss = jnp.sum((q - row["reward"] - self.discount * future) ** 2)
        gap = log_integral(model.critic, fixed.actor, obs, next_obs, noise[2:], uniform) - q

        loss = critic_loss + self.min_q_weight * jnp.sum(gap) + actor_loss + temperature_loss
        metrics = {"critic_loss": critic_loss, "gap": jnp.mean(gap), "actor_loss": actor_loss}
        metrics |= {"q": jnp.mean(q), "policy_q": policy_q, "entropy": -log_density, "temperature": temperature}
        return loss, metrics

    def optimiser(self) -> optax.GradientTransformation:
        """Adam, slower for actor and temperature; targets only follow."""
        kinds = {
            "fast": optax.adam(self.fit.rate),
            "slow": optax.adam(self.actor_rate),
            "still": optax.set_to_zero(),
        }
        labels: Any = Conservative
        return optax.multi_transform(kinds, labels("slow", "fast", "still", "slow"))

    def after(self, model: Conservative) -> Conservative:
        """The target follows the critic."""
        target = follow(model.critic_target, model.critic, self.target_rate)
        return eqx.tree_at(lambda m: m.critic_target, model, target)


def draw(actor: Policy, obs: Array, noise: Array) -> tuple[Array, Array]:
    """The action that a tanh-Gaussian policy makes of normal noise, and its log density in half-ranges."""
    mean, log_std = actor.moments(obs)
    x = mean + jnp.exp(log_std) * noise
    normal = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
    slope = 2 * (jnp.log(2.0) - x - jax.nn.softplus(-2 * x))  # log(1 - tanh² x) without cancellation
    return actor.range(x), jnp.sum(normal - slope)


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
    action = jnp.concatenate([(span.low + span.high) / 2 + span.half * uniform, here[0], there[0]])
    q = jax.vmap(critic, (None, 0))(obs, action)
    weighed = q - jnp.concatenate([log_density, here[1], there[1]])[:, None]
    return jax.nn.logsumexp(weighed, axis=0) - jnp.log(len(weighed))
