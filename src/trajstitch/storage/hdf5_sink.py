"""HDF5 through a file of Python's: where HDF5 itself cannot write, as on a full disk, it crashes the process."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
_BOOKS = 1 << 20  # bytes; HDF5 writes larger pieces only of arrays, which it does not read back


class Sink(io.RawIOBase):
    """A new file that never fails while HDF5 writes to it; `check` raises what went wrong.

    From the first failure on, nothing more is written, but HDF5 is told that all is well. It can read back what it
    keeps books with, and so close its file in order: what HDF5 cannot close crashes when the process ends.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("x+b", buffering=0)
        self._at = self._end = 0
        self._error: OSError | None = None
        self._unwritten: list[tuple[int, bytes]] = []  # (place, bytes), in order, but not large arrays

    def check(self) -> None:
        """Raise the OSError that an earlier write met, if there was one."""
        if self._error is not None:
            raise self._error

    def watch(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items that are to be written, until a write fails."""
        for item in items:
            self.check()
            yield item

    def write(self, data: Any) -> int:
        """Write all bytes, or remember why they could not be written."""
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while self._error is None and len(left):
                self._file.seek(self._at + size - len(left))
                left = left[self._file.write(left) :]
        except OSError as error:
            self._error = error
        if len(left) and size <= _BOOKS:
            self._unwritten.append((self._at, bytes(data)))
        self._at += size
        self._end = max(self._end, self._at)
        return size

    def readinto(self, data: Any) -> int:
        """Read; what was never written is 0."""
        target = memoryview(data).cast("B")
        target[:] = bytes(len(target))
        self._file.seek(self._at)
        self._file.readinto(target)
        for place, written in self._unwritten:
            begin, end = max(place, self._at), min(place + len(written), self._at + len(target))
            if begin < end:
                target[begin - self._at : end - self._at] = written[begin - place : end - place]
        size = max(min(len(target), self._end - self._at), 0)
        self._at += size
        return size

    def truncate(self, size: int | None = None) -> int:
        """Set the size."""
        self._end = self._at if size is None else size
        try:
            if self._error is None:
                self._file.truncate(self._end)
        except OSError as error:
            self._error = error
        return self._end

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


@contextmanager
def writing(path: Path) -> Iterator[Sink]:
    """Yield a file to give to h5py in place of a path; raise OSError at the end if it could not be written."""
    sink = Sink(path)
    try:
        yield sink
        sink.check()
    except Exception:
        sink.check()  # if something failed because of the disk, say that
        raise
    finally:
        sink.close()
