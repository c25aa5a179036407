"""Greedy planning against Algorithm 1 written as a plain loop, and in worlds with known answers."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajstitch.data import Trajectory, from_trajectories
from trajstitch.stitching import greedy as plan
from trajstitch.stitching.graph import Graph, GraphConfig, build
from trajstitch.stitching.greedy import Paths

# -- Algorithm 1, one state at a time --------------------------------------------------------------------------


def plain_greedy(pairs, edges, value, paths, horizon, max_repeats=None):
    """New trajectories, each a list of (pair, row landed on or None) and whether it is terminal.

    pairs: (source, target, reward) of each; edges: rows each pair's source may step to instead;
    paths: (pairs of a trajectory, terminal) of each trajectory of the current data.
    """
    places = []  # (row, remaining return, tour, position); steps first, then the ends
    for number, (walk, _) in enumerate(paths):
        for position, pair in enumerate(walk):
            places.append((pairs[pair][0], sum(pairs[q][2] for q in walk[position:]), number, position))
    for number, (walk, _) in enumerate(paths):
        places.append((pairs[walk[-1]][1], 0, number, len(walk)))

    def best_place(row):
        best = None
        for place in places:
            if place[0] == row and (best is None or place[1] > best[1]):
                best = place
        return best

    def following(place):
        """States of the current data from there on."""
        _, _, number, position = place
        walk = paths[number][0]
        return [pairs[q][0] for q in walk[position:]] + [pairs[walk[-1]][1]]

    proposed = []
    for number in range(len(paths)):
        tour, position, steps, terminal = number, 0, [], False
        visited = Counter()
        while len(steps) < horizon:
            pair = paths[tour][0][position]
            source, target, _ = pairs[pair]
            visited[source] += 1
            best = None
            for row in sorted(edges[pair]):
                here, better = best_place(row) is not None, value[row] > value[target]
                if here and better and (best is None or value[row] > value[best]):
                    if max_repeats is not None:
                        left = horizon - len(steps)  # states that may still come
                        states = visited + Counter(following(best_place(row))[:left])
                        if max(states.values()) > max_repeats + 1:
                            continue
                    best = row
            steps.append((pair, best))
            if best is None:
                position += 1
            else:
                _, _, tour, position = best_place(best)
            if position == len(paths[tour][0]):
                terminal = paths[tour][1]
                break
        proposed.append((steps, terminal))
    return proposed


# -- from lists to arrays and back -----------------------------------------------------------------------------


def graph_of(pairs, edges):
    count = [len(edges[q]) for q in range(len(pairs))]
    landing = np.array([row for q in range(len(pairs)) for row in edges[q]], np.int64)
    none = np.zeros(len(landing), np.float32)
    begin = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    source, target = (np.array([pair[k] for pair in pairs], np.int64) for k in (0, 1))
    return Graph(source, target, begin, landing, none, none, len(landing), 1.0)


def tours_of(paths):
    return Paths(
        pair=np.array([pair for walk, _ in paths for pair in walk], np.int64),
        start=np.cumsum([0] + [len(walk) for walk, _ in paths]).astype(np.int64),
        terminal=np.array([terminal for _, terminal in paths], bool),
    )


def lists_of(graph, proposal):
    """A proposal as the plain loop gives it; an edge must belong to the pair it is taken at."""
    lists = []
    for m, terminal in enumerate(proposal.terminal):
        part = slice(proposal.start[m], proposal.start[m + 1])
        steps = []
        for pair, edge in zip(proposal.pair[part].tolist(), proposal.edge[part].tolist(), strict=True):
            assert edge == -1 or graph.begin[pair] <= edge < graph.begin[pair + 1]
            steps.append((pair, None if edge == -1 else int(graph.landing[edge])))
        lists.append((steps, bool(terminal)))
    assert proposal.start[0] == 0
    assert proposal.start[-1] == len(proposal.pair) == len(proposal.edge)
    return lists


def greedy_lists(pairs, edges, value, paths, horizon, max_repeats=None):
    graph = graph_of(pairs, edges)
    reward = np.array([pair[2] for pair in pairs], np.float32)
    proposal = plan.greedy(graph, np.asarray(value, float), reward, tours_of(paths), horizon, max_repeats)
    return lists_of(graph, proposal)


# -- random graphs ---------------------------------------------------------------------------------------------


def random_case(seed, lengths, stitched, density, later):
    """Original pairs and `stitched` more; edges; the original paths or, `later`, walks over any of the pairs.

    Values and rewards are small whole numbers, so there are ties and no rounding.
    """
    rng = np.random.default_rng(seed)
    rows = sum(lengths) + len(lengths)
    last = set((np.cumsum(lengths) + np.arange(len(lengths))).tolist())
    alive = [row for row in range(rows) if row not in last]
    pairs = [(row, row + 1) for row in alive]
    for _ in range(stitched):
        pair = (int(rng.choice(alive)), int(rng.integers(rows)))
        if pair not in pairs:
            pairs.append(pair)
    pairs = [(source, target, int(rng.integers(-2, 4))) for source, target in pairs]
    edges = [[row for row in range(rows) if row != target and rng.random() < density] for _, target, _ in pairs]
    value = rng.integers(0, 6, rows).tolist()
    offset = np.concatenate([[0], np.cumsum(lengths)])
    walks = [list(range(a, b)) for a, b in pairwise(offset.tolist())]
    if later:
        leaving = {row: [q for q, pair in enumerate(pairs) if pair[0] == row] for row in range(rows)}
        for walk in walks:
            del walk[1:]
            walk[0] = int(rng.choice(leaving[pairs[walk[0]][0]]))
            while len(walk) < 10 and (ways := leaving[pairs[walk[-1]][1]]) and rng.random() < 0.9:
                walk.append(int(rng.choice(ways)))
    return pairs, edges, value, [(walk, bool(rng.random() < 0.5)) for walk in walks]


@st.composite
def cases(draw):
    return random_case(
        draw(st.integers(0, 2**20)),
        draw(st.lists(st.integers(1, 6), min_size=1, max_size=5)),
        draw(st.integers(0, 8)),
        draw(st.sampled_from([0.0, 0.05, 0.2, 0.6])),
        draw(st.booleans()),
    )


@settings(max_examples=400, deadline=None)
@given(cases(), st.integers(1, 25), st.none() | st.integers(0, 3))
def test_greedy_is_algorithm_1(case, horizon, max_repeats):
    assert greedy_lists(*case, horizon, max_repeats) == plain_greedy(*case, horizon, max_repeats)


def test_the_random_graphs_are_worth_comparing():
    """What the comparison above is about does happen there."""
    happened = Counter()
    for seed in range(60):
        case = random_case(seed, [3, 5, 2, 4], 6, 0.1, later=seed % 2 == 1)
        pairs, edges, _, paths = case
        free = plain_greedy(*case, 12)
        here = {pairs[q][0] for walk, _ in paths for q in walk} | {pairs[walk[-1]][1] for walk, _ in paths}
        used = [q for walk, _ in paths for q in walk]
        happened["pair in several places"] += max(Counter(used).values()) > 1
        happened["edge to a state that is gone"] += any(row not in here for q in used for row in edges[q])
        happened["repeats matter"] += free != plain_greedy(*case, 12, 0)
        for (steps, terminal), (walk, _) in zip(free, paths, strict=True):
            turned = [pair for pair, row in steps if row is not None]
            happened["stitch"] += bool(turned)
            happened["stitch of a stitched pair"] += any(pair >= 14 for pair in turned)
            happened["lands on an end"] += steps[-1][1] is not None and len(steps) < 12
            happened["horizon"] += len(steps) == 12
            happened["terminal"] += terminal
            happened["as it was"] += [pair for pair, _ in steps] == walk and not turned
    expected = {
        "pair in several places", "edge to a state that is gone", "repeats matter", "stitch", "terminal",
        "stitch of a stitched pair", "lands on an end", "horizon", "as it was",
    }  # fmt: skip
    assert {name for name, times in happened.items() if times >= 5} == expected


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(1, 25))
def test_every_proposed_step_starts_where_the_last_one_landed(case, horizon):
    pairs, _, _, paths = case
    for (steps, _), (walk, _) in zip(greedy_lists(*case, horizon), paths, strict=True):
        assert 1 <= len(steps) <= horizon
        assert pairs[steps[0][0]][0] == pairs[walk[0]][0]
        for (pair, row), (after, _) in pairwise(steps):
            assert pairs[after][0] == (pairs[pair][1] if row is None else row)


# -- worlds with known answers ---------------------------------------------------------------------------------

CHAINS = [(0, 1, 1), (1, 2, 1), (3, 4, 0), (4, 5, 9)]  # 0→1→2 and 3→4→5, the second worth more in its last step
CHAIN_TOURS = [([0, 1], False), ([2, 3], True)]


def test_two_step_chains():
    edges = [[4], [], [], []]
    value = [2, 1, 0, 9, 9, 0]
    first, second = greedy_lists(CHAINS, edges, value, CHAIN_TOURS, 10)
    assert first == ([(0, 4), (3, None)], True)  # 0→4 is new, then the second's own last step and its end
    assert second == ([(2, None), (3, None)], True)


@pytest.mark.parametrize("terminal", [True, False])
def test_landing_on_a_last_state_ends_there(terminal):
    paths = [([0, 1], not terminal), ([2, 3], terminal)]
    first, _ = greedy_lists(CHAINS, [[5], [], [], []], [0, 1, 0, 0, 0, 2], paths, 10)
    assert first == ([(0, 5)], terminal)


def test_the_highest_value_wins_and_of_equals_the_lowest_row():
    pairs = [(0, 1, 0), (2, 3, 0), (4, 5, 0), (6, 7, 0)]
    paths = [([q], False) for q in range(4)]
    edges = [[2, 4, 6], [], [], []]
    for value, best in (
        ([0, 1, 2, 0, 3, 0, 2, 0], 4),
        ([0, 1, 2, 0, 3, 0, 3, 0], 4),
        ([0, 1, 3, 0, 3, 0, 3, 0], 2),
    ):
        assert greedy_lists(pairs, edges, value, paths, 5)[0][0][0] == (0, best)


def test_an_edge_that_is_worth_no_more_than_the_target_is_not_taken():
    edges = [[4], [], [], []]
    for worth, taken in ((0.5, None), (1, None), (1.5, 4)):
        first, _ = greedy_lists(CHAINS, edges, [0, 1, 0, 0, worth, 0], CHAIN_TOURS, 10)
        assert first[0][0] == (0, taken)


def test_a_state_that_left_the_data_is_no_candidate():
    """The second best is taken then, although the best is still in the graph."""
    edges = [[3, 4], [], [], []]
    value = [0, 1, 0, 9, 5, 0]
    here, _ = greedy_lists(CHAINS, edges, value, CHAIN_TOURS, 10)
    gone, _ = greedy_lists(CHAINS, edges, value, [([0, 1], False), ([3], True)], 10)
    assert here[0] == [(0, 3), (2, None), (3, None)]
    assert gone[0] == [(0, 4), (3, None)]


def test_goes_on_along_the_occurrence_with_the_highest_remaining_return():
    """State 4 occurs three times: on the way to 5 (-1), to 6 (3) and as an end (0)."""
    pairs = [(0, 1, 0), (3, 4, 100), (4, 5, -1), (4, 6, 3), (7, 4, 0)]
    edges = [[4], [], [], [], []]
    value = [0, 0, 0, 0, 1, 0, 0, 0]
    poor, rich, end = ([1, 2], False), ([1, 3], False), ([4], True)
    own = ([0], False)
    assert greedy_lists(pairs, edges, value, [own, poor, rich, end], 9)[0] == ([(0, 4), (3, None)], False)
    assert greedy_lists(pairs, edges, value, [own, poor, end], 9)[0] == ([(0, 4)], True)
    assert greedy_lists(pairs, edges, value, [own, end, rich], 9)[0] == ([(0, 4), (3, None)], False)


def test_of_equal_remaining_returns_the_first_place_counts():
    """Also where the rewards are not whole numbers and much comes after them."""
    pairs = [(0, 1, 0), (3, 4, 0), (4, 5, 0.3), (4, 6, 0.3), (7, 8, 0.1), (4, 9, 0)]
    edges = [[4], *[[]] * 5]
    value = [0, 0, 0, 0, 1, 0, 0, 0, 0, 0]
    long = ([4] * 9, False)
    own, one, other = ([0], False), ([1, 2], False), ([1, 3], True)
    for rest in ([], [long]):
        assert greedy_lists(pairs, edges, value, [own, one, *rest, other, *rest], 9)[0] == (
            [(0, 4), (2, None)],
            False,
        )
        assert greedy_lists(pairs, edges, value, [own, other, *rest, one, *rest], 9)[0] == (
            [(0, 4), (3, None)],
            True,
        )
    nothing = ([5], False)  # a step of return 0 comes before an end, wherever the trajectories are
    end = ([1], True)
    assert greedy_lists(pairs, edges, value, [own, end, nothing], 9)[0] == ([(0, 4), (5, None)], False)


@settings(max_examples=50, deadline=None)
@given(cases())
def test_nothing_to_stitch_leaves_everything_as_it_is(case):
    pairs, edges, value, paths = case
    as_it_is = [([(pair, None) for pair in walk], terminal) for walk, terminal in paths]
    assert greedy_lists(pairs, [[]] * len(pairs), value, paths, 25) == as_it_is
    assert greedy_lists(pairs, edges, [7] * len(value), paths, 25) == as_it_is


def test_a_cut_at_the_horizon_is_no_terminal():
    pairs = [(row, row + 1, 0) for row in range(4)]
    paths = [([0, 1, 2, 3], True)]
    for horizon, terminal in ((3, False), (4, True), (5, True)):
        ((steps, ended),) = greedy_lists(pairs, [[]] * 4, [0] * 5, paths, horizon)
        assert len(steps) == min(horizon, 4)
        assert ended == terminal


RING = [(row, row + 1, 1) for row in range(6)]  # 0→1→ … →6, and state 6 is near 0: an edge 5→0 closes the ring
RING_EDGES = [[], [], [], [], [], [0]]
RING_VALUE = [6, 5, 4, 3, 2, 1, 0]


def test_a_profitable_ring_runs_to_the_horizon():
    ((steps, terminal),) = greedy_lists(RING, RING_EDGES, RING_VALUE, [([0, 1, 2, 3, 4, 5], True)], 100)
    assert len(steps) == 100
    assert not terminal
    assert steps[:7] == [(0, None), (1, None), (2, None), (3, None), (4, None), (5, 0), (0, None)]


@pytest.mark.parametrize("max_repeats", [0, 1, 2, 5])
def test_a_ring_is_left_after_so_many_repeats(max_repeats):
    paths = [([0, 1, 2, 3, 4, 5], True)]
    ((steps, terminal),) = greedy_lists(RING, RING_EDGES, RING_VALUE, paths, 100, max_repeats)
    assert len(steps) == 6 * (1 + max_repeats)
    assert [row for _, row in steps if row is not None] == [0] * max_repeats
    assert terminal


def states_of(pairs, steps):
    last, row = steps[-1]
    return [pairs[pair][0] for pair, _ in steps] + [pairs[last][1] if row is None else row]


@settings(max_examples=100, deadline=None)
@given(cases(), st.integers(1, 25), st.integers(0, 2))
def test_no_state_is_repeated_more_often_than_allowed(case, horizon, max_repeats):
    """Whatever the edges are, over recorded steps too, if it was so in the data before."""
    pairs, _, _, paths = case
    for (steps, _), (walk, _) in zip(greedy_lists(*case, horizon, max_repeats), paths, strict=True):
        before = Counter(states_of(pairs, [(pair, None) for pair in walk]))
        if max(before.values()) <= max_repeats + 1:
            assert max(Counter(states_of(pairs, steps)).values()) <= max_repeats + 1


def test_recorded_steps_may_not_close_a_loop_either():
    """0 → 1, on to 3 and 4; from 4 to 2 would lead on to 3 again, though 2 is new. Then 5, not 2."""
    pairs = [(row, row + 1, 1) for row in range(5)]
    edges = [[], [3], [], [], [2]]
    value = [0, 0, 2, 3, 4, 1]
    walk = [([0, 1, 2, 3, 4], True)]
    ((free, _),) = greedy_lists(pairs, edges, value, walk, 7)
    assert states_of(pairs, free) == [0, 1, 3, 4, 2, 3, 4, 2]
    ((steps, terminal),) = greedy_lists(pairs, edges, value, walk, 7, 0)
    assert (states_of(pairs, steps), terminal) == ([0, 1, 3, 4, 5], True)
    ((short, _),) = greedy_lists(pairs, edges, value, walk, 4, 0)
    assert states_of(pairs, short) == [0, 1, 3, 4, 2]  # where the horizon is, nothing follows


def test_the_next_best_edge_is_taken_instead_of_one_that_is_not_allowed():
    """From 2 back to 0 is best, then to 6; to 4 is worth less."""
    pairs = [(0, 1, 1), (1, 2, 1), (2, 3, 1), (4, 5, 1), (6, 7, 1)]
    edges = [[], [], [4, 0, 6], [], []]
    walks = [([0, 1, 2], False), ([3], False), ([4], True)]
    value = [9, 0, 0, 1, 2, 0, 5, 0]
    for max_repeats, landing in ((None, 0), (0, 6), (1, 0)):
        steps, _ = greedy_lists(pairs, edges, value, walks, 4, max_repeats)[0]
        assert steps[2] == (2, landing)


# -- the crossing ----------------------------------------------------------------------------------------------


class Wander:
    """One step to the right, that is sure, and up or down as it happens."""

    def moments(self, obs):
        mean = np.asarray(obs, np.float32) + np.float32([1, 0])
        return mean[None], np.broadcast_to(np.float32([0.1, 1]), (1, *mean.shape))


def crossing():
    """Two trajectories that cross in (3, 0); the first earns before, the second after it.

    The first is steeper, so to go on along the second is the likelier step where they meet.
    """
    time = np.arange(7)
    lines = [np.stack([time, slope * (time - 3)], 1).astype(np.float32) for slope in (1.1, -1.0)]
    rewards = [[2, 2, 2, 0, 0, 0], [0, 0, 0, 2, 2, 2]]
    action = np.zeros((6, 1), np.float32)
    return from_trajectories(
        Trajectory(obs, action, np.float32(r), True) for obs, r in zip(lines, rewards, strict=True)
    )


def test_the_crossing_is_found_and_is_the_optimum():
    data = crossing()
    graph = build(data, Wander(), GraphConfig(metric="raw", epsilon=2.15, nearest=0))
    to_go = np.concatenate([np.append(np.cumsum(t.reward[::-1])[::-1], 0) for t in data])
    paths = Paths(np.arange(12), data.start, data.terminal)
    first, second = lists_of(graph, plan.greedy(graph, to_go, data.reward, paths, 6))

    def earned(row, pair, landing):
        """A step earns 2 from the first trajectory before the crossing, and onto the second after it."""
        before = data.obs[row, 0] < 3
        return 2.0 * (row < 7 if before else (graph.target[pair] if landing is None else landing) >= 7)

    def best_return(row):
        """Over every path the graph allows."""
        here = [q for q in range(12) if graph.source[q] == row]
        ways = [(q, None) for q in here]
        ways += [(q, int(x)) for q in here for x in graph.landing[graph.begin[q] : graph.begin[q + 1]]]
        return max(
            (earned(row, q, x) + best_return(graph.target[q] if x is None else x) for q, x in ways), default=0
        )

    rows = [int(graph.source[q]) for q, _ in first[0]]
    assert rows == [0, 1, 2, 3, 11, 12]  # the first up to the crossing, the second from there on
    assert [row for _, row in first[0]] == [None, None, None, 11, None, None]
    assert sum(earned(graph.source[q], q, x) for q, x in first[0]) == best_return(0) == 12
    assert data.returns.max() == 6
    assert [x for _, x in second[0]] == [None] * 6
