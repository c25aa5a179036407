"""Tables: Parquet files and Arrow's streams, read so that no declared size or place of numbers is believed."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from trajstitch.errors import InputError
from trajstitch.storage.archive import check_file, check_room

_WIDTH = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT96": 12}  # bytes of a number; 8 of all others
_ROWS = 65_536  # at most so many are unpacked at once …
_BYTES = 64 << 20  # … and so few that texts of them, each as long as all that is stored, take no more
_DICTIONARY, _BATCH = 2, 3  # messages of a stream that hold numbers


def import_arrow() -> tuple[Any, Any]:
    """Return pyarrow and pyarrow.parquet; InputError if they are not installed."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError("these data need pyarrow; run pip install 'trajstitch[lerobot]'") from error


def read_parquet(file: Path, columns: Iterable[str] | None = None) -> Any:
    """Read a table, or these columns of it; InputError if it has not all of them, each once."""
    arrow, parquet = import_arrow()
    check_file(file)
    with parquet.ParquetFile(file) as source:
        names = source.schema_arrow.names if columns is None else list(columns)
        for name in names:
            if (count := source.schema_arrow.names.count(name)) != 1:
                raise InputError(f"it has {count or 'no'} column{'s' if count else ''} {name!r}")
        size, longest = _declared(source.metadata, names)
        check_room(file.stat().st_size, size)
        rows = max(1, min(_ROWS, _BYTES // max(1, longest)))
        return _joined(arrow, file, source.iter_batches(rows, columns=names), source.schema_arrow, names)


def parquet_names(file: Path) -> list[str]:
    """Return the names of a table's columns."""
    _, parquet = import_arrow()
    check_file(file)
    return list(parquet.read_schema(file).names)


def _declared(metadata: Any, names: Iterable[str]) -> tuple[int, int]:
    """Return the bytes that these columns' numbers take, and those of the texts in the largest piece."""
    size = longest = 0
    starts = tuple(f"{name}." for name in names)
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for piece in map(group.column, range(group.num_columns)):
            if f"{piece.path_in_schema}.".startswith(starts):  # a column of lists is called NAME.list.element
                size += piece.num_values * _WIDTH.get(piece.physical_type, 8)
                if piece.physical_type not in (*_WIDTH, "INT64", "DOUBLE"):
                    longest = max(longest, piece.total_uncompressed_size)
    return size, longest


def read_stream(file: Path) -> Any:
    """Read a table that was written as a stream of Arrow's messages."""
    arrow, _ = import_arrow()
    check_file(file)
    source = arrow.memory_map(str(file))
    check_room(file.stat().st_size, sum(map(_unpacked, arrow.ipc.MessageReader.open_stream(source))))
    source.seek(0)
    stream = arrow.ipc.open_stream(source)
    return _joined(arrow, file, stream, stream.schema, stream.schema.names)


def _joined(arrow: Any, file: Path, batches: Iterable[Any], schema: Any, names: Iterable[str]) -> Any:
    """Return the table of these batches; each is checked, as Arrow believes where a batch says its rows begin."""
    parts, size = [], 0
    for batch in batches:
        part = arrow.Table.from_batches([batch])
        part.validate(full=True)
        for at, column in enumerate(part.columns):
            if arrow.types.is_dictionary(column.type):
                plain = [_unfolded(arrow, file, chunk) for chunk in column.chunks]
                part = part.set_column(at, part.column_names[at], arrow.chunked_array(plain))
        size += part.nbytes
        check_room(file.stat().st_size, size)
        parts.append(part)
    return arrow.concat_tables(parts) if parts else schema.empty_table().select(list(names))


def _unfolded(arrow: Any, file: Path, column: Any) -> Any:
    """Return what a column's entries stand for in its dictionary."""
    types, kind = arrow.types, column.dictionary.type
    if any(
        check(kind) for check in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    ):
        compute = importlib.import_module("pyarrow.compute")
        length = compute.binary_length(column.dictionary).take(column.indices)
        check_room(file.stat().st_size, compute.sum(length).as_py() or 0)
    return column.dictionary_decode()


def _unpacked(message: Any) -> int:
    """Return the bytes that a message declares to unpack to, by the table of a record batch in its metadata.

    Such a table begins with where its list of places is, which says where its fields are. In a compressed message
    each buffer begins with the size of what it unpacks to.
    """
    metadata, body = memoryview(message.metadata), memoryview(message.body) if message.body else b""

    def field(table: int, number: int) -> int:
        places = table - struct.unpack_from("<i", metadata, table)[0]
        if 4 + 2 * number >= struct.unpack_from("<H", metadata, places)[0]:
            return 0
        place = struct.unpack_from("<H", metadata, places + 4 + 2 * number)[0]
        return table + place if place else 0

    def follow(place: int) -> int:
        return place + int(struct.unpack_from("<I", metadata, place)[0])

    root = follow(0)
    kind = metadata[place] if (place := field(root, 1)) else 0
    if kind not in (_DICTIONARY, _BATCH):
        return 0
    batch = follow(field(root, 2))
    if kind == _DICTIONARY:
        batch = follow(field(batch, 1))
    if not field(batch, 3):  # not compressed
        return 0
    buffers = follow(field(batch, 2))
    total = 0
    for number in range(struct.unpack_from("<I", metadata, buffers)[0]):
        offset, length = struct.unpack_from("<qq", metadata, buffers + 4 + 16 * number)
        total += max(0, struct.unpack_from("<q", body, offset)[0]) if length else 0
    return total
