"""The one training loop: a loss for one transition, P models side by side, many steps per call.

Steps run inside `lax.scan`, members under `vmap`, and the data stay on the device; the host sees a chunk's result
only. Which rows step t of a member draws depends on the member's seed and t alone, so a run that is stopped and
goes on, or is cut in other chunks, ends with the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from trajstitch.errors import InputError

Loss = Callable[[Any, Mapping[str, Array], Array], Array]  # (model, one row of the table, key) -> scalar


@dataclass(frozen=True)
class Fit:
    """Adam on minibatches drawn with replacement."""

    steps: int = 100_000
    batch: int = 256
    rate: float = 1e-3

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1 or not self.rate > 0:
            raise InputError("steps and batch must be at least 1 and rate above 0")


class State(NamedTuple):
    """What a training run is, between two chunks; every array has the leading axis P."""

    model: Any
    optimiser: Any
    step: Array  # [], steps done


def start(init: Callable[[Array], Any], seeds: Sequence[int], config: Fit) -> State:
    """P fresh models, one a seed."""
    model = eqx.filter_vmap(init)(_keys(seeds))
    optimiser = eqx.filter_vmap(optax.adam(config.rate).init)(eqx.filter(model, eqx.is_inexact_array))
    return State(model, optimiser, jnp.zeros((), jnp.int32))


def run(
    state: State, loss: Loss, table: Mapping[str, Any], seeds: Sequence[int], config: Fit, every: int
) -> Iterator[tuple[State, np.ndarray[Any, Any]]]:
    """Train to `config.steps`; every `every` steps (and at the end) yield the state and the mean loss [P] since.

    A loss that is no longer finite ends the run with an InputError.
    """
    device_table = {name: jnp.asarray(column) for name, column in table.items()}
    keys = _keys(seeds)
    while (done := int(state.step)) < config.steps:
        count = min(every - done % every, config.steps - done)
        state, mean = _chunk(loss, config, count, state, device_table, keys)
        if not np.isfinite(mean).all():
            raise InputError(
                f"training diverged: the loss is {np.asarray(mean)} after {int(state.step)} steps; lower the rate"
            )
        yield state, np.asarray(mean)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _chunk(
    loss: Loss, config: Fit, count: int, state: State, table: Mapping[str, Array], keys: Array
) -> tuple[State, Array]:
    optimiser = optax.adam(config.rate)
    rows = len(next(iter(table.values())))

    def batch_loss(model: Any, batch: Mapping[str, Array], key: Array) -> Array:
        return jnp.mean(jax.vmap(loss, (None, 0, 0))(model, batch, jax.random.split(key, config.batch)))

    def member(model: Any, opt_state: Any, key: Array, step: Array) -> tuple[Any, Any, Array]:
        row_key, loss_key = jax.random.split(jax.random.fold_in(key, step))
        index = jax.random.randint(row_key, (config.batch,), 0, rows)
        batch = {name: column[index] for name, column in table.items()}
        value, gradient = eqx.filter_value_and_grad(batch_loss)(model, batch, loss_key)
        update, opt_state = optimiser.update(gradient, opt_state)
        return eqx.apply_updates(model, update), opt_state, value

    def step(carry: State, _: None) -> tuple[State, Array]:
        model, opt_state, value = eqx.filter_vmap(member, in_axes=(0, 0, 0, None))(
            carry.model, carry.optimiser, keys, carry.step
        )
        return State(model, opt_state, carry.step + 1), value

    state, values = jax.lax.scan(step, state, length=count)
    return state, values.mean(0)


def _keys(seeds: Sequence[int]) -> Array:
    return jnp.stack([jax.random.key(seed) for seed in seeds])
