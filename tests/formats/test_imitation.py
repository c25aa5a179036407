"""Trajectories of imitation, as Hugging Face's datasets saves them; and what is said of RLDS."""

import json
import tempfile
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings

from trajstitch.cli import main
from trajstitch.data import normalised_weight
from trajstitch.errors import InputError
from trajstitch.formats import load, save
from worlds import datasets, random_dataset, same

ROWS = {
    "obs": [[[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]], [[6.0, 7.0], [8.0, 9.0]]],
    "acts": [[[0.5], [0.25]], [[1.0]]],
    "infos": [["{}", "{}"], ["{}"]],
    "terminal": [True, False],
    "rews": [[1.0, 2.0], [3.0]],
}


def parquet(path, **columns):
    rows = {name: column for name, column in {**ROWS, **columns}.items() if column is not None}
    pq.write_table(pa.table(rows), path)
    return path


def test_rows_are_trajectories(tmp_path):
    data = load(f"imitation:{parquet(tmp_path / 'x.parquet')}")
    assert data.length.tolist() == [2, 1]
    assert data[0].obs.tolist() == ROWS["obs"][0]
    assert data.action.tolist() == [[0.5], [0.25], [1]]
    assert data.reward.tolist() == [1, 2, 3]
    assert data.terminal.tolist() == [True, False]
    assert not load(f"imitation:{parquet(tmp_path / 'y.parquet', rews=None)}").reward.any()


def test_what_is_not_used_is_not_read(tmp_path):
    file = parquet(tmp_path / "x.parquet", infos=[["x" * (1 << 15)] * 4096, ["{}"]])  # 134 MB
    assert load(f"imitation:{file}").reward.tolist() == [1, 2, 3]


@given(datasets())
@settings(deadline=None, max_examples=10)
def test_any_data_round_trip(data):
    data = replace(data, weight=normalised_weight(1 + np.arange(data.transitions)), info={"env_id": "Some-v0"})
    with tempfile.TemporaryDirectory() as folder:
        save(data, f"imitation:{folder}/x")
        back = load(f"{folder}/x")  # recognised by what is in it
    assert same(back, data)
    assert back.weight.tobytes() == data.weight.tobytes()
    assert back.info == data.info


def test_a_column_more_and_imitation_would_not_read_it(tmp_path):
    weighed = replace(random_dataset(0, (3,)), weight=np.ones(3, np.float32))
    save(weighed, f"imitation:{tmp_path / 'x'}")
    with pa.ipc.open_stream(next((tmp_path / "x").glob("*.arrow")).read_bytes()) as table:
        assert set(table.schema.names) == set(ROWS)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"acts": None}, "the column 'acts' is missing"),
        ({"acts": [[[1], [2]], [[3]]]}, "acts are int64; only continuous"),
        ({"acts": [[0.5, 0.25], [1.0]]}, "acts holds one double per step, not a vector"),
        ({"obs": [[[[0.0]], [[1.0]], [[2.0]]], [[[3.0]], [[4.0]]]]}, "obs has more than one dimension per step"),
        (
            {"obs": [*ROWS["obs"][:1], [[6.0, 7.0]]]},
            "trajectory 1 has 1 states and 1 actions",
        ),
        ({"rews": [[1.0], [3.0]]}, "rews of trajectory 0 has 1 rows for 2 actions"),
        (
            {"obs": [[[0.0], [2.0, 3.0], [4.0, 5.0]], [[6.0, 7.0], [8.0, 9.0]]]},
            "obs has vectors of different sizes",
        ),
        (
            {"obs": [[[0.0], [1.0, 2.0, 3.0], [4.0, 5.0]], [[6.0, 7.0], [8.0, 9.0]]]},  # two on average
            "obs has vectors of different sizes",
        ),
        (
            {"obs": [[[0.0, 1.0], None, [4.0, 5.0]], [[6.0, 7.0], [8.0, 9.0]]]},
            "obs has vectors of different sizes",
        ),
        ({"rews": [[1.0, None], [3.0]]}, "rews holds double and null, not numbers"),
        ({"rews": [["x", "y"], ["z"]]}, "rews holds string, not numbers"),
        ({"terminal": [True, None]}, "terminal is null in 1 trajectories"),
        ({"terminal": ["False", "False"]}, "terminal holds string, not flags"),
        ({"terminal": [0, 2]}, r"terminal\[1\] is 2"),
        ({"rews": [[1.0, np.nan], [3.0]]}, r"rews\[1\] is nan"),
        ({"obs": [None, ROWS["obs"][1]]}, "obs is null in 1 trajectories"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, columns, sentence):
    with pytest.raises(InputError, match=rf"x.parquet: .*{sentence}"):
        load(f"imitation:{parquet(tmp_path / 'x.parquet', **columns)}")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("x.csv", "own-logs.md"), ("x.parquet", "imitation:FILE"), ("x.pkl", "never loaded"), ("x.tfrecord", "RLDS")],
)
def test_tables_of_other_kinds_are_told_what_to_do(tmp_path, name, remedy):
    (tmp_path / name).write_text("x,y\n1,2\n")
    with pytest.raises(InputError, match=rf"{name}: the ending .* names no format; .*{remedy}"):
        load(tmp_path / name)


@pytest.mark.parametrize("name", ["../other.arrow", "/x.arrow", "a/b.arrow"])
def test_tables_outside_the_folder_are_not_read(tmp_path, name):
    save(random_dataset(0, (3,)), f"imitation:{tmp_path / 'x'}")
    (tmp_path / "x/state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    with pytest.raises(InputError, match=f"state.json names {name}, which is not a file of this folder"):
        load(tmp_path / "x")


def test_other_folders(tmp_path, capsys):
    save(random_dataset(0, (3,)), f"imitation:{tmp_path / 'x'}")
    next((tmp_path / "x").glob("*.arrow")).write_bytes(b"no")
    with pytest.raises(InputError, match="its tables are missing or damaged"):
        load(tmp_path / "x")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/diary.txt").write_text("dear diary")
    with pytest.raises(InputError, match="holds something else"):
        save(random_dataset(0, (3,)), f"imitation:{tmp_path / 'mine'}", overwrite=True)
    with pytest.raises(InputError, match="neither state.json"):
        load(f"imitation:{tmp_path / 'mine'}")
    with pytest.raises(InputError, match="no such file or folder"):
        load(f"imitation:{tmp_path / 'none'}")
    rlds = tmp_path / "rlds"
    rlds.mkdir()
    (rlds / "features.json").write_text("{}")
    (rlds / "x-train.tfrecord-00000-of-00001").write_bytes(b"")
    assert main(["inspect", str(rlds)]) == 2
    assert "RLDS" in capsys.readouterr().err
    assert main(["inspect", f"imitation:{tmp_path / 'x'}", "--obs", "state"]) == 2
    assert "leave --obs out" in capsys.readouterr().err
