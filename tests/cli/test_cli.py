"""The command line end to end: every command, every mistake, in one sentence and with exit code 2."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.cli import main
from trajstitch.evaluation.collect import collect
from trajstitch.formats import load, save
from trajstitch.jobs.run_dir import Run
from trajstitch.policies.policy import Policy
from trajstitch.policies.policy_files import save_policy
from trajstitch.training.networks import Range, Scale
from worlds import changed


@pytest.fixture
def call(capsys):
    def call(*words):
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def result(call):
    def result(*words):
        code, out, err = call(*words, "--json")
        assert code == 0, err
        return json.loads(out.splitlines()[-1])

    return result


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    path = tmp_path_factory.mktemp("pendulum") / "pendulum.hdf5"
    save(collect("random", "InvertedPendulum-v5", 400), path)
    return path


SMALL = ("--steps", 40, "--every", 20, "--seeds", 2, "--width", 8, "--batch", 16, "--episodes", 2)


def test_inspect(result, call, hdf5):
    summary = result("inspect", hdf5)
    assert (summary["episodes"], summary["transitions"]) == (4, 17)
    code, out, _ = call("inspect", hdf5)
    assert code == 0
    for word in ("episodes", "length", "return", "duplicate states", "action range", "memory", "│"):
        assert word in out
    assert call("inspect", hdf5, "--quiet")[1] == ""


def test_the_environment_can_be_named(result, call, hdf5, tmp_path):
    data = collect("random", "Hopper-v5", 50)
    nameless, named = tmp_path / "nameless.npz", tmp_path / "named.npz"
    save(dataclasses.replace(data, info={}), nameless)
    assert result("inspect", nameless)["normalised_return"] is None
    assert "not named in the data" in call("inspect", nameless)[1]
    assert result("inspect", nameless, "--env", "Hopper-v5")["normalised_return"] is not None
    result("convert", nameless, named, "--env", "Hopper-v5", "--physics", "d4rl")
    assert (load(named).info["env_id"], load(named).info["physics"]) == ("Hopper-v5", "d4rl")
    assert load(named).fingerprint == data.fingerprint


def test_convert_there_and_back(result, hdf5, tmp_path, data):
    for a, b in ((hdf5, "x.traj"), (tmp_path / "x.traj", "y.npz"), (tmp_path / "y.npz", "z.h5")):
        assert result("convert", a, tmp_path / b)["fingerprint"] == data.fingerprint
    assert load(tmp_path / "z.h5").fingerprint == data.fingerprint


def test_collect_train_evaluate(result, call, tmp_path, pendulum):
    out = tmp_path / "run"
    trained = result("train", "bc", pendulum, "--out", out, *SMALL)
    assert trained["last"]["seeds"] == 2
    assert trained["best"]["raw"]["mean"] >= trained["last"]["raw"]["mean"]
    scored = result("evaluate", out, "--episodes", 2)
    assert scored["last"] == trained["last"]
    alone = result("evaluate", out / "policy.npz", "--episodes", 3)  # its file names the environment
    assert alone["env"] == "InvertedPendulum-v5"
    alone = result("evaluate", out / "policy.npz", "--env", "InvertedPendulum-v5", "--episodes", 3)
    assert (alone["seeds"], alone["episodes"], alone["normalised"]) == (2, 3, None)
    collected = result(
        "collect", "--mix", "random:0.5", "random:0.5", "--env", "InvertedPendulum-v5", "--steps", 60,
        "--out", tmp_path / "more.npz",
    )  # fmt: skip
    assert load(tmp_path / "more.npz").transitions == collected["transitions"] >= 60
    _, text, _ = call("evaluate", out, "--episodes", 2)
    assert "last" in text
    assert "best" in text


def test_one_seed_has_no_spread_and_an_unfinished_run_says_so(call, result, tmp_path, pendulum):
    out = tmp_path / "run"
    words = ("train", "bc", pendulum, "--out", out, *SMALL[:4], "--width", 8, "--batch", 16)
    assert result(*words, "--seeds", 1, "--episodes", 1)["last"]["raw"]["std_over_seeds"] is None
    assert "1 seed × 1 episode" in call("evaluate", out, "--episodes", 1)[1]
    (out / "checkpoints" / "000000040.npz").unlink()
    said = " ".join(call("evaluate", out, "--episodes", 1)[1].split())
    assert "unfinished at step 20 of 40" in said


def test_a_run_of_another_job_is_never_replaced(call, tmp_path, pendulum):
    run = Run.open(tmp_path / "better", {"config": {}, "seed": 0, "data": {"info": {}}})
    (run.path / "improved.hdf5").write_text("hours of work")
    code, _, err = call("train", "bc", pendulum, "--out", run.path, *SMALL, "--overwrite")
    assert code == 2
    assert "holds a run of improve, not of train" in err
    assert (run.path / "improved.hdf5").read_text() == "hours of work"
    code, _, err = call("evaluate", run.path)
    assert code == 2
    assert "is a run of improve; train on" in err


def test_percent_and_gaussian(result, tmp_path, pendulum):
    for method in ("percent-bc", "gaussian-bc"):
        done = result("train", method, pendulum, "--out", tmp_path / method, *SMALL, "--no-evaluation")
        assert "last" not in done
        assert (tmp_path / method / "policy.npz").exists()


def test_settings_of_single_methods(result, tmp_path, pendulum):
    tiny = ("--steps", 6, "--every", 3, "--seeds", 1, "--width", 4, "--depth", 1, "--batch", 4, "--no-evaluation")
    words = ("--expectile", 0.8, "--discount", 0.9)
    result("train", "iql", pendulum, "--out", tmp_path / "iql", *tiny, *words)
    config = json.loads((tmp_path / "iql" / "config.json").read_text())["settings"]["config"]
    assert (config["expectile"], config["discount"], config["temperature"]) == (0.8, 0.9, 3.0)
    words = (pendulum, pendulum, "--switch", 4, "--freeze-critic", "--rule", "hopper-medium")
    result("train", "td3tsbc", *words, "--out", tmp_path / "td3", *tiny)
    settings = json.loads((tmp_path / "td3" / "config.json").read_text())["settings"]
    config = settings["config"]
    assert (config["switch"], config["freeze_critic"], config["rule"]) == (4, True, "hopper-medium")
    assert settings["improved"]["fingerprint"] == load(pendulum).fingerprint
    assert len(list((tmp_path / "td3" / "checkpoints").iterdir())) == 3  # at 3, the switch and the end


def test_planners_from_the_command_line(result, tmp_path, pendulum):
    tiny = ("--steps", 4, "--every", 2, "--seeds", 2, "--width", 4, "--batch", 4, "--samples", 4, "--episodes", 2)
    words = ("--rule", "hopper-expert", "--beta", 0.5, "--plan-horizon", 2)
    done = result("train", "mbop", pendulum, "--out", tmp_path / "mbop", *tiny, *words)
    config = json.loads((tmp_path / "mbop" / "config.json").read_text())["settings"]["config"]
    assert [config[name] for name in ("rule", "plan_horizon", "samples", "beta", "kappa")] == [
        *("hopper-expert", 2, 4, 0.5, None)
    ]
    assert result("evaluate", tmp_path / "mbop", "--episodes", 2) == {k: done[k] for k in ("last", "best")}
    alone = result("evaluate", tmp_path / "mbop" / "policy.npz", "--episodes", 2, "--seed", 10_000)
    assert alone["raw"]["per_seed"] == done["last"]["raw"]["per_seed"]
    where = ("--env", "InvertedPendulum-v5", "--steps", 20, "--out", tmp_path / "planned.npz")
    assert result("collect", tmp_path / "mbop", *where)["transitions"] >= 20
    result("train", "tsmbop", pendulum, pendulum, "--out", tmp_path / "ts", *tiny, "--no-evaluation")


def test_diffuser_from_the_command_line(result, tmp_path, pendulum):
    tiny = ("--steps", 2, "--every", 2, "--seeds", 2, "--width", 8, "--depth", 2, "--blocks", 1, "--batch", 4)
    words = ("--plan-horizon", 4, "--diffusion-steps", 3, "--samples", 2, "--guide-scale", 0.5, "--episodes", 2)
    done = result("train", "diffuser", pendulum, "--out", tmp_path / "run", *tiny, *words)
    config = json.loads((tmp_path / "run" / "config.json").read_text())["settings"]["config"]
    assert [config[name] for name in ("plan_horizon", "samples", "guide_scale", "ema")] == [4, 2, 0.5, 0.995]
    assert result("evaluate", tmp_path / "run", "--episodes", 2) == {k: done[k] for k in ("last", "best")}


# -- mistakes -----------------------------------------------------------------------------------------------------


def nan_file(path):
    rewards = np.zeros(17, np.float32)
    rewards[4] = np.nan
    return changed(path, rewards=rewards)


def truncated(path):
    path.write_bytes(path.read_bytes()[:900])
    return path


def integers(path):
    return changed(path, actions=np.zeros((17, 2), np.int32))


def cube(path):
    return changed(path, observations=np.zeros((17, 2, 2), np.float32))


def uneven(path):
    return changed(path, rewards=np.zeros(9, np.float32))


def keyless(path):
    return changed(path, terminals=None)


def not_hdf5(path):
    path.write_text("hello")
    return path


def empty(path):
    path.write_bytes(b"")
    return path


def gone(path):
    path.unlink()
    return path


BAD = {
    gone: "no such file",
    not_hdf5: "not an HDF5 file",
    empty: "not an HDF5 file, or it is empty",
    truncated: "truncated or damaged",
    keyless: "the key 'terminals' is missing",
    uneven: "rewards has 9 rows but actions has 17",
    nan_file: "rewards[4] is nan",
    integers: "actions are int32",
    cube: "observations has 3 dimensions",
}


@pytest.mark.parametrize("spoil", BAD)
@pytest.mark.parametrize("command", ["inspect", "convert", "train"])
def test_bad_files(call, hdf5, tmp_path, spoil, command):
    path = spoil(hdf5)
    before = sorted(tmp_path.rglob("*")), path.read_bytes() if path.exists() else None
    more = {"inspect": [], "convert": [tmp_path / "out.npz"], "train": ["--out", tmp_path / "out"]}[command]
    words = [command, *(["bc"] if command == "train" else []), path, *more]
    code, out, err = call(*words)
    assert code == 2
    assert err.startswith("trajstitch: ")
    assert BAD[spoil] in err
    assert str(path) in err
    assert err.count("\n") == 1
    assert out == ""
    assert (sorted(tmp_path.rglob("*")), path.read_bytes() if path.exists() else None) == before


def test_zero_length_episodes(call, tmp_path, data):
    arrays = {name: getattr(data, name) for name in ("obs", "action", "reward", "start", "terminal")}
    np.savez(tmp_path / "x.npz", **{**arrays, "start": np.array([0, 5, 5, 14, 17])})
    code, _, err = call("inspect", tmp_path / "x.npz")
    assert code == 2
    assert "trajectory 1 has no step" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("train", "bc", "DATA", "--out", "OUT", "--env", "Nowhere-v0"), "Nowhere"),
        (("train", "bc", "DATA", "--out", "OUT", "--env", "Hopper-v5"), "but Hopper-v5 has 11 and 3"),
        (("train", "bc", "DATA", "--out", "OUT", "--env", "CartPole-v1"), "CartPole-v1"),
        (("train", "bc", "DATA", "--out", "OUT", "--steps", "0"), "at least 1"),
        (("train", "bc", "DATA", "--out", "OUT", "--percent", "200"), "at most 100"),
        (("train", "td3tsbc", "DATA", "DATA", "--out", "OUT", "--rule", "ant"), "no rule 'ant'"),
        (("train", "td3tsbc", "DATA", "demo", "--out", "OUT"), "data of one environment"),
        (("train", "mbop", "DATA", "--out", "OUT", "--beta", "1"), "beta must be from 0 to below 1"),
        (("train", "bc", "DATA", "--out", "OUT", "--rate", "0"), "rate must be above 0, not 0"),
        (("convert", "DATA", "DATA", "--overwrite"), "is or lies in the output"),
        (("convert", "DATA", "FILE"), "exists already; choose another name or pass --overwrite"),
        (("convert", "DATA", "OUT.npz", "--env", "Hopper-v5"), "but Hopper-v5 has 11 and 3"),
        (("inspect", "DATA", "--env", "Hopper-v5"), "but Hopper-v5 has 11 and 3"),
        (
            ("collect", "--mix", "a.npz:0.5", "--env", "Hopper-v5", "--steps", "5", "--out", "OUT.npz"),
            "not a.npz:0.5",
        ),
        (("convert", "DATA", "x.csv"), "names no format"),
        (("collect", "random", "--env", "Nowhere-v0", "--steps", "5", "--out", "OUT.npz"), "Nowhere"),
        (("collect", "random", "--env", "Hopper-v5", "--steps", "5", "--out", "DATA"), "exists already"),
        (("collect", "nobody.npz", "--env", "Hopper-v5", "--steps", "5", "--out", "OUT.npz"), "no such policy"),
        (("collect", "--env", "Hopper-v5", "--steps", "5", "--out", "OUT.npz"), "either one POLICY or --mix"),
        (("collect", "random", "--env", "Hopper-v5", "--out", "OUT.npz"), "give either --steps or --episodes"),
        (("collect", "--mix", "a", "--env", "Hopper-v5", "--steps", "5", "--out", "OUT.npz"), "FILE:SHARE"),
        (("evaluate", "OUT.npz", "--env", "Hopper-v5"), "no such policy"),
        (("evaluate", "nowhere.npz"), "no such policy"),
        (("evaluate", "DATA"), "carries no policy"),
        (("evaluate", "FILE"), "names no environment; give --env"),
        (("collect", "random", "--env", "Hopper-v5", "--steps", "5", "--out", "x.csv"), "names no format"),
        (("collect", "random", "--env", "Nowhere-v0", "--steps", "5", "--out", "NEW/x.npz"), "check the id"),
        (
            ("collect", "random", "--env", "Hopper-v5", "--steps", "5", "--out", "OUT.npz", "--seed", "-1"),
            "--seed must be at least 0, not",
        ),
        (("inspect", "DATA", "--episode-horizon", "5"), "leave --episode-horizon out"),
        (("evaluate", "FOLDER"), "not a run directory"),
        (("inspect", "minari:no such id"), "minari:no such id"),
    ],
)
def test_mistakes(call, hdf5, tmp_path, words, sentence):
    place = {"DATA": hdf5, "OUT": tmp_path / "out", "OUT.npz": tmp_path / "out.npz", "FOLDER": tmp_path,
             "NEW/x.npz": tmp_path / "new" / "sub" / "x.npz", "FILE": tmp_path / "policy.npz"}  # fmt: skip
    save_policy(Policy.init(Scale.unit(3), Range(-jnp.ones(2), jnp.ones(2)), jax.random.key(0)), place["FILE"])
    before = sorted(tmp_path.rglob("*"))
    code, out, err = call(*[place.get(word, word) for word in words])
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_usage_mistakes_exit_with_2():
    for words in (
        ["inspect"],
        ["train", "bc", "x", "--out", "y", "--alpha", "1"],  # a setting of another method
        ["train", "iql", "x", "y", "--out", "z"],  # takes one data set
        ["train", "td3tsbc", "x", "--out", "y"],  # takes two
        ["train", "tsmbop", "x", "--out", "y"],
    ):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 2
    for words in (["no-such-command"], ["train", "ppo", "x"], []):
        assert main(words) == 2


def test_unwritable_folder(call, hdf5, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *a: False)
    code, _, err = call("convert", hdf5, tmp_path / "x.npz")
    assert code == 2
    assert "can be written to" in err


def test_the_input_is_never_written_to(call, hdf5):
    with h5py.File(hdf5, "r"):
        before = hdf5.read_bytes()
        assert call("inspect", hdf5)[0] == 0
        assert call("train", "bc", hdf5, "--out", hdf5.parent / "run", *SMALL)[0] == 0
    assert hdf5.read_bytes() == before


# -- the program as installed ---------------------------------------------------------------------------------


def python(*words: str, **options) -> subprocess.CompletedProcess[str]:
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.run([sys.executable, *words], text=True, timeout=60, **streams)


def test_a_reader_may_leave_early():
    read, write = os.pipe()
    os.close(read)
    done = python("-m", "trajstitch.cli", "train", "--help", stdout=write)
    os.close(write)
    assert done.returncode == 141
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["trajstitch", "trajstitch.cli"])
def test_importing_is_light(name):
    slow = f"import sys, {name}; print(sorted({{'jax', 'h5py', 'mujoco', 'gymnasium'}} & set(sys.modules)))"
    assert python("-c", slow).stdout.strip() == "[]"


def test_every_public_name_is_there():
    import trajstitch

    for name in trajstitch.__all__:
        assert getattr(trajstitch, name) is not None
    assert callable(trajstitch.train)
    assert callable(trajstitch.evaluate)
    assert set(trajstitch.__all__) <= set(dir(trajstitch))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        trajstitch.nothing  # noqa: B018


def test_the_installed_program(tmp_path):
    program = Path(sys.executable).with_name("trajstitch")
    done = subprocess.run([program, "inspect", "nothing.hdf5"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == (
        "trajstitch: nothing.hdf5: there is no such file; give a file (.hdf5, .h5, .npz, .traj), lerobot:FOLDER, "
        "robomimic:FILE, imitation:FOLDER, d4rl:NAME, minari:ID, hf:USER/NAME or demo\n"
    )
    assert subprocess.run([program, "--version"], capture_output=True).returncode == 0
    assert list(tmp_path.iterdir()) == []
