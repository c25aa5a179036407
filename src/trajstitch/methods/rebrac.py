"""ReBRAC: TD3 with cloning terms in the actor's loss and in the critic's targets (Tarasov et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from trajstitch.checks import check_choice
from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.methods.td3 import TD3, ActorCritic, Batch
from trajstitch.policies.policy import Policy
from trajstitch.training.loop import Fit, Metrics, Table

_FALLING = 0.3  # share of the steps in which rates fall to 0, if they do


class PenalisedActorCritic(ActorCritic):
    """The networks, and how much leaving the data costs; so the members of one training run may differ in it."""

    actor_penalty: Array
    critic_penalty: Array


@dataclass(frozen=True)
class ReBRAC(TD3):
    """TD3 that is penalised for leaving the data's actions, now and one step ahead; critics have layer norms."""

    actor_penalty: float = 0.01  # Weight of cloning in the actor's loss, where Q is divided by its mean size.
    critic_penalty: float = 0.01  # Weight of cloning in the critic's targets, in units of the rewards.
    depth: int = 3  # Hidden layers.
    # late: the rates of actor and critic fall to 0 in the last 30% of their steps; constant: as published.
    schedule: Literal["constant", "late"] = "constant"
    fit: Fit = Fit(steps=1_000_000, batch=1024, rate=1e-3)  # Training schedule.

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self, "schedule", "constant", "late")
        if self.actor_penalty < 0 or self.critic_penalty < 0:
            raise InputError("actor_penalty and critic_penalty must not be below 0")

    @property
    def carried(self) -> tuple[str, ...]:
        """See `Method.carried`."""
        return "actor_penalty", "critic_penalty"

    def optimiser(self) -> optax.GradientTransformation:
        """Return the critic's Adam."""
        return self._adam(self.fit.steps)

    def actor_optimiser(self) -> optax.GradientTransformation:
        """Return the actor's Adam."""
        return self._adam(self.fit.steps // self.delay)

    def _adam(self, steps: int) -> optax.GradientTransformation:
        if self.schedule == "constant":
            return optax.adam(self.fit.rate)
        fall = max(1, round(_FALLING * steps))
        parts = [optax.constant_schedule(self.fit.rate), optax.cosine_decay_schedule(self.fit.rate, fall)]
        return optax.adam(optax.join_schedules(parts, [max(1, steps) - fall]))

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """Raise InputError also where no step is followed by another."""
        super().check(data, improved)
        if not _followed(data).any():
            raise InputError("every trajectory is one step that was cut, so no next action is known; use td3bc")

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """Return the transitions with the action after each; steps before a cut are left out, as it is unknown."""
        following = np.arange(1, data.transitions + 1)
        following[data.start[1:] - 1] = 0  # of no effect where an episode ended
        table = {**super().table(data), "next_action": data.action[following]}
        keep = _followed(data)
        return table if keep.all() else {name: column[keep] for name, column in table.items()}

    def init(self, table: Table, key: Array) -> PenalisedActorCritic:
        """Initialise the networks; the targets start equal to them."""
        actor, critic = self.nets(table, key, "tanh", layer_norm=True)
        penalties = jnp.asarray(self.actor_penalty), jnp.asarray(self.critic_penalty)
        return PenalisedActorCritic(actor, critic, actor, critic, *penalties)

    def next_value(self, model: ActorCritic, row: Batch, next_action: Array) -> Array:
        """Compute min_k Q'_k(s', a') - β·|a' - â'|², â' the recorded action, in half-ranges."""
        assert isinstance(model, PenalisedActorCritic)
        penalty = model.critic_penalty * _distance(model.actor, next_action, row["next_action"])
        return super().next_value(model, row, next_action) - penalty

    def actor_terms(self, model: ActorCritic, actor: Policy, row: Batch) -> tuple[Array, Array]:
        """Compute min_k Q_k(s, π(s)) and |π(s) - a|², in half-ranges."""
        action = actor.act(row["obs"])
        return jnp.min(model.critic(row["obs"], action)), _distance(actor, action, row["action"])

    def actor_loss(self, model: ActorCritic, batch: Batch, actor: Policy) -> tuple[Array, Metrics]:
        """Compute β·|π - a|² - λ·min_k Q_k with λ = 1 / mean |min_k Q_k|, a mean over the whole batch."""
        assert isinstance(model, PenalisedActorCritic)
        q, distance = jax.vmap(partial(self.actor_terms, model, actor))(batch)
        weight = 1 / jax.lax.stop_gradient(jnp.mean(jnp.abs(q)))
        loss = model.actor_penalty * jnp.mean(distance) - weight * jnp.mean(q)
        metrics = {"actor_loss": loss, "policy_q": jnp.mean(q), "cloning": jnp.mean(distance), "lambda": weight}
        return loss, metrics


def _followed(data: Dataset) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Mark the steps [N] after which the next action is known, or the episode ended."""
    known = np.ones(data.transitions, bool)
    known[data.start[1:] - 1] = data.terminal
    return known


def _distance(actor: Policy, action: Array, other: Array) -> Array:
    """Compute the squared distance of two actions, in half-ranges, summed over dimensions."""
    return jnp.sum(((action - other) / actor.range.half) ** 2)
