"""Neighbours, candidates and margins against plain loops in float64, and a wall that distance does not see."""

from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import norm

from trajstitch.data import Trajectory, from_trajectories
from trajstitch.errors import InputError
from trajstitch.stitching import graph
from trajstitch.stitching import greedy as plan
from trajstitch.stitching.graph import EdgeFinder, GraphConfig, build
from trajstitch.stitching.greedy import Paths
from trajstitch.stitching.neighbours import kdtree as neighbours
from worlds import random_dataset

# So that small data have several blocks, and are scored fast.
small_blocks = patch.multiple(graph, _BLOCK=8, TOGETHER=8)


@st.composite
def worlds(draw, again=False):
    """A small data set of random states, and settings of a search in it; with `again` some states come twice."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
    data = random_dataset(draw(st.integers(0, 2**20)), lengths, obs_dim=2)
    obs = data.obs * np.float32([3, 0.5])  # so that the two metrics differ
    if again and draw(st.booleans()):
        obs[draw(st.integers(0, len(obs) - 1))] = obs[draw(st.integers(0, len(obs) - 1))]
    assume(obs.std(0).min() > 0.01)
    data = from_trajectories(
        Trajectory(obs[data.start[m] + m : data.start[m + 1] + m + 1], t.action, t.reward, t.terminal)
        for m, t in enumerate(data)
    )
    config = GraphConfig(
        draw(st.sampled_from(["scaled", "raw"])),
        draw(st.floats(0.05, 3)),
        draw(st.sampled_from([0, 0, 1, 2, 3, 8, 100])),
    )
    return data, config


def distances(data, config):
    """Of all states from all, by definition."""
    points = data.obs.astype(np.float64)
    if config.metric == "scaled":
        points = points / points.std(0)
    return np.array([[np.sqrt(np.sum((a - b) ** 2)) for b in points] for a in points])


def plain_ball(distance, row, config):
    """Rows near a row; not asked where the answer hangs on the last digit."""
    assume(np.abs(distance[row] - config.epsilon).min() > 1e-4)
    inside = [other for other in range(len(distance)) if distance[row, other] < config.epsilon]
    inside.sort(key=lambda other: distance[row, other])
    if config.nearest and len(inside) > config.nearest + 1:
        assume(distance[row, inside[config.nearest + 1]] - distance[row, inside[config.nearest]] > 1e-5)
        inside = inside[: config.nearest + 1]
    return inside


def plain_candidates(data, config, distance, source, target):
    """Successors of the states near the source, and the states near the target, but not the target."""
    last = [int(end) + m for m, end in enumerate(data.start[1:])]
    after = {row + 1 for row in plain_ball(distance, source, config) if row not in last}
    return (after | set(plain_ball(distance, target, config))) - {target}


def kept(line):
    return [int(row) for row in line if row >= 0]


# -- the two balls ---------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(worlds(again=True))
def test_neighbours_are_the_states_in_the_ball(world):
    data, config = world
    found = EdgeFinder(data, config).neighbours(np.arange(len(data.obs)))
    distance = distances(data, config)
    for row, line in enumerate(found):
        near = kept(line)
        expected = plain_ball(distance, row, config)
        assert sorted(near) == sorted(expected)
        if config.nearest:
            np.testing.assert_allclose(distance[row, near], distance[row, expected], atol=1e-5)  # nearest first


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_candidates_are_both_balls_once_without_the_target(world):
    data, config = world
    rng = np.random.default_rng(0)
    source = np.concatenate([data.row, rng.choice(data.row, 5)])  # the data's transitions and some stitched ones
    target = np.concatenate([data.row + 1, rng.integers(len(data.obs), size=5)])
    found = EdgeFinder(data, config).candidates(source, target)
    distance = distances(data, config)
    for s, t, line in zip(source, target, found, strict=True):
        near = kept(line)
        assert len(near) == len(set(near))
        assert set(near) == plain_candidates(data, config, distance, s, t)


def line_of(*trajectories):
    """States on a line."""
    return from_trajectories(
        Trajectory(np.float32(t)[:, None], np.zeros((len(t) - 1, 1)), np.zeros(len(t) - 1), False)
        for t in trajectories
    )


def test_a_known_candidate_set():
    """From 0 to 1, within 0.5: 5 follows 0.2; 0.9 is near 1; 7 follows nothing that is near; 0.1 is an end."""
    data = line_of([0, 1], [0.2, 5], [0.9, 7], [3, 0.1])
    for nearest in (0, 10):
        search = EdgeFinder(data, GraphConfig("raw", 0.5, nearest))
        assert kept(search.candidates(np.array([0]), np.array([1]))[0]) == [3, 4]
    assert kept(EdgeFinder(data, GraphConfig("raw", 0.15, 0)).candidates(np.array([0]), np.array([1]))[0]) == [4]


def test_at_most_the_nearest_are_taken():
    data = line_of([0, 10], [0.1, 20], [0.2, 30], [-0.05, 40])
    for nearest, rows in ((1, [0, 6]), (2, [0, 2, 6]), (3, [0, 2, 4, 6]), (0, [0, 2, 4, 6])):
        near = EdgeFinder(data, GraphConfig("raw", 1.0, nearest)).neighbours(np.array([0]))
        assert sorted(kept(near[0])) == rows


def test_the_scaled_metric_divides_by_the_std():
    """Two columns, one in thousands: raw distance sees that one only, scaled distance sees both."""
    obs = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    obs /= obs.std(0)
    obs[1] = obs[0] + [0.01, 2]
    large = obs * np.float32([1000, 1])
    action, reward = np.zeros((59, 1)), np.zeros(59)
    near = {}
    for name, states in (("unit", obs), ("large", large)):
        data = from_trajectories([Trajectory(states, action, reward, False)])
        for metric, epsilon in (("raw", 50.0), ("scaled", 0.5)):
            near[name, metric] = set(
                kept(EdgeFinder(data, GraphConfig(metric, epsilon, 0)).neighbours(np.array([0]))[0])
            )
    assert 1 in near["large", "raw"]
    assert 1 not in near["large", "scaled"]
    assert near["large", "scaled"] == near["unit", "scaled"] != {0}


def test_scaled_states_have_unit_std_however_many_and_large_they_are():
    """Sums of many large float32 numbers lose digits when they are taken in float32."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(200_001, 2)) * [1, 0.1] + [10_000, 0]
    data = from_trajectories([Trajectory(obs, np.zeros((200_000, 1)), np.zeros(200_000), False)])
    spread = EdgeFinder(data, GraphConfig("scaled", 0.5, 0)).spread
    np.testing.assert_allclose(np.std(data.obs / spread, 0, dtype=np.float64), 1, rtol=1e-3)


def test_a_constant_column_does_not_matter():
    data = line_of([0, 1, 2.5], [0.1, 1.2])
    wide = from_trajectories(
        Trajectory(np.insert(t.obs, 1, 7, axis=1), t.action, t.reward, t.terminal) for t in data
    )
    rows = np.arange(5)
    config = GraphConfig("scaled", 0.3, 0)
    np.testing.assert_array_equal(
        EdgeFinder(data, config).neighbours(rows), EdgeFinder(wide, config).neighbours(rows)
    )


@pytest.mark.parametrize("metric", ["raw", "scaled"])
def test_epsilon_is_the_median_step_unless_given_and_half_of_it_in_large_data(metric):
    data = line_of([0, 1, 3], [100, 104, 104.5, 110])  # steps 1 2 4 0.5 5.5; the jump between the two is no step
    scale = 1 if metric == "raw" else np.std(data.obs, dtype=np.float64)
    for large, median in ((8, 2), (7, 1)):  # there are 7 states
        with patch.object(graph, "_LARGE", large):
            search = EdgeFinder(data, GraphConfig(metric))
            assert search.epsilon == search.empty().epsilon == pytest.approx(median / scale, rel=1e-5)
            assert EdgeFinder(data, GraphConfig(metric, 0.7)).epsilon == 0.7


def test_how_many_neighbours_unless_given():
    data = line_of(np.linspace(0, 1, 400))
    for large, nearest in ((401, 200), (400, 48)):
        with patch.object(graph, "_LARGE", large):
            near = EdgeFinder(data, GraphConfig("raw", 10.0)).neighbours(np.arange(400))
            assert ((near >= 0).sum(1) == nearest + 1).all()  # and the state itself
            assert (EdgeFinder(data, GraphConfig("raw", 10.0, 5)).neighbours(np.arange(9)) >= 0).sum() == 9 * 6


def test_neighbours_in_parts_and_given_are_the_same():
    data = random_dataset(0, [9, 4, 7], obs_dim=2)
    rows, config = np.arange(len(data.obs)), GraphConfig("raw", 1.0, 4)
    whole = EdgeFinder(data, config)
    with patch.object(neighbours, "_QUERIES", 5):
        np.testing.assert_array_equal(EdgeFinder(data, config).neighbours(rows), whole.neighbours(rows))
    given = EdgeFinder(data, config, near=whole.near)
    np.testing.assert_array_equal(given.neighbours(rows[::-1]), whole.neighbours(rows)[::-1])


# -- margins ---------------------------------------------------------------------------------------------------


@dataclass
class Drift:
    """A hand-made ensemble: each member has its own drift and its own std."""

    shift: np.ndarray  # [E, S]
    width: np.ndarray  # [E, S]

    def moments(self, obs):
        obs = np.asarray(obs, np.float64)
        mean = obs[None] * 0.9 + self.shift[:, None]
        std = self.width[:, None] * (1 + 0.3 * np.sin(obs))[None]
        return mean.astype(np.float32), std.astype(np.float32)


def random_drift(seed, members, columns=2):
    rng = np.random.default_rng(seed)
    return Drift(rng.normal(size=(members, columns)) / 2, rng.uniform(0.3, 1.5, (members, columns)))


def plain_margin(model, data, source, target, landing):
    """min_i log p_i(landing|source) - log mean_i p_i(target|source), and the members' disagreement."""
    mean, std = (np.float64(moment[:, 0]) for moment in model.moments(data.obs[[source]]))
    log_p = [[norm.logpdf(data.obs[row].astype(float), m, s).sum() for m, s in zip(mean, std, strict=True)]
             for row in (landing, target)]  # fmt: skip
    spread = np.sqrt(np.mean(mean.var(0) / np.mean(std**2, 0)))
    return min(log_p[0]) - (logsumexp(log_p[1]) - np.log(len(mean))), spread


def edges_of(made, pair):
    part = slice(made.begin[pair], made.begin[pair + 1])
    return dict(
        zip(made.landing[part].tolist(), zip(made.margin[part], made.spread[part], strict=True), strict=True)
    )


@settings(max_examples=60, deadline=None)
@given(worlds(), st.integers(0, 2**20), st.sampled_from([1, 3]))
def test_edges_are_the_plausible_candidates(world, seed, members):
    data, config = world
    model = random_drift(seed, members)
    with small_blocks:
        made = build(data, model, config)
    np.testing.assert_array_equal(made.source, data.row)
    np.testing.assert_array_equal(made.target, data.row + 1)
    assert made.begin[0] == 0
    assert made.begin[-1] == len(made.landing) == len(made.margin) == len(made.spread)
    looked, distance = 0, distances(data, config)
    for pair, (source, target) in enumerate(zip(data.row, data.row + 1, strict=True)):
        candidates = plain_candidates(data, config, distance, source, target)
        looked += len(candidates)
        edges = edges_of(made, pair)
        assert set(edges) <= candidates
        assert len(edges) == made.begin[pair + 1] - made.begin[pair]
        for row in candidates:
            margin, spread = plain_margin(model, data, source, target, row)
            if abs(margin) < 1e-3:
                continue
            assert (row in edges) == (margin > 0)
            if row in edges:
                np.testing.assert_allclose(edges[row], (margin, spread), rtol=1e-3, atol=1e-3)
    assert made.candidates == looked


def test_margins_by_hand():
    """Two members, unit std, means -1 and +1 around the source; target at 2, candidates at 0 and 1."""
    data = line_of([0, 2], [5, 0.0], [6, 1.0])
    model = Drift(np.array([[-1.0], [1.0]]), np.array([[1.0], [1.0]]))
    made = build(data, model, GraphConfig("raw", 2.5, 0))
    usual = np.log(np.mean(np.exp([-(3**2) / 2, -(1**2) / 2])))
    edges = edges_of(made, 0)
    assert set(edges) == {0, 3}  # 0 is -0.5 for both; 1 is -2 for the first member and so below the usual -1.18
    for row in (0, 3):
        np.testing.assert_allclose(edges[row], (-0.5 - usual, 1.0), rtol=1e-5)


@pytest.mark.parametrize("width", [1e-6, 1e-3, 1.0, 1e6])
@pytest.mark.parametrize("away", [(50, 40, 60), (1, 0.5, 2)])
def test_densities_beyond_any_float_are_compared(width, away):
    """Of 20 columns, exp(log p) is inf for a small std, and 0 even in float64 for what is 50 std away."""
    columns = 20
    obs = np.zeros((6, columns))
    obs[[1, 3, 5]] = width * np.array(away)[:, None]  # a target, a likelier and a less likely state; sources at 0
    data = from_trajectories(Trajectory(obs[a : a + 2], np.zeros((1, 1)), np.zeros(1), False) for a in (0, 2, 4))
    std = width * np.array([1, 1.01])

    class Sharp:
        def moments(self, obs):
            return np.zeros((2, *obs.shape)), np.broadcast_to(std[:, None, None], (2, *obs.shape))

    made = build(
        data, Sharp(), GraphConfig("raw", 0.1 * width, 0)
    )  # the sources are near each other, no target is
    edges = edges_of(made, 0)
    assert set(edges) == {3}
    target, landing = (columns * (-0.5 * (width * z / std) ** 2 - np.log(std)) for z in away[:2])
    assert edges[3][0] == pytest.approx(landing.min() - logsumexp(target) + np.log(2), rel=1e-3)


def test_extension_is_building_at_once():
    data = random_dataset(1, [5, 3, 6, 2], obs_dim=2)
    model, config = random_drift(0, 3), GraphConfig("scaled", 1.5, 5)
    search = EdgeFinder(data, config)
    rng = np.random.default_rng(0)
    source = np.concatenate([data.row, rng.choice(data.row, 6)])
    target = np.concatenate([data.row + 1, rng.integers(len(data.obs), size=6)])
    with small_blocks:
        whole = search.extend(search.empty(), source, target, model)
        parts = search.empty()
        for a, b in ((0, 3), (3, 3), (3, 16), (16, len(source))):
            parts = search.extend(parts, source[a:b], target[a:b], model)
        own = build(data, model, config)
    large = search.extend(search.empty(), source, target, model)  # one block
    assert len(whole.landing) > 10
    for name in ("source", "target", "begin", "landing", "margin", "spread", "candidates", "epsilon"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
        np.testing.assert_allclose(getattr(large, name), getattr(whole, name), rtol=1e-5, atol=1e-6)
    count = own.begin[-1]
    np.testing.assert_array_equal(whole.landing[:count], own.landing)
    np.testing.assert_array_equal(whole.begin[: len(own.begin)], own.begin)


def test_progress_is_told():
    data, told = random_dataset(1, [5, 3, 6, 2], obs_dim=2), []
    with small_blocks:
        made = build(data, random_drift(0, 1), GraphConfig("raw", 1.5), lambda *what: told.append(what))
    assert [done for done, _, _ in told] == [8, 16]
    assert told[-1] == (16, 16, f"{len(made.landing):,} edges")


# -- a wall ----------------------------------------------------------------------------------------------------


@dataclass
class Climb:
    """One step up; sideways as far as `freedom` lets it."""

    freedom: float

    def moments(self, obs):
        mean = np.asarray(obs, np.float32) + np.float32([0, 1])
        return mean[None], np.broadcast_to(np.float32([self.freedom, 1]), (1, *mean.shape))


def wall():
    """Three climbs, two left of a wall at x = 0 and one right of it, where the reward is.

    The first has every other step too large, so that both others are likelier there but for the wall.
    """
    height = np.arange(6)
    climbs = [(-0.1, height + 0.3 * (height % 2), 0), (-0.101, height, 1), (0.1, height, 5)]
    return from_trajectories(
        Trajectory(np.stack([np.full(6, x), y], 1), np.zeros((5, 1)), np.full(5, reward), False)
        for x, y, reward in climbs
    )


def test_a_wall_that_distance_does_not_see_is_not_jumped():
    data = wall()
    to_go = np.concatenate([np.append(np.cumsum(t.reward[::-1])[::-1], 0) for t in data])
    paths = Paths(np.arange(15), data.start, data.terminal)
    near = EdgeFinder(data, GraphConfig("raw", 0.5, 0)).candidates(np.array([0]), np.array([1]))
    left, right = set(range(6, 12)), set(range(12, 18))
    assert set(kept(near[0])) == {7, 13}  # the next height on either side

    def landings(model):
        """Of all edges of the first climb, and of those its new trajectory takes."""
        made = build(data, model, GraphConfig("raw", 0.5, 0))
        new = plan.greedy(made, to_go, data.reward, paths, 5)
        taken = new.edge[: new.start[1]]
        return set(made.landing[: made.begin[5]].tolist()), set(made.landing[taken[taken >= 0]].tolist())

    edges, taken = landings(Climb(1.0))
    assert edges & right
    assert taken == {13}  # near and of the highest value: taken at once where there is no wall
    edges, taken = landings(Climb(0.02))
    assert edges
    assert edges <= left
    assert taken == {7}


# -- what is refused -------------------------------------------------------------------------------------------


class Wrong:
    def __init__(self, members=(2, 2), columns=(2, 2), rows=0, value=(0.0, 1.0)):
        self.members, self.columns, self.rows, self.value = members, columns, rows, value

    def moments(self, obs):
        return tuple(
            np.full((e, len(obs) + self.rows, c), v, np.float32)
            for e, c, v in zip(self.members, self.columns, self.value, strict=True)
        )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Wrong(columns=(3, 2)), "mean has shape"),
        (Wrong(columns=(2, 3)), "std has shape"),
        (Wrong(rows=1), "mean has shape"),
        (Wrong(members=(2, 3)), "shape"),
        (Wrong(members=(0, 0)), "member"),
        (Wrong(value=(np.nan, 1)), "mean is not finite"),
        (Wrong(value=(np.inf, 1)), "mean is not finite"),
        (Wrong(value=(0, np.nan)), "std is not finite"),
        (Wrong(value=(0, 0)), "std must be above 0"),
        (Wrong(value=(0, -1)), "std must be above 0"),
    ],
)
def test_a_model_that_gives_nonsense_is_refused(model, message):
    with pytest.raises(InputError, match=message):
        build(random_dataset(0, [3, 4], obs_dim=2), model, GraphConfig())


def test_one_matrix_instead_of_an_ensemble_is_refused():
    class Flat:
        def moments(self, obs):
            return np.zeros_like(obs), np.ones_like(obs)

    with pytest.raises(InputError, match="mean has shape.*members"):
        build(random_dataset(0, [3, 4], obs_dim=2), Flat(), GraphConfig())


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"metric": "cosine"}, "metric must be scaled or raw"),
        ({"epsilon": 0.0}, "epsilon must be above 0"),
        ({"epsilon": -1.0}, "epsilon must be above 0"),
        ({"epsilon": float("nan")}, "epsilon must be above 0"),
        ({"nearest": -1}, "nearest must be 0"),
    ],
)
def test_impossible_settings(bad, message):
    with pytest.raises(InputError, match=message):
        GraphConfig(**bad)


def test_states_that_stand_still_have_no_automatic_epsilon():
    data = line_of([1, 1, 1, 2], [4, 4])
    with pytest.raises(InputError, match="epsilon cannot be chosen"):
        EdgeFinder(data, GraphConfig())
    assert EdgeFinder(data, GraphConfig(epsilon=0.1)).epsilon == 0.1
