"""The command `trajstitch push`."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tyro.conf import Positional

from trajstitch.cli.command import DataCommand, MaybeStr, parse_as


@dataclass(frozen=True, kw_only=True)
class Push(DataCommand):
    """Put a data set on Hugging Face's hub, with a card that says what is in it."""

    target: Annotated[Positional[str], tyro.conf.arg(metavar="hf:USER/NAME")]
    """Name of the data set there; hf:USER/NAME is then a DATA of every command."""
    private: bool = False
    """Let only yourself see a new data set."""
    license: MaybeStr = None
    """Licence for the card, by the hub's name, such as apache-2.0."""
    overwrite: bool = False
    """Change a data set that exists there."""

    def run(self) -> dict[str, Any]:
        """Inspect and upload, in one commit."""
        from trajstitch.cli.summary import summarise
        from trajstitch.formats import save
        from trajstitch.formats.hub import check_name, upload
        from trajstitch.report.card import dataset_card

        repo = check_name(self.target)
        data = self.load()
        summary = summarise(data)
        with tempfile.TemporaryDirectory() as folder:
            files, version = _files(self.data)
            if not files:  # demo, d4rl:NAME, minari:ID
                save(data, Path(folder) / "data.npz")
                files = {"data.npz": Path(folder) / "data.npz"}
            card = dataset_card(repo, summary, lerobot=version is not None, licence=self.license)
            everything: dict[str, Path | bytes] = {**files, "README.md": card.encode()}
            address = upload(everything, self.target, private=self.private, overwrite=self.overwrite, tag=version)
        self.say(f"{len(everything):,} files uploaded: {address}")
        return {"target": self.target, "files": sorted(everything), "fingerprint": data.fingerprint}


def _files(source: str) -> tuple[dict[str, Path], str | None]:
    """Return the files of a data set by their names there, and the version of a LeRobotDataset."""
    from trajstitch.formats import ENDINGS, place

    path = Path(place(source))
    if path.is_file():
        return {path.name: path}, None
    found = [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else []
    info = path / "meta" / "info.json"
    if info.exists():
        version = str(json.loads(info.read_text())["codebase_version"])
        return {file.relative_to(path).as_posix(): file for file in found if file.name != "README.md"}, version
    if path.suffix in ENDINGS:
        return {file.relative_to(path.parent).as_posix(): file for file in found}, None
    return {}, None


def parse(name: str, arguments: list[str]) -> Push:
    """Return the command with its options."""
    return parse_as(Push, name, arguments)
