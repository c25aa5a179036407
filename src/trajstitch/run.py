"""Run directory: what was asked for, what came of it, and how far it got.

config.json       the settings, the data's fingerprint, versions
metrics.jsonl     one line per checkpoint: step, loss and further numbers of each seed
checkpoints/      policies after each `every` steps, P stacked in a file
state.npz         the training state at the last checkpoint, while the run is unfinished; prepared.npz: the model
                  that some methods learn first, likewise
scores/           returns of every checkpoint, one file per way of judging
policy.npz        the last policies;  policy-best.npz: the best checkpoint of each seed
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trajstitch import __version__
from trajstitch.errors import InputError
from trajstitch.files import replacing, write_json
from trajstitch.formats.npz import read_arrays, write_arrays
from trajstitch.keep import keep, recall

_PACKAGES = ("jax", "equinox", "optax", "numpy", "gymnasium", "mujoco")


@dataclass(frozen=True)
class Run:
    """A run directory that belongs to one configuration."""

    path: Path

    @staticmethod
    def open(path: str | Path, config: dict[str, Any], overwrite: bool = False) -> Run:
        """Begin a run, or go on with one of the same settings; other settings need `overwrite`."""
        run = Run(Path(path))
        if run.path.exists() and not run.path.is_dir():
            raise InputError(f"{path} is a file, not a run directory; choose another name")
        if run._is_ours():
            if run.settings() == json.loads(json.dumps(config)):
                return run
            if run.job != _job(config):
                raise InputError(f"{path} holds a run of {run.job}, not of {_job(config)}; choose another name")
            if not overwrite:
                raise InputError(
                    f"{path} holds a run with other settings or data; choose another name or pass --overwrite"
                )
        elif run.path.exists() and any(run.path.iterdir()):
            raise InputError(f"{path} exists and is not a run of trajstitch; choose another name")
        with replacing(run.path, overwrite=True) as part:
            part.mkdir()
            versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
            versions |= {"trajstitch": __version__, "python": platform.python_version()}
            write_json(part / "config.json", {"settings": config, "versions": versions})
        return run

    @staticmethod
    def existing(path: str | Path) -> Run:
        """A run made before."""
        run = Run(Path(path))
        if not run._is_ours():
            raise InputError(
                f"{path} is not a run directory (config.json is missing); give the --out of a training"
            )
        return run

    @property
    def _config(self) -> Path:
        return self.path / "config.json"

    def _is_ours(self) -> bool:
        """Whether a config.json of ours is there; nothing else is ever replaced."""
        try:
            return "trajstitch" in json.loads(self._config.read_text())["versions"]
        except (OSError, ValueError, KeyError, TypeError):
            return False

    @property
    def job(self) -> str:
        """The command whose run this is: train or improve."""
        return _job(self.settings())

    def settings(self) -> dict[str, Any]:
        """What the run was asked to do."""
        return json.loads(self._config.read_text())["settings"]

    # -- checkpoints -------------------------------------------------------------------------------------------

    def checkpoint(self, step: int) -> Path:
        """Where the policies after `step` steps are."""
        return self.path / "checkpoints" / f"{step:09d}.npz"

    def steps(self) -> list[int]:
        """The checkpoints there are, in order."""
        return sorted(int(file.stem) for file in (self.path / "checkpoints").glob("[0-9]*.npz"))

    def save_state(self, state: Any) -> None:
        """Keep a training state to go on from."""
        leaves = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
        write_arrays(self.path / "state.npz", leaves, {}, overwrite=True)

    def load_state(self, like: Any) -> Any:
        """The kept training state, or `like` itself (the fresh one) where there is none."""
        file = self.path / "state.npz"
        if not file.exists():
            return like
        arrays = read_arrays(file)
        leaves, structure = jax.tree.flatten(like)
        return jax.tree.unflatten(structure, [jnp.asarray(arrays[f"leaf{i}"]) for i in range(len(leaves))])

    def prepared(self, prepare: Callable[[], Any]) -> Any:
        """What `prepare` makes, the first time; then what was kept of it."""
        file = self.path / "prepared.npz"
        if file.exists():
            return recall(file)
        if (made := prepare()) is not None:
            keep(made, file)
        return made

    def forget_state(self) -> None:
        """The run is finished; nothing is left to go on from."""
        for name in ("state.npz", "prepared.npz"):
            (self.path / name).unlink(missing_ok=True)

    # -- records -----------------------------------------------------------------------------------------------

    def record(self, step: int, **metrics: Any) -> None:
        """Append to metrics.jsonl, replacing what a run killed later had written of this step or beyond."""
        lines = [line for line in self.metrics() if line["step"] < step] + [{"step": step, **metrics}]
        with replacing(self.path / "metrics.jsonl", overwrite=True) as part:
            part.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def metrics(self) -> list[dict[str, Any]]:
        """All recorded lines."""
        file = self.path / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _job(settings: dict[str, Any]) -> str:
    return "train" if "method" in settings else "improve"
