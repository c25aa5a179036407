"""HDF5: files read so that nothing comes from outside them and nothing is made up; HDF5 itself can do both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from trajstitch.errors import InputError
from trajstitch.storage.archive import check_room, check_shape, reason

_PER_CHUNK = 6  # times the size of a chunk that HDF5 holds while it unpacks one
_INSIDE = (h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT)  # links that cannot leave the file


@contextmanager
def open_hdf5(path: Path) -> Iterator[h5py.File]:
    """Open a file for reading; InputError if it is damaged or one of its links leads to another file."""
    try:
        with opened(path) as file:
            yield file
    except (OSError, RuntimeError) as error:
        raise _damaged(error) from error


def opened(path: Path) -> h5py.File:
    """Open a file as `open_hdf5` does, where errors that come later may be those of another file."""
    if not h5py.is_hdf5(path):
        raise InputError("this is not an HDF5 file, or it is empty; check the download")
    try:
        file = h5py.File(path, "r")
        try:
            _check_links(file)
        except BaseException:
            file.close()
            raise
    except (OSError, RuntimeError) as error:
        raise _damaged(error) from error
    return file


def _damaged(error: Exception) -> InputError:
    return InputError(f"this HDF5 file is truncated or damaged; copy it again ({reason(error)})")


def _check_links(file: h5py.File) -> None:
    """Look at all links before any is followed: opening what an external one names may already do harm."""
    outside = file.id.links.visit(lambda name, link: None if link.type in _INSIDE else name, info=True)
    if outside is not None:
        name = outside.decode(errors="replace")
        raise InputError(f"{name} is a link to another file, which is not followed; copy the data into this file")


def check_stored(name: str, array: h5py.h5d.DatasetID) -> None:
    """Raise InputError unless all numbers of an array are in the file itself.

    HDF5 can also take them from other files, and makes up those that were never written.
    """
    made = array.get_create_plist()
    layout = made.get_layout()
    if layout == h5py.h5d.VIRTUAL or made.get_external_count():
        raise InputError(
            f"{name} takes its numbers from other files, which are not read; copy them into this file"
        )
    space = array.get_space()
    if not space.get_simple_extent_npoints():
        return
    if layout == h5py.h5d.CHUNKED:
        chunks = zip(array.shape, made.get_chunk(), strict=True)
        stored = array.get_num_chunks() == np.prod([-(-size // chunk) for size, chunk in chunks], dtype=object)
    elif layout == h5py.h5d.CONTIGUOUS:
        stored = array.get_storage_size() >= space.get_simple_extent_npoints() * array.get_type().get_size()
    else:
        stored = True  # compact: inside the header
    if not stored:
        raise InputError(f"{name} was declared but not all of it was written; write all of its numbers")


def unpacked_size(array: h5py.Dataset) -> int:
    """Return the bytes that reading an array needs: its own, or those to unpack a chunk where they are more."""
    chunk = _PER_CHUNK * np.prod(array.chunks or (0,), dtype=object)
    return int(max(np.prod(array.shape, dtype=object), chunk)) * array.dtype.itemsize


def check_arrays(path: Path, arrays: dict[str, h5py.Dataset], kinds: str = "bfiu", what: str = "numbers") -> None:
    """Raise InputError unless these arrays hold numbers that are all in the file, no more than it can hold."""
    for name, array in arrays.items():
        if array.shape is None or array.dtype.kind not in kinds:
            raise InputError(f"{name} holds {'nothing' if array.shape is None else array.dtype}, not {what}")
        check_shape(array.shape)
        check_stored(name, array.id)
    check_room(path.stat().st_size, sum(map(unpacked_size, arrays.values())))


def plain_attributes(group: h5py.Group) -> dict[str, str | int | float | bool]:
    """Return the attributes that are one text, number or flag; those that are more are not read at all."""
    plain = {}
    for name in group.attrs:
        if group.attrs.get_id(name).shape != ():
            continue
        value: Any = group.attrs[name]
        value = value.item() if isinstance(value, np.generic) else value
        value = value.decode(errors="replace") if isinstance(value, bytes) else value
        if isinstance(value, str | int | float | bool):
            plain[name] = value
    return plain
