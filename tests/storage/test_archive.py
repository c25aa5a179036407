"""Files that are not what they seem: pipes, pointers, bombs, names that leave the file, and damage of any kind."""

import io
import os
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.formats import load, save
from trajstitch.policies.policy_files import load_policy
from trajstitch.storage.archive import read_arrays, reading
from trajstitch.storage.hdf5 import open_hdf5, plain_attributes
from worlds import changed


def zipped(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def declared(path: Path, shape: tuple[int, ...]) -> bytes:
    """A .npy file that has no numbers but declares many."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


# -- whatever is raised becomes one sentence ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "error", [RecursionError("deep"), zipfile.BadZipFile("bad"), IndexError(), EOFError("end")]
)
def test_any_error_becomes_one_sentence(tmp_path, error):
    with (
        pytest.raises(InputError, match=r"x\.npz: this file is damaged or has a layout"),
        reading(tmp_path / "x.npz"),
    ):
        raise error


def test_no_memory_is_a_sentence_and_a_stop_is_a_stop(tmp_path):
    with pytest.raises(InputError, match="not enough memory"), reading(tmp_path / "x"):
        raise MemoryError
    with pytest.raises(KeyboardInterrupt), reading(tmp_path / "x"):
        raise KeyboardInterrupt


def test_long_messages_are_cut(tmp_path):
    with pytest.raises(InputError) as caught, reading(tmp_path / "x"):
        raise ValueError("line\n" * 5000)
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)


def test_a_sentence_has_one_line_and_an_end(tmp_path):
    with pytest.raises(InputError) as caught, reading(tmp_path / "a  b"):
        raise InputError("line\n" * 5000)
    assert str(caught.value).startswith(f"{tmp_path / 'a  b'}: line line")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1700


# -- what is no plain file ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".hdf5", ".npz"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    os.mkfifo(path)
    for read in (load, load_policy):
        with pytest.raises(InputError, match="is a pipe or a device, not a file"):
            read(path)


def test_a_pipe_in_a_folder(tmp_path, data):
    save(data, tmp_path / "x.traj")
    for name in ("obs.npy", "info.json"):
        (tmp_path / "x.traj" / name).unlink()
        os.mkfifo(tmp_path / "x.traj" / name)
        with pytest.raises(InputError, match="is a pipe or a device"):
            load(tmp_path / "x.traj")


def test_nor_one_beside_a_table(tmp_path, data):
    pytest.importorskip("pyarrow")
    for name in ("trajstitch.json", "weight.npy", "seams.npz"):
        path = tmp_path / name
        save(data, f"imitation:{path}")
        (path / name).unlink(missing_ok=True)
        os.mkfifo(path / name)
        with pytest.raises(InputError, match="this is a pipe or a device"):
            load(path)


def test_a_folder_in_the_place_of_a_file(tmp_path, data):
    path = tmp_path / "x.traj"
    save(data, path)
    (path / "info.json").unlink()
    (path / "info.json").mkdir()
    with pytest.raises(InputError, match="this is a folder, not a file"):
        load(path)


@pytest.mark.parametrize("name", ["x.hdf5", "x.npz", "x.traj/obs.npy"])
def test_a_git_lfs_pointer_is_named(tmp_path, data, name):
    save(data, tmp_path / "x.traj")
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    with pytest.raises(InputError, match="Git LFS pointer, .* run git lfs pull"):
        load(tmp_path / name.partition("/")[0])


# -- npz ----------------------------------------------------------------------------------------------------------


def test_an_array_larger_than_its_bytes_is_refused(tmp_path):
    path = zipped(tmp_path / "x.npz", **{"obs.npy": declared(tmp_path, (1 << 28, 1))})
    with pytest.raises(InputError, match="obs declares 1,073,741,824 bytes but has fewer"):
        load(path)


def test_an_empty_array_of_endless_shape_is_refused(tmp_path):
    path = zipped(tmp_path / "x.npz", **{"obs.npy": declared(tmp_path, (1 << 20, 1 << 20, 0))})
    with pytest.raises(InputError, match="declares the shape .* which holds nothing"):
        load(path)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    path = zipped(tmp_path / "x.npz", **{"obs.npy": npy(np.zeros((48 << 20, 1), bool))})
    assert path.stat().st_size < 200_000
    with pytest.raises(InputError, match="declares arrays of 50,331,776, more than 100 times as many"):
        load(path)


def test_what_compresses_well_is_read(tmp_path):
    array = np.zeros(4 << 20, np.float32)
    np.savez_compressed(tmp_path / "x.npz", zeros=array)
    np.testing.assert_array_equal(read_arrays(tmp_path / "x.npz")["zeros"], array)


@pytest.mark.parametrize("name", ["../obs.npy", "/obs.npy", "a/../../obs.npy", "..\\obs.npy"])
def test_names_that_leave_the_file_are_refused(tmp_path, name):
    with pytest.raises(InputError, match="a place outside it"):
        load(zipped(tmp_path / "x.npz", **{name: npy(np.zeros(3))}))
    assert [p.name for p in tmp_path.iterdir()] == ["x.npz"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_twice_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("obs.npy", npy(np.zeros(3)))
        archive.writestr("obs.npy", npy(np.ones(3)))
    with pytest.raises(InputError, match="holds 'obs' twice"):
        load(tmp_path / "x.npz")


def test_damaged_headers_checksums_and_streams(tmp_path, data):
    save(data, tmp_path / "x.npz")
    whole = (tmp_path / "x.npz").read_bytes()
    for old, new in ((b"{'descr'", b"        "), (data.obs[0].tobytes(), bytes(16))):
        (tmp_path / "x.npz").write_bytes(whole.replace(old, new, 1))
        with pytest.raises(InputError, match="this npz file is damaged; copy it again"):
            load(tmp_path / "x.npz")
    path = zipped(tmp_path / "y.npz", **{"obs.npy": npy(np.arange(5000.0))})
    bytes_ = bytearray(path.read_bytes())
    bytes_[200:260] = bytes(60)
    path.write_bytes(bytes_)
    with pytest.raises(InputError, match="this npz file is damaged"):
        load(path)


def test_a_blanked_header_in_a_folder(tmp_path, data):
    save(data, tmp_path / "x.traj")
    file = tmp_path / "x.traj" / "reward.npy"
    file.write_bytes(file.read_bytes().replace(b"{", b"(").replace(b"}", b" "))
    with pytest.raises(InputError, match=r"reward\.npy is truncated or not a plain"):
        load(tmp_path / "x.traj")


def test_deep_json(tmp_path, data):
    save(data, tmp_path / "x.traj")
    (tmp_path / "x.traj" / "info.json").write_text('{"a":' * 100_000)
    with pytest.raises(InputError, match=r"x\.traj: this file is damaged"):
        load(tmp_path / "x.traj")


# -- HDF5 ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(hdf5: Path, data: Dataset) -> Path:
    """A D4RL file without observations, which each test writes in its own way."""
    return changed(hdf5, observations=None)


def test_an_external_link_is_not_followed(table, tmp_path):
    with h5py.File(tmp_path / "secret.hdf5", "w") as file:
        file["observations"] = np.zeros((17, 4), np.float32)
    with h5py.File(table, "a") as file:
        file["observations"] = h5py.ExternalLink("secret.hdf5", "/observations")
    with pytest.raises(InputError, match="observations is a link to another file"):
        load(table)


def test_nor_where_a_soft_link_leads_to_it(table, tmp_path):
    with h5py.File(table, "a") as file:
        file["far/away"] = h5py.ExternalLink(str(tmp_path / "fifo"), "/")
        file["observations"] = h5py.SoftLink("/far/away/observations")
    os.mkfifo(tmp_path / "fifo")  # opening it would wait for ever
    with pytest.raises(InputError, match="far/away is a link to another file"):
        load(table)


def test_raw_external_storage_is_not_read(table, tmp_path):
    (tmp_path / "secret").write_bytes(bytes(17 * 4 * 4))
    with h5py.File(table, "a") as file:
        file.create_dataset("observations", (17, 4), "f4", external=[(str(tmp_path / "secret"), 0, 17 * 4 * 4)])
    with pytest.raises(InputError, match="observations takes its numbers from other files"):
        load(table)


def test_a_virtual_array_is_not_read(table):
    with h5py.File(table, "a") as file:
        layout = h5py.VirtualLayout((17, 4), "f4")
        layout[:] = h5py.VirtualSource("missing.hdf5", "observations", (17, 4))
        file.create_virtual_dataset("observations", layout)
    with pytest.raises(InputError, match="observations takes its numbers from other files"):
        load(table)


@pytest.mark.parametrize("chunks", [None, (2, 4)])
def test_numbers_that_were_never_written_are_not_made_up(table, chunks):
    with h5py.File(table, "a") as file:
        array = file.create_dataset("observations", (17, 4), "f4", chunks=chunks)
        if chunks:
            array[:10] = 1
    with pytest.raises(InputError, match="observations was declared but not all of it was written"):
        load(table)


@pytest.mark.parametrize("options", [{"shape": (1 << 27, 4), "chunks": (1 << 16, 4)}, {"shape": (1 << 27, 4)}])
def test_a_declared_size_is_not_allocated(table, options):
    with h5py.File(table, "a") as file:
        file.create_dataset("observations", dtype="f4", **options)
    with pytest.raises(InputError, match="was declared but not all"):
        load(table)


def test_a_compressed_bomb_is_refused(table):
    with h5py.File(table, "a") as file:
        zeros = np.zeros((4 << 20, 4), np.float32)
        file.create_dataset("observations", data=zeros, compression="gzip", chunks=(1 << 20, 4))
    with pytest.raises(InputError, match="more than 100 times as many"):
        load(table)


def test_a_chunk_larger_than_its_array_is_no_way_round(table):
    with h5py.File(table, "a") as file:
        array = file.create_dataset(
            "observations", (17, 4), "f4", maxshape=(None, 4), chunks=(1 << 23, 4), compression="gzip"
        )
        array[:] = 0
    with pytest.raises(InputError, match="more than 100 times as many"):
        load(table)


def test_soft_links_within_the_file_are_followed_and_loops_are_not(table, data):
    with h5py.File(table, "a") as file:
        file["kept/states"] = data.obs[data.row]
        file["observations"] = h5py.SoftLink("/kept/states")
    assert load(table).transitions == 17
    with h5py.File(table, "a") as file:
        del file["observations"]
        file["observations"] = h5py.SoftLink("/observations")
    with pytest.raises(InputError, match=r"small\.hdf5: this HDF5 file is truncated or damaged"):
        load(table)


def test_attributes_of_any_kind(hdf5):
    with h5py.File(hdf5, "a") as file:
        file.attrs["bytes"] = np.bytes_("Hopper-v5")
        file.attrs["number"] = np.float32(2)
        file.attrs["list"] = np.arange(3)
        file.attrs["nothing"] = h5py.Empty("f4")
        file.attrs["complex"] = 1j
    with open_hdf5(hdf5) as file:
        assert plain_attributes(file) == {"bytes": "Hopper-v5", "number": 2.0}
