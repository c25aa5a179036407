"""IQL: values by expectile regression on the data's actions, and weighted cloning (Kostrikov et al., 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.lax import stop_gradient

from trajstitch.data import Dataset, step_table
from trajstitch.errors import InputError
from trajstitch.methods.actor_critic import Critic, OfflineRL
from trajstitch.policies.policy import LOG_STD, Policy
from trajstitch.training.loop import Fit, Metrics, Table
from trajstitch.training.networks import MLP, Scale, polyak_update


class StateValue(eqx.Module):
    """The state value V(s)."""

    net: MLP
    scale: Scale

    def __call__(self, obs: Array) -> Array:
        return self.net(self.scale(obs))[0]


class Values(Protocol):
    """The networks by which IQL values steps."""

    value: StateValue
    critic: Critic
    critic_target: Critic


class Implicit(eqx.Module):
    """All networks that IQL trains.

    The policy is a Gaussian around a tanh mean with one std for all states, as for the published scores. The std
    matters in training only; the actor alone, which gives the mean, acts.
    """

    actor: Policy
    log_std: Array  # [A], in half-ranges of the action
    value: StateValue
    critic: Critic
    critic_target: Critic


@dataclass(frozen=True)
class IQL(OfflineRL):
    """Implicit Q-learning."""

    expectile: float = 0.7  # Expectile of the value; above 0.5 it leans to the best actions in the data.
    temperature: float = 3.0  # Inverse temperature: the cloning weight is e^(temperature * advantage).
    weight_clip: float = 100.0  # Largest cloning weight.
    fit: Fit = Fit(steps=1_000_000, batch=256, rate=3e-4)  # Training schedule.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.expectile < 1:
            raise InputError(f"expectile must be above 0 and below 1, not {self.expectile:g}")
        if self.temperature < 0 or not self.weight_clip > 0:
            raise InputError("temperature must not be below 0 and weight_clip must be above 0")

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """Raise InputError where all returns are equal, because rewards are scaled by their spread."""
        super().check(data, improved)
        check_returns(data)

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """Return all transitions, with rewards in thousandths of the spread of returns, as published."""
        return scaled_steps(data)

    def init(self, table: Table, key: Array) -> Implicit:
        """Initialise the networks."""
        nets_key, value_key = jax.random.split(key)
        actor, critic = self.nets(table, nets_key, "tanh")
        value = MLP.init([actor.obs_dim, *[self.width] * self.depth, 1], value_key)
        return Implicit(actor, jnp.zeros(actor.action_dim), StateValue(value, actor.scale), critic, critic)

    def loss(self, model: Implicit, row: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """Compute three losses of one transition, each with a gradient for its own network only."""
        loss, metrics = value_losses(model, row, self.expectile, self.discount)
        weight = jnp.minimum(jnp.exp(self.temperature * stop_gradient(metrics["advantage"])), self.weight_clip)
        actor_loss = -weight * log_likelihood(model, row["obs"], row["action"])
        metrics |= {"actor_loss": actor_loss, "weight": weight, "std": jnp.mean(jnp.exp(model.log_std))}
        return loss + actor_loss, metrics

    def optimiser(self) -> optax.GradientTransformation:
        """Return Adam; the actor's rate falls to 0 along a cosine, and the target gets no gradient steps."""
        optimisers = {
            "adam": optax.adam(self.fit.rate),
            "decayed": optax.adam(optax.cosine_decay_schedule(self.fit.rate, self.fit.steps)),
            "frozen": optax.set_to_zero(),
        }
        labels: Any = Implicit  # with the name of an optimiser in place of each part
        return optax.multi_transform(
            optimisers,
            labels(actor="decayed", log_std="decayed", value="adam", critic="adam", critic_target="frozen"),
        )

    def after(self, model: Implicit) -> Implicit:
        """Move the target critic towards the critic."""
        target = polyak_update(model.critic_target, model.critic, self.target_rate)
        return eqx.tree_at(lambda m: m.critic_target, model, target)


def check_returns(data: Dataset) -> None:
    """Raise InputError where all trajectories have the same return."""
    low, high = data.returns.min(), data.returns.max()
    if not high - low > 1e-6 * max(abs(low), abs(high)):
        raise InputError(
            f"rewards are scaled by the spread of returns, but all {len(data)} trajectories return {high:g}; "
            "give trajectories of different returns"
        )


def scaled_steps(data: Dataset) -> dict[str, Any]:
    """Return all transitions, with rewards in thousandths of the spread of returns."""
    spread = data.returns.max() - data.returns.min()
    return {**step_table(data), "reward": data.reward * (1000 / spread).astype("f4")}


def advantage_of(model: Values, obs: Array, action: Array) -> Array:
    """Compute min Q(s, a) - V(s) of one step, by the target critics."""
    return jnp.min(stop_gradient(model.critic_target)(obs, action)) - model.value(obs)


def value_losses(
    model: Values, row: Mapping[str, Array], expectile: float, discount: float
) -> tuple[Array, Metrics]:
    """Compute the losses of V and Q of one transition, each with a gradient for its own network only."""
    obs, action = row["obs"], row["action"]
    advantage = advantage_of(model, obs, action)
    value_loss = expectile_loss(advantage, expectile)
    q, next_v = model.critic(obs, action), stop_gradient(model.value(row["next_obs"]))
    critic_loss = jnp.sum((q - row["reward"] - discount * (1 - row["done"]) * next_v) ** 2)
    metrics = {"value_loss": value_loss, "critic_loss": critic_loss, "advantage": advantage}
    return value_loss + critic_loss, metrics | {"v": model.value(obs), "q": jnp.mean(q)}


def expectile_loss(difference: Array, expectile: float) -> Array:
    """Compute |τ - 1(u < 0)|·u² of a difference u; its mean is lowest at the expectile τ."""
    return jnp.where(difference < 0, 1 - expectile, expectile) * difference**2


def log_likelihood(model: Implicit, obs: Array, action: Array) -> Array:
    """Compute log N(a; π(s), σ) for actor π and std σ, in half-ranges of the action."""
    log_std = jnp.clip(model.log_std, *LOG_STD)
    z = (action - model.actor.act(obs)) / model.actor.range.half * jnp.exp(-log_std)
    return -jnp.sum(0.5 * z**2 + log_std + 0.5 * jnp.log(2 * jnp.pi))
