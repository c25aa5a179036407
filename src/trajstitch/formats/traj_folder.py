"""Our own format: a folder `name.traj` with one .npy file per array, memory-mapped, so it opens at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import ARRAYS, Dataset, normalised_weight
from trajstitch.errors import InputError
from trajstitch.formats.npz import converted, load_seams, save_seams
from trajstitch.storage.archive import map_array, read_text
from trajstitch.storage.atomic import replacing


def read(path: Path, episode_horizon: int | None = None) -> Dataset:
    """Memory-map the arrays; they are scanned once for nan and inf, and not held in memory."""
    if episode_horizon is not None:
        raise InputError("this folder records where its episodes end; leave --episode-horizon out")
    arrays: dict[str, NDArray[Any]] = {}
    weighed = (path / "weight.npy").exists()
    for name in (*ARRAYS, "weight") if weighed else ARRAYS:
        file = path / f"{name}.npy"
        if not file.exists():
            raise InputError(f"{file.name} is missing; a .traj folder holds {', '.join(ARRAYS)} as .npy files")
        array = map_array(file)
        arrays[name] = normalised_weight(array) if name == "weight" else converted(name, array)
    info = path / "info.json"
    seams = path / "seams.npz"
    return Dataset(
        **arrays,
        info=json.loads(read_text(info)) if info.exists() else {},
        seams=load_seams(seams) if seams.exists() else None,
    )


def write(data: Dataset, target: str, overwrite: bool = False) -> None:
    """Write the folder; one rename puts it in its place."""
    old = Path(target)
    if old.is_dir() and any(old.iterdir()) and not (old / "obs.npy").exists():
        raise InputError(f"{target} is a folder that holds something else; choose another name")
    with replacing(target, overwrite) as part:
        part.mkdir()
        for name, array in data.arrays().items():
            np.save(part / f"{name}.npy", array)
        if data.seams:
            save_seams(data.seams, part / "seams.npz")
        (part / "info.json").write_text(json.dumps(dict(data.info), indent=2) + "\n")
