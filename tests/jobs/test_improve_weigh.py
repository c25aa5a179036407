"""Improving and weighing in one command: the improved data have weights, a rerun trains nothing again."""

import json

import numpy as np
import pytest

import trajstitch as ts
from trajstitch.cli import main
from trajstitch.data import effective_steps
from trajstitch.jobs import weigh as weighing
from trajstitch.methods.weigh import WEIGH_PRESETS
from worlds import random_dataset

MODELS = ("dynamics", "inverse", "reward", "value")
TINY = [f"--{model}.{name}" for model in MODELS for name in ("width=4", "fit.steps=2")]


def test_improve_weighs_what_it_made(tmp_path, monkeypatch):
    data = random_dataset(0, [6] * 6)
    ts.save(data, tmp_path / "data.npz")
    small = ts.Weigh(members=2, width=4, depth=1, fit=ts.Fit(4, 4))
    monkeypatch.setitem(WEIGH_PRESETS, "quick", small)
    words = ["improve", str(tmp_path / "data.npz"), "--out", str(tmp_path / "run"), "--preset", "quick", "--weigh"]
    words += ["--iterations=1", "--quiet", *TINY]
    assert main(words) == 0
    improved = ts.load(tmp_path / "run" / "improved.npz")
    assert improved.weight is not None
    assert effective_steps(improved.weight) / improved.transitions == pytest.approx(0.1, abs=0.05)
    assert improved.seams is not None
    assert "<h2>Weights</h2>" in (tmp_path / "run" / "report.html").read_text()
    settings = json.loads((tmp_path / "run" / "weigh" / "config.json").read_text())["settings"]
    assert settings["job"] == "weigh"
    monkeypatch.setattr(weighing, "train_critics", lambda *_: pytest.fail("trained again"))
    assert main(words) == 0
    np.testing.assert_array_equal(ts.load(tmp_path / "run" / "improved.npz").weight, improved.weight)
