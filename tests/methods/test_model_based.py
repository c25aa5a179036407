"""The learnt world against a linear one, uncertainty by hand, rollouts followed step by step, ends, refusals.

What every method is held to, mopo and morel among them, is in test_offline.py.
"""

from dataclasses import replace
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.data import Dataset, from_trajectories
from trajstitch.errors import InputError
from trajstitch.evaluation.envs import env_bounds
from trajstitch.methods.model_based import ModelBased
from trajstitch.methods.mopo import MOPO
from trajstitch.methods.morel import Halt, MOReL
from trajstitch.methods.train import configure, train
from trajstitch.models.dynamics import DynamicsConfig, GaussianStep
from trajstitch.models.world_model import (
    ActionDynamics,
    Prediction,
    World,
    discrepancy,
    largest_std,
    make_world,
    split_steps,
    train_members,
)
from trajstitch.policies.policy import Policy
from trajstitch.storage.serialise import restore, store
from trajstitch.training import loop
from trajstitch.training.loop import Fit
from trajstitch.training.networks import MLP, Linear, Range, Scale
from worlds import random_dataset

# -- the world --------------------------------------------------------------------------------------------------


def linear_world(seed=0, many=60, steps=25):
    """p' = 0.8p + 0.5a + 0.1ε, q' = q - 20p in a unit a hundred times as large, r = p - a + 0.3ε."""
    rng = np.random.default_rng(seed)
    action = rng.uniform(-1, 1, (many, steps, 1))
    obs = np.zeros((many, steps + 1, 2))
    obs[:, 0] = rng.normal(size=(many, 2)) * [1, 100]
    for t in range(steps):
        p, q = obs[:, t].T
        obs[:, t + 1, 0] = 0.8 * p + 0.5 * action[:, t, 0] + 0.1 * rng.normal(size=many)
        obs[:, t + 1, 1] = q - 20 * p
    reward = obs[:, :-1, 0] - action[..., 0] + 0.3 * rng.normal(size=(many, steps))
    return Dataset(
        obs=obs.reshape(-1, 2).astype(np.float32),
        action=action.reshape(-1, 1).astype(np.float32),
        reward=reward.reshape(-1).astype(np.float32),
        start=np.arange(0, many * steps + 1, steps),
        terminal=np.zeros(many, bool),
    )


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_the_world_reaches_the_known_mean_and_std(activation):
    config = DynamicsConfig(3, 2, width=32, depth=2, activation=activation, fit=Fit(1500, batch=128, rate=3e-3))
    member, _ = train_members(linear_world(), config)
    world = make_world(member, linear_world())
    new = linear_world(seed=1, many=10)
    obs, action = new.obs[new.row], new.action
    mean, std = (np.asarray(x) for x in jax.vmap(world.predict)(jnp.asarray(obs), jnp.asarray(action)))
    p, q, a = obs[:, 0], obs[:, 1], action[:, 0]
    assert mean.shape == std.shape == (new.transitions, 2, 3)
    known = np.stack([0.8 * p + 0.5 * a, q - 20 * p, p - a], 1)[:, None]
    assert (np.abs(mean - known).mean((0, 1)) < [0.05, 1.5, 0.1]).all()  # actions alone matter 0.25, p matters 8
    np.testing.assert_allclose(std[..., [0, 2]].mean((0, 1)), [0.1, 0.3], rtol=0.25)
    assert std[..., 1].mean() < 3
    np.testing.assert_array_equal(world.start, linear_world().obs[linear_world().row])


def test_a_member_that_knows_nothing_is_as_sure_as_the_data():
    linear = linear_world()
    train, _ = split_steps(linear, seed=0)
    member = DynamicsConfig(width=8, depth=1).init(train, jax.random.key(0))
    unsure = eqx.tree_at(lambda m: m.net.layers[-1].bias, member, jnp.array([0.0, 0, 0, 9, -1, 1]))
    unsure = eqx.tree_at(lambda m: m.net.layers[-1].weight, unsure, replace_fn=jnp.zeros_like)
    world = make_world(jax.tree.map(lambda leaf: leaf[None], unsure), linear)
    _, std = world.predict(jnp.array([0.3, 5.0]), jnp.array([0.1]))
    np.testing.assert_allclose(
        std[0], np.append(train["change"].std(0), train["reward"].std()) * [1, np.exp(-1), 1], rtol=1e-3
    )


def test_a_smooth_net_is_what_numpy_says_and_stays_so_in_a_file(tmp_path):
    store(MLP.init([3, 5, 2], jax.random.key(0), "silu"), tmp_path / "net.npz")
    net = restore(tmp_path / "net.npz")
    x = np.random.default_rng(0).normal(size=(4, 3))
    hidden = x @ np.asarray(net.layers[0].weight).T + np.asarray(net.layers[0].bias)
    hidden = hidden / (1 + np.exp(-hidden))
    expected = hidden @ np.asarray(net.layers[1].weight).T + np.asarray(net.layers[1].bias)
    np.testing.assert_allclose(net(jnp.asarray(x)), expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("least", "most", "high", "expected"),
    [
        ([-50.0] * 3, [50.0] * 3, 12.0, ([11, 18], 36, False)),
        ([-50.0, 19, -50], [10.5, 50, 35], 12.0, ([10.5, 19], 35, False)),  # never beyond the data
        ([-50.0] * 3, [10.5, 50, 50], 10.9, ([10.5, 18], 36, True)),  # an end is one though the data have none
    ],
)
def test_what_happens_is_what_one_member_thinks(least, most, high, expected):
    prediction = Prediction(
        jnp.array([[0.0, 0.0, 1.0], [10.0, 20.0, 30.0]]), jnp.array([[1.0, 1, 1], [1.0, 2, 3]])
    )
    world = counting_world(-np.inf, np.inf)
    where = lambda w: (w.low, w.high, w.least, w.most)  # noqa: E731
    known = (jnp.full(2, -np.inf), jnp.array([high, np.inf]), jnp.array(least), jnp.array(most))
    next_obs, reward, ended = eqx.tree_at(where, world, known).step(
        prediction, jnp.array(1), jnp.array([1.0, -1.0, 2.0])
    )
    np.testing.assert_allclose(next_obs, expected[0])
    assert (float(reward), bool(ended)) == expected[1:]


def test_the_world_knows_the_range_of_the_data():
    data = random_dataset(0, (6, 5, 4))
    member = DynamicsConfig(width=8, depth=1).init(split_steps(data, seed=0)[0], jax.random.key(0))
    world = make_world(jax.tree.map(lambda leaf: leaf[None], member), data)
    for found, end in ((world.least, np.min), (world.most, np.max)):
        np.testing.assert_array_equal(found, [*end(data.obs, 0), end(data.reward)])


# -- uncertainty ------------------------------------------------------------------------------------------------

PREDICTION = Prediction(
    mean=jnp.array([[0.0, 0.0, 100.0], [3.0, 4.0, 0.0], [0.0, 1.0, -100.0]]),  # two states, then the reward
    std=jnp.array([[2.0, 3.0, 6.0], [1.0, 1.0, 1.0], [0.0, 4.0, 0.0]]),
)


def test_mopo_takes_off_the_largest_std():
    """Of (2, 3, 6), (1, 1, 1) and (0, 4, 0) the first is longest: 7."""
    assert float(largest_std(PREDICTION)) == 7
    reward, halted, uncertainty = MOPO(penalty=2.0).penalise({}, PREDICTION, jnp.array(1.5))
    assert (float(reward), bool(halted), float(uncertainty)) == (1.5 - 14, False, 7)


def test_morel_halts_where_means_are_far_apart():
    """States (0, 0) and (3, 4) are 5 apart, the others less; rewards do not count."""
    assert float(discrepancy(PREDICTION)) == 5
    for threshold, expected in ((0.6, (-50.0, True)), (0.65, (1.5, False))):
        batch = {"halt": Halt(jnp.array(8.0), jnp.array(threshold), jnp.array(-50.0))}
        reward, halted, uncertainty = MOReL().penalise(batch, PREDICTION, jnp.array(1.5))
        assert (float(reward), bool(halted)) == expected
        assert float(uncertainty) == 5 / 8


def test_what_a_halt_is_measured_by():
    data = random_dataset(0, (6, 5, 4))
    config = MOReL(world_steps=2, world_width=8, halt_penalty=7.0)
    table = config.table(data, config.prepare(data))
    beliefs = jax.jit(jax.vmap(table["world"].predict))(data.obs[data.row], data.action)
    states = np.asarray(beliefs.mean)[..., :-1]
    apart = [max(np.linalg.norm(a - b) for a in row for b in row) for row in states]
    np.testing.assert_allclose(table["halt"].largest, max(apart), rtol=1e-4)
    np.testing.assert_allclose(table["halt"].threshold, np.quantile(apart, 0.99) / max(apart), rtol=1e-4)
    chosen = replace(config, threshold=0.3).table(data, table["world"].member)
    np.testing.assert_allclose(chosen["halt"].threshold, 0.3, rtol=1e-6)
    np.testing.assert_allclose(table["halt"].reward, data.reward.min() - 7, rtol=1e-5)


# -- rollouts ---------------------------------------------------------------------------------------------------


def counting_world(low, high):
    """x' = x + a for sure, and a reward of 3; two members of one mind. Rollouts begin in 0 and 10."""
    weight = np.zeros((4, 2), np.float32)
    weight[0, 1] = 1
    bias = np.array([0, 3, -100, -100], np.float32)
    net = MLP((Linear(jnp.asarray(weight), jnp.asarray(bias)),))
    one = GaussianStep(net, Scale.unit(2), Scale.unit(2))
    member = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), one)
    start, shown = jnp.array([[0.0], [10.0]]), jnp.full(2, np.inf)
    return World(member, start, jnp.array([low]), jnp.array([high]), -shown, shown, member.change.std)


ACTOR = Policy.init(Scale.unit(1), Range(jnp.array([1.0]), jnp.array([2.0])), jax.random.key(0), "tanh-gaussian")
CONFIG = MOPO(rollouts=200, rollout_steps=4, penalty=0.0)


NONE = {"next_obs": jnp.zeros((800, 1)), "done": jnp.ones(800)}


def rollouts(world, config=CONFIG, before=NONE):
    """Columns [steps, rollouts, …]."""
    imagine = jax.jit(lambda before: config.imagine(ACTOR, {"world": world}, before, jax.random.key(1)))
    return {
        name: np.asarray(column).reshape(4, 200, *column.shape[1:]) for name, column in imagine(before).items()
    }


def test_rollouts_go_on_from_where_they_are():
    rows = rollouts(counting_world(-np.inf, np.inf))
    assert set(rows["obs"][0].ravel()) == {0.0, 10.0}
    np.testing.assert_allclose(rows["next_obs"], rows["obs"] + rows["action"], atol=1e-3)
    np.testing.assert_allclose(rows["reward"], 3, atol=1e-3)
    np.testing.assert_array_equal(rows["obs"][1:], rows["next_obs"][:-1])
    assert (rows["action"] >= 1).all()
    assert (rows["action"] <= 2).all()
    assert rows["action"].std() > 0.1
    assert not rows["done"].any()


def test_what_an_action_does():
    """Raw next states and rewards of every member."""
    world = ActionDynamics(counting_world(-np.inf, np.inf).member)
    next_obs, reward = world.steps(jnp.array([[5.0], [7.0]]), jnp.array([[1.0], [-2.0]]))
    np.testing.assert_allclose(next_obs, [[[6], [5]]] * 2)
    np.testing.assert_allclose(reward, [[3, 3]] * 2)


def test_a_twentieth_of_the_trajectories_chooses_the_elites():
    train, held_out = split_steps(random_dataset(0, [2] * 40), seed=0)
    assert (len(train["given"]), len(held_out["given"])) == (76, 4)


def test_a_rollout_ends_outside_the_range_and_begins_anew():
    rows = rollouts(counting_world(-1.0, 12.5))
    outside = rows["next_obs"][..., 0] >= 12.5
    np.testing.assert_array_equal(rows["done"], outside)
    assert 0 < outside.mean() < 1
    after = rows["obs"][1:, :, 0]
    assert np.isin(after[outside[:-1]], (0, 10)).all()
    np.testing.assert_array_equal(after[~outside[:-1]], rows["next_obs"][:-1, :, 0][~outside[:-1]])


def test_some_rollouts_go_on_where_the_last_ones_were():
    config, world = replace(CONFIG, continue_prob=0.75), counting_world(-1.0, 12.5)
    before = rollouts(world, config)
    last = {name: jnp.asarray(before[name].reshape(800, *before[name].shape[2:])) for name in NONE}
    first = rollouts(world, config, last)["obs"][0, :, 0]
    ended, was = before["done"][-1] > 0, before["next_obs"][-1, :, 0]
    assert ended.any()
    assert np.isin(first[ended], (0, 10)).all()
    assert (first[~ended] == was[~ended]).mean() == pytest.approx(0.75, abs=0.1)
    assert np.isin(first[first != was], (0, 10)).all()


def test_a_batch_has_its_share_of_data():
    for real, size, expected in ((0.05, 256, 13), (0.0, 64, 0), (0.999, 10, 9)):
        config = MOPO(dataset_share=real, fit=Fit(batch=size))
        names = {"obs": (3,), "next_obs": (3,), "action": (2,), "reward": (), "done": ()}
        data = {name: jnp.ones((size, *shape)) for name, shape in names.items()}
        imagined = {name: jnp.zeros((40, *shape)) for name, shape in names.items()} | {
            "model_uncertainty": jnp.full(40, 2.0)
        }
        rows, metrics = config.mix({**data, "world": None}, imagined, jax.random.key(0))
        for name, column in rows.items():
            assert column.shape == (size, *names[name])
            assert (np.asarray(column).reshape(size, -1).all(1)).sum() == expected
        assert metrics == pytest.approx({"imagined_reward": 0, "ended": 0, "uncertainty": 2})


def test_rollouts_are_renewed_when_due_and_else_kept():
    data = random_dataset(0, (6, 5, 4))
    config = configure(
        "mopo",
        steps=5,
        batch=8,
        width=8,
        rollouts=4,
        rollout_steps=2,
        rollout_interval=3,
        world_steps=2,
        world_width=8,
    )
    ((learner, table, _),) = config.stages(data, prepared=config.prepare(data))
    states = loop.run(learner, loop.start(learner, table, [0]), table, [0], 1)
    seen = [np.asarray(state.opt_state["imagined"]["obs"]) for state, _ in states]
    assert [np.array_equal(a, b) for a, b in pairwise(seen)] == [True, True, False, True]
    assert np.isin(seen[0][0, :4], data.obs[data.row]).all()


# -- ends -------------------------------------------------------------------------------------------------------


def data_of(env_id, obs_dim, action_dim=3):
    return replace(random_dataset(0, (4, 4), obs_dim, action_dim), info={"env_id": env_id})


def test_the_rules_of_the_environments():
    low, high = env_bounds(data_of("Hopper-v5", 11))
    np.testing.assert_allclose(low, [0.7, -0.2, *[-100] * 9])
    np.testing.assert_allclose(high, [np.inf, 0.2, *[100] * 9])
    low, high = env_bounds(data_of("Walker2d-v4", 17, 6))
    np.testing.assert_allclose(low, [0.8, -1, *[-np.inf] * 15])
    np.testing.assert_allclose(high, [2, 1, *[np.inf] * 15])
    low, high = env_bounds(data_of("HalfCheetah-v5", 17, 6))
    assert np.isinf([low, high]).all()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (random_dataset(0, (4, 4)), "name no environment"),
        (data_of("Pendulum-v1", 3, 1), "the rule that ends an episode of Pendulum-v1 is not known"),
        (data_of("Hopper-v5", 5), "the data have 5 observations, but Hopper-v5.* has 11"),
    ],
)
def test_ends_that_are_not_known(data, sentence):
    for method in ("mopo", "morel"):
        with pytest.raises(InputError, match=sentence):
            train(method, data, terminate="env")


# -- refusals ---------------------------------------------------------------------------------------------------


def test_one_trajectory_is_not_enough():
    with pytest.raises(InputError, match="at least two trajectories"):
        train("mopo", from_trajectories([random_dataset(0, (9,))[0]]))


@pytest.mark.parametrize(
    ("method", "bad", "sentence"),
    [
        *[
            ("mopo", {name: 0}, f"{name} must be at least 1")
            for name in ("rollouts", "rollout_steps", "rollout_interval")
        ],
        ("mopo", {"world_depth": 0}, "world_depth must be at least 1"),
        ("morel", {"world_activation": "tanh"}, "world_activation must be relu or silu, not 'tanh'"),
        *[("morel", {name: 0}, f"{name} must be at least 1") for name in ("world_steps", "world_width")],
        *[
            ("mopo", {name: 1.0}, f"{name} must be from 0 to below 1, not 1")
            for name in ("dataset_share", "continue_prob")
        ],
        ("mopo", {"terminate": "maybe"}, "terminate must be never or env, not 'maybe'"),
        ("mopo", {"world_rate": 0.0}, "world_rate"),
        ("mopo", {"penalty": -1.0}, "penalty must not be below 0"),
        ("mopo", {"actor_rate": 0.0}, "actor_rate must be above 0"),
        ("mopo", {"actor_schedule": "linear"}, "actor_schedule must be constant or cosine, not 'linear'"),
        ("mopo", {"threshold": 1.0}, "no setting 'threshold'"),
        ("morel", {"threshold": 0.0}, "threshold must be above 0"),
        ("morel", {"halt_penalty": -1.0}, "halt_penalty"),
    ],
)
def test_impossible_settings(method, bad, sentence):
    with pytest.raises(InputError, match=sentence):
        configure(method, **bad)


def test_both_share_their_defaults():
    assert isinstance(configure("mopo"), ModelBased)
    assert (configure("mopo").rollout_steps, configure("mopo").penalty, configure("mopo").dataset_share) == (
        5,
        1.0,
        0.05,
    )
