"""Archive: npz files, read and written without pickle; a damaged file raises InputError."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.errors import InputError
from trajstitch.storage.atomic import replacing

INFO = "info_json"  # key of the metadata in a file


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors inside the block into an InputError that names this file; damage causes errors of many kinds."""
    try:
        yield
    except InputError as error:
        raise error.within(path) from error
    except PermissionError as error:
        raise InputError(f"{path}: this file cannot be read; change its permissions") from error
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        what = " ".join(str(error).split())
        raise InputError(
            f"{path}: this file is damaged or has a layout that trajstitch does not know ({what})"
        ) from error


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of an npz file; InputError if it is damaged."""
    if not zipfile.is_zipfile(path):
        raise InputError("this is not an npz file, or it is empty or truncated; copy it again")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except ValueError as error:
        if "pickle" in str(error).lower():
            raise InputError(
                "this npz holds Python objects, which are never loaded; save plain number arrays"
            ) from error
        raise InputError(f"this npz file is damaged ({error})") from error
    except (zipfile.BadZipFile, EOFError, OSError) as error:
        raise InputError(f"this npz file is damaged; copy it again ({error})") from error


def write_arrays(target: str | Path, arrays: dict[str, Any], info: Any, overwrite: bool = False) -> None:
    """Write arrays and JSON metadata to one npz file."""
    with replacing(target, overwrite) as part, part.open("wb") as file:
        np.savez(file, **{**arrays, INFO: np.array(json.dumps(dict(info)))})
