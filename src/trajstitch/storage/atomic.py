"""Atomic writes: a file or folder is written beside its target, then renamed: it appears whole or not at all.

Before the rename its bytes are on the disk (fsync), so this holds after a power cut too.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any
from uuid import uuid4

from trajstitch.errors import InputError

# The remedy where something is already there; said on the command line and in Python.
OTHER_NAME = "choose another name or pass --overwrite (overwrite=True in Python)"
_PARTS: set[Path] = set()  # what is being written now
_MOVING = threading.Lock()  # held while something is renamed


@contextmanager
def replacing(target: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a path beside `target` to write a file or folder to; it replaces `target` when the block ends.

    When the block fails, that path and the folders made for it are removed and an older target stays unchanged.
    """
    target = Path(target).absolute()
    check_target(target, overwrite)
    missing = [folder for folder in target.parents if not folder.exists()]  # the innermost first
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{target.parent}: cannot make this folder ({error.strerror})") from error
    part = target.with_name(f".{target.name}.{uuid4().hex[:8]}.part")
    _PARTS.add(part)
    try:
        with reporting(target):
            yield part
            _to_disk(part)
            with _MOVING:
                _move(part, target)
            _to_disk(target.parent, with_content=False)
    except BaseException:
        remove(part)
        for folder in missing:
            with suppress(OSError):  # someone has put something there
                folder.rmdir()
        raise
    finally:
        _PARTS.discard(part)


@contextmanager
def reporting(target: Path) -> Iterator[None]:
    """Turn what the operating system says inside the block into an InputError that names this output."""
    try:
        yield
    except OSError as error:
        if _disk_full(error):
            raise InputError(f"{target}: the disk is full; free some space and run it again") from error
        raise InputError(
            f"{target}: cannot be written ({error.strerror or error}); choose another place"
        ) from error


def _to_disk(path: Path, with_content: bool = True) -> None:
    """Wait until a file, or a folder with all it holds, is on the disk and not only in the system's memory."""
    for inside in path.iterdir() if with_content and path.is_dir() else ():
        _to_disk(inside)
    try:
        number = os.open(path, os.O_RDONLY)
    except PermissionError:
        return  # Windows opens no folders; there the rename itself is as safe as it gets
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that cannot do this
            raise
    finally:
        os.close(number)


def write_text(target: Path, text: str) -> None:
    """Write a small file, replacing an older one in one rename."""
    with replacing(target, overwrite=True) as part:
        part.write_text(text)


def write_json(target: Path, value: Any) -> None:
    """Write readable JSON, replacing an older file in one rename."""
    write_text(target, json_text(value, indent=2) + "\n")


def write_json_lines(target: Path, values: Iterable[Any]) -> None:
    """Write one line of JSON per value, replacing an older file in one rename."""
    write_text(target, "".join(json_text(value) + "\n" for value in values))


def json_text(value: Any, indent: int | None = None) -> str:
    """Return strict JSON: nan and inf, which JSON lacks, become null."""
    return json.dumps(_without_nan(value), indent=indent, allow_nan=False)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _without_nan(item) for name, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list | tuple) else value


def stop_writing() -> None:
    """Remove what other threads are writing; for the moment before the process ends."""
    _MOVING.acquire(timeout=1)
    for _ in range(3):  # a thread may put a file into a folder while it is removed
        for part in tuple(_PARTS):
            remove(part)


def remove_left(target: Path) -> None:
    """Remove what killed processes were writing to `target`; nothing else may be writing to it now."""
    for part in target.parent.glob(f".{escape(target.name)}.{'[0-9a-f]' * 8}.part"):
        remove(part)


def check_target(target: Path, overwrite: bool) -> None:
    """Raise InputError if `target` cannot be written; to be called before long work, not after it."""
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists already; {OTHER_NAME}")
    folder = target.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"{folder} is not a folder that can be written to; choose another place")


def check_apart(inputs: Sequence[str], target: str | Path) -> None:
    """Raise InputError if writing `target` (a file or a folder) would touch one of the inputs.

    An input must not be the target or lie inside it, under any name (links included), and a target must not lie
    inside an input that is a folder. Names that are not files (demo, minari:ID) are ignored.
    """
    out = Path(target).absolute()
    inside = {_identity(path) for path in (out, *out.rglob("*"))} - {None} if out.exists() else set()
    for name in inputs:
        path = Path(name).absolute()
        if not path.exists():
            continue
        places = {path, path.resolve()}
        if any(place.is_relative_to(end) for place in places for end in (out, out.resolve())):
            raise InputError(
                f"{name} is or lies in the output {target}, which would replace it; choose another output"
            )
        if _identity(path) in inside:
            raise InputError(f"{name} is in the output {target} under another name; choose another output")
        if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
            raise InputError(f"the output {target} lies in the input {name}; choose another output")


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode, which all names of one file share; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _disk_full(error: OSError) -> bool:
    """Recognise a full disk; NumPy has no error number, but says how much it could not write."""
    without_number = re.search(r"\d+ requested and \d+ written", str(error))
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) or without_number is not None


def _move(part: Path, target: Path) -> None:
    if target.exists() and target.is_dir() != part.is_dir():
        kinds = ("folder", "file") if target.is_dir() else ("file", "folder")
        raise InputError(f"{target} is a {kinds[0]}, where a {kinds[1]} should be written; choose another name")
    if not target.is_dir():
        part.replace(target)
        return
    # A folder cannot be renamed over one that is not empty: move the old one aside first and remove it last.
    aside = target.with_name(f".{target.name}.{uuid4().hex[:8]}.old")
    target.rename(aside)
    part.rename(target)
    remove(aside)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
