"""Trajectories of the `imitation` package: a folder that Hugging Face's `datasets` saved, or its Parquet files.

One row is one trajectory, which has one state more than actions, as ours:

    obs       [[s0], [s1], [s2]]      acts      [[a0], [a1]]      rews    [r0, r1], not in every file
    terminal  true                    infos     texts, left aside; "{}" when written

Read and written with pyarrow alone.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Dataset, check_finite, check_flags, normalised_weight
from trajstitch.errors import InputError
from trajstitch.formats.features import Features
from trajstitch.formats.npz import load_seams, save_seams
from trajstitch.progress import Tell, silent
from trajstitch.storage.archive import map_array, read_text, reading, reason
from trajstitch.storage.atomic import replacing
from trajstitch.storage.tables import import_arrow, is_even, is_list, parquet_names, read_parquet, read_stream

PREFIX = "imitation:"
_NEEDED = ("obs", "acts", "terminal")
_REWARD = "rews"  # not in every file
_STATE = "state.json"  # what `datasets` writes beside its tables
_NOTE, _WEIGHT, _SEAMS = "trajstitch.json", "weight.npy", "seams.npz"


def is_imitation(path: Path) -> bool:
    """Whether this is a folder that `datasets` saved."""
    return (path / _STATE).exists() and any(path.glob("*.arrow"))


def read(name: str, features: Features | None = None, tell: Tell = silent) -> Dataset:
    """Read the trajectories of a folder or of a Parquet file."""
    path = Path(name.removeprefix(PREFIX))
    if features is not None and features.chosen:
        option = features.chosen[0].replace("_", "-")
        raise InputError(f"{path} has no named features to choose from; leave --{option} out")
    if not path.exists():
        raise InputError(f"{path}: there is no such file or folder")
    with reading(path):
        table = _table(path)
        if missing := [key for key in _NEEDED if key not in table.column_names]:
            raise InputError(
                f"the column {missing[0]!r} is missing; trajectories of imitation have {', '.join(_NEEDED)}, one "
                "row per trajectory"
            )
        return _with_ours(_from_table(table), path)


def _with_ours(data: Dataset, folder: Path) -> Dataset:
    """Return the data with what we wrote beside the table: a column more, and imitation would not read it."""
    note, weight, seams = (folder / name for name in (_NOTE, _WEIGHT, _SEAMS))
    return replace(
        data,
        info=json.loads(read_text(note)) if note.exists() else {},
        weight=normalised_weight(np.array(map_array(weight))) if weight.exists() else None,
        seams=load_seams(seams) if seams.exists() else None,
    )


def write(data: Dataset, target: str, overwrite: bool = False) -> None:
    """Write a folder that `datasets.load_from_disk`, and so `imitation`, loads."""
    arrow, _ = import_arrow()
    path = Path(target.removeprefix(PREFIX))
    if path.is_dir() and any(path.iterdir()) and not is_imitation(path):
        raise InputError(f"{path} is a folder that holds something else; choose another name")
    states = data.start + np.arange(len(data) + 1)
    columns = {
        "obs": _lists(_vectors(data.obs), states),
        "acts": _lists(_vectors(data.action), data.start),
        "infos": _lists(arrow.array(["{}"] * data.transitions), data.start),
        "terminal": arrow.array(data.terminal),
        "rews": _lists(arrow.array(data.reward), data.start),
    }
    table, name = arrow.table(columns), "data-00000-of-00001.arrow"
    with replacing(path, overwrite) as part:
        part.mkdir()
        with (part / name).open("wb") as file, arrow.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
        features = {key: _feature(column.type) for key, column in columns.items()}
        nothing = dict.fromkeys(("_split", "_format_columns", "_format_type"))
        files = {"_data_files": [{"filename": name}], "_fingerprint": data.fingerprint[:16]}
        state: dict[str, Any] = {**nothing, **files, "_format_kwargs": {}, "_output_all_columns": False}
        (part / _STATE).write_text(json.dumps(state))
        (part / "dataset_info.json").write_text(json.dumps({"features": features}))
        (part / _NOTE).write_text(json.dumps(dict(data.info)))
        if data.weight is not None:
            np.save(part / _WEIGHT, data.weight)
        if data.seams:
            save_seams(data.seams, part / _SEAMS)


def _feature(kind: Any) -> dict[str, Any]:
    """Return how `datasets` describes a column."""
    arrow, _ = import_arrow()
    if arrow.types.is_list(kind):
        return {"feature": _feature(kind.value_type), "_type": "Sequence"}
    return {"dtype": {"float": "float32"}.get(str(kind), str(kind)), "_type": "Value"}


def _table(path: Path) -> Any:
    arrow, _ = import_arrow()
    try:
        if path.is_file():
            return _read_parquet(path)
        if is_imitation(path):
            names = [file["filename"] for file in json.loads(read_text(path / _STATE))["_data_files"]]
            return arrow.concat_tables([read_stream(_inside(path, name)) for name in names])
        files = sorted(path.rglob("*.parquet"))
        if not files:
            raise InputError("there is neither state.json with .arrow files nor a .parquet file in this folder")
        return arrow.concat_tables([_read_parquet(file) for file in files])
    except (OSError, ValueError) as error:
        raise InputError(f"its tables are missing or damaged ({reason(error)}); download them again") from error


def _read_parquet(file: Path) -> Any:
    """Read what is used of a table: infos may be most of it."""
    return read_parquet(file, [name for name in parquet_names(file) if name in (*_NEEDED, _REWARD)])


def _inside(folder: Path, name: str) -> Path:
    """Return a file that the folder names; InputError if it is none of its own."""
    if Path(name).name != name:
        raise InputError(f"{_STATE} names {name}, which is not a file of this folder; it is not followed")
    return folder / name


def _from_table(table: Any) -> Dataset:
    obs, states = _flat(table["obs"], "obs", 2)
    action, steps = _flat(table["acts"], "acts", 2)
    if action.dtype.kind != "f":
        raise InputError(f"acts are {action.dtype}; only continuous (float) actions can be used")
    if (wrong := np.flatnonzero(states != steps + 1)).size:
        m = wrong[0]
        raise InputError(f"trajectory {m} has {states[m]} states and {steps[m]} actions; it needs one state more")
    reward = np.zeros(len(action), np.float32)
    if _REWARD in table.column_names:
        reward, length = _flat(table[_REWARD], _REWARD, 1)
        if (wrong := np.flatnonzero(length != steps)).size:
            m = wrong[0]
            raise InputError(
                f"rews of trajectory {m} has {length[m]} rows for {steps[m]} actions; give one for each"
            )
    for key, rows in (("obs", obs), ("acts", action), ("rews", reward)):
        check_finite(key, rows)
    return Dataset(
        obs=np.ascontiguousarray(obs, np.float32),
        action=np.ascontiguousarray(action, np.float32),
        reward=np.ascontiguousarray(reward, np.float32),
        start=np.concatenate([[0], np.cumsum(steps)]),
        terminal=_flags(table["terminal"]),
    )


def _flags(column: Any) -> NDArray[np.bool_]:
    arrow, _ = import_arrow()
    if column.null_count:
        raise InputError(f"terminal is null in {column.null_count} trajectories; remove those")
    if not (arrow.types.is_boolean(column.type) or arrow.types.is_integer(column.type)):
        raise InputError(f"terminal holds {column.type}, not flags")
    return check_flags("terminal", column.to_numpy())


def _flat(column: Any, name: str, depth: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the rows of all trajectories one after another, and how many each has."""
    arrow, _ = import_arrow()
    whole = arrow.concat_arrays(column.chunks) if column.num_chunks else arrow.array([], column.type)
    if whole.null_count:
        raise InputError(f"{name} is null in {whole.null_count} trajectories; remove those")
    length = np.diff(whole.offsets.to_numpy())
    flat = whole.flatten()
    rows = len(flat)
    for _ in range(depth - 1):
        if not is_list(flat.type):
            raise InputError(f"{name} holds one {flat.type} per step, not a vector; only vectors can be used")
        if not rows or not is_even(flat):
            raise InputError(f"{name} has vectors of different sizes, or none")
        flat = flat.flatten()
    if is_list(flat.type):
        raise InputError(f"{name} has more than one dimension per step, as images have; only vectors can be used")
    kinds = (arrow.types.is_floating, arrow.types.is_integer, arrow.types.is_boolean)
    if flat.null_count or not any(check(flat.type) for check in kinds):
        raise InputError(f"{name} holds {flat.type}{' and null' if flat.null_count else ''}, not numbers")
    values = flat.to_numpy(zero_copy_only=False)
    return values.reshape(rows, -1) if depth == 2 else values, length.astype(np.int64)


def _vectors(rows: NDArray[np.float32]) -> Any:
    arrow, _ = import_arrow()
    ends = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32)
    return arrow.ListArray.from_arrays(ends, arrow.array(np.ascontiguousarray(rows).reshape(-1)))


def _lists(values: Any, start: NDArray[Any]) -> Any:
    arrow, _ = import_arrow()
    return arrow.ListArray.from_arrays(np.asarray(start, np.int32), values)
