"""D4RL's HDF5 layout, in all its variants, to and from `Dataset`; npz files may have the same keys.

A D4RL file is one long table of transitions in which episodes follow one another:

    observations  s0 s1 s2 │ s0 s1        the successor of the row before a │ is NOT the row after it
    next_obs…     s1 s2 s3 │ s1 s2        not in every file
    terminals      0  0  1 │  0  0        the episode ended
    timeouts       0  0  0 │  0  1        the episode was cut; not in every file
    weights       w0 w1 w2 │ w0 w1        ours: how much a step counts when cloned; only where data have weights
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import (
    Bool,
    Dataset,
    Float,
    Info,
    Int,
    Seams,
    as_float32,
    check_finite,
    check_flags,
    normalised_weight,
)
from trajstitch.errors import InputError
from trajstitch.formats.episode_ends import GOAL, find_ends
from trajstitch.storage.atomic import replacing
from trajstitch.storage.hdf5_sink import writing

REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("next_observations", "timeouts", "weights", GOAL)
_NDIM = {"observations": 2, "next_observations": 2, "actions": 2}


def read(path: Path, episode_horizon: int | None = None, usual_horizon: int | None = None) -> Dataset:
    """Read a D4RL file; `info` says what could not be kept (`dropped_steps`, `split_by`, …).

    `usual_horizon` is the time limit that is used only if the file records no time-outs.
    """
    import h5py

    from trajstitch.storage.hdf5 import check_arrays, open_hdf5, plain_attributes

    with open_hdf5(path) as file:
        found = {name: file.get(name) for name in REQUIRED + OPTIONAL}
        for name, group in found.items():
            if isinstance(group, h5py.Group):  # Dict observations, as of goals or cameras
                parts = ", ".join(sorted(group)) or "nothing"
                raise InputError(f"{name} holds {parts}, not one array; put its arrays side by side, [N, size]")
        arrays = {name: array for name, array in found.items() if isinstance(array, h5py.Dataset)}
        seam_arrays = dict(file["seams"].items()) if "seams" in file else {}
        check_arrays(path, {**arrays, **seam_arrays})
        table = {name: _read_array(name, array) for name, array in arrays.items()}
        seams = {name: array[()] for name, array in seam_arrays.items()}
        info = plain_attributes(file)
    data = from_table(table, info, episode_horizon if "timeouts" in table else episode_horizon or usual_horizon)
    return replace(data, seams=Seams(**seams)) if seams else data


def write(data: Dataset, target: str, overwrite: bool = False) -> None:
    """Write D4RL's layout, uncompressed, with `info` as attributes of the file."""
    import h5py

    arrays = to_table(data)
    arrays |= {f"seams/{name}": array for name, array in data.seams.arrays().items()} if data.seams else {}
    with replacing(target, overwrite) as part, writing(part) as sink, h5py.File(sink, "w") as file:
        for name, array in sink.watch(arrays.items()):
            file.create_dataset(name, data=array)
        file.attrs.update(data.info)


def to_table(data: Dataset) -> dict[str, NDArray[Any]]:
    """Return the arrays under D4RL's keys; every cut becomes a time-out."""
    terminals, timeouts = np.zeros((2, data.transitions), bool)
    last = data.start[1:] - 1
    terminals[last] = data.terminal
    timeouts[last] = ~data.terminal
    table = {
        "observations": data.obs[data.row],
        "next_observations": data.obs[data.row + 1],
        "actions": data.action,
        "rewards": data.reward,
        "terminals": terminals,
        "timeouts": timeouts,
    }
    return table if data.weight is None else table | {"weights": data.weight}


def from_table(table: Mapping[str, NDArray[Any]], info: Info, episode_horizon: int | None = None) -> Dataset:
    """Build a Dataset from the arrays of a D4RL file; no step crosses the end of an episode."""
    checked = _check_table(table)
    cut = find_ends(checked, episode_horizon)
    obs, successor = checked["observations"], checked.get("next_observations")
    last = np.flatnonzero(cut.end)
    lost = cut.lost[last]
    length = np.diff(last, prepend=-1) - lost
    whole = length > 0
    note = dict(info) | cut.note
    # The state after a lost step is not known: drop that step, but keep how the episode ended.
    if dropped_steps := int(lost.sum()):
        note["dropped_steps"] = dropped_steps
    if dropped := int((~whole).sum()):
        note["dropped_episodes"] = dropped
    if not whole.any():
        raise InputError(
            "no episode has two steps, and next_observations is missing or of other episodes, "
            "so none has a successor"
        )
    keep: Any = ~cut.lost if dropped_steps else slice(None)
    return Dataset(
        obs=_states(obs, successor, last, lost, whole),
        action=checked["actions"][keep],
        reward=checked["rewards"][keep],
        start=np.concatenate([[0], np.cumsum(length[whole])]),
        terminal=checked["terminals"][last][whole],
        info=note,
        weight=_weight(checked, keep),
    )


def _states(obs: Float, successor: Float | None, last: Int, lost: Bool, whole: Bool) -> Float:
    """Return the states of the whole episodes: their rows, then the successor of a last step that is not lost."""
    if successor is None:  # what is left of an episode of T rows is its T states and the T-1 steps between them
        rows = np.ones(len(obs), bool)
        rows[last[~whole]] = False
        return obs if whole.all() else obs[rows]
    states = np.empty((len(obs) - int((~whole).sum()) + int((~lost).sum()), obs.shape[1]), np.float32)
    begin = at = 0
    # Copying slices is ten times faster than a mask over the rows.
    for end, is_lost, is_whole in zip((last + 1).tolist(), lost.tolist(), whole.tolist(), strict=True):
        if is_whole:
            size = end - begin
            states[at : at + size] = obs[begin:end]
            at += size
            if not is_lost:
                states[at] = successor[end - 1]
                at += 1
        begin = end
    return states


def _weight(table: Mapping[str, NDArray[Any]], keep: Any) -> Float | None:
    """Return the weights of the steps that are kept; None if the file has none."""
    return normalised_weight(table["weights"][keep], "weights") if "weights" in table else None


# -- reading and checking one array ----------------------------------------------------------------------------


def _read_array(name: str, source: Any) -> NDArray[Any]:
    """Read floats of any width directly into float32, without a second copy."""
    if source.dtype.kind == "f" and name not in ("terminals", "timeouts"):
        array = np.empty(source.shape, np.float32)
        if array.size:
            source.read_direct(array)
        return array
    return np.asarray(source[()])


def _check_table(table: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays in their expected shapes and dtypes, all of one length and with finite numbers."""
    for name in REQUIRED:
        if name not in table:
            hint = ": where there are none, add zeros" if name == "rewards" else ""
            raise InputError(f"the key {name!r} is missing; a D4RL file needs {', '.join(REQUIRED)}{hint}")
    names = [name for name in REQUIRED + OPTIONAL if name in table and name != GOAL]
    checked = {name: _check_array(name, table[name]) for name in names}
    steps = len(checked["actions"])
    if not steps:
        raise InputError("the file holds no transition")
    for name, array in checked.items():
        if len(array) != steps:
            raise InputError(f"{name} has {len(array)} rows but actions has {steps}; they must be equal")
    if "next_observations" in checked and checked["next_observations"].shape != checked["observations"].shape:
        raise InputError("next_observations and observations have different numbers of columns")
    goal = table.get(GOAL)
    return checked if goal is None or goal.ndim != 2 or len(goal) != steps else {**checked, GOAL: goal}


def _check_array(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "bfiu":
        raise InputError(f"{name} holds {array.dtype}, not numbers")
    ndim = _NDIM.get(name, 1)
    if ndim == 1 and array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]  # old files have rewards of shape (N, 1)
    if name == "actions":
        check_continuous(array)
    if array.ndim != ndim:
        what = name.removesuffix("s").replace("_", " ")
        remedy = f"give one vector per {what}, [N, size]" if ndim == 2 else "give one number per step"
        raise InputError(f"{name} has {array.ndim} dimensions {array.shape}, not {ndim}; {remedy}")
    if name in ("terminals", "timeouts"):
        return check_flags(name, array)
    array = np.ascontiguousarray(as_float32(array))
    check_finite(name, array)
    return array


def check_continuous(action: NDArray[Any]) -> None:
    """Raise InputError unless actions are floats."""
    if action.dtype.kind != "f":
        raise InputError(
            f"actions are {action.dtype}; only continuous (float) actions can be used: if these are continuous "
            "values, convert them to float32"
        )
