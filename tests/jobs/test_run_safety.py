"""Run directories: one process at a time, nothing damaged or foreign is used, strict JSON, sound checkpoints."""

import dataclasses
import json
import logging
import os
import re
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import trajstitch as ts
from trajstitch.cli import main
from trajstitch.errors import InputError
from trajstitch.formats import save
from trajstitch.jobs import improve as improving
from trajstitch.jobs import weigh as weighing
from trajstitch.jobs.audit import audit_into_run
from trajstitch.jobs.improve import Stages
from trajstitch.jobs.run_dir import Run
from trajstitch.jobs.train import train_run
from trajstitch.storage.archive import INFO, read_arrays, write_arrays
from trajstitch.storage.atomic import json_text, write_json
from trajstitch.storage.lock import holding

SETTINGS = {"method": "bc", "config": {"fit": {"steps": 4}}, "seed": 0, "data": {"info": {}}}
# The sizes of test_overwrite.py, so that compiled programs are shared.
IMPROVE = ["--iterations", "1", "--dynamics.members", "1", "--dynamics.elites", "1", "--quiet"]
IMPROVE += [f"--{model}.fit.steps=1" for model in ("dynamics", "inverse", "reward", "value")]
HOLD = "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.flock(f, 2); print('held', flush=True); input()"


def strict(text: str):
    """Parse JSON as every parser does: no NaN, no Infinity."""
    return json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


# -- locks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["train bc", "improve", "weigh", "evaluate"])
def test_a_second_process_is_refused_and_told_who_is_first(command, data, tmp_path, capsys):
    save(data, tmp_path / "data.npz")
    words = [*command.split(), str(tmp_path / "data.npz"), "--out", str(tmp_path / "run")]
    if command == "weigh":
        words = [
            "weigh",
            str(tmp_path / "data.npz"),
            "--out",
            str(tmp_path / "w.npz"),
            "--run-dir",
            str(tmp_path / "run"),
        ]
    if command == "evaluate":
        Run.open(tmp_path / "run", SETTINGS)
        words = ["evaluate", str(tmp_path / "run"), "--env", "InvertedPendulum-v5"]
    with holding(tmp_path / "run"):
        before = sorted(path.name for path in (tmp_path / "run").iterdir())
        assert main([*words, "--quiet"]) == 2
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(
        rf"run is in use by process {os.getpid()} on \S+ since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d; ", error
    )


def test_an_audit_is_not_written_into_a_run_at_work(tmp_path):
    run = Run.open(tmp_path / "run", {"config": {}, "data": {}})
    with holding(run.path), pytest.raises(InputError, match="in use by process"):
        audit_into_run(run, None)
    assert not (run.path / "audit.json").exists()


def test_the_lock_of_a_dead_process_is_no_obstacle(tmp_path):
    file = tmp_path / "run" / ".lock"
    file.parent.mkdir()
    file.write_text('{"pid": 1, "host": "here", "since": "2020-01-01 00:00:00"}')
    other = subprocess.Popen([sys.executable, "-c", HOLD, file], stdout=-1, stdin=-1)
    assert other.stdout.readline() == b"held\n"
    with pytest.raises(InputError, match="process 1 on here since 2020-01-01 00:00:00"), holding(file.parent):
        pass
    other.kill()
    other.communicate()
    assert file.exists()
    with holding(file.parent):
        assert json.loads(file.read_text())["pid"] == os.getpid()
    assert list(file.parent.iterdir()) == []


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    Run.open(tmp_path, SETTINGS)
    (tmp_path / "stages").mkdir()
    (tmp_path / ".policy.npz.12345678.part").write_text("half")
    (tmp_path / "stages" / ".graph.npz.12345678.part").write_text("half")
    with Run.working(tmp_path, SETTINGS):
        assert not list(tmp_path.rglob("*.part"))


# -- JSON ---------------------------------------------------------------------------------------------------------


def test_json_has_no_nan(tmp_path):
    value = {
        "a": [1.5, np.nan, (np.inf, "NaN")],
        "b": {"c": -np.inf},
        "d": True,
        "e": None,
        "f": np.float64(np.nan),
    }
    plain = {"a": [1.5, None, [None, "NaN"]], "b": {"c": None}, "d": True, "e": None, "f": None}
    assert strict(json_text(value)) == plain
    write_json(tmp_path / "x.json", value)
    assert strict((tmp_path / "x.json").read_text()) == plain
    run = Run.open(tmp_path / "run", SETTINGS)
    run.record(1, loss=[np.inf])
    assert strict((tmp_path / "run" / "metrics.jsonl").read_text()) == {"step": 1, "loss": [None]}


def test_rewards_of_any_size_leave_strict_json(data, tmp_path, capsys):
    large = dataclasses.replace(data, reward=data.reward * np.float32(1e30))
    save(large, tmp_path / "large.npz")
    words = ["improve", str(tmp_path / "large.npz"), "--out", str(tmp_path / "run"), *IMPROVE]
    assert main([*words, "--json"]) == 0
    strict(capsys.readouterr().out)
    for file in (tmp_path / "run").glob("*.json*"):
        for part in file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]:
            strict(part)
    assert "seconds" not in (tmp_path / "run" / "result.json").read_text()
    assert len(json.loads((tmp_path / "run" / "timings.json").read_text())["iterations"]) == 1


# -- stages and states ------------------------------------------------------------------------------------------


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    return content[:200] + bytes([content[200] ^ 255]) + content[201:]


def emptied(content: bytes) -> bytes:
    return b""


@pytest.fixture
def stage(tmp_path):
    """A function that runs one stage and returns what it made, and whether it was made now."""

    def run(fingerprint: str = "data", seed: int = 0, key: str = "settings") -> tuple[list[float], bool]:
        made = []
        stages = Stages(tmp_path, fingerprint, seed)
        return stages("graph", key, lambda: made.append(1) or {"x": np.arange(3.0)})["x"].tolist(), bool(made)

    return run


def test_a_stage_is_used_again_only_by_the_same_run_and_version(stage, monkeypatch):
    assert stage() == ([0, 1, 2], True)
    assert stage() == ([0, 1, 2], False)
    for other in ({"fingerprint": "other"}, {"seed": 1}, {"key": "other"}):
        assert stage(**other)[1]
        assert stage()[1]  # and back
    monkeypatch.setattr(improving, "__version__", "0.0.1")
    assert stage()[1]
    assert not stage()[1]


@pytest.mark.parametrize("damage", [truncated, flipped, emptied])
def test_a_damaged_stage_is_named_set_aside_and_made_again(stage, damage, tmp_path, caplog):
    stage()
    file = tmp_path / "stages" / "graph.npz"
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    with caplog.at_level(logging.WARNING):
        assert stage() == ([0, 1, 2], True)
    assert f"{file}: cannot be used" in caplog.text
    assert "set aside as graph.npz.damaged" in caplog.text
    assert (tmp_path / "stages" / "graph.npz.damaged").read_bytes() == damage(whole)
    assert file.read_bytes() == whole


def test_a_pipe_in_the_place_of_a_stage_is_not_waited_for(stage, tmp_path, caplog):
    stage()
    file = tmp_path / "stages" / "graph.npz"
    file.unlink()
    os.mkfifo(file)
    assert stage() == ([0, 1, 2], True)
    assert "this is a pipe or a device" in caplog.text
    assert file.is_file()


def test_a_state_of_another_run_is_not_used(tmp_path, caplog):
    fresh, trained = {"w": jnp.zeros(3)}, {"w": jnp.ones(3)}
    run = Run.open(tmp_path / "a", SETTINGS)
    run.save_state(trained)
    assert run.load_state(fresh)["w"].tolist() == [1, 1, 1]
    other = Run.open(tmp_path / "b", SETTINGS | {"seed": 1})
    os.link(run.path / "state.npz", other.path / "state.npz")
    assert other.load_state(fresh) is fresh
    assert "other settings or from other data" in caplog.text
    assert run.load_state({"w": jnp.zeros(4)})["w"].tolist() == [0] * 4  # of another shape
    run.save_state(trained)
    (run.path / "state.npz").write_bytes(truncated((run.path / "state.npz").read_bytes()))
    assert run.load_state(fresh) is fresh
    assert run.prepared(lambda: {"m": np.ones(2)})["m"].tolist() == [1, 1]
    os.link(run.path / "prepared.npz", other.path / "prepared.npz")
    assert run.prepared(lambda: pytest.fail("made again"))["m"].tolist() == [1, 1]
    assert other.prepared(lambda: {"m": np.zeros(2)})["m"].tolist() == [0, 0]
    assert sorted(path.name for path in other.path.glob("*.damaged")) == [
        "prepared.npz.damaged",
        "state.npz.damaged",
    ]


def test_a_damaged_appraisal_is_made_again(data, tmp_path, caplog, monkeypatch):
    config = ts.Weigh(members=2, width=4, depth=1, fit=ts.Fit(4, 4))
    run, weighed, _ = weighing.weigh_run(data, config, tmp_path / "run")
    file = run.path / "appraisal.npz"
    whole = file.read_bytes()
    file.write_bytes(flipped(whole))
    _, again, _ = weighing.weigh_run(data, config, tmp_path / "run")
    assert "appraisal.npz: cannot be used" in caplog.text
    assert file.read_bytes() == whole
    np.testing.assert_array_equal(weighed.weight, again.weight)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda arrays: arrays | {"advantage": arrays["advantage"][:, 1:]}, "advantage is float32 of shape"),
        (lambda arrays: arrays | {"advantage": arrays["advantage"][:1]}, "advantage is float32 of shape"),
        (lambda arrays: arrays | {"value": arrays["value"].astype(int)}, "value is int64 of shape"),
        (lambda arrays: arrays | {"value": np.full_like(arrays["value"], np.nan)}, r"value\[0\] is nan"),
    ],
)
def test_an_appraisal_that_does_not_fit_is_made_again(data, tmp_path, caplog, change, why):
    config = ts.Weigh(members=2, width=4, depth=1, fit=ts.Fit(4, 4))
    run, weighed, _ = weighing.weigh_run(data, config, tmp_path / "run")
    arrays = read_arrays(run.path / "appraisal.npz")
    info = json.loads(str(arrays.pop(INFO)))
    write_arrays(run.path / "appraisal.npz", change(arrays), info, overwrite=True)
    _, again, _ = weighing.weigh_run(data, config, tmp_path / "run")
    assert re.search(f"appraisal.npz: cannot be used .*{why}", caplog.text)
    np.testing.assert_array_equal(weighed.weight, again.weight)


# -- divergence ---------------------------------------------------------------------------------------------------


def test_the_last_sound_checkpoint_is_kept_when_training_diverges(data, tmp_path):
    small = {"steps": 4, "every": 2, "batch": 4, "width": 4}

    def stop(done, total, note=""):
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_run("bc", data, tmp_path, tell=stop, **small)
    run = Run.existing(tmp_path)
    sound = run.checkpoint(2).read_bytes()
    file = tmp_path / "state.npz"
    with np.load(file) as archive:
        arrays = dict(archive)
    first = next(name for name, array in arrays.items() if array.dtype == np.float32 and array.ndim == 3)
    arrays[first] = np.full_like(arrays[first], 3e38)
    with file.open("wb") as out:
        np.savez(out, **arrays)
    with pytest.raises(
        InputError, match=r"training of BC diverged: .* after 4 steps; lower the rate \(now 0.001\)"
    ):
        train_run("bc", data, tmp_path, **small)
    assert run.steps() == [2]
    assert run.checkpoint(2).read_bytes() == sound
    assert not (tmp_path / "policy.npz").exists()
    assert [line["step"] for line in run.metrics()] == [2]
