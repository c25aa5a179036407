"""npz: our arrays under our own names, or a table under D4RL's or OGBench's keys; without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import ARRAYS, Dataset, Seams, as_float32, check_flags, normalised_weight
from trajstitch.errors import InputError
from trajstitch.formats.d4rl import OPTIONAL, REQUIRED, check_continuous, from_table
from trajstitch.formats.ogbench import from_ogbench, is_ogbench
from trajstitch.storage.archive import INFO, read_arrays, write_arrays

_SEAMS = "seams_"


def read(path: Path, episode_horizon: int | None = None) -> Dataset:
    """Read any of these layouts; the keys show which one it is."""
    table = read_arrays(path)
    info = json.loads(str(table.pop(INFO, "{}")))
    if "obs" in table:
        if episode_horizon is not None:
            raise InputError("this file records where its episodes end; leave --episode-horizon out")
        if missing := [name for name in ARRAYS if name not in table]:
            raise InputError(
                f"it holds {_listed(table)}, but {missing[0]!r} is missing; save all arrays under our names "
                f"({', '.join(ARRAYS)}), or all under D4RL's ({', '.join(REQUIRED)})"
            )
        arrays = {name: converted(name, table[name]) for name in ARRAYS}
        if "weight" in table:
            arrays["weight"] = normalised_weight(table["weight"])
        seams = {k.removeprefix(_SEAMS): v for k, v in table.items() if k.startswith(_SEAMS)}
        return Dataset(**arrays, info=info, seams=Seams(**seams) if seams else None)
    if is_ogbench(table):
        if episode_horizon is not None:
            raise InputError("this file records where its episodes end; leave --episode-horizon out")
        return from_ogbench(table, info)
    if not table.keys() & {*REQUIRED}:
        raise InputError(
            f"it holds {_listed(table)}, none of which is an array of a data set; save observations, actions, "
            "rewards, terminals and timeouts under these names"
        )
    return from_table({name: table[name] for name in REQUIRED + OPTIONAL if name in table}, info, episode_horizon)


def converted(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Return one of our arrays with the dtype that it has in a Dataset, unchanged if it has it.

    Numbers of any width are taken as in a D4RL file; what does not fit into float32 becomes inf, which a Dataset
    refuses.
    """
    if array.dtype.kind not in "bfiu":
        raise InputError(f"{name} holds {array.dtype}, not numbers")
    if name == "terminal":
        return check_flags(name, array)
    if name == "start":
        return array.astype(np.int64, copy=False) if array.dtype.kind in "iu" else array
    if name == "action":
        check_continuous(array)
    return as_float32(array)


def _listed(table: Mapping[str, object]) -> str:
    """Return the first few names in a file."""
    names = sorted(table)
    return ", ".join(names[:8]) + (" …" if len(names) > 8 else "") or "nothing"


def write(data: Dataset, target: str, overwrite: bool = False) -> None:
    """Write our own layout, uncompressed."""
    seams = data.seams.arrays() if data.seams else {}
    write_arrays(target, data.arrays() | {_SEAMS + k: v for k, v in seams.items()}, data.info, overwrite)


def save_seams(seams: Seams, target: Path) -> None:
    """Write the seams table alone."""
    write_arrays(target, seams.arrays(), {}, overwrite=True)


def load_seams(path: Path) -> Seams:
    """Read a seams table that was saved alone."""
    arrays = read_arrays(path)
    arrays.pop(INFO, None)
    return Seams(**arrays)
