"""Planners choose which edges of the graph to take; `greedy` is the paper's Algorithm 1. Pure functions of arrays.

The current data are paths: trajectories as sequences of pairs of the graph. A planner proposes a new trajectory
for each, from the same first state; improve.py accepts or rejects it once its rewards are known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Bool, Int
from trajstitch.stitching.graph import Graph


@dataclass(frozen=True, eq=False)
class Paths:
    """The current data: trajectory m is pairs pair[start[m]] … pair[start[m+1]-1]."""

    pair: Int  # [L] pairs, as indices into the graph
    start: Int  # [M + 1]
    terminal: Bool  # [M] whether the last state really ended the episode

    def sums(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Sum one number per pair [Q] over each trajectory; return the sums [M]."""
        return np.add.reduceat(values[self.pair], self.start[:-1], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Proposal:
    """A new trajectory for each old one; each step is either a pair as it is or one of that pair's edges."""

    pair: Int  # [L'] the pair whose source the step starts from
    edge: Int  # [L'] the edge taken; -1: the pair itself
    start: Int  # [M + 1]
    terminal: Bool  # [M]


@dataclass(frozen=True, eq=False)
class Ends:
    """What a trajectory that was cut is still worth; else being shorter would look better with negative rewards.

    With k steps left until the horizon, V(s) of discount γ at its last state and its own mean reward, the end is
    worth the least of three estimates: V·(1 - γᵏ), V's average reward for every step left, V·(1 - γ)·k, and its
    own for every step left. The first is cautious where rewards are positive, the others where they are negative.
    """

    value: NDArray[np.float64]  # [rows]
    discount: float
    horizon: int

    def worth(self, last: Int, terminal: Bool, length: Int, mean: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the worth of last rows [M] reached in `length` steps of this mean reward; 0 at real ends."""
        left = np.maximum(self.horizon - length, 0)
        value = self.value[last]
        least = np.minimum(value * (1 - self.discount**left), value * (1 - self.discount) * left)
        return np.where(terminal, 0.0, np.minimum(least, mean * left))


def greedy(
    graph: Graph,
    value: NDArray[Any],
    reward: NDArray[Any],
    paths: Paths,
    horizon: int,
    max_repeats: int | None = None,
    ends: Ends | None = None,
) -> Proposal:
    """Propose trajectories by Algorithm 1: take the plausible edge of highest value, if above the old target's.

    value [rows] is of states, reward [Q] of pairs. From the state where an edge lands, a trajectory follows the
    current data from the occurrence of that state with the highest remaining return, counting what cut ends are
    worth by `ends`, and ends where that one ends, or at the horizon. An edge is not taken, but the next best one
    is, where the states so far and those that the current data have from its landing on would repeat one more than
    `max_repeats` times; so no trajectory repeats a state more often, whether it stitches again or not.
    """
    place = occurrences(graph, reward, paths, ends)
    ranked = rank_edges(graph, value, place, paths.pair)
    return _follow(graph, paths, ranked, place, horizon, max_repeats)


def occurrences(graph: Graph, reward: NDArray[Any], paths: Paths, ends: Ends | None = None) -> Int:
    """Find, for each state that edges lead to, its place in the current data [rows] of highest remaining return.

    A place below L is a step, L + m is the end of trajectory m, and -1 means that the state does not occur. Of
    equal places the first is taken.
    """
    rows = int(max(graph.source.max(), graph.target.max())) + 1
    wanted = np.zeros(rows, bool)
    wanted[graph.landing] = True
    row = np.concatenate([graph.source[paths.pair], graph.target[paths.pair[paths.start[1:] - 1]]])
    where = np.flatnonzero(wanted[row])
    remaining = np.concatenate([_remaining(reward[paths.pair], paths.start), np.zeros(len(paths.terminal))])
    if ends is not None:
        last, length = row[len(paths.pair) :], np.diff(paths.start)
        left = np.repeat(paths.start[1:], length) - np.arange(len(paths.pair))  # steps to the end
        of = np.concatenate([np.repeat(np.arange(len(last)), length), np.arange(len(last))])
        steps = np.concatenate([left, np.zeros(len(last), np.int64)])
        remaining += ends.worth(last[of], paths.terminal[of], steps, (paths.sums(reward) / length)[of])
    order = where[np.lexsort((where, -remaining[where], row[where]))]
    best = order[_first_of_each(row[order])]
    place = np.full(rows, -1)
    place[row[best]] = best
    return place


class Ranked(NamedTuple):
    """The edges that pairs may take, best first: those of pair q are edge[begin[q]] … edge[begin[q+1]-1]."""

    begin: Int  # [Q + 1]
    edge: Int

    @property
    def best(self) -> Int:
        """The best edge of each pair [Q]; -1: none."""
        best = np.full(len(self.begin) - 1, -1)
        some = np.diff(self.begin) > 0
        best[some] = self.edge[self.begin[:-1][some]]
        return best


def rank_edges(graph: Graph, value: NDArray[Any], place: Int, pairs: Int) -> Ranked:
    """Rank these pairs' edges that are worth more than the target; of equal values the lowest row is first."""
    used = np.zeros(len(graph.source), bool)
    used[pairs] = True
    owner = np.repeat(np.arange(len(graph.source)), np.diff(graph.begin))
    new_value = value[graph.landing]
    edge = np.flatnonzero(used[owner] & (place[graph.landing] >= 0) & (new_value > value[graph.target[owner]]))
    order = np.lexsort((graph.landing[edge], -new_value[edge], owner[edge]))
    count = np.bincount(owner[edge], minlength=len(graph.source))
    return Ranked(np.concatenate([[0], np.cumsum(count)]), edge[order])


def choose_edges(graph: Graph, value: NDArray[Any], place: Int, pairs: Int) -> Int:
    """Return the edge [Q] that each of these pairs takes, where nothing limits repeats; -1: none."""
    return rank_edges(graph, value, place, pairs).best


def _follow(
    graph: Graph, paths: Paths, ranked: Ranked, place: Int, horizon: int, max_repeats: int | None
) -> Proposal:
    """Follow the best edges, one step at a time for all trajectories together."""
    steps, many = len(paths.pair), len(paths.terminal)
    choice = ranked.best
    last = np.zeros(steps, np.int64)
    last[paths.start[1:] - 1] = np.arange(1, many + 1)  # 1 + the trajectory that ends here
    terminal = np.zeros(many, bool)
    who, at = np.arange(many), paths.start[:-1].copy()
    limit = None if max_repeats is None else Limit.of(graph, paths, place, horizon, max_repeats)
    walked: list[tuple[Int, Int, Int]] = []
    for t in range(horizon):
        pair = paths.pair[at]
        edge = choice[pair]
        if limit is not None:
            limit.seen[t, who] = graph.source[pair]
            for n in np.flatnonzero(edge >= 0):
                some = ranked.edge[ranked.begin[pair[n]] : ranked.begin[pair[n] + 1]]
                edge[n] = next((one for one in some if limit.allows(t, who[n], graph.landing[one])), -1)
        walked.append((who, pair, edge))
        following = np.where(last[at] > 0, steps + last[at] - 1, at + 1)
        takes_edge = edge >= 0
        following[takes_edge] = place[graph.landing[edge[takes_edge]]]
        ended = following >= steps
        terminal[who[ended]] = paths.terminal[following[ended] - steps]
        who, at = who[~ended], following[~ended]
        if not len(who):
            break
    trajectory, pair, edge = (np.concatenate(column) for column in zip(*walked, strict=True))
    order = np.argsort(trajectory, kind="stable")  # stable: keeps the steps of a trajectory in time order
    start = np.concatenate([[0], np.cumsum(np.bincount(trajectory, minlength=many))])
    return Proposal(pair[order], edge[order], start, terminal)


@dataclass(frozen=True, eq=False)
class Limit:
    """How often a new trajectory may be in the same state."""

    most: int
    state: Int  # [L + M] rows of the current data's states, last ones too
    first: Int  # [rows] place in `state` where a trajectory goes on from each landing
    behind: Int  # [rows] place in `state` behind the end of what follows
    seen: Int  # [horizon, M] rows of the new trajectories' states so far

    @staticmethod
    def of(graph: Graph, paths: Paths, place: Int, horizon: int, max_repeats: int) -> Limit:
        """Return the limit for new trajectories that have no states yet."""
        steps, many = len(paths.pair), len(paths.terminal)
        state = np.insert(graph.source[paths.pair], paths.start[1:], graph.target[paths.pair[paths.start[1:] - 1]])
        within = place < steps
        owner = np.where(within, np.searchsorted(paths.start, place, side="right") - 1, place - steps)
        behind = paths.start[owner + 1] + owner + 1
        first = np.where(within, place + owner, behind - 1)
        return Limit(max_repeats + 1, state, first, behind, np.full((horizon, many), -1))

    def allows(self, t: int, who: int, landing: int) -> bool:
        """Return whether trajectory `who`, in its state t, may land there and go on as the current data do."""
        first = self.first[landing]
        after = self.state[first : min(self.behind[landing], first + len(self.seen) - t)]
        both = np.sort(np.concatenate([self.seen[: t + 1, who], after]))
        return not (both[self.most :] == both[: -self.most]).any()


def _first_of_each(group: Int) -> Bool:
    """Mark the first row of each group in a sorted column."""
    return np.concatenate([np.ones(min(1, len(group)), bool), group[1:] != group[:-1]])


def _remaining(reward: NDArray[Any], start: Int) -> NDArray[np.float64]:
    """Sum the reward of each step and of all later steps of its trajectory."""
    total = np.cumsum(reward[::-1], dtype=np.float64)[::-1]
    after = np.append(total, 0.0)[start[1:]]
    return total - np.repeat(after, np.diff(start))
