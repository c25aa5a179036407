"""IQL: values by expectile regression on the data's actions, then weighted cloning (Kostrikov et al., 2021)."""

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

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.fit import Fit, Metrics, Table
from trajstitch.nets import MLP, Scale, follow
from trajstitch.offline import Critic, OfflineRL
from trajstitch.policy import LOG_STD, Policy


class StateValue(eqx.Module):
    """V(s)."""

    net: MLP
    scale: Scale

    def __call__(self, obs: Array) -> Array:
        return self.net(self.scale(obs))[0]


class Implicit(eqx.Module):
    """What IQL trains.

    The policy is a Gaussian around tanh, with one std for all states, as the published scores were made: the std
    weighs actions while learning and is not played, so the actor alone is the policy.
    """

    actor: Policy
    log_std: Array  # [A], in half-ranges of the action
    value: StateValue
    critic: Critic
    critic_target: Critic


@dataclass(frozen=True)
class IQL(OfflineRL):
    """Implicit Q-learning."""

    expectile: float = 0.7  # above 0.5: towards the value of the best actions in the data
    temperature: float = 3.0  # of the advantage in the cloning weight
    weight_clip: float = 100.0  # the largest weight
    fit: Fit = Fit(steps=1_000_000, batch=256, rate=3e-4)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.expectile < 1:
            raise InputError(f"expectile must be above 0 and below 1, not {self.expectile:g}")
        if self.temperature < 0 or not self.weight_clip > 0:
            raise InputError("temperature must not be below 0 and weight_clip must be above 0")

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """Returns must differ, since their spread is the unit of rewards."""
        super().check(data, improved)
        low, high = data.returns.min(), data.returns.max()
        if not high - low > 1e-6 * max(abs(low), abs(high)):
            raise InputError(
                f"iql measures rewards by the spread of returns, and all {len(data)} trajectories return "
                f"{high:g}; give trajectories of different returns"
            )

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """Rewards in thousandths of the spread of returns, as published."""
        table = super().table(data, prepared)
        return {**table, "reward": data.reward * (1000 / (data.returns.max() - data.returns.min())).astype("f4")}

    def init(self, table: Table, key: Array) -> Implicit:
        """Fresh networks."""
        nets_key, value_key = jax.random.split(key)
        actor, critic = self.nets(table, nets_key, "tanh")
        value = MLP.init([actor.obs_dim, *[self.width] * self.depth, 1], value_key)
        return Implicit(actor, jnp.zeros(actor.action_dim), StateValue(value, actor.scale), critic, critic)

    def loss(self, model: Implicit, row: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """Three losses of one transition, each with a gradient for its own network only."""
        obs, action = row["obs"], row["action"]
        v, next_v = model.value(obs), stop_gradient(model.value(row["next_obs"]))
        advantage = jnp.min(stop_gradient(model.critic_target)(obs, action)) - v
        value_loss = expectile_loss(advantage, self.expectile)

        q = model.critic(obs, action)
        critic_loss = jnp.sum((q - row["reward"] - self.discount * (1 - row["done"]) * next_v) ** 2)

        weight = jnp.minimum(jnp.exp(self.temperature * stop_gradient(advantage)), self.weight_clip)
        actor_loss = -weight * log_likelihood(model, obs, action)

        metrics = {"value_loss": value_loss, "critic_loss": critic_loss, "actor_loss": actor_loss}
        metrics |= {"v": v, "q": jnp.mean(q), "advantage": advantage, "weight": weight}
        metrics |= {"std": jnp.mean(jnp.exp(model.log_std))}
        return value_loss + critic_loss + actor_loss, metrics

    def optimiser(self) -> optax.GradientTransformation:
        """Adam; the actor's rate falls to 0 along a cosine, and targets only follow."""
        falling = optax.cosine_decay_schedule(self.fit.rate, self.fit.steps)
        kinds = {"adam": optax.adam(self.fit.rate), "falling": optax.adam(falling), "still": optax.set_to_zero()}
        labels: Any = Implicit
        return optax.multi_transform(kinds, labels("falling", "falling", "adam", "adam", "still"))

    def after(self, model: Implicit) -> Implicit:
        """The target follows the critic."""
        target = follow(model.critic_target, model.critic, self.target_rate)
        return eqx.tree_at(lambda m: m.critic_target, model, target)


def expectile_loss(difference: Array, expectile: float) -> Array:
    """|τ - 1(u < 0)|·u²: its least mean is the expectile τ."""
    return jnp.where(difference < 0, 1 - expectile, expectile) * difference**2


def log_likelihood(model: Implicit, obs: Array, action: Array) -> Array:
    """log N(a; π(s), σ), in half-ranges of the action."""
    log_std = jnp.clip(model.log_std, *LOG_STD)
    z = (action - model.actor.act(obs)) / model.actor.range.half * jnp.exp(-log_std)
    return -jnp.sum(0.5 * z**2 + log_std + 0.5 * jnp.log(2 * jnp.pi))
