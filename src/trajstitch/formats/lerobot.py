"""LeRobotDataset: frames of chosen features as a Dataset, and back, with everything else the folder holds.

    lerobot:FOLDER         read v2.0 to v3.0, write v3.0
    lerobot-v2.1:FOLDER    write v2.1

A Dataset knows the episode that each trajectory was read from (`origin`). Written again, that episode keeps all
its features, tasks and videos; only what the Dataset says otherwise is new. T steps are T + 1 frames: the last
frame has the last state and, of data that were never frames, a repetition of the last action with weight and
reward 0.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.formats.features import SEAM, WEIGHT, Features, from_frames, is_ours, names_of, origins, to_frames
from trajstitch.formats.lerobot_folder import Folder, is_folder, open_folder, to_numpy
from trajstitch.formats.lerobot_writer import INDEX, Episode, write_folder
from trajstitch.progress import Tell, silent
from trajstitch.storage.archive import read_text, reading, reason
from trajstitch.storage.atomic import replacing
from trajstitch.storage.tables import import_arrow

READ, WRITE_OLD = "lerobot:", "lerobot-v2.1:"
_OBS, _ACTION, _REWARD, _DONE, _SUCCESS = "observation.state", "action", "next.reward", "next.done", "next.success"
_NOTE = "trajstitch.json"  # in meta/: what LeRobot's files have no place for
_OF_FOLDER = ("fps", "robot_type", "task", "obs_features", "action_features", "reward_from")  # read anew each time
_OF_READING = ("dropped_steps", "dropped_episodes")


def read(name: str, features: Features | None = None, tell: Tell = silent) -> Dataset:
    """Read the frames of a folder; by default observation.state, action, next.reward and next.done."""
    root = Path(name.removeprefix(READ).removeprefix(WRITE_OLD))
    if not is_folder(root):
        raise InputError(f"{root}: there is no LeRobotDataset; it is a folder with meta/info.json")
    with reading(root):
        folder = open_folder(root)
        note = _read_note(root)
        chosen = _usual(features or Features(), folder, note)
        tell(0, 1, "reading tables")
        columns, length = folder.read(_needed(chosen, folder))
        return _from_columns(folder, chosen, columns, length, note)


def write(data: Dataset, target: str, overwrite: bool = False) -> None:
    """Write a folder; each trajectory that was read from a folder keeps all that its episode held there."""
    version = "v2.1" if target.startswith(WRITE_OLD) else "v3.0"
    root = Path(target.removeprefix(READ).removeprefix(WRITE_OLD))
    if root.is_dir() and any(root.iterdir()) and not is_folder(root):
        raise InputError(f"{root} is a folder that holds something else; choose another name")
    import_arrow()
    folders = _folders(data)
    if any(root.resolve() == folder.root.resolve() for folder in folders.values()):
        raise InputError(f"{root} is where these data were read from, and is never changed; choose another output")
    plan = _carrying(data, folders) if folders else _plain(data)
    with replacing(root, overwrite) as part:
        write_folder(part, plan.episodes, plan.features, plan.info, version)
        kept = {k: v for k, v in data.info.items() if k not in (*_OF_FOLDER, *_OF_READING)}
        padded = all(_read_note(folder.root).get("padded") for folder in folders.values())
        note = {"info": kept, "padded": padded, "obs": plan.obs, "action": plan.action}
        for file in next(iter(folders.values())).own_files() if len(folders) == 1 else ():
            shutil.copyfile(file, part / "meta" / file.name)
        (part / "meta" / _NOTE).write_text(json.dumps(note, indent=2) + "\n")


# -- reading ------------------------------------------------------------------------------------------------------


def _read_note(root: Path) -> dict[str, Any]:
    """Return what we wrote beside LeRobot's own files; nothing for other folders."""
    file = root / "meta" / _NOTE
    return dict(json.loads(read_text(file))) if file.exists() else {}


def _usual(features: Features, folder: Folder, note: Mapping[str, Any]) -> Features:
    """Return the features with those that are usual in place of none; InputError if one is not there."""
    has = folder.features
    usual_obs = tuple(note.get("obs", [_OBS]))
    chosen = Features(
        obs=features.obs or usual_obs,
        action=features.action or tuple(note.get("action", [_ACTION])),
        reward_from=features.reward_from or (_REWARD if _REWARD in has else None),
        done_from=features.done_from or (_DONE if _DONE in has else None),
    )
    if features.filter_key:
        raise InputError("a filter key is robomimic's; leave --filter-key out")
    numeric = {name: has[name] for name in folder.numeric}
    if not features.obs and not set(usual_obs) <= numeric.keys():
        others = ", ".join(sorted(numeric.keys() - set(INDEX)))
        raise InputError(f"there is no feature {_OBS}; choose from {others} with --obs")
    chosen.check_known(numeric, "meta/info.json")
    return chosen


def _needed(chosen: Features, folder: Folder) -> list[str]:
    """Return the features to read; a function of rewards may want any."""
    names = [*chosen.obs, *chosen.action, chosen.done_from, chosen.reward_from, _SUCCESS]
    names += [name for name, feature in folder.features.items() if _is_own(name, feature)]
    wanted = [name for name in names if isinstance(name, str) and name in folder.features]
    return list(dict.fromkeys([*wanted, *(folder.numeric if callable(chosen.reward_from) else ())]))


def _is_own(name: str, feature: Mapping[str, Any]) -> bool:
    """Whether a feature is one of ours; `weight` of other shapes is somebody else's."""
    return is_ours(name) and list(feature["shape"]) == [1]


def _from_columns(
    folder: Folder, chosen: Features, columns: dict[str, NDArray[Any]], length: Any, note: Mapping[str, Any]
) -> Dataset:
    info = _info(folder) | chosen.note | dict(note.get("info", {}))
    origin = np.array([f"{READ}{folder.root}#{m}" for m in sorted(folder.episodes)])
    data = from_frames(columns, chosen, length, info, origin, _SUCCESS if _SUCCESS in columns else None)
    if not note.get("padded"):
        return data
    # The last frames are there for their state alone, so no step was dropped.
    return replace(data, info={k: v for k, v in data.info.items() if k not in _OF_READING})


def _info(folder: Folder) -> dict[str, Any]:
    info = {"fps": folder.info["fps"], "robot_type": folder.info.get("robot_type")}
    if len(folder.tasks) == 1:
        info["task"] = next(iter(folder.tasks.values()))
    return {name: value for name, value in info.items() if value is not None}


# -- writing ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plan:
    """What to write."""

    episodes: Iterator[Episode]
    features: Mapping[str, Any]
    info: Mapping[str, Any]
    obs: list[str]  # features that are the observation, and the action
    action: list[str]


def _one(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [1], "names": None}


def _plain(data: Dataset) -> _Plan:
    """Plan a folder for data that have no episodes of LeRobot's behind them."""
    features = {
        _OBS: {"dtype": "float32", "shape": [data.obs_dim], "names": None},
        _ACTION: {"dtype": "float32", "shape": [data.action_dim], "names": None},
        _REWARD: _one("float32"),
        _DONE: _one("bool"),
    } | _own_features(data)
    task = str(data.info.get("task") or data.info.get("env_id") or "no task named")
    info = {"fps": data.info.get("fps", 30), "robot_type": data.info.get("robot_type")}

    def episodes() -> Iterator[Episode]:
        for m in range(len(data)):
            columns = _columns(data, m)
            columns[_ACTION] = np.append(columns[_ACTION], columns[_ACTION][-1:], axis=0)
            yield Episode(_table(columns, features), [task] * len(columns[_OBS]))

    return _Plan(episodes(), features, info, [_OBS], [_ACTION])


def _columns(data: Dataset, m: int) -> dict[str, NDArray[Any]]:
    """Return the frames of trajectory m under LeRobot's names; `action` has one row fewer."""
    names = {"obs": _OBS, "action": _ACTION, "reward": _REWARD, "done": _DONE}
    return {names.get(name, name): rows for name, rows in to_frames(data, m).items()}


def _own_features(data: Dataset) -> dict[str, Any]:
    """Return the features of weights and seams, where the data have them."""
    own = {} if data.weight is None else {WEIGHT: _one("float32")}
    seams = data.seams.arrays() if data.seams else {}
    return own | {SEAM + name: _one(str(column.dtype)) for name, column in seams.items()}


def _table(columns: Mapping[str, NDArray[Any]], features: Mapping[str, Any]) -> Any:
    arrow, _ = import_arrow()
    return arrow.table({name: _to_arrow(columns[name], feature) for name, feature in features.items()})


def _to_arrow(rows: NDArray[Any], feature: Mapping[str, Any]) -> Any:
    """Return a column as LeRobot stores it: numbers, or lists of one length."""
    arrow, _ = import_arrow()
    flat = arrow.array(np.ascontiguousarray(rows).reshape(-1).astype(feature["dtype"]))
    shape = [int(size) for size in feature["shape"]]
    for size in reversed(shape if shape != [1] else []):
        flat = arrow.FixedSizeListArray.from_arrays(flat, size)
    return flat


# -- writing with what the episodes held ----------------------------------------------------------------------


def _folders(data: Dataset) -> dict[str, Folder]:
    """Return the folders that all trajectories were read from; none if no trajectory was read from one."""
    folders = {}
    for root in dict.fromkeys(root for root, _ in origins(data, READ)):
        if not is_folder(Path(root)):
            raise InputError(f"{root}, which these data were read from, is gone; put it back")
        with reading(Path(root)):
            folders[root] = open_folder(Path(root))
    return folders


def _carrying(data: Dataset, folders: Mapping[str, Folder]) -> _Plan:
    """Plan a folder whose episodes hold all that they held where they were read from."""
    first = next(iter(folders.values()))
    for folder in folders.values():
        _check_alike(first, folder)
    obs, action = names_of(data)
    features = {k: v for k, v in first.features.items() if k not in INDEX and not _is_own(k, v)}
    features |= _own_features(data)
    if data.reward.any():
        features.setdefault(_REWARD, _one("float32"))
    if data.terminal.any():
        features.setdefault(_DONE, _one("bool"))

    def episodes() -> Iterator[Episode]:
        m = 0
        for root, group in groupby(origins(data, READ), key=lambda pair: pair[0]):
            folder, numbers = folders[root], [int(number) for _, number in group]
            with reading(Path(root)):  # most of what an episode holds is looked at only now
                for number, table in zip(numbers, folder.tables(numbers), strict=True):
                    try:
                        yield _carried(folder, number, table, _columns(data, m), features, obs, action)
                    except (KeyError, TypeError, IndexError) as error:
                        what = f"{type(error).__name__} {reason(error)}"
                        raise InputError(f"episode {number} is damaged ({what}); download it again") from error
                    m += 1

    return _Plan(episodes(), features, first.info, obs, action)


def _carried(
    folder: Folder,
    number: int,
    table: Any,
    columns: dict[str, NDArray[Any]],
    features: Mapping[str, Any],
    obs: list[str],
    action: list[str],
) -> Episode:
    """Return an episode of a folder with what the data say otherwise."""
    if len(table) != len(columns[_OBS]):
        raise InputError(
            f"a trajectory has {len(columns[_OBS])} states but episode {number} of {folder.root}, its origin, has "
            f"{len(table)} frames; set origin=None for data that were cut"
        )
    tasks = [folder.tasks.get(i, "no task named") for i in table["task_index"].to_pylist()]
    stats = {k: v for k, v in folder.stats.get(number, {}).items() if k not in folder.numeric}
    renewed = _renewed(table, columns, features, obs, action)
    return Episode(renewed, tasks, folder.videos(number), stats, folder.own_entries(number))


def _check_alike(first: Folder, other: Folder) -> None:
    """Raise InputError unless two folders have the same features."""
    for name in dict.fromkeys([*first.features, *other.features]):
        if name in INDEX or is_ours(name):  # data without weights have weight 1
            continue
        one, two = _kind(first, name), _kind(other, name)
        if one != two:
            raise InputError(
                f"the feature {name} is {one} in {first.root} but {two} in {other.root}; "
                "only folders with the same features can be put together"
            )
    if first.info["fps"] != other.info["fps"]:
        raise InputError(
            f"fps is {first.info['fps']} in {first.root} but {other.info['fps']} in {other.root}; "
            "only recordings of one rate can be put together"
        )


def _kind(folder: Folder, name: str) -> str:
    feature = folder.features.get(name)
    return "missing" if feature is None else f"{feature['dtype']} of shape {list(feature['shape'])}"


def _renewed(
    table: Any, columns: dict[str, NDArray[Any]], features: Mapping[str, Any], obs: list[str], action: list[str]
) -> Any:
    """Return an episode's table with what the data say otherwise; columns that are equal keep their bits."""
    new: dict[str, NDArray[Any]] = {}
    for names, values in ((obs, columns[_OBS]), (action, columns[_ACTION])):
        old = [to_numpy(table[name], name).reshape(len(table), -1) for name in names]
        widths = [column.shape[1] for column in old]
        if sum(widths) != values.shape[1]:
            raise InputError(
                f"{' '.join(names)} have {sum(widths)} numbers per frame but the data {values.shape[1]}"
            )
        for name, column, part in zip(names, old, np.split(values, np.cumsum(widths)[:-1], axis=1), strict=True):
            if not np.array_equal(column[: len(part)].astype(np.float32), part):
                new[name] = np.append(part, column[len(part) :], axis=0)
    have = set(table.column_names)
    if _REWARD in features:
        reward = columns[_REWARD]
        recorded = to_numpy(table[_REWARD], _REWARD).reshape(-1).astype(np.float32) if _REWARD in have else None
        if recorded is None or not np.array_equal([*recorded[:-2], recorded[-2] + recorded[-1]], reward[:-1]):
            new[_REWARD] = reward
    if _DONE in features and (_DONE not in have or _ends(table) != columns[_DONE][-1]):
        new[_DONE] = columns[_DONE]
    new |= {name: rows for name, rows in columns.items() if is_ours(name)}
    for name, rows in new.items():
        kind = features[name]["dtype"]
        if not np.array_equal(rows.astype(kind), rows, equal_nan=True):
            raise InputError(
                f"{name} is {kind}, which cannot hold the new values; set origin=None, or keep it as it is"
            )
        column = _to_arrow(rows, features[name])
        at = table.column_names.index(name) if name in have else None
        table = table.append_column(name, column) if at is None else table.set_column(at, name, column)
    return table


def _ends(table: Any) -> bool:
    return bool(to_numpy(table[_DONE], _DONE).reshape(-1)[-2:].any())
