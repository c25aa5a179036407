"""Dynamics: an ensemble of Gaussians for p(s'|s), by the change of state (paper, Candidate state search)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from trajstitch.checks import check_choice, check_not_negative, check_sizes
from trajstitch.data import Dataset, change_table
from trajstitch.errors import InputError
from trajstitch.progress import Tell, silent
from trajstitch.training.loop import Fit, History, Learner, Table, train_best
from trajstitch.training.networks import MLP, Activation, Scale, pick

_STILL = 0.01  # of a state's std: the scale of its change where that is always the same
_LOG_STD = (-10.0, 2.0)  # bounds, in units of the change's std; the lower one suits columns that never change


@dataclass(frozen=True)
class DynamicsConfig(Learner):
    """Forward dynamics."""

    members: int = 7  # Networks trained.
    elites: int = 5  # Networks kept, by held-out likelihood.
    width: int = 200  # Units per hidden layer.
    depth: int = 3  # Hidden layers.
    activation: Activation = "relu"  # Activation function between layers.
    fit: Fit = Fit(steps=50_000, batch=256, rate=3e-4)  # Training schedule.
    patience: int = 5  # Stop after this many of 20 checks without a lower held-out loss; 0: never.

    def __post_init__(self) -> None:
        check_not_negative(self, "patience")
        check_sizes(self, "width", "depth")
        check_choice(self, "activation", *get_args(Activation))
        if not 1 <= self.elites <= self.members:
            raise InputError(f"elites must be from 1 to the {self.members} members, not {self.elites}")

    def init(self, table: Table, key: Array) -> GaussianStep:
        """Initialise one ensemble member."""
        given, change = table["given"], table["change"]
        outputs = Scale.of_change(change, given[:, : change.shape[1]], _STILL)
        if "reward" in table:
            reward = Scale.of_target(table["reward"])
            outputs = Scale(jnp.append(outputs.mean, reward.mean), jnp.append(outputs.std, reward.std))
        sizes = [given.shape[1], *[self.width] * self.depth, 2 * len(outputs.mean)]
        return GaussianStep(MLP.init(sizes, key, self.activation), Scale.of(given), outputs)

    def loss(self, model: GaussianStep, row: Mapping[str, Array], key: Array) -> Array:
        """Compute -log p(change|given), in units of the change's std and without the constant term."""
        mean, log_std = model.scaled(row["given"])
        change = jnp.append(row["change"], row["reward"]) if "reward" in row else row["change"]
        z = (model.change(change) - mean) * jnp.exp(-log_std)
        return jnp.sum(0.5 * z**2 + log_std)


class GaussianStep(eqx.Module):
    """One ensemble member: a Gaussian for the change of state (and reward), given the state (and action)."""

    net: MLP
    scale: Scale  # of the inputs
    change: Scale  # of the outputs

    def scaled(self, given: Array) -> tuple[Array, Array]:
        """Predict mean and log std of the change, in units of the change's std."""
        mean, log_std = jnp.split(self.net(self.scale(given)), 2)
        return mean, jnp.clip(log_std, *_LOG_STD)

    def __call__(self, given: Array) -> tuple[Array, Array]:
        """Predict mean and std of the change, in raw units."""
        mean, log_std = self.scaled(given)
        return self.change.mean + self.change.std * mean, self.change.std * jnp.exp(log_std)


class Dynamics(eqx.Module):
    """The elites, which are the ensemble members kept; every array of `member` has the leading axis E."""

    member: GaussianStep

    @eqx.filter_jit
    def moments(self, obs: Array) -> tuple[Array, Array]:
        """Predict mean and std [E, B, S] of the states after obs [B, S], in raw units."""
        mean, std = eqx.filter_vmap(lambda one: jax.vmap(one)(obs))(self.member)
        return obs + mean, std


def train_dynamics(
    train: Dataset, held_out: Dataset, config: DynamicsConfig, seed: int, tell: Tell = silent
) -> tuple[Dynamics, History]:
    """Train all ensemble members in parallel and keep the elites."""
    member, history = train_elites(change_table(train), change_table(held_out), config, seed, tell)
    return Dynamics(member), history


def train_elites(
    train: Table, held_out: Table, config: DynamicsConfig, seed: int, tell: Tell = silent
) -> tuple[GaussianStep, History]:
    """Train on the columns `given`, `change` and, where there is one, `reward`.

    Return the members of highest held-out likelihood, stacked.
    """
    seeds = range(seed, seed + config.members)
    member, history = train_best(config, train, held_out, seeds, tell, patience=config.patience)
    elite = np.sort(np.argsort(np.min(history.held_out, 0))[: config.elites])
    return pick(member, elite), history
