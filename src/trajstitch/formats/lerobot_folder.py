"""A LeRobotDataset's folder, v2.0 to v3.0: its metadata and tables.

                 v2.1                                            v3.0
    meta/        info.json  tasks.jsonl                          info.json  tasks.parquet  stats.json
                 episodes.jsonl  episodes_stats.jsonl            episodes/chunk-000/file-000.parquet
    data/        chunk-000/episode_000007.parquet                chunk-000/file-000.parquet, many episodes each
    videos/      chunk-000/KEY/episode_000007.mp4                KEY/chunk-000/file-000.mp4, many episodes each

A video is never decoded: an episode of v3.0 names its file and the seconds where it begins and ends there.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Int
from trajstitch.errors import InputError
from trajstitch.storage.archive import check_room, read_text, reason
from trajstitch.storage.tables import import_arrow, is_even, is_list, parquet_names, read_parquet

CHUNK = 1000  # files per folder
_ROW = ("episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index")
_ROW_PREFIXES = ("data/", "videos/", "meta/", "stats/")
_ENTRY = 64  # bytes of an entry in a row of Python's
_META = ("info", "stats", "tasks", "episodes", "episodes_stats", "trajstitch")
Stats = dict[str, dict[str, Any]]  # feature: {min, max, mean, std, count, …}


def is_numeric(feature: Mapping[str, Any]) -> bool:
    """Whether a feature holds numbers."""
    try:
        return np.dtype(feature["dtype"]).kind in "bfiu"
    except TypeError:
        return False  # video, image, language, …


def is_folder(path: Path) -> bool:
    """Whether this is a folder of LeRobot's."""
    return (path / "meta" / "info.json").exists()


# -- reading ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Video:
    """Where an episode's video is: a file, and the seconds where the episode begins and ends in it."""

    file: Path
    begin: float
    end: float
    shared: bool  # with other episodes


@dataclass(frozen=True)
class Folder:
    """The metadata of a folder."""

    root: Path
    info: dict[str, Any]
    episodes: dict[int, dict[str, Any]]  # episode_index: its row
    tasks: dict[int, str]

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """Name: dtype, shape, names."""
        return self.info["features"]

    @property
    def is_v3(self) -> bool:
        """Whether tables and videos hold many episodes each."""
        return str(self.info["codebase_version"]).startswith("v3")

    @property
    def numeric(self) -> list[str]:
        """Features of numbers."""
        return [name for name, feature in self.features.items() if is_numeric(feature)]

    def own_entries(self, episode: int) -> dict[str, Any]:
        """Return what the row of an episode says beyond LeRobot's own entries, such as who recorded it."""
        row = self.episodes[episode]
        return {k: v for k, v in row.items() if k not in _ROW and not k.startswith(_ROW_PREFIXES)}

    def own_files(self) -> list[Path]:
        """Return the files in meta/ that are not LeRobot's own."""
        return [
            path for path in sorted((self.root / "meta").iterdir()) if path.is_file() and path.stem not in _META
        ]

    def videos(self, episode: int) -> dict[str, Video]:
        """Return where the videos of an episode are, by feature; InputError if a file is missing."""
        keys = [name for name, feature in self.features.items() if feature["dtype"] == "video"]
        return {key: self._video(episode, key) for key in keys}

    def _video(self, episode: int, key: str) -> Video:
        row = self.episodes[episode]
        place: dict[str, Any] = {"video_key": key, "episode_index": episode}
        begin, end, shared = 0.0, row["length"] / float(self.info["fps"]), False
        if self.is_v3:
            number = _video_file(row, key)
            place |= dict(zip(("chunk_index", "file_index"), number, strict=True))
            begin, end = (float(row[f"videos/{key}/{name}_timestamp"]) for name in ("from", "to"))
            shared = self._episodes_of_file[key, number] > 1
        else:
            place["episode_chunk"] = episode // int(self.info.get("chunks_size", CHUNK))
        file = self._file("video_path", place)
        if not file.exists():
            raise InputError(f"{file} is missing, the video of {key} in episode {episode}; download it again")
        return Video(file, begin, end, shared)

    def _file(self, path: str, place: Mapping[str, Any]) -> Path:
        """Return a file by its pattern in meta/info.json; InputError if that leads out of the folder."""
        try:
            file = str(self.info[path]).format(**place)
        except (KeyError, IndexError, ValueError, AttributeError):
            raise InputError(f"{self.root}: {path} in meta/info.json is no pattern that LeRobot writes") from None
        if Path(file).is_absolute() or ".." in Path(file).parts:
            raise InputError(
                f"{self.root}: {path} in meta/info.json leads out of the folder, to {file}; it is refused"
            )
        return self.root / file

    @cached_property
    def _episodes_of_file(self) -> Counter[tuple[str, tuple[int, int]]]:
        keys = [name for name, feature in self.features.items() if feature["dtype"] == "video"]
        return Counter((key, _video_file(row, key)) for row in self.episodes.values() for key in keys)

    @cached_property
    def stats(self) -> dict[int, Stats]:
        """Recorded statistics of each episode; those of images cannot be computed without decoding them."""
        if not self.is_v3:
            rows = _read_lines(self.root / "meta" / "episodes_stats.jsonl", missing=[])
            return {int(row["episode_index"]): row["stats"] for row in rows}
        return {int(row["episode_index"]): _nested(row) for row in _episode_rows(self.root, stats=True)}

    def read(self, names: Iterable[str]) -> tuple[dict[str, NDArray[Any]], Int]:
        """Return features with one row per frame, in order, and the length of each episode."""
        names = list(names)
        wanted = list(dict.fromkeys([*names, "episode_index", "frame_index"]))
        files = sorted((self.root / "data").glob("*/*.parquet"))
        if not files:
            raise InputError("data/ holds no .parquet file; download the whole data set")
        parts = []
        for file in files:
            table = _read_table(file, wanted)
            parts.append({name: to_numpy(table[name], name) for name in wanted})
        columns = {name: np.concatenate([part[name] for part in parts]) for name in wanted}
        order = np.lexsort((columns["frame_index"], columns["episode_index"]))
        columns = {name: column[order] for name, column in columns.items()}
        return {name: columns[name] for name in names}, self._lengths(columns)

    def _lengths(self, columns: Mapping[str, NDArray[Any]]) -> Int:
        """Return the length of each episode; InputError unless the tables hold just what the metadata say."""
        number, length = np.unique(columns["episode_index"], return_counts=True)
        said = {m: int(row["length"]) for m, row in sorted(self.episodes.items())}
        if list(said) != number.tolist():
            raise InputError(
                f"meta/ lists {len(said)} episodes but data/ holds {len(number)} others; download it again"
                if len(said) == len(number)
                else f"meta/ lists {len(said)} episodes but data/ holds {len(number)}; download the whole data set"
            )
        for m, (want, have) in zip(said, zip(said.values(), length, strict=True), strict=True):
            if want != have:
                raise InputError(
                    f"episode {m} has {have} frames in data/ but length {want} in meta/; download it again"
                )
        frame = np.arange(len(columns["frame_index"])) - np.repeat(np.cumsum(length) - length, length)
        if (columns["frame_index"] != frame).any():
            m = columns["episode_index"][np.argmax(columns["frame_index"] != frame)]
            raise InputError(f"frame_index of episode {m} does not count 0, 1, 2, …; the data are damaged")
        return length.astype(np.int64)

    def tables(self, episodes: Iterable[int]) -> Iterator[Any]:
        """Yield the whole table of each of these episodes, as it is."""
        opened: Path | None = None
        for episode in episodes:
            row = self.episodes[episode]
            place = {
                "episode_index": episode,
                "episode_chunk": episode // int(self.info.get("chunks_size", CHUNK)),
            }
            if self.is_v3:
                place |= {name: row[f"data/{name}"] for name in ("chunk_index", "file_index")}
            file = self._file("data_path", place)
            if file != opened:
                opened, table = file, _read_table(file, None)
                owner = table["episode_index"].to_numpy()
                number, begin, many = np.unique(owner, return_index=True, return_counts=True)
                span = dict(zip(number.tolist(), zip(begin.tolist(), many.tolist(), strict=True), strict=True))
            first, count = span.get(episode, (0, 0))
            if not count or count != row["length"] or (owner[first : first + count] != episode).any():
                raise InputError(f"{file} does not hold episode {episode} in one piece; download it again")
            yield table.slice(first, count)


def _video_file(row: Mapping[str, Any], key: str) -> tuple[int, int]:
    try:
        return int(row[f"videos/{key}/chunk_index"]), int(row[f"videos/{key}/file_index"])
    except KeyError:
        raise InputError(f"meta/episodes does not say where the videos of {key} are; download it again") from None


def open_folder(root: Path) -> Folder:
    """Read the metadata of a folder."""
    info = _read_json(root / "meta" / "info.json")
    for name in ("codebase_version", "features", "fps"):
        if name not in info:
            raise InputError(f"meta/info.json has no {name!r}; this is not a LeRobotDataset of v2.0 to v3.0")
    version = str(info["codebase_version"])
    if not version.startswith(("v2", "v3")):
        raise InputError(
            f"codebase_version {version} in meta/info.json is none of v2.0 to v3.0; convert it with LeRobot first"
        )
    if odd := [name for name in info["features"] if "/" in name or "\\" in name or name == ".."]:
        raise InputError(
            f"the feature {odd[0]!r} in meta/info.json has a name that LeRobot does not allow; rename it"
        )
    if version.startswith("v3"):
        rows = _episode_rows(root, stats=False)
        tasks = _read_tasks(root / "meta" / "tasks.parquet")
    else:
        rows = _read_lines(root / "meta" / "episodes.jsonl")
        tasks = {row["task_index"]: row["task"] for row in _read_lines(root / "meta" / "tasks.jsonl", missing=[])}
    if not rows:
        raise InputError("meta/ lists no episode")
    return Folder(root.absolute(), info, {int(row["episode_index"]): row for row in rows}, tasks)


def to_numpy(column: Any, name: str) -> NDArray[Any]:
    """Return a column of numbers or of lists of numbers as an array, one row per frame; others as objects."""
    arrow, _ = import_arrow()
    if column.null_count:
        raise InputError(f"the feature {name} is null in {column.null_count} frames; remove those episodes")
    flat = arrow.concat_arrays(column.chunks) if column.num_chunks else arrow.array([], column.type)
    rows, depth = len(flat), 0
    while is_list(flat.type):
        if not is_even(flat):
            raise InputError(f"the feature {name} has lists of different lengths; all frames need the same")
        flat, depth = flat.flatten(), depth + 1
    values = flat.to_numpy(zero_copy_only=False)
    if not depth:
        return values
    return values.reshape(rows, -1)


def _read_table(file: Path, columns: list[str] | None) -> Any:
    try:
        return read_parquet(file, columns)
    except (OSError, ValueError, InputError) as error:
        raise InputError(f"{file} is missing or damaged; download it again ({reason(error)})") from error


def _episode_rows(root: Path, stats: bool) -> list[dict[str, Any]]:
    """Read meta/episodes, with or without the statistics."""
    files = sorted((root / "meta" / "episodes").glob("*/*.parquet"))
    if not files:
        raise InputError("meta/episodes holds no .parquet file; download the whole data set")
    rows = []
    for file in files:
        try:
            names = parquet_names(file)
        except (OSError, ValueError, InputError) as error:
            raise InputError(f"{file} is damaged; download it again ({reason(error)})") from error
        columns = [name for name in names if name.startswith("stats/") == stats or name == "episode_index"]
        table = _read_table(file, columns)
        check_room(file.stat().st_size, len(table) * len(columns) * _ENTRY)
        rows += table.to_pylist()
    return rows


def _nested(row: Mapping[str, Any]) -> Stats:
    stats: Stats = {}
    for name, value in row.items():
        if name.startswith("stats/"):
            feature, _, key = name.removeprefix("stats/").rpartition("/")
            stats.setdefault(feature, {})[key] = value
    return stats


def _read_tasks(file: Path) -> dict[int, str]:
    """Read tasks.parquet, a table whose index, under any name, is the task."""
    if not file.exists():
        return {}
    table = _read_table(file, None)
    texts = [name for name in table.column_names if name != "task_index"]
    return dict(zip(table["task_index"].to_pylist(), map(str, table[texts[0]].to_pylist()), strict=True))


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(read_text(file)))
    except FileNotFoundError:
        raise InputError(f"{file} is missing; a LeRobotDataset has it") from None
    except (OSError, ValueError, TypeError, InputError) as error:
        raise InputError(f"{file} is damaged ({reason(error)}); download it again") from error


def _read_lines(file: Path, missing: list[Any] | None = None) -> list[dict[str, Any]]:
    """Read a file with one JSON object per line."""
    if not file.exists() and missing is not None:
        return missing
    try:
        return [json.loads(line) for line in read_text(file).splitlines() if line.strip()]
    except FileNotFoundError:
        raise InputError(f"{file} is missing; download the whole data set") from None
    except (OSError, ValueError, InputError) as error:
        raise InputError(f"{file} is damaged ({reason(error)}); download it again") from error
