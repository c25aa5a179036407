"""Commands that choose episodes: filter and merge; each writes a record of what it left out."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Positional

from trajstitch.cli.command import Command, DataCommand, MaybeStr, parse_as
from trajstitch.errors import InputError
from trajstitch.sources import TARGETS

if TYPE_CHECKING:
    from trajstitch.data import Dataset
    from trajstitch.episodes import Episodes


@dataclass(frozen=True, kw_only=True)
class Filter(DataCommand):
    """Keep the episodes that meet a condition."""

    where: str
    """Condition on an episode, such as 'return > 100 and idle < 0.5'; the names are the columns of inspect."""
    out: Annotated[str, tyro.conf.arg(help=f"Output, whose name chooses the format: {TARGETS}.")]
    record: MaybeStr = None
    """Record of what was left out (.json); unless given, OUT.left-out.json."""
    overwrite: bool = False
    """Replace the outputs if they exist."""

    def run(self) -> dict[str, Any]:
        """Filter and save."""
        from trajstitch.conditions import where
        from trajstitch.episodes import episode_table
        from trajstitch.formats import save

        record = _check_outputs([self.data], self.out, self.record, self.overwrite)
        data = self.load()
        episodes = episode_table(data)
        keep = where(episodes, self.where)
        if not keep.any():
            raise InputError(
                f"no episode of {self.data} meets --where {self.where!r}; inspect shows their numbers"
            )
        kept = data[keep]
        kept = dataclasses.replace(kept, info={**kept.info, "filtered_by": self.where})
        save(kept, self.out, overwrite=self.overwrite)
        gone = [left_out(data, episodes, m, self.data) for m in (~keep).nonzero()[0].tolist()]
        result = {
            "sources": [_source(self.data, data)],
            "where": self.where,
            "out": self.out,
            "kept": len(kept),
            "fingerprint": kept.fingerprint,
            "left_out": gone,
        }
        _write_record(record, result)
        self.say(f"{len(kept):,} of {len(data):,} episodes kept: {kept!r} written to {self.out}")
        self.say(f"{record}: what was left out")
        return result | {"record": str(record)}


@dataclass(frozen=True, kw_only=True)
class Merge(DataCommand):
    """Put data sets together, one after another."""

    others: Annotated[Positional[tuple[str, ...]], tyro.conf.arg(metavar="DATA")]
    """More data sets, whose observations and actions have the same sizes."""
    out: Annotated[str, tyro.conf.arg(help=f"Output, whose name chooses the format: {TARGETS}.")]
    drop_duplicates: bool = False
    """Leave out episodes with the same states and actions as an earlier one."""
    record: MaybeStr = None
    """Record of what was left out (.json); unless given, OUT.left-out.json."""
    overwrite: bool = False
    """Replace the outputs if they exist."""

    def run(self) -> dict[str, Any]:
        """Merge and save."""
        from trajstitch.data import concatenate
        from trajstitch.episodes import episode_table
        from trajstitch.formats import save

        if not self.others:
            raise InputError(
                "merge needs at least two data sets; to copy one use convert, and to leave out its duplicates "
                "filter --where 'duplicate < 0'"
            )
        names = [self.data, *self.others]
        record = _check_outputs(names, self.out, self.record, self.overwrite)
        parts = [self.load_from(name) for name in names]
        together = concatenate(parts)
        owner = [(name, m) for name, part in zip(names, parts, strict=True) for m in range(len(part))]
        gone = []
        if self.drop_duplicates:
            episodes = episode_table(together)
            again = episodes.column["duplicate"] >= 0
            gone = [left_out(together, episodes, m, *owner[m]) for m in again.nonzero()[0].tolist()]
            together = together[~again]
        save(together, self.out, overwrite=self.overwrite)
        entries = {key for part in parts for key in part.info} - together.info.keys()
        result = {
            "sources": [_source(name, part) for name, part in zip(names, parts, strict=True)],
            "out": self.out,
            "kept": len(together),
            "fingerprint": together.fingerprint,
            "left_out": gone,
            "info_left_out": sorted(entries),
            "seams_left_out": any(part.seams is not None for part in parts),
        }
        _write_record(record, result)
        without = f", without {len(gone):,} duplicates" if self.drop_duplicates else ""
        self.say(f"{together!r} written to {self.out}{without}")
        if entries:
            self.say(f"left out, since the data sets differ in it: {', '.join(sorted(entries))}")
        self.say(f"{record}: what was left out")
        return result | {"record": str(record)}


def left_out(data: Dataset, episodes: Episodes, m: int, source: str, number: int | None = None) -> dict[str, Any]:
    """Return what the record says of an episode: where it was, and its row of the table."""
    row = {name: value for name, value in episodes.rows_of([m])[0].items() if name != "episode"}
    at = "" if data.origin is None else str(data.origin[m])
    return {"source": source, "episode": m if number is None else number, "origin": at} | row


def _source(name: str, data: Dataset) -> dict[str, Any]:
    return {"name": name, "episodes": len(data), "fingerprint": data.fingerprint}


def _check_outputs(inputs: list[str], out: str, record: str | None, overwrite: bool) -> Path:
    """Return where the record goes; InputError now, before the work, if an output cannot be written."""
    from trajstitch.formats import place, writer
    from trajstitch.storage.atomic import check_apart, check_target

    writer(out)
    given = [place(name) for name in inputs]
    check_apart(given, place(out))
    if not out.startswith("minari:"):
        check_target(Path(place(out)), overwrite)
    usual = f"{place(out).removeprefix('minari:').replace('/', '-') if out.startswith('minari:') else place(out)}"
    file = Path(record or f"{usual.rstrip('/')}.left-out.json")
    if file.suffix != ".json":
        raise InputError(f"--record {file}: give a name that ends in .json")
    check_apart([*given, place(out)], file)
    check_target(file, overwrite)
    return file


def _write_record(file: Path, content: dict[str, Any]) -> None:
    from trajstitch.storage.atomic import write_json

    write_json(file, content)


COMMANDS: dict[str, type[Command]] = {"filter": Filter, "merge": Merge}


def parse(name: str, arguments: list[str]) -> Command:
    """Return one of the commands with its options."""
    return parse_as(COMMANDS[name], name, arguments)
