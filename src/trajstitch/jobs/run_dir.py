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

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from trajstitch.errors import InputError
from trajstitch.formats import ENDINGS
from trajstitch.storage.archive import read_arrays, reading, write_arrays
from trajstitch.storage.atomic import check_apart, remove, replacing, write_json
from trajstitch.storage.serialise import restore, store
from trajstitch.version import versions

_CHECKPOINTS = "[0-9]" * 9 + ".npz"  # files of the folder checkpoints
# Everything a run writes besides config.json; overwriting a run removes these and nothing else.
_WRITTEN = (
    "metrics.jsonl",
    f"checkpoints/{_CHECKPOINTS}",
    "scores/*-episodes-from-*.json",
    "state.npz",
    "prepared.npz",
    "policy.npz",
    "policy-best.npz",
    *(f"stages/{name}.npz" for name in ("dynamics", "inverse", "reward", "world", "graph", "value-[0-9]*")),
    *(f"{name}{ending}" for name in ("improved", "plan") for ending in ENDINGS),
    "seams.npz",
    "result.json",
    "report.html",
    "audit.json",
    "appraisal.npz",
    *(f"weigh/{name}" for name in ("config.json", "metrics.jsonl", "state.npz", "appraisal.npz")),
    ".*.part",  # what a killed run was writing
    "*/.*.part",
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
    def open(path: str | Path, config: dict[str, Any], overwrite: bool = False, inputs: Sequence[str] = ()) -> Run:
        """Start a run, or continue one with the same settings; other settings need `overwrite`.

        Overwriting removes what a run wrote and nothing else; `inputs` must not lie in the directory.
        """
        check_apart(inputs, path)
        run = Run(Path(path))
        if run.path.exists() and not run.path.is_dir():
            raise InputError(f"{path} is a file, not a run directory; choose another name")
        if run._is_ours():
            if _completed(run.settings(), asked := json.loads(json.dumps(config))) == asked:
                return run
            if run.job != _job(config):
                raise InputError(f"{path} holds a run of {run.job}, not of {_job(config)}; choose another name")
            if not overwrite:
                raise InputError(
                    f"{path} holds a run with other settings or data; choose another name or pass --overwrite"
                )
        elif run.path.exists() and any(run.path.iterdir()):
            raise InputError(f"{path} exists and is not a run of trajstitch; choose another name")
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

    def _clear(self) -> None:
        """Remove what a run wrote except config.json, which marks the directory as a run."""
        for pattern in _WRITTEN:
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

    def save_state(self, state: Any) -> None:
        """Store a training state to continue from."""
        leaves = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
        write_arrays(self.path / "state.npz", leaves, {}, overwrite=True)

    def load_state(self, like: Any) -> Any:
        """Return the stored training state, or `like` (the fresh one) if there is none."""
        file = self.path / "state.npz"
        if not file.exists():
            return like
        leaves, structure = jax.tree.flatten(like)
        with reading(file):
            arrays = read_arrays(file)
            stored = [jnp.asarray(arrays[f"leaf{i}"]) for i in range(len(leaves))]
            if any(a.shape != jnp.shape(b) for a, b in zip(stored, leaves, strict=True)):
                raise InputError("this training state is of other sizes; delete it to train from the start")
        return jax.tree.unflatten(structure, stored)

    def prepared(self, prepare: Callable[[], Any]) -> Any:
        """Return what `prepare` makes: call it the first time and store the result, later read it back."""
        file = self.path / "prepared.npz"
        if file.exists():
            return restore(file)
        if (made := prepare()) is not None:
            store(made, file)
        return made

    def forget_state(self) -> None:
        """Remove the training state of a finished run."""
        for name in ("state.npz", "prepared.npz"):
            (self.path / name).unlink(missing_ok=True)

    # -- records -----------------------------------------------------------------------------------------------

    def record(self, step: int, **metrics: Any) -> None:
        """Append to metrics.jsonl; lines of this step or later, left by a killed run, are removed."""
        lines = [line for line in self.metrics() if line["step"] < step] + [{"step": step, **metrics}]
        with replacing(self.path / "metrics.jsonl", overwrite=True) as part:
            part.write_text("".join(json.dumps(line) + "\n" for line in lines))

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
