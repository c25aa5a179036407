"""Weighing: known answers in a world where good and bad steps are known, settings, killed runs, the command."""

import dataclasses
import json
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as parquet
import pytest

import trajstitch as ts
from trajstitch.cli import main
from trajstitch.data import Dataset, Trajectory, effective_steps, from_trajectories
from trajstitch.errors import InputError
from trajstitch.jobs import weigh as weighing
from trajstitch.jobs.weigh import weigh, weigh_run
from trajstitch.methods import weigh as weights
from trajstitch.methods.iql import advantage_of, scaled_steps
from trajstitch.methods.weigh import (
    Appraisal,
    Weigh,
    appraise,
    distances,
    outcomes,
    start_critics,
    temperature_for,
    weigh_by,
    weigh_towards,
    worths,
)
from trajstitch.models.world_model import split_steps
from trajstitch.policies.policy import Policy, acting, stack
from trajstitch.policies.policy_files import save_policy
from trajstitch.training.loop import Fit
from trajstitch.training.networks import Range, Scale, pick

SMALL = Weigh(members=3, width=32, depth=1, discount=0.9, effective_share=0.3, fit=Fit(1500, 64, 3e-3))
TINY = Weigh(members=2, width=4, depth=1, fit=Fit(8, 4, 1e-3))


def drift(many=60, steps=15, seed=0) -> Dataset:
    """A point on a line; an action moves it, and the reward is its action. Good steps are known: large actions."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(many):
        action = rng.uniform(-1, 1, (steps, 1))
        obs = np.cumsum(np.concatenate([rng.normal(size=(1, 1)), 0.1 * action]), 0)
        found.append(Trajectory(obs, action, action[:, 0], terminal=False))
    return from_trajectories(found, {"env_id": "Drift-v0"})


@pytest.fixture(scope="module")
def drifting():
    data = drift()
    return data, weigh(data, SMALL)


def test_steps_that_earn_more_weigh_more(drifting):
    data, weighed = drifting
    assert weighed.weight.mean() == pytest.approx(1, abs=1e-3)
    assert effective_steps(weighed.weight) / data.transitions == pytest.approx(0.3, abs=0.01)
    assert np.corrcoef(weighed.weight, data.reward)[0, 1] > 0.5
    good, bad = weighed.weight[data.reward > 0.5], weighed.weight[data.reward < -0.5]
    assert good.mean() > 3 * bad.mean()
    for name in ("obs", "action", "reward", "start", "terminal"):
        assert (
            getattr(weighed, name) is getattr(data, name) or (getattr(weighed, name) == getattr(data, name)).all()
        )


def test_a_clone_of_weighed_steps_is_better(drifting):
    """All actions alike average to 0; by weight they average to a good one."""
    data, weighed = drifting
    options = {"steps": 400, "batch": 64, "width": 16, "rate": 3e-3}
    obs = data.obs[::20]

    def mean_action(policy):
        return np.mean([policy.act(one)[0] for one in obs])

    assert abs(mean_action(ts.train("bc", data, **options))) < 0.15
    assert mean_action(ts.train("bc", weighed, **options)) > 0.3
    ignoring = ts.train("bc", weighed, ignore_weights=True, **options)
    assert mean_action(ignoring) == pytest.approx(mean_action(ts.train("bc", data, **options)), abs=1e-6)


def test_the_outcome_is_a_plain_sum():
    """Against a loop over steps, at real and cut ends."""
    rng = np.random.default_rng(0)
    data = dataclasses.replace(drift(5, 7), terminal=np.array([True, False, True, False, False]))
    value = rng.normal(size=len(data.obs))
    config = Weigh(discount=0.9, gae_lambda=0.8)
    reward = data.reward * 1000 / (data.returns.max() - data.returns.min())
    plain = np.zeros(data.transitions)
    for m in range(len(data)):
        later = 0.0
        for n in reversed(range(data.start[m], data.start[m + 1])):
            row = data.row[n]
            ended = data.terminal[m] and n == data.start[m + 1] - 1
            gain = reward[n] + 0.9 * (0 if ended else value[row + 1]) - value[row]
            later = plain[n] = gain + 0.9 * 0.8 * later
    np.testing.assert_allclose(outcomes(data, value, config), plain, rtol=1e-5)


def test_the_worth_of_a_trajectory_is_its_return_and_its_cut_end():
    """In thousandths of the spread of returns, which is 5; a real end is worth nothing more, nor a longest one."""
    rewards, ended = ([1.0, 2.0], [-2.0], [0.5, 0.5, -1.0]), (True, False, False)
    data = from_trajectories(
        [
            Trajectory(np.zeros((len(r) + 1, 1)), np.zeros((len(r), 1)), np.array(r), terminal=end)
            for r, end in zip(rewards, ended, strict=True)
        ]
    )
    value = np.array([9, 9, 70, 9, 10, 9, 9, 9, -30.0])  # by row: each trajectory has one more than steps
    config = Weigh(discount=0.9)
    np.testing.assert_allclose(worths(data, value, config), [3 * 200, -2 * 200 + 2 * 0.1 * 10, 0], rtol=1e-6)


def test_where_a_trajectory_was_cut_does_not_matter():
    """Every step costs 1, for ever: a walk of 200 steps is worth no less than one of 10; one that arrived is."""
    lengths, ended = (10, 200, 50), (False, False, True)
    data = from_trajectories(
        [
            Trajectory(np.zeros((n + 1, 1)), np.zeros((n, 1)), -np.ones(n), terminal=end)
            for n, end in zip(lengths, ended, strict=True)
        ]
    )
    unit = 1000 / 190  # rewards are in thousandths of the spread of returns
    value = np.full(len(data.obs), -unit / (1 - 0.9))
    found = worths(data, value, Weigh(discount=0.9)) / unit
    np.testing.assert_allclose(found, [-200, -200, -50], rtol=1e-5)


def test_weights_by_hand():
    """e^score of advantage, outcome and worth, each in units of its std; the best thousandth counts alike."""
    data = drift(10, 6)
    rng = np.random.default_rng(0)
    appraisal = Appraisal(rng.normal(size=(2, 60)).astype("f4"), rng.normal(size=70).astype("f4"))
    config = Weigh(temperature=1.5)
    value = appraisal.value.astype(float)
    parts = appraisal.advantage.mean(0), outcomes(data, value, config), np.repeat(worths(data, value, config), 6)
    score = sum(part / part.std() for part in parts)
    weight = np.exp(1.5 * np.minimum(score, np.quantile(score, 0.999)))
    np.testing.assert_allclose(weigh_by(data, appraisal, config).weight, weight / weight.mean(), rtol=1e-4)


def swinging(obs):
    """A policy of two actions for states of one dimension."""
    return np.concatenate([np.sin(obs), 5 * np.cos(obs)], 1)


def test_distances_are_those_of_a_plain_loop(monkeypatch):
    """In half-ranges of each action, from what the policy does in the step's own state."""
    monkeypatch.setattr(weights, "_BLOCK", 8)
    line, rng = drift(4, 5), np.random.default_rng(1)
    action = (rng.uniform(-1, 1, (20, 2)) * [1, 10]).astype("f4")
    data = dataclasses.replace(line, action=action)
    half = (action.max(0) - action.min(0)) / 2
    plain = [
        (((action[n] - swinging(data.obs[[data.row[n]]])[0]) / half) ** 2).sum() for n in range(data.transitions)
    ]
    np.testing.assert_allclose(distances(data, swinging), plain, rtol=1e-4)


@pytest.mark.parametrize("appraised", [False, True])
def test_weights_towards_a_policy_by_hand(appraised):
    """e^-distance, or with critics e^score where the distance is a fourth part of the score."""
    data, rng = drift(10, 6), np.random.default_rng(0)
    appraisal = Appraisal(rng.normal(size=(2, 60)).astype("f4"), rng.normal(size=70).astype("f4"))
    config = Weigh(temperature=1.5)
    near = -distances(data, np.sin)
    value = appraisal.value.astype(float)
    parts = appraisal.advantage.mean(0), outcomes(data, value, config), np.repeat(worths(data, value, config), 6)
    score = sum(part / part.std() for part in (*parts, near)) if appraised else near
    weight = np.exp(1.5 * np.minimum(score, np.quantile(score, 0.999)))
    found = weigh_towards(data, np.sin, config, appraisal if appraised else None).weight
    np.testing.assert_allclose(found, weight / weight.mean(), rtol=1e-4)


def test_weights_lead_to_the_policy_s_action():
    """Recorded actions are uniform around 0; by weight their mean is the policy's."""
    data = drift(200, 15)
    weight = weigh_towards(data, lambda obs: np.full((len(obs), 1), 0.5), Weigh(effective_share=0.2)).weight
    assert abs(data.action.mean()) < 0.05
    assert np.average(data.action[:, 0], weights=weight) == pytest.approx(0.5, abs=0.03)
    with pytest.raises(InputError, match="the policy gives actions of shape"):
        weigh_towards(data, lambda obs: np.zeros((len(obs), 2)), TINY)


def test_members_are_asked_about_every_step_and_state():
    """Each about the advantage of a step from its own state; all together about the value."""
    data = drift(4, 5)
    config = Weigh(members=3, width=8, depth=1)
    model = start_critics(scaled_steps(data), config, 0).model
    appraisal = appraise(model, data)
    members = [pick(model, p) for p in range(3)]
    obs = data.obs[data.row]
    for found, one in zip(appraisal.advantage, members, strict=True):
        expected = jax.vmap(partial(advantage_of, one))(obs, data.action)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    values = np.mean([jax.vmap(one.value)(data.obs) for one in members], 0)
    np.testing.assert_allclose(appraisal.value, values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.9])
def test_the_temperature_gives_the_share(share):
    score = np.minimum(np.random.default_rng(0).normal(size=5000) - 3, 0)
    weight = np.exp(temperature_for(score, share) * score)
    assert effective_steps(weight) / len(score) == pytest.approx(share, rel=1e-3)


def test_units_of_rewards_do_not_matter():
    data = drift(8, 6)
    appraisal = Appraisal(np.random.default_rng(0).normal(size=(2, 48)).astype("f4"), np.zeros(56, np.float32))
    for unit in (1e-6, 1e6):
        other = dataclasses.replace(data, reward=data.reward * np.float32(unit))
        np.testing.assert_allclose(
            weigh_by(other, appraisal, TINY).weight, weigh_by(data, appraisal, TINY).weight, rtol=1e-3
        )


def test_agreement_is_the_mean_correlation_of_members():
    advantage = np.random.default_rng(0).normal(size=(3, 1000)).astype("f4")
    alike = Appraisal(np.stack([advantage[0], advantage[0]]), np.zeros(1, np.float32))
    assert alike.agreement == pytest.approx(1)
    assert abs(Appraisal(advantage, np.zeros(1, np.float32)).agreement) < 0.1
    assert Appraisal(advantage[:1], np.zeros(1, np.float32)).agreement is None
    assert Appraisal(0 * advantage, np.zeros(1, np.float32)).agreement == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: dataclasses.replace(d, reward=np.zeros_like(d.reward)), "all rewards are 0, so no step"),
        (lambda d: dataclasses.replace(d, reward=np.ones_like(d.reward)), "all 4 trajectories return"),
    ],
)
def test_data_without_better_steps_are_refused(change, sentence):
    with pytest.raises(InputError, match=sentence):
        weigh(change(drift(4, 5)), TINY)


@pytest.mark.parametrize(
    "wrong",
    [
        {"members": 0},
        {"expectile": 1.0},
        {"discount": 1.0},
        {"effective_share": 0.0},
        {"gae_lambda": 1.5},
        {"temperature": -1.0},
        {"temperature": np.inf},
    ],
)
def test_impossible_settings(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        Weigh(**wrong)


def test_trajectories_of_weight_0_trouble_nobody_who_ignores_weights():
    data = drift(20, 5)
    weight = np.where(data.trajectory < 10, 0, 2).astype(np.float32)
    bad = dataclasses.replace(data, weight=weight, reward=np.where(weight == 0, data.reward + 5, data.reward))
    assert ts.train("percent-bc", bad, steps=1, width=4, ignore_weights=True)
    with pytest.raises(InputError, match="0 for all of these steps"):
        ts.train("percent-bc", bad, steps=1, width=4)
    for seed in range(20):
        split_steps(bad, seed)


# -- run directories ---------------------------------------------------------------------------------------------


def test_a_killed_run_goes_on_with_the_same_weights(tmp_path, monkeypatch):
    data = drift(6, 5)
    _, whole, _ = weigh_run(data, TINY, tmp_path / "whole")
    real = weighing.Run.save_state
    saved = []

    def dies(run, state):
        real(run, state)
        saved.append(int(state.step))
        if len(saved) in (2, 5):
            raise KeyboardInterrupt

    monkeypatch.setattr(weighing.Run, "save_state", dies)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            weigh_run(data, TINY, tmp_path / "killed")
    run, again, _ = weigh_run(data, TINY, tmp_path / "killed")
    assert saved == list(range(1, 9))  # nothing was done twice
    assert again.weight.tobytes() == whole.weight.tobytes()
    assert [line["step"] for line in run.metrics()] == list(range(1, 9))
    assert not (run.path / "state.npz").exists()


def test_another_share_needs_no_new_training(tmp_path, monkeypatch):
    data = drift(6, 5)
    weigh_run(data, TINY, tmp_path / "run")
    monkeypatch.setattr(weighing, "train_critics", lambda *_: pytest.fail("trained again"))
    _, other, _ = weigh_run(data, dataclasses.replace(TINY, effective_share=0.5), tmp_path / "run")
    assert effective_steps(other.weight) / data.transitions == pytest.approx(0.5, abs=0.01)
    weighed_before = dataclasses.replace(data, weight=np.ones(data.transitions, np.float32))
    weigh_run(weighed_before, TINY, tmp_path / "run")  # older weights do not matter
    with pytest.raises(InputError, match="other settings or data"):
        weigh_run(data, dataclasses.replace(TINY, width=8), tmp_path / "run")


def test_the_command(tmp_path, capsys):
    ts.save(drift(6, 5), tmp_path / "data.npz")
    words = ["weigh", str(tmp_path / "data.npz"), "--out", str(tmp_path / "better.npz"), "--preset", "quick"]
    words += ["--fit.steps", "4", "--fit.batch", "4", "--width", "4", "--members", "2", "--json"]
    assert main(words) == 0
    told = capsys.readouterr().out
    result = json.loads(told.splitlines()[-1])
    assert result["transitions"] == 30
    assert result["effective_steps"] == pytest.approx(3, abs=0.1)
    better = ts.load(tmp_path / "better.npz")
    assert better.weight is not None
    assert result["fingerprint"] == better.fingerprint
    assert main(words) == 2
    assert "exists" in capsys.readouterr().err
    assert main([*words, "--overwrite", "--effective-share", "0.5"]) == 0
    assert "do not trust" in capsys.readouterr().out or result["agreement"] >= 0.3
    assert effective_steps(ts.load(tmp_path / "better.npz").weight) == pytest.approx(15, abs=0.5)


def test_the_command_weighs_towards_a_policy(tmp_path, capsys, monkeypatch):
    """With the critics that another call has trained; the policies of a file count by their median."""
    ts.save(drift(6, 5), tmp_path / "data.npz")
    data, file = ts.load(tmp_path / "data.npz"), str(tmp_path / "policy.npz")
    words = ["weigh", str(tmp_path / "data.npz"), "--out", str(tmp_path / "better.npz"), "--preset", "quick"]
    words += ["--fit.steps", "4", "--fit.batch", "4", "--width", "4", "--members", "2"]
    assert main([*words, "--towards", file]) == 2
    assert "there is no such policy file" in capsys.readouterr().err
    spans = [Range(jnp.full(1, low), jnp.full(1, low + 0.1)) for low in (-0.9, 0.5, 0.8)]  # where each one acts
    policies = [Policy.init(Scale.unit(1), span, jax.random.key(0), width=4, depth=1) for span in spans]
    save_policy(stack(policies), file)
    assert main(words) == 0
    plain = ts.load(tmp_path / "better.npz").weight
    monkeypatch.setattr(weighing, "train_critics", lambda *_: pytest.fail("trained again"))
    assert main([*words, "--towards", file, "--overwrite"]) == 0
    guided = ts.load(tmp_path / "better.npz").weight
    config = Weigh(members=2, width=4, fit=Fit(4, 4, 1e-3))
    _, _, appraisal = weigh_run(data, config, tmp_path / "better.npz.weigh")
    expected = weigh_towards(data, acting(policies[1]), config, appraisal).weight
    np.testing.assert_allclose(guided, expected, rtol=1e-4)
    away = np.abs(data.action[:, 0] - 0.55)
    assert np.average(away, weights=guided) < np.average(away, weights=plain)
    (tmp_path / "run").mkdir()
    save_policy(policies[1], tmp_path / "run" / "policy.npz")
    assert main([*words, "--towards", str(tmp_path / "run"), "--overwrite"]) == 0
    np.testing.assert_allclose(ts.load(tmp_path / "better.npz").weight, guided, rtol=1e-4)
    assert main([*words, "--towards", "", "--overwrite"]) == 2
    assert main([*words[:3], file, "--towards", file, "--overwrite"]) == 2
    save_policy(Policy.init(Scale.unit(2), spans[0], jax.random.key(0), width=4, depth=1), file, overwrite=True)
    assert main([*words, "--towards", file, "--overwrite"]) == 2
    assert "takes 2 observations and 1 actions, but the data have 1 and 1" in capsys.readouterr().err


def test_the_command_refuses_what_cannot_be_weighed(tmp_path, capsys):
    data = drift(3, 4)
    ts.save(dataclasses.replace(data, reward=np.zeros_like(data.reward)), tmp_path / "data.npz")
    out = tmp_path / "better.npz"
    assert main(["weigh", str(tmp_path / "data.npz"), "--out", str(out)]) == 2
    assert "data.npz: all rewards are 0" in capsys.readouterr().err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["data.npz"]
    assert main(["weigh", str(tmp_path / "data.npz"), "--out", str(tmp_path / "better.csv")]) == 2
    assert main(["weigh", str(tmp_path / "data.npz"), "--out", str(tmp_path / "data.npz"), "--overwrite"]) == 2
    inside = [
        "weigh",
        str(tmp_path / "data.npz"),
        "--out",
        f"{tmp_path}/x.traj/",
        "--run-dir",
        f"{tmp_path}/x.traj",
    ]
    assert main(inside) == 2
    assert "lies in --out" in capsys.readouterr().err
    assert main(["weigh", str(tmp_path / "data.npz"), "--out", str(out), "--preset", "slow"]) == 2
    assert "there is no preset 'slow'" in capsys.readouterr().err


def test_the_command_writes_frames(tmp_path, capsys, monkeypatch):
    ts.save(drift(6, 5), tmp_path / "data.npz")
    frames = tmp_path / "frames.parquet"
    words = ["weigh", str(tmp_path / "data.npz"), "--out", str(tmp_path / "better.npz"), "--preset", "quick"]
    words += ["--fit.steps", "4", "--fit.batch", "4", "--width", "4", "--members", "2", "--json"]

    def refused(*more):
        """What is said of a request that leads to no work."""
        before = sorted(tmp_path.iterdir())
        assert main([*words, *more]) == 2
        assert sorted(tmp_path.iterdir()) == before
        return capsys.readouterr().err

    assert "ends in .parquet" in refused("--frames", str(tmp_path / "frames.csv"))
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pyarrow", None)
        assert "trajstitch[parquet]" in refused("--frames", str(frames))
    frames.write_text("older")
    assert "frames.parquet exists already" in refused("--frames", str(frames))
    assert main([*words, "--frames", str(frames), "--overwrite"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["frames"] == str(frames)
    table = parquet.read_table(frames)
    assert table["episode_index"].to_pylist() == np.repeat(range(6), 5).tolist()
    assert table["weight"].to_numpy().tolist() == ts.load(tmp_path / "better.npz").weight.tolist()
