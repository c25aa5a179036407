"""Graph: which states can follow which, by nearness and plausibility (paper, Candidate search).

Stitching never creates a state, so the nodes are the states of the data (rows of `obs`) and do not change. A
*pair* is a transition (source row, target row) of the original or improved data. An *edge* of a pair is another
target that its source may step to instead; p_i is a member of the dynamics ensemble:

    pair (s, s')     edges (s, ŝ')   with  ŝ' the successor of a state near s, or a state near s'   (the two balls)
                                     and   min_i log p_i(ŝ'|s) > logmeanexp_i log p_i(s'|s)         (plausible)

Neither condition depends on values, so the edges of a pair by recorded successors are found only once. An
iteration of stitching adds the edges of its new pairs; renewed.py says which edges the current data allow.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from trajstitch.blocks import TOGETHER, Mapper, in_process
from trajstitch.data import Dataset, Float, Int, Spread
from trajstitch.errors import InputError
from trajstitch.progress import Tell, silent
from trajstitch.stitching.neighbours.kdtree import Tree, all_nearest

T = TypeVar("T")
Candidates = Callable[[slice], NDArray[np.int32]]  # part of the pairs [B] -> rows [B, K], padded with -1
_BLOCK = 4096  # sources scored per call
_WIDE = 512  # candidates per line of a block
_LARGE = 300_000  # with at least this many states neighbours are dense, so fewer and nearer ones are used
# The paper's radius of a neighbourhood of raw states, by environment (its published code's).
PAPER_EPSILON = {"Hopper": 0.1, "HalfCheetah": 3.0, "Walker2d": 1.0}


@dataclass(frozen=True)
class GraphConfig:
    """Neighbourhood of a state."""

    metric: Literal["scaled", "raw"] = "scaled"  # Distances of states divided by their std, or of raw states.
    epsilon: float | None = None  # Radius of a neighbourhood; unless given, chosen by choose_epsilon.
    # At most this many neighbours, 0 for all; unless given 200, or 48 in large data.
    nearest: int | None = None
    # How epsilon is chosen: step, the median distance of one step, half of it in large data; or paper, the paper's
    # for the data's environment, which has one for Hopper (0.1), HalfCheetah (3) and Walker2d (1), of raw states.
    choose_epsilon: Literal["step", "paper"] = "step"

    def __post_init__(self) -> None:
        if self.metric not in ("scaled", "raw"):
            raise InputError(f"metric must be scaled or raw, not {self.metric!r}")
        if self.choose_epsilon not in ("step", "paper"):
            raise InputError(f"choose_epsilon must be step or paper, not {self.choose_epsilon!r}")
        if self.epsilon is not None and not self.epsilon > 0:
            raise InputError(f"epsilon must be above 0, not {self.epsilon:g}; leave it out to have it chosen")
        if self.nearest is not None and self.nearest < 0:
            raise InputError(f"nearest must be 0 (all) or more, not {self.nearest}")

    def given_epsilon(self, data: Dataset) -> float | None:
        """Return the epsilon that is given, or the paper's; None where it follows from the data's steps."""
        if self.epsilon is not None or self.choose_epsilon == "step":
            return self.epsilon
        env_id = str(data.info.get("env_id", ""))
        if (family := env_id.rsplit("-", 1)[0]) not in PAPER_EPSILON:
            raise InputError(
                f"the paper has an epsilon for {', '.join(PAPER_EPSILON)}, but the data's environment is "
                f"{env_id or 'not named'}; give --graph.epsilon, or --graph.choose-epsilon step to have it chosen"
            )
        return PAPER_EPSILON[family]


class DynamicsModel(Protocol):
    """The interface that the graph needs of a dynamics model."""

    def moments(self, obs: Any) -> tuple[Any, Any]:
        """Predict mean and std [E, B, S] of the states after obs [B, S], in raw units."""


@dataclass(frozen=True, eq=False)
class Graph:
    """Q pairs and their X plausible edges; pair q has edges begin[q] … begin[q+1]-1."""

    source: Int  # [Q] row of obs
    target: Int  # [Q] row of obs
    begin: Int  # [Q + 1]
    landing: Int  # [X] row of obs that the edge leads to
    margin: Float  # [X] min_i log p_i(landing|source) - logmeanexp_i log p_i(target|source), above 0
    spread: Float  # [X] disagreement of the members' means at the source, in units of their std
    candidates: int  # edges that were scored
    epsilon: float  # radius of a neighbourhood; of reachable edges, the landing error that is tolerated
    reward: Float | None = None  # [X] of reachable edges: what the model expects of the step


def build(data: Dataset, dynamics: DynamicsModel, config: GraphConfig, tell: Tell = silent) -> Graph:
    """Build the graph of the data's own transitions."""
    search = EdgeFinder(data, config)
    return search.extend(search.empty(), data.row, data.row + 1, dynamics, tell)


def grown(graph: Graph, source: Int, target: Int, count: Int, found: list[Any], scored: int) -> Graph:
    """Return the graph with pairs of `count` [B] edges each appended.

    `found` has the columns of the new edges in blocks: landing, margin, spread and, of reachable ones, reward.
    """
    if not len(source):
        return graph
    names = ("landing", "margin", "spread", "reward")[: len(found[0])]
    columns = dict(zip(names, zip(*found, strict=True), strict=True))
    found.clear()  # what is joined may be most of the memory
    joined: dict[str, Any] = {name: np.concatenate([getattr(graph, name), *columns.pop(name)]) for name in names}
    return replace(
        graph,
        source=np.concatenate([graph.source, source]),
        target=np.concatenate([graph.target, target]),
        begin=np.concatenate([graph.begin, graph.begin[-1] + np.cumsum(count)]),
        candidates=graph.candidates + scored,
        **joined,
    )


class EdgeFinder:
    """Finds the neighbours of states, and from them the edges of pairs.

    Neighbours are looked up many times (around a state, around its predecessor's successor, again in each
    iteration), so where their number is capped all are found once, as `near` [rows, K]; it may be given.
    """

    def __init__(
        self,
        data: Dataset,
        config: GraphConfig,
        tell: Tell = silent,
        near: NDArray[np.int32] | None = None,
        mapper: Mapper = in_process,
    ) -> None:
        self.data, self.tell, self._near, self.mapper = data, tell, near, mapper
        large = len(data.obs) >= _LARGE
        self.nearest = (48 if large else 200) if config.nearest is None else config.nearest
        self.spread = np.ones(data.obs_dim)
        if config.metric == "scaled":
            self.spread = Spread.of(data.obs).unit
        self.epsilon = config.given_epsilon(data) or typical_step(data, self.spread) * (0.5 if large else 1)
        if not self.epsilon > 0:
            raise InputError(
                "half of all steps do not change the state, so epsilon cannot be chosen; give --graph.epsilon"
            )
        self.successor = np.arange(1, len(data.obs) + 1, dtype=np.int32)
        self.successor[data.last_row] = -1  # the last state of a trajectory has none

    @cached_property
    def near(self) -> NDArray[np.int32] | None:
        """Nearest rows [rows, K] of each state, itself first, padded with -1; None without a cap."""
        if self._near is not None or not self.nearest:
            return self._near
        count = min(self.nearest + 1, len(self.data.obs))  # one more, because the state itself is among them
        return all_nearest(self._tree, count, self.epsilon, self.tell, self.mapper)

    @cached_property
    def _tree(self) -> Tree:
        return Tree(self.data.obs / self.spread)

    def empty(self) -> Graph:
        """Return a graph without pairs."""
        no, none = np.zeros(0, np.int64), np.zeros(0, np.float32)
        return Graph(no, no, np.zeros(1, np.int64), no, none, none, 0, self.epsilon)

    def extend(
        self, graph: Graph, source: Int, target: Int, dynamics: DynamicsModel, tell: Tell = silent
    ) -> Graph:
        """Return the graph with these pairs appended."""
        if len(source):
            _ = self.near  # found by this process, with tasks of their own
        found: list[Any] = []
        count = np.zeros(len(source), np.int64)
        scored = edges = 0
        for part, (columns, shown) in self.mapper(
            _edges_of, (self, source, target, dynamics), len(source), TOGETHER
        ):
            for number, *others in columns:
                count[part] += np.bincount(number, minlength=part.stop - part.start)
                found.append(tuple(others))
                edges += len(number)
            scored += shown
            tell(part.stop, len(source), f"{edges:,} edges")
        return grown(graph, source, target, count, found, scored)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a task of a cluster needs; where neighbours are known, no tree."""
        state = {**self.__dict__, "tell": silent, "mapper": in_process}
        if self.near is not None:
            state.pop("_tree", None)
        return state

    def score(
        self, source: Int, target: Int, candidates: Candidates, dynamics: DynamicsModel, tell: Tell = silent
    ) -> tuple[list[tuple[NDArray[Any], ...]], int]:
        """Return the plausible edges of these pairs, and how many candidates were scored.

        Edges come in blocks of columns: number of the pair, landing row, margin and spread.
        """
        obs = jnp.asarray(self.data.obs)
        found: list[tuple[NDArray[Any], ...]] = []
        scored = edges = 0
        for number, block in _one_behind(self._begin_blocks(obs, source, target, candidates, dynamics)):
            line, *columns = block.finish(obs)
            found.append((number[line], *columns))
            scored += int((block.shown >= 0).sum())
            edges += len(line)
            tell(int(number[-1]) + 1, len(source), f"{edges:,} edges")
        return found, scored

    def _begin_blocks(
        self, obs: Array, source: Int, target: Int, candidates: Candidates, dynamics: DynamicsModel
    ) -> Iterator[tuple[Int, Scored]]:
        """Yield the number of each line's pair, and the block of lines."""
        for a in range(0, len(source), _BLOCK):
            part = slice(a, min(a + _BLOCK, len(source)))
            line, shown = _narrow(candidates(part))
            for b in range(0, len(line), _BLOCK):
                number = a + line[b : b + _BLOCK]
                states = self.data.obs[np.resize(source[number], _BLOCK)]  # whole, so that one shape is compiled
                yield number, Scored.begin(obs, states, target[number], shown[b : b + _BLOCK], dynamics)

    def candidates(self, source: Int, target: Int) -> NDArray[np.int32]:
        """Return rows [B, K] that may follow each source instead of its target, each once, padded with -1."""
        near_source, near_target = self.neighbours(source), self.neighbours(target)
        after = np.where(near_source >= 0, self.successor[near_source], -1)
        return each_once([after, near_target], target)

    def neighbours(self, row: Int) -> NDArray[np.int32]:
        """Return the rows [B, K] within epsilon of each state, including itself, padded with -1."""
        return self._tree.within(row, self.epsilon) if self.near is None else self.near[row]

    def sees(self, row: Int, other: Int) -> NDArray[np.bool_]:
        """Return whether each of these rows [X] has the other [X] among its neighbours."""
        yes = np.zeros(len(row), bool)
        for a in range(0, len(row), _BLOCK):
            part = slice(a, a + _BLOCK)
            if self.near is None:
                yes[part] = self._tree.distance(row[part], other[part]) <= self.epsilon
            else:
                yes[part] = (self.near[row[part]] == other[part, None]).any(1)
        return yes

    def seers(self, row: Int) -> NDArray[np.bool_]:
        """Return which of all rows have at least one of these among their neighbours."""
        yes = np.zeros(len(self.data.obs) + 1, bool)  # the last entry stands for the padding, -1
        if self.near is None:  # then being near is mutual
            for a in range(0, len(row), _BLOCK):
                yes[self._tree.within(row[a : a + _BLOCK], self.epsilon)] = True
            return yes[:-1]
        seen = np.zeros_like(yes)
        seen[row] = True
        for a in range(0, len(self.near), _BLOCK):
            yes[a : a + len(self.near[a : a + _BLOCK])] = seen[self.near[a : a + _BLOCK]].any(1)
        return yes[:-1]


def _edges_of(
    shared: tuple[EdgeFinder, Int, Int, DynamicsModel], part: slice
) -> tuple[list[tuple[NDArray[Any], ...]], int]:
    """Return the edges of a part of the pairs, as `EdgeFinder.score` does."""
    finder, source, target, dynamics = shared
    source, target = source[part], target[part]
    return finder.score(source, target, lambda some: finder.candidates(source[some], target[some]), dynamics)


def each_once(rows: list[NDArray[np.int32]], *without: Int) -> NDArray[np.int32]:
    """Join rows [B, K] of candidates, each once and without those of `without` [B], padded with -1."""
    joined = np.sort(np.concatenate(rows, axis=1), axis=1)
    repeated = joined[:, 1:] == joined[:, :-1]
    for row in without:
        joined[joined == row[:, None]] = -1
    joined[:, 1:][repeated] = -1
    return joined


def _narrow(candidate: NDArray[np.int32]) -> tuple[Int, NDArray[np.int32]]:
    """Break lines [B, K] of very many candidates; return the number that each line had, and the lines.

    Without a cap on neighbours a few states have thousands, and a block would be as wide for all of them.
    """
    lines, columns = candidate.shape
    if columns <= _WIDE:
        return np.arange(lines), candidate
    line, column = np.nonzero(candidate >= 0)
    count = np.bincount(line, minlength=lines)
    rank = np.arange(len(line)) - np.repeat(np.cumsum(count) - count, count)
    pieces = np.maximum(-(-count // _WIDE), 1)
    first = np.cumsum(pieces) - pieces
    narrow = np.full((int(pieces.sum()), _WIDE), -1, np.int32)
    narrow[first[line] + rank // _WIDE, rank % _WIDE] = candidate[line, column]
    return np.repeat(np.arange(lines), pieces), narrow


def typical_step(data: Dataset, spread: NDArray[np.float64]) -> float:
    """Compute the median distance from a state to the next, each dimension divided by its `spread`."""
    return float(np.median(np.linalg.norm((data.obs[data.row + 1] - data.obs[data.row]) / spread, axis=1)))


def _one_behind(items: Iterator[T]) -> Iterator[T]:
    """Yield each item after the next was started: the device computes that while the host reads this one."""
    before = deque(itertools.islice(items, 1))
    for item in items:
        before.append(item)
        yield before.popleft()
    yield from before


class Moments(NamedTuple):
    """Predictions of the dynamics for a block of B sources."""

    mean: Array  # [E, B, S]
    std: Array  # [E, B, S]


class Scored(NamedTuple):
    """A block of pairs scored by the first ensemble member; the device may still be computing its arrays."""

    moments: Moments
    shown: NDArray[np.int32]  # [B, K] candidates
    usual: Array  # [B] log density of the old target
    spread: Array  # [B] disagreement of the members' means
    passed: Array  # [B, K] whether the first member finds the candidate plausible
    sound: Array  # [3] whether the mean is finite, the std is finite, and the std is above 0

    @staticmethod
    def begin(
        obs: Array, source: Float, target: Int, candidate: NDArray[np.int32], dynamics: DynamicsModel
    ) -> Scored:
        """Start scoring sources [B, S] on the device; InputError where a caller's model returns other shapes."""
        output = Moments(*dynamics.moments(source))
        for name, array in output._asdict().items():
            if array.ndim != 3 or array.shape != (len(output.mean), *source.shape) or not len(array):
                want = f"[members, {source.shape[0]}, {source.shape[1]}]"
                raise InputError(f"the dynamics model's {name} has shape {array.shape}, not {want}")
        moments = Moments(*map(jnp.asarray, output))
        rows, columns = candidate.shape
        shown = np.full((_BLOCK, -(-columns // 16) * 16), -1, np.int32)  # padded, so that few shapes are compiled
        shown[:rows, :columns] = candidate
        return Scored(moments, shown, *_first_member(obs, moments, np.resize(target, _BLOCK), shown))

    def finish(self, obs: Array) -> tuple[NDArray[Any], ...]:
        """Return the plausible edges: index of the line in the block, landing row, margin and spread.

        Every member must find an edge plausible, so the others need not score what the first rejects: nearly all.
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
    """Compute the last four fields of Scored."""
    mean, std = moments
    usual = jax.nn.logsumexp(_log_density(obs[target], mean, std), axis=0) - jnp.log(len(mean))
    spread = jnp.sqrt(jnp.mean(jnp.var(mean, 0) / jnp.mean(std**2, 0), -1))
    density = _log_density(obs[candidate], mean[0][:, None], std[0][:, None])
    sound = jnp.stack([jnp.isfinite(mean).all(), jnp.isfinite(std).all(), (std > 0).all()])
    return usual, spread, (candidate >= 0) & (density > usual[:, None]), sound


@jax.jit
def _margins(obs: Array, moments: Moments, usual: Array, pair: Array, landing: Array) -> Array:
    """Compute min_i log p_i(landing|source) - usual for edges [X] of a block's pairs."""
    each = _log_density(obs[landing], moments.mean[:, pair], moments.std[:, pair])
    return jnp.min(each, axis=0) - usual[pair]


def _log_density(goal: Array, mean: Array, std: Array) -> Array:
    """Compute log N(goal; mean, std²) over the last axis, without the constant term."""
    return -0.5 * jnp.sum(((goal - mean) / std) ** 2, -1) - jnp.sum(jnp.log(std), -1)
