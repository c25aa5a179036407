"""TD3+BC: maximise the critic while staying near the data's actions (Fujimoto & Gu, 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from trajstitch.errors import InputError
from trajstitch.methods.actor_critic import Critic
from trajstitch.methods.td3 import TD3, ActorCritic, Batch
from trajstitch.policies.policy import Policy
from trajstitch.training.loop import Fit, Metrics, mean_loss


@dataclass(frozen=True)
class TD3BC(TD3):
    """TD3 with a cloning term in the actor's loss."""

    alpha: float = 2.5  # Weight of the critic against cloning.
    fit: Fit = Fit(steps=1_000_000, batch=256, rate=3e-4)  # Training schedule.

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha < 0:
            raise InputError("alpha must not be below 0")

    def actor_terms(self, critic: Critic, actor: Policy, row: Batch) -> tuple[Array, Array]:
        """Compute Q_1(s, π(s)), and (π(s) - a)² averaged over action dimensions, in half-ranges."""
        action = actor.act(row["obs"])
        error = jnp.mean(((action - row["action"]) / actor.range.half) ** 2)
        return critic.first(row["obs"], action), error

    def actor_loss(self, model: ActorCritic, batch: Batch, actor: Policy) -> tuple[Array, Metrics]:
        """Compute -λ·Q_1 + (π - a)² with λ = α / mean |Q_1|, a mean over the whole batch."""
        q, error = jax.vmap(partial(self.actor_terms, model.critic, actor))(batch)
        weight = self.alpha / jax.lax.stop_gradient(jnp.mean(jnp.abs(q)))
        loss = jnp.mean(error) - weight * jnp.mean(q)
        metrics = {"actor_loss": loss, "policy_q": jnp.mean(q), "cloning": jnp.mean(error), "lambda": weight}
        return loss, metrics


@dataclass(frozen=True)
class FrozenCritic(TD3BC):
    """TD3+BC whose critic is no longer trained."""

    def learn_critic(
        self, model: ActorCritic, opt_state: Any, batch: Batch, key: Array
    ) -> tuple[ActorCritic, Any, Metrics]:
        """Do no gradient step; only compute the critic's loss on these data."""
        loss, metrics = mean_loss(self.loss, model, batch, key)
        return model, opt_state, {"loss": loss, **metrics}
