"""The command `trajstitch report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from trajstitch.cli.command import Command, parse_as


@dataclass(frozen=True, kw_only=True)
class Report(Command):
    """Make tables and a page from the records in a folder of bench, finished or not."""

    folder: Annotated[Positional[str], tyro.conf.arg(metavar="DIR")]
    """The --out of trajstitch bench; report.md and report.html are written into it."""

    def run(self) -> dict[str, Any]:
        """Write both files and print the Markdown."""
        from trajstitch.bench.report import write_reports

        text, result = write_reports(Path(self.folder))
        if not self.quiet:
            print(text)
        return result


def parse(name: str, arguments: list[str]) -> Report:
    """Return the command with its options."""
    return parse_as(Report, name, arguments)
