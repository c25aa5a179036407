"""Folders of bench whose files are damaged: each is named in one sentence, with what to do."""

import json
import os

import pytest

from trajstitch.bench.grid import failure_path, make_grid, open_folder, record_path, stored_grid
from trajstitch.bench.report import markdown, page
from trajstitch.bench.tables import read_results
from trajstitch.cli import main
from trajstitch.errors import InputError

FACTS = {"source": "here", "transitions": 100, "return_mean": 1.5}
SCORED = {"raw": {"per_seed": [1.0, 2]}, "normalised": {"per_seed": [3.0, 4.0]}, "success": None}
POLICIES = {"data": FACTS, "stitched": FACTS, "last": SCORED, "best": SCORED}
CLONES = POLICIES | {"expert": {"kl": [[9.0, 9], [1.5, 2]], "action_error": [[0.5, 0.25], [0.5, 0.25]]}}
ERRORS = {
    "data": FACTS,
    **{"step": [10, 20], "train": [[4.0, None], [1, 2.0]], "test": [[4.0, 3.0], [None, 2.0]]},
    "others": {
        f"hopper-{kind}": {"mse": [1.0, None], "std": [1, 2]} for kind in ("random", "expert", "medium-replay")
    },
}
SUITES = {  # suite: options of a grid of one cell, and its sound record
    "table1": ({"data": ("hopper-medium",), "methods": ("ts-bc",)}, POLICIES),
    "expert-fraction": ({"data": ("hopper-fraction-0",), "methods": ("ts-gaussian-bc",)}, CLONES),
    "reward-models": ({"data": ("hopper-medium",), "methods": ("reward-mlp",)}, ERRORS),
}


def changed(record, place, value):
    """The record with another value at a place such as data.source; without it if the value is `gone`."""
    record = json.loads(json.dumps(record))
    *path, last = place.split(".")
    inner = record
    for name in path:
        inner = inner[name]
    inner[last] = value
    if value == "gone":
        del inner[last]
    return record


@pytest.fixture
def make(tmp_path):
    def folder(suite, record):
        options, _ = SUITES[suite]
        grid = make_grid(suite, stitch_seeds=1, seeds=2, **options)
        open_folder(tmp_path / "out", grid)
        (cell,) = grid.cells
        file = record_path(tmp_path / "out", cell)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(record))
        return tmp_path / "out"

    return folder


@pytest.mark.parametrize("suite", SUITES)
def test_a_sound_record_is_shown(make, suite):
    results = read_results(make(suite, SUITES[suite][1]))
    assert markdown(results)
    assert page(results)


DAMAGE = [
    ("table1", "data", "gone", "data is missing"),
    ("table1", "data.source", 3, "data.source is not a line of text"),
    ("table1", "data.source", "\ud800", "data.source is not a line of text"),
    ("table1", "data.transitions", 2.5, "data.transitions is not a whole number"),
    ("table1", "data.transitions", True, "data.transitions is not a whole number"),
    ("table1", "data.return_mean", None, "data.return_mean is not a number"),
    ("table1", "stitched", None, "stitched is missing"),
    ("table1", "last.raw", None, "last.raw is missing"),
    ("table1", "last.raw.per_seed", [], "last.raw.per_seed is not a list of numbers, or empty"),
    ("table1", "last.raw.per_seed", ["x"], "last.raw.per_seed is not a number"),
    ("table1", "last.raw.per_seed", [None], "last.raw.per_seed is not a number"),
    ("table1", "last.raw.per_seed", [1e101], "last.raw.per_seed is not a number"),
    ("table1", "last.raw.per_seed", [1 << 80], "last.raw.per_seed is not a number"),
    ("table1", "best.normalised", None, "best.normalised is missing"),
    ("expert-fraction", "expert", "gone", "expert is missing"),
    ("expert-fraction", "expert.kl", [], "expert.kl is not a list of numbers, or empty"),
    ("expert-fraction", "expert.kl", [1.0], "expert.kl is not a list of numbers"),
    ("expert-fraction", "expert.action_error", [[None]], "expert.action_error is not a number"),
    ("reward-models", "step", [], "step is not a list"),
    ("reward-models", "step", [10, 1 << 80], "step is not a whole number"),
    ("reward-models", "step", [10], "step, train and test have different sizes"),
    ("reward-models", "train", [[1.0], [1.0]], "step, train and test have different sizes"),
    ("reward-models", "test", [[1.0], [1.0, 2.0]], "test has rows of different lengths"),
    ("reward-models", "others.hopper-expert", "gone", "others.hopper-expert is missing"),
    ("reward-models", "others.hopper-random.mse", ["x"], "others.hopper-random.mse is not a number"),
]


@pytest.mark.parametrize(("suite", "place", "value", "sentence"), DAMAGE)
def test_a_damaged_record_is_named_with_the_remedy(make, suite, place, value, sentence):
    out = make(suite, changed(SUITES[suite][1], place, value))
    with pytest.raises(InputError, match=rf"\.json: {sentence}.*; remove this file, and trajstitch bench runs"):
        read_results(out)


def test_a_record_that_is_a_list(make):
    with pytest.raises(InputError, match="data is missing"):
        read_results(make("table1", [1]))


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("suite", "tabel1", "no suite 'tabel1'; did you mean table1"),
        ("stitch_seeds", 1 << 40, "--stitch-seeds must be at most 1000"),
        ("seeds", 2.5, "--seeds must be a whole number, not 2.5"),
        ("seed", "x", "--seed must be a whole number"),
        ("episodes", None, "--episodes must be a whole number"),
        ("steps", True, "--steps must be a whole number"),
    ],
)
def test_a_damaged_suite_is_named(make, capsys, name, value, sentence):
    out = make("table1", POLICIES)
    held = json.loads((out / "suite.json").read_text())
    (out / "suite.json").write_text(json.dumps(held | {name: value}))
    with pytest.raises(InputError, match=f"suite.json: .*{sentence}"):
        stored_grid(out)
    assert main(["report", str(out)]) == 2


def test_why_a_cell_failed_is_text(make):
    out = make("table1", POLICIES)
    (cell,) = stored_grid(out).cells
    record_path(out, cell).unlink()
    failure_path(out, cell).write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="s0.failed: this file is damaged"):
        read_results(out)
    failure_path(out, cell).unlink()
    os.mkfifo(failure_path(out, cell))
    with pytest.raises(InputError, match="this is a pipe or a device"):
        read_results(out)
