"""The optimal planner against plain value iteration and plain walks, on any small graph."""

import dataclasses
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajstitch.errors import InputError
from trajstitch.stitching import optimal
from trajstitch.stitching.graph import Graph
from trajstitch.stitching.incoming import incoming_of
from trajstitch.stitching.optimal import (
    Moved,
    Neighbourhood,
    OptimalConfig,
    Plan,
    Problem,
    cover,
    follow,
    recorded_values,
    solve,
)

ROUND = [-2.0, -1.0, 0.0, 1.0, 2.0]  # so that steps are often equally good


def graph_of(source, target, landing):
    """A graph of pairs, with a list of landings for each."""
    count = [len(one) for one in landing]
    flat = np.array([row for one in landing for row in one], np.int64)
    none = np.zeros(len(flat), np.float32)
    begin = np.concatenate([[0], np.cumsum(count, dtype=np.int64)])
    return Graph(np.array(source, np.int64), np.array(target, np.int64), begin, flat, none, none, 0, 0.1, none)


@st.composite
def problems(draw):
    """Any small graph: circles, steps to oneself, pairs without an edge, states without a way on."""
    rows = draw(st.integers(2, 8))
    source = draw(st.permutations(range(rows)))[: draw(st.integers(1, rows))]
    row = st.integers(0, rows - 1)
    target = [draw(row) for _ in source]
    graph = graph_of(source, target, [draw(st.lists(row, max_size=3)) for _ in source])
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    shift = draw(st.sampled_from([0, -2, 2]))
    few = draw(st.booleans())

    def numbers(size):
        return rng.choice(ROUND, size) + shift if few else rng.normal(size=size) + shift

    end = np.where(rng.random(rows) < 0.5, 0.0, numbers(rows))  # 0 where the episode really ended
    error = rng.choice([0, 0.5], len(graph.landing)) if few else rng.uniform(0, 1, len(graph.landing))
    return Problem(graph, numbers(len(source)), numbers(len(graph.landing)), error, end)


def ways_on(problem, discount, cost):
    """For each row its ways on: (edge or -1, what the step itself is worth, the row it leads to)."""
    graph = problem.graph
    ways = [[] for _ in problem.end]
    for pair, row in enumerate(graph.source):
        ways[row].append((-1, problem.reward[pair], graph.target[pair]))
        for edge in range(graph.begin[pair], graph.begin[pair + 1]):
            landing = graph.landing[edge]
            pays = problem.edge_reward[edge] - discount * problem.edge_error[edge] * cost[landing]
            ways[row].append((edge, pays, landing))
    return ways


def plain_values(problem, discount, cost):
    """Values by the equation, one state at a time, until nothing changes."""
    ways = ways_on(problem, discount, cost)
    value = [0.0 if has else float(end) for has, end in zip(ways, problem.end, strict=True)]
    change = np.inf
    while change > 1e-12:
        change = 0.0
        for row, has in enumerate(ways):
            if has:
                new = max(pays + discount * value[to] for _, pays, to in has)
                change = max(change, abs(new - value[row]))
                value[row] = float(new)
    return np.array(value)


@settings(max_examples=200, deadline=None)
@given(
    problem=problems(),
    discount=st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    caution=st.sampled_from([0.0, 1.0, 3.0]),
    slope=st.sampled_from([None, 0.3, 2.0]),
)
def test_values_are_those_of_plain_value_iteration(problem, discount, caution, slope):
    rows = len(problem.end)
    slopes = None if slope is None else slope * np.linspace(0, 1, rows)
    cost = np.zeros(rows) if slopes is None else caution * slopes
    config = OptimalConfig(discount=discount, caution=caution, agree=0.0, tolerance=1e-12)
    with patch.object(optimal, "_PAIRS", 3):  # in several parts
        plan = solve(problem, config, None if slopes is None else Neighbourhood(lambda _: slopes, None))
    np.testing.assert_allclose(plan.value, plain_values(problem, discount, cost), rtol=1e-8, atol=1e-8)
    assert plan.residual <= 1e-12 * max(np.abs(plan.value).max(), 1e-300)
    # The choice is one of the pair's own steps, and attains the value.
    graph, ways = problem.graph, ways_on(problem, discount, cost)
    for pair, row in enumerate(graph.source):
        taken = [pays + discount * plan.value[to] for edge, pays, to in ways[row] if edge == plan.choice[pair]]
        assert len(taken) == 1
        assert plan.value[row] == pytest.approx(taken[0], rel=1e-9, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(problem=problems(), discount=st.sampled_from([0.0, 0.9, 0.99]))
def test_a_coarse_tolerance_bounds_what_is_lost(problem, discount):
    """No step is better than the chosen one by more than the tolerance, so values lack at most that every step."""
    with patch.object(optimal, "_PAIRS", 2):
        plan = solve(problem, OptimalConfig(discount=discount, tolerance=0.1))
    margin = 0.1 * np.abs(plan.value).max()
    assert plan.residual <= margin
    lacking = plain_values(problem, discount, np.zeros(len(problem.end))) - plan.value
    assert lacking.min() >= -1e-8
    assert lacking.max() <= margin / (1 - discount) + 1e-8
    better = [
        pays + discount * plan.value[to] - plan.value[row]
        for row, has in enumerate(ways_on(problem, discount, np.zeros(len(problem.end))))
        for _, pays, to in has
    ]
    assert plan.residual == pytest.approx(max([0.0, *better]), abs=1e-9)


def test_slopes_are_those_of_the_values_before():
    """First of the recorded values, then of each plan."""
    graph = graph_of([0, 1], [1, 2], [[3], [3]])
    problem = Problem(graph, np.zeros(2), np.zeros(2), np.array([0.5, 0.5]), np.array([0, 0, 1.0, 4.0]))
    asked, told = [], []

    def slopes(values):
        asked.append(values[0])
        return np.full(4, [2.0, 4.0, 1.0, 0.0][len(asked) - 1], np.float32)

    config = OptimalConfig(discount=0.5, caution=1.0, agree=0.0)
    plan = solve(problem, config, Neighbourhood(slopes, None), lambda *a: told.append(a[:2]))
    # Of the recorded steps 0.5·0.5·1, then of the plans 0.5·(4 - 0.5·2), 0.5·(4 - 0.5·4), 0.5·(4 - 0.5·1).
    assert asked == [0.25, 1.5, 1.0, 1.75]
    assert plan.value[0] == 2.0
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    careless = OptimalConfig(caution=0.0, agree=0.0)
    solve(problem, careless, Neighbourhood(lambda _: pytest.fail("no caution needs no slopes"), None))


@pytest.mark.parametrize(("agree", "choice"), [(0.0, 0), (0.1, 2), (1.0, 1)])
def test_of_nearly_equal_steps_the_one_in_the_best_neighbourhood_is_taken(agree, choice):
    """From row 0 to rows 2, 3 and 4, worth 0, 0.5 and 0.05 less than the best; around them it is best at row 3."""
    graph = graph_of([0], [1], [[2, 3, 4]])
    problem = Problem(graph, np.array([-1.0]), np.array([0, -0.5, -0.05]), np.zeros(3), np.zeros(5))
    means = np.array([0, 0.7, 1.0, 3.0, 2.0])
    around = Neighbourhood(lambda v: np.zeros(5), lambda v: means)
    assert solve(problem, OptimalConfig(agree=agree), around).choice.tolist() == [choice]
    means[2:] = 0.5
    kept = solve(problem, OptimalConfig(agree=1.0), around).choice.tolist()
    assert kept == [-1]  # the recorded step, whose landing has the best neighbourhood of all
    means[2:] = 0.7
    assert solve(problem, OptimalConfig(agree=1.5), around).choice.tolist() == [-1]  # no seam for nothing


@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_units_of_rewards_do_not_matter(unit):
    """Neither what is nearly as good nor what is better depends on them."""
    graph = graph_of([0], [1], [[2, 3, 4]])
    reward, edge_reward = unit * np.array([-1.0]), unit * np.array([0, -0.5, -0.05])
    problem = Problem(graph, reward, edge_reward, np.zeros(3), np.zeros(5))
    around = Neighbourhood(lambda v: np.zeros(5), lambda v: np.array([0, 0.7, 1.0, 3.0, 2.0]))
    assert solve(problem, OptimalConfig(agree=0.0), around).choice.tolist() == [0]
    assert solve(problem, OptimalConfig(agree=0.1), around).choice.tolist() == [2]


def test_of_equal_better_steps_an_edge_is_taken_before_the_recorded_one():
    """From a worse edge; whether all steps are compared or only those to the rows that changed."""
    graph = graph_of([0], [1], [[2, 3]])
    problem = Problem(graph, np.array([1.0]), np.array([0.0, 1.0]), np.zeros(2), np.zeros(4))
    config, value, moved = OptimalConfig(), np.zeros(4), Moved(np.array([1, 2, 3]), np.zeros(0, np.int64))
    for compare, more in ((optimal._compare_all, ()), (optimal._compare_some, (incoming_of(graph, 4), moved))):
        choice = np.array([0])
        compare(problem, config, value, 1e-6, choice, *more)
        assert choice.tolist() == [1]


def test_of_equal_steps_the_recorded_one_then_the_first_edge():
    graph = graph_of([0, 1], [3, 3], [[4, 5], [3, 4, 5]])
    problem = Problem(graph, np.array([1.0, 0]), np.ones(5), np.zeros(5), np.zeros(6))
    assert solve(problem, OptimalConfig()).choice.tolist() == [-1, 2]


def test_a_plan_that_does_not_settle_is_a_sentence():
    """The first round takes the step to where it pays; that this was right takes a second one."""
    graph = graph_of([0, 1], [2, 2], [[1], []])
    problem = Problem(graph, np.array([0.0, 1.0]), np.zeros(1), np.zeros(1), np.zeros(3))
    assert solve(problem, OptimalConfig()).rounds == 2
    with patch.object(optimal, "_ROUNDS", 1), pytest.raises(InputError, match="did not settle within 1 rounds"):
        solve(problem, OptimalConfig())


def wide_problem(rows=3000, seed=0):
    """Steps cost 1 until the last row; recorded ones go in circles, and edges a few rows ahead or back."""
    rng = np.random.default_rng(seed)
    source = np.arange(rows - 1)
    landing = [np.clip(row + rng.integers(-30, 12, rng.integers(0, 5)), 0, rows - 1) for row in source]
    graph = graph_of(source, np.where(source % 50 == 49, source - 49, source + 1), landing)
    reward = np.where(source == rows - 2, 0.0, -1.0)
    end = np.zeros(rows)
    many = len(graph.landing)
    return Problem(graph, reward, rng.uniform(-1.2, -0.8, many), rng.uniform(0, 0.1, many), end)


@pytest.mark.parametrize("seed", range(3))
def test_following_changes_upstream_changes_nothing(seed):
    problem = wide_problem(seed=seed)
    around = Neighbourhood(lambda value: np.abs(np.gradient(value)), lambda value: value)
    upstream = optimal._moved
    with patch.object(optimal, "_moved", lambda *given: None):
        plain = solve(problem, OptimalConfig(), around)
    outcomes = []
    with patch.object(optimal, "_moved", lambda *given: outcomes.append(upstream(*given)) or outcomes[-1]):
        plan = solve(problem, OptimalConfig(), around)
    assert sum(moved is not None for moved in outcomes) > 10
    np.testing.assert_array_equal(plan.value, plain.value)
    np.testing.assert_array_equal(plan.choice, plain.choice)
    assert (plan.rounds, plan.residual) == (plain.rounds, plain.residual)


@settings(max_examples=40, deadline=None)
@given(problem=problems(), row=st.sets(st.integers(0, 7)))
def test_incoming_steps_are_those_that_lead_there(problem, row):
    graph, rows = problem.graph, len(problem.end)
    row = np.array(sorted(one for one in row if one < rows), np.int64)
    incoming = incoming_of(graph, rows)
    pair, edge = incoming.edges(row)
    owner = np.repeat(np.arange(len(graph.source)), np.diff(graph.begin))
    assert sorted(edge) == np.flatnonzero(np.isin(graph.landing, row)).tolist()
    assert (owner[edge] == pair).all()
    assert sorted(incoming.recorded(row)) == np.flatnonzero(np.isin(graph.target, row)).tolist()


@settings(max_examples=40, deadline=None)
@given(problem=problems(), discount=st.sampled_from([0.0, 0.9, 0.99]))
def test_recorded_values_are_those_of_a_plain_walk(problem, discount):
    graph = problem.graph
    value = recorded_values(problem, OptimalConfig(discount=discount))
    pair_of = {int(row): pair for pair, row in enumerate(graph.source)}
    for row in range(len(problem.end)):
        at, total, weight = row, 0.0, 1.0
        while weight > 1e-13:
            if (pair := pair_of.get(at, -1)) >= 0:
                total, at = total + weight * problem.reward[pair], int(graph.target[pair])
            else:
                total += weight * problem.end[at]
                break
            weight *= discount
        assert value[row] == pytest.approx(total, rel=1e-9, abs=1e-9)


# -- promises ----------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    problem=problems(),
    discount=st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    slope=st.sampled_from([None, 0.3, 2.0]),
    kind=st.sampled_from(["any", "flattering"]),
    seed=st.integers(0, 2**20),
)
def test_edges_are_tried_until_all_that_are_taken_have_been(problem, discount, slope, kind, seed):
    """The values are those of the equation in which what was found stands for what was promised."""
    graph, rows, rng = problem.graph, len(problem.end), np.random.default_rng(seed)
    edges = len(graph.landing)
    better = rng.choice([0.0, 0.1, 1.0], (2, edges)) * (rng.choice([-1, 1], (2, edges)) if kind == "any" else 1)
    true = np.where(rng.random(edges) < 0.3, -np.inf, problem.edge_reward - better[0])
    error = np.maximum(problem.edge_error + better[1], 0)
    asked = []

    def attempt(pair, edge):
        assert ((graph.begin[pair] <= edge) & (edge < graph.begin[pair + 1])).all()
        asked.extend(edge.tolist())
        return true[edge], error[edge]

    around = None if slope is None else Neighbourhood(lambda _: slope * np.linspace(0, 1, rows), None)
    cost = np.zeros(rows) if slope is None else 2 * slope * np.linspace(0, 1, rows)
    config = OptimalConfig(discount=discount, caution=2.0, agree=0.0, tolerance=1e-12)
    before = problem.edge_reward.copy(), problem.edge_error.copy()
    with patch.object(optimal, "_PAIRS", 3):
        plan = solve(problem, config, around, attempt=attempt)
    np.testing.assert_array_equal(before, (problem.edge_reward, problem.edge_error))  # the caller's
    assert plan.tried == len(asked) == len(set(asked))
    taken = plan.choice[plan.choice >= 0]
    assert set(taken.tolist()) <= set(asked)
    assert np.isfinite(true[taken]).all()
    known = [problem.edge_reward.astype(float), problem.edge_error.astype(float)]
    known[0][asked], known[1][asked] = true[asked], error[asked]
    found = dataclasses.replace(problem, edge_reward=known[0], edge_error=known[1])
    expected = plain_values(found, discount, cost)
    np.testing.assert_allclose(plan.value, expected, rtol=1e-8, atol=1e-8)
    if kind == "flattering":  # then what was not tried is no better than it promises
        found = dataclasses.replace(problem, edge_reward=true, edge_error=error)
        np.testing.assert_allclose(plan.value, plain_values(found, discount, cost), rtol=1e-8, atol=1e-8)


def test_few_edges_are_tried_where_promises_hold():
    """Each of many pairs has ten edges; only the best one is tried, unless it is found to be less."""
    many = 50
    graph = graph_of(range(many), [many] * many, [[many] * 10] * many)
    promised = np.tile(np.arange(10.0), many)
    problem = Problem(graph, np.zeros(many), promised, np.zeros(10 * many), np.zeros(many + 1))
    true = promised.copy()
    true[9] = -np.inf
    true[18:20] = 7.5, 8.5
    plan = solve(problem, OptimalConfig(), attempt=lambda pair, edge: (true[edge], np.zeros(len(edge))))
    assert plan.choice.tolist() == [8, 19, *range(29, 10 * many, 10)]
    assert plan.tried == many + 1


def test_of_steps_that_agree_one_is_taken_that_was_tried():
    """As above, but row 4's edge is found to be impossible; then row 3 is too far off, and row 2 is taken."""
    graph = graph_of([0], [1], [[2, 3, 4]])
    problem = Problem(graph, np.array([-1.0]), np.array([0, -0.5, -0.05]), np.zeros(3), np.zeros(5))
    around = Neighbourhood(lambda v: np.zeros(5), lambda v: np.array([0, 0.7, 1.0, 3.0, 2.0]))
    asked = []

    def attempt(pair, edge):
        asked.append(edge.tolist())
        return np.where(edge == 2, -np.inf, problem.edge_reward[edge]), np.zeros(len(edge))

    assert solve(problem, OptimalConfig(agree=0.1), around, attempt=attempt).choice.tolist() == [0]
    assert asked == [[0], [2]]


# -- walks -------------------------------------------------------------------------------------------------------


@st.composite
def plans(draw):
    """A graph in which every row makes at most one step, anywhere, and the plan that makes it."""
    rows = draw(st.integers(1, 24))
    kind = draw(st.sampled_from(["any", "circles", "line"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    to = rng.permutation(rows) if kind == "circles" else rng.integers(0, rows, rows)
    if kind == "line":
        to = np.minimum(np.arange(rows) + 1, rows - 1)
        to[rng.integers(0, rows)] = rng.integers(0, rows)
    source = rng.permutation(rows)[: draw(st.integers(1, rows))]
    how = rng.choice(2, len(source))  # recorded, an edge
    target = np.where(how == 0, to[source], rng.integers(0, rows, len(source)))
    landing = [
        [int(rng.integers(0, rows)), int(to[row])] if one == 1 else []
        for row, one in zip(source, how, strict=True)
    ]
    graph = graph_of(source, target, landing)
    choice = np.where(how == 1, graph.begin[1:] - 1, -1)
    step = {int(row): (pair, int(choice[pair]), int(to[row])) for pair, row in enumerate(source)}
    return graph, Plan(np.zeros(rows), choice, 1, 0.0), rows, step


@settings(max_examples=80, deadline=None)
@given(plan=plans(), horizon=st.integers(1, 30), data=st.data())
def test_following_is_a_plain_loop(plan, horizon, data):
    graph, chosen, rows, step = plan
    first = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=5))
    walks = follow(graph, chosen, rows, np.array(first), horizon)
    assert len(walks.start) == len(first) + 1
    for number, at in enumerate(first):
        walked = []
        while at in step and len(walked) < horizon:
            pair, edge, to = step[at]
            walked.append((pair, edge))
            at = to
        part = slice(walks.start[number], walks.start[number + 1])
        assert list(zip(walks.pair[part], walks.edge[part], strict=True)) == walked
        assert walks.last[number] == at


@settings(max_examples=200, deadline=None)
@given(plan=plans())
def test_a_cover_makes_every_step_once(plan):
    graph, chosen, rows, step = plan
    walks = cover(graph, chosen, rows)
    source = graph.source[walks.pair]
    assert sorted(source.tolist()) == sorted(step)  # each state that has a step, once
    assert walks.start[0] == 0
    assert walks.start[-1] == len(source)
    assert (np.diff(walks.start) > 0).all()
    assert len(walks.last) == len(walks.start) - 1
    for row, pair, edge in zip(source.tolist(), walks.pair, walks.edge, strict=True):
        assert step[row][:2] == (pair, edge)
    leads = {to for _, _, to in step.values()}
    for a, b, last in zip(walks.start[:-1], walks.start[1:], walks.last, strict=True):
        part = source[a:b].tolist()
        for row, following in zip(part, [*part[1:], last], strict=True):
            assert step[row][2] == following
        # As long as possible: a walk begins where none leads to, else at the lowest row of a circle.
        if part[0] in leads:
            assert last == part[0] == min(part)
        # It ends where no step leads on, or where another walk, or it itself, has been.
        assert last not in step or last in source
    # No two walks could be one: no walk that begins where no step leads to starts where another ends.
    assert len(walks.last) == _fewest(step)


def _fewest(step):
    """The least number of walks: heads are states that no step leads to, or circles that none enters."""
    leads = {to for _, _, to in step.values()}
    return sum(row not in leads for row in step) + _closed_circles(step)


def _closed_circles(step):
    """Circles in which each state keeps the circle's own step, which the lowest of several rows decides."""
    count, seen = 0, set()
    kept = {}
    for row in sorted(step):
        kept.setdefault(step[row][2], row)
    for row in step:
        at, walked = row, []
        while at in step and at not in walked and at not in seen:
            walked.append(at)
            at = step[at][2]
        if at in walked:
            circle = walked[walked.index(at) :]
            count += all(kept[one] in circle for one in circle)
        seen.update(walked)
    return count


def test_a_cover_without_any_step_is_empty():
    graph = graph_of([], [], [])
    walks = cover(graph, Plan(np.zeros(3), np.zeros(0, np.int64), 1, 0.0), 3)
    assert len(walks.pair) == len(walks.last) == 0
    assert walks.start.tolist() == [0]


@pytest.mark.parametrize(
    "bad", [{"discount": 1.0}, {"discount": -0.1}, {"caution": -1.0}, {"tolerance": 0.0}, {"caution": np.nan}]
)
def test_impossible_settings(bad):
    with pytest.raises(InputError, match="discount must be from 0 to below 1"):
        OptimalConfig(**bad)
