"""Improving: `trajstitch improve`, the whole job into a run directory whose stages are kept, so it can be killed.

config.json            the settings, the data's fingerprint, versions
stages/NAME.npz        what each stage made; made anew only when something it depends on has changed
metrics.jsonl          losses of every model at every check
improved.*             the better data, in the format of the input, seams inside
seams.npz              the seams table alone
result.json            what was done: iterations, model errors, sizes of the graph
report.html            all of it for a person
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.files import write_json, write_text
from trajstitch.formats import save
from trajstitch.formats.npz import save_seams
from trajstitch.keep import keep, note_of, recall
from trajstitch.progress import Tell, silent
from trajstitch.run import Run
from trajstitch.scores import Scores
from trajstitch.stitch import Improve, Models, Result, check_data, just_make
from trajstitch.stitch import improve as stitch

ENDINGS = (".hdf5", ".h5", ".npz", ".traj")


def improve(
    data: Dataset,
    config: Improve | None = None,
    *,
    seed: int = 0,
    out: str | Path | None = None,
    models: Models | None = None,
    overwrite: bool = False,
    tell: Callable[[str], Tell] = lambda name: silent,
) -> Result:
    """Improve a data set in memory or, with `out`, into a run directory; with the caller's models if given."""
    if out is None:
        return stitch(data, config, seed=seed, models=models, tell=tell)
    _, result = improve_run(
        data, config or Improve(), out, seed=seed, models=models, overwrite=overwrite, tell=tell
    )
    return result


def improve_run(
    data: Dataset,
    config: Improve,
    out: str | Path,
    *,
    seed: int = 0,
    models: Models | None = None,
    ending: str = ".hdf5",
    overwrite: bool = False,
    tell: Callable[[str], Tell] = lambda name: silent,
) -> tuple[Run, Result]:
    """Improve into a run directory; the same call goes on with one that was stopped, to the same bytes.

    With the caller's own models nothing is kept on the way: whether they are the same again cannot be known.
    """
    if ending not in ENDINGS:
        raise InputError(f"improved data can be written as {', '.join(ENDINGS)}, not {ending}")
    check_data(data)
    asked = {
        "config": dataclasses.asdict(config),
        "seed": seed,
        "data": {"fingerprint": data.fingerprint, "info": dict(data.info)},
    }
    run = Run.open(out, asked, overwrite)
    stage = Stages(run.path, data.fingerprint, seed) if models is None else just_make
    result = stitch(data, config, seed=seed, models=models, stage=stage, tell=tell)
    _write(run, result, ending)
    write_report(run, data, result)
    return run, result


class Stages:
    """Keeps what stages make; a stage depends on the data, the seed and every stage before it."""

    def __init__(self, path: Path, fingerprint: str, seed: int) -> None:
        self.path = path / "stages"
        self.chain = hashlib.blake2b(f"{fingerprint} {seed}".encode(), digest_size=16)

    def __call__(self, name: str, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` makes, or what it made before."""
        self.chain.update(f"{name} {key!r}".encode())
        file = self.path / f"{name.replace(' ', '-')}.npz"
        if note_of(file) == self.chain.hexdigest():
            return recall(file)
        made = make()
        keep(made, file, self.chain.hexdigest())
        return made


def _write(run: Run, result: Result, ending: str) -> None:
    save(result.dataset, run.path / f"improved{ending}", overwrite=True)
    save_seams(result.seams, run.path / "seams.npz")
    lines = [
        {"model": name, "step": step, "train": train, "held_out": held_out}
        for name, history in result.training.items()
        for step, train, held_out in zip(*history, strict=True)
    ]
    write_text(run.path / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    write_json(
        run.path / "result.json",
        {"iterations": result.history, "model_errors": result.errors, "graph": result.graph},
    )


def write_report(run: Run, data: Dataset, result: Result, scores: Mapping[str, Scores] | None = None) -> Path:
    """report.html of the run, with the policies' scores where there are some."""
    from trajstitch.report import render

    target = run.path / "report.html"
    write_text(target, render(data, result.dataset, result, run.settings(), scores))
    return target
