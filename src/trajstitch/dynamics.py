"""Dynamics: an ensemble of Gaussians for p(s'|s), over the change of state (paper, Candidate state search)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.fit import Fit, History, Learner, Table, check_choice, check_sizes, train_best
from trajstitch.nets import MLP, Activation, Scale
from trajstitch.progress import Tell, silent

_LOG_STD = (-10.0, 2.0)  # in units of the change's own std; the lower end lets a constant column be certain


@dataclass(frozen=True)
class DynamicsConfig(Learner):
    """Forward dynamics."""

    members: int = 7  # trained
    elites: int = 5  # kept, by held-out likelihood
    width: int = 200
    depth: int = 3
    activation: Activation = "relu"
    fit: Fit = Fit(steps=50_000, batch=256, rate=3e-4, patience=5)

    def __post_init__(self) -> None:
        check_sizes(self, "width", "depth")
        check_choice(self, "activation", *get_args(Activation))
        if not 1 <= self.elites <= self.members:
            raise InputError(f"elites must be from 1 to the {self.members} members, not {self.elites}")

    def init(self, table: Table, key: Array) -> GaussianStep:
        """A fresh member."""
        given, change = table["given"], table["change"]
        sizes = [given.shape[1], *[self.width] * self.depth, 2 * change.shape[1]]
        return GaussianStep(MLP.init(sizes, key, self.activation), Scale.of(given), Scale.of(change))

    def loss(self, model: GaussianStep, row: Mapping[str, Array], key: Array) -> Array:
        """-log p(change|given), in units of the change's std and without its constant."""
        mean, log_std = model.scaled(row["given"])
        z = (model.change(row["change"]) - mean) * jnp.exp(-log_std)
        return jnp.sum(0.5 * z**2 + log_std)


class GaussianStep(eqx.Module):
    """One member: a Gaussian for the change of state, given the state; or for more, given more."""

    net: MLP
    scale: Scale  # of what is given
    change: Scale

    def scaled(self, given: Array) -> tuple[Array, Array]:
        """Mean and log std of the change, in units of the change's std."""
        mean, log_std = jnp.split(self.net(self.scale(given)), 2)
        return mean, jnp.clip(log_std, *_LOG_STD)

    def __call__(self, given: Array) -> tuple[Array, Array]:
        """Mean and std of the change, raw units."""
        mean, log_std = self.scaled(given)
        return self.change.mean + self.change.std * mean, self.change.std * jnp.exp(log_std)


class Dynamics(eqx.Module):
    """The elites; every array of `member` has the leading axis E."""

    member: GaussianStep

    @eqx.filter_jit
    def moments(self, obs: Array) -> tuple[Array, Array]:
        """Mean and std [E, B, S] of the states after obs [B, S], raw units."""
        mean, std = eqx.filter_vmap(lambda one: jax.vmap(one)(obs))(self.member)
        return obs + mean, std


def train_dynamics(
    train: Dataset, held_out: Dataset, config: DynamicsConfig, seed: int, tell: Tell = silent
) -> tuple[Dynamics, History]:
    """Train all members together and keep the elites."""
    member, history = train_elites(change_table(train), change_table(held_out), config, seed, tell)
    return Dynamics(member), history


def train_elites(
    train: Table, held_out: Table, config: DynamicsConfig, seed: int, tell: Tell = silent
) -> tuple[GaussianStep, History]:
    """The members of highest held-out likelihood, axis E in front; the tables have `given` and `change`."""
    seeds = range(seed, seed + config.members)
    member, history = train_best(config, train, held_out, seeds, tell)
    elite = np.sort(np.argsort(np.min(history.held_out, 0))[: config.elites])
    return jax.tree.map(lambda leaf: leaf[elite], member), history


def change_table(data: Dataset) -> dict[str, Any]:
    """Every transition as a row of what the dynamics learn: the state, and how it changes."""
    obs = data.obs[data.row]
    return {"given": obs, "change": data.obs[data.row + 1] - obs}


def step_table(data: Dataset) -> dict[str, Any]:
    """Every transition as a row: obs, action, reward, next_obs, and `done` where the episode really ended."""
    done = np.zeros(data.transitions, np.float32)
    done[data.start[1:] - 1] = data.terminal
    return {
        "obs": data.obs[data.row],
        "action": data.action,
        "reward": data.reward,
        "next_obs": data.obs[data.row + 1],
        "done": done,
    }
