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

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from trajstitch.data import Dataset, Float, Int
from trajstitch.errors import InputError
from trajstitch.progress import Tell, silent

_BLOCK = 4096  # sources scored together
_QUERIES = 32768  # states whose neighbours are looked for together
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
        self.data = data
        large = len(data.obs) >= _LARGE
        self.nearest = (48 if large else 200) if config.nearest is None else config.nearest
        spread = np.maximum(data.obs.std(0, dtype=np.float64), 1e-6) if config.metric == "scaled" else np.ones(1)
        self.points = data.obs / spread.astype(np.float32)
        step = np.linalg.norm(self.points[data.row + 1] - self.points[data.row], axis=1)
        self.epsilon = config.epsilon or float(np.median(step)) * (0.5 if large else 1)
        if not self.epsilon > 0:
            raise InputError(
                "half of all steps do not change the state, so epsilon cannot be chosen; give --graph.epsilon"
            )
        self.tree = cKDTree(self.points)
        self.successor = np.arange(1, len(data.obs) + 1)
        self.successor[data.last_row] = -1  # a last state has none
        self.near = self._all_nearest(tell) if near is None and self.nearest else near

    def empty(self) -> Graph:
        """No pair yet."""
        no, none = np.zeros(0, np.int64), np.zeros(0, np.float32)
        return Graph(no, no, np.zeros(1, np.int64), no, none, none, 0, self.epsilon)

    def extend(
        self, graph: Graph, source: Int, target: Int, dynamics: DynamicsModel, tell: Tell = silent
    ) -> Graph:
        """The graph with these pairs behind its own."""
        score = _scorer(self.data, dynamics)
        found: list[tuple[NDArray[Any], ...]] = []
        looked = 0
        for a in range(0, len(source), _BLOCK):
            part, goal = source[a : a + _BLOCK], target[a : a + _BLOCK]
            candidate = self.candidates(part, goal)
            looked += int((candidate >= 0).sum())
            margin, spread = score(part, goal, candidate)
            pair, column = np.nonzero((candidate >= 0) & (margin > 0))
            found.append((a + pair, candidate[pair, column], margin[pair, column], spread[pair]))
            tell(min(a + _BLOCK, len(source)), len(source), f"{sum(len(f[0]) for f in found):,} edges")
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
            margin=np.concatenate([graph.margin, margin.astype(np.float32)]),
            spread=np.concatenate([graph.spread, spread.astype(np.float32)]),
            candidates=graph.candidates + looked,
        )

    def candidates(self, source: Int, target: Int) -> Int:
        """Rows [B, K] that may follow each source instead of its target, padded with -1, each once."""
        near = self.neighbours(np.concatenate([source, target]))
        beside, around = near[: len(source)], near[len(source) :]
        after = np.where(beside >= 0, self.successor[beside], -1)
        both = np.sort(np.concatenate([after, around], axis=1), axis=1)
        twice = np.concatenate([np.zeros((len(both), 1), bool), both[:, 1:] == both[:, :-1]], axis=1)
        return np.where(twice | (both == target[:, None]), -1, both)

    def neighbours(self, row: Int) -> Int:
        """Rows [B, K] within epsilon of each state, the state itself too, padded with -1."""
        if self.near is not None:
            return self.near[row].astype(np.int64)
        balls = self.tree.query_ball_point(self.points[row], self.epsilon, workers=-1, return_sorted=True)
        padded = np.full((len(row), max(map(len, balls))), -1)
        for line, ball in zip(padded, balls, strict=True):
            line[: len(ball)] = ball
        return padded

    def _all_nearest(self, tell: Tell) -> NDArray[np.int32]:
        rows = len(self.points)
        count = min(self.nearest + 1, rows)  # the state itself is one of them
        found = np.empty((rows, count), np.int32)
        for a in range(0, rows, _QUERIES):
            _, near = self.tree.query(
                self.points[a : a + _QUERIES],
                np.arange(1, count + 1),
                distance_upper_bound=self.epsilon,
                workers=-1,
            )
            found[a : a + _QUERIES] = np.where(near < rows, near, -1)
            tell(min(a + _QUERIES, rows), rows, "states' neighbours")
        return found


def _scorer(
    data: Dataset, dynamics: DynamicsModel
) -> Callable[[Int, Int, Int], tuple[NDArray[Any], NDArray[Any]]]:
    """Margins [B, K] of candidates and spreads [B] of sources; shapes are padded so that few are compiled."""

    def score(source: Int, target: Int, candidate: Int) -> tuple[NDArray[Any], NDArray[Any]]:
        rows, columns = candidate.shape
        obs = data.obs[np.resize(source, _BLOCK)]
        goal = np.full((_BLOCK, 1 + -(-columns // 32) * 32), -1)
        goal[:rows, 0], goal[:rows, 1 : 1 + columns] = target, candidate
        mean, std = dynamics.moments(obs)
        _check_moments(mean, std, obs.shape)
        margin, spread = _margins(jnp.asarray(mean), jnp.asarray(std), jnp.asarray(data.obs[goal]))
        return np.asarray(margin)[:rows, :columns], np.asarray(spread)[:rows]

    return score


@jax.jit
def _margins(mean: Array, std: Array, goal: Array) -> tuple[Array, Array]:
    """goal [B, 1+K, S]: the target first, then candidates."""

    def log_density(member: tuple[Array, Array]) -> Array:
        centre, width = member
        z = (goal - centre[:, None]) / width[:, None]
        return -0.5 * jnp.sum(z**2, -1) - jnp.sum(jnp.log(width), -1)[:, None]

    each = jax.lax.map(log_density, (mean, std))  # [E, B, 1+K], a member at a time to save memory
    usual = jax.nn.logsumexp(each[:, :, :1], axis=0) - jnp.log(len(mean))
    apart = jnp.sqrt(jnp.mean(jnp.var(mean, 0) / jnp.mean(std**2, 0), -1))
    return jnp.min(each[:, :, 1:], axis=0) - usual, apart


def _check_moments(mean: Any, std: Any, shape: tuple[int, ...]) -> None:
    for name, array in (("mean", mean), ("std", std)):
        if array.ndim != 3 or array.shape != (len(mean), *shape) or not len(array):
            raise InputError(
                f"the dynamics model's {name} has shape {array.shape}, not [members, {shape[0]}, {shape[1]}]"
            )
        if not np.isfinite(np.asarray(array)).all():
            raise InputError(f"the dynamics model's {name} is not finite for some states; look at its training")
    if not (np.asarray(std) > 0).all():
        raise InputError("the dynamics model's std must be above 0 everywhere")
