"""A disk that is full at any moment of writing: one sentence, no crash inside HDF5, and nothing left."""

import dataclasses
import resource
import subprocess
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest

from trajstitch.cli import main
from trajstitch.data import Seams
from trajstitch.errors import InputError
from trajstitch.formats import load, save
from trajstitch.storage.hdf5_sink import writing
from worlds import random_dataset

NAMES = ["x.hdf5", "x.npz", "x.traj", "minari:some/thing-v0"]


@pytest.fixture(scope="module")
def long():
    """About 100 kB in every format, with seams."""
    data = random_dataset(0, [20] * 60, obs_dim=4)
    step, zero = np.arange(data.transitions), np.zeros(data.transitions, np.float32)
    seams = Seams(step, step, zero > 0, zero, zero, zero, data.returns)
    return dataclasses.replace(data, seams=seams)


@contextmanager
def only(limit: int):
    """Files may have this many bytes and no more; Python ignores the signal, so that writing fails as it does
    where a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts an empty disk of this many bytes."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(size: int) -> Path:
        subprocess.run(["umount", folder], capture_output=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
        try:
            done = subprocess.run(words, capture_output=True).returncode == 0
        except FileNotFoundError:
            done = False
        if not done:
            pytest.skip("needs the right to mount a small disk, as root has it")
        return folder

    yield mount
    subprocess.run(["umount", folder], capture_output=True)


def attempt(data, name: str, folder: Path, monkeypatch) -> str:
    """Save under this name in the folder; return the sentence of the failure, or nothing."""
    if name.startswith("minari:"):
        pytest.importorskip("minari")
        monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder))
    try:
        save(data, name if ":" in name else folder / name)
    except InputError as error:
        return str(error)
    return ""


def open_files() -> int:
    """How many files HDF5 has open."""
    return h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE)


@pytest.mark.parametrize("name", NAMES)
def test_no_limit_of_size_crashes(long, name, tmp_path, monkeypatch):
    for limit in (0, 100, 2_000, 5_000, 10_000, 40_000, 60_000):
        with only(limit):
            sentence = attempt(long, name, tmp_path, monkeypatch)
        if not sentence:
            assert name.endswith(".traj")  # whose files are smaller
            continue
        assert "the disk is full; free some space" in sentence
        assert list(tmp_path.iterdir()) == []
        assert open_files() == 0  # one that HDF5 could not close would crash the process at its end


@pytest.mark.parametrize("name", NAMES)
def test_no_small_disk_crashes(long, name, small_disk, monkeypatch):
    failed = 0
    for size in (4096 * n for n in (1, 2, 10, 25, 40)):
        disk = small_disk(size)
        if sentence := attempt(long, name, disk, monkeypatch):
            failed += 1
            assert "the disk is full; free some space" in sentence
            assert list(disk.iterdir()) == []
    assert failed > 2


def test_convert_on_a_full_disk_is_one_sentence(long, small_disk, tmp_path, capsys):
    save(long, tmp_path / "long.npz")
    disk = small_disk(8192)
    assert main(["convert", str(tmp_path / "long.npz"), str(disk / "x.hdf5")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "the disk is full" in error
    assert list(disk.iterdir()) == []


def test_a_file_for_hdf5_behaves_like_one(tmp_path, data):
    with writing(tmp_path / "a") as sink:
        sink.write(b"abcdef")
        sink.seek(2)
        sink.write(np.frombuffer(b"XY", np.uint8))
        assert sink.tell() == 4
        assert sink.seek(0, 2) == 6
        sink.seek(1)
        assert sink.read(9) == b"bXYef"
        sink.truncate(3)
        assert sink.seek(0, 2) == 3
    assert (tmp_path / "a").read_bytes() == b"abX"
    save(data, tmp_path / "x.hdf5")
    assert load(tmp_path / "x.hdf5").fingerprint == data.fingerprint
