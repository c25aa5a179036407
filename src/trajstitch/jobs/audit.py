"""Audit a run of improve: store what the audit found as audit.json, and show it in the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.formats import ENDINGS
from trajstitch.jobs.run_dir import Run
from trajstitch.report import with_audit
from trajstitch.storage.archive import reading
from trajstitch.storage.atomic import write_json, write_text
from trajstitch.storage.lock import holding
from trajstitch.version import versions

if TYPE_CHECKING:
    from trajstitch.evaluation.audit import Audit  # which loads the simulator


def open_improved(source: str) -> tuple[Run | None, str]:
    """Return the run, if `source` is a run directory of improve, and the file of its improved data."""
    if not (Path(source) / "config.json").is_file():
        return None, source
    run = Run.existing(source)
    if run.job != "improve":
        raise InputError(f"{source} is a run of {run.job}; give a run of trajstitch improve")
    files = [run.path / f"improved{ending}" for ending in ENDINGS]
    found = next((file for file in files if file.exists()), None)
    if found is None:
        raise InputError(f"{source} holds no improved data yet; run its trajstitch improve to the end")
    return run, str(found)


def write_audit(found: Audit, target: Path) -> dict[str, Any]:
    """Write an audit as JSON and return it."""
    stored = {**found.summary(), "points": found.points(), "versions": versions()}
    write_json(target, stored)
    return stored


def audit_into_run(run: Run, found: Audit) -> None:
    """Write audit.json of a run, and its section into report.html."""
    with holding(run.path):
        stored = write_audit(found, run.path / "audit.json")
        report = run.path / "report.html"
        if report.exists():
            write_text(report, with_audit(report.read_text(), stored))


def stored_audit(run: Run, improved: Dataset) -> dict[str, Any] | None:
    """Return audit.json of a run if it is of these improved data, else None."""
    file = run.path / "audit.json"
    if not file.exists():
        return None
    with reading(file):
        stored: dict[str, Any] = json.loads(file.read_text())
        return stored if stored["settings"]["improved"] == improved.steps_fingerprint else None
