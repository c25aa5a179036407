"""Environments that files name: only registered ones are made, so a file cannot import a module."""

import dataclasses
import sys

import pytest

from trajstitch.cli import main
from trajstitch.errors import InputError
from trajstitch.evaluation.envs import env_bounds, env_named_in
from trajstitch.formats import save
from trajstitch.methods.train import train
from trajstitch.policies.policy_files import save_policy

TRAIN = ["--steps", "2", "--batch", "4", "--width", "4", "--seeds", "1", "--quiet"]


@pytest.fixture
def evil(data, tmp_path, monkeypatch):
    """A module that a file names; importing it leaves a trace."""
    (tmp_path / "evilmod.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return dataclasses.replace(data, info={"env_id": "evilmod:Foo-v0"})


def refused(capsys):
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "'evilmod:Foo-v0', which is not registered here" in error
    assert "evilmod" not in sys.modules
    return True


def test_data_cannot_import_a_module(evil, capsys):
    save(evil, "evil.npz")
    assert main(["train", "bc", "evil.npz", "--out", "run", *TRAIN]) == 2
    assert refused(capsys)
    assert main(["inspect", "evil.npz", "--quiet"]) == 0
    assert "evilmod" not in sys.modules
    with pytest.raises(InputError, match="not registered"):
        env_bounds(evil)


def test_a_policy_or_a_run_cannot_import_a_module(evil, capsys):
    save_policy(train("bc", evil, steps=1, width=4), "policy.npz", evil.info)
    assert main(["evaluate", "policy.npz"]) == 2
    assert refused(capsys)
    save(evil, "evil.npz")
    assert main(["train", "bc", "evil.npz", "--out", "run", "--no-evaluation", *TRAIN]) == 0
    assert main(["evaluate", "run"]) == 2
    assert refused(capsys)


def test_what_the_user_types_may_be_imported(data, tmp_path, monkeypatch, capsys):
    (tmp_path / "goodmod.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Good-v0', 'gymnasium.envs.mujoco.inverted_pendulum_v5:InvertedPendulumEnv', "
        "max_episode_steps=3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    save(data, tmp_path / "data.npz")
    out = str(tmp_path / "run")
    assert main(["train", "bc", str(tmp_path / "data.npz"), "--out", out, "--env", "goodmod:Good-v0", *TRAIN]) == 2
    assert "the data have 4 observations and 2 actions, but goodmod:Good-v0 has 4 and 1" in capsys.readouterr().err
    assert "goodmod" in sys.modules
    assert env_named_in({"env_id": "Good-v0"}) == "Good-v0"  # registered now


def test_a_file_may_name_no_environment():
    assert env_named_in({}) is None
    assert env_named_in({"env_id": ""}) is None
    assert env_named_in({"env_id": "Hopper-v5"}) == "Hopper-v5"
