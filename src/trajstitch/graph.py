"""Graph: which states can follow which; neighbours, and the plausibility of each edge (paper, Candidate search).

TS never makes a state, so the states of the data (rows of `obs`) are nodes that stay. A *pair* is a transition
(source row, target row) of the original or of improved data. An *edge* of a pair is another target its source may
step to instead:

    pair (s, s')     edges (s, ŝ')   with  ŝ' the successor of a state near s, or a state near s'   (the two balls)
                                     and   min_i log p_i(ŝ'|s) > logmeanexp_i log p_i(s'|s)         (plausible)

Neither depends on values, so edges of a pair are found once. What an iteration of stitching adds are the
edges of the pairs it has made.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from trajstitch.data import Dataset, Float, Int
from trajstitch.errors import InputError
from trajstitch.neighbours import Tree, all_nearest
from trajstitch.progress import Tell, silent

T = TypeVar("T")
_BLOCK = 4096  # sources scored together
_LARGE = 300_000  # states from which on neighbours are many and near


@dataclass(frozen=True)
class GraphConfig:
    """Neighbourhood of a state."""

    metric: Literal["scaled", "raw"] = "scaled"  # distances of states divided by their std, or as they are
    epsilon: float | None = (
        None  # radius of the balls; the median one-step distance unless given, half of it in large data
    )
    nearest: int | None = (
        None  # at most this many neighbours in a ball, 0: all; 200 unless given, 48 in large data
    )

    def __post_init__(self) -> None:
        if self.metric not in ("scaled", "raw"):
            raise InputError(f"metric must be scaled or raw, not {self.metric!r}")
        if self.epsilon is not None and not self.epsilon > 0:
            raise InputError(f"epsilon must be above 0, not {self.epsilon:g}; leave it out to have it chosen")
        if self.nearest is not None and self.nearest < 0:
            raise InputError(f"nearest must be 0 (all) or more, not {self.nearest}")


class DynamicsModel(Protocol):
    """What the graph needs of a dynamics model."""

    def moments(self, obs: Any) -> tuple[Any, Any]:
        """Mean and std [E, B, S] of the states after obs [B, S], raw units."""


@dataclass(frozen=True, eq=False)
class Graph:
    """Q pairs and their X plausible edges; pair q has edges begin[q] … begin[q+1]-1."""

    source: Int  # [Q] row of obs
    target: Int  # [Q] row of obs
    begin: Int  # [Q + 1]
    landing: Int  # [X] row of obs an edge leads to
    margin: Float  # [X] min_i log p_i(landing|source) - logmeanexp_i log p_i(target|source), above 0
    spread: Float  # [X] how far the members' means are apart at the source, in their own std
    candidates: int  # edges that were looked at
    epsilon: float


def build(data: Dataset, dynamics: DynamicsModel, config: GraphConfig, tell: Tell = silent) -> Graph:
    """The graph of the data's own transitions."""
    search = Search(data, config)
    return search.extend(search.empty(), data.row, data.row + 1, dynamics, tell)


class Search:
    """Neighbours of states, and from them edges of pairs.

    A neighbour is looked up many times (around a state, around its predecessor's successor, again in each
    iteration), so with a cap on their number all are found once, `near` [rows, K]; it may be given.
    """

    def __init__(
        self, data: Dataset, config: GraphConfig, tell: Tell = silent, near: NDArray[np.int32] | None = None
    ) -> None:
        self.data, self.tell, self._near = data, tell, near
        large = len(data.obs) >= _LARGE
        self.nearest = (48 if large else 200) if config.nearest is None else config.nearest
        self.spread = np.ones(data.obs_dim)
        if config.metric == "scaled":
            self.spread = np.maximum(data.obs.std(0, dtype=np.float64), 1e-6)
        self.epsilon = config.epsilon or _typical_step(data, self.spread) * (0.5 if large else 1)
        if not self.epsilon > 0:
            raise InputError(
                "half of all steps do not change the state, so epsilon cannot be chosen; give --graph.epsilon"
            )
        self.successor = np.arange(1, len(data.obs) + 1, dtype=np.int32)
        self.successor[data.last_row] = -1  # a last state has none

    @cached_property
    def near(self) -> NDArray[np.int32] | None:
        """Rows [rows, K] of each state's nearest, itself first, padded with -1; None without a cap."""
        if self._near is not None or not self.nearest:
            return self._near
        count = min(self.nearest + 1, len(self.data.obs))  # the state itself is one of them
        return all_nearest(self._tree, count, self.epsilon, self.tell)

    @cached_property
    def _tree(self) -> Tree:
        return Tree(self.data.obs / self.spread)

    def empty(self) -> Graph:
        """No pair yet."""
        no, none = np.zeros(0, np.int64), np.zeros(0, np.float32)
        return Graph(no, no, np.zeros(1, np.int64), no, none, none, 0, self.epsilon)

    def extend(
        self, graph: Graph, source: Int, target: Int, dynamics: DynamicsModel, tell: Tell = silent
    ) -> Graph:
        """The graph with these pairs behind its own."""
        obs = jnp.asarray(self.data.obs)
        found: list[tuple[NDArray[Any], ...]] = []
        looked = edges = 0
        for a, block in _one_behind(self._begin_blocks(obs, source, target, dynamics)):
            pair, *columns = block.finish(obs)
            found.append((a + pair, *columns))
            looked += int((block.shown >= 0).sum())
            edges += len(pair)
            tell(min(a + _BLOCK, len(source)), len(source), f"{edges:,} edges")
        if not found:
            return graph
        pair, landing, margin, spread = (np.concatenate(columns) for columns in zip(*found, strict=True))
        count = np.bincount(pair, minlength=len(source))
        return replace(
            graph,
            source=np.concatenate([graph.source, source]),
            target=np.concatenate([graph.target, target]),
            begin=np.concatenate([graph.begin, graph.begin[-1] + np.cumsum(count)]),
            landing=np.concatenate([graph.landing, landing]),
            margin=np.concatenate([graph.margin, margin]),
            spread=np.concatenate([graph.spread, spread]),
            candidates=graph.candidates + looked,
        )

    def _begin_blocks(
        self, obs: Array, source: Int, target: Int, dynamics: DynamicsModel
    ) -> Iterator[tuple[int, Scored]]:
        """Where each block of pairs begins, and the block."""
        for a in range(0, len(source), _BLOCK):
            part, goal = source[a : a + _BLOCK], target[a : a + _BLOCK]
            states = self.data.obs[np.resize(part, _BLOCK)]  # a whole block always, so that one shape is compiled
            yield a, Scored.begin(obs, states, goal, self.candidates(part, goal), dynamics)

    def candidates(self, source: Int, target: Int) -> NDArray[np.int32]:
        """Rows [B, K] that may follow each source instead of its target, padded with -1, each once."""
        beside, around = self.neighbours(source), self.neighbours(target)
        after = np.where(beside >= 0, self.successor[beside], -1)
        both = np.sort(np.concatenate([after, around], axis=1), axis=1)
        twice = both[:, 1:] == both[:, :-1]
        both[both == target[:, None]] = -1
        both[:, 1:][twice] = -1
        return both

    def neighbours(self, row: Int) -> NDArray[np.int32]:
        """Rows [B, K] within epsilon of each state, the state itself too, padded with -1."""
        return self._tree.within(row, self.epsilon) if self.near is None else self.near[row]


def _typical_step(data: Dataset, spread: NDArray[np.float64]) -> float:
    """The median distance from a state to the next."""
    return float(np.median(np.linalg.norm((data.obs[data.row + 1] - data.obs[data.row]) / spread, axis=1)))


def _one_behind(items: Iterator[T]) -> Iterator[T]:
    """Each item once the next has been begun: a device works on that while the host takes this one in."""
    before = deque(itertools.islice(items, 1))
    for item in items:
        before.append(item)
        yield before.popleft()
    yield from before


class Moments(NamedTuple):
    """What the dynamics say of a block of B sources."""

    mean: Array  # [E, B, S]
    std: Array  # [E, B, S]


class Scored(NamedTuple):
    """A block of pairs as its first member has scored it; every array may still be in the making."""

    moments: Moments
    shown: NDArray[np.int32]  # [B, K] candidates
    usual: Array  # [B] log density of the old target
    spread: Array  # [B]
    passed: Array  # [B, K] candidates the first member finds plausible
    sound: Array  # [3] whether the mean is finite, the std is, and the std is above 0

    @staticmethod
    def begin(
        obs: Array, source: Float, target: Int, candidate: NDArray[np.int32], dynamics: DynamicsModel
    ) -> Scored:
        """Set the device to work on sources [B, S]; InputError where a caller's model gives other shapes."""
        given = Moments(*dynamics.moments(source))
        for name, array in given._asdict().items():
            if array.ndim != 3 or array.shape != (len(given.mean), *source.shape) or not len(array):
                want = f"[members, {source.shape[0]}, {source.shape[1]}]"
                raise InputError(f"the dynamics model's {name} has shape {array.shape}, not {want}")
        moments = Moments(*map(jnp.asarray, given))
        rows, columns = candidate.shape
        shown = np.full((_BLOCK, -(-columns // 16) * 16), -1, np.int32)  # padded, so that few shapes are compiled
        shown[:rows, :columns] = candidate
        return Scored(moments, shown, *_first_member(obs, moments, np.resize(target, _BLOCK), shown))

    def finish(self, obs: Array) -> tuple[NDArray[Any], ...]:
        """Plausible edges: number of the pair in the block, landing row, margin and spread.

        Every member must find an edge plausible, so what the first refuses, nearly all, the others do not see.
        """
        complaints = (
            "mean is not finite for some states; look at its training",
            "std is not finite for some states; look at its training",
            "std must be above 0 everywhere",
        )
        for sound, complaint in zip(np.asarray(self.sound), complaints, strict=True):
            if not sound:
                raise InputError(f"the dynamics model's {complaint}")
        pair, column = np.nonzero(np.asarray(self.passed))
        landing = self.shown[pair, column]
        margin = np.zeros(len(pair), np.float32)
        for a in range(0, len(pair), _BLOCK):
            part = np.resize(pair[a : a + _BLOCK], _BLOCK), np.resize(landing[a : a + _BLOCK], _BLOCK)
            some = np.asarray(_margins(obs, self.moments, self.usual, *part))
            margin[a : a + _BLOCK] = some[: len(pair) - a]
        good = margin > 0
        return pair[good], landing[good].astype(np.int64), margin[good], np.asarray(self.spread)[pair[good]]


@jax.jit
def _first_member(
    obs: Array, moments: Moments, target: Array, candidate: Array
) -> tuple[Array, Array, Array, Array]:
    """The last four fields of Scored."""
    mean, std = moments
    usual = jax.nn.logsumexp(_log_density(obs[target], mean, std), axis=0) - jnp.log(len(mean))
    spread = jnp.sqrt(jnp.mean(jnp.var(mean, 0) / jnp.mean(std**2, 0), -1))
    density = _log_density(obs[candidate], mean[0][:, None], std[0][:, None])
    sound = jnp.stack([jnp.isfinite(mean).all(), jnp.isfinite(std).all(), (std > 0).all()])
    return usual, spread, (candidate >= 0) & (density > usual[:, None]), sound


@jax.jit
def _margins(obs: Array, moments: Moments, usual: Array, pair: Array, landing: Array) -> Array:
    """min_i log p_i(landing|source) - usual, for edges [X] of a block's pairs."""
    each = _log_density(obs[landing], moments.mean[:, pair], moments.std[:, pair])
    return jnp.min(each, axis=0) - usual[pair]


def _log_density(goal: Array, mean: Array, std: Array) -> Array:
    """log N(goal; mean, std²) over the last axis, without its constant."""
    return -0.5 * jnp.sum(((goal - mean) / std) ** 2, -1) - jnp.sum(jnp.log(std), -1)
