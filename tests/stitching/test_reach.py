"""Reachable edges on worlds whose actions are known in closed form, against plain slow loops."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.data import Dataset, Trajectory, from_trajectories
from trajstitch.errors import InputError
from trajstitch.stitching import reach
from trajstitch.stitching.edges import Reachable
from trajstitch.stitching.reach import Outcome, ReachConfig, ReachFinder
from worlds import walk_dataset


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """So that there are several, and little is padded."""
    monkeypatch.setattr(reach, "_BLOCK", 128)
    monkeypatch.setattr(reach, "_TRIES", 256)


class World:
    """A known world as an ensemble: each member is off by its own amount [E, S]."""

    off: tuple = ((0.0, 0.0),)

    def __init__(self, off=((0.0, 0.0),)):
        self.off = np.array(off, np.float32)

    def steps(self, obs, action):
        next_obs = self.next(np.asarray(obs), np.asarray(action)).astype(np.float32)
        members = next_obs + self.off[:, None]
        return members, members[..., 0]  # the reward is how far right a step lands


class Point(World):
    """A point that an action moves."""

    def next(self, obs, action):
        return obs + 0.2 * action

    def best(self, obs, goal, low, high):
        return np.clip((goal - obs) / 0.2, low, high)


class Momentum(World):
    """A place and its speed; an action changes the speed, so the next place is known before."""

    def next(self, obs, action):
        return np.stack([obs[:, 0] + 0.2 * obs[:, 1], obs[:, 1] + 0.2 * action[:, 0]], 1)

    def best(self, obs, goal, low, high):
        return np.clip((goal[1:] - obs[1:]) / 0.2, low, high)


class Curved(World):
    """The more an action pushes, the more each further push does."""

    def __init__(self, curve=1.5):
        super().__init__()
        self.curve = curve

    def next(self, obs, action):
        return obs + 0.2 * np.sinh(self.curve * action)


def rolled(world, actions=2, many=10, steps=15, seed=0, terminal=False) -> Dataset:
    """Trajectories of random actions in a world, from near the middle."""
    rng = np.random.default_rng(seed)
    obs = [0.3 * rng.normal(size=(many, 2)).astype(np.float32)]
    action = rng.uniform(-1, 1, (many, steps, actions)).astype(np.float32)
    for t in range(steps):
        obs.append(world.next(obs[-1], action[:, t]).astype(np.float32))
    path = np.stack(obs, 1)
    return from_trajectories(
        Trajectory(path[m], action[m], path[m, 1:, 0], terminal and m % 2 == 0) for m in range(many)
    )


def extended(finder, source=None, target=None):
    data = finder.data
    source = data.row if source is None else source
    return finder.extend(finder.empty(), source, data.row + 1 if target is None else target)


def edges_of(graph):
    """Edges as (pair, landing), with the place of each."""
    owner = np.repeat(np.arange(len(graph.source)), np.diff(graph.begin))
    return {(int(p), int(row)): k for k, (p, row) in enumerate(zip(owner, graph.landing, strict=True))}


def slow_edges(finder, world, config):
    """By definition, one state after the other: the action, where it leads, and its distance from the goal."""
    data, found = finder.data, {}
    low, high = data.action.min(0), data.action.max(0)
    for pair, source in enumerate(data.row):
        for goal in finder.net:
            near = min(np.linalg.norm(finder.place[row] - finder.place[goal]) for row in (source, source + 1))
            if goal in (source, source + 1) or near > config.radius:
                continue
            action = world.best(data.obs[source], data.obs[goal], low, high)
            lands = world.next(data.obs[source][None], action[None])[0]
            found[pair, int(goal)] = np.linalg.norm((lands - data.obs[goal]) / finder.unit), action
    return found


@pytest.mark.parametrize(("world", "actions"), [(Point(), 2), (Momentum(), 1)])
def test_edges_are_what_an_action_reaches(world, actions):
    data = rolled(world, actions)
    config = ReachConfig(net=0.2, radius=3.0, nearest=1000, tolerance=0.1)
    finder = ReachFinder(data, world, config)
    graph = extended(finder)
    expected, found = slow_edges(finder, world, config), edges_of(graph)
    sure = {edge for edge, (error, _) in expected.items() if error < 0.099}
    perhaps = {edge for edge, (error, _) in expected.items() if error < 0.101}
    assert sure <= set(found) <= perhaps
    assert graph.candidates == len(expected)
    assert len(sure) > 200
    assert len(sure) < 0.6 * len(expected)
    at = np.array([found[edge] for edge in sure])
    error = graph.epsilon - graph.margin[at]
    np.testing.assert_allclose(error, [expected[edge][0] for edge in sure], atol=2e-3)
    assert (graph.spread < 1e-5).all()
    # Steps are made of the action of the closed form, which leads there, and of the reward of landing there.
    pair, landing = np.array(sorted(sure)).T
    aim = finder.aim(data.row[pair], landing)
    np.testing.assert_allclose(aim.action, [expected[edge][1] for edge in sorted(sure)], atol=5e-3)
    lands = world.next(data.obs[data.row[pair]], aim.action)
    np.testing.assert_allclose(
        np.linalg.norm((lands - data.obs[landing]) / finder.unit, axis=1), aim.error, atol=1e-3
    )
    np.testing.assert_allclose(aim.reward, lands[:, 0], atol=1e-5)
    np.testing.assert_allclose(
        graph.reward[[found[edge] for edge in sorted(sure)]], data.obs[landing, 0], atol=0.1 * finder.unit[0]
    )


def test_with_momentum_the_next_place_cannot_be_chosen():
    data = rolled(Momentum(), 1)
    finder = ReachFinder(data, Momentum(), ReachConfig(net=0.2, radius=3.0, nearest=1000, tolerance=0.1))
    graph = extended(finder)
    owner = np.repeat(data.row, np.diff(graph.begin))
    place = data.obs[owner, 0] + 0.2 * data.obs[owner, 1]
    assert (np.abs(data.obs[graph.landing, 0] - place) <= 0.1 * finder.unit[0] + 1e-6).all()
    assert np.abs(data.obs[graph.landing, 1] - data.obs[owner, 1]).max() > 0.15  # but the speed


def plain_aim(finder, world, source, goal):
    """The action as the module's first lines say: linear around the recorded one, corrected where it misses."""
    data = finder.data
    low, high = data.action.min(0), data.action.max(0)
    recorded = data.action[data.row.tolist().index(source)].astype(np.float64)
    start = world.next(data.obs[source][None], recorded[None])[0]
    slope = np.zeros((2, 2))
    for k in range(2):
        shift = 0.1 * (high[k] - low[k]) * (-1 if recorded[k] > (low[k] + high[k]) / 2 else 1)
        moved = recorded + shift * np.eye(2)[k]
        slope[:, k] = (world.next(data.obs[source][None], moved[None])[0] - start) / shift / finder.unit
    square = slope.T @ slope
    inverse = np.linalg.solve(square + 1e-4 * np.trace(square) / 2 * np.eye(2), slope.T)
    tries, lands, action = [], start, recorded
    for _ in range(2):
        away, before = (data.obs[goal] - lands) / finder.unit, action
        action = np.clip(before + inverse @ away, low, high)
        promise = np.linalg.norm(away - slope @ (action - before))
        lands = world.next(data.obs[source][None], action[None])[0]
        tries.append((np.linalg.norm((lands - data.obs[goal]) / finder.unit), action))
    first, second = tries
    promising = finder.tolerance <= first[0] and promise < finder.tolerance
    again = promising and second[0] < first[0]
    worse = promising and second[0] > first[0] + 0.01
    return (*(second if again else first), again, worse, promise)


@pytest.mark.parametrize(("curve", "tolerance"), [(1.5, 0.1), (4.0, 0.4)])
def test_what_a_linear_model_misses_is_corrected_once(curve, tolerance):
    """Unless that makes it worse, as where the world is curved a lot."""
    world = Curved(curve)
    data = rolled(world, many=6, steps=12)
    finder = ReachFinder(data, world, ReachConfig(net=0.0, nearest=30, tolerance=tolerance))
    source, landing = np.meshgrid(data.row, np.arange(len(data.obs)), indexing="ij")
    near = np.linalg.norm(finder.place[source] - finder.place[landing], axis=2) < 1.5
    some = np.random.default_rng(0).permutation(near.sum())[:300]
    source, landing = source[near][some], landing[near][some]
    aim = finder.aim(source, landing)
    expected = [plain_aim(finder, world, s, g) for s, g in zip(source.tolist(), landing.tolist(), strict=True)]
    error, action, again, worse, promise = (np.array(column) for column in zip(*expected, strict=True))
    # Near a threshold single precision decides otherwise.
    clear = (np.abs(error - tolerance) > 2e-3) & (np.abs(promise - tolerance) > 2e-3)
    np.testing.assert_allclose(aim.error[clear], error[clear], atol=2e-3)
    np.testing.assert_allclose(aim.action[clear], action[clear], atol=2e-3)
    rescued = again & (error < tolerance)
    assert rescued.sum() > 5
    assert (aim.error[rescued & clear] < tolerance).all()
    assert worse.any() == (curve == 4)
    assert (aim.action >= data.action.min(0)).all()
    assert (aim.action <= data.action.max(0)).all()
    assert (np.abs(aim.action) > np.abs(data.action).max(0) - 1e-6).any()  # some would rather leave the range


def test_disagreement_counts_as_landing_error():
    data = rolled(Point())
    apart = 0.05 * ReachFinder(data, Point(), ReachConfig()).unit[0]
    world = Point(off=[(apart, 0), (-apart, 0)])
    finder = ReachFinder(data, world, ReachConfig(tolerance=0.1))
    graph = extended(finder)
    assert len(graph.landing)
    np.testing.assert_allclose(graph.spread, 0.05, atol=1e-4)
    assert (graph.epsilon - graph.margin > 0.0499).all()
    aim = finder.aim(data.row[:30], data.row[:30] + 1)  # recorded steps are hit exactly, on average
    np.testing.assert_allclose(aim.error, 0.05, atol=1e-3)
    np.testing.assert_allclose(aim.spread, 0.05, atol=1e-3)
    np.testing.assert_allclose(aim.reward, data.obs[data.row[:30] + 1, 0], atol=1e-4)  # the members' mean
    far = ReachFinder(data, Point(off=[(3 * apart, 0), (-3 * apart, 0)]), ReachConfig(tolerance=0.1))
    assert not len(extended(far).landing)


# -- landing states and candidates -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0.3, 1.0])
def test_the_net_has_one_state_for_each_cell_and_all_real_ends(size):
    data = rolled(Point(), terminal=True)
    finder = ReachFinder(data, Point(), ReachConfig(net=size))
    ends = data.last_row[data.terminal]
    assert np.isin(ends, finder.net).all()
    assert (np.diff(finder.net) > 0).all()
    cells = {}
    for row, place in enumerate(finder.place):
        cells.setdefault(tuple(np.floor(place / size)), []).append(row)
    kept = set(finder.net.tolist())
    for cell, rows in cells.items():
        own = [row for row in rows if row in kept]
        off = [np.linalg.norm(finder.place[row] / size - cell - 0.5) for row in rows]
        assert rows[int(np.argmin(off))] in own  # the one nearest to the middle
        assert all(row in ends for row in own if row != rows[int(np.argmin(off))])
    gap = np.linalg.norm(finder.place[:, None] - finder.place[finder.net][None], axis=2).min(1)
    assert gap.max() <= size * np.sqrt(2)
    assert len(finder.net) < len(data.obs)


@pytest.mark.parametrize("columns", [1, 3, 60])
def test_cells_have_the_same_number_where_they_are_the_same(columns):
    """With many columns there are more possible cells than 64 bits can count."""
    rng = np.random.default_rng(0)
    cell = rng.integers(-40, 40, (300, columns)).astype(np.float32)
    cell[200:] = cell[rng.permutation(200)[:100]]
    number = reach._numbered(cell)
    assert (number >= 0).all()
    same = (cell[:, None] == cell[None]).all(2)
    assert ((number[:, None] == number[None]) == same).all()


def test_without_a_net_every_state_is_one():
    data = rolled(Point())
    assert ReachFinder(data, Point(), ReachConfig(net=0)).net.tolist() == list(range(len(data.obs)))


@pytest.mark.parametrize("nearest", [5, 1000])
def test_candidates_are_near_a_state_or_its_successor(nearest):
    data = rolled(Point(), terminal=True)
    finder = ReachFinder(data, Point(), ReachConfig(net=0.5, radius=1.3, nearest=nearest))
    source = np.concatenate([data.row, data.last_row])
    target = np.concatenate([data.row + 1, np.full(len(data), -1)])
    shown = finder.candidates(source, target)
    for row, goal, line in zip(source, target, shown, strict=True):
        expected = set()
        for middle in (row, goal) if goal >= 0 else (row,):
            distance = np.linalg.norm(finder.place[finder.net] - finder.place[middle], axis=1)
            order = np.argsort(distance, kind="stable")[:nearest]
            expected |= set(finder.net[order[distance[order] <= 1.3]].tolist())
        expected -= {int(row), int(goal)}
        assert sorted(line[line >= 0].tolist()) == sorted(expected)  # a list: each only once


def test_a_pair_without_a_recorded_step_has_edges():
    data = rolled(Point())
    finder = ReachFinder(data, Point(), ReachConfig())
    graph = extended(finder, data.last_row, np.full(len(data), -1))
    assert (np.diff(graph.begin) > 0).any()
    assert (graph.target == -1).all()
    owner = np.repeat(graph.source, np.diff(graph.begin))
    change = data.obs[graph.landing] - data.obs[owner]
    assert (np.abs(change) <= 0.2 + 0.05 * finder.unit + 1e-6).all()


def test_around_are_the_nearest_other_landing_states():
    data = rolled(Point())
    finder = ReachFinder(data, Point(), ReachConfig())
    near, distance = finder.around
    for row, others, far in zip(finder.net, near, distance, strict=True):
        exact = np.linalg.norm(finder.place[finder.net] - finder.place[row], axis=1)
        exact = exact[finder.net != row]
        np.testing.assert_allclose(far, np.sort(exact)[:8], rtol=1e-5)
        assert row not in others
    np.testing.assert_allclose(
        np.linalg.norm(finder.place[near] - finder.place[finder.net][:, None], axis=2), distance, rtol=1e-5
    )


def test_slopes_are_the_steepest_changes_and_at_least_the_median():
    data = rolled(Point())
    finder = ReachFinder(data, Point(), ReachConfig())
    value = np.random.default_rng(0).normal(size=len(data.obs))
    slope = Reachable(finder).slopes(value)
    near, distance = finder.around
    steepest = [
        max(abs(value[row] - value[other]) / max(d, 1e-3) for other, d in zip(others, far, strict=True))
        for row, others, far in zip(finder.net, near, distance, strict=True)
    ]
    np.testing.assert_allclose(slope[finder.net], np.maximum(steepest, np.median(steepest)), rtol=1e-5)
    assert not slope[np.setdiff1d(np.arange(len(data.obs)), finder.net)].any()


# -- aiming ------------------------------------------------------------------------------------------------------


def test_aiming_again_says_what_extending_found():
    """Edges in any order, of several blocks, the same step several times."""
    data = rolled(Curved())
    finder = ReachFinder(data, Curved(), ReachConfig(tolerance=0.1))
    graph = extended(finder)
    owner = np.repeat(graph.source, np.diff(graph.begin))
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(len(owner)), 2))
    aim = finder.aim(owner[order], graph.landing[order])
    np.testing.assert_allclose(aim.error, graph.epsilon - graph.margin[order], atol=1e-6)
    np.testing.assert_allclose(aim.reward, graph.reward[order], atol=1e-6)
    np.testing.assert_allclose(aim.spread, graph.spread[order], atol=1e-6)
    lands = Curved().next(data.obs[owner[order]], aim.action)
    np.testing.assert_allclose(lands[:, 0], aim.reward, atol=1e-5)
    nothing = finder.aim(owner[:0], graph.landing[:0])
    assert [column.shape for column in nothing] == [(0, 2), (0,), (0,), (0,)]


def test_an_edge_is_as_good_as_the_tolerance_says():
    """Whoever lets more pass finds the same edges and more; no error is above the tolerance."""
    data = rolled(Curved())
    few, more = (ReachFinder(data, Curved(), ReachConfig(tolerance=t)) for t in (0.03, 0.1))
    graph, larger = extended(few), extended(more)
    assert set(edges_of(graph)) < set(edges_of(larger))
    assert (graph.margin > 0).all()
    assert graph.epsilon == 0.03


class OnlyPure(eqx.Module):
    """Curved, as a model of ours: blocks then run in several threads."""

    def steps(self, obs, action):
        next_obs = jnp.asarray(obs) + 0.2 * jnp.sinh(1.5 * jnp.asarray(action))
        return next_obs[None], next_obs[None, :, 0]


@pytest.mark.parametrize("world", [Curved(), OnlyPure()])
def test_blocks_at_the_same_time_change_nothing(world, monkeypatch):
    data = rolled(Curved(), many=30)
    finder = ReachFinder(data, world, ReachConfig(tolerance=0.1))
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert finder._threads == (4 if isinstance(world, OnlyPure) else 1)
    graph = extended(finder)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    alone = extended(finder)
    for name in ("begin", "landing", "margin", "spread", "reward"):
        np.testing.assert_array_equal(getattr(graph, name), getattr(alone, name))
    assert len(graph.landing) > 2000


@pytest.mark.parametrize("nearest", [4, 48])
def test_around_landing_states_are_the_nearest_others(nearest):
    """Also where some of these are beyond the radius, and where fewer neighbours of a state are known."""
    data = rolled(Point())
    finder = ReachFinder(data, Point(), ReachConfig(net=0.3, radius=1.2, nearest=nearest))
    near, distance = finder.around
    away = np.linalg.norm(finder.place[finder.net][:, None] - finder.place[finder.net], axis=2)
    np.fill_diagonal(away, np.inf)
    assert 0 < (np.sort(away)[:, 7] > 1.2).sum() < len(near)
    np.testing.assert_allclose(distance, np.sort(away)[:, :8], rtol=1e-5)
    assert near.shape == distance.shape
    assert np.isin(near, finder.net).all()


@pytest.mark.parametrize(("world", "actions"), [(Point(), 2), (Momentum(), 1)])
def test_where_the_world_is_linear_promises_are_what_trying_finds(world, actions):
    data = rolled(world, actions)
    finder = ReachFinder(data, world, ReachConfig(net=0.2, radius=3.0, nearest=1000, tolerance=0.1))
    tried = extended(finder)
    promised = finder.extend(finder.empty(), data.row, data.row + 1, tried=False)
    places = edges_of(promised)
    at = np.array([places[edge] for edge in edges_of(tried)])  # all are promised
    assert len(at) > 200
    assert len(promised.landing) < 1.01 * len(at)
    assert promised.candidates == tried.candidates
    for name, off in (("margin", 1e-3), ("spread", 1e-5), ("reward", 1e-3)):
        np.testing.assert_allclose(getattr(promised, name)[at], getattr(tried, name), atol=off)


def test_a_promised_spread_is_that_of_the_recorded_action():
    data = rolled(Point())
    finder = ReachFinder(data, Point([(0.02, 0), (-0.02, 0)]), ReachConfig(tolerance=0.4))
    tried = extended(finder)
    promised = finder.extend(finder.empty(), data.row, data.row + 1, tried=False)
    apart = 0.02 / finder.unit[0]
    np.testing.assert_allclose(tried.spread, apart, rtol=1e-3)
    np.testing.assert_allclose(promised.spread, apart, rtol=1e-3)
    assert (promised.epsilon - promised.margin >= apart * 0.999).all()  # it is part of the landing error


def test_promises_of_a_curved_world_are_often_true():
    data = rolled(Curved())
    finder = ReachFinder(data, Curved(), ReachConfig(tolerance=0.4))
    graph = finder.extend(finder.empty(), data.row, data.row + 1, tried=False)
    owner = np.repeat(data.row, np.diff(graph.begin))
    aim = finder.aim(owner, graph.landing)
    assert 0.8 < (aim.error < finder.tolerance).mean() < 1  # some are false, so they must be tried
    assert np.corrcoef(graph.reward, aim.reward)[0, 1] > 0.99


def test_graphs_grow():
    data = rolled(Point())
    finder = ReachFinder(data, Point(), ReachConfig())
    whole = extended(finder)
    part = finder.extend(finder.empty(), data.row[:40], data.row[:40] + 1)
    part = finder.extend(part, data.row[40:], data.row[40:] + 1)
    for item in dataclasses.fields(whole):
        np.testing.assert_array_equal(getattr(part, item.name), getattr(whole, item.name))
    same = finder.extend(whole, data.row[:0], data.row[:0])
    assert len(same.source) == len(whole.source)


def test_blocks_do_not_matter(monkeypatch):
    data = rolled(Curved())
    graphs, aims = [], []
    for block, tries, few in ((16, 48, 8), (1024, 16384, 64)):
        monkeypatch.setattr(reach, "_BLOCK", block)
        monkeypatch.setattr(reach, "_FEW", few)
        monkeypatch.setattr(reach, "_TRIES", tries)
        finder = ReachFinder(data, Curved(), ReachConfig(tolerance=0.1))
        graphs.append(extended(finder))
        aims.append(finder.aim(data.row[::-1], data.row[::-1] + 1))
    for name in ("source", "target", "begin", "landing", "candidates"):
        np.testing.assert_array_equal(getattr(graphs[0], name), getattr(graphs[1], name))
    for name in ("margin", "spread", "reward"):
        np.testing.assert_allclose(getattr(graphs[0], name), getattr(graphs[1], name), atol=1e-5)
    for one, other in zip(*aims, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


# -- the tolerance -----------------------------------------------------------------------------------------------


class Wrong(Point):
    """Right but for a share of the states, where it is off by this many typical steps."""

    def __init__(self, share, off):
        super().__init__()
        self.share, self.wrong = share, off

    def next(self, obs, action):
        some = np.argsort(np.argsort((obs * 1000 % 1)[:, 0])) < self.share * len(obs)  # as good as random
        return obs + 0.2 * action + some[:, None] * np.array([self.wrong, 0])


@pytest.mark.parametrize(
    ("share", "off", "usual", "tolerance"),
    [
        (1, 0.0, 0.0, 0.05),
        (1, 0.07, 0.07, 0.14),
        (1, 0.7, 0.7, 0.4),
        (0.05, 0.7, 0.0, 0.05),
        (0.15, 0.08, 0.08, 0.16),
    ],
)
def test_the_tolerance_is_twice_what_nine_of_ten_recorded_steps_keep(share, off, usual, tolerance):
    data = rolled(Point())
    unit = ReachFinder(data, Point(), ReachConfig()).unit[0]
    finder = ReachFinder(data, Wrong(share, off * unit), ReachConfig())
    assert finder.usual == pytest.approx(usual, abs=1e-3)
    assert finder.tolerance == pytest.approx(tolerance, abs=1e-3)
    assert finder.empty().epsilon == finder.tolerance
    assert ReachFinder(data, Wrong(share, off * unit), ReachConfig(tolerance=0.02)).tolerance == 0.02


def test_a_unit_is_the_median_step():
    data = rolled(Momentum(), 1)
    finder = ReachFinder(data, Momentum(), ReachConfig())
    step = (finder.place[data.row + 1] - finder.place[data.row]).astype(np.float64)
    assert np.median(np.linalg.norm(step, axis=1)) == pytest.approx(1, abs=1e-3)
    spread = data.obs.std(0, dtype=np.float64)
    assert finder.unit[0] / finder.unit[1] == pytest.approx(spread[0] / spread[1], rel=1e-4)


# -- what a caller can do wrong ----------------------------------------------------------------------------------


class Shapes:
    def __init__(self, change):
        self.change = change

    def steps(self, obs, action):
        return self.change(*Point().steps(obs, action))


@pytest.mark.parametrize(
    "change",
    [
        lambda next_obs, reward: (next_obs[0], reward[0]),
        lambda next_obs, reward: (next_obs[..., :1], reward),
        lambda next_obs, reward: (next_obs, reward[0]),
        lambda next_obs, reward: (next_obs, reward[..., None]),
        lambda next_obs, reward: (next_obs[:, :-1], reward[:, :-1]),
    ],
)
def test_a_model_of_other_shapes_is_refused(change):
    with pytest.raises(InputError, match=r"world model's steps have shapes .* not \[members, 256, 2\]"):
        ReachFinder(rolled(Point()), Shapes(change), ReachConfig())


@pytest.mark.parametrize("column", [0, 1])
def test_a_model_that_is_not_finite_is_refused(column):
    """Of one state is enough: comparisons with nan are false, so edges would be missing in silence."""
    data = rolled(Point())

    def steps(obs, action):
        answer = Point().steps(obs, action)
        answer[column][:, obs[:, 0] == data.obs[20, 0]] = np.nan
        return answer

    model = Shapes(None)
    model.steps = steps
    with pytest.raises(InputError, match="world model's steps are not finite for some states"):
        ReachFinder(data, model, ReachConfig(tolerance=0.1))


def test_states_that_never_move_are_refused():
    data = walk_dataset(many=3, steps=4)
    still = dataclasses.replace(data, obs=np.repeat(data.obs[:1], len(data.obs), 0))
    with pytest.raises(InputError, match="half of all steps do not change the state"):
        ReachFinder(still, Point(), ReachConfig())


class Wider(Point):
    """With a constant third column, about which the model may be wrong."""

    def __init__(self, wrong=0.0):
        super().__init__()
        self.wrong = wrong

    def steps(self, obs, action):
        next_obs, reward = Point().steps(obs[:, :2], np.asarray(action)[:, :2])
        third = obs[:, 2:] + np.float32(self.wrong)
        return np.concatenate([next_obs, np.broadcast_to(third, (1, len(obs), 1))], 2), reward


@pytest.mark.parametrize("wrong", [0.0, 2e-6, 0.3])
@pytest.mark.parametrize("noise", [0.0, 4e-7])
def test_a_constant_column_changes_nothing(wrong, noise):
    """Nor does one that rounding has made almost constant, nor what the model says of it."""
    data = rolled(Point())
    third = 5 + noise * np.random.default_rng(0).normal(size=(len(data.obs), 1))
    wide = dataclasses.replace(data, obs=np.concatenate([data.obs, third.astype(np.float32)], 1))
    plain = extended(ReachFinder(data, Point(), ReachConfig(tolerance=0.1)))
    graph = extended(ReachFinder(wide, Wider(wrong), ReachConfig(tolerance=0.1)))
    assert len(plain.landing) > 500
    assert edges_of(graph) == edges_of(plain)
    np.testing.assert_allclose(graph.margin, plain.margin, atol=1e-5)


class Pushed(Point):
    """A third action pushes as well; where it is left out, it is this."""

    def __init__(self, constant):
        super().__init__()
        self.constant = constant

    def next(self, obs, action):
        push = action[:, 2:] if action.shape[1] == 3 else np.float32(self.constant)
        return obs + 0.2 * (action[:, :2] + 0.3 * push)


@pytest.mark.parametrize("constant", [0.0, 0.5])
def test_a_constant_action_changes_nothing(constant):
    """It cannot be chosen, so the others have to do everything."""
    data = rolled(Point())
    column = np.full((data.transitions, 1), constant, np.float32)
    more = dataclasses.replace(data, action=np.concatenate([data.action, column], 1))
    plain, graph = (
        extended(ReachFinder(one, Pushed(constant), ReachConfig(tolerance=0.1))) for one in (data, more)
    )
    assert len(plain.landing) > 500
    assert set(edges_of(graph)) == set(edges_of(plain))
    np.testing.assert_allclose(graph.margin, plain.margin, atol=1e-3)


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"net": -0.1}, "net must not be below 0"),
        ({"radius": 0.0}, "radius above 0"),
        ({"nearest": 0}, "nearest at least 1"),
        ({"tolerance": 0.0}, "tolerance must be above 0, not 0"),
        ({"tolerance": -1.0}, "leave it out to have it chosen"),
        ({"net": np.nan}, "net must not be below 0"),
    ],
)
def test_impossible_settings(bad, sentence):
    with pytest.raises(InputError, match=sentence):
        ReachConfig(**bad)


def test_an_action_is_corrected_only_where_members_agree_enough():
    """A correction cannot mend disagreement: what is left and the spread together are below the tolerance."""
    finder = ReachFinder(rolled(Point()), Point(), ReachConfig(tolerance=0.1))
    row = finder.data.row[:4]
    line, landing, none = finder._line(row), row + 1, np.zeros(4, np.float32)
    far = np.array([[0, 0], [0, 0], [0, 0], [1000, 0]], np.float32)  # no action leads back from there
    spread = np.array([0.0, 0.099, 0.101, 0.0], np.float32)
    tried = Outcome(finder.recorded[row], none, none, spread, finder.place[landing] + far)
    assert finder._correctable(line, tried, np.arange(4), landing).tolist() == [True, True, False, False]
