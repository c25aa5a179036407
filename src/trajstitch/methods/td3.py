"""TD3 on fixed data (Fujimoto et al., 2018): twin critics, smoothed targets, an actor at every second step.

TD3+BC and ReBRAC differ in what the actor's loss adds, and in what the targets leave out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array

from trajstitch.checks import check_sizes
from trajstitch.errors import InputError
from trajstitch.methods.actor_critic import Critic, OfflineRL
from trajstitch.policies.policy import Policy
from trajstitch.training.loop import Metrics, Table, gradient_step, mean_loss
from trajstitch.training.networks import polyak_update

Batch = Mapping[str, Array]


class ActorCritic(eqx.Module):
    """The networks that TD3 trains, and their targets."""

    actor: Policy
    critic: Critic
    actor_target: Policy
    critic_target: Critic


@dataclass(frozen=True)
class TD3(OfflineRL):
    """What methods on top of TD3 share."""

    noise: float = 0.2  # Std of the noise on the target action, in half-ranges of the action.
    noise_clip: float = 0.5  # Clip for the target-action noise.
    delay: int = 2  # Critic steps per actor step.

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "delay")
        if self.noise < 0 or self.noise_clip < 0:
            raise InputError("noise and noise_clip must not be below 0")

    def init(self, table: Table, key: Array) -> ActorCritic:
        """Initialise the networks; the targets start equal to them."""
        actor, critic = self.nets(table, key, "tanh")
        return ActorCritic(actor, critic, actor, critic)

    def actor_optimiser(self) -> optax.GradientTransformation:
        """Return the actor's optimiser, which takes one step where the critic's takes `delay`."""
        return self.optimiser()

    def begin(self, model: ActorCritic) -> Any:
        """Return Adam's initial state for the actor and for the critic."""
        return {"actor": self.actor_optimiser().init(model.actor), "critic": self.optimiser().init(model.critic)}

    def loss(self, model: ActorCritic, row: Batch, key: Array) -> tuple[Array, Metrics]:
        """Compute the critic's loss of one transition; the actor's needs a whole batch (`actor_loss`)."""
        return self.critic_loss(model, model.critic, row, key)

    def critic_loss(self, model: ActorCritic, critic: Critic, row: Batch, key: Array) -> tuple[Array, Metrics]:
        """Compute (Q_k(s,a) - r - γ·(1 - done)·V')², summed over the twins k.

        V' is the `next_value` of π'(s') + noise.
        """
        span = model.actor.range
        noise = jnp.clip(self.noise * jax.random.normal(key, span.low.shape), -self.noise_clip, self.noise_clip)
        next_action = jnp.clip(model.actor_target.act(row["next_obs"]) + span.half * noise, span.low, span.high)
        future = (1 - row["done"]) * self.next_value(model, row, next_action)
        q = critic(row["obs"], row["action"])
        loss = jnp.sum((q - row["reward"] - self.discount * future) ** 2)
        return loss, {"critic_loss": loss, "q": jnp.mean(q)}

    def next_value(self, model: ActorCritic, row: Batch, next_action: Array) -> Array:
        """Compute min_k Q'_k(s', a') of the target critics."""
        return jnp.min(model.critic_target(row["next_obs"], next_action))

    @abstractmethod
    def actor_loss(self, model: ActorCritic, batch: Batch, actor: Policy) -> tuple[Array, Metrics]:
        """Compute the actor's loss on a batch."""

    @property
    def phases(self) -> int:
        """Phases of a step; the actor is trained in the last one."""
        return self.delay

    def step(
        self, model: ActorCritic, opt_state: Any, batch: Batch, key: Array, phase: int
    ) -> tuple[ActorCritic, Any, Metrics]:
        """Do a gradient step of the critic and, at every `delay`-th step, of the actor; then move the targets."""
        model, opt_state, metrics = self.learn_critic(model, opt_state, batch, key)
        if phase < self.delay - 1:
            return model, opt_state, metrics
        model, opt_state, more = self.learn_actor(model, opt_state, batch)
        return model, opt_state, metrics | more

    def learn_critic(
        self, model: ActorCritic, opt_state: Any, batch: Batch, key: Array
    ) -> tuple[ActorCritic, Any, Metrics]:
        """Do one gradient step of the critic."""
        loss = partial(mean_loss, partial(self.critic_loss, model), batch=batch, key=key)
        critic, critic_state, metrics = gradient_step(loss, model.critic, opt_state["critic"], self.optimiser())
        return eqx.tree_at(lambda m: m.critic, model, critic), {**opt_state, "critic": critic_state}, metrics

    def learn_actor(self, model: ActorCritic, opt_state: Any, batch: Batch) -> tuple[ActorCritic, Any, Metrics]:
        """Do one gradient step of the actor and move the targets."""
        loss = partial(self.actor_loss, model, batch)
        actor, actor_state, metrics = gradient_step(loss, model.actor, opt_state["actor"], self.actor_optimiser())
        model = replace(
            model,
            actor=actor,
            actor_target=polyak_update(model.actor_target, actor, self.target_rate),
            critic_target=polyak_update(model.critic_target, model.critic, self.target_rate),
        )
        del metrics["loss"]  # `loss` is the critic's, because every step has it
        return model, {**opt_state, "actor": actor_state}, metrics
