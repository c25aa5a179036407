"""Behaviour cloning by squared error (paper, eq. 1), or by maximum likelihood (the paper's KL experiment)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from trajstitch.checks import check_choice, check_sizes
from trajstitch.data import Dataset, Float, step_table
from trajstitch.errors import InputError
from trajstitch.methods.method import Method
from trajstitch.models.value import Value, ValueConfig, train_value
from trajstitch.policies.policy import Policy
from trajstitch.progress import Tell, silent
from trajstitch.training.loop import WEIGHT, Fit, Metrics, Table
from trajstitch.training.networks import Range, Scale


@dataclass(frozen=True)
class BC(Method):
    """Clone the data's actions."""

    head: Literal["tanh", "gaussian"] = "tanh"  # Squared error (tanh) or maximum likelihood (gaussian).
    width: int = 256  # Units per hidden layer.
    depth: int = 2  # Hidden layers.
    scale: bool = True  # Scale observations to mean 0 and std 1; --no-scale leaves them as they are.
    percent: float = 100.0  # Clone only this percentage of trajectories, those of the highest return.
    ignore_weights: bool = False  # Clone all steps alike, whatever weights the data give them.
    # cosine: the learning rate falls to 0, so that the last checkpoint has converged; constant: as in the paper.
    schedule: Literal["cosine", "constant"] = "cosine"
    fit: Fit = Fit(steps=50_000, batch=256, rate=1e-3)  # Training schedule.

    def __post_init__(self) -> None:
        check_choice(self, "head", "tanh", "gaussian")
        check_choice(self, "schedule", "cosine", "constant")
        check_sizes(self, "width", "depth")
        if not 0 < self.percent <= 100:
            raise InputError(f"percent must be above 0 and at most 100, not {self.percent:g}")

    def choose(self, data: Dataset) -> Dataset:
        """Return the trajectories to clone, without their weights if these are ignored."""
        data = replace(data, weight=None) if self.ignore_weights else data
        return data.top(self.percent) if self.percent < 100 else data

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """Return the transitions of the chosen trajectories, drawn by the data's weights if they have any."""
        chosen = self.choose(data)
        table = {"obs": chosen.obs[chosen.row], "action": chosen.action}
        if chosen.weight is not None:
            table[WEIGHT] = chosen.weight
        return table

    def optimiser(self) -> optax.GradientTransformation:
        """Return Adam with the chosen schedule."""
        if self.schedule == "constant":
            return super().optimiser()
        return optax.adam(optax.cosine_decay_schedule(self.fit.rate, self.fit.steps))

    def init(self, table: Table, key: Array) -> Policy:
        """Initialise a policy whose action range is that of the data."""
        obs, action = table["obs"], table["action"]
        scale = Scale.of(obs) if self.scale else Scale.unit(obs.shape[1])
        return Policy.init(scale, Range.of(action), key, self.head, self.width, self.depth)

    def loss(self, model: Policy, row: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """Compute the loss of one transition, and the absolute error of the action."""
        obs, action = row["obs"], row["action"]
        loss = squared_error if self.head == "tanh" else negative_log_likelihood
        return loss(model, obs, action), {"error": jnp.mean(jnp.abs(model.act(obs) - action))}


@dataclass(frozen=True)
class WeightedBC(BC):
    """Clone the data's actions, with weights that grow with the state's value (paper, value-weighted BC)."""

    value_steps: int = 30_000  # Gradient steps of the value function, which is trained first.
    # shifted: values minus the least, for rewards of any sign; paper: the values, positive on the whole.
    weights: Literal["shifted", "paper"] = "shifted"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "value_steps")
        check_choice(self, "weights", "shifted", "paper")

    def prepare(self, data: Dataset, tell: Tell = silent) -> Value:
        """Train the value function."""
        config = ValueConfig(fit=Fit(self.value_steps, 256, 3e-4))
        value, _ = train_value(step_table(self.choose(data)), config, seed=0, tell=tell)
        return value

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """Return the transitions, with a weight of the loss each by the value function."""
        table = super().table(data)
        value = np.asarray(prepared.value(jnp.asarray(table["obs"])))
        weigh = paper_weights if self.weights == "paper" else value_weights
        return {**table, "loss_weight": weigh(value)}

    def loss(self, model: Policy, row: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """Compute the weighted loss of one transition."""
        loss, metrics = super().loss(model, row, key)
        return row["loss_weight"] * loss, metrics


def value_weights(value: Float) -> Float:
    """Compute weights from values V(s): minus their minimum, then scaled to mean 1 (all 1 where V is constant)."""
    above = value - value.min()
    mean = above.mean()
    return above / mean if mean > 0 else np.ones_like(above)


def paper_weights(value: Float) -> Float:
    """Compute the paper's weights V(s), scaled to mean 1, which moves no minimum.

    A weight below 0 would reward errors. So values that are not positive on the whole are refused, and single ones
    below 0 count as 0.
    """
    above = np.maximum(value, 0)
    if not value.mean() > 0:
        raise InputError(
            f"the paper's weights are values, which must be positive, but here their mean is {value.mean():.3g}; "
            "take --weights shifted"
        )
    return above / above.mean()


def squared_error(policy: Policy, obs: Array, action: Array) -> Array:
    """Compute (π(s) - a)² for policy π, summed over action dimensions."""
    return jnp.sum((policy.act(obs) - action) ** 2)


def negative_log_likelihood(policy: Policy, obs: Array, action: Array) -> Array:
    """Compute -log N(a; μ(s), σ(s)) for the policy's mean μ and std σ."""
    mean, log_std = policy.moments(obs)
    z = (action - mean) * jnp.exp(-log_std)
    return jnp.sum(0.5 * z**2 + log_std + 0.5 * jnp.log(2 * jnp.pi))
