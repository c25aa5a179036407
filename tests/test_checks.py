"""Arguments of the Python functions: names in place of objects, and counts that are none."""

from pathlib import Path

import pytest

import trajstitch as ts
from trajstitch.errors import InputError
from worlds import linear_dataset


@pytest.fixture(scope="module")
def world():
    return linear_dataset()


@pytest.mark.parametrize(
    ("call", "field", "name"),
    [
        (lambda _, out: ts.improve("walks.npz"), "data", "walks.npz"),
        (lambda _, out: ts.improve("walks.npz", out=out), "data", "walks.npz"),
        (lambda _, out: ts.weigh(Path("walks.npz")), "data", "walks.npz"),
        (lambda _, out: ts.weigh("demo", out=out), "data", "demo"),
        (lambda _, out: ts.train("bc", "demo"), "data", "demo"),
        (lambda _, out: ts.train_run("bc", "demo", out), "data", "demo"),
        (lambda world, out: ts.train("td3tsbc", world, improved="demo"), "improved", "demo"),
    ],
)
def test_a_name_is_no_data_set(world, tmp_path, call, field, name):
    with pytest.raises(
        InputError, match=rf"{field} must be a Dataset, not .*'{name}'.*; ts.load\('{name}'\) reads"
    ):
        call(world, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_list_is_no_data_set(world):
    with pytest.raises(InputError, match=r"data must be a Dataset, not a list; .* ts.from_trajectories makes one"):
        ts.train("bc", list(world))


@pytest.mark.parametrize("out", [None, "run"])
@pytest.mark.parametrize(("function", "presets"), [(ts.improve, "PRESETS"), (ts.weigh, "WEIGH_PRESETS")])
def test_the_name_of_a_preset_is_no_settings(world, tmp_path, function, presets, out):
    sentence = rf"config must be an object of .*, not 'quick'; give one such as ts.{presets}\['quick'\]"
    with pytest.raises(InputError, match=sentence):
        function(world, "quick", out=out and tmp_path / out)
    assert "quick" in getattr(ts, presets)


@pytest.mark.parametrize("seeds", [0, -1])
def test_fewer_than_one_seed(world, seeds):
    with pytest.raises(InputError, match=f"seeds must be at least 1, not {seeds}"):
        ts.train("bc", world, seeds=seeds, steps=1)


def test_one_of_several_seeds_has_their_axis(world):
    assert ts.train("bc", world, seeds=1, steps=1, width=4).count == 1
