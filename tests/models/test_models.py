"""Dynamics, inverse, reward and value models: known answers in raw units, each trained once."""

from dataclasses import replace
from functools import cache
from unittest.mock import patch

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.data import Dataset, Trajectory, change_table, from_trajectories, step_table
from trajstitch.errors import InputError
from trajstitch.models import inverse as inverse_module
from trajstitch.models.dynamics import DynamicsConfig, train_dynamics
from trajstitch.models.inverse import InverseConfig, train_inverse
from trajstitch.models.reward import KINDS, RewardConfig, train_reward
from trajstitch.models.value import ValueConfig, train_value
from trajstitch.training import loop
from trajstitch.training.loop import Fit, mean_loss

KEY = jax.random.key(7)
CHECKS = 20  # of a training run

# -- a linear world, badly scaled ------------------------------------------------------------------------------
#
#   p' = -0.8 p + 0.2 a0              column 0
#   q' =  0.5 q + width(p) a1         column 1, in thousands
#   c' =  c = 7                       column 2
#   d' =  d + 0.5                     column 3, a clock
#   r  = 300 + 40 sin(6p) + 20 a0 + 100 q'


def width(p):
    return 0.2 + 0.1 * np.tanh(10 * p)


def linear_world(seed, many, steps=40) -> Dataset:
    rng = np.random.default_rng(seed)
    action = rng.uniform(-1, 1, (many, steps, 2))
    obs = np.full((many, steps + 1, 4), 7.0)
    obs[..., 3] = 0.5 * np.arange(steps + 1)
    obs[:, 0, :2] = rng.normal(size=(many, 2)) * [0.2, 0.15]
    for t in range(steps):
        p, q = obs[:, t, 0], obs[:, t, 1]
        obs[:, t + 1, 0] = -0.8 * p + 0.2 * action[:, t, 0]
        obs[:, t + 1, 1] = 0.5 * q + width(p) * action[:, t, 1]
    reward = 300 + 40 * np.sin(6 * obs[:, :-1, 0]) + 20 * action[..., 0] + 100 * obs[:, 1:, 1]
    obs *= [1, 1000, 1, 1]
    return from_trajectories(Trajectory(obs[m], action[m], reward[m], False) for m in range(many))


TRAIN, HELD_OUT = linear_world(0, 60), linear_world(1, 15)
TABLE = step_table(HELD_OUT)  # transitions no model was trained on
CHANGES = change_table(HELD_OUT)


def held_out_of(history):
    """[C, P], finite, and the loss fell."""
    held_out = np.array(history.held_out)
    assert history.step == sorted(history.step)
    assert held_out.shape == np.shape(history.train) == (len(history.step), held_out.shape[1])
    assert np.isfinite(held_out).all()
    assert (held_out.min(0) < held_out[0]).all()
    return held_out


def test_rows_of_transitions():
    data = linear_world(3, 4, steps=3)
    data = from_trajectories(
        Trajectory(t.obs, t.action, t.reward, terminal) for t, terminal in zip(data, (1, 0, 0, 1), strict=True)
    )
    table = step_table(data)
    for m, t in enumerate(data):
        part = slice(3 * m, 3 * m + 3)
        np.testing.assert_array_equal(table["obs"][part], t.obs[:-1])
        np.testing.assert_array_equal(table["next_obs"][part], t.obs[1:])
        np.testing.assert_array_equal(table["action"][part], t.action)
        np.testing.assert_array_equal(table["reward"][part], t.reward)
        np.testing.assert_array_equal(table["done"][part], [0, 0, t.terminal])


# -- dynamics --------------------------------------------------------------------------------------------------

DYNAMICS = DynamicsConfig(
    members=4, elites=2, width=48, depth=2, patience=0, fit=Fit(steps=1000, batch=128, rate=2e-3)
)


@pytest.fixture(scope="module")
def dynamics():
    return train_dynamics(TRAIN, HELD_OUT, DYNAMICS, seed=0)


def test_moments_have_a_row_for_each_elite(dynamics):
    model, _ = dynamics
    for rows in (1, 5):
        mean, std = model.moments(TABLE["obs"][:rows])
        assert mean.shape == std.shape == (2, rows, 4)
        assert (np.asarray(std) > 0).all()


def test_dynamics_recovers_mean_and_std_in_raw_units(dynamics):
    model, _ = dynamics
    p, q = TABLE["obs"][:, 0], TABLE["obs"][:, 1] / 1000
    mean, std = (np.asarray(moment, np.float64) for moment in model.moments(TABLE["obs"]))
    noise = np.stack([np.full_like(p, 0.2), 1000 * width(p)], 1) / np.sqrt(3)  # std of a uniform action
    error = (mean[..., :2] - np.stack([-0.8 * p, 500 * q], 1)) / noise
    assert (np.sqrt(np.mean(error**2, axis=1)) < 0.35).all()  # the change alone is 3 and 0.6 of the noise
    assert (np.abs(np.log(std[..., :2] / noise)).mean(1) < 0.2).all()  # one std for all p would be 0.4 off
    assert (np.abs(mean[..., 2:] - TABLE["obs"][:, 2:] - [0, 0.5]).mean(1) < 0.02).all()
    assert (std[..., 2:].mean(1) < 0.03).all()


def test_elites_are_the_members_of_lowest_held_out_loss(dynamics):
    model, history = dynamics
    held_out = held_out_of(history)
    assert held_out.shape == (CHECKS, 4)
    lowest = held_out.min(0)
    assert len(set(lowest.tolist())) == 4
    losses = [
        float(mean_loss(DYNAMICS.loss, jax.tree.map(lambda leaf, e=e: leaf[e], model.member), CHANGES, KEY))
        for e in range(2)
    ]
    np.testing.assert_allclose(sorted(losses), np.sort(lowest)[:2], rtol=1e-4)


def test_dynamics_loss_is_the_negative_log_likelihood(dynamics):
    """Up to a constant: the same difference between members as the raw moments have."""
    model, _ = dynamics
    mean, std = (np.asarray(moment, np.float64) for moment in model.moments(TABLE["obs"]))
    raw = (0.5 * ((TABLE["next_obs"] - mean) / std) ** 2 + np.log(std)).sum(-1).mean(1)
    loss = [
        float(mean_loss(DYNAMICS.loss, jax.tree.map(lambda leaf, e=e: leaf[e], model.member), CHANGES, KEY))
        for e in range(2)
    ]
    assert raw[0] - raw[1] == pytest.approx(loss[0] - loss[1], abs=0.02)
    change_std = (TRAIN.obs[TRAIN.row + 1] - TRAIN.obs[TRAIN.row]).std(0, dtype=np.float64)[:2]
    still = 0.01 * np.array(
        [7, TRAIN.obs[TRAIN.row, 3].std(dtype=np.float64)]
    )  # columns whose change is always the same
    assert raw[0] - loss[0] == pytest.approx(np.log([*change_std, *still]).sum(), abs=0.02)


# -- inverse ---------------------------------------------------------------------------------------------------

INVERSE = {
    kind: InverseConfig(kind, 64, "mean", patience=0, fit=Fit(steps=1500, batch=64, rate=2e-3))
    for kind in ("regression", "cvae")
}


@cache
def trained_inverse(kind):
    return train_inverse(TRAIN, HELD_OUT, INVERSE[kind], seed=0)


@pytest.fixture(scope="module", params=["regression", "mean", "sample"])
def inverse(request):
    """The latent does not matter in training, so one network serves both of a CVAE."""
    model, history = trained_inverse("regression" if request.param == "regression" else "cvae")
    return request.param, replace(model, sample=True) if request.param == "sample" else model, history


def test_inverse_recovers_the_action(inverse):
    _, model, history = inverse
    action = np.asarray(model.actions(TABLE["obs"], TABLE["next_obs"], KEY))
    assert action.shape == TABLE["action"].shape
    error = np.abs(action - TABLE["action"]).mean(0)
    assert (error < 0.08).all()  # 0.5 for the mean action
    assert held_out_of(history).shape == (CHECKS, 1)


def test_inverse_stays_in_range(inverse):
    _, model, _ = inverse
    far = TABLE["obs"] + np.random.default_rng(0).normal(size=TABLE["obs"].shape).astype(np.float32) * 1e4
    action = np.asarray(model.actions(TABLE["obs"], far, KEY))
    assert np.isfinite(action).all()
    assert (action >= TRAIN.action.min(0) - 1e-6).all()
    assert (action <= TRAIN.action.max(0) + 1e-6).all()
    assert action.max() > 0.95  # the whole range is in reach
    assert action.min() < -0.95


def test_only_a_sampled_latent_depends_on_the_key(inverse):
    latent, model, _ = inverse
    first, second = (np.asarray(model.actions(TABLE["obs"], TABLE["next_obs"], jax.random.key(k))) for k in (0, 1))
    assert np.array_equal(first, second) == (latent != "sample")


def test_a_sampled_latent_gives_one_of_the_possible_actions():
    """Actions of -0.5 or 1.5 that change nothing: their mean would be wrong always."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(20, 51, 1)).astype(np.float32)
    action = rng.choice([-0.5, 1.5], (20, 50, 1))
    data = from_trajectories(Trajectory(o, a, np.zeros(50), False) for o, a in zip(obs, action, strict=True))
    config = InverseConfig("cvae", 32, "sample", patience=0, fit=Fit(steps=1000, batch=64, rate=2e-3))
    model, _ = train_inverse(data[:15], data[15:], config, seed=0)
    table = step_table(data[15:])
    first, second = (
        np.asarray(model.actions(table["obs"], table["next_obs"], jax.random.key(k)))[:, 0] for k in (0, 1)
    )
    assert first.min() >= -0.5
    assert first.max() <= 1.5
    assert first.std() > 0.6  # 1 for tosses, 0 for their mean
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.3


def test_the_width_follows_the_size_of_the_data():
    assert inverse_module._LARGE == 900_000
    with patch.object(inverse_module, "_LARGE", 9):
        for rows, hidden in ((8, 256), (9, 750)):
            table = {name: np.zeros((rows, 1), np.float32) for name in ("obs", "next_obs", "action")}
            assert InverseConfig().init(table, KEY).net.layers[0].weight.shape == (hidden, 2)


# -- reward ----------------------------------------------------------------------------------------------------

REWARD = {
    kind: RewardConfig(
        kind, width=64, critic_steps=3, penalty=1.0, patience=0, fit=Fit(steps=1200, batch=64, rate=rate)
    )
    for kind, rate in {"mlp": 2e-3, "gaussian": 2e-3, "vae": 2e-3, "wgan": 5e-4}.items()
}
ALLOWED = {"mlp": 0.1, "gaussian": 0.1, "vae": 0.15, "wgan": 0.5}  # root mean square error in std of the rewards


@pytest.fixture(scope="module", params=KINDS)
def reward(request):
    return request.param, *train_reward(TRAIN, HELD_OUT, REWARD[request.param], seed=0)


def test_reward_is_recovered_in_raw_units(reward):
    kind, model, history = reward
    found = np.asarray(model.rewards(TABLE["obs"], TABLE["action"], TABLE["next_obs"], KEY))
    assert found.shape == TABLE["reward"].shape
    error = np.sqrt(np.mean((found - TABLE["reward"]) ** 2)) / TABLE["reward"].std()
    assert error < ALLOWED[kind]  # 1 for predicting the mean
    assert held_out_of(history).shape == (CHECKS, 1)


def test_reward_looks_at_state_action_and_next_state(reward):
    """Each one exchanged for another transition's costs accuracy."""
    _, model, _ = reward
    order = np.random.default_rng(0).permutation(len(TABLE["obs"]))

    def error(**other):
        given = {name: TABLE[name] for name in ("obs", "action", "next_obs")} | other
        return np.sqrt(np.mean((np.asarray(model.rewards(*given.values(), KEY)) - TABLE["reward"]) ** 2))

    for name in ("obs", "action", "next_obs"):
        assert error(**{name: TABLE[name][order]}) > 1.3 * error()


def test_only_some_rewards_are_drawn(reward):
    """VAE and WGAN draw theirs with the key, MLP and Gaussian give their mean."""
    kind, model, _ = reward
    first, second = (
        np.asarray(model.rewards(TABLE["obs"], TABLE["action"], TABLE["next_obs"], jax.random.key(k)))
        for k in (0, 1)
    )
    assert np.array_equal(first, second) == (kind in ("mlp", "gaussian"))


def test_the_wgan_as_it_is_set_by_default_does_not_run_away():
    """Its held-out error, in units of the rewards' variance, ends below that of the mean."""
    config = RewardConfig("wgan", width=64, patience=0, fit=Fit(steps=1500, batch=64, rate=1e-4))
    _, history = train_reward(TRAIN, HELD_OUT, config, seed=1)
    assert np.array(history.held_out)[-5:].max() < 1


def test_the_gaussian_knows_the_noise():
    """-log N: r ~ N(0, 3²) beside rows that are told exactly."""
    rng = np.random.default_rng(0)
    obs = rng.choice([0.0, 1.0], (40, 51, 1))
    noise = np.where(obs[:, :-1, 0] > 0.5, 3.0, 0.3) * rng.normal(size=(40, 50))
    data = from_trajectories(
        Trajectory(o, np.zeros((50, 1)), 5 * o[:-1, 0] + n, False) for o, n in zip(obs, noise, strict=True)
    )
    config = RewardConfig("gaussian", width=16, patience=0, fit=Fit(steps=600, batch=256, rate=3e-3))
    model, _ = train_reward(data[:30], data[30:], config, seed=0)
    for state, std in ((1.0, 3.0), (0.0, 0.3)):
        x = model.given(jnp.full(1, state), jnp.zeros(1), jnp.zeros(1))
        mean, log_std = model.net(x)
        scale = model.given.reward
        assert float(scale.mean[0] + scale.std[0] * mean) == pytest.approx(5 * state, abs=0.4)
        assert float(scale.std[0] * jnp.exp(log_std)) == pytest.approx(std, rel=0.2)


# -- value -----------------------------------------------------------------------------------------------------

VALUE = ValueConfig(width=32, discount=0.9, target_rate=0.05, fit=Fit(steps=1500, batch=64, rate=2e-3))


STATES = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)  # states by number, far from each other


def path(*xs, rewards, terminal):
    return Trajectory(STATES[list(xs)], np.zeros((len(xs) - 1, 1)), np.array(rewards, np.float32), terminal)


def chains():
    """Two-step chains; 1→2→3 really ends in 3, 5→6→7 is cut in 7, from where others go on for one step.

    A cut at 20 where it stays: worth 1 a step for ever. The same at 25, which really ends.
    """
    return from_trajectories(
        [
            path(1, 2, 3, rewards=(1, 2), terminal=True),
            path(3, 4, rewards=(12,), terminal=True),  # so 3 has a value of its own, that 2 must not see
            path(5, 6, 7, rewards=(1, 2), terminal=False),
            path(7, 8, rewards=(5,), terminal=True),
            path(20, 20, rewards=(1,), terminal=False),
            path(25, 25, rewards=(1,), terminal=True),
        ]
        * 40
    )


EXACT = {1: 1 + 0.9 * 2, 2: 2, 3: 12, 5: 1 + 0.9 * (2 + 0.9 * 5), 6: 2 + 0.9 * 5, 7: 5, 20: 10, 25: 1}


@pytest.fixture(scope="module")
def value():
    return train_value(step_table(chains()), VALUE, seed=0)


def values_of(model, states):
    return np.asarray(model.value(STATES[list(states)]))


def test_value_is_exact_and_tells_an_end_from_a_time_out(value):
    model, history = value
    np.testing.assert_allclose(values_of(model, EXACT), list(EXACT.values()), atol=0.1)
    assert np.shape(history.held_out) == (CHECKS, 1)
    assert np.isfinite(history.held_out).all()


def test_value_of_a_chain_of_ten():
    """Raw units: rewards of 1000 a step to a real end."""
    data = from_trajectories([path(*range(11), rewards=[1000] * 10, terminal=True)] * 30)
    model, _ = train_value(step_table(data), VALUE, seed=1)
    exact = 1000 * (1 - 0.9 ** np.arange(10, 0, -1)) / 0.1
    np.testing.assert_allclose(values_of(model, range(10)), exact, rtol=0.05, atol=60)


def two_heads(model, nets, obs):
    """Both networks' values in raw units, by hand."""
    values = []
    for k in range(2):
        x = (obs - np.asarray(model.scale.mean)) / np.asarray(model.scale.std)
        for number, layer in enumerate(nets.layers):
            x = x @ np.asarray(layer.weight[k]).T + np.asarray(layer.bias[k])
            x = np.maximum(x, 0) if number < 2 else x
        values.append(float(model.unit) * x[:, 0])
    return np.array(values)


def with_other_targets(model):
    """After training they are much like the twins."""
    return eqx.tree_at(lambda m: m.target, model, jax.tree.map(lambda leaf: leaf - 0.01, model.target))


def test_value_is_the_minimum_of_twins(value):
    """Of the trained networks, not of their targets."""
    model = with_other_targets(value[0])
    obs = 5 * np.random.default_rng(1).normal(size=(200, 8)).astype(np.float32)
    twins = two_heads(model, model.twins, obs)
    assert (twins[0] < twins[1] - 1e-3).any()
    assert (twins[0] > twins[1] + 1e-3).any()
    np.testing.assert_allclose(np.asarray(model.value(obs)), twins.min(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("done", [0.0, 1.0])
def test_value_loss_by_hand(value, done):
    """Both twins go to r + γ·(1 - done)·min of the targets, where no gradient flows."""
    model = with_other_targets(value[0])
    obs, next_obs = STATES[[6]] + 1, STATES[[9]]
    row = {"obs": obs[0], "next_obs": next_obs[0], "reward": jnp.asarray(4.0), "done": jnp.asarray(done)}
    goal = 4 + 0.9 * (1 - done) * two_heads(model, model.target, next_obs).min()
    expected = np.sum((two_heads(model, model.twins, obs) - goal) ** 2) / float(model.unit) ** 2
    loss, gradient = eqx.filter_value_and_grad(lambda m: VALUE.loss(m, row, KEY))(model)
    assert float(loss) == pytest.approx(expected, rel=1e-3)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves((gradient.target, gradient.scale)))
    assert float(gradient.unit) == 0


def test_targets_follow_slowly():
    table = step_table(chains())
    config = ValueConfig(width=8, discount=0.9, target_rate=0.25, fit=Fit(steps=1, batch=8, rate=0.1))
    first = config.init(table, KEY)
    moved = jax.tree.map(lambda leaf: leaf + 1, first.twins)
    after = config.after(eqx.tree_at(lambda m: m.twins, first, moved))
    for old, new, twin in zip(*map(jax.tree.leaves, (first.target, after.target, after.twins)), strict=True):
        np.testing.assert_allclose(new, old + 0.25, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(twin, old + 1, rtol=1e-5, atol=1e-6)


def test_a_warm_start_goes_on(value):
    """After a few small steps it is still the old function; a fresh one is not."""
    model, _ = value
    few = ValueConfig(width=32, discount=0.9, target_rate=0.05, fit=Fit(steps=20, batch=64, rate=1e-5))
    warm, warm_history = train_value(step_table(chains()), few, seed=3, model=model)
    fresh, fresh_history = train_value(step_table(chains()), few, seed=3)
    before = values_of(model, EXACT)
    np.testing.assert_allclose(values_of(warm, EXACT), before, atol=0.2)
    assert not np.array_equal(values_of(warm, EXACT), before)
    assert np.abs(values_of(fresh, EXACT) - before).max() > 5
    assert warm_history.train[0][0] < 0.1 * fresh_history.train[0][0]


def test_the_last_value_is_kept_not_the_one_of_smallest_error():
    table = step_table(from_trajectories([path(0, 0, rewards=(1,), terminal=False)]))
    config = ValueConfig(width=8, discount=0.9, fit=Fit(steps=40, batch=2, rate=0.1))
    model, history = train_value(table, config, seed=0)
    assert np.argmin(history.held_out) < CHECKS - 1  # so it matters here
    *_, (state, _) = loop.run(config, loop.start(config, table, [0]), table, [0], every=2)
    for kept, last in zip(jax.tree.leaves(model), jax.tree.leaves(state.model), strict=True):
        np.testing.assert_array_equal(kept, last[0])


def test_one_row_is_enough():
    data = from_trajectories([path(0, 1, rewards=(3,), terminal=True)])
    config = ValueConfig(width=8, discount=0.9, fit=Fit(steps=300, batch=4, rate=1e-2))
    model, _ = train_value(step_table(data), config, seed=0)
    np.testing.assert_allclose(values_of(model, [0]), 3, atol=0.1)


# -- all of them -----------------------------------------------------------------------------------------------

TINY = Fit(steps=3, batch=8)
TRAINERS = {
    "dynamics": (train_dynamics, DynamicsConfig(members=2, elites=2, width=8, depth=1, patience=0, fit=TINY)),
    "regression": (train_inverse, InverseConfig("regression", 8, patience=0, fit=TINY)),
    "cvae": (train_inverse, InverseConfig("cvae", 8, patience=0, fit=TINY)),
    **{kind: (train_reward, RewardConfig(kind, width=8, critic_steps=2, patience=0, fit=TINY)) for kind in KINDS},
    "value": (
        lambda train, held_out, config, seed: train_value(step_table(train), config, seed),
        ValueConfig(width=8, fit=TINY),
    ),
}


@pytest.mark.parametrize("name", TRAINERS)
def test_the_same_seed_gives_the_same_model_and_another_another(name):
    train, config = TRAINERS[name]
    models, histories = zip(*(train(TRAIN[:3], HELD_OUT[:2], config, seed) for seed in (0, 0, 5)), strict=True)
    once, again, other = ([np.asarray(leaf) for leaf in jax.tree.leaves(model)] for model in models)
    assert histories[0] == histories[1] != histories[2]
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(once, other, strict=True))


@pytest.mark.parametrize(
    ("config", "bad", "message"),
    [
        (DynamicsConfig, {"elites": 8}, "elites must be from 1 to the 7 members, not 8"),
        (DynamicsConfig, {"elites": 0}, "elites must be from 1"),
        (DynamicsConfig, {"activation": "tanh"}, "activation must be relu or silu, not 'tanh'"),
        (InverseConfig, {"kind": "gan"}, "regression or a cvae"),
        (InverseConfig, {"latent": "mode"}, "mean or sample"),
        (RewardConfig, {"kind": "linear"}, "mlp, gaussian, vae, wgan"),
        (ValueConfig, {"discount": 1.0}, "discount"),
        (ValueConfig, {"discount": -0.1}, "discount"),
        (ValueConfig, {"target_rate": 0.0}, "target_rate"),
        (ValueConfig, {"target_rate": 1.5}, "target_rate"),
    ],
)
def test_impossible_settings(config, bad, message):
    with pytest.raises(InputError, match=message):
        config(**bad)
