"""npz: our arrays under our own names, or a table under D4RL's keys; never pickled."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import ARRAYS, Dataset, Seams
from trajstitch.errors import InputError
from trajstitch.files import replacing
from trajstitch.formats.d4rl import OPTIONAL, REQUIRED, from_table

_INFO = "info_json"
_SEAMS = "seams_"


def read(path: Path, horizon: int | None = None) -> Dataset:
    """Read either kind, told apart by its keys."""
    table = read_arrays(path)
    info = json.loads(str(table.pop(_INFO, "{}")))
    if "obs" in table:
        if horizon is not None:
            raise InputError("this file records where its episodes end; leave --horizon out")
        if missing := [name for name in ARRAYS if name not in table]:
            raise InputError(f"the key {missing[0]!r} is missing; our own npz holds {', '.join(ARRAYS)}")
        seams = {k.removeprefix(_SEAMS): v for k, v in table.items() if k.startswith(_SEAMS)}
        return Dataset(
            **{name: table[name] for name in ARRAYS}, info=info, seams=Seams(**seams) if seams else None
        )
    return from_table({name: table[name] for name in REQUIRED + OPTIONAL if name in table}, info, horizon)


def write(data: Dataset, target: str, overwrite: bool = False) -> None:
    """Write our own names, uncompressed."""
    arrays = {name: getattr(data, name) for name in ARRAYS}
    seams = data.seams.arrays() if data.seams else {}
    write_arrays(target, arrays | {_SEAMS + k: v for k, v in seams.items()}, data.info, overwrite)


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of an npz file, or a sentence on what is wrong with it."""
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
    """Write arrays and a JSON-able note beside them to one npz file."""
    with replacing(target, overwrite) as part, part.open("wb") as file:
        np.savez(file, **{**arrays, _INFO: np.array(json.dumps(dict(info)))})


def save_seams(seams: Seams, target: Path) -> None:
    """The seams table alone."""
    write_arrays(target, seams.arrays(), {}, overwrite=True)


def load_seams(path: Path) -> Seams:
    """A seams table kept alone."""
    arrays = read_arrays(path)
    arrays.pop(_INFO, None)
    return Seams(**arrays)
