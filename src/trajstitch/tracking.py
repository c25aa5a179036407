"""Tracking: hand numbers to TensorBoard or Weights & Biases while they come; neither package is required.

Everything is in the run directory anyway. A tracker is a function `log(step, numbers)` and nothing else.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from trajstitch.errors import InputError

Log = Callable[[int, Mapping[str, float]], None]
Tracker = Literal["tensorboard", "wandb"]


def log_nothing(step: int, numbers: Mapping[str, float]) -> None:
    """Track nothing."""


@contextmanager
def tracking(kind: Tracker | None, folder: str | Path, settings: Mapping[str, Any]) -> Iterator[Log]:
    """Yield a function that logs numbers to a tracker; InputError if its package is not installed.

    Arguments:
        kind: the tracker; None for none.
        folder: of the run; the tracker's files go beside it, into FOLDER.track/.
        settings: shown beside the curves.
    """
    target = Path(f"{Path(folder)}.track")
    if kind is None:
        yield log_nothing
    elif kind == "tensorboard":
        with _tensorboard(target, settings) as log:
            yield log
    else:
        with _wandb(target, Path(folder).name, settings) as log:
            yield log


@contextmanager
def _tensorboard(target: Path, settings: Mapping[str, Any]) -> Iterator[Log]:
    try:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise InputError("--track tensorboard needs it; run pip install 'trajstitch[track]'") from error
    writer = EventFileWriter(str(target))

    def log(step: int, numbers: Mapping[str, float]) -> None:
        values = [summary_pb2.Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        summary = summary_pb2.Summary(value=values)
        writer.add_event(event_pb2.Event(wall_time=time.time(), step=step, summary=summary))
        writer.flush()

    try:
        yield log
    finally:
        writer.close()


@contextmanager
def _wandb(target: Path, name: str, settings: Mapping[str, Any]) -> Iterator[Log]:
    os.environ.setdefault("WANDB_SILENT", "true")
    try:
        import wandb
    except ImportError as error:
        raise InputError("--track wandb needs wandb; run pip install 'trajstitch[track]'") from error
    target.mkdir(parents=True, exist_ok=True)
    project = os.environ.get("WANDB_PROJECT", "trajstitch")
    try:
        run = wandb.init(project=project, name=name, dir=str(target), config=dict(settings))
    except wandb.errors.Error as error:
        sentence = " ".join(str(error).split())
        raise InputError(
            f"Weights & Biases cannot start ({sentence}); WANDB_MODE=offline needs no account"
        ) from error
    run.define_metric("*", step_metric="step")  # scores of earlier steps may come later
    try:
        yield lambda step, numbers: run.log({"step": step, **numbers})
    finally:
        run.finish()


def by_seed(metrics: Mapping[str, Any], seeds: range) -> dict[str, float]:
    """Return each metric [P] as its mean and, where there are several seeds, one number per seed."""
    found: dict[str, float] = {}
    for name, values in metrics.items():
        found[name] = float(np.mean(values))
        if len(seeds) > 1:
            found |= {f"{name}/seed {seed}": float(v) for seed, v in zip(seeds, values, strict=True)}
    return found
