"""Minari data sets, by id or folder, to and from `Dataset`; each episode is read at once, not step by step.

    data/metadata.json       spaces, environment, reference scores, authors …
    data/main_data.hdf5      a group per episode:  observations [T+1, S]  actions [T, A]  rewards  terminations …
    data/0/part-0.arrow …    or a folder per episode with one table (.arrow or .parquet), in whose last row all
                             but the observation is padding

Weights, where the data have them, are infos/weight [T+1] of an episode. The last is padding: Minari wants as many
infos as observations.

A Dict observation is flattened on request, as gymnasium.spaces.flatten does it: leaves in sorted order of keys.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

from trajstitch.data import (
    Dataset,
    Float,
    Info,
    Int,
    check_finite,
    check_flags,
    check_weight_values,
    normalised_weight,
)
from trajstitch.errors import InputError
from trajstitch.progress import Tell
from trajstitch.storage.archive import check_file, check_room, reading, reason
from trajstitch.storage.atomic import remove, replacing
from trajstitch.storage.hdf5 import check_stored, open_hdf5
from trajstitch.storage.hdf5_sink import writing

Column = tuple[str, ...]  # path to an array of an episode, such as ("observations", "achieved_goal")
Space = Mapping[str, Any]  # as Minari writes it in metadata.json

# Entries that follow from the arrays or are set when writing; all other plain metadata go to and from `info`.
_OWN = frozenset(
    {"dataset_id", "total_episodes", "total_steps", "dataset_size", "data_format", "jpeg_encoding"}
    | {"minari_version", "observation_space", "action_space", "combined_datasets"}
)
_LISTS = {"author": "; ", "author_email": "; ", "requirements": "\n"}  # and their separator in `info`
_TEXTS = ("algorithm_name", "code_permalink")  # Minari accepts only strings
_WEIGHT = ("infos", "weight")


def read(name: str, flatten: bool, tell: Tell) -> Dataset:
    """Read `minari:ID`, downloaded if it is not local, or the folder that holds a data set's `data`."""
    with reading(Path(name)):
        folder = _local(name.removeprefix("minari:"), tell) if name.startswith("minari:") else Path(name)
        metadata = _read_metadata(folder / "data")
        leaves = _observation_leaves(metadata["observation_space"], flatten)
        _check_action(metadata["action_space"])
        with _episodes(folder / "data", metadata) as episodes:
            return _read_episodes(episodes, leaves, metadata, tell)


def write(data: Dataset, name: str, overwrite: bool = False) -> None:
    """Write `minari:ID` into Minari's data folder, or a folder named by the id; a cut becomes a truncation.

    `info` becomes metadata. No environment is created: its spec comes from `info` or is looked up by env_id.
    """
    minari = _import_minari()
    by_id = name.startswith("minari:")
    dataset_id = name.removeprefix("minari:") if by_id else Path(name).name
    _check_id(dataset_id)
    target = _root() / dataset_id if by_id else Path(name)
    if target.exists() and not (target / "data").exists():
        raise InputError(f"{name}: {target} exists and is not a data set; choose another id")
    with replacing(target, overwrite) as part:
        _write_episodes(data, dataset_id, part / "data")
        try:
            minari.MinariDataset(part / "data")
        except Exception as error:  # whatever loading it would raise later is raised now
            raise InputError(f"{name}: Minari cannot load this ({error}); correct data.info") from error
        if by_id and "/" in dataset_id:
            _make_namespace(dataset_id.rpartition("/")[0])


# -- finding ---------------------------------------------------------------------------------------------------


def _import_minari() -> ModuleType:
    try:
        return importlib.import_module("minari")
    except ImportError as error:
        raise InputError('Minari is not installed; run pip install "trajstitch[minari]"') from error


def _check_id(dataset_id: str) -> None:
    parse = importlib.import_module("minari.dataset.minari_dataset").parse_dataset_id
    try:
        parse(dataset_id)
    except (ValueError, TypeError) as error:  # TypeError: no version
        raise InputError(
            f"{dataset_id!r} is not a Minari id; an id is NAME-vNUMBER, or SPACE/NAME-vNUMBER, of letters, "
            "digits, - and _, such as mujoco/hopper/medium-v0"
        ) from error


def _root() -> Path:
    try:
        root: Path = importlib.import_module("minari.storage.datasets_root_dir").get_dataset_path()
    except OSError as error:
        raise InputError(
            f"Minari's data folder cannot be made ({error}); set MINARI_DATASETS_PATH to another"
        ) from error
    return root


def _local(dataset_id: str, tell: Tell) -> Path:
    """Return the data set's folder, downloaded by Minari if it does not exist."""
    minari = _import_minari()
    _check_id(dataset_id)
    folder = _root() / dataset_id
    if (folder / "data").exists():
        return folder
    tell(0, 1, f"Minari downloads {dataset_id}")
    try:
        with _quiet(), _no_retry_noise():
            minari.download_dataset(dataset_id)
    except ImportError as error:  # Minari's message says which package its download needs
        why = str(error).rstrip(".")
        raise InputError(f"it is not in {folder} and Minari cannot download it; {why}") from error
    except Exception as error:  # Minari passes on exceptions of many types from its remote storage
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"it is not in {folder} and could not be downloaded ({why}); check the id and the connection, or run "
            f"`minari download {dataset_id}` where there is one and copy its folder there"
        ) from error
    return folder


@contextlib.contextmanager
def _no_retry_noise() -> Iterator[None]:
    """Silence the hub's client, which logs each of its tries; the user gets one sentence at the end."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # the client resets the levels of its loggers when it is imported
    try:
        yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide what Minari prints, and its warnings about newer versions."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="minari")
        yield


# -- metadata and spaces ---------------------------------------------------------------------------------------


def _read_metadata(folder: Path) -> dict[str, Any]:
    """Read the metadata, with the two spaces as dicts."""
    try:
        check_file(folder / "metadata.json")
        metadata: dict[str, Any] = json.loads((folder / "metadata.json").read_text())
        for name in ("observation_space", "action_space"):
            metadata[name] = json.loads(metadata[name])
        metadata["total_episodes"] = int(metadata["total_episodes"])
        metadata.setdefault("dataset_id", folder.parent.name)
    except FileNotFoundError as error:
        raise InputError("there is no data/metadata.json in it; give the folder that holds data") from error
    except KeyError as error:
        raise InputError(
            f"{reason(error)} is missing in data/metadata.json; write it again with Minari 0.5"
        ) from error
    except (ValueError, TypeError) as error:
        raise InputError(f"data/metadata.json is damaged ({reason(error)}); copy or download it again") from error
    return metadata


def _observation_leaves(space: Space, flatten: bool) -> dict[Column, tuple[int, ...]]:
    """Return the shape of each array of an observation, in the order in which they are concatenated."""
    if space["type"] == "Dict" and not flatten:
        keys = ", ".join(sorted(space["subspaces"]))
        raise InputError(f"its observations are a Dict of {keys}; pass --flatten to put them in one vector")
    if len(space.get("shape", ())) > 1 and not flatten:
        raise InputError(f"its observations have the shape {space['shape']}; pass --flatten to make them vectors")
    return dict(_leaves(("observations",), space))


def _leaves(column: Column, space: Space) -> Iterator[tuple[Column, tuple[int, ...]]]:
    if space["type"] == "Dict":
        for key in sorted(space["subspaces"]):
            yield from _leaves((*column, key), space["subspaces"][key])
        return
    name = "/".join(column)
    if space["type"] != "Box":
        raise InputError(f"{name} is {space['type']}; only Box observations of floats can be used")
    if space["dtype"] == "uint8" or len(space["shape"]) > 2:
        raise InputError(f"{name} is an image of shape {space['shape']}; only vectors can be used")
    if np.dtype(space["dtype"]).kind != "f":
        raise InputError(f"{name} is a Box of {space['dtype']}; only Box observations of floats can be used")
    yield column, tuple(space["shape"])


def _check_action(space: Space) -> None:
    if space["type"] != "Box" or np.dtype(space["dtype"]).kind != "f" or len(space["shape"]) != 1:
        kind = f"Box of {space['dtype']} of shape {space['shape']}" if space["type"] == "Box" else space["type"]
        raise InputError(f"its actions are {kind}; only continuous actions, a vector of floats, can be used")


def _info(metadata: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """Return all plain metadata under their own names, and the bounds of actions."""
    info = {k: v for k, v in metadata.items() if k not in _OWN and isinstance(v, str | int | float | bool)}
    for name, separator in _LISTS.items():
        if isinstance(entries := metadata.get(name), list) and entries:
            # Minari keeps authors as sets, in no order
            info[name] = separator.join(entries if name == "requirements" else sorted(entries))
    if "env_spec" in info:
        try:
            info["env_id"] = str(json.loads(str(info["env_spec"]))["id"])
        except (ValueError, TypeError, KeyError) as error:
            raise InputError("env_spec in data/metadata.json is damaged; copy or download it again") from error
    info.setdefault("source", f"minari:{metadata['dataset_id']}")
    info["action_space"] = _serialise(*_bounds(metadata["action_space"]))
    return info


def _bounds(space: Space) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # the largest float64 is float32's infinity
        return np.array([space["low"], space["high"]]).astype(np.float32)


def _serialise(low: NDArray[np.float32], high: NDArray[np.float32]) -> str:
    """A Box as Minari writes it."""
    space = {"type": "Box", "dtype": "float32", "shape": list(low.shape)}
    return json.dumps(space | {"low": low.tolist(), "high": high.tolist()})


# -- reading episodes ------------------------------------------------------------------------------------------


class Episodes(Protocol):
    """A reader for one kind of storage."""

    def steps(self, episode: int) -> int:
        """Return the number of steps of an episode, T."""

    def has_weights(self, episode: int) -> bool:
        """Whether an episode has infos/weight."""

    def stored(self) -> tuple[int, int]:
        """Return how many episodes are stored, and in how many bytes."""

    def fill(self, episode: int, rows: Mapping[Column, NDArray[Any]]) -> None:
        """Read arrays of an episode into `rows`, converted to their dtype."""


def _read_episodes(
    episodes: Episodes, leaves: Mapping[Column, tuple[int, ...]], metadata: Mapping[str, Any], tell: Tell
) -> Dataset:
    many = metadata["total_episodes"]
    if many < 1:
        raise InputError("it holds no episode")
    stored, size = episodes.stored()
    if stored != many:
        raise InputError(
            f"data/metadata.json says that it holds {many} episodes, but it holds {stored}; copy it again"
        )
    length = np.array([episodes.steps(m) for m in range(many)])
    if (empty := np.flatnonzero(length < 1)).size:
        raise InputError(f"episode {empty[0]} has no step; every episode needs at least one: remove it")
    start = np.concatenate([[0], np.cumsum(length)])
    steps = start[-1]
    row_size = sum(math.prod(shape) for shape in leaves.values()) + math.prod(metadata["action_space"]["shape"])
    check_room(size, 4 * int(steps) * row_size)
    obs = {column: np.empty((steps + many, *shape), np.float32) for column, shape in leaves.items()}
    weight = np.empty(steps + many, np.float32) if _have_weights(episodes, many) else None
    state_columns = obs if weight is None else {**obs, _WEIGHT: weight}
    action = np.empty((steps, *metadata["action_space"]["shape"]), np.float32)
    reward = np.empty(steps, np.float32)
    ended = np.empty(steps, bool)
    step_columns: dict[Column, NDArray[Any]] = {
        ("actions",): action,
        ("rewards",): reward,
        ("terminations",): ended,
    }
    for m in range(many):
        episodes.fill(m, _rows(m, start, state_columns, step_columns))
        if m % 64 == 63 or m + 1 == many:
            tell(m + 1, many, "episodes")
    flat = [array.reshape(len(array), -1) for array in obs.values()]
    info = _info(metadata)
    if list(leaves) != [("observations",)]:
        info["flattened"] = ", ".join("/".join(column[1:]) for column in leaves)
    # A termination ends an episode, even where the file goes on with it: the state it led to begins the next one.
    cut = np.union1d(start, np.flatnonzero(ended) + 1)
    all_obs = flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)
    if inside := len(cut) - len(start):
        info["split_terminations"] = inside
        copies = np.ones(len(all_obs), np.int64)
        added = np.setdiff1d(cut, start)
        copies[added + np.searchsorted(start, added) - 1] = 2
        all_obs = np.repeat(all_obs, copies, axis=0)
    try:
        return Dataset(
            obs=all_obs,
            action=action,
            reward=reward,
            start=cut,
            terminal=ended[cut[1:] - 1],
            info=info,
            weight=None if weight is None else _step_weight(weight, start),
        )
    except InputError:  # a number that cannot be used: find its episode
        for m in range(many):
            for column, rows in _rows(m, start, state_columns, step_columns).items():
                _check_episode(m, column, rows)
        raise


def _have_weights(episodes: Episodes, many: int) -> bool:
    """Whether the episodes have weights; InputError if only some of them do."""
    have = np.array([episodes.has_weights(m) for m in range(many)])
    if have.any() and not have.all():
        raise InputError(
            f"episode {np.argmin(have)} has no infos/weight but episode {np.argmax(have)} has; "
            "give all episodes weights or none"
        )
    return bool(have.any())


def _step_weight(weight: Float, start: Int) -> Float:
    """Return the weights without the padding at the end of each episode."""
    padding = start[1:] + np.arange(len(start) - 1)
    return normalised_weight(np.delete(weight, padding), "/".join(_WEIGHT))


def _rows(m: int, start: Int, states: Mapping[Column, Any], steps: Mapping[Column, Any]) -> dict[Column, Any]:
    """Return the rows of episode m in every array, of which some have a row per state and some one per step."""
    a, b = start[m], start[m + 1]
    rows = {column: array[a + m : b + m + 1] for column, array in states.items()}
    return rows | {column: array[a:b] for column, array in steps.items()}


def _check_episode(m: int, column: Column, rows: NDArray[Any]) -> None:
    name = "/".join(column)
    try:
        if column == _WEIGHT:
            check_weight_values(name, rows[:-1])
        else:
            check_finite(name, rows)
    except InputError as error:
        raise error.within(f"episode {m}") from error


@contextlib.contextmanager
def _episodes(folder: Path, metadata: Mapping[str, Any]) -> Iterator[Episodes]:
    kind = metadata.get("data_format", "hdf5")
    if kind == "hdf5":
        path = folder / "main_data.hdf5"
        if not path.exists():
            raise InputError("data/main_data.hdf5 is missing; copy or download it again")
        with contextlib.ExitStack() as stack:
            try:
                check_file(path)
                file = stack.enter_context(open_hdf5(path))
            except InputError as error:
                raise error.within("data/main_data.hdf5") from error
            yield Hdf5Episodes(file, path)
    elif kind in ("arrow", "parquet"):
        try:
            arrow = importlib.import_module("pyarrow.dataset")
        except ImportError as error:
            raise InputError(f'its storage is {kind}; run pip install "minari[arrow]"') from error
        yield ArrowEpisodes(folder, kind, arrow)
    else:
        raise InputError(f"its storage is {kind!r}; known are hdf5, arrow and parquet")


class Hdf5Episodes:
    """All episodes in one file; h5py's low-level interface halves the time for many short episodes."""

    def __init__(self, file: h5py.File, path: Path) -> None:
        self._root, self._file, self._path = file, file.id, path

    def stored(self) -> tuple[int, int]:
        """Return how many episodes are stored, and in how many bytes."""
        return sum(name.startswith("episode_") for name in self._root), self._path.stat().st_size

    def steps(self, episode: int) -> int:
        """Return the number of steps of an episode, T."""
        return int(self._open(episode, ("rewards",)).get_space().get_simple_extent_npoints())

    def has_weights(self, episode: int) -> bool:
        """Whether an episode has infos/weight."""
        return "/".join((f"episode_{episode}", *_WEIGHT)) in self._root

    def fill(self, episode: int, rows: Mapping[Column, NDArray[Any]]) -> None:
        """Read arrays of an episode into `rows`."""
        for column, out in rows.items():
            source = self._open(episode, column)
            _check_shape(episode, column, source.shape, out.shape)
            try:
                check_stored("/".join(column), source)
                if out.dtype == bool:
                    out[...] = check_flags("/".join(column), _read_flags(source))
                else:
                    source.read(h5py.h5s.ALL, h5py.h5s.ALL, out)
            except InputError as error:
                raise error.within(f"episode {episode}") from error
            except (OSError, TypeError) as error:
                raise _unreadable(episode, "/".join(column), error) from error

    def _open(self, episode: int, column: Column) -> Any:
        try:
            return h5py.h5d.open(self._file, "/".join((f"episode_{episode}", *column)).encode())
        except (KeyError, OSError, TypeError) as error:
            raise _unreadable(episode, "/".join(column), error) from error


def _read_flags(source: h5py.h5d.DatasetID) -> NDArray[Any]:
    """Read flags as they are stored, so that a number that is no flag is seen."""
    flags = np.empty(source.shape, source.dtype)
    if flags.dtype.kind not in "biuf":
        raise TypeError(f"it holds {flags.dtype}, not flags")
    source.read(h5py.h5s.ALL, h5py.h5s.ALL, flags)
    return flags


class ArrowEpisodes:
    """One folder of table files per episode; in the last row, all but the observation is padding."""

    def __init__(self, folder: Path, kind: str, arrow: ModuleType) -> None:
        self._folder, self._kind, self._arrow = folder, kind, arrow

    def steps(self, episode: int) -> int:
        """Return the number of steps of an episode, T."""
        try:
            return int(self._dataset(episode).count_rows()) - 1
        except (OSError, ValueError) as error:
            raise _unreadable(episode, "its table", error) from error

    def stored(self) -> tuple[int, int]:
        """Return how many episodes are stored, and in how many bytes."""
        parts = [part for part in self._folder.glob("[0-9]*/*") if part.is_file()]
        return len({part.parent for part in parts}), sum(part.stat().st_size for part in parts)

    def has_weights(self, episode: int) -> bool:
        """Whether an episode has infos/weight."""
        schema = self._dataset(episode).schema
        return any(leaf.name == ".".join(_WEIGHT) for field in schema for leaf in field.flatten())

    def fill(self, episode: int, rows: Mapping[Column, NDArray[Any]]) -> None:
        """Read arrays of an episode into `rows`."""
        names = list(dict.fromkeys(column[0] for column in rows))
        try:
            table = self._dataset(episode).to_table(columns=names)
            table.validate(
                full=True
            )  # Arrow believes where rows begin, and ends the process where that is no place
            table = table.combine_chunks()
        except (OSError, ValueError) as error:
            raise _unreadable(episode, ", ".join(names), error) from error
        for column, out in rows.items():
            try:
                array = table[column[0]].chunk(0)
                for key in column[1:]:
                    array = array.field(key)
                numbers = _numbers(array.slice(0, len(out)), out.shape)
                with np.errstate(over="ignore"):  # too large for float32 becomes inf, checked later
                    out[...] = check_flags("/".join(column), numbers) if out.dtype == bool else numbers
            except InputError as error:
                raise error.within(f"episode {episode}") from error
            except (KeyError, ValueError, TypeError) as error:
                raise _unreadable(episode, "/".join(column), error) from error

    def _dataset(self, episode: int) -> Any:
        hidden = ["_", ".", "metadata.json"]
        try:
            for part in (self._folder / str(episode)).iterdir():
                check_file(part)
            return self._arrow.dataset(self._folder / str(episode), format=self._kind, ignore_prefixes=hidden)
        except (OSError, ValueError) as error:
            raise _unreadable(episode, "its table", error) from error


def _numbers(array: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return the numbers of a column of an episode's table, a row of which is a number or a list of numbers."""
    if array.null_count:
        raise ValueError("a row is empty")
    if not hasattr(array.type, "value_type"):
        return np.asarray(array.to_numpy(zero_copy_only=False)).reshape(shape)
    size = int(np.prod(shape[1:]))
    one = getattr(array.type, "list_size", None)
    lengths = [one] if one is not None else np.unique(np.diff(array.offsets)).tolist()
    if lengths != [size]:  # joined, rows of other lengths would shift all that follow
        raise ValueError(f"its rows have {', '.join(map(str, lengths))} numbers, not all {size}")
    return np.asarray(array.flatten().to_numpy(zero_copy_only=False)).reshape(shape)


def _unreadable(episode: int, what: str, error: Exception) -> InputError:
    return InputError(f"episode {episode}: {what} cannot be read ({reason(error)}); copy or download it again")


def _check_shape(episode: int, column: Column, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if shape != wanted:
        raise InputError(
            f"episode {episode}: {'/'.join(column)} has the shape {shape}, but its rewards "
            f"and the space need {wanted}; remove it or write it again"
        )


# -- writing ---------------------------------------------------------------------------------------------------


def _write_episodes(data: Dataset, dataset_id: str, folder: Path) -> None:
    from gymnasium.spaces import Box

    storage_type = importlib.import_module("minari.dataset.minari_storage").MinariStorage
    folder.mkdir(parents=True)
    low, high = _action_bounds(data)
    storage = storage_type.new(
        folder,
        observation_space=Box(-np.inf, np.inf, (data.obs_dim,), np.float32),
        action_space=Box(low, high, dtype=np.float32),
        data_format="hdf5",
    )
    storage.update_metadata(_metadata(data.info, dataset_id))
    file = storage._file_path
    file.unlink()
    with writing(file) as sink:
        h5py.File(sink, "w", track_order=True).close()
        storage._file_path = sink  # Minari hands it to h5py, which takes a file in place of a path
        storage.update_episodes(sink.watch(_buffers(data)))


def _buffers(data: Dataset) -> Iterable[Any]:
    buffer = importlib.import_module("minari.data_collector").EpisodeBuffer
    for m, trajectory in enumerate(data):
        terminations, truncations = np.zeros((2, len(trajectory)), bool)
        terminations[-1], truncations[-1] = trajectory.terminal, not trajectory.terminal
        infos = {}
        if data.weight is not None:
            infos["weight"] = np.append(data.weight[data.start[m] : data.start[m + 1]], np.float32(0))
        yield buffer(
            observations=trajectory.obs,
            actions=trajectory.action,
            rewards=trajectory.reward,
            terminations=terminations,
            truncations=truncations,
            infos=infos,
        )


def _metadata(info: Info, dataset_id: str) -> dict[str, Any]:
    """Return `info` as Minari's metadata, without the entries that Minari derives from the arrays."""
    metadata: dict[str, Any] = {k: v for k, v in info.items() if k not in _OWN}
    metadata |= {"dataset_id": dataset_id, "minari_version": _import_minari().__version__}
    for name, separator in _LISTS.items():
        if name in metadata:
            entries = str(metadata[name]).split(separator)
            metadata[name] = entries if name == "requirements" else set(entries)
    metadata |= {name: str(metadata[name]) for name in _TEXTS if name in metadata}
    if "env_spec" not in metadata and "env_id" in metadata:
        from gymnasium.envs.registration import registry

        # Look it up without creating the environment. An id that is not registered, or whose entry point is a
        # function, is stored as env_id only.
        if (spec := registry.get(str(metadata["env_id"]))) is not None:
            with contextlib.suppress(TypeError, ValueError):
                metadata["env_spec"] = spec.to_json()
    return metadata


def _action_bounds(data: Dataset) -> NDArray[np.float32]:
    """Return the bounds in `info` if all actions are within them; otherwise ±1, wider where the data need it."""
    smallest, largest = data.action.min(0), data.action.max(0)
    if (given := data.info.get("action_space")) is not None:
        try:
            bounds = _bounds(json.loads(str(given)))
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"info['action_space'] is not a Box as Minari writes it ({error})") from error
        if bounds.shape == (2, data.action_dim) and (bounds[0] <= smallest).all() and (largest <= bounds[1]).all():
            return bounds
    limit = np.maximum(1, np.maximum(-smallest, largest))
    return np.stack([-limit, limit])


def _make_namespace(namespace: str) -> None:
    """Register the folders above a data set as a Minari namespace."""
    module = importlib.import_module("minari.namespace")
    if namespace not in module.list_local_namespaces():
        try:
            module.create_namespace(namespace)
        except OSError:
            remove(_root() / namespace / module.NAMESPACE_METADATA_FILENAME)
            raise
