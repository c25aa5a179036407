"""Frame weights: rows, types and order of the Parquet file, and what is refused."""

import sys
from dataclasses import replace

import numpy as np
import pyarrow.parquet as parquet
import pytest

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.formats.frame_weights import check, write
from worlds import random_dataset


def weighed(lengths=(5, 1, 8, 3)) -> Dataset:
    data = random_dataset(seed=0, lengths=lengths)
    weight = np.random.default_rng(1).exponential(size=data.transitions)
    return replace(data, weight=(weight / weight.mean()).astype(np.float32))


def test_every_step_has_a_row_and_the_last_state_has_none(tmp_path):
    data = weighed()
    write(data, str(tmp_path / "frames.parquet"))
    table = parquet.read_table(tmp_path / "frames.parquet")
    expected = [
        (m, t, data.start[m] + t, data.weight[data.start[m] + t])
        for m, trajectory in enumerate(data)
        for t in range(len(trajectory))
    ]
    names = ("episode_index", "frame_index", "index", "weight")
    assert list(zip(*(table[name].to_pylist() for name in names), strict=True)) == expected
    assert table.num_rows == 17  # of 21 states


def test_the_columns_are_those_of_lerobot_and_the_weight(tmp_path):
    write(weighed(), str(tmp_path / "frames.parquet"))
    schema = parquet.read_schema(tmp_path / "frames.parquet")
    assert {field.name: str(field.type) for field in schema} == {
        "index": "int64",
        "episode_index": "int64",
        "frame_index": "int64",
        "weight": "float",
    }


def test_weights_keep_their_bits(tmp_path):
    data = weighed((40, 2))
    write(data, str(tmp_path / "frames.parquet"))
    weight = parquet.read_table(tmp_path / "frames.parquet")["weight"].to_numpy()
    assert weight.tobytes() == data.weight.tobytes()


def test_an_older_file_stays_unless_overwritten(tmp_path):
    target = tmp_path / "frames.parquet"
    target.write_text("older")
    with pytest.raises(InputError, match=r"frames\.parquet exists already; .* pass --overwrite"):
        write(weighed(), str(target))
    assert target.read_text() == "older"
    write(weighed(), str(target), overwrite=True)
    assert parquet.read_metadata(target).num_rows == 17
    assert [file.name for file in tmp_path.iterdir()] == ["frames.parquet"]


@pytest.mark.parametrize("name", ["frames.csv", "frames", "frames.parquet.gz"])
def test_other_endings_are_refused(name, tmp_path):
    with pytest.raises(InputError, match="give a name that ends in .parquet"):
        check(str(tmp_path / name), overwrite=True)


def test_data_without_weights_are_refused(tmp_path):
    with pytest.raises(InputError, match="no weights; trajstitch weigh makes them"):
        write(replace(weighed(), weight=None), str(tmp_path / "frames.parquet"))
    assert list(tmp_path.iterdir()) == []


def test_pyarrow_is_optional(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match="pip install .trajstitch.parquet."):
        check(str(tmp_path / "frames.parquet"), overwrite=False)
