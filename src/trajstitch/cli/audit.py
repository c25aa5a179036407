"""The command `trajstitch audit`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Positional

from trajstitch.cli.command import Command, MaybeFloat, MaybeInt, MaybePhysics, MaybeStr, parse_as
from trajstitch.errors import InputError
from trajstitch.progress import bar

if TYPE_CHECKING:
    from rich.table import Table

    from trajstitch.data import Dataset
    from trajstitch.evaluation.audit import Audit


@dataclass(frozen=True, kw_only=True)
class AuditCommand(Command):
    """Replay the seams of improved data in the simulator."""

    improved: Annotated[Positional[str], tyro.conf.arg(metavar="RUN")]
    """A run directory of improve, or improved data."""
    env: MaybeStr = None
    """Gymnasium id; unless given, the environment of the data."""
    physics: MaybePhysics = None
    """d4rl: the masses of the simulator that recorded D4RL's data; unless given, as the data."""
    data: MaybeStr = None
    """The original data: shows the distance bridged and what recorded actions would do."""
    episode_horizon: MaybeInt = None
    """Time limit of the original's episodes, if improve was given one."""
    flatten: bool = False
    """Put Minari's Dict observations of the original into one vector."""
    sample: int = 20_000
    """Replay at most this many distinct seams, a random sample; 0 for all."""
    drop_worse_than: MaybeFloat = None
    """Write data without the seams that miss by more typical steps than this; all seams are replayed."""
    out: MaybeStr = None
    """With --drop-worse-than the data to write, else a .json file for the audit of a data file."""
    overwrite: bool = False
    """Replace the output if it exists."""

    def run(self) -> dict[str, Any]:
        """Replay, print a table, and write what was found."""
        from trajstitch.evaluation.audit import audit
        from trajstitch.formats import load
        from trajstitch.jobs.audit import audit_into_run, open_improved, write_audit

        run, file = open_improved(self.improved)
        self._check_output(run is not None)
        with bar("loading", self.quiet) as tell:
            improved = load(file, tell=tell)
            original = self._original()
        with bar("replaying", self.quiet) as tell:
            try:
                found = audit(
                    improved,
                    self.env,
                    data=original,
                    physics=self.physics,
                    sample=self.sample if self.drop_worse_than is None else 0,
                    seed=self.seed,
                    tell=tell,
                )
            except InputError as error:
                raise error.within(self.improved) from error
        summary = found.summary()
        self.say(audit_table(self.improved, summary))
        if promise := summary["promise"]:
            self.say(decile_table(promise["deciles"]))
        if not summary["floor"]["exact"]:
            self.say("recorded steps miss too, so this is not quite the simulator of the data; see --physics")
        if run is not None:
            audit_into_run(run, found)
            self.say(f"{run.path}/audit.json written; {run.path}/report.html shows it")
        elif self.out and self.drop_worse_than is None:
            write_audit(found, Path(self.out))
            self.say(f"{self.out} written")
        return summary | self._drop(improved, found)

    def _original(self) -> Dataset | None:
        """Load the original data, if they are given."""
        from trajstitch.formats import load

        if self.data is None:
            return None
        return load(self.data, episode_horizon=self.episode_horizon, flatten=self.flatten)

    def _drop(self, improved: Dataset, found: Audit) -> dict[str, Any]:
        """Write the data without the worst seams, if asked for, and return what was dropped."""
        from trajstitch.evaluation.audit import drop_seams
        from trajstitch.formats import save

        if self.drop_worse_than is None or self.out is None:
            return {}
        kept = drop_seams(improved, found, self.drop_worse_than)
        save(kept, self.out, overwrite=self.overwrite)
        dropped = improved.transitions - kept.transitions
        self.say(f"{kept!r} written to {self.out}, without {dropped:,} stitched steps")
        return {"dropped": {"out": self.out, "steps": dropped, "fingerprint": kept.fingerprint}}

    def _check_output(self, is_run: bool) -> None:
        """Raise InputError now, before the work, if the output cannot be written."""
        from trajstitch.formats import place, writer
        from trajstitch.storage.atomic import check_apart, check_target

        if self.drop_worse_than is not None:
            if not self.drop_worse_than >= 0:
                raise InputError(f"--drop-worse-than must not be below 0, as {self.drop_worse_than:g} is")
            if self.out is None:
                raise InputError(
                    "--drop-worse-than writes a data set; name it with --out, such as --out kept.hdf5"
                )
            writer(self.out)
        elif self.out is None:
            return
        elif is_run:
            raise InputError("the audit of a run is written to its audit.json; leave --out out")
        elif Path(self.out).suffix != ".json":
            raise InputError(f"an audit is written as .json, not to {self.out}; --drop-worse-than writes data")
        check_apart([place(name) for name in (self.improved, self.data) if name], place(self.out))
        if not self.out.startswith("minari:"):
            check_target(Path(place(self.out)), self.overwrite)


def audit_table(title: str, summary: dict[str, Any]) -> Table:
    """Return the numbers of an audit as a table."""
    from rich.table import Table
    from rich.text import Text

    from trajstitch.report.audit import distances, facts
    from trajstitch.report.html import number

    settings, seams = summary["settings"], summary["seams"]
    clipped = f"; {seams['clipped']:,} start at a clipped velocity" if seams["clipped"] else ""
    text = (
        f"{title} in {settings['env']}, physics {settings['physics']}: {seams['replayed']:,} of "
        f"{seams['distinct']:,} seams replayed{clipped}"
    )
    table = Table(title=Text(text), title_justify="left")
    table.add_column(f"typical steps of the {summary['scale']['of']} data")
    table.add_column("median", justify="right")
    table.add_column("90%", justify="right")
    for label, median, p90 in distances(summary):
        table.add_row(label, number(median), number(p90))
    table.add_section()
    for label, value in facts(summary):
        table.add_row(label, value, "")
    return table


def decile_table(deciles: list[dict[str, Any]]) -> Table:
    """Return the calibration as a table: groups of seams by what was promised, and how they really land."""
    from rich.table import Table

    from trajstitch.report.html import number

    table = Table(title="landing errors by promise, typical steps", title_justify="left")
    for name in ("promised up to", "promised", "real, median", "real, 90%", "seams"):
        table.add_column(name, justify="right")
    for group in deciles:
        keys = ("promised_up_to", "promised", "median", "p90", "seams")
        table.add_row(*(number(group[key]) for key in keys))
    return table


def parse(name: str, arguments: list[str]) -> AuditCommand:
    """Return the command with its options."""
    return parse_as(AuditCommand, name, arguments)
