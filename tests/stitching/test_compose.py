"""Composing whole: known worlds, either planner with either kind of edges, optimism, settings, killed runs."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from trajstitch.data import Dataset, Trajectory, from_trajectories
from trajstitch.errors import InputError
from trajstitch.formats import load
from trajstitch.jobs import improve as improving
from trajstitch.jobs.improve import improve_run
from trajstitch.models.dynamics import DynamicsConfig
from trajstitch.models.value import ValueConfig
from trajstitch.stitching import improve as stitch
from trajstitch.stitching import reach
from trajstitch.stitching.current import accept
from trajstitch.stitching.edges import Reachable, Trials
from trajstitch.stitching.graph import GraphConfig
from trajstitch.stitching.improve import Improve, Models, improve, time_limit
from trajstitch.stitching.optimal import OptimalConfig
from trajstitch.stitching.reach import ReachConfig, ReachFinder
from trajstitch.training.loop import Fit
from worlds import walk_dataset


@pytest.fixture(scope="module", autouse=True)
def small_blocks():
    """So that little is padded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reach, "_BLOCK", 256)
        patch.setattr(reach, "_TRIES", 512)
        yield


class Point:
    """An action moves a point by up to a fifth; every step costs 1. The members are a little apart."""

    def steps(self, obs, action):
        next_obs = np.asarray(obs) + 0.2 * np.asarray(action)
        members = np.stack([next_obs + 1e-4, next_obs - 1e-4])
        return members, np.full(members.shape[:2], -1, np.float32)


class Moments:
    """The same without actions: anything within a step or so."""

    def moments(self, obs):
        mean = np.repeat(np.asarray(obs)[None], 2, 0) + np.float32([0.1, 0])
        return mean, np.full_like(mean, 0.1)


class Difference:
    def actions(self, obs, next_obs, key):
        return np.clip((np.asarray(next_obs) - np.asarray(obs)) / 0.2, -1, 1)


class Cost:
    """Every step costs 1, for ever where nothing else is known; further right is a little better."""

    def rewards(self, obs, action, next_obs, key):
        return np.full(len(obs), -1, np.float32)

    def value(self, obs):
        return -100 + 10 * np.asarray(obs)[:, 0]


OWN = Models(Moments(), Difference(), Cost(), Cost(), Point())


def relay(many=6, seed=0, **info) -> Dataset:
    """Walks to the right of which none gets from the start, x = 0, to the goal, x = 3, where the last ones end."""
    rng = np.random.default_rng(seed)
    trajectories = []
    for begin in (0.0, 1.0, 2.0):
        for _ in range(many):
            steps = int(rng.integers(11, 14))
            action = np.clip(np.stack([rng.normal(0.5, 0.2, steps), rng.normal(0, 0.3, steps)], 1), -1, 1)
            start = [begin, 0.1 * rng.normal()]
            obs = np.concatenate([[start], start + 0.2 * np.cumsum(action, 0)])
            reward = np.full(steps, -1.0)
            trajectories.append(Trajectory(obs, action, reward, terminal=begin == 2))
    return from_trajectories(trajectories, info)


def sound(data, dataset):
    """States, unstitched steps and ends are those of the data, bit for bit."""
    seams = dataset.seams
    np.testing.assert_array_equal(dataset.obs[dataset.row], data.obs[seams.source])
    np.testing.assert_array_equal(dataset.obs[dataset.row + 1], data.obs[seams.target])
    step_of = np.full(len(data.obs), -1)
    step_of[data.row] = np.arange(data.transitions)
    plain = ~seams.stitched
    step = step_of[seams.source[plain]]
    assert (step >= 0).all()
    assert dataset.action[plain].tobytes() == data.action[step].tobytes()
    assert dataset.reward[plain].tobytes() == data.reward[step].tobytes()
    np.testing.assert_array_equal(seams.target[plain], seams.source[plain] + 1)
    for name in ("margin", "spread", "value_gain", "landing_error"):
        assert not getattr(seams, name)[plain].any()
    real_end = np.isin(seams.target[dataset.start[1:] - 1], data.last_row[data.terminal])
    np.testing.assert_array_equal(dataset.terminal, real_end)
    low, high = data.action.min(0), data.action.max(0)
    assert ((dataset.action >= low - 1e-6) & (dataset.action <= high + 1e-6)).all()
    inner = np.setdiff1d(np.arange(dataset.transitions), dataset.start[1:] - 1)
    np.testing.assert_array_equal(seams.target[inner], seams.source[inner + 1])
    ends = np.isin(seams.source, data.last_row[data.terminal])
    assert not ends.any()  # nothing goes on after a real end


COMPOSE = Improve(planner="optimal", optimal=OptimalConfig(discount=0.99))


@pytest.fixture(scope="module")
def composed():
    data = relay(env_horizon=60)
    return data, improve(data, COMPOSE, models=OWN)


def test_a_way_is_composed_that_no_trajectory_went(composed):
    data, result = composed
    better, seams = result.dataset, result.seams
    assert not data.terminal[:6].any()
    assert better.terminal.all()  # every start reaches the goal
    assert better.length[:6].max() <= 40
    assert better.length[:6].min() >= 15  # three units, at most a fifth per step
    first = better.start[:-1] + np.arange(len(better))
    np.testing.assert_array_equal(better.obs[first], data.obs[data.start[:-1] + np.arange(len(data))])
    sound(data, better)
    stitched = seams.stitched
    assert np.add.reduceat(stitched, better.start[:-1])[:6].min() >= 2  # from A to B and from B to C
    assert (seams.landing_error[stitched] < result.graph["epsilon"]).all()
    assert (seams.landing_error[stitched] > 0).all()
    slack = result.graph["epsilon"] - seams.landing_error
    np.testing.assert_allclose(seams.margin[stitched], slack[stitched], atol=1e-6)
    lands = data.obs[seams.source] + 0.2 * better.action
    off = np.linalg.norm((lands - data.obs[seams.target]) / ReachFinder(data, Point(), ReachConfig()).unit, axis=1)
    assert off[stitched].max() < result.graph["epsilon"]
    np.testing.assert_allclose(better.reward, -1, atol=1e-6)
    np.testing.assert_array_equal(seams.return_before, data.returns)
    assert result.history[0]["accepted"] >= 6
    assert result.history[0]["cut_short"] == 0
    assert result.graph["planned_value"] > result.graph["recorded_value"]
    assert result.graph["residual"] <= 1e-6 * 100


def test_the_value_that_is_planned_is_the_one_that_is_walked(composed):
    """Without caution, where every start is accepted: discounted rewards of the new trajectories."""
    data, _ = composed
    config = dataclasses.replace(COMPOSE, optimal=OptimalConfig(discount=0.99, caution=0.0), accept=0.0)
    result = improve(data, config, models=OWN)
    assert result.dataset.terminal.all()
    walked = [(0.99 ** np.arange(len(one)) * one.reward).sum() for one in result.dataset]
    # A trajectory that was as good before is kept, so it may be less than planned by the tolerance.
    assert result.graph["planned_value"] == pytest.approx(np.mean(walked), rel=1e-3)


def test_only_what_the_plan_takes_is_tried(composed):
    """Where the world is linear, it is the plan of the graph whose edges are all tried."""
    data, result = composed
    assert 0 < result.graph["tried"] < result.graph["edges"] / 3

    def all_tried(self, graph, source, target, tell):
        return self.finder.extend(graph, source, target, tell)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reachable, "promise", all_tried)
        eager = improve(data, COMPOSE, models=OWN)
    assert result.graph["planned_value"] == pytest.approx(eager.graph["planned_value"], rel=1e-3)
    assert result.dataset.terminal.all() == eager.dataset.terminal.all()
    np.testing.assert_allclose(result.dataset.returns, eager.dataset.returns, atol=1.01)


def test_where_nothing_is_tried_the_data_stay():
    """No candidate is near enough."""
    data = relay(env_horizon=60)
    result = improve(data, dataclasses.replace(COMPOSE, reach=ReachConfig(tolerance=1e-9)), models=OWN)
    assert "tried" not in result.graph
    assert not result.seams.stitched.any()
    np.testing.assert_array_equal(result.dataset.obs, data.obs)
    np.testing.assert_array_equal(result.dataset.action, data.action)
    assert result.plan is not None
    assert result.plan.transitions == data.transitions  # every state's recorded step


class Bounded(Point):
    """Who pushes hard to a side stays; around most recorded actions the world is linear and does not show it."""

    def steps(self, obs, action):
        action = np.asarray(action)
        return super().steps(obs, np.where(np.abs(action[:, 1:]) < 0.4, action, 0))


def test_what_is_promised_and_not_found_is_not_taken(monkeypatch):
    found = []

    def watched(self, pair, edge):
        reward, error = attempt(self, pair, edge)
        found.append(np.isfinite(reward))
        return reward, error

    attempt = Trials.attempt
    monkeypatch.setattr(Trials, "attempt", watched)
    data = relay(env_horizon=60)
    result = improve(data, COMPOSE, models=dataclasses.replace(OWN, world=Bounded()))
    assert not np.concatenate(found).all()
    stitched = result.seams.stitched
    assert stitched.sum() > 20
    assert (result.seams.landing_error[stitched] < result.graph["epsilon"]).all()
    assert (np.abs(result.dataset.action[stitched, 1]) < 0.4).all()


@pytest.mark.parametrize(("learned", "least"), [(0.0, -100.0), (-500.0, -500.0)])
def test_a_cut_end_is_worth_no_more_than_the_recorded_steps_after_it(learned, least):
    """Its learned value, or what others earned who went on from near it: the smaller one."""
    data = relay(env_horizon=60)

    class Learned(Cost):
        def value(self, obs):
            return np.full(len(obs), learned)

    given = []

    def watched(setup, current, new, value):
        given.append(value)
        return accept(setup, current, new, value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stitch, "accept", watched)
        improve(data, COMPOSE, models=dataclasses.replace(OWN, value=Learned()))
    cut = given[0][data.last_row[~data.terminal]]
    assert (cut >= least).all()
    assert (cut < -4).sum() >= len(cut) - 2  # steps from the goal; two have no edge and keep what was learned
    assert (given[0][data.last_row[data.terminal]] == 0).all()


def test_the_plan_has_the_best_step_of_every_state_once(composed):
    data, result = composed
    plan = result.plan
    sound(data, plan)
    source = np.sort(plan.seams.source)
    assert (np.diff(source) > 0).all()
    np.testing.assert_array_equal(source, data.row)
    first = plan.seams.source[plan.start[:-1]]
    owner = np.searchsorted(data.start + np.arange(len(data) + 1), first, side="right") - 1
    np.testing.assert_array_equal(plan.seams.return_before, data.returns[owner])
    # A step counts once, and once for each planned walk from a start that makes it.
    walked = np.zeros(len(data.obs))
    step_to = dict(zip(plan.seams.source.tolist(), plan.seams.target.tolist(), strict=True))
    for row in data.row[data.start[:-1]].tolist():
        for _ in range(60):
            if row not in step_to:
                break
            walked[row] += 1
            row = step_to[row]
    expected = 1 + walked[plan.seams.source]
    np.testing.assert_allclose(plan.weight, expected / expected.mean(), rtol=1e-5)
    # The composed trajectories make exactly these steps, but where the old one was kept.
    step = dict(zip(plan.seams.source.tolist(), plan.seams.target.tolist(), strict=True))
    for m, one in enumerate(result.dataset):
        at = slice(result.dataset.start[m], result.dataset.start[m + 1])
        if result.seams.stitched[at].any():
            assert [step[row] for row in result.seams.source[at].tolist()] == result.seams.target[at].tolist()
        assert len(one) == at.stop - at.start


def test_the_horizon_is_the_environments_not_the_longest_trajectory():
    short = improve(relay(), COMPOSE, models=OWN)
    assert short.dataset.length.max() <= relay().length.max()
    assert not short.dataset.terminal[:6].any()  # it is too far for that
    named = improve(relay(env_horizon=17), COMPOSE, models=OWN)
    assert named.dataset.length.max() <= 17
    longer = improve(relay(env_horizon=17), dataclasses.replace(COMPOSE, max_length=60), models=OWN)
    assert longer.dataset.terminal.all()


@pytest.mark.parametrize(
    ("planner", "edges"),
    [("greedy", "reachable"), ("optimal", "plausible"), ("greedy", "plausible"), ("optimal", "reachable")],
)
def test_either_planner_can_use_either_kind_of_edges(planner, edges):
    data = relay(env_horizon=60)
    config = Improve(planner=planner, edges=edges, accept=0.0, iterations=2, graph=GraphConfig(nearest=20))
    result = improve(data, config, models=OWN)
    sound(data, result.dataset)
    stitched = result.seams.stitched
    assert stitched.any()
    assert (result.plan is not None) == (planner == "optimal")
    if edges == "reachable":
        assert np.isfinite(result.seams.landing_error).all()
        assert "usual_landing_error" in result.errors
    else:
        assert np.isnan(result.seams.landing_error[stitched]).all()
        assert "reward_root_mean_square" in result.errors
    if planner == "optimal":
        sound(data, result.plan)
        assert set(data.row) <= set(result.plan.seams.source)
        assert result.dataset.terminal.sum() > data.terminal.sum()


def test_models_that_are_not_needed_are_not_asked():
    """Reachable edges need a world model alone, plausible ones none."""
    data = relay(env_horizon=60)
    improve(data, COMPOSE, models=Models(world=Point(), value=Cost()))
    improve(data, Improve(iterations=1), models=dataclasses.replace(OWN, world=None))


# -- a trajectory is not improved by being cut -------------------------------------------------------------------


class Upwards:
    """A step to the right rather leads to the upper line."""

    def moments(self, obs):
        mean = np.repeat(np.asarray(obs)[None], 2, 0) + np.float32([0.2, 0])
        mean[..., 1] = 0.1
        return mean, np.full_like(mean, 0.1)


class Upper(Cost):
    """The upper line is said to be a little better."""

    def value(self, obs):
        return -50 + np.asarray(obs)[:, 1]


def long_and_short() -> Dataset:
    """Two lines beside each other; the upper one was cut early. Every step costs 1."""

    def line(steps, height):
        obs = np.stack([0.2 * np.arange(steps + 1), np.full(steps + 1, height)], 1)
        return Trajectory(obs, np.tile([1.0, 0.0], (steps, 1)), np.full(steps, -1.0), terminal=False)

    return from_trajectories([line(12, 0.0), line(4, 0.1)])


def test_being_cut_is_no_improvement():
    data = long_and_short()
    config = Improve(iterations=1, graph=GraphConfig(metric="raw", epsilon=0.25))
    models = Models(Upwards(), Difference(), Cost(), Upper())
    naive = improve(data, dataclasses.replace(config, value_cut_ends=False), models=models)
    assert naive.dataset.length[0] < 12  # it costs less only because it stops earlier
    assert naive.history[0]["accepted"] == 1
    assert naive.history[0]["cut_short"] == 1
    careful = improve(data, config, models=models)
    assert careful.dataset.length.tolist() == [12, 4]
    assert careful.history[0]["accepted"] == 0
    assert careful.history[0]["cut_short"] == 0


# -- no free lunch -----------------------------------------------------------------------------------------------


class Falling:
    """x' = x + a/10, h' = 0.97·h whatever the action; the reward is h'."""

    def steps(self, obs, action):
        next_obs = np.stack([obs[:, 0] + 0.1 * np.asarray(action)[:, 0], np.float32(0.97) * obs[:, 1]], 1)
        return next_obs[None], next_obs[None, :, 1]


class Worth:
    """The true value of every state, whatever one does."""

    def __init__(self, discount):
        self.discount = discount

    def value(self, obs):
        return np.asarray(obs)[:, 1] * 0.97 / (1 - 0.97 * self.discount)


def falls(seed, many=40, steps=20) -> Dataset:
    """Heights differ a little between trajectories, so that an edge can gain what its landing error forgives."""
    rng = np.random.default_rng(seed)
    trajectories = []
    for _ in range(many):
        action = rng.uniform(-1, 1, (steps, 1))
        x = rng.uniform(-1, 1) + 0.1 * np.concatenate([[0], np.cumsum(action)])
        h = rng.uniform(0.9, 1.1) * 0.97 ** np.arange(steps + 1)
        trajectories.append(Trajectory(np.stack([x, h], 1), action, h[1:], terminal=False))
    return from_trajectories(trajectories)


def optimism(data, tolerance, **settings):
    """Return how much more the plan promises than is possible."""
    optimal = OptimalConfig(**settings)
    config = Improve(planner="optimal", reach=ReachConfig(tolerance=tolerance), optimal=optimal)
    worth = Worth(optimal.discount)
    result = improve(data, config, models=Models(world=Falling(), value=worth))
    return result.graph["planned_value"] / worth.value(data.obs[data.row[data.start[:-1]]]).mean()


@pytest.mark.parametrize(("seed", "many", "steps"), [(0, 20, 40), (1, 20, 40), (0, 40, 80)])
def test_caution_takes_back_what_landing_errors_give(seed, many, steps):
    """Without caution a plan climbs from error to error; with it, no more is promised than is possible."""
    data = falls(seed, many, steps)
    assert optimism(data, 0.4, caution=0.0) > 1.5
    assert 0.97 < optimism(data, 0.4) < 1.03
    assert 0.99 < optimism(data, None) < 1.02  # the tolerance that is chosen is small anyway


# -- settings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Improve(edges="x"), "there are no edges 'x'; known are plausible, reachable"),
        (lambda: Improve(planner="x"), "there is no planner 'x'; known are greedy, optimal"),
        (lambda: Improve(optimal=OptimalConfig(discount=1.0)), "discount must be from 0 to below 1"),
        (lambda: Improve(reach=ReachConfig(net=-1)), "net must not be below 0"),
        (lambda: Improve(reach=ReachConfig(tolerance=0)), "tolerance must be above 0"),
        (lambda: Improve(max_length=0), "max_length must be at least 1, not 0"),
    ],
)
def test_impossible_settings(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


def test_edges_and_discount_follow_the_planner():
    greedy, optimal = Improve(), Improve(planner="optimal", optimal=OptimalConfig(discount=0.9))
    assert (greedy.edges_used, optimal.edges_used) == ("plausible", "reachable")
    assert Improve(edges="reachable").edges_used == "reachable"
    assert Improve(planner="optimal", edges="plausible").edges_used == "plausible"
    assert (greedy.discount, optimal.discount) == (greedy.value.discount, 0.9)


@pytest.mark.parametrize(
    ("info", "limit"),
    [
        ({}, None),
        ({"env_horizon": 70}, 70),
        ({"env_spec": json.dumps({"max_episode_steps": 80})}, 80),
        ({"env_spec": json.dumps({"max_episode_steps": None})}, None),
        ({"env_spec": "null"}, None),
        ({"env_spec": ""}, None),
        ({"env_horizon": 70, "env_spec": json.dumps({"max_episode_steps": 80})}, 70),
    ],
)
def test_the_time_limit_is_what_the_data_name(info, limit):
    data = relay(**info)
    assert time_limit(data) == limit
    assert Improve().horizon(data) == (limit or data.length.max())
    assert Improve(max_length=5).horizon(data) == 5


# -- runs --------------------------------------------------------------------------------------------------------

TINY = Improve(
    planner="optimal",
    accept=0.0,
    world=DynamicsConfig(members=2, elites=2, width=16, depth=1, activation="silu", fit=Fit(60, 32, 1e-2)),
    value=ValueConfig(width=16, fit=Fit(60, 32, 1e-2)),
    reach=ReachConfig(tolerance=0.5),
)
FILES = ("improved.hdf5", "plan.hdf5", "seams.npz", "metrics.jsonl")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    data = walk_dataset(many=12, steps=12)
    run, result = improve_run(data, TINY, tmp_path_factory.mktemp("run") / "run")
    return data, run, result


def test_a_run_directory_holds_the_plan(finished):
    data, run, result = finished
    assert result.seams.stitched.any()
    sound(data, result.dataset)
    sound(data, result.plan)
    plan = load(run.path / "plan.hdf5")
    assert plan.fingerprint == result.plan.fingerprint
    np.testing.assert_array_equal(plan.seams.landing_error, result.plan.seams.landing_error)
    assert {path.stem for path in (run.path / "stages").iterdir()} == {"world", "graph", "value-1"}
    assert json.loads((run.path / "result.json").read_text())["graph"]["rounds"] >= 1


class Killed(Exception):
    pass


@pytest.mark.parametrize("at", ["world", "graph", "value-1"])
def test_a_killed_run_goes_on_to_the_same_bytes(finished, tmp_path, monkeypatch, at):
    data, whole, _ = finished
    made = []
    original = improving.store

    def dies(thing, target, note=""):
        if Path(target).stem == at:
            raise Killed
        original(thing, target, note)
        made.append(Path(target).stem)

    monkeypatch.setattr(improving, "store", dies)
    with pytest.raises(Killed):
        improve_run(data, TINY, tmp_path / "run")
    before = list(made)
    monkeypatch.setattr(improving, "store", lambda *a: (made.append(Path(a[1]).stem), original(*a)))
    run, _ = improve_run(data, TINY, tmp_path / "run")
    assert not set(before) & set(made[len(before) :])  # nothing was made twice
    for name in FILES:
        assert (run.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_a_finished_run_makes_nothing_again(finished, monkeypatch):
    data, run, result = finished
    monkeypatch.setattr(improving, "store", lambda *_: pytest.fail("made again"))
    _, again = improve_run(data, TINY, run.path)
    assert again.plan.fingerprint == result.plan.fingerprint
