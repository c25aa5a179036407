"""Inverse dynamics p(a|s,s'): the paper's CVAE, and a plain regression (paper, Action generation)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from trajstitch.data import Dataset
from trajstitch.dynamics import step_table
from trajstitch.errors import InputError
from trajstitch.fit import Fit, History, Learner, Table, train_best
from trajstitch.nets import MLP, Range, Scale
from trajstitch.progress import Tell, silent

_LOG_STD = (-4.0, 15.0)  # of the encoder, as the published code has it
_LARGE = 900_000  # transitions from which on the paper's network is wide


@dataclass(frozen=True)
class InverseConfig(Learner):
    """Inverse dynamics."""

    kind: Literal["regression", "cvae"] = "regression"
    width: int = 0  # 0: the paper's, 750 from 900,000 transitions on, else 256
    latent: Literal["mean", "sample"] = "mean"  # cvae: act with z = 0, or with one random z
    fit: Fit = Fit(steps=100_000, batch=256, rate=3e-4, patience=5)

    def __post_init__(self) -> None:
        if self.width < 0:
            raise InputError(f"width must be at least 1, or 0 for the paper's, not {self.width}")
        if self.kind not in ("regression", "cvae") or self.latent not in ("mean", "sample"):
            raise InputError("the inverse model is a regression or a cvae, its latent mean or sample")

    def init(self, table: Table, key: Array) -> Regression | CVAE:
        """A fresh model."""
        obs, action = table["obs"], table["action"]
        rows, states, actions = len(obs), obs.shape[1], action.shape[1]
        width = self.width or (750 if rows >= _LARGE else 256)
        reach = Reach(Scale.of(obs), Scale.of(table["next_obs"] - obs))
        ends = Range.of(action)
        if self.kind == "regression":
            return Regression(MLP.init([2 * states, width, width, actions], key), reach, ends)
        encoder, decoder = jax.random.split(key)
        z = 2 * actions
        return CVAE(
            MLP.init([2 * states + actions, width, width, 2 * z], encoder),
            MLP.init([2 * states + z, width, width, actions], decoder),
            reach,
            ends,
            self.latent == "sample",
        )

    def loss(self, model: Regression | CVAE, row: Mapping[str, Array], key: Array) -> Array:
        """Of one transition: squared error, and for the CVAE its bound ½(MSE + KL)."""
        error = model.error(row["obs"], row["next_obs"], row["action"], key)
        return error


class Reach(eqx.Module):
    """What an inverse model is told: the state, and how far the next one is, both scaled."""

    scale: Scale
    change: Scale

    def __call__(self, obs: Array, next_obs: Array) -> Array:
        return jnp.concatenate([self.scale(obs), self.change(next_obs - obs)])


class Regression(eqx.Module):
    """The mean action between two states."""

    net: MLP
    reach: Reach
    range: Range

    def __call__(self, obs: Array, next_obs: Array) -> Array:
        return self.range(self.net(self.reach(obs, next_obs)))

    def error(self, obs: Array, next_obs: Array, action: Array, key: Array) -> Array:
        """Mean squared error of one transition."""
        return jnp.mean((self(obs, next_obs) - action) ** 2)

    @eqx.filter_jit
    def actions(self, obs: Array, next_obs: Array, key: Array) -> Array:
        """Actions [B, A] from obs to next_obs, [B, S] each."""
        return jax.vmap(self)(obs, next_obs)


class CVAE(eqx.Module):
    """q(z|s,a,s') and p(a|s,s',z)."""

    encoder: MLP
    decoder: MLP
    reach: Reach
    range: Range
    sample: bool = eqx.field(static=True)

    def decode(self, obs: Array, next_obs: Array, z: Array) -> Array:
        """The action for one latent."""
        return self.range(self.decoder(jnp.concatenate([self.reach(obs, next_obs), z])))

    def error(self, obs: Array, next_obs: Array, action: Array, key: Array) -> Array:
        """½(MSE + KL) of one transition, both averaged over their dimensions."""
        mean, log_std = jnp.split(self.encoder(jnp.concatenate([self.reach(obs, next_obs), action])), 2)
        log_std = jnp.clip(log_std, *_LOG_STD)
        z = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        divergence = jnp.mean(0.5 * (mean**2 + jnp.exp(2 * log_std) - 1) - log_std)
        return 0.5 * (jnp.mean((self.decode(obs, next_obs, z) - action) ** 2) + divergence)

    @eqx.filter_jit
    def actions(self, obs: Array, next_obs: Array, key: Array) -> Array:
        """Actions [B, A] from obs to next_obs, [B, S] each."""
        size = (len(obs), self.decoder.layers[0].weight.shape[1] - 2 * obs.shape[1])
        z = jax.random.normal(key, size) if self.sample else jnp.zeros(size)
        return jax.vmap(self.decode)(obs, next_obs, z)


def train_inverse(
    train: Dataset, held_out: Dataset, config: InverseConfig, seed: int, tell: Tell = silent
) -> tuple[Regression | CVAE, History]:
    """Train one inverse model."""
    model, history = train_best(config, step_table(train), step_table(held_out), [seed], tell)
    return jax.tree.map(lambda leaf: leaf[0], model), history
