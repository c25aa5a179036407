"""Every method held to the same: the known answer, the same bytes after a kill, files, ranges, seeds, refusals.

Then the losses of the offline RL methods, against formulas worked out by hand.
"""

import os
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filelock import FileLock

from trajstitch.data import from_trajectories
from trajstitch.errors import InputError
from trajstitch.jobs.run_dir import Run
from trajstitch.jobs.train import train_run
from trajstitch.methods import METHODS, configure
from trajstitch.methods.cql import CQL, log_integral, sample
from trajstitch.methods.iql import IQL, expectile_loss
from trajstitch.methods.sac import SAC, draw
from trajstitch.methods.td3bc import TD3BC, FrozenCritic
from trajstitch.methods.td3tsbc import SWITCH, TD3TSBC, without_repeats
from trajstitch.methods.train import train
from trajstitch.policies.planner import ActionPlanner, plan_all
from trajstitch.policies.policy import act_all, stacked
from trajstitch.policies.policy_files import load_policy
from trajstitch.training import loop
from trajstitch.training.loop import Fit
from trajstitch.training.networks import MLP, Linear, pick
from worlds import aim_dataset, random_dataset

KEY = jax.random.key(0)
WORLD = aim_dataset()
WORLDS = {"mopo": aim_dataset(loop=True), "morel": aim_dataset(loop=True)}  # their rollouts know of no ends
OFFLINE = ("td3bc", "td3tsbc", "iql", "cql", "mopo", "morel")
REWARDED = (*OFFLINE, "mbop", "tsmbop", "diffuser")  # methods that look at rewards
TWO = ("td3tsbc", "tsmbop")  # those that take improved data too
WORLDLY = {
    "rollouts": 500,
    "rollout_steps": 2,
    "rollout_interval": 20,
    "dataset_share": 0.5,
    "discount": 0.5,
    "batch": 128,
}
WORLDLY |= {"world_steps": 1500, "world_rate": 3e-3, "world_width": 48, "world_depth": 3}
WORLDLY |= {"world_activation": "relu"}  # which learns this small world in so few steps
SOFT = {"target_rate": 0.05, "actor_rate": 3e-3}
FAST = {"steps": 1000, "batch": 64, "width": 32, "rate": 3e-3}
OWN = {
    "weighted-bc": {"value_steps": 20},
    "td3bc": {"target_rate": 0.05},
    "td3tsbc": {"target_rate": 0.05, "improved": WORLD.top(30)},
    "iql": {"target_rate": 0.05},
    "cql": {**SOFT, "steps": 500, "depth": 2, "samples": 4},
    "mbop": {"plan_horizon": 1, "sigma": 0.5},
    "tsmbop": {"steps": 400, "plan_horizon": 1, "sigma": 0.5, "target_rate": 0.05, "improved": WORLD.top(30)},
    "diffuser": {
        **{"steps": 500, "batch": 256, "rate": 6e-3, "width": 16, "depth": 1, "blocks": 1},
        **{"plan_horizon": 2, "diffusion_steps": 5, "samples": 16, "guide_scale": 0.3, "sample_noise": 0.0},
    },
    "mopo": {**SOFT, **WORLDLY, "penalty": 0.1},
    "morel": {**SOFT, **WORLDLY},
}


def settings(method):
    return FAST | OWN.get(method, {})


def configured(method):
    """The method with its settings here, and the improved data, where it takes some."""
    own = dict(settings(method))
    improved = own.pop("improved", None)
    return configure(method, **own), improved


def world_of(method):
    return WORLDS.get(method, WORLD)


def actions(policy, obs):
    """Actions [P, B, A] in states [P, B, S]: the most likely ones, or those planned at an episode's start."""
    if isinstance(policy, ActionPlanner):
        begun = np.ones(obs.shape[:2], bool)
        return np.asarray(plan_all(policy, policy.blank(obs.shape[1]), obs, begun, jax.random.key(0))[0])
    return np.asarray(act_all(policy, jnp.asarray(obs), None))


def aims(policy, data=WORLD[:200]):  # a plan is a hundred rows a state
    """Actions [P, N] from -1 to 1, and the best ones [N]."""
    policy = stacked(policy)
    obs = data.obs[data.row]
    action = actions(policy, np.broadcast_to(obs, (policy.count, *obs.shape)))
    return (action[..., 0] - 2) / 2, 0.6 * obs[:, 0]


@pytest.fixture(scope="module", params=METHODS)
def trained(request, tmp_path_factory):
    """The method and a finished run of seeds 0 and 1, which all workers share."""
    method, shared = request.param, tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "runs" / method
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):  # a worker that comes later finds it finished
        run, _ = train_run(method, world_of(method), folder / "both", seeds=2, **settings(method))
    return method, run


def first_checkpoint(run):
    """Its step; a run has twenty."""
    return run.steps()[0]


def test_learns_the_known_answer(trained):
    """Cloning gives the mean action, 0; cloning the best tenth, and all that use rewards, the best action."""
    method, run = trained
    world = world_of(method)[:200]
    action, best = aims(load_policy(run.path / "policy.npz"), world)
    expected = best if method in (*REWARDED, "percent-bc") else np.zeros_like(best)
    for t in (0, 1):
        now = world.obs[world.row, 2] == t
        assert np.abs(action - expected)[:, now].mean() < 0.13  # the other answer is 0.3 away


def test_another_seed_gives_another_policy(trained):
    """That the same seed gives the same, `test_killed_twice_…` says: it compares the bytes of two trainings."""
    _, run = trained
    saved, _ = aims(load_policy(run.checkpoint(first_checkpoint(run))))
    assert np.abs(saved[0] - saved[1]).max() > 1e-3


@pytest.mark.parametrize("trained", ["bc", "td3tsbc", "mbop"], indirect=True)
def test_training_in_memory_ends_as_a_run_does(trained):
    method, run = trained
    saved, _ = aims(load_policy(run.path / "policy.npz"))
    again, _ = aims(train(method, world_of(method), seeds=2, **settings(method)))
    np.testing.assert_array_equal(saved, again)


# One method per training structure: one loss, an actor every second step, rollouts renewed at times, windows of
# the data, ensembles.
@pytest.mark.parametrize("trained", ["bc", "td3bc", "mopo", "diffuser", "mbop"], indirect=True)
def test_a_seed_is_the_same_alone_and_in_company(trained):
    method, run = trained
    config, improved = configured(method)
    data = world_of(method)
    learner, table, _ = next(config.stages(data, improved, config.prepare(data)))
    first = first_checkpoint(run)
    state, _ = next(loop.run(learner, loop.start(learner, table, [1]), table, [1], first))
    single, _ = aims(config.policy(state.model))
    together, _ = aims(load_policy(run.checkpoint(first)))
    differs = np.abs(together[1] - single[0]) > 1e-3
    # Of two plans equally good up to rounding Diffuser may take either; another seed differs nearly everywhere.
    assert differs.mean() <= (0.01 if method == "diffuser" else 0)


class Killed(Exception):
    pass


def test_killed_twice_it_goes_on_to_the_same_bytes(trained, monkeypatch):
    """Once early and once late, which for td3tsbc are before and after the switch."""
    method, whole = trained
    out = whole.path.with_name("killed")
    save_state, every = Run.save_state, first_checkpoint(whole)
    for fatal in (2 * every, 18 * every):

        def dies(run, state, fatal=fatal):
            if int(state.step) == fatal:
                raise Killed
            save_state(run, state)

        monkeypatch.setattr(Run, "save_state", dies)
        with pytest.raises(Killed):
            train_run(method, world_of(method), out, seeds=2, **settings(method))
    monkeypatch.setattr(Run, "save_state", save_state)
    started = []
    run_loop = loop.run
    monkeypatch.setattr(
        loop, "run", lambda c, state, *a: started.append(int(state.step)) or run_loop(c, state, *a)
    )
    train_run(method, world_of(method), out, seeds=2, **settings(method))
    assert started[-1] == 17 * every  # before it, a value function of weighted-bc's own, or a world
    files = sorted(file.relative_to(out) for file in out.rglob("*") if file.is_file())
    assert files == sorted(file.relative_to(whole.path) for file in whole.path.rglob("*") if file.is_file())
    for name in files:
        assert (whole.path / name).read_bytes() == (out / name).read_bytes()


def test_actions_keep_to_the_range_of_the_data(trained):
    _, run = trained
    far = 100 * np.random.default_rng(0).normal(size=(2, 300, 3)).astype(np.float32)
    action = actions(load_policy(run.path / "policy.npz"), far)
    assert (action >= WORLD.action.min(0) - 1e-6).all()
    assert (action <= WORLD.action.max(0) + 1e-6).all()


LOGGED = {
    "td3bc": {"critic_loss", "q", "actor_loss", "policy_q", "cloning", "lambda"},
    "iql": {"value_loss", "critic_loss", "actor_loss", "v", "q", "advantage", "weight", "std"},
    "cql": {"critic_loss", "gap", "actor_loss", "q", "policy_q", "entropy", "temperature"},
}
LOGGED["mbop"] = {"model_loss", "reward_loss", "prior_loss", "return_loss"}
LOGGED["tsmbop"] = {"model_loss", "reward_loss", "cloning", "value_loss", "v"}
LOGGED["diffuser"] = {"denoising_loss", "action_loss", "value_loss"}
LOGGED["td3tsbc"] = LOGGED["td3bc"]
LOGGED["mopo"] = LOGGED["morel"] = LOGGED["cql"] - {"gap"} | {"imagined_reward", "uncertainty", "ended"}


def test_what_is_logged(trained):
    method, run = trained
    for line in run.metrics():
        assert line.keys() == {"step", "loss"} | LOGGED.get(method, {"error"})
        for name in line.keys() - {"step"}:
            assert np.isfinite(line[name]).all()
            assert len(line[name]) == 2


def test_the_scale_is_that_of_the_data(trained):
    """For td3tsbc and tsmbop that of the original ones, of which the improved are a part here."""
    method, run = trained
    data = WORLD.top(10) if method == "percent-bc" else world_of(method)
    policy = load_policy(run.path / "policy.npz")
    np.testing.assert_allclose(policy.scale.mean[0], data.obs[data.row].mean(0), atol=1e-5)
    np.testing.assert_allclose(policy.range.low[0], data.action.min(0))
    assert not np.allclose(WORLD.top(30).obs.mean(0), WORLD.obs.mean(0), atol=1e-3)


def test_other_data_are_another_run(trained):
    method, run = trained
    others = [(WORLD[:9], OWN.get(method, {}).get("improved"))]
    others += [(WORLD, WORLD[:9])] if method in TWO else []
    for data, improved in others:
        with pytest.raises(InputError, match="other settings or data"):
            train_run(method, data, run.path, seeds=2, **settings(method) | {"improved": improved})


@pytest.mark.parametrize("method", METHODS)
def test_data_without_rewards(method, tmp_path):
    """Nothing to learn from but actions: cloning does, the others say so and leave nothing."""
    mute = replace(WORLD, reward=np.zeros_like(WORLD.reward))
    if method not in REWARDED:
        configure(method).check(mute)
        return
    more = {"improved": mute} if method in TWO else {}
    with pytest.raises(InputError, match="all rewards are 0"):
        train_run(method, mute, tmp_path / "run", **more)
    assert not (tmp_path / "run").exists()


# -- data and settings that do not fit --------------------------------------------------------------------------


def test_iql_needs_returns_that_differ():
    same = from_trajectories([aim_dataset(many=1)[0]] * 3)
    with pytest.raises(InputError, match="all 3 trajectories return -.*different returns"):
        train("iql", same)


def test_improved_data_go_with_methods_for_them_only():
    other = random_dataset(0, (4, 4), obs_dim=5, action_dim=1)
    for method in TWO:
        with pytest.raises(InputError, match=f"{method} needs two data sets"):
            train(method, WORLD)
        with pytest.raises(InputError, match="5 observations and 1 actions, but the original have 3 and 2"):
            train(method, WORLD, improved=other)
    for method in ("td3bc", "mbop"):
        with pytest.raises(InputError, match="only td3tsbc and tsmbop take improved data"):
            train(method, WORLD, improved=WORLD)


@pytest.mark.parametrize(
    ("method", "bad", "sentence"),
    [
        *[(method, {"discount": 1.0}, "discount must be") for method in OFFLINE],
        *[(method, {"target_rate": 0.0}, "target_rate above 0") for method in OFFLINE],
        *[(method, {"width": 0}, "width must be at least 1") for method in REWARDED],
        ("td3bc", {"delay": 0}, "delay must be at least 1"),
        ("td3bc", {"alpha": -1.0}, "alpha"),
        ("td3bc", {"expectile": 0.5}, "no setting 'expectile'"),
        ("td3tsbc", {"rule": "ant-medium"}, "no rule 'ant-medium'; known are hopper-medium, "),
        ("td3tsbc", {"switch": 0}, "switch at step 0 must lie between"),
        ("td3tsbc", {"switch": 100, "steps": 100}, "switch at step 100 must lie between"),
        ("iql", {"expectile": 1.0}, "expectile"),
        ("iql", {"weight_clip": 0.0}, "weight_clip"),
        ("cql", {"samples": 0}, "samples must be at least 1"),
        ("cql", {"actor_rate": 0.0}, "actor_rate"),
        ("cql", {"pushed": -1}, "pushed must not be below 0, as -1 is"),
        ("mbop", {"samples": 0}, "samples must be at least 1, not 0"),
        ("mbop", {"plan_horizon": 0}, "horizon must be at least 1, not 0"),
        ("mbop", {"return_horizon": 0}, "return_horizon must be at least 1, not 0"),
        ("tsmbop", {"return_horizon": 9}, "tsmbop has no setting 'return_horizon'"),
        ("mbop", {"members": 0}, "members must be at least 1"),
        ("mbop", {"kappa": -1.0}, "kappa and sigma must not be below 0"),
        ("mbop", {"sigma": float("nan")}, "kappa and sigma must not be below 0"),
        ("mbop", {"beta": 1.0}, "beta must be from 0 to below 1"),
        ("mbop", {"l2": -1.0}, "l2 must not be below 0"),
        ("mbop", {"rule": "ant-medium"}, "no rule 'ant-medium'; known are hopper-medium, "),
        ("mbop", {"discount": 0.9}, "mbop has no setting 'discount'"),
        ("tsmbop", {"discount": 1.0}, "discount must be"),
        ("diffuser", {"width": 12}, "width must be a multiple of 8, not 12"),
        ("diffuser", {"blocks": 0}, "blocks must be at least 1"),
        ("diffuser", {"plan_horizon": 12}, "plan_horizon 12 cannot be halved 3 times; give a multiple of 8"),
        ("diffuser", {"diffusion_steps": 0}, "diffusion_steps must be at least 1"),
        ("diffuser", {"samples": 0}, "samples must be at least 1"),
        ("diffuser", {"guide_scale": float("nan")}, "guide_scale must not be below 0, as nan is"),
        ("diffuser", {"guide_stop": -1}, "guide_stop must not be below 0, as -1 is"),
        ("diffuser", {"discount": 1.1}, "discount must be from 0 to 1"),
        ("diffuser", {"ema": 1.0}, "ema from 0 to below 1"),
        ("diffuser", {"action_weight": 0.0}, "action_weight must be above 0"),
        ("diffuser", {"end_penalty": float("inf")}, "end_penalty a number"),
        ("tsmbop", {"value_rate": 0.0}, "value_rate must be above 0"),
    ],
)
def test_impossible_settings(method, bad, sentence):
    with pytest.raises(InputError, match=sentence):
        configure(method, **bad)


def test_diffuser_needs_a_future():
    with pytest.raises(InputError, match="all trajectories have one step, so there is no future to plan"):
        train("diffuser", random_dataset(0, (1, 1, 1)))


# -- losses -----------------------------------------------------------------------------------------------------


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


def test_td3bc_actor_loss_by_hand():
    config = TD3BC(width=32, alpha=2.5)
    model, table = fresh(config)
    obs, action = np.asarray(table["obs"]), np.asarray(table["action"])
    played = np.array([plain_action(model.actor, o) for o in obs])
    q = np.array([plain_q(model.critic, o, a, 0) for o, a in zip(obs, played, strict=True)])
    half = (action.max(0) - action.min(0)) / 2
    weight = 2.5 / np.abs(q).mean()
    expected = -weight * q.mean() + (((played - action) / half) ** 2).mean()
    loss, metrics = config.actor_loss(model.critic, table, model.actor)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    np.testing.assert_allclose(metrics["lambda"], weight, rtol=1e-4)
    # λ has no gradient: twice the Q-values give half the λ and the same slope.
    grad = jax.jit(jax.grad(lambda actor, critic: config.actor_loss(critic, table, actor)[0]))
    *layers, last = model.critic.twins.layers
    doubled = replace(model.critic, twins=MLP((*layers, Linear(2 * last.weight, 2 * last.bias))))
    for a, b in zip(*(jax.tree.leaves(grad(model.actor, c)) for c in (model.critic, doubled)), strict=True):
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
    row = row_of(table, 1)
    obs, action = np.asarray(row["obs"]), np.asarray(row["action"])
    q = min(plain_q(model.critic_target, obs, action, k) for k in (0, 1))
    v = plain(model.value.net, (obs - model.value.scale.mean) / model.value.scale.std)[0]
    half = np.asarray(model.actor.range.half)
    z = (action - plain_action(model.actor, obs)) / half
    density = np.prod(np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi))
    loss, metrics = config.loss(model, row, jax.random.key(0))
    np.testing.assert_allclose(metrics["advantage"], q - v, rtol=1e-4)
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


def test_cql_learns_the_known_answer_from_drawn_actions_too():
    action, best = aims(train("cql", WORLD, pushed=1, **settings("cql")))
    assert np.abs(action - best).mean() < 0.13


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


def test_a_cosine_takes_the_actor_s_rate_to_nothing():
    """With the same slope at every step: Adam's first steps are of the rate, those at the end of none of it."""
    model, _ = fresh(SAC(width=8))
    ones = jax.tree.map(jnp.ones_like, model)
    for schedule, last in (("constant", 1e-3), ("cosine", 0.0)):
        adam = SAC(width=8, actor_rate=1e-3, actor_schedule=schedule, fit=Fit(steps=10, rate=1e-2)).optimiser()
        memory, taken = adam.init(model), []
        for _ in range(11):
            step, memory = adam.update(ones, memory, model)
            taken.append(step)
        for name, first, end in (("actor", 1e-3, last), ("log_temperature", 1e-3, last), ("critic", 1e-2, 1e-2)):
            for i, rate in ((0, first), (10, end)):
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
