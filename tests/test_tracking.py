"""Trackers are told what the run directory records; without their packages a sentence says what to install."""

import json
import sys
from contextlib import contextmanager

import numpy as np
import pytest

from trajstitch import tracking
from trajstitch.bench.grid import Cell
from trajstitch.cli import bench, main

pytestmark = pytest.mark.filterwarnings("ignore")  # the trackers' own
# The sizes of tests/jobs/test_overwrite.py, so that compiled programs are shared.
IMPROVE = ["--iterations", "1", "--dynamics.members", "1", "--dynamics.elites", "1", "--quiet"]
IMPROVE += [f"--{model}.fit.steps=1" for model in ("dynamics", "inverse", "reward", "value")]
TRAIN = ["--steps", "4", "--every", "2", "--seeds", "2", "--no-evaluation", "--quiet"]


def train(hdf5, out, kind):
    return main(["train", "bc", str(hdf5), "--out", str(out), *TRAIN, "--track", kind])


@pytest.fixture
def tracked(monkeypatch):
    """What a tracker is told, in place of TensorBoard: step, name and number."""
    told = []

    @contextmanager
    def tracker(target, settings):
        told.append("opened")
        yield lambda step, numbers: told.extend((step, name, number) for name, number in numbers.items())

    monkeypatch.setattr(tracking, "_tensorboard", tracker)
    return told


def test_bench_tells_the_returns_of_the_cells_that_it_finishes(tmp_path, tracked, monkeypatch):
    words = ["bench", "smoke", "--out", str(tmp_path / "out"), "--steps", "4", "--seeds", "1", "--workers", "1"]
    words += ["--quiet", "--track", "tensorboard", "--methods"]
    assert main([*words, "bc"]) == 0
    record = json.loads((tmp_path / "out" / "records" / "demo" / "bc.json").read_text())
    means = [pytest.approx(np.mean(returns)) for returns in record["returns"]]
    assert tracked == ["opened", *((s, "returns/demo/bc", m) for s, m in zip(record["step"], means, strict=True))]
    tracked.clear()
    assert main([*words, "bc", "percent-bc"]) == 0
    assert {name for _, name, _ in tracked[1:]} == {"returns/demo/percent-bc"}  # the old cell is there already


def test_bench_opens_its_tracker_before_anything_is_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    words = ["bench", "smoke", "--out", str(tmp_path / "out"), "--methods", "bc", "--workers", "1", "--quiet"]
    assert main([*words, "--track", "tensorboard"]) == 2
    assert "run pip install 'trajstitch[track]'" in capsys.readouterr().err
    assert not (tmp_path / "out" / "data").exists()


def test_improve_tells_losses_and_what_each_iteration_did(hdf5, tmp_path, tracked):
    words = ["improve", str(hdf5), "--out", str(tmp_path / "run"), "--preset", "quick", *IMPROVE]
    assert main([*words, "--track", "tensorboard"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    for name, kind in (("train loss", "train"), ("held-out loss", "held_out")):
        losses = [(line["step"], f"{line['model']}/{name}", pytest.approx(np.mean(line[kind]))) for line in lines]
        assert [one for one in tracked[1:] if one[1].endswith(name)] == losses
    (entry,) = json.loads((tmp_path / "run" / "result.json").read_text())["iterations"]
    assert tracked[-2:] == [(1, f"iterations/{key}", entry[key]) for key in ("accepted", "return_mean")]


def test_weigh_tells_the_losses_of_its_critics(hdf5, tmp_path, tracked):
    words = ["weigh", str(hdf5), "--out", str(tmp_path / "better.npz"), "--preset", "quick", "--quiet"]
    words += ["--fit.steps", "4", "--fit.batch", "4", "--width", "4", "--members", "2", "--track", "tensorboard"]
    assert main(words) == 0
    lines = (tmp_path / "better.npz.weigh" / "metrics.jsonl").read_text().splitlines()
    told = [(step, number) for step, name, number in tracked[1:] if name == "loss/seed 1"]
    assert told == [(line["step"], pytest.approx(line["loss"][1])) for line in map(json.loads, lines)]


def test_a_number_that_was_not_finite_is_told_as_nan(tracked):
    record = {"step": [10], "train": [[None, 1.0]], "test": [[2.0, 4.0]]}
    with tracking.tracking("tensorboard", "out", {}) as log:
        bench._log(Cell("hopper-medium", "reward-mlp"), record, log)
    (_, _, train), test = tracked[1:]
    assert np.isnan(train)
    assert test == (10, "test/hopper-medium/reward-mlp", 3.0)


def test_tensorboard_shows_the_losses_that_are_recorded(hdf5, tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: pip install 'trajstitch[track]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert train(hdf5, tmp_path / "run", "tensorboard") == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    events = EventAccumulator(str(tmp_path / "run.track"))
    events.Reload()
    for seed in range(2):
        shown = [(event.step, event.value) for event in events.Scalars(f"loss/seed {seed}")]
        assert shown == [(line["step"], pytest.approx(line["loss"][seed])) for line in lines]
    assert [event.step for event in events.Scalars("loss")] == [2, 4]


def test_weights_and_biases_works_offline(hdf5, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'trajstitch[track]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert train(hdf5, tmp_path / "run", "wandb") == 0
    files = list((tmp_path / "run.track").rglob("*.wandb"))
    assert [file.stat().st_size > 0 for file in files] == [True]


@pytest.mark.parametrize(("kind", "package"), [("tensorboard", "tensorboard.compat.proto"), ("wandb", "wandb")])
def test_without_its_package_a_sentence_names_the_extra(kind, package, hdf5, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    assert train(hdf5, tmp_path / "run", kind) == 2
    assert "run pip install 'trajstitch[track]'" in capsys.readouterr().err
