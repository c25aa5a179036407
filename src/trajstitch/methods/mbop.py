"""MBOP: planning with three ensembles, f_m, f_b and f_R of policies/mppi.py (Argenson & Dulac-Arnold, 2020)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from trajstitch.checks import check_not_negative, check_sizes
from trajstitch.data import Bool, Dataset, Float, step_table
from trajstitch.methods.method import Method, check_rewards, paper_rule
from trajstitch.policies.mppi import MPPI, ActionModel, PlanSearch, ReturnModel, StepModel
from trajstitch.training.loop import Fit, Metrics, Table
from trajstitch.training.networks import MLP, Range, Scale

# The paper's last table: horizon, samples, κ, σ, β.
SEARCH: dict[tuple[str, str], PlanSearch] = {
    ("hopper", "medium"): PlanSearch(2, 100, 1.0, 0.2, 0.0),
    ("halfcheetah", "medium"): PlanSearch(2, 100, 3.0, 0.2, 0.0),
    ("walker2d", "medium"): PlanSearch(4, 1000, 3.0, 0.01, 0.0),
    ("hopper", "medium-expert"): PlanSearch(2, 100, 1.0, 0.05, 0.0),
    ("halfcheetah", "medium-expert"): PlanSearch(2, 100, 1.0, 0.01, 0.0),
    ("walker2d", "medium-expert"): PlanSearch(2, 1000, 3.0, 0.1, 0.0),
    ("hopper", "medium-replay"): PlanSearch(8, 100, 1.0, 0.01, 0.0),
    ("halfcheetah", "medium-replay"): PlanSearch(2, 100, 0.3, 0.2, 0.0),
    ("walker2d", "medium-replay"): PlanSearch(2, 1000, 0.3, 0.2, 0.0),
    ("hopper", "expert"): PlanSearch(2, 100, 0.3, 0.01, 0.0),
    ("halfcheetah", "expert"): PlanSearch(4, 100, 0.3, 0.05, 0.0),
    ("walker2d", "expert"): PlanSearch(2, 1000, 3.0, 0.05, 0.0),
}


@dataclass(frozen=True)
class PlanningMethod(Method):
    """Settings of MBOP and TS+MBOP, and the dynamics model f_m, which both use."""

    members: int = 3  # Networks per ensemble.
    width: int = 500  # Units per hidden layer.
    depth: int = 2  # Hidden layers.
    scale: bool = True  # Scale observations to mean 0 and std 1; --no-scale leaves them as they are.
    l2: float = 1e-5  # L2 regularisation of the ensembles' weights.
    rule: str | None = None  # The paper's search for this data set, such as hopper-medium-replay.
    plan_horizon: int | None = None  # Steps of a plan; unless given the rule's, else 2.
    samples: int | None = None  # Plans sampled per step; unless given the rule's, else 100.
    kappa: float | None = None  # Weight of a plan is e^(kappa * return); unless given the rule's, else 1.
    sigma: float | None = None  # Std of action noise in half-ranges; unless given the rule's, else 0.2.
    beta: float | None = None  # Share of the last plan in the new one; unless given the rule's, else 0.
    fit: Fit = Fit(steps=100_000, batch=512, rate=1e-3)  # Training schedule.

    def __post_init__(self) -> None:
        check_sizes(self, "members", "width", "depth")
        check_not_negative(self, "l2")
        _ = self.search  # its construction checks the search settings

    @property
    def search(self) -> PlanSearch:
        """The rule's search settings, or the defaults, with those that were given in place of theirs."""
        names = {"horizon": "plan_horizon"} | {name: name for name in ("samples", "kappa", "sigma", "beta")}
        given = {name: getattr(self, ours) for name, ours in names.items() if getattr(self, ours) is not None}
        return dataclasses.replace(paper_rule(SEARCH, self.rule) if self.rule else PlanSearch(), **given)

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """Raise InputError where all rewards are 0: then no plan is better than another."""
        super().check(data, improved)
        check_rewards(data)

    def ensemble(self, inputs: int, outputs: int, key: Array) -> MLP:
        """Initialise E networks, which differ only in their initial weights."""
        sizes = [inputs, *[self.width] * self.depth, outputs]
        return eqx.filter_vmap(lambda k: MLP.init(sizes, k))(jax.random.split(key, self.members))

    def step_model(self, table: Table, key: Array) -> StepModel:
        """Initialise f_m."""
        obs, action = table["obs"], table["action"]
        scale = Scale.of(obs) if self.scale else Scale.unit(obs.shape[1])
        net = self.ensemble(obs.shape[1] + action.shape[1], obs.shape[1] + 1, key)
        return StepModel(
            net,
            scale,
            Range.of(action),
            Scale.of_change(table["next_obs"] - obs, obs),
            Scale.of_target(table["reward"]),
        )

    def optimiser(self) -> optax.GradientTransformation:
        """Return Adam with L2 regularisation of the ensembles' weights."""
        return optax.chain(optax.add_decayed_weights(self.l2, mask=ensembles), optax.adam(self.fit.rate))


@dataclass(frozen=True)
class MBOP(PlanningMethod):
    """Model-based offline planning."""

    return_horizon: int = 10  # Steps that the return model at the end of a plan looks ahead.

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "return_horizon")

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """Return all transitions, with the previous action and the return over f_R's horizon.

        The horizon is halved as long as more than half of these returns would be cut short.
        """
        horizon = self.return_horizon
        total, whole = truncated_return(data, horizon)
        while whole.mean() < 0.5:
            horizon //= 2
            total, whole = truncated_return(data, horizon)
        return {**step_table(data), "last": last_action(data), "total": total, "whole": whole.astype(np.float32)}

    def init(self, table: Table, key: Array) -> MPPI:
        """Initialise the three ensembles."""
        step_key, prior_key, end_key = jax.random.split(key, 3)
        step = self.step_model(table, step_key)
        states, actions = len(step.scale.mean), len(step.range.low)
        prior = ActionModel(self.ensemble(states + actions, actions, prior_key), step.scale, step.range)
        end_net = self.ensemble(states + actions, 1, end_key)
        end = ReturnModel(end_net, step.scale, step.range, Scale.of(table["total"][table["whole"] > 0]))
        return MPPI(step.range, step, prior, end, self.search)

    def loss(self, model: Any, row: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """Compute three squared errors of one transition, one per ensemble, averaged over heads and columns.

        f_R learns nothing from a return that was cut: a time limit does not make a state worth less.
        """
        obs, action = row["obs"], row["action"]
        prior_error = (model.prior.guesses(obs, row["last"]) - action) / model.range.half
        end_error = model.end.scaled(obs, action) - model.end.total(row["total"])
        prior_loss, return_loss = jnp.mean(prior_error**2), row["whole"] * jnp.mean(end_error**2)
        model_loss, metrics = step_loss(model.step, row)
        return model_loss + prior_loss + return_loss, {
            **metrics,
            "prior_loss": prior_loss,
            "return_loss": return_loss,
        }


def step_loss(step: StepModel, row: Mapping[str, Array]) -> tuple[Array, Metrics]:
    """Compute the squared error of change and reward, in units of their std, averaged over heads and columns."""
    target = jnp.append(step.change(row["next_obs"] - row["obs"]), step.reward(row["reward"]))
    error = jnp.mean((step.scaled(row["obs"], row["action"]) - target) ** 2, 0)
    loss = jnp.mean(error)
    return loss, {"model_loss": loss, "reward_loss": error[-1]}


def ensembles(model: MPPI) -> Any:
    """Return a mask that is True for the weights with L2 regularisation."""
    is_mbop = isinstance(model.prior, ActionModel)

    def nets(m: Any) -> list[Any]:
        return [m.step.net, m.prior.net, m.end.net] if is_mbop else [m.step.net]

    return eqx.tree_at(nets, jax.tree.map(lambda _: False, model), jax.tree.map(lambda _: True, nets(model)))


def last_action(data: Dataset) -> Float:
    """Return the action before each transition [N, A]; at a trajectory's start the middle of the range."""
    last = np.roll(data.action, 1, 0)
    last[data.start[:-1]] = (data.action.min(0) + data.action.max(0)) / 2
    return last


def truncated_return(data: Dataset, horizon: int) -> tuple[NDArray[np.float32], Bool]:
    """Compute the return from each transition on [N], over `horizon` steps or until the trajectory ends.

    Also return whether it is complete [N]: it is not where the trajectory was cut earlier.
    """
    earned = np.concatenate([[0], np.cumsum(data.reward, dtype=np.float64)])
    first = np.arange(data.transitions)
    end = first + np.minimum(horizon, data.steps_left)
    whole = (data.steps_left >= horizon) | np.repeat(data.terminal, data.length)
    return (earned[end] - earned[first]).astype(np.float32), whole
