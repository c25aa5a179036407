"""Cloning, exactly; settings; runs that are killed, repeated or asked for anew. Every method: test_offline.py."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.cli.train import parse
from trajstitch.errors import InputError
from trajstitch.jobs.run_dir import Run, numbers
from trajstitch.jobs.train import train_run
from trajstitch.methods import configure, defaults
from trajstitch.methods.bc import value_weights
from trajstitch.methods.train import train
from trajstitch.policies.policy import act_all
from trajstitch.policies.policy_files import load_policy
from trajstitch.training import loop
from worlds import linear_dataset

FAST = {"steps": 1500, "batch": 64, "width": 64}


def fast(method):
    return FAST | ({"value_steps": 300} if method == "weighted-bc" else {})


@pytest.fixture(scope="module")
def world():
    return linear_dataset()


def actions(policy, data):
    obs = jnp.broadcast_to(data.obs[data.row], (2, data.transitions, data.obs_dim))
    return np.asarray(act_all(policy, obs, None))


@pytest.mark.parametrize("method", ["bc", "percent-bc", "gaussian-bc", "weighted-bc"])
def test_clones_a_policy_exactly(method, world):
    policy = train(method, world, seeds=2, **fast(method))
    data = world.top(10) if method == "percent-bc" else world
    error = np.abs(actions(policy, data) - data.action).mean()
    assert error < 0.03  # actions themselves are about 0.4 in size


def test_one_seed_is_one_policy(world):
    assert train("bc", world, steps=5).count is None


def test_percent_bc_sees_the_best_trajectories_only(world):
    table = defaults("percent-bc").table(world)
    best = np.argsort(-world.returns)[:2]
    expected = np.concatenate([world[int(m)].action for m in sorted(best)])
    np.testing.assert_array_equal(table["action"], expected)


def test_the_gaussian_head_finds_the_spread():
    """Actions of std 0.2 around the mean: maximum likelihood says so."""
    data = linear_dataset(many=40)
    noise = 0.2 * np.random.default_rng(1).normal(size=data.action.shape).astype(np.float32)
    noisy = dataclasses.replace(data, action=data.action + noise)
    policy = train("gaussian-bc", noisy, steps=1500, batch=128, width=32)
    log_std = np.array([policy.moments(obs)[1] for obs in data.obs[:100]])
    assert np.exp(log_std).mean() == pytest.approx(0.2, rel=0.2)


def test_weights_are_not_negative_and_follow_the_value(world):
    np.testing.assert_allclose(value_weights(np.array([-3.0, 1.0, 2.0])), np.array([0, 4, 5]) / 3)
    np.testing.assert_array_equal(value_weights(np.full(3, 7.0)), np.ones(3))
    config = configure("weighted-bc", value_steps=300)
    table = config.table(world, config.prepare(world))
    assert table["loss_weight"].min() == 0
    assert table["loss_weight"].mean() == pytest.approx(1)
    # Rewards are the first action, tanh of mostly the first observation: states with a high one are worth more.
    assert np.corrcoef(table["loss_weight"], table["obs"][:, 0])[0, 1] > 0.5


def test_the_papers_schedule_is_a_preset():
    ours = parse("train", ["bc", "data.npz", "--out", "run"]).settings
    paper = parse(
        "train", ["percent-bc", "data.npz", "--out", "run", "--preset", "paper", "--width", "64"]
    ).settings
    assert (ours.schedule, ours.fit.steps) == ("cosine", 50_000)
    assert (paper.schedule, paper.fit.steps, paper.percent, paper.width) == ("constant", 100_000, 10.0, 64)
    with pytest.raises(InputError, match="no preset 'quick'; known are standard, paper"):
        parse("train", ["bc", "data.npz", "--out", "run", "--preset", "quick"])


def test_a_rate_that_falls_to_0_ends_without_moving(world):
    """The last of many steps changes almost nothing, with a constant rate it does."""
    moved = {}
    for schedule in ("cosine", "constant"):
        config = configure("bc", schedule=schedule, width=8, depth=1, steps=200, batch=16)
        table = config.table(world)
        states = [state.model for state, _ in loop.run(config, loop.start(config, table, [0]), table, [0], 199)]
        before, after = (np.concatenate([np.ravel(x) for x in jax.tree.leaves(one)]) for one in states)
        moved[schedule] = np.abs(after - before).max()
    assert moved["cosine"] < 1e-2 * moved["constant"]


def test_settings(world):
    config = configure("bc", steps=7, width=8)
    assert (config.fit.steps, config.width, config.fit.batch) == (7, 8, 256)
    for bad, sentence in (
        (("ppo", {}), "no method 'ppo'"),
        (("bc", {"heads": 2}), "no setting 'heads'"),
        (("bc", {"width": 0}), "at least 1"),
        (("bc", {"percent": 0.0}), "above 0"),
        (("bc", {"head": "softmax"}), "tanh or gaussian"),
    ):
        with pytest.raises(InputError, match=sentence):
            configure(bad[0], **bad[1])


# -- runs ---------------------------------------------------------------------------------------------------------

SMALL = {"steps": 30, "batch": 16, "width": 8, "seeds": 2, "every": 10}


class Killed(Exception):
    pass


@pytest.mark.parametrize("when", ["checkpoint", "record", "save_state"])
def test_a_killed_run_goes_on_to_the_same_policies(world, tmp_path, monkeypatch, when):
    whole, _ = train_run("bc", world, tmp_path / "whole", **SMALL)
    calls = 0
    original = getattr(Run, when)

    def dies(self, *args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Killed
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Run, when, dies)
    with pytest.raises(Killed):
        train_run("bc", world, tmp_path / "killed", **SMALL)
    monkeypatch.setattr(Run, when, original)
    begun = []
    started = loop.run
    monkeypatch.setattr(loop, "run", lambda c, state, *a: begun.append(int(state.step)) or started(c, state, *a))
    killed, _ = train_run("bc", world, tmp_path / "killed", **SMALL)
    assert begun == [10]  # not from the start
    for name in ("policy.npz", "checkpoints/000000020.npz", "metrics.jsonl"):
        assert (whole.path / name).read_bytes() == (killed.path / name).read_bytes()
    assert not (killed.path / "state.npz").exists()


@pytest.mark.parametrize("method", ["weighted-bc", "morel"])
def test_what_is_learnt_first_is_told_and_not_learnt_again(world, tmp_path, monkeypatch, method):
    settings = SMALL | (
        {"value_steps": 40} if method == "weighted-bc" else {"world_steps": 40, "world_width": 8, "rollouts": 10}
    )
    told = []
    whole, _ = train_run(method, world, tmp_path / "whole", tell=lambda *words: told.append(words), **settings)
    assert told[0][:2] == (2, 40)
    assert told[0][2].startswith("first model, held-out loss")
    assert [done for done, total, _ in told if total == 30] == [10, 20, 30]

    def dies(done, total, note):
        if total == 30:
            raise Killed

    with pytest.raises(Killed):
        train_run(method, world, tmp_path / "killed", tell=dies, **settings)
    monkeypatch.setattr(type(defaults(method)), "prepare", lambda *_: pytest.fail("learnt again"))
    killed, _ = train_run(method, world, tmp_path / "killed", **settings)
    for name in ("policy.npz", "metrics.jsonl"):
        assert (whole.path / name).read_bytes() == (killed.path / name).read_bytes()
    assert not (killed.path / "prepared.npz").exists()


def test_a_finished_run_is_not_repeated(world, tmp_path, monkeypatch):
    run, _ = train_run("bc", world, tmp_path / "run", **SMALL)
    (run.path / "state.npz").touch()  # killed before it was forgotten
    monkeypatch.setattr(loop, "run", lambda *a: pytest.fail("trained again"))
    run, _ = train_run("bc", world, tmp_path / "run", **SMALL)
    assert not (run.path / "state.npz").exists()
    assert [line["step"] for line in run.metrics()] == run.steps() == [10, 20, 30]


def test_other_settings_or_data_need_overwrite(world, tmp_path):
    train_run("bc", world, tmp_path / "run", **SMALL)
    with pytest.raises(InputError, match="other settings or data.*--overwrite"):
        train_run("bc", world, tmp_path / "run", **{**SMALL, "steps": 40})
    with pytest.raises(InputError, match="other settings or data"):
        train_run("bc", world[:10], tmp_path / "run", **SMALL)
    run, _ = train_run("bc", world[:10], tmp_path / "run", **SMALL, overwrite=True)
    assert run.settings()["data"]["fingerprint"] == world[:10].fingerprint


def test_a_folder_that_is_no_run_is_left_alone(world, tmp_path):
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / "thesis.txt").write_text("all of it")
    with pytest.raises(InputError, match="not a run of trajstitch"):
        train_run("bc", world, folder, **SMALL)
    with pytest.raises(InputError, match="not a run of trajstitch"):
        train_run("bc", world, folder, **SMALL, overwrite=True)
    (folder / "config.json").write_text('{"settings": {}}')  # somebody else's
    with pytest.raises(InputError, match="not a run of trajstitch"):
        train_run("bc", world, folder, **SMALL, overwrite=True)
    assert (folder / "thesis.txt").read_text() == "all of it"


def test_numbers_that_are_not_there_are_null():
    assert numbers(np.array([1.5, np.nan, np.inf])) == [1.5, None, None]  # JSON has no nan


def test_what_a_run_says_of_itself(world, tmp_path):
    run, _ = train_run("bc", world, tmp_path / "run", **SMALL)
    config = json.loads((run.path / "config.json").read_text())
    assert config["settings"]["method"] == "bc"
    assert config["settings"]["data"]["fingerprint"] == world.fingerprint
    assert {"trajstitch", "jax", "python"} <= config["versions"].keys()
    # The policy file needs nothing of the run beside it.
    shutil.move(run.path / "policy.npz", tmp_path / "alone.npz")
    assert load_policy(tmp_path / "alone.npz").count == 2


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize(("setting", "sentence"), [("seeds", "seeds must"), ("every", "checkpoint every")])
def test_impossible_runs_leave_nothing(world, tmp_path, setting, sentence, value):
    with pytest.raises(InputError, match=sentence):
        train_run("bc", world, tmp_path / "run", **{**SMALL, setting: value})
    assert not (tmp_path / "run").exists()
