"""Behaviour cloning: squared error (paper, eq. 1), or maximum likelihood of a Gaussian (its KL experiment)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
from jax import Array

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.fit import Fit, Learner, Table, check_sizes
from trajstitch.nets import Range, Scale
from trajstitch.policy import Policy


@dataclass(frozen=True)
class BC(Learner):
    """Clone the data's actions."""

    head: Literal["tanh", "gaussian"] = "tanh"  # tanh: squared error; gaussian: likelihood, needed for KL
    width: int = 256
    depth: int = 2
    scale: bool = True  # train on observations of mean 0 and std 1
    percent: float = 100.0  # clone the best percent of trajectories by return only
    fit: Fit = Fit(steps=100_000, batch=256, rate=1e-3)  # the paper's

    def __post_init__(self) -> None:
        if self.head not in ("tanh", "gaussian"):
            raise InputError(f"head must be tanh or gaussian, not {self.head!r}")
        check_sizes(self, "width", "depth")
        if not 0 < self.percent <= 100:
            raise InputError(f"percent must be above 0 and at most 100, not {self.percent:g}")

    def table(self, data: Dataset) -> Table:
        """What a step draws its batch from: the transitions of the chosen trajectories."""
        chosen = data.top(self.percent) if self.percent < 100 else data
        return {"obs": chosen.obs[chosen.row], "action": chosen.action}

    def init(self, table: Table, key: Array) -> Policy:
        """A fresh policy whose range is that of the data's actions."""
        obs, action = table["obs"], table["action"]
        scale = Scale.of(obs) if self.scale else Scale.unit(obs.shape[1])
        return Policy.init(scale, Range.of(action), key, self.head, self.width, self.depth)

    def loss(self, model: Policy, row: Mapping[str, Array], key: Array) -> Array:
        """The loss of one transition."""
        return (squared_error if self.head == "tanh" else negative_log_likelihood)(
            model, row["obs"], row["action"]
        )


def squared_error(policy: Policy, obs: Array, action: Array) -> Array:
    """(π(s) - a)², summed over action dimensions."""
    return jnp.sum((policy.act(obs) - action) ** 2)


def negative_log_likelihood(policy: Policy, obs: Array, action: Array) -> Array:
    """-log N(a; μ(s), σ(s))."""
    mean, log_std = policy.moments(obs)
    z = (action - mean) * jnp.exp(-log_std)
    return jnp.sum(0.5 * z**2 + log_std + 0.5 * jnp.log(2 * jnp.pi))
