"""Tables: Parquet files and Arrow's streams, read so that no declared size or place of numbers is believed."""

from __future__ import annotations

import importlib
import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trajstitch.errors import InputError
from trajstitch.storage.archive import check_file, check_room

_WIDTH = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT96": 12, "BYTE_ARRAY": 8}  # bytes of an entry; 8 of all others
_ROWS = 65_536  # at most so many are unpacked at once …
_BYTES = 16 << 20  # … and about so many bytes of texts
_LARGEST = 1 << 30  # bytes of a dictionary; Arrow has room for 2^31
_DICTIONARY, _BATCH = 2, 3  # messages of a stream that hold numbers


def import_arrow() -> tuple[Any, Any]:
    """Return pyarrow and pyarrow.parquet; InputError if they are not installed."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError("these data need pyarrow; run pip install 'trajstitch[lerobot]'") from error


def read_parquet(file: Path, columns: Iterable[str] | None = None) -> Any:
    """Read a table, or these columns of it; InputError if it has not all of them, each once."""
    _, parquet = import_arrow()
    check_file(file)
    metadata = parquet.read_metadata(file)
    names = metadata.schema.to_arrow_schema().names
    wanted, have = names if columns is None else list(columns), Counter(names)
    for name in wanted:
        if (count := have[name]) != 1:
            raise InputError(f"it has {count or 'no'} column{'s' if count else ''} {name!r}")
    size, texts, rows = _declared(metadata, wanted)
    check_room(file.stat().st_size, size)
    if texts:
        _check_texts(file, metadata, texts, rows)
    with parquet.ParquetFile(file, metadata=metadata) as source:
        return _joined(file, source.iter_batches(rows, columns=wanted), source.schema_arrow, wanted)


def parquet_names(file: Path) -> list[str]:
    """Return the names of a table's columns."""
    _, parquet = import_arrow()
    check_file(file)
    return list(parquet.read_schema(file).names)


def is_list(kind: Any) -> bool:
    """Whether each entry of such a column is a list."""
    types = import_arrow()[0].types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def is_even(lists: Any) -> bool:
    """Whether none of these lists is null, and all have one length."""
    fixed = import_arrow()[0].types.is_fixed_size_list(lists.type)
    return not lists.null_count and (fixed or len(np.unique(np.diff(lists.offsets))) < 2)


def _declared(metadata: Any, names: Iterable[str]) -> tuple[int, list[str], int]:
    """Return the bytes of these columns, paths of texts that can be measured, and how many rows to read at once.

    Of texts that cannot be measured, any may be as long as all that is stored.
    """
    size, rows = 0, _ROWS
    starts = tuple(f"{name}." for name in names)  # a column of lists is called NAME.list.element
    columns = {at: metadata.schema.column(at) for at in range(metadata.num_columns)}
    columns = {at: column for at, column in columns.items() if f"{column.path}.".startswith(starts)}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    texts = []
    for at, column in columns.items():
        pieces, kind = [group.column(at) for group in groups], column.physical_type
        width = column.length if kind == "FIXED_LEN_BYTE_ARRAY" else _WIDTH.get(kind, 8)
        size += sum(max(piece.num_values * width, piece.total_uncompressed_size) for piece in pieces)
        if kind == "BYTE_ARRAY":
            if measured := _measurable(column, pieces):
                texts.append(column.path)
            for group, piece in zip(groups, pieces, strict=True):
                each = piece.total_uncompressed_size // (max(1, group.num_rows) if measured else 1)
                rows = max(1, min(rows, _BYTES // max(1, each)))
    return size, texts, rows


def _measurable(column: Any, pieces: Iterable[Any]) -> bool:
    """Whether Arrow can read texts as a dictionary: not JSON, maps, large ones or those stored as differences."""
    return bool(
        column.logical_type.type in ("STRING", "NONE")
        and ".key_value." not in column.path
        and all(piece.total_uncompressed_size < _LARGEST for piece in pieces)
        and not any(encoding.startswith("DELTA") for piece in pieces for encoding in piece.encodings)
    )


def _check_texts(file: Path, metadata: Any, paths: Sequence[str], rows: int) -> None:
    """Measure texts as dictionaries, in which one that is stored once and repeated is there once."""
    _, parquet = import_arrow()
    size = 0
    with parquet.ParquetFile(file, metadata=metadata, read_dictionary=paths) as source:
        for group in range(metadata.num_row_groups):  # each may have a dictionary of its own
            for batch in source.iter_batches(rows, row_groups=[group], columns=paths):
                size += sum(map(_unfolded, batch.columns))
                check_room(file.stat().st_size, size)


def read_stream(file: Path) -> Any:
    """Read a table that was written as a stream of Arrow's messages."""
    arrow, _ = import_arrow()
    check_file(file)
    source = arrow.memory_map(str(file))
    check_room(file.stat().st_size, sum(map(_unpacked, arrow.ipc.MessageReader.open_stream(source))))
    source.seek(0)
    stream = arrow.ipc.open_stream(source)
    return _joined(file, stream, stream.schema, stream.schema.names)


def _joined(file: Path, batches: Iterable[Any], schema: Any, names: Iterable[str]) -> Any:
    """Return the table of these batches; each is checked, as Arrow believes where a batch says its rows begin."""
    arrow, _ = import_arrow()
    parts, size = [], 0
    for batch in batches:
        batch.validate(full=True)
        check_room(file.stat().st_size, size + sum(map(_unfolded, batch.columns)))
        part = _plain(arrow.Table.from_batches([batch]))
        size += part.nbytes
        check_room(file.stat().st_size, size)
        parts.append(part)
    return arrow.concat_tables(parts) if parts else _plain(schema.empty_table().select(list(names)))


def _unfolded(column: Any) -> int:
    """Return the bytes of what the entries of a column's dictionaries stand for, also inside lists and structs."""
    arrow, _ = import_arrow()
    types = arrow.types
    if is_list(column.type):
        return _unfolded(column.flatten())
    if types.is_struct(column.type):
        return sum(map(_unfolded, column.flatten()))
    if not types.is_dictionary(column.type):
        return 0
    if types.is_primitive(kind := column.type.value_type):
        return len(column) * int(kind.bit_width) // 8
    compute = importlib.import_module("pyarrow.compute")
    length = compute.binary_length(column.dictionary).take(column.indices)  # not of lists, which nobody folds
    return int(compute.sum(length).as_py() or 0)


def _plain(table: Any) -> Any:
    """Return a table with what its dictionaries' entries stand for."""
    arrow, _ = import_arrow()
    for at, column in enumerate(table.columns):
        if (kind := _plain_type(arrow, column.type)) != column.type:
            table = table.set_column(at, table.column_names[at], column.cast(kind))
    return table


def _plain_type(arrow: Any, kind: Any) -> Any:
    types = arrow.types

    def plain(field: Any) -> Any:
        return field.with_type(_plain_type(arrow, field.type))

    if types.is_dictionary(kind):
        return kind.value_type
    if types.is_struct(kind):
        return arrow.struct([plain(kind.field(at)) for at in range(kind.num_fields)])
    if types.is_fixed_size_list(kind):
        return arrow.list_(plain(kind.value_field), kind.list_size)
    if is_list(kind):
        return (arrow.large_list if types.is_large_list(kind) else arrow.list_)(plain(kind.value_field))
    return kind


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
