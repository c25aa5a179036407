"""Frame weights: a Parquet file of one weight per frame, with the index columns of LeRobot's tables.

    index          0  1  2 │ 3  4     int64    number of the frame in the data set
    episode_index  0  0  0 │ 1  1     int64    number of its trajectory
    frame_index    0  1  2 │ 0  1     int64    number of the frame in its trajectory
    weight        w0 w1 w2 │w3 w4     float32  how much the step counts when cloned: 0 or more, mean 1

A frame is a state and the action taken in it, so T steps have T rows. The last state of a trajectory, in which no
action was taken, has none.

LeRobot's own sample weights are made from a column of progress, by how much it grows over a chunk of actions. No
progress gives back these weights, so there is no such column, and LeRobot refuses to make others from this file.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.storage.atomic import check_target, replacing


def check(target: str, overwrite: bool) -> None:
    """Raise InputError if `target` cannot be written; to be called before long work, not after it."""
    if Path(target).suffix != ".parquet":
        raise InputError(f"{target}: frames are written as Parquet; give a name that ends in .parquet")
    check_target(Path(target), overwrite)
    _import_arrow()


def write(data: Dataset, target: str, overwrite: bool = False) -> None:
    """Write one row per frame, in the order of the data."""
    check(target, overwrite)
    if data.weight is None:
        raise InputError("the data have no weights; trajstitch weigh makes them")
    arrow, parquet = _import_arrow()
    index = np.arange(data.transitions)
    columns = {
        "index": index,
        "episode_index": data.trajectory,
        "frame_index": index - data.start[data.trajectory],
        "weight": data.weight,
    }
    with replacing(target, overwrite) as part, part.open("wb") as file:
        parquet.write_table(arrow.table(columns), file)


def _import_arrow() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise InputError("Parquet files need pyarrow; run pip install 'trajstitch[parquet]'") from error
