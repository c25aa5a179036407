"""Mutations of files, for benchmarks/fuzz.py: of npz, HDF5, tables and text, and of what a file is."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks.mutations import Rng, mutate_array, mutate_bytes, mutate_text
from benchmarks.table_mutations import mutate_arrow, mutate_parquet

Arrays = dict[str, Any]  # by name: an array, or the raw bytes of a .npy file


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
        texts = _texts(file)
        if texts and rng.random() < 0.15:
            holder, name = texts[rng.integers(len(texts))]
            text = mutate_text(str(file[holder].attrs[name]), rng).encode("utf-8", "replace")
            file[holder].attrs[name] = np.bytes_(text[:60_000]) if rng.random() < 0.3 else text[:60_000].decode()
            return
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


def _texts(file: h5py.File) -> list[tuple[str, str]]:
    """Return the groups and names of all attributes that hold JSON."""
    found: list[tuple[str, str]] = []

    def look(name: str, item: Any) -> None:
        found.extend((name, key) for key, value in item.attrs.items() if str(value)[:1] == "{")

    look("/", file)
    file.visititems(look)
    return found


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
    elif path.suffix == ".parquet":
        mutate_parquet(path, rng)
    elif path.suffix == ".arrow":
        mutate_arrow(path, rng)
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
