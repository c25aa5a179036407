"""Plan: which edges to take; `greedy` is the paper's Algorithm 1. Pure functions of arrays.

The current data are tours: trajectories as sequences of pairs of the graph. A planner proposes a new trajectory
for each, from its own first state; whether it is accepted is decided where its rewards are known (stitch.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Bool, Int
from trajstitch.graph import Graph


@dataclass(frozen=True, eq=False)
class Tours:
    """The current data: trajectory m is pairs pair[start[m]] … pair[start[m+1]-1]."""

    pair: Int  # [L] numbers of pairs in the graph
    start: Int  # [M + 1]
    terminal: Bool  # [M] its last state really ended the episode

    def sums(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Sums [M] over each trajectory of a number per pair [Q]."""
        return np.add.reduceat(values[self.pair], self.start[:-1], dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Proposal:
    """A new trajectory for each old one; a step either takes a pair as it is or one of that pair's edges."""

    pair: Int  # [L'] the pair whose source the step starts from
    edge: Int  # [L'] the edge taken, -1: none, the pair itself
    start: Int  # [M + 1]
    terminal: Bool  # [M]


def greedy(
    graph: Graph,
    value: NDArray[Any],
    reward: NDArray[Any],
    tours: Tours,
    horizon: int,
    max_repeats: int | None = None,
) -> Proposal:
    """Algorithm 1: at every step the plausible edge of highest value, if it is worth more than the old target.

    value [rows] of states, reward [Q] of pairs. A trajectory goes on from where it lands along the current data,
    by the occurrence of that state with the highest remaining return, and ends where that one ends, or at the
    horizon. With `max_repeats` an edge is not taken where its state was visited more than so often before.
    """
    place = occurrences(graph, reward, tours)
    choice = choose_edges(graph, value, place, tours.pair)
    return _follow(graph, tours, choice, place, horizon, max_repeats)


def occurrences(graph: Graph, reward: NDArray[Any], tours: Tours) -> Int:
    """Where in the current data [rows] each state that edges lead to occurs with the highest remaining return.

    A place below L is a step, L + m the end of trajectory m, -1 means nowhere. Of equals the first place counts.
    """
    rows = int(max(graph.source.max(), graph.target.max())) + 1
    wanted = np.zeros(rows, bool)
    wanted[graph.landing] = True
    row = np.concatenate([graph.source[tours.pair], graph.target[tours.pair[tours.start[1:] - 1]]])
    where = np.flatnonzero(wanted[row])
    remaining = np.concatenate([_remaining(reward[tours.pair], tours.start), np.zeros(len(tours.terminal))])
    order = where[np.lexsort((where, -remaining[where], row[where]))]
    best = order[_first_of_each(row[order])]
    place = np.full(rows, -1)
    place[row[best]] = best
    return place


def choose_edges(graph: Graph, value: NDArray[Any], place: Int, pairs: Int) -> Int:
    """The edge [Q] each of these pairs takes, -1: none; of equal values the lowest row."""
    choice = np.full(len(graph.source), -1)
    used = np.zeros(len(graph.source), bool)
    used[pairs] = True
    owner = np.repeat(np.arange(len(graph.source)), np.diff(graph.begin))
    worth = value[graph.landing]
    edge = np.flatnonzero(used[owner] & (place[graph.landing] >= 0) & (worth > value[graph.target[owner]]))
    order = edge[np.lexsort((graph.landing[edge], -worth[edge], owner[edge]))]
    best = order[_first_of_each(owner[order])]
    choice[owner[best]] = best
    return choice


def _follow(
    graph: Graph, tours: Tours, choice: Int, place: Int, horizon: int, max_repeats: int | None
) -> Proposal:
    """All trajectories at once, a step at a time."""
    steps, many = len(tours.pair), len(tours.terminal)
    last = np.zeros(steps, np.int64)
    last[tours.start[1:] - 1] = np.arange(1, many + 1)  # 1 + the trajectory that ends here
    terminal = np.zeros(many, bool)
    who, at = np.arange(many), tours.start[:-1].copy()
    seen = None if max_repeats is None else np.full((horizon, many), -1)
    walked: list[tuple[Int, Int, Int]] = []
    for t in range(horizon):
        pair = tours.pair[at]
        edge = choice[pair]
        if seen is not None:
            seen[t, who] = graph.source[pair]
            turn = np.flatnonzero(edge >= 0)
            visits = (seen[: t + 1, who[turn]] == graph.landing[edge[turn]]).sum(0)
            edge[turn[visits > max_repeats]] = -1
        walked.append((who, pair, edge))
        ahead = np.where(last[at] > 0, steps + last[at] - 1, at + 1)
        turns = edge >= 0
        ahead[turns] = place[graph.landing[edge[turns]]]
        over = ahead >= steps
        terminal[who[over]] = tours.terminal[ahead[over] - steps]
        who, at = who[~over], ahead[~over]
        if not len(who):
            break
    trajectory, pair, edge = (np.concatenate(column) for column in zip(*walked, strict=True))
    order = np.argsort(trajectory, kind="stable")  # steps were walked in order of time
    start = np.concatenate([[0], np.cumsum(np.bincount(trajectory, minlength=many))])
    return Proposal(pair[order], edge[order], start, terminal)


def _first_of_each(group: Int) -> Bool:
    """Where a sorted column of numbers begins a new one."""
    return np.concatenate([np.ones(min(1, len(group)), bool), group[1:] != group[:-1]])


def _remaining(reward: NDArray[Any], start: Int) -> NDArray[np.float64]:
    """The sum of each step's and all later rewards of its trajectory."""
    total = np.cumsum(reward[::-1], dtype=np.float64)[::-1]
    after = np.append(total, 0.0)[start[1:]]
    return total - np.repeat(after, np.diff(start))


PLANNERS = {"greedy": greedy}
