"""The losses of cloning and of offline RL against formulas worked out by hand, and what their steps move."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.data import from_trajectories, normalised_weight
from trajstitch.errors import InputError
from trajstitch.methods import METHODS, bc, cql
from trajstitch.methods.bc import BC, WeightedBC, negative_log_likelihood, squared_error
from trajstitch.methods.cql import CQL, log_integral, sample
from trajstitch.methods.iql import IQL, expectile_loss
from trajstitch.methods.rebrac import ReBRAC
from trajstitch.methods.sac import SAC, draw
from trajstitch.methods.td3bc import TD3BC, FrozenCritic
from trajstitch.methods.td3tsbc import SWITCH, TD3TSBC, without_repeats
from trajstitch.training import loop
from trajstitch.training.loop import Fit
from trajstitch.training.networks import MLP, Linear, pick
from worlds import aim_dataset, random_dataset

KEY = jax.random.key(0)
WORLD = aim_dataset()


def plain(net, x):
    """What an MLP says, in NumPy."""
    *hidden, last = [(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in net.layers]
    for weight, bias in hidden:
        x = np.maximum(weight @ x + bias, 0)
    return last[0] @ x + last[1]


def plain_q(critic, obs, action, k):
    net = jax.tree.map(lambda leaf: leaf[k], critic.twins)
    scaled = (obs - critic.scale.mean) / critic.scale.std
    low, high = np.asarray(critic.range.low), np.asarray(critic.range.high)
    return plain(net, np.concatenate([scaled, (2 * action - low - high) / (high - low)]))[0]


def plain_action(actor, obs):
    low, high = np.asarray(actor.range.low), np.asarray(actor.range.high)
    return low + (high - low) * (np.tanh(plain(actor.net, (obs - actor.scale.mean) / actor.scale.std)) + 1) / 2


DATA = random_dataset(0, (6, 5, 4), obs_dim=3, action_dim=2)


def fresh(config):
    """A model whose targets differ from what they follow, and the table it learns from."""
    table = config.table(DATA)
    model, other = (pick(loop.start(config, table, (0, 1)).model, p) for p in (0, 1))
    targets = {name: getattr(other, name) for name in ("actor_target", "critic_target") if hasattr(model, name)}
    return replace(model, **targets), {k: jnp.asarray(v) for k, v in table.items()}


def row_of(table, i, **changed):
    return {k: v[i] for k, v in table.items()} | {k: jnp.asarray(v) for k, v in changed.items()}


# -- cloning ----------------------------------------------------------------------------------------------------


def test_what_is_cloned():
    """The best trajectories, with their weights unless these are ignored."""
    data = replace(
        DATA, reward=np.repeat(np.float32([1, 3, 2]), [6, 5, 4]), weight=normalised_weight(np.arange(1, 16))
    )
    table = BC(percent=34).table(data)  # one of three, which returns 15
    np.testing.assert_array_equal(table["action"], DATA.action[6:11])
    np.testing.assert_array_equal(table["obs"], DATA.obs[7:12])
    np.testing.assert_allclose(table["weight"], np.arange(7, 12) / 9)
    assert "weight" not in BC(ignore_weights=True).table(data)
    assert len(BC().table(data)["obs"]) == 15


def test_cloning_losses_by_hand():
    table = BC().table(DATA)
    obs, action = DATA.obs[0], DATA.action[0]
    policy = BC(width=8, depth=1).init(table, KEY)
    squared = np.sum((plain_action(policy, obs) - action) ** 2)
    np.testing.assert_allclose(squared_error(policy, obs, action), squared, rtol=1e-5)
    gaussian = BC(head="gaussian", width=8, depth=1).init(table, KEY)
    mean, std = (np.asarray(x) for x in gaussian.moments(obs))
    std = np.exp(std)
    density = np.prod(np.exp(-(((action - mean) / std) ** 2) / 2) / (std * np.sqrt(2 * np.pi)))
    np.testing.assert_allclose(negative_log_likelihood(gaussian, obs, action), -np.log(density), rtol=1e-4)
    row = {"obs": obs, "action": action, "loss_weight": 3.0}
    np.testing.assert_allclose(WeightedBC().loss(policy, row, KEY)[0], 3 * squared, rtol=1e-5)
    np.testing.assert_array_equal(BC(scale=False, width=8).init(table, KEY).scale.std, 1)


def test_the_value_that_weighs_a_clone_is_of_the_trajectories_it_clones(monkeypatch):
    given = []
    monkeypatch.setattr(bc, "train_value", lambda table, *words, **more: given.append(table) or (None, None))
    config = WeightedBC(percent=34)
    config.prepare(DATA)
    np.testing.assert_array_equal(given[0]["reward"], DATA.top(34).reward)


def test_the_papers_weights_are_the_values():
    """On V = 1, 2 and 6, and -3 as nothing; in units of their mean."""

    class Known:
        def value(self, obs):
            return np.resize(np.array([1.0, 2.0, 6.0, -3.0]), len(obs))

    value = Known().value(DATA.action)
    clipped = np.maximum(value, 0)
    table = WeightedBC(weights="paper").table(DATA, Known())
    np.testing.assert_allclose(table["loss_weight"], clipped / clipped.mean())
    shifted = WeightedBC().table(DATA, Known())["loss_weight"]
    np.testing.assert_allclose(shifted, (value + 3) / (value + 3).mean())
    with pytest.raises(InputError, match="mean is -3; take --weights shifted"):
        bc.paper_weights(np.array([-5.0, -1.0]))
    with pytest.raises(InputError, match="weights"):
        WeightedBC(weights="squared")
    assert METHODS["weighted-bc"].paper["weights"] == "paper"


# -- TD3+BC -----------------------------------------------------------------------------------------------------


def test_td3_critic_loss_by_hand():
    config = TD3BC(width=32, noise=0.0)
    model, table = fresh(config)
    row = row_of(table, 2, done=0.0)
    obs, action, next_obs = (np.asarray(row[name]) for name in ("obs", "action", "next_obs"))
    next_action = plain_action(model.actor_target, next_obs)
    goal = row["reward"] + 0.99 * min(plain_q(model.critic_target, next_obs, next_action, k) for k in (0, 1))
    expected = sum((plain_q(model.critic, obs, action, k) - goal) ** 2 for k in (0, 1))
    loss, _ = config.critic_loss(model, model.critic, row, jax.random.key(0))
    np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_target_noise_is_clipped_and_in_half_ranges():
    """With noise far beyond its clip, the goal is that of an action half a half-range to either side."""
    config = TD3BC(width=32, noise=1e6, noise_clip=0.5)
    model, table = fresh(config)
    row = row_of(table, 2, done=0.0)
    action = plain_action(model.actor_target, row["next_obs"])
    low, high = DATA.action.min(0), DATA.action.max(0)
    possible = []
    for signs in ((-1, -1), (-1, 1), (1, -1), (1, 1)):
        moved = np.clip(action + 0.5 * np.array(signs) * (high - low) / 2, low, high)
        goal = row["reward"] + 0.99 * min(plain_q(model.critic_target, row["next_obs"], moved, k) for k in (0, 1))
        possible.append(sum((plain_q(model.critic, row["obs"], row["action"], k) - goal) ** 2 for k in (0, 1)))
    for seed in range(4):
        loss, _ = config.critic_loss(model, model.critic, row, jax.random.key(seed))
        assert np.abs(float(loss) / np.array(possible) - 1).min() < 1e-3


def test_td3bc_actor_loss_by_hand():
    config = TD3BC(width=32, alpha=2.5)
    model, table = fresh(config)
    obs, action = np.asarray(table["obs"]), np.asarray(table["action"])
    played = np.array([plain_action(model.actor, o) for o in obs])
    q = np.array([plain_q(model.critic, o, a, 0) for o, a in zip(obs, played, strict=True)])
    half = (action.max(0) - action.min(0)) / 2
    weight = 2.5 / np.abs(q).mean()
    expected = -weight * q.mean() + (((played - action) / half) ** 2).mean()
    loss, metrics = config.actor_loss(model, table, model.actor)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(metrics["lambda"], weight, rtol=1e-4)
    # λ has no gradient: the slope is that of a number in its place, and the same with twice the Q-values.
    grad = jax.jit(
        jax.grad(lambda actor, critic: config.actor_loss(replace(model, critic=critic), table, actor)[0])
    )

    def with_a_number(actor):
        q, error = jax.vmap(partial(config.actor_terms, model.critic, actor))(table)
        return jnp.mean(error) - weight * jnp.mean(q)

    *layers, last = model.critic.twins.layers
    doubled = replace(model.critic, twins=MLP((*layers, Linear(2 * last.weight, 2 * last.bias))))
    slope = grad(model.actor, model.critic)
    for other in (jax.jit(jax.grad(with_a_number))(model.actor), grad(model.actor, doubled)):
        for a, b in zip(jax.tree.leaves(slope), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)


def steps_of(config, model, table, count):
    """The model after each of `count` steps."""
    memory, batch = config.begin(model), table
    step = jax.jit(config.step, static_argnums=4)
    for i in range(count):
        model, memory, metrics = step(model, memory, batch, jax.random.key(i), i % config.phases)
        yield model, metrics


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_actor_and_targets_move_at_every_second_step():
    config = TD3BC(width=32)
    model, table = fresh(config)
    for i, (after, metrics) in enumerate(steps_of(config, model, table, 4)):
        assert not same(model.critic, after.critic)
        for name in ("actor", "actor_target", "critic_target"):
            assert same(getattr(model, name), getattr(after, name)) == (i % 2 == 0)
        assert ("actor_loss" in metrics) == (i % 2 == 1)
        if i % 2:
            slow, fast, new = (
                x.net.layers[0].weight for x in (model.actor_target, after.actor, after.actor_target)
            )
            np.testing.assert_allclose(new, slow + 0.005 * (fast - slow), atol=1e-7)
        model = after


def test_a_frozen_critic_stays():
    config = FrozenCritic(width=32, delay=1)
    model, table = fresh(config)
    *_, (after, metrics) = steps_of(config, model, table, 2)
    assert same(model.critic, after.critic)
    assert not same(model.actor, after.actor)
    assert np.isfinite(metrics["loss"])


# -- ReBRAC -----------------------------------------------------------------------------------------------------


def normed(net, x):
    """What an MLP with layer norms says, in NumPy."""
    *hidden, last = [(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in net.layers]
    for weight, bias in hidden:
        x = np.maximum(weight @ x + bias, 0)
        x = (x - x.mean()) / np.sqrt(x.var() + 1e-6)
    return last[0] @ x + last[1]


def normed_q(critic, obs, action, k):
    net = jax.tree.map(lambda leaf: leaf[k], critic.twins)
    low, high = np.asarray(critic.range.low), np.asarray(critic.range.high)
    scaled = (obs - critic.scale.mean) / critic.scale.std
    return normed(net, np.concatenate([scaled, (2 * action - low - high) / (high - low)]))[0]


REBRAC = ReBRAC(width=32, noise=0.0, actor_penalty=0.3, critic_penalty=0.7)


def test_rebrac_learns_from_steps_whose_next_action_is_known():
    """The last step of a trajectory counts only where the episode ended there."""
    data = replace(DATA, terminal=np.array([False, True, False]))
    table = REBRAC.table(data)
    assert len(table["obs"]) == data.transitions - 2
    np.testing.assert_array_equal(table["next_action"][:5], data.action[1:6])
    np.testing.assert_array_equal(table["action"][5:10], data.action[6:11])
    np.testing.assert_array_equal(table["next_action"][5:9], data.action[7:11])
    np.testing.assert_array_equal(table["done"], [0] * 9 + [1] + [0] * 3)
    whole = replace(DATA, terminal=np.ones(3, bool))
    assert len(REBRAC.table(whole)["obs"]) == whole.transitions


def test_rebrac_rates_may_fall_to_zero():
    """The actor takes a step for every two of the critic's, so its rate falls faster per step of its own."""
    config = ReBRAC(schedule="late", fit=Fit(steps=20, batch=1, rate=0.1))
    for optimiser, steps in ((config.optimiser(), 20), (config.actor_optimiser(), 10)):
        state, sizes = optimiser.init(jnp.ones(())), []
        for _ in range(steps + 1):
            update, state = optimiser.update(jnp.ones(()), state)
            sizes.append(-float(update))
        fallen = np.maximum(np.arange(steps + 1) / steps - 0.7, 0) / 0.3
        expected = 0.1 * (1 + np.cos(np.pi * fallen)) / 2
        np.testing.assert_allclose(
            sizes, expected, rtol=1e-4, atol=1e-7
        )  # of a constant gradient Adam takes the rate


def test_rebrac_actor_learns_by_its_own_rate():
    """Which has fallen to 0 after two of its steps, when the critic has done four."""
    config = replace(REBRAC, schedule="late", fit=Fit(steps=4, batch=13))
    model, table = fresh(config)
    opt_state, actors = config.begin(model), [model.actor]
    for _ in range(3):
        model, opt_state, _ = config.learn_actor(model, opt_state, table)
        actors.append(model.actor)
    moved = [not np.array_equal(a.net.layers[0].weight, b.net.layers[0].weight) for a, b in pairwise(actors)]
    assert moved == [True, True, False]


def test_rebrac_critic_loss_by_hand():
    """Also that a member has the penalty that it was made with."""
    model, table = fresh(REBRAC)
    half = (DATA.action.max(0) - DATA.action.min(0)) / 2
    for done in (0.0, 1.0):
        row = row_of(table, 2, done=done)
        obs, action, next_obs = (np.asarray(row[name]) for name in ("obs", "action", "next_obs"))
        next_action = plain_action(model.actor_target, next_obs)
        value = min(normed_q(model.critic_target, next_obs, next_action, k) for k in (0, 1))
        value -= 0.7 * (((next_action - DATA.action[3]) / half) ** 2).sum()
        goal = row["reward"] + 0.99 * (1 - done) * value
        expected = sum((normed_q(model.critic, obs, action, k) - goal) ** 2 for k in (0, 1))
        loss, _ = ReBRAC(width=32, noise=0.0).critic_loss(model, model.critic, row, jax.random.key(0))
        np.testing.assert_allclose(loss, expected, rtol=1e-4)


def test_rebrac_actor_loss_by_hand():
    """Also that a member has the penalty that it was made with, and λ no gradient; values have both signs."""
    model, table = fresh(REBRAC)
    obs, action = np.asarray(table["obs"]), np.asarray(table["action"])
    played = np.array([plain_action(model.actor, o) for o in obs])
    pairs = list(zip(obs, played, strict=True))
    q = np.array([min(normed_q(model.critic, o, a, k) for k in (0, 1)) for o, a in pairs])
    middle = np.median(q)
    model = eqx.tree_at(lambda m: m.critic.twins.layers[-1].bias, model, replace_fn=lambda bias: bias - middle)
    q -= middle
    half = (DATA.action.max(0) - DATA.action.min(0)) / 2
    distance = (((played - action) / half) ** 2).sum(1)
    expected = 0.3 * distance.mean() - q.mean() / np.abs(q).mean()
    config = ReBRAC(width=32)
    loss, metrics = config.actor_loss(model, table, model.actor)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(metrics["cloning"], distance.mean(), rtol=1e-4)

    def with_a_number(actor):
        q, distance = jax.vmap(partial(config.actor_terms, model, actor))(table)
        return 0.3 * jnp.mean(distance) - metrics["lambda"] * jnp.mean(q)

    slope = jax.jit(jax.grad(lambda actor: config.actor_loss(model, table, actor)[0]))(model.actor)
    for a, b in zip(jax.tree.leaves(slope), jax.tree.leaves(jax.grad(with_a_number)(model.actor)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    *_, (after, _) = steps_of(REBRAC, model, table, 2)
    assert (after.actor_penalty, after.critic_penalty) == (model.actor_penalty, model.critic_penalty)
    assert not same(model.actor, after.actor)


# -- TD3+TS+BC --------------------------------------------------------------------------------------------------


def test_the_papers_switch_rules():
    """Its appendix in words: 800k; Hopper but medium-expert 600k; Walker2d medium-replay 900k, critic fixed."""
    assert len(SWITCH) == 12
    for (env, kind), switch in SWITCH.items():
        config = TD3TSBC(rule=f"{env}-{kind}")
        step = 600_000 if env == "hopper" and kind != "medium-expert" else 800_000
        special = (env, kind) == ("walker2d", "medium-replay")
        assert config.switched == switch == ((900_000, True) if special else (step, False))
    assert TD3TSBC().switched == (800_000, False)
    assert TD3TSBC(rule="hopper-expert", fit=Fit(steps=50_000)).switched == (30_000, False)
    assert TD3TSBC(switch=7, freeze_critic=True, rule="hopper-medium").switched == (7, True)


def test_stages():
    improved = from_trajectories([WORLD[3], WORLD[1], WORLD[3], WORLD[3]])
    sizes = {"width": 32, "alpha": 1.0, "fit": Fit(steps=1000)}
    config = TD3TSBC(rule="walker2d-medium-replay", **sizes)
    (warm, original, switch), (later, better, end) = config.stages(WORLD, improved)
    assert (warm, later) == (TD3BC(**sizes), FrozenCritic(**sizes))
    assert (switch, end) == (900, 1000)
    assert len(original["obs"]) == WORLD.transitions
    np.testing.assert_array_equal(better["action"], np.concatenate([WORLD[3].action, WORLD[1].action]))
    np.testing.assert_array_equal(better["next_obs"], np.concatenate([WORLD[3].obs[1:], WORLD[1].obs[1:]]))
    *_, (plain, _, _) = TD3TSBC(**sizes).stages(WORLD, improved)
    assert type(plain) is TD3BC


def test_transitions_that_differ_in_one_number_are_kept():
    table = {k: v[:1] for k, v in TD3BC().table(DATA).items()}
    twice = {k: np.concatenate([v, v]) for k, v in table.items()}
    assert len(without_repeats(twice)["obs"]) == 1
    for name in twice:
        other = {k: v.copy() for k, v in twice.items()}
        other[name][1:] += 1
        assert len(without_repeats(other)["obs"]) == 2


# -- IQL --------------------------------------------------------------------------------------------------------


def test_the_expectile_of_a_coin():
    """Of 0 and 1, equally often, the expectile τ is τ."""
    for expectile in (0.5, 0.7, 0.9):
        change = jax.grad(lambda v, e=expectile: expectile_loss(0 - v, e) + expectile_loss(1 - v, e))
        np.testing.assert_allclose(change(expectile), 0, atol=1e-6)


def test_iql_rewards_are_thousandths_of_the_spread_of_returns():
    reward = IQL().table(WORLD)["reward"]
    returns = reward.reshape(-1, 2).sum(1)
    np.testing.assert_allclose(returns.max() - returns.min(), 1000, rtol=1e-5)


def test_iql_weights_by_hand():
    config = IQL(width=32, temperature=2.0)
    model, table = fresh(config)
    row = row_of(table, 1, done=0.0)
    obs, action = np.asarray(row["obs"]), np.asarray(row["action"])
    q = min(plain_q(model.critic_target, obs, action, k) for k in (0, 1))
    v = plain(model.value.net, (obs - model.value.scale.mean) / model.value.scale.std)[0]
    half = np.asarray(model.actor.range.half)
    z = (action - plain_action(model.actor, obs)) / half
    density = np.prod(np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi))
    loss, metrics = config.loss(model, row, jax.random.key(0))
    np.testing.assert_allclose(metrics["advantage"], q - v, rtol=1e-4)
    np.testing.assert_allclose(metrics["value_loss"], (0.7 if q > v else 0.3) * (q - v) ** 2, rtol=1e-3)
    later = plain(model.value.net, (np.asarray(row["next_obs"]) - model.value.scale.mean) / model.value.scale.std)[
        0
    ]
    goal = row["reward"] + 0.99 * later
    expected = sum((plain_q(model.critic, obs, action, k) - goal) ** 2 for k in (0, 1))
    np.testing.assert_allclose(metrics["critic_loss"], expected, rtol=1e-3)
    np.testing.assert_allclose(metrics["actor_loss"], -np.exp(2 * (q - v)) * np.log(density), rtol=1e-3)
    np.testing.assert_allclose(
        loss, sum(metrics[f"{part}_loss"] for part in ("value", "critic", "actor")), rtol=1e-5
    )
    clipped = IQL(width=32, temperature=1e6, weight_clip=100.0).loss(model, row, jax.random.key(0))[1]["weight"]
    assert float(clipped) in (0.0, 100.0)


def slope(config, model, row, name=None):
    """The gradient of the whole loss, or of the one of this name."""

    def loss(model):
        whole, metrics = config.loss(model, row, jax.random.key(0))
        return metrics[name] if name else whole

    return jax.jit(jax.grad(loss))(model)


def test_each_loss_of_iql_moves_its_own_network():
    """The slope of every network is that of its own loss alone."""
    config = IQL(width=32)
    model, table = fresh(config)
    row = row_of(table, 1)
    whole = slope(config, model, row)
    for part, loss in (("value", "value_loss"), ("critic", "critic_loss"), ("actor", "actor_loss")):
        own = slope(config, model, row, loss)
        for a, b in zip(*(jax.tree.leaves(getattr(g, part)) for g in (whole, own)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert np.all(whole.log_std)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(whole.critic_target))


# -- SAC and CQL ------------------------------------------------------------------------------------------------


def test_densities_of_drawn_actions():
    model, table = fresh(CQL(width=32, depth=2))
    noise = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    action, log_density = jax.vmap(draw, (None, None, 0))(model.actor, table["obs"][0], noise)
    u = np.asarray(model.actor.range.unit(action), np.float64)
    mean, log_std = (np.asarray(x, np.float64) for x in model.actor.moments(table["obs"][0]))
    std = np.exp(log_std)
    before = np.exp(-(((np.arctanh(u) - mean) / std) ** 2) / 2) / (std * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(log_density, np.log(before / (1 - u**2)).sum(1), rtol=2e-3, atol=2e-3)


def test_sac_critic_loss_by_hand():
    """The target counts the next action's entropy at the temperature's price."""
    config = SAC(width=32)
    model, table = fresh(config)
    row = row_of(table, 2, done=0.0)
    obs, action, next_obs = (np.asarray(row[name]) for name in ("obs", "action", "next_obs"))
    noise = jnp.array([0.5, -1.0])
    next_action, log_density = draw(model.actor, next_obs, noise)
    future = min(plain_q(model.critic_target, next_obs, np.asarray(next_action), k) for k in (0, 1))
    goal = row["reward"] + 0.99 * (future - 3.0 * log_density)
    expected = sum((plain_q(model.critic, obs, action, k) - goal) ** 2 for k in (0, 1))
    np.testing.assert_allclose(config.critic_loss(model, row, noise, 3.0)[1], expected, rtol=1e-4)


def test_sac_actor_loss_by_hand():
    """α·log π - min Q of the trained critics, and the price of the temperature."""
    config = SAC(width=32, target_entropy=-3.0)
    model, table = fresh(config)
    model = replace(model, log_temperature=jnp.log(2.0))
    for i, noise in enumerate(([0.5, -1.0], [-0.7, 0.2])):
        obs = np.asarray(table["obs"][i])
        action, log_density = (np.asarray(x) for x in draw(model.actor, obs, jnp.array(noise)))
        q = [plain_q(model.critic, obs, action, k) for k in (0, 1)]
        loss, metrics = config.actor_loss(model, obs, jnp.array(noise))
        assert abs(q[0] - q[1]) > 1e-3
        np.testing.assert_allclose(metrics["actor_loss"], 2 * log_density - min(q), rtol=1e-4)
        np.testing.assert_allclose(loss - metrics["actor_loss"], -np.log(2) * (log_density - 3), rtol=1e-4)


@pytest.mark.parametrize("config", [IQL(width=8, target_rate=0.25), SAC(width=8, target_rate=0.25)])
def test_the_target_critic_follows_slowly(config):
    model, _ = fresh(config)
    after = config.after(model)
    for slow, fast, new in zip(*map(jax.tree.leaves, (model.critic_target.twins, model.critic.twins,
                                                      after.critic_target.twins)), strict=True):  # fmt: skip
        np.testing.assert_allclose(new, slow + 0.25 * (fast - slow), atol=1e-6)
    assert same(replace(after, critic_target=model.critic_target), model)


def test_a_cosine_takes_the_actor_s_rate_to_nothing():
    for schedule, last in (("constant", 1e-3), ("cosine", 0.0)):
        config = SAC(width=8, actor_rate=1e-3, actor_schedule=schedule, fit=Fit(steps=10, rate=1e-2))
        falling = (1e-3, last)
        check_rates(config, actor=falling, log_temperature=falling, critic=(1e-2, 1e-2), critic_target=(0, 0))
    # IQL's actor always has a cosine, what it learns from never.
    rates = {"actor": (1e-2, 0.0), "log_std": (1e-2, 0.0), "value": (1e-2, 1e-2), "critic": (1e-2, 1e-2)}
    check_rates(IQL(width=8, fit=Fit(steps=10, rate=1e-2)), **rates, critic_target=(0, 0))


def check_rates(config, **rates):
    """With the same slope at every step: Adam's first and last steps of each part are of these rates."""
    model, _ = fresh(config)
    ones = jax.tree.map(jnp.ones_like, model)
    adam = config.optimiser()
    memory, taken = adam.init(model), []
    update = jax.jit(adam.update)
    for _ in range(config.fit.steps + 1):
        step, memory = update(ones, memory, model)
        taken.append(step)
    for name, (first, end) in rates.items():
        for i, rate in ((0, first), (-1, end)):
            leaf = jax.tree.leaves(getattr(taken[i], name))[0]
            np.testing.assert_allclose(leaf, -rate, rtol=1e-3, atol=1e-9)


def test_cql_looks_at_no_action_outside_the_range():
    """Where an action never changes, the uniform ones do not either."""
    data = replace(DATA, action=np.stack([DATA.action[:, 0], np.full(DATA.transitions, 0.7, np.float32)], 1))
    config = CQL(width=8, depth=1)
    table = config.table(data)
    model = pick(loop.start(config, table, (0,)).model, 0)
    noise, uniform = jnp.zeros((2, 2)), jnp.array([[1.0, 1.0], [-1.0, -1.0]])

    def critic(obs, action):
        return jnp.full(2, jnp.where(jnp.abs(action[1] - 0.7) < 1e-6, 0.0, 1e6))

    sampled = sample(model.actor, table["obs"][0], table["obs"][1], noise, uniform)
    assert (log_integral(critic, table["obs"][0], sampled, 0, KEY) < 1e3).all()


def test_cql_draws_from_three_sources():
    """Uniform actions, then the policy's at s and at s', each with its density."""
    model, table = fresh(CQL(width=8, depth=1))
    here, there = table["obs"][0], table["obs"][1]
    noise = jnp.array([[0.1, 0.2], [0.3, -0.4], [0.5, 0.6], [-0.7, 0.8]])
    uniform = jnp.array([[1.0, -1.0], [0.0, 0.5]])
    sampled = sample(model.actor, here, there, noise, uniform)
    low, high = DATA.action.min(0), DATA.action.max(0)
    np.testing.assert_allclose(sampled.action[:2], low + (high - low) * (np.asarray(uniform) + 1) / 2, atol=1e-6)
    np.testing.assert_allclose(sampled.log_density[:2], -2 * np.log(2), rtol=1e-6)
    for i, obs in enumerate((here, here, there, there)):
        action, log_density = draw(model.actor, obs, noise[i])
        np.testing.assert_allclose(sampled.action[2 + i], action, rtol=1e-6)
        np.testing.assert_allclose(sampled.log_density[2 + i], log_density, rtol=1e-6)


def test_cql_loss_by_hand(monkeypatch):
    """SAC's losses, without entropy in the critic's target, and the gap of both critics by its weight."""
    config = CQL(width=8, depth=1, samples=40, min_q_weight=3.0)
    model, table = fresh(config)
    model, row = replace(model, log_temperature=jnp.log(0.5)), row_of(table, 1, done=0.0)
    given = []
    monkeypatch.setattr(cql, "sample", lambda *words: given.append(words) or sample(*words))
    loss, found = config.loss(model, row, KEY)
    (_, obs, next_obs, noise, uniform) = given[0]
    np.testing.assert_array_equal(obs, row["obs"])
    np.testing.assert_array_equal(next_obs, row["next_obs"])
    assert (noise.shape, uniform.shape) == ((80, 2), (40, 2))
    for half in (uniform[uniform < 0], uniform[uniform > 0]):
        np.testing.assert_allclose(np.abs(half).mean(), 0.5, atol=0.15)
        assert len(half) > 20
    q = np.array(
        [plain_q(model.critic, *(np.asarray(row[name]) for name in ("obs", "action")), k) for k in (0, 1)]
    )
    gap = np.asarray(log_integral(model.critic, obs, sample(*given[0]), 0, KEY)) - q
    np.testing.assert_allclose(found["gap"], gap.mean(), rtol=1e-4)
    entropy, log_temperature = found["entropy"], np.log(0.5)
    temperature_loss = -log_temperature * (-entropy - 2)
    expected = found["critic_loss"] + 3 * gap.sum() + found["actor_loss"] + temperature_loss
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(found["actor_loss"], -0.5 * entropy - found["policy_q"], rtol=1e-4)
    warmer = config.loss(replace(model, log_temperature=jnp.log(9.0)), row, KEY)[1]
    np.testing.assert_allclose(warmer["critic_loss"], found["critic_loss"], rtol=1e-6)


def test_cql_gradients_stay_in_their_part():
    """The actor does not feel the conservative term, nor the critic the actor's loss; targets feel nothing."""
    config = CQL(width=32, depth=2, samples=2, min_q_weight=0.0)
    model, table = fresh(config)
    row = row_of(table, 1)
    sac, cql, bellman = (
        slope(config, model, row),
        slope(replace(config, min_q_weight=50.0), model, row),
        slope(config, model, row, "critic_loss"),
    )
    for name in ("actor", "log_temperature"):
        for a, b in zip(*(jax.tree.leaves(getattr(g, name)) for g in (sac, cql)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert not same(sac.critic, cql.critic)
    for a, b in zip(*(jax.tree.leaves(g.critic) for g in (sac, bellman)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(sac.critic_target))


# -- what takes longer -------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=0)
def critic_loss(config, model, row, key):
    if isinstance(config, TD3BC):
        return config.critic_loss(model, model.critic, row, key)[1]["critic_loss"]
    return config.loss(model, row, key)[1]["critic_loss"]


@pytest.mark.parametrize(
    "config",
    [TD3BC(width=32), IQL(width=32), SAC(width=32), CQL(width=32, depth=2, samples=2)],
    ids=lambda c: type(c),
)
def test_only_a_real_end_ends_bootstrapping(config):
    model, table = fresh(config)
    key = jax.random.key(5)
    elsewhere = jnp.full(3, 2.0)
    for done, depends in ((0.0, True), (1.0, False)):
        here = critic_loss(config, model, row_of(table, 0, done=done), key)
        there = critic_loss(config, model, row_of(table, 0, done=done, next_obs=elsewhere), key)
        assert (abs(float(here - there)) > 1e-4) == depends
    last = DATA.start[1:] - 1
    np.testing.assert_array_equal(np.flatnonzero(table["done"]), last[DATA.terminal])
    assert 0 < DATA.terminal.sum() < len(DATA)  # so the data have an end of either kind


def test_td3bc_in_other_chunks_ends_the_same():
    """Up to rounding where chunks begin or end between a step of the critic and one of the actor."""
    config = TD3BC(width=16, fit=Fit(steps=8, batch=8))
    table = config.table(DATA)
    ends = []
    for every in (8, 5):
        *_, (state, _) = loop.run(config, loop.start(config, table, (0, 1)), table, (0, 1), every)
        ends.append(state)
    for one, other in zip(*map(jax.tree.leaves, ends), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_the_temperature_holds_the_entropy_that_is_asked_for():
    """It has no slope where the policy's entropy is the target, and falls where there is more of it."""
    model, table = fresh(SAC(width=8))
    noise = jnp.array([0.3, -0.2])
    entropy = -float(draw(model.actor, table["obs"][0], noise)[1])

    def slope_at(target):
        config = SAC(width=8, target_entropy=target)
        return float(jax.grad(lambda m: config.actor_loss(m, table["obs"][0], noise)[0])(model).log_temperature)

    assert slope_at(entropy) == pytest.approx(0, abs=1e-5)
    assert slope_at(entropy - 1) == pytest.approx(1, abs=1e-5)
    assert slope_at(None) == pytest.approx(slope_at(-2.0))


def test_the_integral_over_all_actions():
    """For Q = 2u₁ + c the integral of exp Q over [-1, 1]² is known, and each way of drawing finds it alone."""
    model, table = fresh(CQL(width=32, depth=2))
    span = model.actor.range
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(40_000, 2)).astype(np.float32)
    uniform = rng.uniform(-1, 1, (20_000, 2)).astype(np.float32)

    def critic(obs, action):
        return jnp.array([2.0, 2.0]) * span.unit(action)[0] + jnp.array([0.0, 3.0])

    known = np.log(2 * np.sinh(2) / 2) + np.log(2) + np.array([0, 3])
    for noisy, flat in ((noise, uniform), (noise, uniform[:1]), (noise[:2], uniform)):
        sampled = jax.jit(partial(sample, model.actor, table["obs"][0], table["obs"][1]))(noisy, flat)
        np.testing.assert_allclose(log_integral(critic, table["obs"][0], sampled, 0, KEY), known, atol=0.04)


@pytest.mark.parametrize("pushed", [1, 3])
def test_actions_drawn_by_weight_are_pushed_as_all_would_be_on_average(pushed):
    """The value is the same with each key; the slope is, over many keys, that of all samples by their weights."""
    model, table = fresh(CQL(width=32, depth=2))
    rng = np.random.default_rng(0)
    noise, uniform = rng.normal(size=(8, 2)), rng.uniform(-1, 1, (4, 2))
    obs = table["obs"][0]
    sampled = sample(model.actor, obs, table["obs"][1], jnp.asarray(noise), jnp.asarray(uniform))
    sharp = jax.tree.map(lambda leaf: 3 * leaf, model.critic.twins)  # so that weights differ
    critic = eqx.tree_at(lambda c: c.twins, model.critic, sharp)

    def total(critic, pushed, key):
        both = log_integral(critic, obs, sampled, pushed, key)
        return both[0] - 2 * both[1], both  # so that the twins are told apart

    slope = eqx.filter_grad(total, has_aux=True)
    exact, known = slope(critic, 0, KEY)
    keys = jax.random.split(KEY, 40_000 // pushed)
    slopes, values = jax.jit(jax.vmap(lambda key: slope(critic, pushed, key)))(keys)
    np.testing.assert_allclose(values, jnp.broadcast_to(known, values.shape), rtol=1e-5)
    for found, expected in zip(jax.tree.leaves(slopes.twins), jax.tree.leaves(exact.twins), strict=True):
        spread = 5 * np.std(found, 0) / np.sqrt(len(keys)) + 1e-4 * np.abs(expected).max()
        assert (np.abs(np.mean(found, 0) - expected) < spread).all()
