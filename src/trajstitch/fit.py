"""The one training loop: a loss for one row of a table, P models side by side, many steps per call.

Steps run inside `lax.scan`, members under `vmap`, and the data stay on the device; the host sees a chunk's result
only. Which rows step t of a member draws depends on the member's seed and t alone, so a run that is stopped and
goes on, or is cut in other chunks, ends with the same numbers (up to rounding where a chunk ends within a turn).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from numpy.typing import NDArray

from trajstitch.errors import InputError
from trajstitch.progress import Tell, silent

Table = Mapping[str, Any]  # columns of one length; a model among them is handed to every step as it is
Metrics = dict[str, Any]  # numbers by name, `loss` among them
_JUDGED = 8192  # held-out rows that are looked at, at most


@dataclass(frozen=True)
class Fit:
    """Adam on minibatches drawn with replacement."""

    steps: int = 100_000
    batch: int = 256
    rate: float = 1e-3
    patience: int = 0  # stop after this many twentieths of the steps without a better held-out loss; 0: never

    def __post_init__(self) -> None:
        check_sizes(self, "steps", "batch")
        if not self.rate > 0:
            raise InputError(f"rate must be above 0, not {self.rate:g}")
        if self.patience < 0:
            raise InputError(f"patience must not be below 0, as {self.patience} is")


@dataclass(frozen=True)
class Learner:
    """How one model is made and improved; a method's settings are the fields of its subclass."""

    @property
    def schedule(self) -> Fit:
        """Its `fit` field."""
        return self.fit  # type: ignore[attr-defined,no-any-return]

    def init(self, table: Table, key: Array) -> Any:
        """A fresh model for these data."""
        raise AssertionError("every learner has its own")

    def loss(self, model: Any, row: Mapping[str, Array], key: Array) -> Any:
        """The loss of one row; or that and further numbers by name, to be logged."""
        raise AssertionError("every learner has its own")

    def after(self, model: Any) -> Any:
        """What follows each step, such as moving target networks."""
        return model

    def optimiser(self) -> optax.GradientTransformation:
        """Adam, unless a learner says otherwise."""
        return optax.adam(self.schedule.rate)

    def begin(self, model: Any) -> Any:
        """The optimiser's first state."""
        return self.optimiser().init(eqx.filter(model, eqx.is_inexact_array))

    @property
    def turn(self) -> int:
        """Steps until the kinds of step repeat: 2 where a second network learns at every second one only."""
        return 1

    def step(
        self, model: Any, memory: Any, batch: Mapping[str, Any], key: Array, kind: int
    ) -> tuple[Any, Any, Metrics]:
        """One gradient step on a batch; gives model, optimiser state and metrics.

        `kind` is the number of steps before it, modulo `turn`, and known while compiling: a GPU that has to ask
        at each step what to do waits for it.
        """
        loss = partial(mean_loss, self.loss, batch=batch, key=key)
        model, memory, metrics = descend(loss, model, memory, self.optimiser())
        return self.after(model), memory, metrics

    @property
    def renewal(self) -> int | None:
        """Steps between two calls of `renew`, the first of them before all steps; None where there are none."""
        return None

    def renew(self, model: Any, memory: Any, table: Table, key: Array) -> Any:
        """The optimiser's state, with what is made anew once in many steps."""
        return memory


def check_sizes(config: Any, *names: str) -> None:
    """InputError where one of these settings is below 1."""
    for name in names:
        if getattr(config, name) < 1:
            raise InputError(f"{name} must be at least 1, not {getattr(config, name)}")


def check_choice(config: Any, name: str, *choices: str) -> None:
    """InputError where this setting is none of the choices."""
    if getattr(config, name) not in choices:
        raise InputError(f"{name} must be {' or '.join(choices)}, not {getattr(config, name)!r}")


def mean_loss(loss: Any, model: Any, batch: Mapping[str, Array], key: Array) -> Any:
    """The mean over a batch of a loss of one row, and of the numbers that come with it."""
    rows = len(next(iter(batch.values())))
    return jax.tree.map(jnp.mean, jax.vmap(loss, (None, 0, 0))(model, batch, jax.random.split(key, rows)))


def descend(
    loss: Any, part: Any, memory: Any, optimiser: optax.GradientTransformation
) -> tuple[Any, Any, Metrics]:
    """One step of `part`, a model or a part of one, down loss(part): a number, or that and others by name."""

    def named(part: Any) -> tuple[Array, Metrics]:
        out = loss(part)
        value, more = out if isinstance(out, tuple) else (out, {})
        return value, {"loss": value, **more}

    (_, metrics), gradient = eqx.filter_value_and_grad(named, has_aux=True)(part)
    update, memory = optimiser.update(gradient, memory, part)
    return eqx.apply_updates(part, update), memory, metrics


class State(NamedTuple):
    """What a training run is, between two chunks; every array has the leading axis P."""

    model: Any
    memory: Any  # the optimiser's
    step: Array  # [], steps done


def start(learner: Learner, table: Table, seeds: Sequence[int], model: Any = None) -> State:
    """P fresh models, one a seed; or these, to go on from."""
    if model is None:
        model = eqx.filter_vmap(partial(learner.init, table))(_keys(seeds))
    return State(model, eqx.filter_vmap(learner.begin)(model), jnp.zeros((), jnp.int32))


def run(
    learner: Learner,
    state: State,
    table: Table,
    seeds: Sequence[int],
    every: int,
    until: int | None = None,
    rows: Sequence[range] | None = None,
) -> Iterator[tuple[State, dict[str, NDArray[Any]]]]:
    """Train; every `every` steps (and at the end) yield the state and the mean of each metric [P] since.

    The end is after the learner's steps, or `until` where others follow on another table. A member draws from its
    `rows` of the table, all unless given, so members may learn from different data. A loss that is no longer
    finite ends the run with an InputError.
    """
    on_device = {name: jax.tree.map(jnp.asarray, column) for name, column in table.items()}
    keys, steps = _keys(seeds), until or learner.schedule.steps
    everything = range(next(len(column) for column in on_device.values() if isinstance(column, Array)))
    spans = jnp.array([(part.start, len(part)) for part in rows or [everything] * len(seeds)])
    while (done := int(state.step)) < steps:
        counts, parts = [], []
        for first, end in _stretches(done, min(done - done % every + every, steps), learner.renewal):
            if learner.renewal and first % learner.renewal == 0:
                state = _renew(learner, state, on_device, keys)
            state, metrics = _chunk(learner, end - first, first % learner.turn, state, on_device, keys, spans)
            counts.append(end - first)
            parts.append(metrics)
        mean = {name: np.average([part[name] for part in parts], 0, counts) for name in parts[0]}
        if not np.isfinite(mean["loss"]).all():
            raise InputError(
                f"training diverged: the loss is {mean['loss']} after {int(state.step)} steps; lower the rate"
            )
        yield state, mean


def _stretches(begin: int, end: int, renewal: int | None) -> Iterator[tuple[int, int]]:
    """These steps, cut wherever something is due."""
    cuts = range(begin - begin % renewal + renewal, end, renewal) if renewal else ()
    return pairwise([begin, *cuts, end])


class History(NamedTuple):
    """How a training with held-out rows went, C checks of P members."""

    step: list[int]  # [C]
    train: list[list[float]]  # [C, P]
    held_out: list[list[float]]  # [C, P]


def train_best(
    learner: Learner,
    table: Table,
    held_out: Table,
    seeds: Sequence[int],
    tell: Tell = silent,
    model: Any = None,
    keep_last: bool = False,
) -> tuple[Any, History]:
    """Train P members and keep each one's weights where its held-out loss was lowest (or its last ones)."""
    schedule = learner.schedule
    rows = len(next(iter(held_out.values())))
    chosen = np.random.default_rng(0).permutation(rows)[:_JUDGED]
    judged = {name: jnp.asarray(column[chosen]) for name, column in held_out.items()}
    best: Any = None
    lowest, waited = np.full(len(seeds), np.inf), 0
    history = History([], [], [])
    every = max(1, -(-schedule.steps // 20))
    for state, mean in run(learner, start(learner, table, seeds, model), table, seeds, every):
        error = np.asarray(_judge(learner, state.model, judged))
        better = error < lowest
        best = state.model if best is None else _choose(jnp.asarray(better), state.model, best)
        lowest = np.where(better, error, lowest)
        waited = 0 if better.any() else waited + 1
        history.step.append(int(state.step))
        history.train.append(mean["loss"].tolist())
        history.held_out.append(error.tolist())
        tell(int(state.step), schedule.steps, f"held-out loss {error.mean():.4g}")
        if schedule.patience and waited >= schedule.patience:
            break
    return (state.model if keep_last else best), history


@partial(jax.jit, static_argnums=(0, 1, 2))
def _chunk(
    learner: Learner, count: int, first: int, state: State, table: Table, keys: Array, spans: Array
) -> tuple[State, Metrics]:
    def member(
        kind: int, step: Array, model: Any, memory: Any, key: Array, span: Array
    ) -> tuple[Any, Any, Metrics]:
        row_key, loss_key = jax.random.split(jax.random.fold_in(key, step))
        index = span[0] + jax.random.randint(row_key, (learner.schedule.batch,), 0, span[1])
        batch = {name: c[index] if isinstance(c, Array) else c for name, c in table.items()}
        return learner.step(model, memory, batch, loss_key, kind)

    def go(carry: State, kinds: Sequence[int]) -> tuple[State, dict[str, list[Array]]]:
        """A step of each kind, and each metric [P] at the steps that have it."""
        found: dict[str, list[Array]] = {}
        for kind in kinds:
            model, memory, metrics = eqx.filter_vmap(partial(member, kind, carry.step))(
                carry.model, carry.memory, keys, spans
            )
            carry = State(model, memory, carry.step + 1)
            for name, value in metrics.items():
                found.setdefault(name, []).append(value)
        return carry, found

    kinds = [(first + i) % learner.turn for i in range(learner.turn)]
    state, values = jax.lax.scan(lambda carry, _: go(carry, kinds), state, length=count // learner.turn)
    state, rest = go(state, kinds[: count % learner.turn])
    for name, more in rest.items():
        values[name].extend(value[None] for value in more)
    return state, {name: jnp.mean(jnp.concatenate(parts), 0) for name, parts in values.items()}


@partial(jax.jit, static_argnums=0)
def _renew(learner: Learner, state: State, table: Table, keys: Array) -> State:
    def member(model: Any, memory: Any, key: Array) -> Any:
        _, _, renew_key = jax.random.split(jax.random.fold_in(key, state.step), 3)  # a step has the first two
        return learner.renew(model, memory, table, renew_key)

    return state._replace(memory=eqx.filter_vmap(member)(state.model, state.memory, keys))


@partial(jax.jit, static_argnums=0)
def _judge(learner: Learner, model: Any, table: Mapping[str, Array]) -> Array:
    return eqx.filter_vmap(lambda one: mean_loss(learner.loss, one, table, jax.random.key(0)))(model)


def _choose(better: Array, new: Any, old: Any) -> Any:
    """The new weights of the members that are better, the old of the others."""
    return jax.tree.map(lambda a, b: jnp.where(better.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old)


def _keys(seeds: Sequence[int]) -> Array:
    return jnp.stack([jax.random.key(seed) for seed in seeds])
