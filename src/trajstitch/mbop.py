"""MBOP: three ensembles to plan with (Argenson & Dulac-Arnold, 2020); and the paper's TS+MBOP."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from trajstitch.bc import BC, squared_error
from trajstitch.data import Bool, Dataset, Float
from trajstitch.dynamics import step_table
from trajstitch.errors import InputError
from trajstitch.fit import Fit, Metrics, Table, check_sizes
from trajstitch.method import Method, check_rewards, check_two, paper_rule
from trajstitch.mppi import MPPI, ActionModel, Cloned, ReturnModel, Search, StateEnd, StepModel
from trajstitch.nets import MLP, Range, Scale
from trajstitch.value import ValueConfig

# The paper's last table: horizon, samples, κ, σ, β.
SEARCH: dict[tuple[str, str], Search] = {
    ("hopper", "medium"): Search(2, 100, 1.0, 0.2, 0.0),
    ("halfcheetah", "medium"): Search(2, 100, 3.0, 0.2, 0.0),
    ("walker2d", "medium"): Search(4, 1000, 3.0, 0.01, 0.0),
    ("hopper", "medium-expert"): Search(2, 100, 1.0, 0.05, 0.0),
    ("halfcheetah", "medium-expert"): Search(2, 100, 1.0, 0.01, 0.0),
    ("walker2d", "medium-expert"): Search(2, 1000, 3.0, 0.1, 0.0),
    ("hopper", "medium-replay"): Search(8, 100, 1.0, 0.01, 0.0),
    ("halfcheetah", "medium-replay"): Search(2, 100, 0.3, 0.2, 0.0),
    ("walker2d", "medium-replay"): Search(2, 1000, 0.3, 0.2, 0.0),
    ("hopper", "expert"): Search(2, 100, 0.3, 0.01, 0.0),
    ("halfcheetah", "expert"): Search(4, 100, 0.3, 0.05, 0.0),
    ("walker2d", "expert"): Search(2, 1000, 3.0, 0.05, 0.0),
}


@dataclass(frozen=True)
class Planning(Method):
    """Settings of both methods, and f_m, which both have."""

    members: int = 3  # E, of each ensemble
    width: int = 500
    depth: int = 2
    scale: bool = True  # train on observations of mean 0 and std 1
    l2: float = 1e-5  # pull of each weight of the ensembles to 0
    rule: str | None = None  # the paper's search for this data set, such as hopper-medium-replay
    plan_horizon: int | None = None  # these five are the rule's unless given, or those of `Search` without a rule
    samples: int | None = None
    kappa: float | None = None
    sigma: float | None = None
    beta: float | None = None
    fit: Fit = Fit(steps=100_000, batch=512, rate=1e-3)

    def __post_init__(self) -> None:
        check_sizes(self, "members", "width", "depth")
        if not self.l2 >= 0:
            raise InputError(f"l2 must not be below 0, as {self.l2:g} is")
        self.search.__post_init__()

    @property
    def search(self) -> Search:
        """The rule with what was set over it."""
        names = {"horizon": "plan_horizon"} | {name: name for name in ("samples", "kappa", "sigma", "beta")}
        given = {name: getattr(self, ours) for name, ours in names.items() if getattr(self, ours) is not None}
        return dataclasses.replace(paper_rule(SEARCH, self.rule) if self.rule else Search(), **given)

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """Without a reward no future is better than another."""
        super().check(data, improved)
        check_rewards(data)

    def ensemble(self, inputs: int, outputs: int, key: Array) -> MLP:
        """E fresh networks, which differ by their first weights."""
        sizes = [inputs, *[self.width] * self.depth, outputs]
        return eqx.filter_vmap(lambda k: MLP.init(sizes, k))(jax.random.split(key, self.members))

    def step_model(self, table: Table, key: Array) -> StepModel:
        """A fresh f_m."""
        obs, action = table["obs"], table["action"]
        scale = Scale.of(obs) if self.scale else Scale.unit(obs.shape[1])
        net = self.ensemble(obs.shape[1] + action.shape[1], obs.shape[1] + 1, key)
        return StepModel(
            net, scale, Range.of(action), Scale.of(table["next_obs"] - obs), Scale.of(table["reward"])
        )

    def optimiser(self) -> optax.GradientTransformation:
        """Adam, with L2 on the weights of the ensembles."""
        return optax.chain(optax.add_decayed_weights(self.l2, mask=ensembles), optax.adam(self.fit.rate))


@dataclass(frozen=True)
class MBOP(Planning):
    """Model-based offline planning."""

    return_horizon: int = 10  # f_R looks so many steps ahead

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "return_horizon")

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """All transitions, with the action before each and what it and its successors earn within f_R's view.

        f_R looks less far where more than half of these returns would be cut short.
        """
        horizon = self.return_horizon
        total, whole = truncated_return(data, horizon)
        while whole.mean() < 0.5:
            horizon //= 2
            total, whole = truncated_return(data, horizon)
        return {**step_table(data), "last": last_action(data), "total": total, "whole": whole.astype(np.float32)}

    def init(self, table: Table, key: Array) -> MPPI:
        """Fresh ensembles."""
        step_key, prior_key, end_key = jax.random.split(key, 3)
        step = self.step_model(table, step_key)
        states, actions = len(step.scale.mean), len(step.range.low)
        prior = ActionModel(self.ensemble(states + actions, actions, prior_key), step.scale, step.range)
        end_net = self.ensemble(states + actions, 1, end_key)
        end = ReturnModel(end_net, step.scale, step.range, Scale.of(table["total"][table["whole"] > 0]))
        return MPPI(step.range, step, prior, end, self.search)

    def loss(self, model: Any, row: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """Three squared errors of one transition, each of its own ensemble, means over heads and columns.

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


@dataclass(frozen=True)
class TSMBOP(Planning):
    """MBOP whose prior is a policy cloned from improved data, and whose plans end with the value of those data.

    Policy and value have the paper's sizes; width and depth are f_m's.
    """

    discount: float = 0.99
    target_rate: float = 0.005
    value_rate: float = 3e-4  # Adam's, of the value function

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.value_rate > 0:
            raise InputError(f"value_rate must be above 0, not {self.value_rate:g}")
        self._value.__post_init__()

    @property
    def _clone(self) -> BC:
        return BC(scale=self.scale)

    @property
    def _value(self) -> ValueConfig:
        return ValueConfig(discount=self.discount, target_rate=self.target_rate)

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """Two data sets of one environment."""
        check_two("tsmbop", data, improved)
        check_rewards(data)

    def stages(
        self, data: Dataset, improved: Dataset | None = None, prepared: Any = None
    ) -> Iterator[tuple[Method, Table, int]]:
        """One stage, with rows of both data side by side."""
        assert improved is not None  # by check
        yield self, side_by_side(step_table(data), step_table(improved)), self.fit.steps

    def init(self, table: Table, key: Array) -> MPPI:
        """Fresh networks."""
        step_key, prior_key, end_key = jax.random.split(key, 3)
        step, better = self.step_model(table, step_key), improved_rows(table)
        prior = Cloned(self._clone.init(better, prior_key))
        return MPPI(step.range, step, prior, StateEnd(self._value.init(better, end_key)), self.search)

    def loss(self, model: Any, row: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """f_m's loss on the original data, cloning and the Bellman error on the improved."""
        better = improved_rows(row)
        model_loss, metrics = step_loss(model.step, row)
        cloning = squared_error(model.prior.policy, better["obs"], better["action"])
        value_loss = self._value.loss(model.end.value, better, key)
        v = model.end.value.unit * jnp.min(model.end.value.scaled(model.end.value.twins, better["obs"]))
        metrics |= {"cloning": cloning, "value_loss": value_loss, "v": v}
        return model_loss + cloning + value_loss, metrics

    def optimiser(self) -> optax.GradientTransformation:
        """Adam, with the value's own rate, and L2 on the weights of f_m; targets have no slope, so they stay."""
        kinds = {"value": optax.adam(self.value_rate), "others": super().optimiser()}
        return optax.multi_transform(kinds, value_and_others)

    def after(self, model: MPPI) -> MPPI:
        """The value's targets follow."""
        assert isinstance(model.end, StateEnd)
        return eqx.tree_at(lambda m: m.end.value, model, self._value.after(model.end.value))


def step_loss(step: StepModel, row: Mapping[str, Array]) -> tuple[Array, Metrics]:
    """Squared error of change and reward, in units of their std, a mean over heads and columns."""
    goal = jnp.append(step.change(row["next_obs"] - row["obs"]), step.reward(row["reward"]))
    error = jnp.mean((step.scaled(row["obs"], row["action"]) - goal) ** 2, 0)
    loss = jnp.mean(error)
    return loss, {"model_loss": loss, "reward_loss": error[-1]}


def ensembles(model: MPPI) -> Any:
    """True for the weights L2 is for."""
    of_mbop = isinstance(model.prior, ActionModel)

    def nets(m: Any) -> list[Any]:
        return [m.step.net, m.prior.net, m.end.net] if of_mbop else [m.step.net]

    return eqx.tree_at(nets, jax.tree.map(lambda _: False, model), jax.tree.map(lambda _: True, nets(model)))


def value_and_others(model: MPPI) -> Any:
    """Which optimiser each array has."""
    labels = jax.tree.map(lambda _: "others", model)
    return eqx.tree_at(lambda m: m.end, labels, jax.tree.map(lambda _: "value", model.end))


def last_action(data: Dataset) -> Float:
    """The action before each transition [N, A]; the middle of the range at a trajectory's start."""
    last = np.roll(data.action, 1, 0)
    last[data.start[:-1]] = (data.action.min(0) + data.action.max(0)) / 2
    return last


def truncated_return(data: Dataset, horizon: int) -> tuple[NDArray[np.float32], Bool]:
    """What each transition and those after it earn [N], `horizon` of them or until the trajectory ends.

    And whether that is all of it [N]: not where the trajectory was cut before.
    """
    earned = np.concatenate([[0], np.cumsum(data.reward, dtype=np.float64)])
    first = np.arange(data.transitions)
    end = first + np.minimum(horizon, data.steps_left)
    whole = (data.steps_left >= horizon) | np.repeat(data.terminal, data.length)
    return (earned[end] - earned[first]).astype(np.float32), whole


_BETTER = "improved_"


def side_by_side(original: Table, improved: Table) -> Table:
    """One table of both, the shorter repeated: a batch of it is one of each, and no loss has rows of both."""
    rows = max(len(original["obs"]), len(improved["obs"]))

    def column(values: Any) -> Any:
        return values if len(values) == rows else values[np.arange(rows) % len(values)]

    return {k: column(v) for k, v in original.items()} | {_BETTER + k: column(v) for k, v in improved.items()}


def improved_rows(table: Mapping[str, Any]) -> dict[str, Any]:
    """The improved data's half of `side_by_side`."""
    return {k.removeprefix(_BETTER): v for k, v in table.items() if k.startswith(_BETTER)}
