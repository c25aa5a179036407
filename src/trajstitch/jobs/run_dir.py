"""Run directory: the settings, results and progress of one run.

config.json       the settings, the data's fingerprint, versions
metrics.jsonl     one line per checkpoint: step, loss and further numbers of each seed
checkpoints/      policies after every `every` steps, P stacked in one file
state.npz         the training state at the last checkpoint, removed when the run is finished
prepared.npz      the model that some methods learn first, removed when the run is finished
scores/           returns of every checkpoint, one file per way of scoring
policy.npz        the last policies
policy-best.npz   the best checkpoint of each seed
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trajstitch.errors import InputError
from trajstitch.formats import ENDINGS, place
from trajstitch.storage.archive import INFO, check_file, read_arrays, reading, write_arrays
from trajstitch.storage.atomic import OTHER_NAME, check_apart, json_text, remove, write_json, write_json_lines
from trajstitch.storage.lock import NAME as LOCK
from trajstitch.storage.lock import holding
from trajstitch.storage.serialise import read_note, restore, store
from trajstitch.version import versions

LOG = logging.getLogger("trajstitch")
T = TypeVar("T")
_CHECKPOINTS = "[0-9]" * 9 + ".npz"  # files of the folder checkpoints
_STORED = (  # what a run stores in order to continue; a damaged one is set aside, with the ending .damaged
    *("state.npz", "prepared.npz", "appraisal.npz", "weigh/state.npz", "weigh/appraisal.npz"),
    *(f"stages/{name}.npz" for name in ("dynamics", "inverse", "reward", "world", "graph", "value-[0-9]*")),
)
_PARTS = tuple(f"{place}.*.{'[0-9a-f]' * 8}.part" for place in ("", "*/"))  # what a killed run was writing
# Everything a run writes besides config.json; overwriting a run removes these and nothing else.
_WRITTEN = (
    *_STORED,
    *(f"{name}.damaged" for name in _STORED),
    *_PARTS,
    "metrics.jsonl",
    f"checkpoints/{_CHECKPOINTS}",
    "scores/*-episodes-from-*.json",
    "policy.npz",
    "policy-best.npz",
    *(f"{name}{ending}" for name in ("improved", "plan") for ending in ENDINGS),
    "seams.npz",
    "result.json",
    "timings.json",
    "report.html",
    "audit.json",
    "weigh/config.json",
    "weigh/metrics.jsonl",
)
# Settings by their names in version 0.1.0.
_RENAMED = {
    "horizon": "max_length",
    "onward": "continue_prob",
    "refresh": "rollout_interval",
    "real": "dataset_share",
}
# Settings that older runs did not have, with the value that means what they did; of any other that is missing,
# such as those of a planner they did not have, every value means that.
_ADDED = {"schedule": "constant", "value_cut_ends": False}


@dataclass(frozen=True)
class Run:
    """A run directory that belongs to one configuration."""

    path: Path

    @staticmethod
    @contextmanager
    def working(
        path: str | Path, config: dict[str, Any], overwrite: bool = False, inputs: Sequence[str] = ()
    ) -> Iterator[Run]:
        """Open a run as `open` does, and keep every other process from working in it inside the block."""
        run = Run(Path(path))
        run._check_place(inputs)
        with holding(run.path):
            run = Run.open(path, config, overwrite, inputs)
            run._clear(_PARTS)
            yield run

    @staticmethod
    def open(path: str | Path, config: dict[str, Any], overwrite: bool = False, inputs: Sequence[str] = ()) -> Run:
        """Start a run, or continue one with the same settings; other settings need `overwrite`.

        Overwriting removes what a run wrote and nothing else; `inputs` must not lie in the directory.
        """
        run = Run(Path(path))
        run._check_place(inputs)
        if run._is_ours():
            if _completed(run.settings(), asked := json.loads(json.dumps(config))) == asked:
                return run
            if run.job != _job(config):
                raise InputError(f"{path} holds a run of {run.job}, not of {_job(config)}; choose another name")
            if not overwrite:
                raise InputError(f"{path} holds a run with other settings or data; {OTHER_NAME}")
        run._clear()
        write_json(run._config, {"settings": config, "versions": versions()})
        return run

    @staticmethod
    def existing(path: str | Path) -> Run:
        """Open a run that exists already."""
        run = Run(Path(path))
        if not run._is_ours():
            raise InputError(
                f"{path} is not a run directory (config.json is missing); give the --out of trajstitch train"
            )
        return run

    def _check_place(self, inputs: Sequence[str]) -> None:
        """Raise InputError if the directory would touch an input, or is something else than a run."""
        check_apart([place(name) for name in inputs], self.path)
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file, not a run directory; choose another name")
        if self.path.exists() and not self._is_ours() and any(file.name != LOCK for file in self.path.iterdir()):
            raise InputError(f"{self.path} exists and is not a run of trajstitch; choose another name")

    @property
    def _config(self) -> Path:
        return self.path / "config.json"

    def _is_ours(self) -> bool:
        """Whether there is a config.json of trajstitch; other directories are never overwritten."""
        try:
            plain = self._config.is_file()  # a pipe would be waited for
            return plain and "trajstitch" in json.loads(self._config.read_text())["versions"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return False

    def _clear(self, patterns: Sequence[str] = _WRITTEN) -> None:
        """Remove what a run wrote except config.json, which marks the directory as a run."""
        for pattern in patterns:
            for file in self.path.glob(pattern):
                remove(file)
        for folder in ("checkpoints", "scores", "stages", "weigh"):
            with suppress(OSError):  # it does not exist, or holds a file that is not ours
                (self.path / folder).rmdir()

    @property
    def job(self) -> str:
        """The command that made this run: train, improve or weigh."""
        return _job(self.settings())

    def settings(self) -> dict[str, Any]:
        """Return the settings the run was started with."""
        with reading(self._config):
            config = json.loads(self._config.read_text())
            settings: dict[str, Any] = config["settings"]
            if not isinstance(settings, dict) or not isinstance(settings.get("config"), dict):
                raise InputError("the settings of this run are damaged; choose another directory")
            return _renamed(settings) if config["versions"]["trajstitch"] == "0.1.0" else settings

    # -- checkpoints -------------------------------------------------------------------------------------------

    def checkpoint(self, step: int) -> Path:
        """Return the path of the policies after `step` steps."""
        return self.path / "checkpoints" / f"{step:09d}.npz"

    def steps(self) -> list[int]:
        """Return the steps of all checkpoints, in order."""
        return sorted(int(file.stem) for file in (self.path / "checkpoints").glob(_CHECKPOINTS))

    @property
    def identity(self) -> str:
        """Hash of the settings; what belongs to this run alone is marked with it."""
        return hashlib.blake2b(json_text(self.settings()).encode(), digest_size=16).hexdigest()

    def save_state(self, state: Any) -> None:
        """Store a training state to continue from."""
        leaves = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
        write_arrays(self.path / "state.npz", leaves, {"run": self.identity}, overwrite=True)

    def load_state(self, like: Any) -> Any:
        """Return the stored training state, or `like` (the fresh one) if there is none of this run."""
        leaves, structure = jax.tree.flatten(like)
        identity = self.identity  # asked for before reading, as it is not the state's fault if there is none

        def read(file: Path) -> Any:
            arrays = read_arrays(file)
            check_owner(json.loads(str(arrays[INFO])).get("run"), identity)
            stored = [arrays[f"leaf{i}"] for i in range(len(leaves))]
            if [array.shape for array in stored] != [leaf.shape for leaf in leaves]:
                raise InputError("its arrays do not have the shapes of this method's")
            return jax.tree.unflatten(structure, [jnp.asarray(array) for array in stored])

        return read_stored(self.path / "state.npz", read, like)

    def prepared(self, prepare: Callable[[], Any]) -> Any:
        """Return what `prepare` makes: call it the first time and store the result, later read it back."""
        file, identity = self.path / "prepared.npz", self.identity

        def read(file: Path) -> Any:
            check_owner(read_note(file), identity)
            return restore(file)

        made = read_stored(file, read, None)
        if made is None and (made := prepare()) is not None:
            store(made, file, identity)
        return made

    def forget_state(self) -> None:
        """Remove the training state of a finished run."""
        for name in ("state.npz", "prepared.npz"):
            (self.path / name).unlink(missing_ok=True)

    # -- records -----------------------------------------------------------------------------------------------

    def record(self, step: int, **metrics: Any) -> None:
        """Append to metrics.jsonl; lines of this step or later, left by a killed run, are removed."""
        lines = [line for line in self.metrics() if line["step"] < step] + [{"step": step, **metrics}]
        write_json_lines(self.path / "metrics.jsonl", lines)

    def metrics(self) -> list[dict[str, Any]]:
        """Return all recorded lines."""
        file = self.path / "metrics.jsonl"
        with reading(file):
            return [_metric(line) for line in file.read_text().splitlines()] if file.exists() else []


def _metric(line: str) -> dict[str, Any]:
    metric = json.loads(line)
    if not isinstance(metric, dict) or not isinstance(metric.get("step"), int):
        raise InputError("a line does not say of which step it is; delete the file")
    return metric


def read_stored(file: Path, read: Callable[[Path], T], default: T) -> T:
    """Return what `read` makes of a file of a run, or `default` if there is no such file.

    A file that cannot be read is named and set aside under another name, so that what it held is made again.
    """
    if not file.exists():
        return default
    try:
        check_file(file)  # a pipe would be waited for
        return read(file)
    except MemoryError:
        raise
    except Exception as error:  # damage causes errors of many kinds
        aside = file.with_name(f"{file.name}.damaged")
        file.replace(aside)
        why = " ".join(str(error).split()) or type(error).__name__
        LOG.warning("%s: cannot be used (%s); set aside as %s, and made again", file, why, aside.name)
        return default


def check_owner(mark: str | None, identity: str) -> None:
    """Raise InputError if a file is marked with another run; files of older versions have no mark."""
    if mark and mark != identity:
        raise InputError("it was made with other settings or from other data")


def _job(settings: dict[str, Any]) -> str:
    """Return the command that has these settings: weigh is named, and train has a method."""
    return settings.get("job") or ("train" if settings.get("method") is not None else "improve")


def numbers(values: NDArray[Any]) -> list[float | None]:
    """Return numbers for JSON, with None for nan and inf, which JSON lacks."""
    return [float(x) if np.isfinite(x) else None for x in values]


def _completed(settings: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run, with those that did not exist when it was made."""
    missing = {name: _ADDED.get(name, value) for name, value in asked["config"].items()}
    return {**settings, "config": {**missing, **settings["config"]}}


def _renamed(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run of version 0.1.0 in today's names; there every `fit` had a patience."""
    config = {_RENAMED.get(name, name): value for name, value in settings["config"].items()}
    for name in ("dynamics", "inverse", "reward"):
        if isinstance(config.get(name), dict):
            config[name] = {**config[name], "patience": config[name]["fit"]["patience"]}
    return {**settings, "config": _without_patience(config)}


def _without_patience(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings without the patience of each `fit`, at any depth."""
    out = {}
    for name, value in config.items():
        if name == "fit":
            value = {key: number for key, number in value.items() if key != "patience"}
        out[name] = _without_patience(value) if isinstance(value, dict) and name != "fit" else value
    return out
