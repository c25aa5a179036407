"""Files that appear whole or not at all: written beside their place, then renamed into it."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from trajstitch.errors import InputError


@contextmanager
def replacing(target: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a path beside `target` to write a file or folder to; it takes the target's place when the block ends.

    When the block fails nothing of it is left and an older target is as it was.
    """
    target = Path(target).absolute()
    check_target(target, overwrite)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{target.parent}: cannot make this folder ({error.strerror})") from error
    part = target.with_name(f".{target.name}.{uuid4().hex[:8]}.part")
    try:
        try:
            yield part
            _move(part, target)
        except BaseException:
            _remove(part)
            raise
    except OSError as error:
        if _disk_full(error):
            raise InputError(f"{target}: the disk is full; free some space and run it again") from error
        raise InputError(
            f"{target}: cannot be written ({error.strerror or error}); choose another place"
        ) from error


def write_text(target: Path, text: str) -> None:
    """Write a small file in one rename, over an older one."""
    with replacing(target, overwrite=True) as part:
        part.write_text(text)


def write_json(target: Path, value: Any) -> None:
    """Write readable JSON in one rename, over an older one."""
    write_text(target, json.dumps(value, indent=2) + "\n")


def check_target(target: Path, overwrite: bool) -> None:
    """InputError where `target` cannot be written; better said before long work than after."""
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists already; choose another name or pass --overwrite")
    folder = target.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"{folder} is not a folder that can be written to; choose another place")


def _disk_full(error: OSError) -> bool:
    """HDF5 has the number in its text only, and NumPy, which has none, says how much it could not write."""
    numbers = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    in_text = re.search(r"errno = (\d+)", str(error))
    return (
        error.errno in numbers
        or (in_text is not None and int(in_text[1]) in numbers)
        or re.search(r"\d+ requested and \d+ written", str(error)) is not None
    )


def _move(part: Path, target: Path) -> None:
    if target.exists() and target.is_dir() != part.is_dir():
        kinds = ("folder", "file") if target.is_dir() else ("file", "folder")
        raise InputError(f"{target} is a {kinds[0]}, where a {kinds[1]} should be written; choose another name")
    if not target.is_dir():
        part.replace(target)
        return
    # A folder cannot be renamed over a full one: the old one steps aside and is removed last.
    aside = target.with_name(f".{target.name}.{uuid4().hex[:8]}.old")
    target.rename(aside)
    part.rename(target)
    _remove(aside)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
