"""The demos, whole, with tiny models on little data."""

import dataclasses
import json

import numpy as np
import pytest

from trajstitch.cli import main
from trajstitch.data import Trajectory, from_trajectories
from trajstitch.evaluation.mazes import OWN, make_maze
from trajstitch.formats import load
from trajstitch.jobs import demo
from trajstitch.training.loop import Fit

FEW = ["--steps", "2", "--seeds", "1", "--episodes", "1", "--json"]


def tiny(config):
    """The same settings with a few steps of small networks."""
    models = {
        name: dataclasses.replace(getattr(config, name), width=8, fit=Fit(steps=5))
        for name in ("dynamics", "inverse", "reward", "value", "world")
    }
    return dataclasses.replace(config, iterations=1, **models)


@pytest.fixture
def tiny_models(monkeypatch):
    improve_run = demo.improve_run
    monkeypatch.setattr(
        demo, "improve_run", lambda data, config, *rest, **more: improve_run(data, tiny(config), *rest, **more)
    )


def test_the_hopper_demo_tells_the_whole_story(tiny_models, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "load", lambda name: load(name)[:20])
    assert main(["demo", "hopper", "--out", str(tmp_path), *FEW]) == 0
    out = capsys.readouterr().out
    result = json.loads(out.splitlines()[-1])
    assert result.keys() == {"bc", "percent_bc", "ts_bc", "seconds"}
    assert np.isfinite(list(result.values())).all()
    for title in ("BC", "10% BC", "TS + BC"):
        assert title in out
    assert (tmp_path / "improve" / "report.html").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"improve", "bc", "percent-bc", "ts-bc"}


def test_the_maze_demo_tells_the_whole_story(tiny_models, tmp_path, monkeypatch, capsys):
    walk = demo.walk
    monkeypatch.setattr(demo, "walk", lambda env_id, steps, **more: walk(env_id, 3000, **more))
    assert main(["demo", "--out", str(tmp_path), *FEW]) == 0
    out = capsys.readouterr().out
    result = json.loads(out.splitlines()[-1])
    assert result.keys() == {
        *("bc", "percent_bc", "ts_bc", "steps_to_goal"),
        *("walks", "walks_from_start_to_goal", "seconds"),
    }
    assert result["walks"] >= 50
    assert result["walks_from_start_to_goal"] == 0
    assert " ".join(out.split()).count("none does both") == 1
    assert [line.count("█████") > 2 for line in out.splitlines()].count(True) > 3  # the picture
    assert len([line for line in out.splitlines() if line.startswith("█")]) == 9
    for title in ("BC", "10% BC", "TS + BC"):
        assert title in out
    page = (tmp_path / "improve" / "report.html").read_text()
    assert "Before and after" in page
    assert "What the simulator gives" in page
    assert main(["demo", "maze", "--out", str(tmp_path), *FEW, "--quiet"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["walks"] == result["walks"]


def test_a_size_below_one_is_refused(capsys):
    assert main(["demo", "--steps", "0"]) == 2
    assert "--steps must be at least 1, not 0" in capsys.readouterr().err


def test_walks_that_pass_the_start_and_reach_the_goal_are_counted():
    env = make_maze(OWN, 1)
    start, goal, corner = env.centre_of(env.maze.start[0]), env.goal, env.centre_of((1, 1))
    env.close()

    def through(*places, terminal):
        steps = len(places) - 1
        return Trajectory(np.array(places), np.zeros((steps, 2)), -np.ones(steps), terminal)

    walks = [
        through(corner, start, corner, terminal=False),
        through(corner, goal, terminal=True),
        through(corner, corner, terminal=False),
        through(corner, start, goal, terminal=True),
        through(start, corner, terminal=False),
    ]
    assert demo.count_walks(env, from_trajectories(walks)) == (3, 2, 1)
