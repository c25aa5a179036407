"""SAC: a tanh-Gaussian actor with a target entropy, and twin critics (Haarnoja et al., 2018)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.lax import stop_gradient

from trajstitch.checks import check_choice
from trajstitch.errors import InputError
from trajstitch.methods.actor_critic import Critic, OfflineRL
from trajstitch.policies.policy import Policy
from trajstitch.training.loop import Fit, Metrics, Table
from trajstitch.training.networks import polyak_update


class SoftActorCritic(eqx.Module):
    """All networks that SAC trains, and the log of the temperature α."""

    actor: Policy
    critic: Critic
    critic_target: Critic
    log_temperature: Array  # []


@dataclass(frozen=True)
class SAC(OfflineRL):
    """Soft actor-critic, which CQL, MOPO and MOReL adapt to offline data."""

    actor_rate: float = 3e-4  # Learning rate of the actor and the temperature.
    actor_schedule: Literal["constant", "cosine"] = "constant"  # With cosine the actor's rate falls to 0.
    target_entropy: float | None = None  # Entropy of the policy; unless given minus the number of actions.
    fit: Fit = Fit(steps=1_000_000, batch=256, rate=3e-4)  # Training schedule.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.actor_rate > 0:
            raise InputError(f"actor_rate must be above 0, not {self.actor_rate:g}")
        check_choice(self, "actor_schedule", "constant", "cosine")

    def init(self, table: Table, key: Array) -> SoftActorCritic:
        """Initialise the networks, and the temperature to 1."""
        actor, critic = self.nets(table, key, "tanh-gaussian")
        return SoftActorCritic(actor, critic, critic, jnp.zeros(()))

    def loss(self, model: SoftActorCritic, row: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """Compute the losses of one transition, each with a gradient for its own part only."""
        noise = jax.random.normal(key, (2, model.actor.action_dim))
        actor_loss, metrics = self.actor_loss(model, row["obs"], noise[0])
        q, critic_loss = self.critic_loss(model, row, noise[1], metrics["temperature"])
        return critic_loss + actor_loss, {"critic_loss": critic_loss, "q": jnp.mean(q), **metrics}

    def actor_loss(self, model: SoftActorCritic, obs: Array, noise: Array) -> tuple[Array, Metrics]:
        """Compute α·log π(ã|s) - min_k Q_k(s,ã) for a sampled action ã, plus the loss of the temperature α."""
        fixed = stop_gradient(model)
        temperature = jnp.exp(fixed.log_temperature)
        action, log_density = draw(model.actor, obs, noise)
        policy_q = jnp.min(fixed.critic(obs, action))
        loss = temperature * log_density - policy_q
        entropy = -model.actor.action_dim if self.target_entropy is None else self.target_entropy
        temperature_loss = -model.log_temperature * (stop_gradient(log_density) + entropy)
        metrics = {"actor_loss": loss, "policy_q": policy_q, "entropy": -log_density, "temperature": temperature}
        return loss + temperature_loss, metrics

    def critic_loss(
        self, model: SoftActorCritic, row: Mapping[str, Array], noise: Array, temperature: Array | float
    ) -> tuple[Array, Array]:
        """Compute Q_k(s,a) [2], and (Q_k - r - γ·(1 - done)·(min_k Q'_k(s',a') - α·log π(a'|s')))², summed over k.

        Q' are the target critics, a' is sampled from the policy.
        """
        fixed = stop_gradient(model)
        next_action, log_density = draw(fixed.actor, row["next_obs"], noise)
        future = jnp.min(fixed.critic_target(row["next_obs"], next_action)) - temperature * log_density
        q = model.critic(row["obs"], row["action"])
        return q, jnp.sum((q - row["reward"] - self.discount * (1 - row["done"]) * future) ** 2)

    def optimiser(self) -> optax.GradientTransformation:
        """Return Adam, with `actor_rate` for actor and temperature; the target gets no gradient steps."""
        rate: Any = self.actor_rate
        if self.actor_schedule == "cosine":
            rate = optax.cosine_decay_schedule(rate, self.fit.steps)
        optimisers = {
            "critic": optax.adam(self.fit.rate),
            "actor": optax.adam(rate),
            "frozen": optax.set_to_zero(),
        }
        labels: Any = SoftActorCritic  # with the name of an optimiser in place of each part
        return optax.multi_transform(
            optimisers, labels(actor="actor", critic="critic", critic_target="frozen", log_temperature="actor")
        )

    def after(self, model: SoftActorCritic) -> SoftActorCritic:
        """Move the target critic towards the critic."""
        target = polyak_update(model.critic_target, model.critic, self.target_rate)
        return eqx.tree_at(lambda m: m.critic_target, model, target)


def draw(actor: Policy, obs: Array, noise: Array) -> tuple[Array, Array]:
    """Compute the action of a tanh-Gaussian policy from normal noise, and its log density in half-ranges."""
    mean, log_std = actor.moments(obs)
    x = mean + jnp.exp(log_std) * noise
    normal = -0.5 * noise**2 - log_std - 0.5 * jnp.log(2 * jnp.pi)
    log_slope = 2 * (jnp.log(2.0) - x - jax.nn.softplus(-2 * x))  # log(1 - tanh² x) without cancellation
    return actor.range(x), jnp.sum(normal - log_slope)
