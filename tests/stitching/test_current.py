"""One iteration by hand: what is accepted, what the value learns from, who is held out, what is recorded."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from trajstitch.data import Trajectory, from_trajectories
from trajstitch.models.value import ValueConfig
from trajstitch.progress import silent
from trajstitch.stitching import improve as stitch
from trajstitch.stitching.current import (
    Current,
    Pairs,
    Setup,
    accept,
    ends_of,
    just_make,
    pairs_of,
    step_number,
    to_dataset,
)
from trajstitch.stitching.edges import Plausible, Reachable, Steps
from trajstitch.stitching.graph import EdgeFinder, Graph, GraphConfig
from trajstitch.stitching.greedy import Ends, Paths, occurrences
from trajstitch.stitching.improve import Improve, Models, improve
from trajstitch.stitching.optimal import OptimalConfig

KEY = jax.random.key(0)
PLAIN = Improve(accept=0.5, value_cut_ends=False)


def trajectory(first, rewards, terminal=False):
    """States (row, 10 · row) from row `first` on."""
    row = np.arange(first, first + len(rewards) + 1)
    return Trajectory(np.stack([row, 10 * row], 1), np.ones((len(rewards), 1)), np.array(rewards), terminal)


def data_of(*rewards, terminal=()):
    """Trajectories of these rewards; the first column of a state is its row."""
    many, first = [], 0
    for m, some in enumerate(rewards):
        many.append(trajectory(first, some, m in terminal))
        first += len(some) + 1
    return from_trajectories(many)


class HandMade:
    """Steps with reward 1, action 7 and landing error 0.25; further pairs have no edges."""

    def make(self, graph, pair, edge, key):
        ones = np.ones(len(edge), np.float32)
        return Steps(7 * ones[:, None], ones, ones / 4, graph.margin[edge], graph.spread[edge])

    def extend(self, graph, source, target, tell=silent):
        begin = np.append(graph.begin, np.full(len(source), graph.begin[-1]))
        return replace(
            graph, source=np.append(graph.source, source), target=np.append(graph.target, target), begin=begin
        )


def setup_of(data, config=PLAIN):
    return Setup(data, config, HandMade(), 0, just_make, lambda name: silent)


def graph_of(data, stitched=(), edges=None):
    """The recorded pairs, then the stitched ones (source, target); edges as {pair: [landing, …]}."""
    edges = edges or {}
    source = np.append(data.row, [s for s, _ in stitched]).astype(np.int64)
    target = np.append(data.row + 1, [t for _, t in stitched]).astype(np.int64)
    landing = np.array([row for q in range(len(source)) for row in edges.get(q, [])], np.int64)
    begin = np.cumsum([0] + [len(edges.get(q, [])) for q in range(len(source))])
    margin = np.arange(1, len(landing) + 1, dtype=np.float32)
    return Graph(source, target, begin, landing, margin, 100 * margin, len(landing), 1.0)


def current_of(data, stitched=(), rewards=(), edges=None):
    """The recorded data, with stitched pairs of these rewards, which no trajectory makes yet."""
    more = np.arange(1, len(stitched) + 1, dtype=np.float32)
    none = np.zeros(data.transitions, np.float32)
    columns = [np.append(none, k * more).astype(np.float32) for k in (1, 2, 3, 4)]
    pairs = Pairs(
        np.concatenate([data.action, 5 * np.ones((len(stitched), 1), np.float32)]),
        np.append(data.reward, rewards).astype(np.float32),
        *columns,
    )
    graph = graph_of(data, stitched, edges)
    return Current(graph, pairs, Paths(np.arange(data.transitions), data.start, data.terminal))


def paths_of(*walks, terminal=()):
    pair = np.concatenate([np.array(walk) for walk in walks])
    start = np.cumsum([0] + [len(walk) for walk in walks])
    return Paths(pair, start, np.isin(np.arange(len(walks)), terminal))


# -- acceptance --------------------------------------------------------------------------------------------------


def test_a_return_must_be_above_the_old_one_by_a_share_of_its_size():
    """Old returns of -8 with a share of a half: -9 is no improvement, -4 is just not enough, -3.5 is."""
    data = data_of(*[[-5, -3]] * 4, terminal=[0, 2])
    current = current_of(data, [(0, 4), (3, 7), (6, 8), (9, 11)], [-9, -4, -3.5, -3.5])
    new = paths_of([8], [9], [10], [11], terminal=[1])
    after, entry = accept(setup_of(data), current, new, np.zeros(12))
    np.testing.assert_array_equal(after.paths.pair, [0, 1, 2, 3, 10, 11])
    np.testing.assert_array_equal(after.paths.start, [0, 2, 4, 5, 6])
    # Kept trajectories end as they did, accepted ones as the new ones do.
    np.testing.assert_array_equal(after.paths.terminal, [True, False, False, False])
    assert (entry["accepted"], entry["steps"], entry["stitched_steps"]) == (2, 6, 2)
    assert entry["return_mean"] == pytest.approx((-8 - 8 - 3.5 - 3.5) / 4)
    assert entry["cut_short"] == 2  # the last two; not the second, which is cut where it was
    assert entry["at_max_length"] == 2  # of two steps, the longest there is


@pytest.mark.parametrize(("limit", "kept"), [(None, 0), (2, 0), (1, 1)])
def test_changes_are_counted_from_the_first_stitched_pair(limit, kept):
    """New trajectories with none, one and two stitched steps, all better."""
    data = data_of([0, 1], [0, 0], [0, 0])
    first, second = data.transitions, data.transitions + 1  # the stitched pairs
    current = replace(current_of(data, [(0, 4), (4, 8)], [9, 9]), paths=paths_of([0], [2, 3], [4, 5]))
    new = paths_of([0, 1], [2, first], [first, second])
    after, entry = accept(setup_of(data, replace(PLAIN, max_changes=limit)), current, new, np.zeros(9))
    assert entry["accepted"] == 3 - kept
    assert after.paths.pair[-2:].tolist() == ([4, 5] if kept else [first, second])
    assert entry["stitched_steps"] == (1 if kept else 3)
    assert entry["seams"] == (1 if kept else 2)  # the first is made twice where all are accepted


def test_cut_ends_count_with_the_mean_reward_and_the_planners_discount():
    """Four steps of 1 and one left are worth 5; one step of 1.1 and four left are worth 5.5."""
    data = data_of([1, 1, 1, 1], [0, 0, 0, 0])
    current = current_of(data, [(0, 4)], [1.1])
    config = replace(PLAIN, accept=0.0, value_cut_ends=True, max_length=5)
    new = paths_of([8], [4, 5, 6, 7])
    after, _ = accept(setup_of(data, config), current, new, np.full(10, 1e3))
    assert after.paths.pair.tolist() == [8, 4, 5, 6, 7]
    worthless, _ = accept(setup_of(data, config), current, new, np.zeros(10))
    assert worthless.paths.pair.tolist() == list(range(8))
    really, _ = accept(
        setup_of(data, config), current, replace(new, terminal=np.array([True, False])), np.full(10, 1e3)
    )
    assert really.paths.pair.tolist() == list(range(8))
    assert ends_of(setup_of(data), np.zeros(10)) is None
    both = Improve(planner="optimal", optimal=OptimalConfig(discount=0.5), value=ValueConfig(discount=0.9))
    assert ends_of(setup_of(data, both), np.zeros(10)).discount == 0.5
    assert ends_of(setup_of(data, replace(both, planner="greedy")), np.zeros(10)).discount == 0.9


def test_what_a_cut_end_is_worth():
    """With V and γ = 1/2: the least of V·(1 - γᵏ), V·(1 - γ)·k and the mean reward of k steps."""
    ends = Ends(np.array([8.0, -8.0]), 0.5, 4)

    def worth(row, length, mean, terminal=False):
        return float(ends.worth(np.array([row]), np.array([terminal]), np.array([length]), np.array([mean]))[0])

    assert worth(0, 2, 9.0) == 8 * 0.75  # not 8 · 1/2 · 2
    assert worth(1, 2, 9.0) == -8 * 0.5 * 2  # not -8 · 3/4
    assert worth(0, 2, 1.5) == 3
    assert worth(1, 2, -9.0) == -18
    assert worth(0, 2, 9.0, terminal=True) == 0
    assert worth(0, 4, 9.0) == worth(1, 6, 9.0) == 0  # nothing is left


def test_the_place_to_go_on_counts_what_its_end_is_worth():
    """State 5 occurs before an end at 6, and two steps before one at 9; only the second is worth something."""
    pairs = np.array([(0, 1), (4, 5), (5, 6), (7, 5), (5, 8), (8, 9)])
    reward = np.array([0, 0, 2.0, 0, 1.0, 0.5])
    graph = Graph(
        pairs[:, 0], pairs[:, 1], np.array([0, 1, 1, 1, 1, 1, 1]), np.array([5]), *np.ones((2, 1)), 1, 1.0
    )
    paths = paths_of([0], [1, 2], [3, 4, 5])
    value = np.zeros(10)
    assert occurrences(graph, reward, paths)[5] == 2
    assert occurrences(graph, reward, paths, Ends(value, 0.9, 5))[5] == 2
    # From 5 two steps lead to 9 and three are left: 3 · 0.5, its mean reward, beside the 1.5 earned.
    value[9] = 100
    assert occurrences(graph, reward, paths, Ends(value, 0.9, 5))[5] == 4
    assert occurrences(graph, reward, paths, Ends(value, 0.9, 3))[5] == 2  # 1.5 + 0.5: the first of equals
    assert occurrences(graph, reward, replace(paths, terminal=np.ones(3, bool)), Ends(value, 0.9, 5))[5] == 2


# -- what is recorded --------------------------------------------------------------------------------------------


def test_a_gain_is_over_the_old_target():
    data = data_of([1, 1], [1, 1])
    graph = graph_of(data, edges={0: [4], 2: [2, 1]})
    value = np.array([1000.0, 3, 1, 200, 7, 0])
    pair, edge = np.array([0, 2]), np.array([0, 2])
    made = pairs_of(graph, HandMade().make(graph, pair, edge, KEY), pair, edge, value)
    np.testing.assert_array_equal(made.gain, [7 - 3, 3 - 7])
    np.testing.assert_array_equal(made.margin, [1, 3])
    np.testing.assert_array_equal(made.spread, [100, 300])
    np.testing.assert_array_equal(made.error, [0.25, 0.25])


def test_every_step_has_a_number_of_its_own():
    data = data_of([1, 1], [1, 1])
    source, target = map(np.ravel, np.meshgrid(np.arange(6), np.arange(6)))
    assert len(np.unique(step_number(data, source, target))) == 36


def test_paths_become_data_with_their_seams():
    data = data_of([1, 2], [3, 4], terminal=[1])
    current = current_of(data, [(0, 4)], [9])
    better = to_dataset(data, replace(current, paths=paths_of([4, 3], [2, 3], terminal=[0, 1])))
    np.testing.assert_array_equal(better.obs[:, 0], [0, 4, 5, 3, 4, 5])
    np.testing.assert_array_equal(better.reward, [9, 4, 3, 4])
    np.testing.assert_array_equal(better.action[:, 0], [5, 1, 1, 1])
    np.testing.assert_array_equal(better.terminal, [True, True])
    seams = better.seams
    np.testing.assert_array_equal(seams.target, [4, 5, 4, 5])
    np.testing.assert_array_equal(seams.stitched, [True, False, False, False])
    for k, name in enumerate(("margin", "spread", "value_gain", "landing_error"), 1):
        np.testing.assert_array_equal(getattr(seams, name), [k, 0, 0, 0])
    np.testing.assert_array_equal(seams.return_before, [3, 7])


# -- the value's table, and what is compared ---------------------------------------------------------------------


@pytest.fixture
def fitted(monkeypatch):
    """What the value is trained with, instead of training it."""
    given = []
    monkeypatch.setattr(stitch, "train_value", lambda *words: given.append(words) or ("trained", None))
    return given


def test_the_value_learns_from_the_current_data(fitted):
    """A stitched step with its own successor and reward; an end is one only where the episode really ended."""
    data = data_of([1, 2], [3, 4], [5, 6], terminal=[1])
    current = replace(current_of(data, [(0, 4)], [9]), paths=paths_of([6, 3], [2, 3], [4, 5], terminal=[0, 1]))
    config = replace(PLAIN, value=ValueConfig(discount=0.7))
    assert stitch._fit_value(setup_of(data, config), current, 0, None) == ("trained", None)
    table, settings, seed, _, _ = fitted[0]
    np.testing.assert_array_equal(table["obs"][:, 0], [0, 4, 3, 4, 6, 7])
    np.testing.assert_array_equal(table["next_obs"][:, 0], [4, 5, 4, 5, 7, 8])
    np.testing.assert_array_equal(table["reward"], [9, 4, 3, 4, 5, 6])
    np.testing.assert_array_equal(table["done"], [0, 1, 0, 1, 0, 0])
    assert settings.discount == 0.7
    stitch._fit_value(setup_of(data, config), current, 1, None)
    assert fitted[1][2] != seed  # every iteration has batches of its own


@pytest.mark.parametrize("warm", [True, False])
def test_the_value_goes_on_from_the_last_one_if_it_is_warm(fitted, warm):
    data = data_of([1, 2], [3, 4])
    setup = setup_of(data, replace(PLAIN, value=ValueConfig(warm=warm)))
    stitch._fit_value(setup, current_of(data), 1, "the last one")
    assert fitted[0][4] == ("the last one" if warm else None)


class Height:
    """The value of a state is its second column."""

    def value(self, obs):
        return np.asarray(obs)[:, 1]


def test_values_of_landings_old_targets_and_ends():
    data = data_of([1, 1], [1, 1], [1, 1], terminal=[1])
    graph = graph_of(data, edges={0: [4]})
    rows = stitch.compared(data, graph)
    assert rows.tolist() == [1, 2, 4, 5, 8]
    # Row 5 really ended its episode, rows 2 and 8 were cut.
    np.testing.assert_array_equal(stitch.state_values(data, Height(), rows), [0, 10, 20, 0, 40, 0, 0, 0, 80])


@pytest.mark.parametrize(("allowed", "rounds"), [(0, 0), (1, 1), (2, 2), (None, 4)])
def test_a_ring_is_walked_as_often_as_is_allowed(allowed, rounds):
    """0 → 1 → 2, and an edge from 1 back to 0, which is worth more than 2."""
    data = data_of([1, 1], [0, 0])
    current = current_of(data, edges={1: [0]})
    model = Height()
    model.value = lambda obs: -np.asarray(obs)[:, 1]
    config = replace(PLAIN, accept=0.0, max_length=8, max_repeats=allowed)
    _, entry = stitch.iterate(setup_of(data, config), current, 0, model)
    assert entry["stitched_steps"] == rounds


@pytest.mark.parametrize(("learned", "worth"), [(1000.0, 0.25 + 0.5 * (10 + 0.5 * 20)), (1.0, 1.0)])
def test_a_cut_end_goes_on_along_its_truest_edge(learned, worth):
    """From row 2 to row 3 or, with a larger margin, to row 6; it is worth no more than was learned."""
    data = data_of([1, 1], [3, 4], [10, 20], terminal=[1, 2])
    one, margin = np.array([2]), np.array([1, 2], np.float32)
    reward = np.array([0.5, 0.25], np.float32)
    graph = Graph(one, np.array([-1]), np.array([0, 2]), np.array([3, 6]), margin, margin, 2, 1.0, reward)
    values = np.zeros(9)
    values[2] = learned
    config = Improve(planner="optimal", optimal=OptimalConfig(discount=0.5))
    expected = values.copy()
    expected[2] = worth
    np.testing.assert_allclose(stitch._ends_worth(setup_of(data, config), graph, values), expected)


def test_settings_that_are_given_come_first():
    data = replace(data_of([1, 1], [1, 1, 1]), info={"env_horizon": 60})
    assert Improve(max_length=7).horizon(data) == 7
    assert Improve().horizon(data) == 60
    assert Improve().horizon(replace(data, info={})) == 3


# -- who is held out ---------------------------------------------------------------------------------------------


class Zero:
    """No reward and no action anywhere."""

    def actions(self, obs, next_obs, key):
        return np.zeros((len(obs), 1), np.float32)

    def rewards(self, obs, action, next_obs, key):
        return np.zeros(len(obs), np.float32)

    def moments(self, obs):
        return np.asarray(obs)[None], np.ones((1, *obs.shape), np.float32)


def test_no_model_is_trained_on_what_it_is_judged_by(monkeypatch):
    """The dynamics are held out a fifth of the trajectories, the others a twentieth."""
    rng = np.random.default_rng(0)
    data = data_of(*rng.normal(size=(40, 2)))
    seen = {}
    for name in ("dynamics", "inverse", "reward"):

        def train(train, held_out, settings, seed, tell, name=name):
            seen[name] = train, held_out, seed
            return Zero(), None

        monkeypatch.setattr(stitch, f"train_{name}", train)
    result = improve(data, Improve(graph=GraphConfig(epsilon=1e-3)), seed=3, models=Models(value=Height()))
    assert len({seed for _, _, seed in seen.values()}) == 3
    for name, (train, held_out, _) in seen.items():
        rows = [part.obs[:, 0].tolist() for part in (train, held_out)]
        assert not set(rows[0]) & set(rows[1])
        assert sorted(rows[0] + rows[1]) == data.obs[:, 0].tolist()
        assert len(held_out) == (8 if name == "dynamics" else 2)
    reward = seen["reward"][1].reward
    error = np.sqrt(np.mean(reward**2))
    assert result.errors["reward_root_mean_square"] == pytest.approx(error, rel=1e-5)
    assert result.errors["reward_root_mean_square_of_std"] == pytest.approx(error / reward.std(), rel=1e-5)
    assert result.errors["inverse_mean_absolute_action"] == pytest.approx(1)


# -- the steps of edges ------------------------------------------------------------------------------------------


class Forward(Zero):
    """The action is how far a step goes in the first column; the reward how far, and a hundredth of the action."""

    def actions(self, obs, next_obs, key):
        return np.asarray(next_obs)[:, :1] - np.asarray(obs)[:, :1]

    def rewards(self, obs, action, next_obs, key):
        return np.asarray(next_obs)[:, 0] - np.asarray(obs)[:, 0] + np.asarray(action)[:, 0] / 100


def test_plausible_steps_lead_from_the_source_to_the_landing():
    data = data_of([1, 1], [1, 1])
    edges = Plausible(EdgeFinder(data, GraphConfig(epsilon=1.0)), Forward(), Forward(), Forward())
    steps = edges.make(graph_of(data, edges={0: [2, 4], 2: [1]}), np.array([0, 2]), np.array([1, 2]), KEY)
    np.testing.assert_array_equal(steps.margin, [2, 3])
    np.testing.assert_array_equal(steps.spread, [200, 300])
    np.testing.assert_array_equal(steps.action[:, 0], [4, -2])
    np.testing.assert_allclose(steps.reward, [4.04, -2.02], rtol=1e-6)
    assert np.isnan(steps.error).all()  # no model was asked where they land


class Near:
    """Landing states 0, 1 and 2, one typical step apart; row 3 is near nothing."""

    near = np.array([[0, 1, -1], [1, 0, 2], [2, 1, -1], [-1, -1, -1]], np.int32)
    net = np.array([0, 1, 2])
    around = np.array([[1], [0], [1]], np.int32), np.ones((3, 1), np.float32)


def test_means_and_slopes_of_values_around_a_state():
    edges = Reachable(Near())
    value = np.array([1.0, 4.0, 5.0, 70.0])
    np.testing.assert_allclose(edges.means(value), [2.5, 10 / 3, 4.5, 70])
    # Between 0 and 1 the value changes by 3, between 1 and 2 by 1, which is below the median.
    np.testing.assert_allclose(edges.slopes(value), [3, 3, 3, 0])
    ten = Near()
    ten.near, ten.net = np.tile(np.arange(11, dtype=np.int32), (11, 1)), np.arange(11)
    np.testing.assert_allclose(Reachable(ten).means(np.arange(11.0)), 4)  # of the nearest nine, 0 to 8
