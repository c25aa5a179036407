"""Optimal: the best step from every state, by dynamic programming over all edges and recorded steps.

Nodes are the states of the data. From a state lead its recorded step, whose reward is known, and its edges, whose
reward a model expects. The last state of a trajectory is worth 0 where the episode really ended, and where it was
cut what the caller says. The value of any other state is that of its best step:

    V(s) = max( r + γ·V(s'),  max over edges  r̂ + γ·(V(ŝ') - caution·error·slope(ŝ')) )

*Believable values.* An edge forgives a small landing error, and of a thousand errors a plan picks those that
flatter it. So an edge counts for what its landing is worth in the worst direction: less its error times the
steepest change of V between ŝ' and its neighbours. Slopes follow from values and values from slopes, so the graph
is solved four times, first with the slopes of the recorded values. The other way round, from values without
caution, it fails: a plan that goes in circles makes its own values flat, and caution then costs nothing.

*Steps that agree.* Where every step costs the same, many steps are equally good, and which one is taken is chance:
neighbouring states then point anywhere, and a clone, which averages them, stands still. So of the steps that are
nearly as good as the best, the one whose landing has the best neighbourhood is taken in the end.

*Promises.* To ask the ensemble about every edge would be most of the work, and a plan takes few of them. So edges
may be those that a cheaper model promises. One that the plan takes is tried: what is found takes the place of what
was promised, and the plan goes on until all that it takes has been tried. The other edges promise to be worse, and
are never tried. It is the idea of lazy shortest paths (LazySP, by Dellin and Srinivasa), for a plan from every
state.

*Solving.* Policy iteration: the values of a policy are exact, because from each state a policy makes one step, so
that k doublings (R ← R + γᵗ·R[next], next ← next[next]) sum the rewards of 2ᵏ steps. Each round takes, in every
state, the step that is best by these values. Rounds end when no step is better by more than a tolerance; that the
values then solve the equation above within it is checked. Most rounds change few values: a front that runs from
where the reward is. Then only steps that lead to these are compared (`incoming.py`), and only states upstream of a
new step are valued again. The last round compares all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Bool, Int
from trajstitch.errors import InputError
from trajstitch.progress import Tell, silent
from trajstitch.stitching.graph import Graph
from trajstitch.stitching.incoming import Incoming, incoming_of, places

_PAIRS = 1 << 13  # pairs compared at a time: their edges fit in the cache
_EDGES = 1 << 18  # edges charged at a time
_PASSES = 4  # solutions, each with the slopes of the values before
_DOUBT = 0.1  # a promise counts for less by this share of what `agree` calls nearly as good
_ROUNDS = 1000  # more than any graph has needed
_NEGLIGIBLE = 1e-13  # a discount below this ends the doubling
_FEW = 16, 64, 512  # changes are followed upstream to at most rows/16 or 64 states, 512 steps; else all are valued

Value = NDArray[np.float64]
# Tries edges, given their pairs and numbers: what they earn, -inf where there is no such step, and landing errors.
Attempt = Callable[[Int, Int], tuple[NDArray[np.floating], NDArray[np.floating]]]
OfValues = Callable[[Value], NDArray[np.floating]]  # values [rows] -> something for every row


@dataclass(frozen=True)
class OptimalConfig:
    """The optimal planner."""

    discount: float = 0.995  # Discount of future rewards.
    # An edge counts for its landing's value minus this many times its landing error times the slope of values.
    caution: float = 2.0
    # Of steps that are worse than the best by less than this share of a typical reward, the one whose landing has
    # the best neighbourhood is taken; 0: always the best.
    agree: float = 0.1
    tolerance: float = 1e-6  # No step is better than the best found by more than this share of the largest value.

    def __post_init__(self) -> None:
        if not 0 <= self.discount < 1 or not self.caution >= 0 or not self.agree >= 0 or not self.tolerance > 0:
            raise InputError("discount must be from 0 to below 1, caution, agree not below 0, tolerance above 0")


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
    residual: float  # the largest amount by which a step is better than `value`
    tried: int = 0  # edges


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """What the planner asks of the space around states."""

    slopes: OfValues  # the steepest change of values around each landing state, per typical step
    means: OfValues  # the mean of values around each state


def solve(
    problem: Problem,
    config: OptimalConfig,
    around: Neighbourhood | None = None,
    tell: Tell = silent,
    attempt: Attempt | None = None,
) -> Plan:
    """Find the best steps; without a neighbourhood, every landing is taken for certain.

    With `attempt`, the problem's edges are promises, and those that the plan takes are tried.
    """
    if around is None:
        around = Neighbourhood(lambda value: np.zeros(len(value)), lambda value: value)
        config = replace(config, caution=0.0, agree=0.0)
    lazy = LazyProblem(problem, attempt, _DOUBT * _slack(problem, config))
    incoming = incoming_of(problem.graph, len(problem.end))
    value, choice = recorded_values(problem, config), None
    passes = _PASSES if config.caution else 1
    for k in range(passes):
        if config.caution:
            lazy.charge(config.caution * config.discount * around.slopes(value))
        plan = _solve(lazy, config, choice, incoming, np.inf if k == passes - 1 else 1)
        value, choice = plan.value, plan.choice
        tell(k + 1, passes, f"{plan.rounds} rounds" + (f", {lazy.count:,} edges tried" if attempt else ""))
    if config.agree:
        plan = replace(plan, choice=_agreed(lazy, config, plan, around.means(plan.value)))
    return replace(plan, tried=lazy.count)


class LazyProblem:
    """A problem whose edges are tried when they are first taken, and what landings cost in it."""

    def __init__(self, problem: Problem, attempt: Attempt | None, doubt: float) -> None:
        self._attempt, self.count = attempt, 0
        self._cost: NDArray[np.floating] = np.zeros(len(problem.end))
        self._known = self.problem = problem
        if attempt is not None:  # what is found of an edge takes the place of what was promised
            self._untried = np.ones(len(problem.edge_reward), bool)
            reward, error = problem.edge_reward - np.float32(doubt), problem.edge_error.copy()
            self._known = self.problem = replace(problem, edge_reward=reward, edge_error=error)

    def charge(self, cost: NDArray[np.floating]) -> None:
        """Let landing at a row cost cost[row] per typical step of landing error."""
        known, self._cost = self._known, cost
        self.problem = known  # frees the former one, which is large
        reward = known.edge_reward.copy()
        for part in range(0, len(reward), _EDGES):
            some = slice(part, part + _EDGES)
            reward[some] -= known.edge_error[some] * cost[known.graph.landing[some]]
        self.problem = replace(known, edge_reward=reward)

    def attempt(self, pair: Int, edge: Int) -> Int:
        """Try those of the steps that are edges not tried yet; return their pairs."""
        if self._attempt is None:
            return pair[:0]
        fresh = edge >= 0
        fresh[fresh] = self._untried[edge[fresh]]
        pair, edge = pair[fresh], edge[fresh]
        if len(pair):
            known, self.count = self._known, self.count + len(pair)
            reward, error = self._attempt(pair, edge)
            known.edge_reward[edge], known.edge_error[edge] = reward, error
            self.problem.edge_reward[edge] = reward - error * self._cost[known.graph.landing[edge]]
            self._untried[edge] = False
        return pair


def _agreed(lazy: LazyProblem, config: OptimalConfig, plan: Plan, mean: NDArray[Any]) -> Int:
    """Return the choice [Q]: of the steps nearly as good as the best, the one with the highest mean around it."""
    problem, graph, value = lazy.problem, lazy.problem.graph, plan.value
    slack = _slack(problem, config)
    choice = plan.choice.copy()
    pairs, asked = np.arange(len(choice)), _parts(graph)
    while len(pairs):  # those whose step had not been tried choose again
        for some, first, edges in asked:
            least = value[graph.source[some]] - slack
            worth = _edge_values(problem, config, value, edges)
            around = mean[graph.landing[edges]]
            around = np.where(worth >= np.repeat(least, np.diff(np.append(first, len(worth)))), around, -np.inf)
            best, place = _best_of(around, first)
            stay = np.where(_recorded(problem, config, value, some) >= least, mean[graph.target[some]], -np.inf)
            choice[some] = np.where(best > stay, _at(edges, place), -1)
        pairs = lazy.attempt(pairs, choice[pairs])
        asked = _parts_of(graph, pairs)
    return choice


def _slack(problem: Problem, config: OptimalConfig) -> float:
    """Return how much worse than the best a step may be that is nearly as good."""
    return config.agree * float(np.abs(problem.reward).mean())


def recorded_values(problem: Problem, config: OptimalConfig) -> Value:
    """Compute the values [rows] of the recorded steps."""
    return _value_of(problem, config, np.full(len(problem.graph.source), -1))


def _solve(
    lazy: LazyProblem, config: OptimalConfig, choice: Int | None, incoming: Incoming, trials: float
) -> Plan:
    """Solve the graph, beginning with this choice; edges are tried at most so many times."""
    problem, every = lazy.problem, np.arange(len(lazy.problem.graph.source))
    choice = np.full(len(every), -1) if choice is None else choice.copy()
    value = _value_of(problem, config, choice)
    moved: Moved | None = None  # since steps were compared; None: perhaps all
    rounds, most = 1, _ROUNDS
    while rounds <= most:
        margin = config.tolerance * max(float(np.abs(value).max()), 1e-300)
        if moved is None:
            changed, residual = _compare_all(problem, config, value, margin, choice)
        else:
            changed = _compare_some(problem, config, value, margin, choice, incoming, moved)
        if not len(changed) and trials:
            changed, trials, most = lazy.attempt(every, choice), trials - 1, rounds + _ROUNDS
            _choose(problem, config, value, choice, changed)
        if not len(changed) and moved is None:
            return Plan(value, choice, rounds, residual)
        rounds += len(changed) > 0
        moved = _moved(problem, config, value, choice, incoming, changed) if len(changed) else None
        if moved is None:
            value = _value_of(problem, config, choice)
    raise InputError(f"the plan did not settle within {_ROUNDS} rounds; raise the tolerance or lower the discount")


def _compare_all(
    problem: Problem,
    config: OptimalConfig,
    value: Value,
    margin: float,
    choice: Int,
) -> tuple[Int, float]:
    """Set the choice of all pairs that have a better step; return these, and the largest gain."""
    source, residual = problem.graph.source, 0.0
    changed = [np.zeros(0, np.int64)]

    def compare(part: Part) -> tuple[Int, Int, float]:
        some, first, edges = part
        worth = _edge_values(problem, config, value, edges)
        best = np.maximum.reduceat(worth, first)
        stay = _recorded(problem, config, value, some)
        gain = np.maximum(best, stay) - value[source[some]]
        better = np.flatnonzero(gain > margin)
        edge = better
        if len(better):
            edge = _at(edges, _best_of(worth, first)[1][better])
            edge = np.where(best[better] >= stay[better], edge, -1)
        return some[better], edge, float(gain.max())

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for pair, edge, most in pool.map(compare, _parts(problem.graph)):
            choice[pair] = edge
            changed.append(pair)
            residual = max(residual, most)
    return np.concatenate(changed), residual


def _compare_some(
    problem: Problem,
    config: OptimalConfig,
    value: Value,
    margin: float,
    choice: Int,
    incoming: Incoming,
    moved: Moved,
) -> Int:
    """As `_compare_all`, but only steps that lead to rows whose values have changed, or leave where these fell."""
    (pair, edge), stays = incoming.edges(moved.row), incoming.recorded(moved.row)
    if len(fell := moved.fell):
        begin = problem.graph.begin
        pair = np.append(pair, np.repeat(fell, begin[fell + 1] - begin[fell]))
        edge, stays = np.append(edge, places(begin, fell)), np.append(stays, fell)
    worth = np.append(_edge_values(problem, config, value, edge), _recorded(problem, config, value, stays))
    pair, edge = np.append(pair, stays), np.append(edge, np.full(len(stays), -1))
    better = np.flatnonzero(worth - value[problem.graph.source[pair]] > margin)
    pair, edge, worth = pair[better], edge[better], worth[better]
    # Of equal ones the first edge, then the recorded step, as `_compare_all` has it.
    order = np.lexsort((np.where(edge < 0, len(problem.graph.landing), edge), -worth, pair))
    pair, edge = pair[order], edge[order]
    first = np.flatnonzero(np.diff(pair, prepend=-1))
    choice[pair[first]] = edge[first]
    return pair[first]


def _choose(problem: Problem, config: OptimalConfig, value: Value, choice: Int, pairs: Int) -> None:
    """Set the choice of these pairs, which have edges, to the best of their steps."""
    for some, first, edges in _parts_of(problem.graph, pairs):
        best, place = _best_of(_edge_values(problem, config, value, edges), first)
        stay = _recorded(problem, config, value, some)
        choice[some] = np.where(best >= stay, _at(edges, place), -1)


class Moved(NamedTuple):
    """The rows whose values have changed, and the pairs that leave those where these fell."""

    row: Int
    fell: Int


def _moved(
    problem: Problem,
    config: OptimalConfig,
    value: Value,
    choice: Int,
    incoming: Incoming,
    changed: Int,
) -> Moved | None:
    """Bring the values up to date after a change of choices, upstream; return where they changed.

    None where there are too many, as in a circle; then the values are of no use.
    """
    source = problem.graph.source
    share, least, steps = _FEW
    limit, rows = max(least, len(value) // share), 0
    moved: list[Int] = []
    fell: list[Int] = []
    for _ in range(steps):
        if not len(changed):
            return Moved(np.unique(np.concatenate(moved)), np.unique(np.concatenate(fell)))
        rows += len(changed)
        if rows > limit:
            return None
        row = source[changed]
        before = value[row]
        value[row] = _step_values(problem, config, value, changed, choice[changed])
        moved.append(row)
        fell.append(changed[value[row] < before])
        # Whoever steps to one of these comes next.
        (pair, edge), stays = incoming.edges(row), incoming.recorded(row)
        changed = np.append(pair[choice[pair] == edge], stays[choice[stays] < 0])
    return None


def _recorded(problem: Problem, config: OptimalConfig, value: Value, pair: Int) -> Value:
    """Return the values of recorded steps."""
    stay: Value = problem.reward[pair] + config.discount * value[problem.graph.target[pair]]
    return stay


Part = tuple[Int, Int, slice | Int]  # pairs, all their edges, and where in these each pair's begin


def _parts(graph: Graph) -> Iterator[Part]:
    """Yield the pairs that have edges, a part at a time."""
    for a in range(0, len(graph.source), _PAIRS):
        begin = graph.begin[a : a + _PAIRS + 1]
        some = np.flatnonzero(np.diff(begin))
        if len(some):
            yield a + some, begin[some] - begin[0], slice(begin[0], begin[-1])


def _parts_of(graph: Graph, pairs: Int) -> Iterator[Part]:
    """Yield these pairs, all of which have edges, a part at a time."""
    for a in range(0, len(pairs), _PAIRS):
        some = pairs[a : a + _PAIRS]
        count = graph.begin[some + 1] - graph.begin[some]
        yield some, np.cumsum(count) - count, places(graph.begin, some)


def _at(edges: slice | Int, place: Int) -> Int:
    """Return the edges at these places of some."""
    return edges.start + place if isinstance(edges, slice) else edges[place]


def _best_of(worth: Value, first: Int) -> tuple[Value, Int]:
    """Return the best of each group of consecutive entries, and its place; of equal ones the first."""
    best = np.maximum.reduceat(worth, first)
    hit = np.flatnonzero(worth == np.repeat(best, np.diff(np.append(first, len(worth)))))
    return best, hit[np.searchsorted(hit, first)]


def _edge_values(
    problem: Problem,
    config: OptimalConfig,
    value: Value,
    edges: slice | Int,
) -> Value:
    landing = problem.graph.landing[edges]
    worth: Value = problem.edge_reward[edges] + config.discount * value[landing]
    return worth


def _step_values(problem: Problem, config: OptimalConfig, value: Value, pair: Int, edge: Int) -> Value:
    """Return the values of steps: edges, or where these are -1 recorded ones."""
    worth = _recorded(problem, config, value, pair)
    taken = np.flatnonzero(edge >= 0)
    worth[taken] = _edge_values(problem, config, value, edge[taken])
    return worth


def _value_of(problem: Problem, config: OptimalConfig, choice: Int) -> Value:
    """Compute the values of always making the chosen step."""
    graph, rows = problem.graph, len(problem.end)
    taken = np.flatnonzero(choice >= 0)
    total = np.append(problem.end, 0.0)
    following = np.full(rows + 1, rows)  # the row after the last follows itself and earns nothing
    stays = np.flatnonzero(choice < 0)
    following[graph.source[stays]] = graph.target[stays]
    total[graph.source[stays]] = problem.reward[stays]
    following[graph.source[taken]] = graph.landing[choice[taken]]
    total[graph.source[taken]] = problem.edge_reward[choice[taken]]
    return discounted_sums(total, following, config.discount)[:-1]


def discounted_sums(gain: Value, following: Int, discount: float) -> Value:
    """Sum what each row and those that follow it gain, discounted; the last row follows itself and gains nothing.

    By doubling: after k rounds, the sums of 2ᵏ steps.
    """
    total, last = gain.copy(), len(gain) - 1
    while discount > _NEGLIGIBLE and (following < last).any():
        total += discount * total[following]
        following = following[following]
        discount *= discount
    return total


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
