"""Dynamics: an ensemble of Gaussians for p(s'|s), over the change of state (paper, Candidate state search)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.fit import Fit, History, Learner, Table, check_sizes, train_best
from trajstitch.nets import MLP, Scale
from trajstitch.progress import Tell, silent

_LOG_STD = (-10.0, 2.0)  # in units of the change's own std; the lower end lets a constant column be certain


@dataclass(frozen=True)
class DynamicsConfig(Learner):
    """Forward dynamics."""

    members: int = 7  # trained
    elites: int = 5  # kept, by held-out likelihood
    width: int = 200
    depth: int = 3
    fit: Fit = Fit(steps=50_000, batch=256, rate=3e-4, patience=5)

    def __post_init__(self) -> None:
        check_sizes(self, "width", "depth")
        if not 1 <= self.elites <= self.members:
            raise InputError(f"elites must be from 1 to the {self.members} members, not {self.elites}")

    def init(self, table: Table, key: Array) -> GaussianStep:
        """A fresh member."""
        obs, change = table["obs"], table["next_obs"] - table["obs"]
        sizes = [obs.shape[1], *[self.width] * self.depth, 2 * obs.shape[1]]
        return GaussianStep(MLP.init(sizes, key), Scale.of(obs), Scale.of(change))

    def loss(self, model: GaussianStep, row: Mapping[str, Array], key: Array) -> Array:
        """-log p(s'|s), in units of the change's std and without its constant."""
        mean, log_std = model.scaled(row["obs"])
        z = (model.change(row["next_obs"] - row["obs"]) - mean) * jnp.exp(-log_std)
        return jnp.sum(0.5 * z**2 + log_std)


class GaussianStep(eqx.Module):
    """One member: N(μ(s), σ(s)²) for the next state."""

    net: MLP
    scale: Scale
    change: Scale

    def scaled(self, obs: Array) -> tuple[Array, Array]:
        """Mean and log std of the change of one state [S], in units of the change's std."""
        mean, log_std = jnp.split(self.net(self.scale(obs)), 2)
        return mean, jnp.clip(log_std, *_LOG_STD)

    def __call__(self, obs: Array) -> tuple[Array, Array]:
        """Mean and std of the next state, raw units."""
        mean, log_std = self.scaled(obs)
        return obs + self.change.mean + self.change.std * mean, self.change.std * jnp.exp(log_std)


class Dynamics(eqx.Module):
    """The elites; every array of `member` has the leading axis E."""

    member: GaussianStep

    @eqx.filter_jit
    def moments(self, obs: Array) -> tuple[Array, Array]:
        """Mean and std [E, B, S] of the states after obs [B, S], raw units."""
        return eqx.filter_vmap(lambda one: jax.vmap(one)(obs))(self.member)


def train_dynamics(
    train: Dataset, held_out: Dataset, config: DynamicsConfig, seed: int, tell: Tell = silent
) -> tuple[Dynamics, History]:
    """Train all members together and keep the elites."""
    seeds = range(seed, seed + config.members)
    member, history = train_best(config, step_table(train), step_table(held_out), seeds, tell)
    elite = np.sort(np.argsort(np.min(history.held_out, 0))[: config.elites])
    return Dynamics(jax.tree.map(lambda leaf: leaf[elite], member)), history


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
