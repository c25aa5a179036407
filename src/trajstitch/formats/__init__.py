"""Formats: load and save data sets as D4RL HDF5, npz, Minari or our own memory-mapped folder, chosen by name.

hopper.hdf5  hopper.h5       D4RL's layout
hopper.npz                   D4RL's keys, OGBench's or ours, without pickle
hopper.traj                  ours: a folder of .npy files, memory-mapped
d4rl:hopper-medium-v2        downloaded once, then read from the cache
minari:mujoco/hopper/medium-v0   a Minari id (local or downloaded), or the path of a Minari folder
lerobot:FOLDER               a LeRobotDataset, v2.0 to v3.0 (lerobot-v2.1:FOLDER writes v2.1)
robomimic:FILE.hdf5          robomimic's layout, recognised without the prefix when read
imitation:FOLDER             trajectories of imitation, as Hugging Face's datasets saves them
hf:USER/NAME                 on Hugging Face's hub, downloaded once
demo                         the data inside this package
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.formats.features import Features
from trajstitch.progress import Tell, silent
from trajstitch.sources import SOURCES
from trajstitch.storage.archive import reading, reason

_BY_SUFFIX = {".hdf5": "d4rl", ".h5": "d4rl", ".npz": "npz", ".traj": "traj_folder"}
ENDINGS = tuple(_BY_SUFFIX)
_KNOWN = f"known are {', '.join(ENDINGS)}"
_OWN_LOGS = (
    "in Python, ts.from_trajectories makes a data set of logs and ts.save writes it; the page "
    "docs/how-to/own-logs.md of trajstitch shows how"
)
_LOGS = (".csv", ".npy", ".parquet")
_REMEDIES = {
    **dict.fromkeys(_LOGS, _OWN_LOGS),
    ".parquet": f"{_OWN_LOGS}; imitation:FILE reads trajectories of imitation",
    ".pkl": "pickles are never loaded; save the arrays as .npz",
    ".tfrecord": "RLDS is converted as docs/how-to/robots.md shows",
}
_PREFIXES = {
    "minari:": "minari",
    "lerobot:": "lerobot",
    "lerobot-v2.1:": "lerobot",
    "robomimic:": "robomimic",
    "imitation:": "imitation",
}


def load(
    source: str | Path,
    *,
    episode_horizon: int | None = None,
    flatten: bool = False,
    features: Features | None = None,
    tell: Tell = silent,
) -> Dataset:
    """Read a data set by path or name (see the module's list).

    Arguments:
        source: a path, with a format in front of it or without, or a name.
        episode_horizon: the time limit of the episodes, for a file that records no time-outs.
        flatten: put Minari's Dict observations into one vector.
        features: which features of LeRobot's or robomimic's data to take, and the rule of rewards.
        tell: a callback for progress.
    """
    name = str(source)
    if name.startswith("hf:"):
        path = _module("hub").fetch(name, ENDINGS)
        return load(path, episode_horizon=episode_horizon, flatten=flatten, features=features, tell=tell)
    kind = _robot_format(name)
    if kind:
        if episode_horizon is not None:
            raise InputError(f"{name} records where its episodes end; leave --episode-horizon out")
        return _module(kind).read(name, features=features, tell=tell)
    if features is not None and features.chosen:
        option = features.chosen[0].replace("_", "-")
        raise InputError(f"{name} has no named features to choose from; leave --{option} out")
    if name == "demo":
        return load(Path(__file__).parent.parent / "assets" / "demo.npz")
    if episode_horizon is not None and name.startswith(("d4rl:", "minari:")):
        raise InputError(f"{name} records where its episodes were cut; leave --episode-horizon out")
    if name.startswith("d4rl:"):
        from trajstitch.formats.d4rl_download import fetch_d4rl

        return fetch_d4rl(name.removeprefix("d4rl:"), tell)
    path = Path(name)
    if name.startswith("minari:") or _is_minari_folder(path):
        return _module("minari").read(name, flatten=flatten, tell=tell)
    if not path.exists():
        raise InputError(f"{name}: there is no such file; give {SOURCES}")
    reader = _module(_format(path, _read_remedy(path)))
    with reading(path):
        return reader.read(path, episode_horizon=episode_horizon)


def save(data: Dataset, target: str | Path, *, overwrite: bool = False) -> None:
    """Write a data set in the format that its name chooses; the file appears whole or not at all."""
    name = str(target)
    if name.startswith("hf:"):
        raise InputError(f"{name} is on the hub; save to a file, then trajstitch push it")
    if name.startswith("d4rl:") or name == "demo":
        raise InputError(f"{name} is read-only; give a file name such as data.hdf5")
    try:
        writer(name).write(data, name, overwrite=overwrite)
    except (TypeError, ValueError, OverflowError) as error:  # a text or number that this format cannot hold
        raise InputError(f"{name}: this format cannot hold the data or their info ({reason(error)})") from error


def writer(name: str) -> ModuleType:
    """Return the module that writes data sets of such a name."""
    for prefix, module in _PREFIXES.items():
        if name.startswith(prefix):
            return _module(module)
    return _module(_format(Path(name), _KNOWN))


def place(name: str) -> str:
    """Return the path in the name of a data set, without the format in front of it; other names are unchanged."""
    for prefix in _PREFIXES:
        if prefix != "minari:":
            name = name.removeprefix(prefix)
    return name


def _robot_format(name: str) -> str | None:
    """Return lerobot or robomimic if the name or what it names says so."""
    for prefix, module in _PREFIXES.items():
        if prefix != "minari:" and name.startswith(prefix):
            return module
    path = Path(name)
    if (path / "meta" / "info.json").exists():
        return "lerobot"
    if (path / "state.json").exists() and any(path.glob("*.arrow")):
        return "imitation"
    if (path / "features.json").exists() and any(path.glob("*.tfrecord*")):
        raise InputError(
            f"{name} is an RLDS data set, which TensorFlow reads; convert it to .npz in an environment that has "
            "tensorflow_datasets, as docs/how-to/robots.md shows"
        )
    if path.suffix in (".hdf5", ".h5") and path.is_file() and _module("robomimic").is_robomimic(path):
        return "robomimic"
    return None


def _format(path: Path, remedy: str) -> str:
    if path.suffix in _BY_SUFFIX:
        return _BY_SUFFIX[path.suffix]
    raise InputError(f"{path}: the ending {path.suffix or '(none)'} names no format; {remedy}")


def _read_remedy(path: Path) -> str:
    """Return what to do where data are to be read from something that is there, but has no known ending."""
    improved = [file for ending in ENDINGS if (file := path / f"improved{ending}").exists()]
    if improved:
        return f"it is a run of improve, whose data are {improved[0]}: give that"
    if path.is_dir() and any(file.suffix in _LOGS for file in path.iterdir()):
        return _OWN_LOGS
    return _REMEDIES.get(path.suffix, _KNOWN)


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"trajstitch.formats.{name}")


def _is_minari_folder(path: Path) -> bool:
    return (path / "data" / "metadata.json").exists() or (path / "data" / "main_data.hdf5").exists()
