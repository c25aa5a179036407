"""Parquet files and streams of Arrow: sizes, places and names that are not what they say; sound ones are whole."""

import re
import struct

import numpy as np
import pytest

from trajstitch.errors import InputError
from trajstitch.formats import load
from trajstitch.storage.tables import read_parquet, read_stream

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TABLE = pa.table(
    {
        "number": np.arange(7.0),
        "a.list": pa.array([[[1.0, 2.0]], [[3.0, 4.0], [5.0, 6.0]], []] * 2 + [[]]),
        "text": pa.array(["x", "y", "x", None, "x", "y", "z"]).dictionary_encode(),
    }
)


def stream(path, table, compression=None, rows=None):
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("rows", [2, None])
def test_sound_tables_are_read_whole(tmp_path, compression, rows):
    pq.write_table(TABLE, tmp_path / "x.parquet", compression=compression or "NONE", row_group_size=rows)
    for back in (
        read_parquet(tmp_path / "x.parquet"),
        read_stream(stream(tmp_path / "x.arrow", TABLE, compression, rows)),
    ):
        assert back.to_pydict() == TABLE.to_pydict()
        assert back.schema.field("text").type == pa.string()  # what a dictionary stands for
    some = read_parquet(tmp_path / "x.parquet", ["text", "a.list"])
    assert some.to_pydict() == TABLE.select(["text", "a.list"]).to_pydict()
    empty = TABLE.slice(0, 0)
    pq.write_table(empty, tmp_path / "empty.parquet")
    assert read_parquet(tmp_path / "empty.parquet", ["number"]).column_names == ["number"]
    assert len(read_stream(stream(tmp_path / "empty.arrow", empty))) == 0


KINDS = {
    "texts": pa.array(["x", "yy", None]),
    "long texts": pa.array(["x", "yy", None], pa.large_string()),
    "lists of texts": pa.array([["x", "y"], None, []]),
    "vectors of texts": pa.array([["x", "y"], ["x", "x"], ["z", "z"]], pa.list_(pa.string(), 2)),
    "images": pa.array([{"bytes": b"1", "path": "x"}, {"bytes": b"2", "path": None}, None]),
    "maps": pa.array([[("a", "x")], [], [("b", "y")]], pa.map_(pa.string(), pa.string())),
    "half": pa.array(np.arange(3, dtype=np.float16)),
    "flags": pa.array([True, False, None]),
    "times": pa.array([1, 2, 3], pa.timestamp("us")),
    "nothing": pa.nulls(3),
    "decimals": pa.array([1, 2, 3]).cast(pa.decimal128(20)),
    "categories": pa.array([5, 5, 7]).dictionary_encode(),
}


PLAIN = ({}, {"store_schema": False}, {"use_dictionary": False})
OF_TEXTS = tuple(
    {"use_dictionary": False, "column_encoding": encoding}
    for encoding in ("DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY")
)


def written(name):
    """The ways in which a column of this kind can be written."""
    return PLAIN + (OF_TEXTS if "texts" in name or name in ("images", "maps") else ())


@pytest.mark.parametrize(("name", "options"), [(name, options) for name in KINDS for options in written(name)])
def test_columns_of_all_kinds_and_encodings(tmp_path, name, options):
    columns = {"x": KINDS[name]} if options in OF_TEXTS else {"x": KINDS[name], "y": [1, 2, 3]}
    table = pa.table(columns)
    pq.write_table(table, tmp_path / "x.parquet", **options)
    assert read_parquet(tmp_path / "x.parquet").to_pydict() == table.to_pydict()
    assert read_stream(stream(tmp_path / "x.arrow", table)).to_pydict() == table.to_pydict()


@pytest.mark.parametrize("kind", ["texts", "half"])
def test_large_tables_are_not_read_row_by_row(tmp_path, kind):
    """Nothing is said of a table by how much it holds, only by how much more that is than what is stored."""
    rows = 2000
    numbers = np.random.default_rng(0).integers(0, 1 << 15, (rows, 10_000), np.int16)
    half = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1).view(np.float16)), 10_000)
    texts = pa.array([row.tobytes().hex() for row in numbers])
    pq.write_table(pa.table({"x": {"texts": texts, "half": half}[kind]}), tmp_path / "x.parquet")
    back = read_parquet(tmp_path / "x.parquet")
    assert len(back) == rows
    assert back["x"].num_chunks < 40


def test_many_equal_numbers_in_a_small_file_are_refused(tmp_path):
    table = pa.table({"x": np.zeros(1 << 23)})
    pq.write_table(table, tmp_path / "x.parquet", compression="ZSTD")
    stream(tmp_path / "x.arrow", table, "zstd")
    for read, file in ((read_parquet, "x.parquet"), (read_stream, "x.arrow")):
        assert (tmp_path / file).stat().st_size < 1 << 18
        with pytest.raises(InputError, match="declares arrays of 67,"):
            read(tmp_path / file)


LONG = pa.DictionaryArray.from_arrays(np.zeros(4096, np.int32), ["x" * (1 << 18)])


@pytest.mark.parametrize("store_schema", [True, False])
@pytest.mark.parametrize("inside", ["rows", "a list", "a struct"])
def test_a_long_text_many_times_is_refused_before_it_is_unpacked(tmp_path, store_schema, inside):
    column = {
        "rows": LONG,
        "a list": pa.ListArray.from_arrays([0, 4096], LONG),
        "a struct": pa.StructArray.from_arrays([LONG], ["b"]),
    }[inside]
    pq.write_table(pa.table({"a.text": column}), tmp_path / "x.parquet", store_schema=store_schema)
    with pytest.raises(InputError, match="declares arrays of 1,073,741,824,"):  # the texts alone
        read_parquet(tmp_path / "x.parquet")


def test_nor_is_one_that_is_stored_as_differences(tmp_path):
    table = pa.table({"a.text": ["x" * (1 << 18)] * 512})
    pq.write_table(table, tmp_path / "x.parquet", use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY")
    with pytest.raises(InputError, match="declares arrays of") as caught:
        read_parquet(tmp_path / "x.parquet")
    declared = re.search(r"arrays of ([\d,]+)", str(caught.value))
    assert int(declared[1].replace(",", "")) < 1 << 26  # of 2^27 bytes


def test_nor_is_one_of_a_stream_unpacked(tmp_path):
    for text in (LONG, pa.ListArray.from_arrays([0, 4096], LONG)):
        file = stream(tmp_path / "x.arrow", pa.table({"a.text": text}))
        with pytest.raises(InputError, match="declares arrays of 1,073,741,824,"):
            read_stream(file)
    lists = pa.DictionaryArray.from_arrays(np.zeros(4096, np.int32), pa.array([np.zeros(1 << 15)]))
    with pytest.raises(pa.ArrowNotImplementedError):
        read_stream(stream(tmp_path / "x.arrow", pa.table({"lists": lists})))


def test_a_place_outside_its_numbers_is_refused(tmp_path):
    """Arrow itself would read what lies there, or end the process."""
    table = pa.table({"x": pa.array([[1.0, 2.0], [3.0]])})
    file = stream(tmp_path / "x.arrow", table)
    content, places = file.read_bytes(), struct.pack("<iii", 0, 2, 3)
    assert content.count(places) == 1
    file.write_bytes(content.replace(places, struct.pack("<iii", 0, 2, 3_000)))
    with pytest.raises(pa.ArrowInvalid):
        read_stream(file)


def test_a_name_twice_or_not_at_all(tmp_path):
    twice = TABLE.append_column("number", TABLE["number"])
    pq.write_table(twice, tmp_path / "x.parquet")
    for columns in (None, ["number"]):
        with pytest.raises(InputError, match="it has 2 columns 'number'"):
            read_parquet(tmp_path / "x.parquet", columns)
    with pytest.raises(InputError, match="it has no column 'none'"):
        read_parquet(tmp_path / "x.parquet", ["none"])


def test_a_message_of_two_lines_becomes_one(tmp_path):
    """Arrow's words on a damaged file end with a line break."""
    pq.write_table(pa.table({"obs": [[[1.0]]]}), tmp_path / "x.parquet")
    content = bytearray((tmp_path / "x.parquet").read_bytes())
    sentences = []
    for at in range(4, len(content) - 8, 3):
        damaged = content[:at] + b"\xff" * 5 + content[at + 5 :]
        (tmp_path / "x.parquet").write_bytes(bytes(damaged))
        with pytest.raises(InputError) as caught:
            load(f"imitation:{tmp_path / 'x.parquet'}")
        sentences.append(str(caught.value))
    assert any("thrift" in one for one in sentences)
    assert not any("\n" in one for one in sentences)
