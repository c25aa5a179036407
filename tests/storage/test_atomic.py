"""Files appear whole or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trajstitch.errors import InputError
from trajstitch.formats import load, save
from trajstitch.storage.atomic import remove_left, replacing

FULL = """
import resource, sys
import numpy as np
sys.path.insert(0, {tests!r})
from worlds import random_dataset
from trajstitch.errors import InputError
from trajstitch.formats import save
data = random_dataset(0, [1000] * 20, obs_dim=20)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))  # the kernel refuses to write on, as on a full disk
try:
    save(data, {target!r}, overwrite=True)
except InputError as error:
    print(error)
"""


def test_nothing_is_left_of_a_failure(tmp_path):
    target = tmp_path / "x.txt"
    target.write_text("old")

    def fail_half_way():
        with replacing(target, overwrite=True) as part:
            part.write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["x.txt"]


def test_a_folder_replaces_a_folder(tmp_path):
    target = tmp_path / "x"
    for text in ("one", "two"):
        with replacing(target, overwrite=True) as part:
            part.mkdir()
            (part / text).write_text(text)
    assert [p.name for p in target.iterdir()] == ["two"]
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_a_file_never_replaces_a_folder_nor_a_folder_a_file(tmp_path, data):
    for ending, other in ((".hdf5", "x.npz"), (".npz", "x.hdf5")):
        folder = tmp_path / f"folder{ending}"
        folder.mkdir()
        (folder / "precious").write_text("")
        with pytest.raises(InputError, match="is a folder"):
            save(data, folder, overwrite=True)
        assert (folder / "precious").exists()
        save(data, tmp_path / other)
    (tmp_path / "file.traj").write_text("precious")
    with pytest.raises(InputError, match="is a file"):
        save(data, tmp_path / "file.traj", overwrite=True)
    mine = tmp_path / "mine.traj"
    mine.mkdir()
    (mine / "precious").write_text("")
    with pytest.raises(InputError, match="something else"):
        save(data, mine, overwrite=True)
    assert (mine / "precious").exists()


@pytest.mark.parametrize("ending", [".hdf5", ".npz", ".traj"])
def test_existing_output_needs_overwrite(tmp_path, data, ending):
    path = tmp_path / f"x{ending}"
    save(data[:2], path)
    with pytest.raises(InputError, match=r"exists already.*--overwrite \(overwrite=True in Python\)"):
        save(data, path)
    assert len(load(path)) == 2
    save(data, path, overwrite=True)
    assert len(load(path)) == 4


@pytest.mark.parametrize("ending", [".hdf5", ".npz", ".traj"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, data, ending):
    path = tmp_path / f"x{ending}"
    save(data, path)
    script = FULL.format(tests=str(Path(__file__).parents[1]), target=str(path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "disk is full" in done.stdout
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
    assert load(path).fingerprint == data.fingerprint
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_folders_that_cannot_be_written(tmp_path, data, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot make this folder|not a folder"):
        save(data, tmp_path / "file" / "x.npz")
    monkeypatch.setattr(os, "access", lambda *a: False)  # root may write everywhere, so the answer is given
    with pytest.raises(InputError, match="can be written to"):
        save(data, tmp_path / "x.npz")
    assert not (tmp_path / "x.npz").exists()


def test_missing_folders_are_made(tmp_path, data):
    save(data, tmp_path / "a" / "b" / "x.npz")
    assert load(tmp_path / "a" / "b" / "x.npz").fingerprint == data.fingerprint


def test_what_a_killed_process_left_of_a_target_is_removed_and_nothing_else(tmp_path):
    stay = {"x[1].traj", ".x[1].traj.lock", ".x1.traj.0123abcd.part", ".y.traj.0123abcd.part", "x[1].traj.part"}
    for name in (*stay, ".x[1].traj.0123abcd.part"):
        (tmp_path / name).write_text("")
    (tmp_path / ".x[1].traj.89abcdef.part").mkdir()
    (tmp_path / ".x[1].traj.89abcdef.part" / "obs.npy").write_text("")
    remove_left(tmp_path / "x[1].traj")
    assert {path.name for path in tmp_path.iterdir()} == stay
