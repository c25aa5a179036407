"""New folders of LeRobot's, v2.1 or v3.0, episode by episode.

Videos are never decoded. Episodes that are left out or put in another order keep their videos right, because a
row of v3.0 says which file and which seconds of it are the episode's. The new folder holds the same file under a
second name (a hard link), or a copy where the disk cannot link.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.errors import InputError
from trajstitch.formats.lerobot_folder import CHUNK, Stats, Video, is_numeric, to_numpy
from trajstitch.storage.tables import import_arrow

Version = str  # "v2.1" or "v3.0"
INDEX = ("timestamp", "frame_index", "episode_index", "index", "task_index")  # what LeRobot adds to every frame
_INDEX_FEATURES = {
    name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None} for name in INDEX
}
_FILE_BYTES = 100_000_000  # of a table in v3.0, before the next file begins
_MEGABYTES = {"data_files_size_in_mb": 100, "video_files_size_in_mb": 200}
_PATHS = {
    "v2.1": {
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    },
    "v3.0": {
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    },
}
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}  # of v3.0


@dataclass(frozen=True)
class Episode:
    """An episode to be written."""

    table: Any  # a pyarrow table: one row per frame, all features but videos, perhaps `timestamp`
    tasks: list[str]  # one per frame
    videos: dict[str, Video] = field(default_factory=dict)
    stats: Stats = field(default_factory=dict)  # of images and videos
    entries: dict[str, Any] = field(default_factory=dict)  # more for its row


@dataclass
class _Written:
    """What has been written so far."""

    frames: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)
    stats: list[Stats] = field(default_factory=list)
    tasks: dict[str, int] = field(default_factory=dict)
    videos: dict[tuple[str, Path], int] = field(default_factory=dict)  # feature and file: its new number


def write_folder(
    root: Path, episodes: Iterable[Episode], features: Mapping[str, Any], info: Mapping[str, Any], version: Version
) -> None:
    """Write a new folder.

    Arguments:
        root: the folder, which must not exist.
        episodes: the episodes, in their new order.
        features: name: dtype, shape, names; those that LeRobot adds to every frame may be left out.
        info: entries of meta/info.json that are kept, such as fps and robot_type.
        version: v2.1 or v3.0.
    """
    written = _Written()
    features = {name: dict(feature) for name, feature in features.items() if name not in INDEX} | _INDEX_FEATURES
    fps = float(info["fps"])
    writer = _Tables(root, version)
    with writer:
        for number, episode in enumerate(episodes):
            table = _with_index(episode, number, written, fps, features)
            place = writer.add(table, number)
            stats = _stats(table, features, version) | episode.stats
            row = {"episode_index": number, "tasks": list(dict.fromkeys(episode.tasks)), "length": len(table)}
            if version == "v3.0":
                row |= place | {
                    "dataset_from_index": written.frames,
                    "dataset_to_index": written.frames + len(table),
                }
            for key, video in episode.videos.items():
                row |= _carry_video(root, key, video, number, written, version)
            written.rows.append(row | episode.entries)
            written.stats.append(stats)
            written.frames += len(table)
    _write_meta(root, written, features, info, version)


def _with_index(episode: Episode, number: int, written: _Written, fps: float, features: Mapping[str, Any]) -> Any:
    """Return the table with LeRobot's columns of indices, and its features in their order."""
    arrow, _ = import_arrow()
    table, frames = episode.table, np.arange(len(episode.table))
    for task in episode.tasks:
        written.tasks.setdefault(task, len(written.tasks))
    columns = {name: table[name] for name in features if name in table.column_names}
    columns |= {
        "timestamp": columns.get("timestamp", arrow.array((frames / fps).astype(np.float32))),
        "frame_index": arrow.array(frames),
        "episode_index": arrow.array(np.full(len(frames), number)),
        "index": arrow.array(written.frames + frames),
        "task_index": arrow.array([written.tasks[task] for task in episode.tasks], arrow.int64()),
    }
    return arrow.table(columns).replace_schema_metadata(_metadata(table.schema.metadata, columns))


def _metadata(given: Mapping[bytes, bytes] | None, columns: Mapping[str, Any]) -> dict[bytes, bytes] | None:
    """Return the note of the `datasets` package, which says what is an image, with the features that are new."""
    note = json.loads((given or {}).get(b"huggingface", b"{}"))
    known = note.get("info", {}).get("features")
    if known is None:
        return None
    for name, column in columns.items():
        kind = {"float": "float32", "double": "float64"}.get(str(column.type), str(column.type))
        known.setdefault(name, {"dtype": kind, "_type": "Value"})
    return {b"huggingface": json.dumps(note).encode()}


class _Tables:
    """Writes tables of episodes, one row group per episode; in v3.0 many into a file."""

    def __init__(self, root: Path, version: Version) -> None:
        self._root, self._version = root, version
        self._number, self._bytes = -1, 0
        self._file: Any = None

    def __enter__(self) -> _Tables:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def add(self, table: Any, episode: int) -> dict[str, int]:
        """Write an episode and return in which file it is, as v3.0 records it."""
        _, parquet = import_arrow()
        if self._file is None or self._version == "v2.1" or self._bytes + table.nbytes > _FILE_BYTES:
            if self._file is not None:
                self._file.close()
            self._number, self._bytes = self._number + 1, 0
            file = self._root / _PATHS[self._version]["data_path"].format(**self._place(episode))
            file.parent.mkdir(parents=True, exist_ok=True)
            self._file = parquet.ParquetWriter(file, table.schema)
        self._file.write_table(self._alike(table))
        self._bytes += table.nbytes
        return {f"data/{name}": value for name, value in self._place(episode).items() if name.endswith("_index")}

    def _alike(self, table: Any) -> Any:
        """Return the table with the types of the file, where another folder has lists of another kind."""
        if table.schema.equals(self._file.schema):
            return table
        return table.select(self._file.schema.names).cast(self._file.schema)

    def _place(self, episode: int) -> dict[str, int]:
        if self._version == "v2.1":
            return {"episode_chunk": episode // CHUNK, "episode_index": episode}
        return {"chunk_index": self._number // CHUNK, "file_index": self._number % CHUNK}


def _carry_video(
    root: Path, key: str, video: Video, episode: int, written: _Written, version: Version
) -> dict[str, Any]:
    """Put an episode's video file into the new folder, once, and return the entries of its row."""
    path = _PATHS[version]["video_path"]
    if version == "v2.1":
        if video.shared:
            raise InputError(f"{video.file} holds several episodes, which v2.1 cannot; write v3.0: lerobot:FOLDER")
        _link(video.file, root / path.format(video_key=key, episode_chunk=episode // CHUNK, episode_index=episode))
        return {}
    number = written.videos.get((key, video.file))
    new = number is None
    if number is None:
        number = sum(feature == key for feature, _ in written.videos)
        written.videos[key, video.file] = number
    place = {"chunk_index": number // CHUNK, "file_index": number % CHUNK}
    if new:
        _link(video.file, root / path.format(video_key=key, **place))
    row = place | {"from_timestamp": video.begin, "to_timestamp": video.end}
    return {f"videos/{key}/{name}": value for name, value in row.items()}


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:  # another disk, or one that has no links
        shutil.copyfile(source, target)


def _stats(table: Any, features: Mapping[str, Any], version: Version) -> Stats:
    """Return the statistics of every feature of numbers."""
    stats = {}
    for name, feature in features.items():
        if not is_numeric(feature) or name not in table.column_names:
            continue
        rows = to_numpy(table[name], name).reshape(len(table), -1).astype(np.float64)
        stats[name] = {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0)}
        if version == "v3.0":
            values = np.quantile(rows, list(_QUANTILES.values()), axis=0)
            stats[name] |= dict(zip(_QUANTILES, values, strict=True))
        stats[name] = {key: value.tolist() for key, value in stats[name].items()} | {"count": [len(rows)]}
    return stats


def combined(episodes: list[Stats]) -> Stats:
    """Return the statistics of all episodes together; quantiles as LeRobot does, by their mean."""
    names = dict.fromkeys(name for stats in episodes for name in stats)
    return {name: _combine([stats[name] for stats in episodes if name in stats]) for name in names}


def _combine(parts: list[dict[str, Any]]) -> dict[str, Any]:
    count = np.array([part["count"][0] for part in parts], np.float64)
    together: dict[str, Any] = {"count": [int(count.sum())]}

    def column(key: str) -> NDArray[np.float64]:
        return np.array([part[key] for part in parts], np.float64)

    def average(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.tensordot(count / count.sum(), values, 1)

    for key in parts[0]:
        if key in ("min", "max"):
            together[key] = getattr(column(key), key)(0).tolist()
        elif key == "std":
            variance = column("std") ** 2 + (column("mean") - average(column("mean"))) ** 2
            together[key] = np.sqrt(average(variance)).tolist()
        elif key != "count" and all(key in part for part in parts):
            together[key] = average(column(key)).tolist()
    return together


def _write_meta(
    root: Path, written: _Written, features: Mapping[str, Any], info: Mapping[str, Any], version: Version
) -> None:
    meta = root / "meta"
    meta.mkdir(parents=True, exist_ok=True)
    has_videos = any(feature["dtype"] == "video" for feature in features.values())
    note = {k: v for k, v in info.items() if k not in (*_MEGABYTES, "total_chunks", "total_videos")}
    note |= {"codebase_version": version, "robot_type": info.get("robot_type")}
    note |= {
        "total_episodes": len(written.rows),
        "total_frames": written.frames,
        "total_tasks": len(written.tasks),
    }
    note |= {"chunks_size": CHUNK, "splits": {"train": f"0:{len(written.rows)}"}, **_PATHS[version]}
    note |= {"features": features, **({} if has_videos else {"video_path": None})}
    if version == "v2.1":
        videos = sum(feature["dtype"] == "video" for feature in features.values()) * len(written.rows)
        note |= {"total_videos": videos, "total_chunks": -(-len(written.rows) // CHUNK)}
        _write_lines(meta / "episodes.jsonl", written.rows)
        _write_lines(meta / "tasks.jsonl", [{"task_index": i, "task": task} for task, i in written.tasks.items()])
        numbered = [{"episode_index": m, "stats": stats} for m, stats in enumerate(written.stats)]
        _write_lines(meta / "episodes_stats.jsonl", numbered)
    else:
        note |= _MEGABYTES
        _write_episodes(meta, written)
        _write_tasks(meta / "tasks.parquet", list(written.tasks))
        (meta / "stats.json").write_text(json.dumps(combined(written.stats), indent=4) + "\n")
    (meta / "info.json").write_text(json.dumps(note, indent=4) + "\n")


def _write_episodes(meta: Path, written: _Written) -> None:
    arrow, parquet = import_arrow()
    file = meta / "episodes" / "chunk-000" / "file-000.parquet"
    file.parent.mkdir(parents=True)
    rows = []
    for row, stats in zip(written.rows, written.stats, strict=True):
        flat = {f"stats/{name}/{key}": value for name, each in stats.items() for key, value in each.items()}
        rows.append(row | flat | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
    names = dict.fromkeys(name for row in rows for name in row)
    parquet.write_table(arrow.table({name: [row.get(name) for row in rows] for name in names}), file)


def _write_tasks(file: Path, tasks: list[str]) -> None:
    """Write the tasks as the index of a table of pandas, by whose number LeRobot looks them up."""
    arrow, parquet = import_arrow()
    table = arrow.table({"task_index": arrow.array(range(len(tasks)), arrow.int64()), "task": tasks})
    described = [
        {"name": name, "field_name": name, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
        for name, kind, numpy in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ]
    level = {"name": None, "field_name": None, "pandas_type": "unicode", "numpy_type": "object"}
    note = {
        "index_columns": ["task"],
        "column_indexes": [level | {"metadata": {"encoding": "UTF-8"}}],
        "columns": described,
        "creator": {"library": "pyarrow", "version": arrow.__version__},
        "pandas_version": "2.0.0",
    }
    parquet.write_table(table.replace_schema_metadata({"pandas": json.dumps(note)}), file)


def _write_lines(file: Path, rows: list[Any]) -> None:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
