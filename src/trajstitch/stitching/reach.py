"""Reach: which states a step can lead to, with which action, and how far off it lands.

An edge (s, ŝ') is *reachable* if a learned p(s', r | s, a) knows an action that leads from s to ŝ':

    a* = argmin_a |f(s, a) - ŝ'|                             f: the mean of the ensemble
    landing error = (mean_i |f_i(s, a*) - ŝ'|²)^½ / step     f_i: its members; step: the typical distance of a step

The landing error thus counts both how far the action leads from ŝ' and how much the members disagree about it. An
edge is kept where it is below a tolerance, which follows from the same error of recorded steps.

f is linearised once per state, around the recorded action (differences over a tenth of the action range). That
gives the action for every candidate and rules most candidates out; of the others it *promises* a landing error and
a reward. These are tried in the ensemble itself, all of them or, for a plan, those that it takes (optimal.py), and
once more where they miss and the linear model promises that a correction helps. It is Gauss-Newton with one
Jacobian for all candidates of a state.

Candidates must spread. In dense data the k nearest states of a state are all in one spot, and a choice among them
has no direction. So landing states are thinned to a net, one state for every cell of a grid, and the candidates of
a state are the net's states near it and near its successor. States in which an episode really ended are always
landing states, because values come from them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from trajstitch.blocks import TOGETHER, Mapper, in_process, parts
from trajstitch.data import Dataset, Float, Int, Spread
from trajstitch.errors import InputError
from trajstitch.progress import Tell, silent
from trajstitch.stitching.graph import Graph, each_once, grown, typical_step
from trajstitch.stitching.neighbours.kdtree import Tree, nearest_to

T = TypeVar("T")
_BLOCK = 4096  # states linearised per call
_TRIES = 4096  # candidates tried in the ensemble per call
_FEW = 256  # or at most this many of either
_SAMPLE = 16384  # recorded steps that the tolerance follows from
_SHIFT = 0.1  # of the action range, over which differences are taken
_RIDGE = 1e-4  # keeps the action of a state that an action hardly moves near the recorded one
_TOLERANCES = (0.05, 0.4)  # least and largest tolerance unless one is given


@dataclass(frozen=True)
class ReachConfig:
    """Reachable states."""

    # Landing states are thinned to one for each cell of this size, in typical steps; 0: all states.
    net: float = 0.4
    radius: float = 1.6  # Candidates are within this many typical steps of a state or of its successor.
    nearest: int = 48  # At most this many candidates around each of the two.
    # A landing error below this many typical steps is accepted; unless given, nine of ten recorded steps have
    # less than half of it, but it is at least 0.05 and at most 0.4.
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if not self.net >= 0 or not self.radius > 0 or self.nearest < 1:
            raise InputError("net must not be below 0, radius above 0 and nearest at least 1")
        if self.tolerance is not None and not self.tolerance > 0:
            raise InputError(f"tolerance must be above 0, not {self.tolerance:g}; leave it out to have it chosen")


# How many edges each pair of a block has, the columns of these, and how many candidates there were.
Found = tuple[Int, tuple[NDArray[Any], ...], int]


class WorldModel(Protocol):
    """A model of what an action does."""

    def steps(self, obs: Any, action: Any) -> tuple[Any, Any]:
        """Predict next states [E, B, S] and rewards [E, B] of actions [B, A] in states [B, S], in raw units."""


class Aim(NamedTuple):
    """Actions for edges, and what the ensemble says of them."""

    action: Float  # [X, A]
    reward: Float  # [X]
    error: Float  # [X] landing error, in typical steps
    spread: Float  # [X] its part that is disagreement of the members


class ReachFinder:
    """Finds the reachable states of states.

    Distances are of states divided by their std, in units of the median distance of a recorded step.
    """

    def __init__(
        self,
        data: Dataset,
        model: WorldModel,
        config: ReachConfig,
        tell: Tell = silent,
        mapper: Mapper = in_process,
    ) -> None:
        self.data, self.model, self.config, self.tell, self.mapper = data, model, config, tell, mapper
        states = Spread.of(data.obs)
        spread = np.where(states.varies, states.std, np.inf)  # a constant column counts in no distance
        step = typical_step(data, spread)
        if not step > 0:
            raise InputError("half of all steps do not change the state, so a typical step is not known")
        self.unit = (step * spread).astype(np.float32)  # [S]
        self.place = data.obs / self.unit  # [rows, S], states in typical steps
        self.box = jnp.asarray(data.action.min(0)), jnp.asarray(data.action.max(0))
        last = np.searchsorted(data.row, np.arange(len(data.obs)), side="right") - 1
        self.recorded = data.action[last]  # [rows, A]; a last state borrows the action that led to it
        self.usual = self._usual_error()
        self.tolerance = config.tolerance or float(np.clip(2 * self.usual, *_TOLERANCES))

    def _usual_error(self) -> float:
        """Return the landing error that nine of ten recorded steps stay below."""
        some = np.random.default_rng(0).permutation(self.data.transitions)[:_SAMPLE]
        row = np.resize(self.data.row[some], _SAMPLE)
        error = []
        for part in parts(len(row), _TRIES):
            some = np.resize(row[part], _TRIES)
            outcome = self._outcome(some, self.recorded[some], some + 1)
            if not np.isfinite(outcome.error + outcome.reward).all():
                raise InputError("the world model's steps are not finite for some states; look at its training")
            error.append(outcome.error[: part.stop - part.start])
        return float(np.quantile(np.concatenate(error), 0.9))

    @cached_property
    def net(self) -> Int:
        """The landing states, as rows."""
        data = self.data
        if not self.config.net:
            return np.arange(len(data.obs))
        return np.union1d(one_per_cell(self.place, self.config.net), data.last_row[data.terminal])

    @cached_property
    def near(self) -> NDArray[np.int32]:
        """The landing states [rows, K] nearest to each state, padded with -1."""
        count = min(self.config.nearest, len(self.net))
        found = nearest_to(self._tree, self.place, count, self.config.radius, self.tell, self.mapper)
        row = np.append(self.net, -1).astype(np.int32)
        for part in parts(len(found), _BLOCK):  # in place: it is the largest array
            found[part] = row[found[part]]
        return found

    @cached_property
    def around(self) -> tuple[NDArray[np.int32], Float]:
        """The landing states [net, 8] nearest to each landing state, and their distances in typical steps."""
        count = min(9, len(self.net))
        near = np.full((len(self.net), count), -1, np.int32)
        near[:, : self.near.shape[1]] = self.near[self.net, :count]
        far = np.flatnonzero(near[:, -1] < 0)  # some of the nearest are beyond the radius
        near[far] = self.net[nearest_to(self._tree, self.place[self.net[far]], count, np.inf)]
        near = near[:, 1:]  # without itself
        distance = np.empty(near.shape, np.float32)
        for part in parts(len(near), _BLOCK):
            away = self.place[near[part]] - self.place[self.net[part]][:, None]
            distance[part] = np.linalg.norm(away, axis=2)
        return near, distance

    @cached_property
    def _tree(self) -> Tree:
        return Tree(self.place[self.net].astype(np.float64))

    def candidates(self, source: Int, target: Int) -> NDArray[np.int32]:
        """Return landing states [B, K] near each source and its target (-1: it has none), each once, or -1."""
        after = np.where((target >= 0)[:, None], self.near[target], -1)
        return each_once([self.near[source], after], source, target)

    def empty(self) -> Graph:
        """Return a graph without pairs."""
        no, none = np.zeros(0, np.int64), np.zeros(0, np.float32)
        return Graph(no, no, np.zeros(1, np.int64), no.astype(np.int32), none, none, 0, self.tolerance, none)

    def extend(self, graph: Graph, source: Int, target: Int, tell: Tell = silent, *, tried: bool = True) -> Graph:
        """Return the graph with these pairs appended; a target of -1 means that no step was recorded.

        Edges that are not tried are what the linear model promises.
        """
        if len(source):
            _ = self.near  # found before several threads or tasks ask for it
        found: list[Any] = []
        scored = edges = 0
        count = np.zeros(len(source), np.int64)
        for part, blocks in self.mapper(_edges_of, (self, source, target, tried), len(source), TOGETHER):
            count[part] = np.concatenate([many for many, _, _ in blocks])
            found += [columns for _, columns, _ in blocks]
            scored += sum(shown for _, _, shown in blocks)
            edges += sum(len(columns[0]) for _, columns, _ in blocks)
            tell(part.stop, len(source), f"{edges:,} edges")
        return grown(graph, source, target, count, found, scored)

    def blocks(self, source: Int, target: Int, tried: bool) -> list[Found]:
        """Return the edges of these pairs, block by block."""
        return self._by_block(lambda part: self._edges(source[part], target[part], tried), len(source))

    def _by_block(self, make: Callable[[slice], T], length: int) -> list[T]:
        with ThreadPoolExecutor(self._threads) as pool:
            return list(pool.map(make, parts(length, _BLOCK)))

    def __getstate__(self) -> dict[str, Any]:
        """Return what a task of a cluster needs: no tree, as neighbours are known."""
        state = {**self.__dict__, "tell": silent, "mapper": in_process}
        state.pop("_tree", None)
        return state

    @property
    def _threads(self) -> int:
        """Blocks at a time; XLA computes most of one on one core, and a GPU waits for what the host prepares.

        Only our own models surely stand it.
        """
        return os.cpu_count() or 1 if isinstance(self.model, eqx.Module) else 1

    def _edges(self, source: Int, target: Int, tried: bool) -> Found:
        """Return the edges of a block of pairs."""
        shown, line = self.candidates(source, target), self._line(source)
        pair, column, error, reward = self._promised(line, shown)
        landing, spread = shown[pair, column], np.sqrt(line.variance)[pair]
        if tried:
            _, reward, error, spread = self._aim(line, source, pair, landing)
        good = error < self.tolerance
        columns = landing[good], self.tolerance - error[good], spread[good], reward[good]
        return np.bincount(pair[good], minlength=len(shown)), columns, int((shown >= 0).sum())

    # -- aiming ------------------------------------------------------------------------------------------------

    def aim(self, source: Int, landing: Int) -> Aim:
        """Return the actions that lead from the sources to the landings, both rows [X]."""
        order = np.argsort(source, kind="stable")
        rows, pair = np.unique(source[order], return_inverse=True)

        def aim(part: slice) -> Aim:
            edges = slice(*np.searchsorted(pair, [part.start, part.stop]))
            return self._aim(self._line(rows[part]), rows[part], pair[edges] - part.start, landing[order[edges]])

        found = [_no_aim(self.data.action_dim), *self._by_block(aim, len(rows))]
        back = np.argsort(order)
        return Aim(*(np.concatenate(column)[back] for column in zip(*found, strict=True)))

    def _line(self, row: Int) -> Line:
        """Linearise the model around the recorded actions of a block of rows."""
        row = np.resize(row, _whole(len(row), _BLOCK))
        action, (low, high) = self.recorded[row], map(np.asarray, self.box)
        # Differences are taken towards the farther end of the range, so that actions stay within it.
        shift = np.where(action > (low + high) / 2, -_SHIFT, _SHIFT) * (high - low)
        shift = shift.astype(np.float32)
        moved = action + np.eye(len(low), dtype=np.float32)[:, None] * shift
        first, *others = (self._predict(row, one) for one in (action, *moved))
        mean, reward = (jnp.stack([one[k].mean(0) for one in (first, *others)]) for k in (0, 1))
        # A constant action is not moved: its slope is 0, so that no part of the change is left to it.
        return _linearised(mean, reward, _variance(first[0]), action, np.where(high > low, shift, np.float32(1)))

    def _promised(self, line: Line, shown: NDArray[np.int32]) -> tuple[Int, Int, Float, Float]:
        """Return which of the candidates [B, K] the linear model reaches within the tolerance.

        These are pair, column, and the landing error and the reward that it expects.
        """
        rows, columns = shown.shape
        padded = np.full((len(line.mean), -(-columns // 16) * 16), -1, np.int32)  # so that few shapes are compiled
        padded[:rows, :columns] = shown
        error, reward = map(np.asarray, _promises(line, self.place[padded], self.box))
        pair, column = np.nonzero((padded >= 0) & (error < self.tolerance))
        return pair, column, error[pair, column], reward[pair, column]

    def _aim(self, line: Line, source: Int, pair: Int, landing: NDArray[Any]) -> Aim:
        """Return the aims of edges [X] of a block; `pair` [X] is the place of their source in the block."""
        best = self._try(line, source, pair, landing, None)
        again = np.flatnonzero(best.error >= self.tolerance)
        missed = Outcome(*(column[again] for column in best))
        again = again[self._correctable(line, missed, pair[again], landing[again])]
        if len(again):
            tried = best.action[again], best.mean[again]
            other = self._try(line, source, pair[again], landing[again], tried)
            better = other.error < best.error[again]
            for new, old in zip(other, best, strict=True):
                old[again[better]] = new[better]
        return Aim(*best[:4])

    def _correctable(self, line: Line, tried: Outcome, pair: Int, landing: NDArray[Any]) -> NDArray[np.bool_]:
        """Whether the linear model reaches the goals [X] within the tolerance from where the tried actions led."""
        away = self.place[landing] - tried.mean
        change = np.einsum("xas,xs->xa", np.asarray(line.inverse)[pair], away)
        change = np.clip(tried.action + change, *map(np.asarray, self.box)) - tried.action
        left = away - np.einsum("xsa,xa->xs", np.asarray(line.slope)[pair], change)
        near: NDArray[np.bool_] = np.square(left).sum(1) + tried.spread**2 < self.tolerance**2
        return near

    def _try(
        self, line: Line, source: Int, pair: Int, landing: NDArray[Any], tried: tuple[Float, Float] | None
    ) -> Outcome:
        """Ask the ensemble about corrected actions: of those tried, given where they led, or the recorded ones."""
        found = [_no_outcome(self.data.obs_dim, self.data.action_dim)]
        for part in parts(len(pair), _TRIES):
            size = _whole(part.stop - part.start, _TRIES)
            where, goal = np.resize(pair[part], size), np.resize(landing[part], size)
            before = tried and tuple(np.resize(one[part], (size, one.shape[1])) for one in tried)
            action = _corrected(line, where, before, self.place[goal], self.box)
            outcome = self._outcome(source[where], action, goal)
            found.append(Outcome(*(column[: part.stop - part.start] for column in outcome)))
        return Outcome(*(np.concatenate(column) for column in zip(*found, strict=True)))

    def _outcome(self, row: Int, action: Any, goal: Int) -> Outcome:
        """Ask the ensemble where these actions lead, and compare with the goals."""
        place, reward = self._predict(row, action)
        judged = _judge(place, jnp.asarray(self.place[goal]))
        return Outcome(*(np.array(column) for column in (action, reward.mean(0), *judged)))

    def _predict(self, row: Int, action: Any) -> tuple[Array, Array]:
        """Call the model; return next states [E, B, S] in typical steps, and rewards [E, B]."""
        obs = self.data.obs[row]
        next_obs, reward = map(jnp.asarray, self.model.steps(obs, action))
        if next_obs.ndim != 3 or next_obs.shape[1:] != obs.shape or reward.shape != next_obs.shape[:2]:
            raise InputError(
                f"the world model's steps have shapes {next_obs.shape} and {reward.shape}, not "
                f"[members, {obs.shape[0]}, {obs.shape[1]}] and [members, {obs.shape[0]}]"
            )
        return next_obs / self.unit, reward


def _edges_of(shared: tuple[ReachFinder, Int, Int, bool], part: slice) -> list[Found]:
    finder, source, target, tried = shared
    return finder.blocks(source[part], target[part], tried)


class Outcome(NamedTuple):
    """An `Aim`, and where the ensemble's mean says that it leads."""

    action: Float
    reward: Float
    error: Float
    spread: Float
    mean: Float  # [X, S], in typical steps


class Line(NamedTuple):
    """The model around the recorded actions of a block of B states, in typical steps."""

    mean: Array  # [B, S] next state
    variance: Array  # [B] mean squared distance of the members from it
    slope: Array  # [B, S, A] its change with the action
    reward: Array  # [B] of raw units, as its slope
    reward_slope: Array  # [B, A]
    inverse: Array  # [B, A, S] least squares: the change of the action for a change of the next state
    action: Array  # [B, A]


@jax.jit
def _linearised(mean: Array, reward: Array, variance: Array, action: Array, shift: Array) -> Line:
    """Return the linear model from next states [1 + A, B, S] and rewards [1 + A, B].

    These are of the actions, then of those shifted in each dimension.
    """
    slope = (mean[1:] - mean[0]).transpose(1, 2, 0) / shift[:, None]
    square = jnp.einsum("bsa,bsc->bac", slope, slope)
    size = jnp.trace(square, axis1=1, axis2=2)[:, None, None] / action.shape[1]
    ridge = jnp.where(size > 0, _RIDGE * size, 1.0) * jnp.eye(action.shape[1])
    inverse = jnp.linalg.solve(square + ridge, slope.transpose(0, 2, 1))
    return Line(mean[0], variance, slope, reward[0], (reward[1:] - reward[0]).T / shift, inverse, action)


@jax.jit
def _promises(line: Line, goal: Array, box: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return landing errors and rewards for goals [B, K, S] by the linear model, of the best action in its range.

    As if the members disagreed as much about this action as they do about the recorded one.
    """
    away = goal - line.mean[:, None]
    change = jnp.einsum("bas,bks->bka", line.inverse, away)
    change = jnp.clip(line.action[:, None] + change, *box) - line.action[:, None]
    missed = away - jnp.einsum("bsa,bka->bks", line.slope, change)
    reward = line.reward[:, None] + jnp.einsum("ba,bka->bk", line.reward_slope, change)
    return jnp.sqrt(jnp.sum(missed**2, -1) + line.variance[:, None]), reward


@jax.jit
def _corrected(
    line: Line, pair: Array, tried: tuple[Array, Array] | None, goal: Array, box: tuple[Array, Array]
) -> Array:
    """Correct the action that was tried, given where it led; without a try, the recorded action."""
    action, mean = (line.action[pair], line.mean[pair]) if tried is None else tried
    return jnp.clip(action + jnp.einsum("xas,xs->xa", line.inverse[pair], goal - mean), *box)


@jax.jit
def _judge(place: Array, goal: Array) -> tuple[Array, Array, Array]:
    """Return landing error [X], disagreement [X] and mean [X, S] of where the members land [E, X, S]."""
    error = jnp.sqrt(jnp.sum((place - goal) ** 2, -1).mean(0))
    return error, jnp.sqrt(_variance(place)), place.mean(0)


@jax.jit
def _variance(place: Array) -> Array:
    """Return the mean squared distance [X] of the members' places [E, X, S] from their mean."""
    return jnp.sum((place - place.mean(0)) ** 2, -1).mean(0)


def _no_aim(actions: int) -> Aim:
    none = np.zeros(0, np.float32)
    return Aim(np.zeros((0, actions), np.float32), none, none, none)


def _no_outcome(states: int, actions: int) -> Outcome:
    return Outcome(*_no_aim(actions), np.zeros((0, states), np.float32))


def _whole(length: int, block: int) -> int:
    """Return the size to which a call is filled up, so that few shapes are compiled: a block, or few."""
    return _FEW if length <= _FEW < block else block


def one_per_cell(place: Float, size: float) -> Int:
    """Return one row of places [rows, S] for each cell of a grid of this size: the one nearest to its middle."""
    cell, inside = np.divmod(place / size, 1)
    off = np.square(inside - 0.5).sum(1)
    del inside
    number = _numbered(cell)
    order = np.lexsort((off, number))
    return order[np.diff(number[order], prepend=-1) != 0]


def _numbered(cell: Float) -> Int:
    """Return a number for each row of whole numbers, equal where the rows are."""
    number, many = np.zeros(len(cell), np.int64), 1
    for column in cell.T:
        digit = (column - column.min()).astype(np.int64)
        size = int(digit.max()) + 1
        if many * size >= 2**63:  # count only the numbers that occur
            seen, number = np.unique(number, return_inverse=True)
            many = len(seen)
        number, many = number * size + digit, many * size
    return number
