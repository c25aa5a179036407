"""robomimic's HDF5: a group per demonstration, chosen observation keys side by side.

    data                 env_args, total
      demo_0             num_samples, model_file, …
        obs/KEY          one array per key, images among them
        next_obs/KEY     not in every file; without it, the last action of a demonstration is left out
        actions  rewards  dones  states
        weight           ours: how much a step counts when cloned
    mask
      KEY                the names of the demonstrations under this filter key

A demonstration that is written again keeps all arrays and attributes; filter keys name it by its new number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.formats.features import (
    SUCCESS,
    WEIGHT,
    Features,
    from_frames,
    is_ours,
    names_of,
    origins,
    to_frames,
)
from trajstitch.progress import Tell, silent
from trajstitch.storage.archive import reading, reason
from trajstitch.storage.atomic import replacing

PREFIX = "robomimic:"
_USUAL = {"action": "actions", "reward": "rewards", "done": "dones"}
_INFO = "trajstitch_info"  # an attribute of `data`, in files that we wrote
_GYM = 2  # robomimic's number for environments of Gymnasium
_OF_FILE = ("obs_features", "action_features", "reward_from", "dropped_steps", "dropped_episodes")


def is_robomimic(path: Path) -> bool:
    """Whether a file has robomimic's layout."""
    import h5py

    from trajstitch.storage.hdf5 import open_hdf5

    try:
        with reading(path), open_hdf5(path) as file:
            data = file.get("data")
            return isinstance(data, h5py.Group) and any(name.startswith("demo") for name in data)
    except InputError:
        return False


def read(name: str, features: Features | None = None, tell: Tell = silent) -> Dataset:
    """Read chosen keys of every demonstration, or of those under a filter key; by default all keys of vectors."""
    from trajstitch.storage.hdf5 import open_hdf5

    path = Path(name.removeprefix(PREFIX))
    if not path.exists():
        raise InputError(f"{path}: there is no such file")
    with reading(path), open_hdf5(path) as file:
        if "data" not in file:
            raise InputError("the group 'data' is missing; robomimic's files have data/demo_0, data/demo_1, …")
        demos = _chosen_demos(file, (features or Features()).filter_key)
        chosen = _usual(features or Features(), demos[0])
        padded = "next_obs" in demos[0]
        needed = [_needed(chosen, demo) for demo in demos]
        _check_stored(path, demos, needed)
        parts = []
        for m, demo in enumerate(demos):
            tell(m, len(demos), "")
            parts.append(_frames(demo, needed[m], chosen, padded))
        length = np.array([len(next(iter(part.values()))) for part in parts])
        columns = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
        names = (demo.name.rpartition("/")[2] for demo in demos)
        origin = np.array([f"{PREFIX}{path.absolute()}#{name}" for name in names])
        data = from_frames(columns, chosen, length, _info(file) | chosen.note, origin)
    if not padded:
        return data
    return replace(data, info={k: v for k, v in data.info.items() if not k.startswith("dropped_")})


def write(data: Dataset, target: str, overwrite: bool = False) -> None:
    """Write a file; each trajectory that was read from one keeps all arrays and attributes it had there."""
    import h5py

    path = Path(target.removeprefix(PREFIX))
    if path.suffix not in (".hdf5", ".h5"):
        raise InputError(f"{path}: robomimic's files are HDF5; give a name that ends in .hdf5")
    sources = list(dict.fromkeys(source for source, _ in origins(data, PREFIX)))
    if any(path.resolve() == Path(source).resolve() for source in sources):
        raise InputError(f"{path} is where these data were read from, and is never changed; choose another output")
    with ExitStack() as stack:
        opened = {source: stack.enter_context(_source(Path(source))) for source in sources}
        part = stack.enter_context(replacing(path, overwrite))
        try:
            with h5py.File(part, "w") as file:
                _fill(file, data, opened)
        except RuntimeError as error:  # what HDF5 raises when it cannot flush on closing
            raise OSError(str(error)) from error


def _fill(file: Any, data: Dataset, opened: Mapping[str, Any]) -> None:
    """Write everything into an empty file."""
    group = file.create_group("data")
    if opened:
        _carry(data, opened, group)
        _write_masks(data, opened, file)
    else:
        _write_plain(data, group)
    group.attrs["total"] = sum(int(demo.attrs["num_samples"]) for demo in group.values())
    group.attrs[_INFO] = json.dumps({k: v for k, v in data.info.items() if k not in _OF_FILE})


def _source(path: Path) -> Any:
    """Open a file that the data were read from."""
    from trajstitch.storage.hdf5 import opened

    if not path.exists():
        raise InputError(f"{path}, which these data were read from, is gone; put it back")
    with reading(path):
        return opened(path)


# -- reading ------------------------------------------------------------------------------------------------------


def _chosen_demos(file: Any, key: str | None) -> list[Any]:
    names = list(file["data"])
    if key is not None:
        masks = list(file.get("mask", {}))
        if key not in masks:
            raise InputError(f"there is no filter key {key!r} under mask; there are {', '.join(masks) or 'none'}")
        names = _names(file["mask"][key])
        if gone := [name for name in names if name not in file["data"]]:
            raise InputError(f"mask/{key} names {gone[0]}, which is not in data; correct the mask")
    if not names:
        raise InputError("there is no demonstration in data" + (f" under mask/{key}" if key else ""))
    return [file["data"][name] for name in sorted(names, key=_number)]


def _check_stored(path: Path, demos: Sequence[Any], needed: Sequence[Sequence[str]]) -> None:
    """Raise InputError unless all that is read are numbers in the file itself, no more than it can hold."""
    from trajstitch.storage.hdf5 import check_arrays

    arrays: dict[str, Any] = {}
    for demo, names in zip(demos, needed, strict=True):
        known = _known(demo)
        arrays |= {f"{demo.name}/{name}": known[name] for name in names if name in known}
        if "next_obs" in demo:
            after = demo["next_obs"]
            arrays |= {f"{after.name}/{name}": after[name] for name in names if name in after}
    check_arrays(path, arrays)


def _number(name: str) -> tuple[int, str]:
    """Return what demonstrations are sorted by: the number in the name."""
    found = re.search(r"(\d+)$", name)
    return (int(found[1]) if found else -1, name)


def _names(mask: Any) -> list[str]:
    """Return the demonstrations under a filter key."""
    from trajstitch.storage.hdf5 import check_arrays

    check_arrays(Path(mask.file.filename), {mask.name: mask}, "SO", "names")
    return [name.decode() if isinstance(name, bytes) else str(name) for name in mask[()]]


def _usual(features: Features, demo: Any) -> Features:
    """Return the features with those that are usual in place of none; InputError if one is not there."""
    known = _known(demo)
    vectors = tuple(key for key in demo.get("obs", {}) if known[key].ndim == 2 and known[key].dtype.kind == "f")
    if not features.obs and not vectors:
        raise InputError(
            f"{demo.name}/obs holds no vectors of numbers; choose from {', '.join(known)} with --obs, or extract "
            "observations with robomimic's dataset_states_to_obs"
        )
    chosen = replace(
        features,
        obs=features.obs or vectors,
        action=features.action or (_USUAL["action"],),
        reward_from=features.reward_from or (_USUAL["reward"] if _USUAL["reward"] in known else None),
        done_from=features.done_from or (_USUAL["done"] if _USUAL["done"] in known else None),
    )
    chosen.check_known(known, str(demo.name))
    return chosen


def _known(demo: Any) -> dict[str, Any]:
    """Return every array of a demonstration by name: those of obs by their key, others as they are."""
    return {k: v for k, v in demo.items() if hasattr(v, "shape")} | dict(demo.get("obs", {}).items())


def _needed(chosen: Features, demo: Any) -> list[str]:
    known = _known(demo)
    names: Iterable[Any] = (*chosen.obs, *chosen.action, chosen.done_from, chosen.reward_from)
    wanted = [name for name in names if isinstance(name, str) and name != SUCCESS]
    wanted += [name for name, array in known.items() if is_ours(name) and array.ndim == 1]
    if callable(chosen.reward_from):
        wanted += [name for name, array in known.items() if array.ndim < 3 and array.dtype.kind in "bfiu"]
    return list(dict.fromkeys(wanted))


def _frames(demo: Any, names: list[str], chosen: Features, padded: bool) -> dict[str, NDArray[Any]]:
    """Return arrays of one demonstration; with next_obs, one more row: the state after the last action."""
    known = _known(demo)
    steps = len(known[chosen.action[0]]) if chosen.action[0] in known else 0
    frames = {}
    for name in names:
        if name not in known:
            raise InputError(f"{demo.name} has no {name!r}, but other demonstrations have; give all of them")
        rows = known[name][()]
        if not steps or len(rows) != steps:
            raise InputError(f"{demo.name}/{name} has {len(rows)} rows but there are {steps} actions")
        if padded:
            after = demo["next_obs"][name][-1:] if name in demo["next_obs"] else rows[-1:]
            empty = name in (WEIGHT, _USUAL["reward"], chosen.reward_from)  # nothing was done in that state
            rows = np.append(rows, np.zeros_like(after) if empty else after, axis=0)
        frames[name] = rows
    return frames


def _info(file: Any) -> dict[str, Any]:
    attributes = file["data"].attrs
    env = json.loads(attributes.get("env_args", "{}"))
    name = env.get("env_name")
    named = {"env_id" if env.get("type") == _GYM else "robomimic_env": name} if name else {}
    return named | json.loads(attributes.get(_INFO, "{}"))


# -- writing ------------------------------------------------------------------------------------------------------


def _carry(data: Dataset, opened: Mapping[str, Any], group: Any) -> None:
    """Copy the demonstrations, and write what the data say otherwise."""
    first = next(iter(opened.values()))
    for source, file in opened.items():
        if file["data"].attrs.get("env_args") != first["data"].attrs.get("env_args"):
            raise InputError(
                f"env_args of {source} and {first.filename} differ; put together data of one environment"
            )
    group.attrs.update(first["data"].attrs)
    obs, action = names_of(data)
    names = {"obs": obs, "action": action}
    for m, (source, name) in enumerate(origins(data, PREFIX)):
        with reading(Path(source)):  # also what was not chosen when they were read
            demo = opened[source][f"data/{name}"]
            _check_stored(Path(source), [demo], [[*obs, *action, _USUAL["reward"], _USUAL["done"]]])
        try:
            opened[source].copy(f"data/{name}", group, f"demo_{m}")
            _renew(group[f"demo_{m}"], to_frames(data, m), names, f"trajectory {m}")
            int(group[f"demo_{m}"].attrs["num_samples"])
        except (KeyError, AttributeError, TypeError, IndexError, ValueError) as error:
            raise InputError(f"{source}: {name} is damaged ({reason(error)}); copy the file again") from error


def _renew(demo: Any, frames: dict[str, NDArray[Any]], names: Mapping[str, list[str]], what: str) -> None:
    """Replace the arrays of a demonstration that the data say otherwise; equal ones keep their bits."""
    rows = len(demo[names["action"][0]])
    padded = "next_obs" in demo
    if rows + padded != len(frames["obs"]):
        raise InputError(
            f"{what} has {len(frames['obs'])} states, which is not what its demonstration has; "
            "set origin=None for data that were cut"
        )
    known = _known(demo)
    for key in ("obs", "action"):
        width = sum(int(np.prod(known[name].shape[1:])) for name in names[key])
        if width != frames[key].shape[1]:
            raise InputError(
                f"{' '.join(names[key])} have {width} numbers per step but {what} has {frames[key].shape[1]}; "
                "set origin=None for data of other sizes"
            )
        begin = 0
        for name in names[key]:
            for place, shift in ((f"obs/{name}", 0), (f"next_obs/{name}", 1), (name, 0)):
                if place not in demo:
                    continue
                old = demo[place][()]
                width = int(np.prod(old.shape[1:]))
                new = frames[key][shift:, begin : begin + width][:rows]
                if not np.array_equal(old.reshape(rows, -1)[: len(new)].astype(np.float32), new):
                    _put(demo, place, new)
            begin += width
    reward, done = frames["reward"], frames["done"]
    for name, new, same in (
        (_USUAL["reward"], reward[:rows], _same_reward),
        (_USUAL["done"], done[:rows], _same_end),
    ):
        if name in demo and not same(demo[name][()], new, padded):
            _put(demo, name, new)
        elif name not in demo and new.any():
            demo[name] = new
    for name in [name for name in demo if is_ours(name) and demo[name].ndim == 1]:
        del demo[name]
    for name, rows_of in frames.items():
        if is_ours(name):
            demo[name] = rows_of[:rows]


def _put(demo: Any, name: str, new: NDArray[Any]) -> None:
    """Replace the first rows of an array; one of whole numbers becomes float32 where it could not hold the new."""
    rows = demo[name][()]
    if not np.array_equal(new.astype(rows.dtype), new):
        rows = rows.astype(np.float32)
    rows[: len(new)] = new.reshape(len(new), *rows.shape[1:])
    del demo[name]
    demo[name] = rows


def _same_reward(old: NDArray[Any], new: NDArray[Any], padded: bool) -> bool:
    old = old.reshape(-1).astype(np.float32)
    folded = old if padded else np.append(old[:-2], [old[-2] + old[-1], 0])
    return np.array_equal(folded, new)


def _same_end(old: NDArray[Any], new: NDArray[Any], padded: bool) -> bool:
    last = old.reshape(-1)[-1 if padded else -2 :]
    return bool((last > 0).any()) == bool(new[-1])


def _write_masks(data: Dataset, opened: Mapping[str, Any], file: Any) -> None:
    """Write every filter key, by the new names of its demonstrations."""
    masks: dict[str, list[str]] = {}
    members = {}
    for source, given in opened.items():
        with reading(Path(source)):
            members[source] = {key: set(_names(mask)) for key, mask in given.get("mask", {}).items()}
    for m, (source, name) in enumerate(origins(data, PREFIX)):
        for key, inside in members[source].items():
            if name in inside:
                masks.setdefault(key, []).append(f"demo_{m}")
    for key, names in masks.items():
        file[f"mask/{key}"] = np.array(names, "S")


def _write_plain(data: Dataset, group: Any) -> None:
    """Write data that have no demonstrations behind them; the observation is one key, `flat`."""
    env = {"env_name": str(data.info.get("env_id", "")), "type": _GYM, "env_kwargs": {}}
    group.attrs["env_args"] = json.dumps(env)
    for m in range(len(data)):
        frames, demo = to_frames(data, m), group.create_group(f"demo_{m}")
        demo.attrs["num_samples"] = len(frames["action"])
        demo["obs/flat"], demo["next_obs/flat"] = frames["obs"][:-1], frames["obs"][1:]
        done = np.zeros(len(frames["action"]), np.int64)
        done[-1] = data.terminal[m]
        demo["actions"], demo["rewards"], demo["dones"] = frames["action"], frames["reward"][:-1], done
        demo["states"] = np.zeros((len(done), 0))
        for name in frames.keys() - {"obs", "action", "reward", "done"}:
            demo[name] = frames[name][:-1]
