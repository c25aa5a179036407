"""Archive: npz files, read and written without pickle; whatever is wrong with a file raises InputError."""

from __future__ import annotations

import json
import math
import stat
import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.errors import InputError
from trajstitch.storage.atomic import replacing

INFO = "info_json"  # key of the metadata in a file
_EXPANSION = 100  # a file may unpack to so many times its size …
_ALLOWANCE = 32 << 20  # … plus so many bytes
_LFS = b"version https://git-lfs"  # how a Git LFS pointer begins
_LONGEST_EMPTY = 1 << 31  # numbers that an array of no numbers would have with 1 in place of 0
_LONGEST = 300  # characters of another library's message that are shown
_LONGEST_SENTENCE = 1500  # characters of what is said of a file


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn every error inside the block into an InputError that names this file: damage causes errors of any kind.

    Its sentence has one line and an end, whatever a damaged file puts into it. What is neither a plain file nor a
    folder, such as a pipe, is refused before the block opens it.
    """
    try:
        if path.exists() and not path.is_dir():
            check_file(path)
        yield
    except InputError as error:
        raise InputError(_shortened(" ".join(str(error).splitlines()), _LONGEST_SENTENCE)).within(path) from error
    except PermissionError as error:
        raise InputError(f"{path}: this file cannot be read; change its permissions") from error
    except MemoryError as error:
        raise InputError(f"{path}: there is not enough memory to read this file") from error
    except Exception as error:
        raise InputError(
            f"{path}: this file is damaged or has a layout that trajstitch does not know ({reason(error)})"
        ) from error


def reason(error: BaseException) -> str:
    """Return the message of another library's error as one short line."""
    return _shortened(" ".join(str(error).split()), _LONGEST) or type(error).__name__


def _shortened(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + " …"


def check_file(path: Path) -> None:
    """Raise InputError if this is no plain file (opening a pipe would wait for ever) or only stands for one."""
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise InputError("this is a folder, not a file; copy the file again")
    if not stat.S_ISREG(mode):
        raise InputError("this is a pipe or a device, not a file; copy what it gives into a file first")
    with path.open("rb") as file:
        if file.read(len(_LFS)) == _LFS:
            raise InputError(
                "this is a Git LFS pointer, which only stands for the file; run git lfs pull where it came from"
            )


def read_text(file: Path) -> str:
    """Return the text of a plain file; anything else is refused, and not waited for."""
    check_file(file)
    return file.read_text()


def map_array(file: Path) -> NDArray[Any]:
    """Memory-map a .npy file, which must be as long as it declares."""
    try:
        check_file(file)
        array: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    except InputError as error:
        raise error.within(file.name) from error
    except Exception as error:  # NumPy's reader of headers raises errors of many types
        raise InputError(f"{file.name} is truncated or not a plain .npy array; copy it again") from error
    return array


def check_shape(shape: Sequence[int]) -> None:
    """Raise InputError if an empty array is so long otherwise that converting it would take for ever."""
    if 0 in shape and math.prod(max(1, int(n)) for n in shape) > _LONGEST_EMPTY:
        raise InputError(f"an array declares the shape {tuple(shape)}, which holds nothing; the file is damaged")


def check_room(stored: int, size: int) -> None:
    """Raise InputError if a file declares far more bytes than it holds; to be called before they are allocated."""
    if size > _EXPANSION * stored + _ALLOWANCE:
        raise InputError(
            f"the file has {stored:,} bytes but declares arrays of {size:,}, more than {_EXPANSION} "
            "times as many; it is damaged or made to fill the memory: copy it again"
        )


def read_arrays(path: Path, names: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """Read all arrays of an npz file, or those of these names that it has; InputError if it is damaged."""
    check_file(path)
    if not zipfile.is_zipfile(path):
        raise InputError("this is not an npz file, or it is empty or truncated; copy it again")
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(archive)
            check_room(path.stat().st_size, sum(member.file_size for member in members.values()))
            wanted = {name: member for name, member in members.items() if names is None or name in names}
            return {name: _read_member(archive, name, member) for name, member in wanted.items()}
    except InputError:
        raise
    except Exception as error:  # zipfile, its decompressors and NumPy raise errors of a dozen types
        raise InputError(f"this npz file is damaged; copy it again ({reason(error)})") from error


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the arrays' entries by the name of the array; other entries are not looked at."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        parts = PurePosixPath(member.filename.replace("\\", "/")).parts
        if ".." in parts or parts[:1] == ("/",):
            raise InputError(f"this npz names {member.filename!r}, a place outside it; it is not to be trusted")
        if not member.filename.endswith(".npy"):
            continue
        name = member.filename.removesuffix(".npy")
        if name in members:
            raise InputError(f"this npz holds {name!r} twice; save it again")
        members[name] = member
    return members


def _read_member(archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(member) as file:
        declared = _declared_size(file)
        if declared > member.file_size - file.tell():
            raise InputError(f"{name} declares {declared:,} bytes but has fewer; copy this npz file again")
    with archive.open(member) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def _declared_size(file: IO[bytes]) -> int:
    """Read the header of a .npy file and return the bytes of its array."""
    version = np.lib.format.read_magic(file)
    headers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in headers:
        raise InputError(f"this npz has a .npy array of version {version}, which trajstitch does not know")
    shape, _, dtype = headers[version](file)
    if dtype.hasobject:
        raise InputError("this npz holds Python objects, which are never loaded; save plain number arrays")
    check_shape(shape)
    return int(np.prod([int(n) for n in shape], dtype=object)) * dtype.itemsize


def write_arrays(target: str | Path, arrays: dict[str, Any], info: Any, overwrite: bool = False) -> None:
    """Write arrays and JSON metadata to one npz file."""
    with replacing(target, overwrite) as part, part.open("wb") as file:
        np.savez(file, **{**arrays, INFO: np.array(json.dumps(dict(info)))})
