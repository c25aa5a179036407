"""Optimal: the best step from every state, by dynamic programming over all edges and recorded steps.

Nodes are the states of the data. From a state lead its recorded step, whose reward is known, and its edges, whose
reward a model expects. The last state of a trajectory is worth 0 where the episode really ended, and where it was
cut what the caller says. The value of any other state is that of its best step:

    V(s) = max( r + γ·V(s'),  max over edges  r̂ + γ·(V(ŝ') - caution·error·slope(ŝ')) )

*Believable values.* An edge forgives a small landing error, and of a thousand errors a plan picks those that
flatter it. So an edge counts for what its landing is worth in the worst direction: less its error times the
steepest fall of V between ŝ' and its neighbours. V is that of the recorded steps or of the plan, whichever falls
more steeply: a plan that goes in circles makes its own values flat. Slopes follow from values and values from
slopes, so the graph is solved twice, first with the slopes of the recorded values alone.

*Solving.* Policy iteration: the values of a policy are exact, because from each state a policy makes one step, so
that k doublings (R ← R + γᵗ·R[next], next ← next[next]) sum the rewards of 2ᵏ steps. Each round takes, in every
state, the step that is best by these values. Rounds end when no step is better by more than a tolerance; that the
values then solve the equation above within it is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Bool, Int
from trajstitch.errors import InputError
from trajstitch.progress import Tell, silent
from trajstitch.stitching.graph import Graph

_PAIRS = 1 << 16  # pairs compared at a time
_ROUNDS = 1000  # more than any graph has needed
_NEGLIGIBLE = 1e-13  # a discount below this ends the doubling

Value = NDArray[np.float64]
Slopes = Callable[[Value], NDArray[np.float32]]  # values [rows] -> slopes [rows], per typical step


@dataclass(frozen=True)
class OptimalConfig:
    """The optimal planner."""

    discount: float = 0.995  # Discount of future rewards.
    # An edge counts for its landing's value minus this many times its landing error times the slope of values.
    caution: float = 2.0
    tolerance: float = (
        1e-6  # No step may be better than the chosen one by more than this share of the largest value.
    )

    def __post_init__(self) -> None:
        if not 0 <= self.discount < 1 or not self.caution >= 0 or not self.tolerance > 0:
            raise InputError("discount must be from 0 to below 1, caution not below 0 and tolerance above 0")


@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be solved; pairs and edges are those of the graph."""

    graph: Graph
    reward: NDArray[np.floating]  # [Q] of the recorded steps
    edge_reward: NDArray[np.floating]  # [X]
    edge_error: NDArray[np.floating]  # [X] landing errors, in typical steps
    end: Value  # [rows] what the last states of trajectories are worth


@dataclass(frozen=True, eq=False)
class Plan:
    """The best step from every state."""

    value: Value  # [rows]
    choice: Int  # [Q] the edge that each pair's source takes; -1: the recorded step
    rounds: int
    residual: float  # the largest amount by which a step is better than the chosen one


def solve(problem: Problem, config: OptimalConfig, slopes: Slopes | None = None, tell: Tell = silent) -> Plan:
    """Find the best steps; `slopes` returns the steepest falls of values around each landing state."""
    if slopes is None or not config.caution:
        return _solve(problem, config, None, None)
    price = config.caution * config.discount
    recorded = slopes(recorded_values(problem, config))
    plan = _solve(problem, config, price * recorded, None)
    tell(1, 2, f"{plan.rounds} rounds")
    plan = _solve(problem, config, price * np.maximum(recorded, slopes(plan.value)), plan.choice)
    tell(2, 2, f"{plan.rounds} rounds")
    return plan


def recorded_values(problem: Problem, config: OptimalConfig) -> Value:
    """Compute the values [rows] of the recorded steps."""
    return _value_of(problem, config, None, np.full(len(problem.graph.source), -1))


def _solve(problem: Problem, config: OptimalConfig, cost: NDArray[np.floating] | None, choice: Int | None) -> Plan:
    """Solve the graph, where landing at a row costs cost[row] per typical step of landing error."""
    graph = problem.graph
    choice = np.full(len(graph.source), -1) if choice is None else choice.copy()
    for rounds in range(1, _ROUNDS + 1):
        value = _value_of(problem, config, cost, choice)
        margin = config.tolerance * max(float(np.abs(value).max()), 1e-300)
        residual, changed = 0.0, 0
        for some, best, edge in _best_edges(problem, config, cost, value):
            stay = _recorded(problem, config, value, some)
            gain = np.maximum(best, stay) - value[graph.source[some]]
            residual = max(residual, float(gain.max()))
            better = gain > margin
            choice[some[better]] = np.where(best >= stay, edge, -1)[better]
            changed += int(better.sum())
        if not changed:
            return Plan(value, choice, rounds, residual)
    raise InputError(f"the plan did not settle within {_ROUNDS} rounds; raise the tolerance or lower the discount")


def _recorded(problem: Problem, config: OptimalConfig, value: Value, pair: Int) -> Value:
    """Return the values of recorded steps."""
    stay: Value = problem.reward[pair] + config.discount * value[problem.graph.target[pair]]
    return stay


def _best_edges(
    problem: Problem, config: OptimalConfig, cost: NDArray[np.floating] | None, value: Value
) -> Iterator[tuple[Int, Value, Int]]:
    """Yield pairs that have edges, the value of their best edge, and that edge; of equal ones the first."""
    graph = problem.graph
    for a in range(0, len(graph.source), _PAIRS):
        begin = graph.begin[a : a + _PAIRS + 1]
        some = np.flatnonzero(np.diff(begin))
        if not len(some):
            continue
        edges = slice(begin[0], begin[-1])
        worth = _edge_values(problem, config, cost, value, edges)
        first = begin[some] - begin[0]
        best = np.maximum.reduceat(worth, first)
        count = np.diff(np.append(first, len(worth)))
        hit = np.flatnonzero(worth == np.repeat(best, count))
        edge = hit[np.searchsorted(hit, first)]
        yield a + some, best, begin[0] + edge


def _edge_values(
    problem: Problem,
    config: OptimalConfig,
    cost: NDArray[np.floating] | None,
    value: Value,
    edges: slice | Int,
) -> Value:
    landing = problem.graph.landing[edges]
    worth = problem.edge_reward[edges] + config.discount * value[landing]
    return worth if cost is None else worth - problem.edge_error[edges] * cost[landing]


def _value_of(problem: Problem, config: OptimalConfig, cost: NDArray[np.floating] | None, choice: Int) -> Value:
    """Compute the values of always making the chosen step."""
    graph, rows = problem.graph, len(problem.end)
    taken = np.flatnonzero(choice >= 0)
    total = np.append(problem.end, 0.0)
    following = np.full(rows + 1, rows)  # the row after the last follows itself and earns nothing
    stays = np.flatnonzero(choice < 0)
    following[graph.source[stays]] = graph.target[stays]
    total[graph.source[stays]] = problem.reward[stays]
    following[graph.source[taken]] = graph.landing[choice[taken]]
    total[graph.source[taken]] = _edge_values(
        problem, config, cost, np.zeros(rows), choice[taken]
    )  # without what comes after
    factor = config.discount
    while factor > _NEGLIGIBLE:
        total = total + factor * total[following]
        following = following[following]
        factor *= factor
    return total[:-1]


@dataclass(frozen=True, eq=False)
class Walks:
    """Trajectories by rows: walk w makes the steps row[start[w]] … row[start[w+1]-1] and ends in last[w]."""

    pair: Int  # [L] the pair whose source each step starts from
    edge: Int  # [L] the edge taken; -1: the recorded step
    start: Int  # [W + 1]
    last: Int  # [W] row


def follow(graph: Graph, plan: Plan, rows: int, first: Int, horizon: int) -> Walks:
    """Follow the plan from each of these rows, until no step leads on or for `horizon` steps."""
    pair_of, following = _steps(graph, plan, rows)
    who, at = np.arange(len(first)), first.copy()
    walked: list[tuple[Int, Int]] = []
    last = first.copy()
    for _ in range(horizon):
        going = pair_of[at] >= 0
        who, at = who[going], at[going]
        if not len(who):
            break
        walked.append((who, pair_of[at]))
        at = following[at]
        last[who] = at
    walk = np.concatenate([np.zeros(0, np.int64), *(one for one, _ in walked)])
    pair = np.concatenate([np.zeros(0, np.int64), *(pair for _, pair in walked)])
    order = np.argsort(walk, kind="stable")
    start = np.concatenate([[0], np.cumsum(np.bincount(walk, minlength=len(first)))])
    return Walks(pair[order], plan.choice[pair[order]], start, last)


def cover(graph: Graph, plan: Plan, rows: int) -> Walks:
    """Return walks that make the best step of every state exactly once.

    A walk begins where no best step leads to, or, in a circle, anywhere; it ends where another walk has been, or
    where no step leads on.
    """
    pair_of, following = _steps(graph, plan, rows)
    # Each state keeps one of the steps that lead to it, so that walks are chains; the others end their walk there.
    goes = np.flatnonzero(pair_of >= 0)
    kept = np.full(rows, -1)
    kept[following[goes][::-1]] = goes[::-1]  # of several, the one from the lowest row
    onward = np.zeros(rows, bool)  # the walk goes on after this row's step
    onward[goes] = (kept[following[goes]] == goes) & (pair_of[following[goes]] >= 0)
    head = np.ones(rows, bool)
    head[following[goes][onward[goes]]] = False
    head &= pair_of >= 0
    number, depth = _chains(following, onward, head, goes, rows)
    circling = goes[number[goes] < 0]
    if len(circling):  # circles have no head: cut each before its lowest row
        lowest = _lowest_in_circle(following, circling, rows)
        starts = circling[lowest[circling] == circling]
        head[starts] = True
        onward[kept[starts]] = False
        number, depth = _chains(following, onward, head, goes, rows)
    order = goes[np.lexsort((depth[goes], number[goes]))]
    count = np.bincount(np.unique(number[goes], return_inverse=True)[1])
    start = np.concatenate([[0], np.cumsum(count)])
    last = following[order[start[1:] - 1]]
    pair = pair_of[order]
    return Walks(pair, plan.choice[pair], start, last)


def _steps(graph: Graph, plan: Plan, rows: int) -> tuple[Int, Int]:
    """Return the pair of each row's best step, -1: none, and the row it leads to, both [rows]."""
    pair_of, following = np.full(rows, -1), np.full(rows, -1)
    pair_of[graph.source] = np.arange(len(graph.source))
    following[graph.source] = graph.target
    taken = np.flatnonzero(plan.choice >= 0)
    following[graph.source[taken]] = graph.landing[plan.choice[taken]]
    return pair_of, following


def _chains(following: Int, onward: Bool, head: Bool, goes: Int, rows: int) -> tuple[Int, Int]:
    """Return the head of each row's chain (-1: it lies in a circle) and its distance from it, by doubling."""
    before = np.arange(rows)
    before[following[goes][onward[goes]]] = goes[onward[goes]]
    depth = (before != np.arange(rows)).astype(np.int64)
    while True:
        further = before[before]
        if (further == before).all() or depth.max() > rows:
            break
        depth = depth + depth[before]
        before = further
    return np.where(head[before], before, -1), depth


def _lowest_in_circle(following: Int, circling: Int, rows: int) -> Int:
    """Return the lowest row of each row's circle, by doubling."""
    lowest, onward = np.arange(rows), np.arange(rows)
    onward[circling] = following[circling]
    for _ in range(max(1, int(np.ceil(np.log2(rows))) + 1)):
        lowest = np.minimum(lowest, lowest[onward])
        onward = onward[onward]
    return lowest
