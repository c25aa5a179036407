"""Inverse dynamics p(a|s,s'): the paper's conditional VAE (CVAE), and a regression (paper, Action generation)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from trajstitch.checks import check_not_negative
from trajstitch.data import Dataset, step_table
from trajstitch.errors import InputError
from trajstitch.progress import Tell, silent
from trajstitch.training.loop import Fit, History, Learner, Table, train_best
from trajstitch.training.networks import MLP, Range, Scale, pick

_LOG_STD = (-4.0, 15.0)  # bounds of the encoder's log std, as in the published code
_LARGE = 900_000  # with at least this many transitions the paper uses the wider network


@dataclass(frozen=True)
class InverseConfig(Learner):
    """Inverse dynamics."""

    kind: Literal["regression", "cvae"] = "regression"  # Network that predicts the action; cvae is the paper's.
    width: int = 0  # Units per hidden layer; 0: the paper's, 750 from 900,000 transitions on, else 256.
    latent: Literal["mean", "sample"] = "mean"  # For cvae: act with z = 0, or with one random z.
    fit: Fit = Fit(steps=100_000, batch=256, rate=3e-4)  # Training schedule.
    patience: int = 5  # Stop after this many of 20 checks without a lower held-out loss; 0: never.

    def __post_init__(self) -> None:
        check_not_negative(self, "patience")
        if self.width < 0:
            raise InputError(f"width must be at least 1, or 0 for the paper's, not {self.width}")
        if self.kind not in ("regression", "cvae") or self.latent not in ("mean", "sample"):
            raise InputError("the inverse model is a regression or a cvae, its latent mean or sample")

    def init(self, table: Table, key: Array) -> Regression | CVAE:
        """Initialise the model."""
        obs, action = table["obs"], table["action"]
        rows, states, actions = len(obs), obs.shape[1], action.shape[1]
        width = self.width or (750 if rows >= _LARGE else 256)
        reach = InverseInputs(Scale.of(obs), Scale.of_change(table["next_obs"] - obs, obs))
        action_range = Range.of(action)
        if self.kind == "regression":
            return Regression(MLP.init([2 * states, width, width, actions], key), reach, action_range)
        encoder, decoder = jax.random.split(key)
        z = 2 * actions
        return CVAE(
            MLP.init([2 * states + actions, width, width, 2 * z], encoder),
            MLP.init([2 * states + z, width, width, actions], decoder),
            reach,
            action_range,
            self.latent == "sample",
        )

    def loss(self, model: Regression | CVAE, row: Mapping[str, Array], key: Array) -> Array:
        """Compute the loss of one transition: the squared error, or for the CVAE its bound ½(MSE + KL)."""
        return model.error(row["obs"], row["next_obs"], row["action"], key)


class InverseInputs(eqx.Module):
    """Inputs of an inverse model: the state and the change to the next state, both scaled."""

    scale: Scale
    change: Scale

    def __call__(self, obs: Array, next_obs: Array) -> Array:
        return jnp.concatenate([self.scale(obs), self.change(next_obs - obs)])


class Regression(eqx.Module):
    """A network that predicts the mean action between two states."""

    net: MLP
    reach: InverseInputs
    range: Range

    def __call__(self, obs: Array, next_obs: Array) -> Array:
        return self.range(self.net(self.reach(obs, next_obs)))

    def error(self, obs: Array, next_obs: Array, action: Array, key: Array) -> Array:
        """Compute the mean squared error of one transition."""
        return jnp.mean((self(obs, next_obs) - action) ** 2)

    @eqx.filter_jit
    def actions(self, obs: Array, next_obs: Array, key: Array) -> Array:
        """Predict actions [B, A] that lead from obs to next_obs, [B, S] each."""
        return jax.vmap(self)(obs, next_obs)


class CVAE(eqx.Module):
    """Conditional VAE: encoder q(z|s,a,s') and decoder p(a|s,s',z), with latent z."""

    encoder: MLP
    decoder: MLP
    reach: InverseInputs
    range: Range
    sample: bool = eqx.field(static=True)  # act with z from the prior instead of z = 0

    def decode(self, obs: Array, next_obs: Array, z: Array) -> Array:
        """Compute the action for one latent z."""
        return self.range(self.decoder(jnp.concatenate([self.reach(obs, next_obs), z])))

    def error(self, obs: Array, next_obs: Array, action: Array, key: Array) -> Array:
        """Compute ½(MSE + KL) of one transition, both averaged over their dimensions."""
        mean, log_std = jnp.split(self.encoder(jnp.concatenate([self.reach(obs, next_obs), action])), 2)
        log_std = jnp.clip(log_std, *_LOG_STD)
        z = mean + jnp.exp(log_std) * jax.random.normal(key, mean.shape)
        divergence = jnp.mean(0.5 * (mean**2 + jnp.exp(2 * log_std) - 1) - log_std)
        return 0.5 * (jnp.mean((self.decode(obs, next_obs, z) - action) ** 2) + divergence)

    @eqx.filter_jit
    def actions(self, obs: Array, next_obs: Array, key: Array) -> Array:
        """Predict actions [B, A] that lead from obs to next_obs, [B, S] each."""
        size = (len(obs), self.decoder.layers[0].weight.shape[1] - 2 * obs.shape[1])
        z = jax.random.normal(key, size) if self.sample else jnp.zeros(size)
        return jax.vmap(self.decode)(obs, next_obs, z)


def train_inverse(
    train: Dataset, held_out: Dataset, config: InverseConfig, seed: int, tell: Tell = silent
) -> tuple[Regression | CVAE, History]:
    """Train one inverse model."""
    model, history = train_best(
        config, step_table(train), step_table(held_out), [seed], tell, patience=config.patience
    )
    return pick(model, 0), history
