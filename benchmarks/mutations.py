"""Mutations of files, for benchmarks/fuzz.py: of bytes, of arrays, of JSON, of HDF5 and of what a file is."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

Rng = np.random.Generator
Arrays = dict[str, Any]  # by name: an array, or the raw bytes of a .npy file

_NUMBERS = [0, 1, -1, 255, 1 << 15, (1 << 31) - 1, -(1 << 31), 1 << 40, (1 << 63) - 1]
_VALUES = [np.nan, np.inf, -np.inf, 3e38, -3e38, 1e300, 1e-45, 0.0, 2.0]
_JSON: list[Any] = [
    None,
    True,
    -1,
    0,
    2.5,
    1e400,
    1 << 80,
    "",
    "x",
    "../x",
    "evil:Foo-v0",
    [],
    [1, "a"],
    {},
    {"a": {}},
    "\ud800",
]


def mutate_bytes(content: bytes, rng: Rng) -> bytes:
    """Change a file in one to eight places; bits, bytes, numbers, runs, cuts and copies."""
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 9))):
        if not data:
            return bytes(data)
        at = int(rng.integers(len(data)))
        if rng.random() < 0.5:  # headers are at the beginning of most files, and at the end of a zip
            at = min(at % 512, len(data) - 1) if rng.random() < 0.7 else max(0, len(data) - 1 - at % 512)
        size = int(2 ** rng.uniform(0, 8))
        kind = rng.integers(9)
        if kind == 0:
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            data[at] = int(rng.integers(256))
        elif kind == 2:
            width = int(rng.choice([2, 4, 8]))
            number = _NUMBERS[rng.integers(len(_NUMBERS))] % (1 << 8 * width)
            data[at : at + width] = number.to_bytes(width, "little")
        elif kind == 3:
            data[at : at + size] = bytes(len(data[at : at + size]))
        elif kind == 4:
            data[at : at + size] = b"\xff" * len(data[at : at + size])
        elif kind == 5:
            data[at : at + size] = rng.bytes(len(data[at : at + size]))
        elif kind == 6:
            del data[at : at + size]
        elif kind == 7:
            data[at:at] = data[at : at + size]
        elif rng.random() < 0.3:
            del data[at:]
    return bytes(data)


def mutate_json(value: Any, rng: Rng) -> Any:
    """Replace, remove or rename something at a random place of a JSON value."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = list(value)[rng.integers(len(value))]
        kind = rng.random()
        if kind < 0.15:
            return {k: v for k, v in value.items() if k != key}
        if kind < 0.25:
            return {(k + "x" if k == key else k): v for k, v in value.items()}
        return {k: mutate_json(v, rng) if k == key else v for k, v in value.items()}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = int(rng.integers(len(value)))
        return [mutate_json(v, rng) if i == at else v for i, v in enumerate(value)]
    if isinstance(value, str) and value[:1] in "{[" and rng.random() < 0.8:
        try:
            return json.dumps(mutate_json(json.loads(value), rng))
        except ValueError:
            pass
    return _JSON[rng.integers(len(_JSON))]


def mutate_text(text: str, rng: Rng) -> str:
    """Mutate JSON, and once in a while make it no JSON, or far too deep."""
    kind = rng.random()
    if kind < 0.05:
        return text[: int(rng.integers(len(text) + 1))]
    if kind < 0.1:
        return '{"a":' * 20_000 + "[" * 20_000
    return json.dumps(mutate_json(json.loads(text), rng))


def mutate_array(array: Any, rng: Rng) -> Any:
    """Return an array of another kind, shape or content."""
    array = np.asarray(array)
    number = array.dtype.kind in "fiub"
    choices: list[Callable[[], Any]] = [
        lambda: array.astype("<f8" if array.dtype != np.float64 else "<f2") if number else np.zeros(3),
        lambda: np.nan_to_num(array).astype(int) if number else np.array(7),
        lambda: array.astype(complex) if number else np.array("text"),
        lambda: np.array(["text"] * max(1, len(np.atleast_1d(array)))),
        lambda: array[: len(array) // 2] if array.ndim else np.zeros((2, 2)),
        lambda: array[:0] if array.ndim else np.zeros(0),
        lambda: array[..., None],
        lambda: array.reshape(-1),
        lambda: array.T,
        lambda: np.concatenate([array, array]) if array.ndim else array,
        lambda: np.array(_NUMBERS[rng.integers(len(_NUMBERS))]),
        lambda: np.zeros(array.shape, [("a", "f4"), ("b", "i2")]),
        lambda: np.frombuffer(rng.bytes(max(1, array.size)), bool).reshape(array.shape) if array.size else array,
        lambda: np.roll(array, 1),
        lambda: np.zeros_like(array),
    ]
    if array.dtype.kind in "fiu" and array.size:
        choices += [lambda: _with_value(array, rng)] * 8
    return choices[rng.integers(len(choices))]()


def _with_value(array: Any, rng: Rng) -> Any:
    changed = array.copy().reshape(-1)
    with np.errstate(all="ignore"):
        large = _VALUES[rng.integers(len(_VALUES))] if array.dtype.kind == "f" else rng.integers(-3, 1 << 40)
        some = rng.integers(array.size) if rng.random() < 0.7 else slice(None)
        changed[some] = np.array(large).astype(array.dtype)
    return changed.reshape(array.shape)


# -- npz ----------------------------------------------------------------------------------------------------------


def mutate_npz(path: Path, rng: Rng) -> None:
    """Rewrite an npz file with something changed, and right checksums."""
    with np.load(path) as archive:
        arrays: Arrays = dict(archive)
    name = list(arrays)[rng.integers(len(arrays))]
    texts = [k for k, v in arrays.items() if v.dtype.kind == "U" and str(v)[:1] == "{"]
    kind = rng.random()
    if kind < 0.35 and texts:
        name = texts[rng.integers(len(texts))]
        arrays[name] = np.array(mutate_text(str(arrays[name]), rng).encode("utf-8", "replace").decode())
    elif kind < 0.8:
        arrays[name] = mutate_array(arrays[name], rng)
    elif kind < 0.86:
        del arrays[name]
    elif kind < 0.9:
        arrays[["../x", "/x", "a/../../x", "x", "..\\x"][rng.integers(5)]] = arrays.pop(name)
    elif kind < 0.95:
        arrays[name] = _lying_header(np.asarray(arrays[name]), rng)
    else:
        arrays[name] = np.array([{}], object)
    mode = zipfile.ZIP_DEFLATED if rng.random() < 0.3 else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", mode) as archive:
        for key, array in arrays.items():
            archive.writestr(f"{key}.npy", array if isinstance(array, bytes) else _npy(array))


def _npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _lying_header(array: Any, rng: Rng) -> bytes:
    """A .npy file whose header is not that of its array."""
    content = _npy(array)
    header, rest = content[:128], content[128:]
    kind = rng.integers(4)
    if kind == 0:
        return header.replace(b"{", b" ").replace(b"}", b" ") + rest
    if kind == 1:
        return mutate_bytes(header, rng) + rest
    file = io.BytesIO()
    shape = tuple(int(n) for n in rng.choice([0, 1, 1 << 20, 1 << 31, 1 << 40], rng.integers(1, 4)))
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return file.getvalue() + (rest if kind == 2 else b"")


# -- HDF5 ---------------------------------------------------------------------------------------------------------


def mutate_hdf5(path: Path, rng: Rng) -> None:
    """Change an array, a link or an attribute of an HDF5 file."""
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        name = names[rng.integers(len(names))]
        array = file[name][()]
        kind = rng.integers(12)
        if kind != 11:
            del file[name]
        if kind <= 4:
            _write_array(file, name, mutate_array(array, rng))
        elif kind == 5:
            target = [str(path.parent / "other.hdf5"), "/etc/passwd", "../other.hdf5"][rng.integers(3)]
            file[name] = h5py.ExternalLink(target, "/x")
        elif kind == 6:
            other = names[rng.integers(len(names))]
            file[name] = h5py.SoftLink([f"/{name}", f"/{other}", "/nowhere", "/", "../x"][rng.integers(5)])
        elif kind == 7:
            file.create_group(name)["x"] = array
        elif kind == 8:
            _write_odd(file, name, array, rng)
        elif kind == 9:
            _write_bomb(file, name, rng)
        elif kind == 10:
            file[name] = file["/"]  # a loop of hard links
        else:
            for key, value in list(_attributes(rng).items())[: rng.integers(1, 8)]:
                file.attrs[key] = value


def _write_array(file: h5py.File, name: str, array: Any) -> None:
    if array.dtype.kind == "U":
        array = np.char.encode(array)
    file[name] = array


def _write_odd(file: h5py.File, name: str, array: Any, rng: Rng) -> None:
    kind = rng.integers(6)
    shape = np.shape(array)
    if kind == 0:
        layout = h5py.VirtualLayout(shape, "f4")
        if shape:
            layout[:] = h5py.VirtualSource(["missing.hdf5", "."][rng.integers(2)], "x", shape)
        file.create_virtual_dataset(name, layout)
    elif kind == 1:
        file.create_dataset(name, shape, "f4", external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])
    elif kind == 2:
        file.create_dataset(name, shape or (3,), h5py.string_dtype())[:] = "x"
    elif kind == 3:
        file.create_dataset(name, (3,), h5py.vlen_dtype(np.float32))
    elif kind == 4:
        file[name] = h5py.Empty("f4")
    else:
        file.create_dataset(name, shape, h5py.enum_dtype({"A": 0, "B": 5}, "i1"))


def _write_bomb(file: h5py.File, name: str, rng: Rng) -> None:
    kind = rng.integers(3)
    if kind == 0:
        file.create_dataset(name, (1 << int(rng.integers(20, 34)), 4), "f8")
    elif kind == 1:
        rows = 1 << int(rng.integers(15, 23))
        file.create_dataset(
            name, data=np.zeros((rows, 4), "i1"), compression="gzip", chunks=(min(rows, 1 << 16), 4)
        )
    else:
        chunks = (1 << int(rng.integers(10, 23)), 4)
        file.create_dataset(name, (5, 4), "f4", maxshape=(None, 4), chunks=chunks, compression="gzip")[:] = 1


def _attributes(rng: Rng) -> dict[str, Any]:
    values = [
        ("env_id", np.bytes_("Hopper-v5")),
        ("ref_min_score", "low"),
        ("ref_max_score", np.nan),
        ("dropped_steps", "many"),
        ("env_spec", "{"),
        ("physics", np.arange(3)),
        ("nothing", h5py.Empty("f4")),
        ("complex", 1j),
        ("long", "x" * 60_000),
        ("env_horizon", -5),
    ]
    return dict(values[i] for i in rng.permutation(len(values)))


# -- files and folders ---------------------------------------------------------------------------------------


def mutate_file(path: Path, rng: Rng) -> None:
    """Mutate the content of one file by its kind, with right checksums and lengths."""
    if path.suffix == ".npz":
        mutate_npz(path, rng)
    elif path.suffix in (".hdf5", ".h5"):
        mutate_hdf5(path, rng)
    elif path.suffix == ".npy":
        array = mutate_array(np.load(path), rng)
        path.write_bytes(_lying_header(array, rng) if rng.random() < 0.2 else _npy(array))
    elif path.suffix == ".jsonl":
        lines = path.read_text().splitlines()
        at = int(rng.integers(len(lines)))
        lines[at] = mutate_text(lines[at], rng)
        path.write_text("\n".join(lines) + "\n")
    elif path.suffix == ".json":
        path.write_text(mutate_text(path.read_text(), rng))
    else:
        path.write_bytes(mutate_bytes(path.read_bytes(), rng))


def replace_file(path: Path, rng: Rng) -> None:
    """Put something else in the place of a file: nothing, a folder, a pipe, a device, a pointer, a loop."""
    path.unlink()
    kind = rng.integers(7)
    if kind == 0:
        path.mkdir()
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        path.symlink_to("/dev/zero")
    elif kind == 3:
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    elif kind == 4:
        path.symlink_to(path)
    elif kind == 5:
        path.write_bytes(b"")
