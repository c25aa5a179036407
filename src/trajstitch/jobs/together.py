"""Several runs in one program, each on its own data set: a GPU takes little longer for all than for one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from trajstitch.checks import check_same_sizes
from trajstitch.data import Dataset
from trajstitch.progress import Tell
from trajstitch.training import loop
from trajstitch.training.loop import Learner, State, Table
from trajstitch.training.networks import pick


class Part(NamedTuple):
    """One of the runs that are trained together."""

    learner: Learner
    table: Table
    state: State  # to go on from
    keep: Callable[[State, Mapping[str, Any]], None]  # stores a state, with the mean metrics since the last


def check_same_dimensions(sets: Sequence[Dataset]) -> None:
    """Raise InputError unless the states and actions of all data sets have as many dimensions."""
    first = sets[0].obs_dim, sets[0].action_dim
    for data in sets:
        here = data.obs_dim, data.action_dim
        check_same_sizes("a data set has", here, "the first has", first, "train on it by a call of its own")


def train_parts(parts: Sequence[Part], seeds: range, every: int, tell: Tell) -> None:
    """Train all parts to their end, with the same seeds in each; after a kill some are ahead of others."""
    for step in sorted({int(part.state.step) for part in parts}):
        _train_level([part for part in parts if int(part.state.step) == step], seeds, every, tell)


def _train_level(parts: Sequence[Part], seeds: range, every: int, tell: Tell) -> None:
    """Train parts that are at the same step; members draw from the rows of their own part's table."""
    learner, states = parts[0].learner, [part.state for part in parts]
    model, opt_state = (
        jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *stacks)
        for stacks in zip(*[(state.model, state.opt_state) for state in states], strict=True)
    )
    begun = State(model, opt_state, states[0].step)
    ends = np.cumsum([0, *(len(part.table["obs"]) for part in parts)])
    rows = [range(a, b) for a, b in itertools.pairwise(ends) for _ in seeds]
    table = _joined([part.table for part in parts])
    for state, mean in loop.run(learner, begun, table, [*seeds] * len(parts), every, rows=rows):
        for i, part in enumerate(parts):
            own = slice(i * len(seeds), (i + 1) * len(seeds))
            reached = State(pick(state.model, own), pick(state.opt_state, own), state.step)
            part.keep(reached, {name: one[own] for name, one in mean.items()})
        tell(int(state.step), learner.fit.steps, f"loss {mean['loss'].mean():.4g}")


def _joined(tables: Sequence[Table]) -> Table:
    """Return one table with the rows of all; where some have weights, the rows of the others weigh alike."""
    if any(loop.WEIGHT in table for table in tables):
        tables = [{loop.WEIGHT: np.ones(len(table["obs"]), np.float32), **table} for table in tables]
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
