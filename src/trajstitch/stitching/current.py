"""Current: the data between two iterations, and which new trajectories replace old ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Bool, Dataset, Float, Int, Seams, count_revisits
from trajstitch.progress import Tell
from trajstitch.stitching.edges import Edges, Steps
from trajstitch.stitching.graph import Graph
from trajstitch.stitching.greedy import Ends, Paths

if TYPE_CHECKING:
    from trajstitch.stitching.improve import Improve


@dataclass(frozen=True, eq=False)
class Pairs:
    """The transitions of the graph's pairs; the original ones first, then the stitched ones."""

    action: Float  # [Q, A]
    reward: Float  # [Q]
    margin: Float  # [Q] of the edge; 0 for original pairs, like what follows
    spread: Float  # [Q] of the edge
    gain: Float  # [Q] value of the new target minus that of the old one
    error: Float  # [Q] landing error

    def extended(self, more: Pairs) -> Pairs:
        """Return these pairs followed by `more`."""
        names = [item.name for item in dataclasses.fields(self)]
        return Pairs(*(np.concatenate([getattr(self, name), getattr(more, name)]) for name in names))


class Accepted(NamedTuple):
    """The X trajectories that one iteration replaced, and what was compared: of the old ones and of the new."""

    trajectory: Int  # [X]
    total: NDArray[np.float64]  # [2, X] returns
    length: Int  # [2, X]
    terminal: Bool  # [2, X]
    value: NDArray[np.float64]  # [2, X] of the last states


@dataclass(frozen=True, eq=False)
class Current:
    """The current data between two iterations."""

    graph: Graph
    pairs: Pairs
    paths: Paths
    accepted: tuple[Accepted, ...] = ()  # one entry per iteration so far


Stage = Callable[[str, Any, Callable[[], Any]], Any]  # (name, settings, make) -> result of make(), perhaps stored


def just_make(name: str, key: Any, make: Callable[[], Any]) -> Any:
    """Run a stage without storing its result."""
    return make()


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything that stays the same in all iterations."""

    data: Dataset
    config: Improve
    edges: Edges
    seed: int
    stage: Stage
    tell: Callable[[str], Tell]


def accept(
    setup: Setup, current: Current, new: Paths, value: NDArray[np.float64]
) -> tuple[Current, dict[str, Any]]:
    """Replace the trajectories for which the new ones are better; return the data and the history's entry."""
    config, pairs, old = setup.config, current.pairs, current.paths
    before, after = total = old.sums(pairs.reward), new.sums(pairs.reward)
    if (ends := ends_of(setup, value)) is not None:
        before, after = (
            total + ends.worth(_last_rows(current.graph, paths), paths.terminal, length, total / length)
            for total, paths in ((before, old), (after, new))
            for length in [np.diff(paths.start)]
        )
    accepted = after > before + config.accept * np.abs(before)
    if config.max_changes is not None:
        accepted &= new.sums(np.arange(len(pairs.reward)) >= setup.data.transitions) <= config.max_changes
    entry = Accepted(
        np.flatnonzero(accepted),
        np.stack(total)[:, accepted],
        np.stack([np.diff(paths.start) for paths in (old, new)])[:, accepted],
        np.stack([old.terminal, new.terminal])[:, accepted],
        np.stack([value[_last_rows(current.graph, paths)] for paths in (old, new)])[:, accepted],
    )
    merged = dataclasses.replace(current, paths=_merge(old, new, accepted), accepted=(*current.accepted, entry))
    return merged, _entry(setup, merged, int(accepted.sum()))


def _last_rows(graph: Graph, paths: Paths) -> Int:
    return graph.target[paths.pair[paths.start[1:] - 1]]


def _entry(setup: Setup, current: Current, accepted: int) -> dict[str, Any]:
    """Return the history's entry for an iteration."""
    paths, data = current.paths, setup.data
    returns = paths.sums(current.pairs.reward)
    stitched = paths.pair[paths.pair >= data.transitions]
    return {
        "accepted": accepted,
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "steps": len(paths.pair),
        "stitched_steps": len(stitched),
        "seams": len(np.unique(stitched)),
        "repeated_states": count_revisits(current.graph.source[paths.pair], paths.start),
        "at_max_length": int((np.diff(paths.start) >= setup.config.horizon(data)).sum()),
        "cut_short": _cut_short(data, paths),
    }


def _cut_short(data: Dataset, paths: Paths) -> int:
    """Count the trajectories that became shorter than recorded without ending."""
    return int(((np.diff(paths.start) < data.length) & ~paths.terminal).sum())


def step_number(data: Dataset, source: Int, target: Int) -> Int:
    """Return a unique number for each step between two rows."""
    return source * len(data.obs) + target


def pairs_of(graph: Graph, made: Steps, owner: Int, edge: Int, value: NDArray[np.float64]) -> Pairs:
    """Return the steps made of edges as pairs, with what they gain."""
    gain = (value[graph.landing[edge]] - value[graph.target[owner]]).astype(np.float32)
    return Pairs(made.action, made.reward, made.margin, made.spread, gain, made.error)


def ends_of(setup: Setup, value: NDArray[np.float64]) -> Ends | None:
    """Return what cut ends are worth by these values, if they count."""
    config = setup.config
    return Ends(value, config.discount, config.horizon(setup.data)) if config.value_cut_ends else None


def _merge(old: Paths, new: Paths, accepted: NDArray[np.bool_]) -> Paths:
    """Replace the old trajectories by the accepted new ones."""
    chosen = [new if yes else old for yes in accepted]
    chunks = [paths.pair[paths.start[m] : paths.start[m + 1]] for m, paths in enumerate(chosen)]
    start = np.concatenate([[0], np.cumsum([len(chunk) for chunk in chunks])])
    return Paths(np.concatenate(chunks), start, np.where(accepted, new.terminal, old.terminal))


def original(data: Dataset, graph: Graph) -> Current:
    """Return the original data as the current data."""
    none = np.zeros(data.transitions, np.float32)
    pairs = Pairs(data.action, data.reward, none, none, none, none)
    return Current(graph, pairs, Paths(np.arange(data.transitions), data.start, data.terminal))


def to_dataset(data: Dataset, current: Current, before: NDArray[np.float64] | None = None) -> Dataset:
    """Return the current paths as a data set with its seams; `before` are their former returns."""
    graph, pairs, paths = current.graph, current.pairs, current.paths
    row = np.insert(graph.source[paths.pair], paths.start[1:], _last_rows(graph, paths))
    stitched = paths.pair >= data.transitions
    return Dataset(
        obs=data.obs[row],
        action=pairs.action[paths.pair],
        reward=pairs.reward[paths.pair],
        start=paths.start,
        terminal=paths.terminal,
        info={**data.info, "improved_from": data.fingerprint},
        seams=Seams(
            source=graph.source[paths.pair],
            target=graph.target[paths.pair],
            stitched=stitched,
            margin=pairs.margin[paths.pair],
            spread=pairs.spread[paths.pair],
            value_gain=pairs.gain[paths.pair],
            return_before=data.returns if before is None else before,
            landing_error=pairs.error[paths.pair],
        ),
    )
