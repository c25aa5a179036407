"""Every method held to the same: the known answer, the same bytes after a kill, files, ranges, seeds, refusals."""

import os
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from filelock import FileLock

from trajstitch.data import Trajectory, from_trajectories
from trajstitch.errors import InputError
from trajstitch.jobs.run_dir import Run
from trajstitch.jobs.train import train_run
from trajstitch.methods import METHODS, configure
from trajstitch.methods.train import train
from trajstitch.policies.planner import ActionPlanner, plan_all
from trajstitch.policies.policy import act_all, stacked
from trajstitch.policies.policy_files import load_policy
from trajstitch.training import loop
from worlds import aim_dataset, random_dataset

KEY = jax.random.key(0)
WORLD = aim_dataset()
WORLDS = {"mopo": aim_dataset(loop=True), "morel": aim_dataset(loop=True)}  # their rollouts know of no ends
OFFLINE = ("td3bc", "rebrac", "td3tsbc", "iql", "cql", "mopo", "morel")
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
    "rebrac": {"target_rate": 0.05, "depth": 2},
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


def test_cql_learns_the_known_answer_from_drawn_actions_too():
    action, best = aims(train("cql", WORLD, pushed=1, **settings("cql")))
    assert np.abs(action - best).mean() < 0.13


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
LOGGED["td3tsbc"] = LOGGED["rebrac"] = LOGGED["td3bc"]
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


def test_rebrac_needs_steps_that_are_followed_by_others():
    steps = [Trajectory(WORLD[i].obs[:2], WORLD[i].action[:1], np.ones(1), False) for i in range(3)]
    with pytest.raises(InputError, match="no next action is known"):
        train("rebrac", from_trajectories(steps))


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
