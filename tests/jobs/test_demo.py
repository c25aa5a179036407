"""The demo, whole, with tiny models on a part of its data."""

import dataclasses
import json

import numpy as np

from trajstitch.cli import main
from trajstitch.formats import load
from trajstitch.jobs import demo
from trajstitch.training.loop import Fit


def tiny(config):
    """The same settings with a few steps of small networks."""
    models = {
        name: dataclasses.replace(getattr(config, name), width=8, fit=Fit(steps=5))
        for name in ("dynamics", "inverse", "reward", "value")
    }
    return dataclasses.replace(config, iterations=1, **models)


def test_the_demo_tells_the_whole_story(tmp_path, monkeypatch, capsys):
    improve_run = demo.improve_run
    monkeypatch.setattr(demo, "load", lambda name: load(name)[:20])
    monkeypatch.setattr(
        demo, "improve_run", lambda data, config, *rest, **more: improve_run(data, tiny(config), *rest, **more)
    )
    words = ["demo", "--out", str(tmp_path), "--steps", "2", "--seeds", "1", "--episodes", "1", "--json"]
    assert main(words) == 0
    out = capsys.readouterr().out
    result = json.loads(out.splitlines()[-1])
    assert result.keys() == {"bc", "percent_bc", "ts_bc", "seconds"}
    assert np.isfinite(list(result.values())).all()
    for title in ("BC", "10% BC", "TS + BC"):
        assert title in out
    assert (tmp_path / "improve" / "report.html").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"improve", "bc", "percent-bc", "ts-bc"}
