"""MBOP: the compiled planner against a plain loop, a world where only looking ahead pays, memory, files, tables.

What it shares with every method is in test_offline.py.
"""

import dataclasses
import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.evaluation.rollout import actor
from trajstitch.methods.mbop import MBOP, SEARCH, last_action, truncated_return
from trajstitch.methods.train import train
from trajstitch.methods.tsmbop import TSMBOP, side_by_side
from trajstitch.policies.mppi import Memory, PlanSearch, noise_shape, search_plan
from trajstitch.policies.planner import plan_all
from trajstitch.policies.policy import stack
from trajstitch.policies.policy_files import load_policy, save_policy
from trajstitch.storage.serialise import store
from trajstitch.training import loop
from trajstitch.training.loop import Fit
from worlds import random_dataset

DATA = random_dataset(0, (6, 1, 9, 4), obs_dim=3, action_dim=2)
BETTER = random_dataset(1, (30, 5), obs_dim=3, action_dim=2)
SIZES = {"width": 16, "depth": 1, "members": 2}  # few layers compile fast
SMALL = SIZES | {"samples": 5, "plan_horizon": 3, "sigma": 0.7, "kappa": 0.8, "beta": 0.3}
LOW, HIGH = DATA.action.min(0), DATA.action.max(0)


@functools.cache
def fresh(kind, seed=0, **more):
    """An untrained planner."""
    config = kind(**SMALL | more)
    learner, table, _ = next(config.stages(DATA, BETTER))
    return learner.init(table, jax.random.key(seed))


def one(planner, episodes, seed=0):
    """A memory of one planner, full of something."""
    rng = np.random.default_rng(seed)
    steps = planner.search.horizon
    return Memory(rng.uniform(LOW, HIGH, (episodes, 2)), rng.uniform(LOW, HIGH, (episodes, steps, 2)))


# -- the planner, one sample at a time ----------------------------------------------------------------------------


def layers(net, x, head):
    *hidden, last = [(np.asarray(layer.weight)[head], np.asarray(layer.bias)[head]) for layer in net.layers]
    for weight, bias in hidden:
        x = np.maximum(weight @ x + bias, 0)
    return last[0] @ x + last[1]


def scaled(scale, x):
    return (x - np.asarray(scale.mean)) / np.asarray(scale.std)


def squashed(span, x):
    low, high = np.asarray(span.low), np.asarray(span.high)
    return low + (high - low) * (np.tanh(x) + 1) / 2


def pair(part, obs, action):
    unit = 2 * (action - LOW) / (HIGH - LOW) - 1
    return np.concatenate([scaled(part.scale, obs), unit])


def plain_prior(prior, obs, last, head):
    if hasattr(prior, "policy"):
        return squashed(prior.policy.range, layers(prior.policy.net, scaled(prior.policy.scale, obs), ...))
    return squashed(prior.range, layers(prior.net, pair(prior, obs, last), head))


def plain_end(end, obs, action):
    if hasattr(end, "value"):
        return float(end.value.unit) * min(
            layers(end.value.twins, scaled(end.value.scale, obs), k)[0] for k in (0, 1)
        )
    means = [layers(end.net, pair(end, obs, action), head)[0] for head in (0, 1)]
    return float(end.total.mean) + float(end.total.std) * np.mean(means)


def plain_plan(planner, last, old, obs, begun, noise):
    """The plan [H, A] of one episode from noise [H, E, n, A]."""
    search, step = planner.search, planner.step
    beta, last = (0, (LOW + HIGH) / 2) if begun else (search.beta, last)
    totals, plans = [], []
    for head, n in itertools.product(range(2), range(noise.shape[2])):
        s, a, total, plan = obs, last, 0.0, []
        for t in range(search.horizon):
            wish = plain_prior(planner.prior, s, a, head) + search.sigma * (HIGH - LOW) / 2 * noise[t, head, n]
            wish = (1 - beta) * wish + beta * old[t]
            a = np.clip(wish, LOW, HIGH)
            says = [layers(step.net, pair(step, s, a), k) for k in (0, 1)]
            total += np.mean([float(step.reward.mean) + float(step.reward.std) * out[-1] for out in says])
            s = s + np.asarray(step.change.mean) + np.asarray(step.change.std) * says[head][:-1]
            plan.append(wish)
        totals.append(total + plain_end(planner.end, s, plain_prior(planner.prior, s, a, head)))
        plans.append(plan)
    weight = np.exp(search.kappa * (np.array(totals) - max(totals)))
    return np.clip(np.einsum("n,nta->ta", weight / weight.sum(), np.array(plans)), LOW, HIGH)


@pytest.mark.parametrize(("kind", "kappa"), [(MBOP, 0.8), (TSMBOP, 1e6)])
def test_a_plain_loop_agrees(kind, kappa):
    """Also where e^(κR) itself is beyond all floats."""
    planner, rng = fresh(kind, kappa=kappa), np.random.default_rng(3)
    shape = noise_shape(planner, 2)
    assert shape == (3, 2, 2, 3, 2)  # five samples of two heads are three each
    obs, noise = rng.normal(size=(2, 3)), rng.normal(size=shape)
    memory, begun = one(planner, 2), np.array([False, True])
    plan = jax.jit(search_plan)(planner, memory, *(jnp.asarray(x) for x in (obs, begun, noise)))
    for b in (0, 1):
        expected = plain_plan(planner, memory.action[b], memory.plan[b], obs[b], begun[b], noise[:, :, b])
        np.testing.assert_allclose(plan[b], expected, rtol=1e-4, atol=1e-5)


def test_noise_does_not_keep_a_plan_off_the_edge_of_the_range():
    """A prior at the edge stays there where no future counts more; a mean of clipped actions would not."""
    planner = fresh(MBOP, kappa=0.0, sigma=0.5, beta=0.0, samples=1000)
    full = jax.tree.map(lambda leaf: jnp.full_like(leaf, 50.0), planner.prior.net.layers[-1].bias)
    planner = eqx.tree_at(lambda p: p.prior.net.layers[-1].bias, planner, full)
    noise = np.random.default_rng(0).normal(size=noise_shape(planner, 1))
    plan = search_plan(planner, one(planner, 1), jnp.zeros((1, 3)), jnp.array([True]), jnp.asarray(noise))
    np.testing.assert_allclose(plan, np.broadcast_to(HIGH, plan.shape), atol=0.1 * (HIGH - LOW).max() / 2)


# -- a world where looking ahead pays -----------------------------------------------------------------------------


def toll_dataset(seed=0, many=1000):
    """Two steps: the first costs as far as it goes up and moves x there, the second pays four times x.

    Actions are uniform, so a clone stays at 0; who looks at one reward goes down, who looks at two goes up.
    """
    rng = np.random.default_rng(seed)
    action = rng.uniform(-1, 1, (many, 2, 1))
    obs = np.zeros((many, 3, 2))
    obs[:, 1:, 0], obs[..., 1] = action[:, :1, 0], [0, 1, 2]
    reward = np.stack([-action[:, 0, 0], 4 * action[:, 0, 0]], 1)
    return Dataset(
        obs=obs.reshape(-1, 2).astype(np.float32),
        action=action.reshape(-1, 1).astype(np.float32),
        reward=reward.reshape(-1).astype(np.float32),
        start=np.arange(0, 2 * many + 1, 2),
        terminal=np.ones(many, bool),
    )


@pytest.fixture(scope="module")
def toll():
    """A planner trained in that world."""
    search = {"sigma": 0.5, "kappa": 3.0, "plan_horizon": 2}
    return train("mbop", toll_dataset(), steps=400, batch=64, rate=3e-3, **SIZES, **search)


def first_action(planner, seed=0):
    many = stack([planner])
    start, begun = jnp.zeros((1, 1, 2)), jnp.ones((1, 1), bool)
    return float(plan_all(many, many.blank(1), start, begun, jax.random.key(seed))[0][0, 0, 0])


def changed(planner, **search):
    return dataclasses.replace(planner, search=dataclasses.replace(planner.search, **search))


def test_it_finds_the_plan_a_clone_misses(toll):
    assert first_action(toll) > 0.6
    assert abs(first_action(changed(toll, sigma=0.0))) < 0.2  # the clone
    assert abs(first_action(changed(toll, kappa=0.0, samples=2000))) < 0.2  # futures as they come


def test_it_would_go_down_without_the_second_reward(toll):
    """What follows the first step decides: take f_R away and look one step ahead, and the toll is all there is."""
    nothing = jax.tree.map(jnp.zeros_like, toll.end)
    end = dataclasses.replace(nothing, scale=toll.end.scale, range=toll.end.range)
    assert first_action(changed(dataclasses.replace(toll, end=end), horizon=1)) < -0.3


def test_the_same_key_gives_the_same_plan(toll):
    undecided = changed(toll, kappa=0.1)  # not at the edge of the range, where all plans are equal
    assert first_action(undecided, 1) == first_action(undecided, 1)
    assert first_action(undecided, 1) != first_action(undecided, 2)


# -- memory -------------------------------------------------------------------------------------------------------


def test_a_plan_is_remembered_until_its_episode_ends():
    planner = stack([fresh(MBOP, beta=0.9), fresh(MBOP, 1, beta=0.9)])
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 2, 3, 3)).astype(np.float32)
    key, later = jax.random.split(jax.random.key(0))
    everywhere = np.ones((2, 3), bool)
    action, memory = plan_all(planner, planner.blank(3), first, everywhere, key)
    np.testing.assert_array_equal(memory.action, action)
    np.testing.assert_array_equal(memory.plan[:, :, 1], memory.plan[:, :, 2])  # moved on by one step
    fresh_start, _ = plan_all(planner, planner.blank(3), second, everywhere, later)
    begun = np.array([[True, False, False], [False, False, True]])
    action, _ = plan_all(planner, memory, second, begun, later)
    np.testing.assert_array_equal(np.asarray(action)[begun], np.asarray(fresh_start)[begun])
    assert np.abs(np.asarray(action)[~begun] - np.asarray(fresh_start)[~begun]).max(-1).min() > 1e-3


class Two:
    """As much of an environment as an actor asks for."""

    id, count, obs_dim = "Two", 4, 3
    action_low, action_high = np.full(2, -1.0), np.full(2, 1.0)


def test_the_actor_carries_the_memory():
    """Two planners with two environments each do as each alone with its own."""
    members = [fresh(MBOP, seed) for seed in (0, 1)]
    both = actor(stack(members), Two(), seed=4)
    singles = []
    for member in members:
        env = Two()
        env.count = 2
        singles.append(actor(member, env, seed=4))
    rng = np.random.default_rng(0)
    for step in range(3):
        obs = rng.normal(size=(4, 3)).astype(np.float32)
        begun = np.full(4, step == 0)
        alone = [act(obs[i : i + 2], begun[i : i + 2]) for act, i in zip(singles, (0, 2), strict=True)]
        np.testing.assert_allclose(both(obs, begun), np.concatenate(alone), atol=1e-5)
    again = actor(stack(members), Two(), seed=4)
    other = actor(stack(members), Two(), seed=5)
    everywhere = np.ones(4, bool)
    np.testing.assert_array_equal(again(obs, everywhere), actor(stack(members), Two(), seed=4)(obs, everywhere))
    assert not np.array_equal(other(obs, everywhere), actor(stack(members), Two())(obs, everywhere))


def test_actions_keep_to_the_range_whatever_the_noise():
    planner = stack([fresh(TSMBOP, sigma=50.0, samples=1)])
    memory = planner.blank(200)
    for step in range(3):
        obs = 10 * jax.random.normal(jax.random.key(step), (1, 200, 3))
        action, memory = plan_all(planner, memory, obs, jnp.full((1, 200), step == 0), jax.random.key(step))
        assert (np.asarray(action) >= LOW).all()
        assert (np.asarray(action) <= HIGH).all()


# -- files --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MBOP, TSMBOP])
def test_a_file_gives_back_the_same_planner(kind, tmp_path):
    planner = stack([fresh(kind), fresh(kind, 1)])
    save_policy(planner, tmp_path / "p.npz", {"env_id": "X"})
    again = load_policy(tmp_path / "p.npz")
    assert (again.search, again.count, again.heads) == (planner.search, 2, 2)
    obs, begun = jnp.ones((2, 4, 3)), jnp.ones((2, 4), bool)
    for a, b in zip(
        *(plan_all(p, p.blank(4), obs, begun, jax.random.key(0)) for p in (planner, again)), strict=True
    ):
        jax.tree.map(np.testing.assert_array_equal, a, b)
    with np.load(tmp_path / "p.npz", allow_pickle=False) as archive:
        assert all(archive[name].dtype.kind in "fUi" for name in archive.files)


def test_another_kept_thing_is_no_policy(tmp_path):
    store(PlanSearch(), tmp_path / "s.npz")
    with pytest.raises(InputError, match=r"s\.npz: this file holds a PlanSearch, not a policy or planner"):
        load_policy(tmp_path / "s.npz")


# -- what is learnt from ------------------------------------------------------------------------------------------


def test_actions_before_and_returns_ahead():
    last, (total, whole) = last_action(DATA), truncated_return(DATA, 3)
    for m, episode in enumerate(DATA):
        for t in range(len(episode)):
            i = DATA.start[m] + t
            np.testing.assert_allclose(last[i], episode.action[t - 1] if t else (LOW + HIGH) / 2)
            np.testing.assert_allclose(total[i], episode.reward[t : t + 3].sum(), rtol=1e-5, atol=1e-6)
            assert whole[i] == (DATA.terminal[m] or t + 3 <= len(episode))


def test_the_losses_by_hand():
    """Errors of actions in half-ranges, of changes and rewards in units of their std; a mean over heads each."""
    config, model = MBOP(**SMALL), fresh(MBOP)
    table = config.table(DATA)
    i = int(np.flatnonzero(table["whole"])[3])
    row = {name: column[i] for name, column in table.items()}
    _, found = config.loss(model, {name: jnp.asarray(column) for name, column in row.items()}, jax.random.key(0))
    half, middle = (HIGH - LOW) / 2, (HIGH + LOW) / 2
    state = (row["obs"] - model.step.scale.mean) / model.step.scale.std
    inputs = [np.concatenate([state, (row[name] - middle) / half]) for name in ("action", "last")]
    action = (row["action"] - middle) / half
    prior = [np.tanh(layers(model.prior.net, inputs[1], head)) - action for head in (0, 1)]
    steps = table["next_obs"] - table["obs"]
    change = (row["next_obs"] - row["obs"] - steps.mean(0)) / steps.std(0)
    reward = (row["reward"] - table["reward"].mean()) / table["reward"].std()
    step = [layers(model.step.net, inputs[0], head) - np.append(change, reward) for head in (0, 1)]
    np.testing.assert_allclose(found["prior_loss"], np.square(prior).mean(), rtol=1e-4)
    np.testing.assert_allclose(found["model_loss"], np.square(step).mean(), rtol=1e-4)
    np.testing.assert_allclose(found["reward_loss"], np.square(step)[:, -1].mean(), rtol=1e-4)


def test_a_return_that_was_cut_teaches_nothing():
    """Of f_R; the others learn from such a row as from any. Where most would be cut, it looks less far."""
    assert set(DATA.terminal) == {True, False}
    config = MBOP(**SMALL, return_horizon=5)
    table = config.table(DATA)
    model = fresh(MBOP, return_horizon=5)
    cut, whole = (int(np.flatnonzero(table["whole"] == known)[0]) for known in (0, 1))
    for i, learns in ((cut, False), (whole, True)):
        row = {name: jnp.asarray(column[i]) for name, column in table.items()}
        slope = eqx.filter_grad(lambda m, row=row: config.loss(m, row, jax.random.key(0))[0])(model)
        assert [np.any(part.net.layers[0].weight) for part in (slope.step, slope.prior)] == [True, True]
        assert np.any(slope.end.net.layers[0].weight) == learns
    assert np.any(table["whole"] == 0)
    known = table["total"][table["whole"] > 0]
    np.testing.assert_allclose([model.end.total.mean, model.end.total.std], [known.mean(), known.std()], rtol=1e-4)
    cut_off = dataclasses.replace(DATA, terminal=np.zeros_like(DATA.terminal))
    for given, looked in ((100, 3), (2, 2)):  # 100, 50, 25, 12, 6, 3: 13 of 20 returns are whole
        total, whole = truncated_return(cut_off, looked)
        table = MBOP(return_horizon=given).table(cut_off)
        assert whole.mean() >= 0.5
        np.testing.assert_array_equal(table["total"], total)
        np.testing.assert_array_equal(table["whole"], whole)


def test_rows_of_both_data_side_by_side():
    table = next(TSMBOP().stages(DATA, BETTER))[1]
    assert {len(column) for column in table.values()} == {35}
    np.testing.assert_array_equal(table["obs"][:20], DATA.obs[DATA.row])
    np.testing.assert_array_equal(table["reward"][20:], DATA.reward[:15])
    np.testing.assert_array_equal(table["improved_next_obs"], BETTER.obs[BETTER.row + 1])
    assert len(side_by_side({"obs": np.zeros((9, 1))}, {"obs": np.zeros((2, 1))})["improved_obs"]) == 9


def test_the_papers_table():
    assert len(SEARCH) == 12
    assert MBOP(rule="hopper-medium-replay").search == PlanSearch(8, 100, 1.0, 0.01, 0.0)
    assert TSMBOP(rule="walker2d-medium").search == PlanSearch(4, 1000, 3.0, 0.01, 0.0)
    assert MBOP(rule="halfcheetah-medium", kappa=0.5, plan_horizon=5).search == PlanSearch(5, 100, 0.5, 0.2, 0.0)
    assert MBOP().search == PlanSearch()
    config = MBOP()
    assert (config.members, config.width, config.depth, config.l2) == (3, 500, 2, 1e-5)
    assert (config.fit.batch, config.fit.rate) == (512, 1e-3)


def learnt(kind, data=DATA):
    """A model before and after three steps."""
    config = kind(**SMALL | {"l2": 0.1}, fit=Fit(steps=3, batch=16))
    _, table, _ = next(config.stages(data, BETTER))
    before = loop.start(config, table, [0])
    *_, (after, _) = loop.run(config, before, table, [0], 3)
    return before.model, after.model


@pytest.mark.parametrize("kind", [MBOP, TSMBOP])
def test_a_step_moves_weights_only(kind):
    """Scales and ranges are facts about the data, which neither a slope nor L2 may change."""
    before, after = learnt(kind)
    moved = jax.tree.map(lambda a, b: not np.array_equal(a, b), before, after)
    assert all(jax.tree.leaves((moved.step.net,)))
    assert not any(jax.tree.leaves((moved.step.scale, moved.step.change, moved.step.reward, moved.range)))
    if kind is MBOP:
        assert all(jax.tree.leaves((moved.prior.net, moved.end.net)))
        assert not any(jax.tree.leaves((moved.prior.range, moved.end.scale, moved.end.total)))
    else:
        assert all(jax.tree.leaves((moved.prior.policy.net, moved.end.value.twins, moved.end.value.target)))
        assert not any(jax.tree.leaves((moved.prior.policy.scale, moved.end.value.scale, moved.end.value.unit)))


def test_value_and_policy_learn_from_the_improved_data_alone():
    """Other original rewards change f_m, and nothing that came from the improved data."""
    models = [learnt(TSMBOP, data)[1] for data in (DATA, dataclasses.replace(DATA, reward=DATA.reward + 1))]
    for part in ("prior", "end"):
        jax.tree.map(np.testing.assert_array_equal, *(getattr(model, part) for model in models))
    assert not np.array_equal(models[0].step.reward.mean, models[1].step.reward.mean)
