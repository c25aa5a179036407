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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Bool, Dataset, Float, Info, Seams, check_finite, normalised_weight
from trajstitch.errors import InputError
from trajstitch.storage.atomic import replacing
from trajstitch.storage.hdf5 import writing

REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("next_observations", "timeouts", "weights")
_NDIM = {"observations": 2, "next_observations": 2, "actions": 2}
_SAMPLE = 100_000  # rows from which the std of a column is estimated
_NOISE = 1e-3  # share of a column's std; a successor that differs less from the next row is that row, rounded


def read(path: Path, episode_horizon: int | None = None, usual_horizon: int | None = None) -> Dataset:
    """Read a D4RL file; `info` says what could not be kept (`dropped_steps`, `split_by`, …).

    `usual_horizon` is the time limit that is used only if the file records no time-outs.
    """
    import h5py

    if not h5py.is_hdf5(path):
        raise InputError("this is not an HDF5 file, or it is empty; check the download")
    try:
        with h5py.File(path, "r") as file:
            names = [name for name in REQUIRED + OPTIONAL if isinstance(file.get(name), h5py.Dataset)]
            table = {name: _read_array(name, file[name]) for name in names}
            info = {k: v for k, v in file.attrs.items() if isinstance(v, str | int | float | bool)}
            info |= {k: v.item() for k, v in file.attrs.items() if isinstance(v, np.generic)}
            seams = {name: column[()] for name, column in file["seams"].items()} if "seams" in file else None
    except OSError as error:
        raise InputError(f"this HDF5 file is truncated or damaged; copy it again ({error})") from error
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
    cut = _find_ends(checked, episode_horizon)
    obs, successor = checked["observations"], checked.get("next_observations")
    last = np.flatnonzero(cut.end)
    ended = checked["terminals"][last]
    note = dict(info) | cut.note
    if successor is None:
        # The state after an episode's last step was not recorded: drop that step, but keep how the episode ended.
        keep = ~cut.end
        length = np.diff(last, prepend=-1) - 1
        whole = length > 0
        note["dropped_steps"] = len(last)
        if dropped := int((~whole).sum()):
            note["dropped_episodes"] = dropped
        if not whole.any():
            raise InputError("no episode has two steps and next_observations is missing, so none has a successor")
        # What is left of an episode of T steps is its T states and the T-1 steps between them.
        rows = np.ones(len(obs), bool)
        rows[last[~whole]] = False
        return Dataset(
            obs=obs[rows] if dropped else obs,
            action=checked["actions"][keep],
            reward=checked["rewards"][keep],
            start=np.concatenate([[0], np.cumsum(length[whole])]),
            terminal=ended[whole],
            info=note,
            weight=_weight(checked, keep),
        )
    states = np.empty((len(obs) + len(last), obs.shape[1]), np.float32)
    begin = 0
    for m, end in enumerate((last + 1).tolist()):  # copying slices is ten times faster than a mask over the rows
        states[begin + m : end + m] = obs[begin:end]
        begin = end
    states[last + np.arange(len(last)) + 1] = successor[last]
    return Dataset(
        obs=states,
        action=checked["actions"],
        reward=checked["rewards"],
        start=np.concatenate([[0], last + 1]),
        terminal=ended,
        info=note,
        weight=_weight(checked, slice(None)),
    )


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
            raise InputError(f"the key {name!r} is missing; a D4RL file needs {', '.join(REQUIRED)}")
    checked = {name: _check_array(name, table[name]) for name in REQUIRED + OPTIONAL if name in table}
    steps = len(checked["actions"])
    if not steps:
        raise InputError("the file holds no transition")
    for name, array in checked.items():
        if len(array) != steps:
            raise InputError(f"{name} has {len(array)} rows but actions has {steps}; they must be equal")
    if "next_observations" in checked and checked["next_observations"].shape != checked["observations"].shape:
        raise InputError("next_observations and observations have different numbers of columns")
    return checked


def _check_array(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype.kind not in "bfiu":
        raise InputError(f"{name} holds {array.dtype}, not numbers")
    ndim = _NDIM.get(name, 1)
    if ndim == 1 and array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]  # old files have rewards of shape (N, 1)
    if array.ndim != ndim:
        remedy = "flatten each observation to a vector" if ndim == 2 else "give one number per step"
        raise InputError(f"{name} has {array.ndim} dimensions {array.shape}, not {ndim}; {remedy}")
    if name == "actions" and array.dtype.kind != "f":
        raise InputError(
            f"actions are {array.dtype}; only continuous (float) actions can be used: if these are continuous "
            "values, convert them to float32"
        )
    if name in ("terminals", "timeouts"):
        if array.dtype != bool and not np.isin(array, (0, 1)).all():
            raise InputError(f"{name} must hold only 0 and 1 (or false and true)")
        return array.astype(bool, copy=False)
    array = np.ascontiguousarray(array, np.float32)
    check_finite(name, array)
    return array


# -- where episodes end ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ends:
    """Which steps are the last of their episode, [N], and a note for the user on how the ends were found."""

    end: Bool
    note: dict[str, str | int]


def _find_ends(table: Mapping[str, NDArray[Any]], episode_horizon: int | None) -> Ends:
    successor = table.get("next_observations")
    end = table["terminals"] | table.get("timeouts", False)
    jump = np.zeros(len(end), bool)
    if successor is not None:
        jump[:-1] = _jumps(table["observations"], successor, end)
    note: dict[str, str | int] = {}
    if "timeouts" in table:
        if episode_horizon is not None:
            raise InputError("this file records its time-outs; leave --episode-horizon out")
        if unmarked := int(jump.sum()):
            note["unmarked_cuts"] = unmarked  # no end is marked, but the next row is not the successor
    elif episode_horizon is not None:
        end |= _every(episode_horizon, end | jump)
        note["split_by"] = f"horizon {episode_horizon}"
    elif successor is not None:
        note["split_by"] = "discontinuity"
    else:
        raise InputError(
            "the key 'timeouts' is missing and so is 'next_observations', so where episodes were cut is unknown; "
            "give the time limit with --episode-horizon, such as --episode-horizon 1000"
        )
    end |= jump
    end[-1] = True  # a file may stop inside an episode
    return Ends(end, note)


def _every(episode_horizon: int, end: Bool) -> Bool:
    """Mark every `episode_horizon`-th step since the last end of an episode."""
    if episode_horizon < 1:
        raise InputError(f"episode_horizon must be at least 1, not {episode_horizon}")
    index = np.arange(len(end))
    begin = np.maximum.accumulate(np.where(np.concatenate([[True], end[:-1]]), index, 0))
    return (index - begin + 1) % episode_horizon == 0


def _jumps(obs: Float, successor: Float, end: Bool) -> Bool:
    """Mark where the recorded successor is not the next row, except at known ends, [N-1]."""
    jump = np.zeros(len(obs) - 1, bool)
    jump[np.flatnonzero(successor[:-1] != obs[1:]) // obs.shape[1]] = True
    jump &= ~end[:-1]
    if jump.any():
        rows = np.flatnonzero(jump)
        noise = _NOISE * obs[:: 1 + len(obs) // _SAMPLE].std(0, dtype=np.float64) + 1e-6
        jump[rows] = (np.abs(successor[rows] - obs[rows + 1]) > noise).any(1)
    return jump
