"""The training loop: a loss for one row of a table, P models (members) in parallel, many steps per device call.

Steps run inside `lax.scan`, members under `vmap`, and the data stay on the device; the host only sees the result
of each chunk of steps. Rows are drawn with replacement: all alike, or by the table's column `weight`. Which rows
step t of a member draws depends only on the member's seed, its rows and t, so a run that is stopped and resumed,
or cut into other chunks, ends with the same numbers (up to rounding where a chunk ends between `Learner.phases`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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

from trajstitch.checks import check_sizes
from trajstitch.errors import InputError
from trajstitch.progress import Tell, silent

# Columns of equal length; an entry that is no array, such as a model, is not sampled. A column WEIGHT is how often
# each row is drawn, in any unit.
Table = Mapping[str, Any]
WEIGHT = "weight"
Metrics = dict[str, Any]  # numbers by name; one of them is `loss`
_HELD_OUT_ROWS = 8192  # at most this many held-out rows are scored


@dataclass(frozen=True)
class Fit:
    """Training by Adam on batches sampled with replacement."""

    steps: int = 100_000  # Gradient steps.
    batch: int = 256  # Rows per gradient step.
    rate: float = 1e-3  # Learning rate of Adam.

    def __post_init__(self) -> None:
        check_sizes(self, "steps", "batch")
        if not self.rate > 0:
            raise InputError(f"rate must be above 0, not {self.rate:g}")


@dataclass(frozen=True)
class Learner(ABC):
    """Defines how one model is initialised and trained; the settings are the fields of its subclass."""

    @property
    @abstractmethod
    def fit(self) -> Fit:
        """Steps, batch size and learning rate; a field of every subclass."""

    @abstractmethod
    def init(self, table: Table, key: Array) -> Any:
        """Initialise a model for these data."""

    @abstractmethod
    def loss(self, model: Any, row: Mapping[str, Array], key: Array) -> Any:
        """Compute the loss of one row, or the loss and further metrics to log."""

    def after(self, model: Any) -> Any:
        """Update the model after each gradient step, for example its target networks."""
        return model

    def optimiser(self) -> optax.GradientTransformation:
        """Return the optimiser: Adam, unless a subclass overrides it."""
        return optax.adam(self.fit.rate)

    def begin(self, model: Any) -> Any:
        """Return the initial optimiser state."""
        return self.optimiser().init(eqx.filter(model, eqx.is_inexact_array))

    @property
    def phases(self) -> int:
        """Number of phases that steps cycle through: 2 where the actor is trained at every second step."""
        return 1

    def step(
        self, model: Any, opt_state: Any, batch: Mapping[str, Any], key: Array, phase: int
    ) -> tuple[Any, Any, Metrics]:
        """Do one gradient step on a batch; return model, optimiser state and metrics.

        `phase` is the number of steps done before, modulo `phases`. It is static, so the device never branches.
        """
        loss = partial(mean_loss, self.loss, batch=batch, key=key)
        model, opt_state, metrics = gradient_step(loss, model, opt_state, self.optimiser())
        return self.after(model), opt_state, metrics

    @property
    def refresh_interval(self) -> int | None:
        """Steps between calls of `refresh`, the first of which precedes all steps; None: it is never called."""
        return None

    def refresh(self, model: Any, opt_state: Any, table: Table, key: Array) -> Any:
        """Return the optimiser state after the periodic update, for example with new model rollouts."""
        return opt_state


def mean_loss(loss: Any, model: Any, batch: Mapping[str, Array], key: Array) -> Any:
    """Compute the mean over a batch of a per-row loss, and of its metrics."""
    rows = len(next(iter(batch.values())))
    return jax.tree.map(jnp.mean, jax.vmap(loss, (None, 0, 0))(model, batch, jax.random.split(key, rows)))


def gradient_step(
    loss: Any, part: Any, opt_state: Any, optimiser: optax.GradientTransformation
) -> tuple[Any, Any, Metrics]:
    """Do one gradient step on `part`, a model or a part of one; loss(part) returns a number, or it and metrics."""

    def with_metrics(part: Any) -> tuple[Array, Metrics]:
        out = loss(part)
        value, metrics = out if isinstance(out, tuple) else (out, {})
        return value, {"loss": value, **metrics}

    (_, metrics), gradient = eqx.filter_value_and_grad(with_metrics, has_aux=True)(part)
    update, opt_state = optimiser.update(gradient, opt_state, part)
    return eqx.apply_updates(part, update), opt_state, metrics


class State(NamedTuple):
    """State of a training run between two chunks; every array but `step` has the leading axis P."""

    model: Any
    opt_state: Any
    step: Array  # [], steps done


def start(learner: Learner, table: Table, seeds: Sequence[int], model: Any = None) -> State:
    """Initialise P models, one per seed, or start from the stacked `model` where it is given."""
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
    """Train; every `every` steps, and at the end, yield the state and the mean of each metric [P] since then.

    Training ends after the learner's number of steps, or at step `until` where a further stage follows. Member p
    samples from the table's `rows[p]`, by default from all, so members may learn from different data; where rows
    have weights, members share all their rows or none. A loss or a weight that is no longer finite raises
    InputError; what was yielded before is sound.
    """
    on_device = {name: jax.tree.map(jnp.asarray, column) for name, column in table.items() if name != WEIGHT}
    keys, steps = _keys(seeds), until or learner.fit.steps
    everything = range(next(len(column) for column in on_device.values() if isinstance(column, Array)))
    spans = list(rows or [everything] * len(seeds))
    draws = _Draws(jnp.array([(part.start, len(part)) for part in spans]))
    if WEIGHT in table:
        draws = _Draws(draws.span, *map(jnp.asarray, _aliases(table[WEIGHT], spans)))
    while (done := int(state.step)) < steps:
        counts, parts = [], []
        for first, end in _segments(done, min(done - done % every + every, steps), learner.refresh_interval):
            if learner.refresh_interval and first % learner.refresh_interval == 0:
                state = _refresh(learner, state, on_device, keys)
            state, metrics = _chunk(learner, end - first, first % learner.phases, state, on_device, keys, draws)
            counts.append(end - first)
            parts.append(metrics)
        mean = {name: np.average([part[name] for part in parts], 0, counts) for name in parts[0]}
        _check_sound(learner, state, mean["loss"])
        yield state, mean


def _check_sound(learner: Learner, state: State, loss: NDArray[Any]) -> None:
    """Raise InputError if the training has diverged: a loss or a weight is nan or inf."""
    what = "" if np.isfinite(loss).all() else f"the loss is {loss}"
    if not what:
        weights = jax.tree.leaves(eqx.filter(state.model, eqx.is_inexact_array))
        bad = sum(int((~np.isfinite(np.asarray(weight))).sum()) for weight in weights)
        what = f"{bad:,} weights are not finite" if bad else ""
    if what:
        raise InputError(
            f"training of {type(learner).__name__} diverged: {what} after {int(state.step)} steps; lower the rate "
            f"(now {learner.fit.rate:g}), or scale rewards or states of extreme size"
        )


def _segments(begin: int, end: int, refresh_interval: int | None) -> Iterator[tuple[int, int]]:
    """Return (first, end) of the segments of these steps between refreshes."""
    cuts = (
        range(begin - begin % refresh_interval + refresh_interval, end, refresh_interval)
        if refresh_interval
        else ()
    )
    return pairwise([begin, *cuts, end])


class History(NamedTuple):
    """Losses during training with held-out rows: C checks of P members."""

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
    patience: int = 0,
) -> tuple[Any, History]:
    """Train P members; return each member's weights of lowest held-out loss, or its last ones with `keep_last`.

    The held-out loss is checked 20 times; training stops after `patience` checks in which no member reached a
    lower loss (0: never). `model` gives weights to start from.
    """
    fit = learner.fit
    rows = len(next(iter(held_out.values())))
    chosen = np.random.default_rng(0).permutation(rows)[:_HELD_OUT_ROWS]
    scored = {name: jnp.asarray(column[chosen]) for name, column in held_out.items()}
    best: Any = None
    lowest, waited = np.full(len(seeds), np.inf), 0
    history = History([], [], [])
    every = max(1, -(-fit.steps // 20))
    for state, mean in run(learner, start(learner, table, seeds, model), table, seeds, every):
        error = np.asarray(_held_out_loss(learner, state.model, scored))
        better = error < lowest
        best = state.model if best is None else _choose(jnp.asarray(better), state.model, best)
        lowest = np.where(better, error, lowest)
        waited = 0 if better.any() else waited + 1
        history.step.append(int(state.step))
        history.train.append(mean["loss"].tolist())
        history.held_out.append(error.tolist())
        tell(int(state.step), fit.steps, f"held-out loss {error.mean():.4g}")
        if patience and waited >= patience:
            break
    return (state.model if keep_last else best), history


class _Draws(NamedTuple):
    """How members draw rows: evenly from a span, or by weight, where rows hand part of their draws to others.

    Rows that weigh alike hand on nothing, so they are drawn as without weights.
    """

    span: Array  # [P, 2]: first row and number of rows
    keep: Array | None = None  # [rows]: the share of a row's even draws that it keeps
    alias: Array | None = None  # [rows]: the row that gets the others

    def rows(self, span: Array, key: Array, count: int) -> Array:
        """Draw this many rows of one member's span."""
        row = span[0] + jax.random.randint(key, (count,), 0, span[1])
        if self.keep is None or self.alias is None:
            return row
        _, _, keep_key = jax.random.split(key, 3)  # the first two are those of randint itself
        return jnp.where(jax.random.uniform(keep_key, (count,)) < self.keep[row], row, self.alias[row])


def _aliases(weight: NDArray[Any], spans: Sequence[range]) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Return `_Draws.keep` and `alias` for these weights, which count within each span."""
    apart = sorted(set(spans), key=lambda span: span.start)
    if any(span.stop > following.start for span, following in pairwise(apart)):
        raise InputError(
            "members share some of their rows, not all, so the rows cannot have weights; leave these out"
        )
    keep, alias = np.ones(len(weight), np.float32), np.arange(len(weight), dtype=np.int32)
    for span in apart:
        part = slice(span.start, span.stop)
        keep[part], alias[part] = _alias(np.asarray(weight[part], np.float64))
        alias[part] += span.start
    return keep, alias


def _alias(weight: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the share of its even draws that each row keeps, and the row that gets the others.

    Walker's alias method. Light rows, below the mean weight, lack what heavy ones have beyond it. Laid end to end,

        lack    |  light 0  |   light 1   | light 2 |
        excess  | heavy 0 |    heavy 1    | heavy 2 |

    a light row hands its lack to the heavy one at its begin, and that what reaches beyond its end to the next.
    """
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        share = weight / np.mean(weight)
    if not (np.isfinite(share).all() and np.min(share) >= 0):
        raise InputError("weights must be finite and not negative, and not all 0")
    keep, alias = np.ones(len(share)), np.arange(len(share))
    full = min(1.0, np.max(share))  # by rounding, the mean may be above all weights
    light, heavy = np.flatnonzero(share < full), np.flatnonzero(share >= full)
    lack, excess = np.cumsum(1 - share[light]), np.cumsum(share[heavy] - 1)
    begin = np.concatenate([[0.0], lack])[:-1]
    keep[light] = share[light]
    alias[light] = heavy[np.minimum(np.searchsorted(excess, begin, side="right"), len(heavy) - 1)]
    if len(light):  # up to where the last lack that begins over a heavy row reaches
        last = np.searchsorted(begin, excess[:-1], side="left") - 1
        reach = np.where(last >= 0, lack[last], 0.0)
        keep[heavy[:-1]] = 1 - np.clip(reach - excess[:-1], 0, 1)
        alias[heavy[:-1]] = heavy[1:]
    return keep, alias


@partial(jax.jit, static_argnums=(0, 1, 2))
def _chunk(
    learner: Learner, count: int, first: int, state: State, table: Table, keys: Array, draws: _Draws
) -> tuple[State, Metrics]:
    def member(
        phase: int, step: Array, model: Any, opt_state: Any, key: Array, span: Array
    ) -> tuple[Any, Any, Metrics]:
        row_key, loss_key = jax.random.split(jax.random.fold_in(key, step))
        index = draws.rows(span, row_key, learner.fit.batch)
        batch = {name: c[index] if isinstance(c, Array) else c for name, c in table.items()}
        return learner.step(model, opt_state, batch, loss_key, phase)

    def run_phases(carry: State, order: Sequence[int]) -> tuple[State, dict[str, list[Array]]]:
        """Do one step of each phase in `order`; return each metric [P] of the steps that have it."""
        found: dict[str, list[Array]] = {}
        for phase in order:
            model, opt_state, metrics = eqx.filter_vmap(partial(member, phase, carry.step))(
                carry.model, carry.opt_state, keys, draws.span
            )
            carry = State(model, opt_state, carry.step + 1)
            for name, value in metrics.items():
                found.setdefault(name, []).append(value)
        return carry, found

    order = [(first + i) % learner.phases for i in range(learner.phases)]
    state, values = jax.lax.scan(lambda carry, _: run_phases(carry, order), state, length=count // learner.phases)
    state, rest = run_phases(state, order[: count % learner.phases])
    for name, more in rest.items():
        values[name].extend(value[None] for value in more)
    return state, {name: jnp.mean(jnp.concatenate(parts), 0) for name, parts in values.items()}


@partial(jax.jit, static_argnums=0)
def _refresh(learner: Learner, state: State, table: Table, keys: Array) -> State:
    def member(model: Any, opt_state: Any, key: Array) -> Any:
        # A gradient step uses the first two keys.
        _, _, refresh_key = jax.random.split(jax.random.fold_in(key, state.step), 3)
        return learner.refresh(model, opt_state, table, refresh_key)

    return state._replace(opt_state=eqx.filter_vmap(member)(state.model, state.opt_state, keys))


@partial(jax.jit, static_argnums=0)
def _held_out_loss(learner: Learner, model: Any, table: Mapping[str, Array]) -> Array:
    return eqx.filter_vmap(lambda one: mean_loss(learner.loss, one, table, jax.random.key(0)))(model)


def _choose(better: Array, new: Any, old: Any) -> Any:
    """Return the new weights of the members that are better, and the old weights of the others."""
    return jax.tree.map(lambda a, b: jnp.where(better.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old)


def _keys(seeds: Sequence[int]) -> Array:
    return jnp.stack([jax.random.key(seed) for seed in seeds])
