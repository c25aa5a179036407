"""Mutations of tables, for benchmarks/fuzz.py: Parquet files and streams of Arrow, with something else in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.mutations import Rng

_ENTRIES: list[Any] = [
    None,
    float("nan"),
    float("inf"),
    3e38,
    1e300,
    -1,
    0,
    7,
    1 << 40,
    (1 << 63) - 1,
    True,
    "x",
    [],
]


_FEW = 64  # rows; tables with more are such as unpack to many times their size
_MANY = 1 << 20  # rows that are all the same, which take next to no room in a file


def mutate_parquet(path: Path, rng: Rng) -> None:
    """Write a Parquet file again with another table, or another division and compression of one."""
    table = _mutated(pq.read_table(path), rng)
    small = len(table) < _FEW
    pq.write_table(
        table,
        path,
        compression=["NONE", "SNAPPY", "GZIP", "ZSTD"][rng.integers(4)] if small else "ZSTD",
        row_group_size=int(rng.choice([2, 1 << 20])) if small else None,
        store_schema=bool(rng.random() < 0.5),  # without it, what a dictionary repeats is unfolded
        use_dictionary=not small or bool(rng.random() < 0.7),
    )


def mutate_arrow(path: Path, rng: Rng) -> None:
    """Write a stream or a file of Arrow again with another table, perhaps compressed."""
    with pa.memory_map(str(path)) as file:
        is_file = file.read(6) == b"ARROW1"
        read, write = (pa.ipc.open_file, pa.ipc.new_file) if is_file else (pa.ipc.open_stream, pa.ipc.new_stream)
        file.seek(0)
        table = _mutated(read(file).read_all(), rng)
        small = len(table) < _FEW
        codec = [None, None, "lz4", "zstd"][rng.integers(4)] if small else "zstd"
        options = pa.ipc.IpcWriteOptions(compression=codec)
        new = pa.BufferOutputStream()
        with write(new, table.schema, options=options) as stream:
            stream.write_table(table, max_chunksize=int(rng.choice([2, 1 << 20])) if small else None)
    path.write_bytes(new.getvalue())


def _mutated(table: pa.Table, rng: Rng) -> pa.Table:
    """Return a table of which one column, or the rows, are others."""
    at, rows = int(rng.integers(table.num_columns)), len(table)
    name, column = table.column_names[at], table.column(at).combine_chunks()
    other = table.column(int(rng.integers(table.num_columns)))
    new: list[Callable[[], Any]] = [
        lambda: pa.nulls(rows, column.type),
        lambda: pa.nulls(rows),
        lambda: pa.array(["text"] * rows),
        lambda: pa.array([{"a": 1}] * rows),
        lambda: pa.array([[]] * rows, pa.list_(pa.float32())),
        lambda: pa.array([[entry] for entry in column.to_pylist()]),
        lambda: pa.array(rng.bytes(rows)[i : i + 1] for i in range(rows)),
        lambda: column.dictionary_encode(),
        lambda: other,
        *[lambda: _with_entry(column, rng)] * 12,
    ]
    whole: list[Callable[[], pa.Table]] = [
        lambda: table.remove_column(at),
        lambda: table.rename_columns([f"{one}x" if one == name else one for one in table.column_names]),
        lambda: table.append_column(name, column),
        lambda: table.slice(0, rows // 2),
        lambda: table.slice(0, 0),
        lambda: table.take(rng.permutation(rows)),
        lambda: pa.concat_tables([table, table]),
        lambda: table.select(rng.permutation(table.num_columns).tolist()),
        lambda: _first_row(table).take(np.zeros(_MANY, np.int64)),
        lambda: _long_texts(table, at, rng),
    ]
    try:
        return whole[rng.integers(len(whole))]() if rng.random() < 0.3 else _set(table, at, new, rng)
    except (pa.ArrowException, TypeError):  # this type has no such variant
        return _set(table, at, [lambda: pa.array(map(str, column.to_pylist()))], rng)


def _set(table: pa.Table, at: int, new: list[Callable[[], Any]], rng: Rng) -> pa.Table:
    return table.set_column(at, table.column_names[at], new[rng.integers(len(new))]())


def _with_entry(column: pa.Array, rng: Rng) -> pa.Array:
    """Return the column with another entry, in a list of any depth; of the same type where that can hold it."""
    rows = _replaced(column.to_pylist(), rng)
    try:
        return pa.array(rows, column.type)
    except (pa.ArrowException, TypeError):
        return pa.array(rows)


def _replaced(value: Any, rng: Rng) -> Any:
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = int(rng.integers(len(value)))
        return [_replaced(one, rng) if i == at else one for i, one in enumerate(value)]
    if isinstance(value, list) and rng.random() < 0.5:
        return value + value[:1] if rng.random() < 0.5 else value[1:]
    return _ENTRIES[rng.integers(len(_ENTRIES))]


def _first_row(table: pa.Table) -> pa.Table:
    """Return the first row, of each list in it the first entry."""

    def first(value: Any) -> Any:
        return [first(one) for one in value[:1]] if isinstance(value, list) else value

    row = {name: first(column[0].as_py()) for name, column in zip(table.column_names, table.columns, strict=True)}
    return pa.Table.from_pylist([row], table.schema)


def _long_texts(table: pa.Table, at: int, rng: Rng) -> pa.Table:
    """Return a table with a column of one long text, which a file stores once, many times."""
    rows, length = 1 << int(rng.integers(6, 12)), 1 << int(rng.integers(10, 20))
    column = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), ["x" * length])
    return _set(table.take(np.zeros(rows, np.int64)), at, [lambda: column], rng)
