"""TS+MBOP: MBOP whose prior and value come from the improved data (paper, model-based planning)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from trajstitch.data import Dataset, step_table
from trajstitch.errors import InputError
from trajstitch.methods.bc import BC, squared_error
from trajstitch.methods.mbop import PlanningMethod, step_loss
from trajstitch.methods.method import Method, check_rewards, check_two
from trajstitch.models.value import ValueConfig
from trajstitch.policies.mppi import MPPI, Cloned, StateEnd
from trajstitch.training.loop import Metrics, Table


@dataclass(frozen=True)
class TSMBOP(PlanningMethod):
    """MBOP whose prior is a policy cloned from improved data, and whose return model is a value of those data.

    Policy and value have the paper's sizes; `width` and `depth` are those of the dynamics model f_m.
    """

    discount: float = 0.99  # Discount of the value function.
    target_rate: float = 0.005  # Rate at which the value's targets follow.
    value_rate: float = 3e-4  # Learning rate of the value function.

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.value_rate > 0:
            raise InputError(f"value_rate must be above 0, not {self.value_rate:g}")
        _ = self._value  # its construction checks the value settings

    @property
    def _clone(self) -> BC:
        return BC(scale=self.scale)

    @property
    def _value(self) -> ValueConfig:
        return ValueConfig(discount=self.discount, target_rate=self.target_rate)

    def check(self, data: Dataset, improved: Dataset | None = None) -> None:
        """Raise InputError unless there are two data sets of equal dimensions, with rewards."""
        check_two("tsmbop", data, improved)
        check_rewards(data)

    def table(self, data: Dataset, prepared: Any = None) -> Table:
        """Return all transitions of one data set."""
        return step_table(data)

    def stages(
        self, data: Dataset, improved: Dataset | None = None, prepared: Any = None
    ) -> Iterator[tuple[Method, Table, int]]:
        """Yield one stage, whose table has rows of both data sets side by side."""
        assert improved is not None  # checked in `check`
        yield self, side_by_side(self.table(data), self.table(improved)), self.fit.steps

    def init(self, table: Table, key: Array) -> MPPI:
        """Initialise the networks."""
        step_key, prior_key, end_key = jax.random.split(key, 3)
        step, better = self.step_model(table, step_key), improved_rows(table)
        prior = Cloned(self._clone.init(better, prior_key))
        return MPPI(step.range, step, prior, StateEnd(self._value.init(better, end_key)), self.search)

    def loss(self, model: Any, row: Mapping[str, Array], key: Array) -> tuple[Array, Metrics]:
        """Compute f_m's loss on the original data, and the cloning and Bellman errors on the improved data."""
        better = improved_rows(row)
        model_loss, metrics = step_loss(model.step, row)
        cloning = squared_error(model.prior.policy, better["obs"], better["action"])
        value_loss = self._value.loss(model.end.value, better, key)
        v = model.end.value.unit * jnp.min(model.end.value.scaled(model.end.value.twins, better["obs"]))
        metrics |= {"cloning": cloning, "value_loss": value_loss, "v": v}
        return model_loss + cloning + value_loss, metrics

    def optimiser(self) -> optax.GradientTransformation:
        """Return Adam, with `value_rate` for the value and L2 for f_m; targets get no gradient, so they stay."""
        optimisers = {"value": optax.adam(self.value_rate), "others": super().optimiser()}
        return optax.multi_transform(optimisers, value_and_others)

    def after(self, model: MPPI) -> MPPI:
        """Move the value's target networks towards the trained ones."""
        assert isinstance(model.end, StateEnd)
        return eqx.tree_at(lambda m: m.end.value, model, self._value.after(model.end.value))


def value_and_others(model: MPPI) -> Any:
    """Return the name of the optimiser of each array."""
    labels = jax.tree.map(lambda _: "others", model)
    return eqx.tree_at(lambda m: m.end, labels, jax.tree.map(lambda _: "value", model.end))


_BETTER = "improved_"


def side_by_side(original: Table, improved: Table) -> Table:
    """Join two tables, the shorter one repeated; each row then holds one transition of each data set."""
    rows = max(len(original["obs"]), len(improved["obs"]))

    def column(values: Any) -> Any:
        return values if len(values) == rows else values[np.arange(rows) % len(values)]

    return {k: column(v) for k, v in original.items()} | {_BETTER + k: column(v) for k, v in improved.items()}


def improved_rows(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of the improved data from `side_by_side`."""
    return {k.removeprefix(_BETTER): v for k, v in table.items() if k.startswith(_BETTER)}
