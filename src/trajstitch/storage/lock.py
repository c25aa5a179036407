"""Locks: one process at a time; the operating system releases a lock when its process ends, however it ends."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from trajstitch.errors import InputError
from trajstitch.storage.atomic import remove_left, reporting

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

NAME = ".lock"  # of the file in a folder that is in use
_WAIT = 0.2  # seconds between two looks whether another process has finished


@contextmanager
def holding(folder: Path) -> Iterator[None]:
    """Make the folder if need be, and hold its lock; InputError with the name of the process that has it."""
    path = folder / NAME
    with reporting(path):
        folder.mkdir(parents=True, exist_ok=True)
        file = _take(path)
    with file:
        try:
            with reporting(path):
                mine = {"pid": os.getpid(), "host": platform.node(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
                file.truncate(0)
                file.write(json.dumps(mine).encode())
                file.flush()
            yield
        finally:
            with suppress(OSError):  # Windows keeps open files
                path.unlink()


@contextmanager
def waiting_for(target: Path) -> Iterator[None]:
    """Let one process at a time make `target`; the operating system lets the next one in when a process ends.

    What a killed process had written of it is removed.
    """
    lock = target.with_name(f".{target.name}.lock")
    with reporting(lock):
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = lock.open("ab")
    with file:
        while not try_lock(file):
            time.sleep(_WAIT)
        remove_left(target)
        yield


def _take(path: Path) -> IO[bytes]:
    """Open and lock this file."""
    while True:
        file = path.open("a+b")
        if not try_lock(file):
            with file:
                raise InputError(
                    f"{path.parent} is in use by {_holder(file)}; wait until it has ended, or choose another name"
                )
        if _is_there(file, path):
            return file
        file.close()  # whoever had it removed it just now


def _is_there(file: IO[bytes], path: Path) -> bool:
    """Whether the path still names this file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _holder(file: IO[bytes]) -> str:
    """Return which process wrote into the lock."""
    try:
        file.seek(0)
        by = json.loads(file.read())
        return f"process {by['pid']} on {by['host']} since {by['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"  # which has not written its name yet


if sys.platform == "win32":

    def try_lock(file: IO[bytes]) -> bool:
        """Lock the file, unless another process has locked it."""
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:

    def try_lock(file: IO[bytes]) -> bool:
        """Lock the file, unless another process has locked it."""
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
