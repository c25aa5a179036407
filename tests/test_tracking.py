"""Trackers are told what the run directory records; without their packages a sentence says what to install."""

import json
import sys

import pytest

from trajstitch.cli import main

pytestmark = pytest.mark.filterwarnings("ignore")  # the trackers' own
TRAIN = ["--steps", "4", "--every", "2", "--seeds", "2", "--no-evaluation", "--quiet"]


def train(hdf5, out, kind):
    return main(["train", "bc", str(hdf5), "--out", str(out), *TRAIN, "--track", kind])


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
