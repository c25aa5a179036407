"""Nothing a user has is lost: an input in the output is refused; overwriting removes only a run's own files."""

import json
import os
import shutil
from pathlib import Path

import pytest

from trajstitch.cli import main
from trajstitch.errors import InputError
from trajstitch.formats import load, save
from trajstitch.jobs.run_dir import Run
from trajstitch.methods.train import train
from trajstitch.policies.policy_files import save_policy
from trajstitch.storage.atomic import check_apart
from worlds import random_dataset

TRAIN = ["--steps", "4", "--batch", "4", "--width", "4", "--seeds", "1", "--no-evaluation", "--quiet"]
IMPROVE = ["--iterations", "1", "--dynamics.members", "1", "--dynamics.elites", "1", "--quiet"]
IMPROVE += [f"--{model}.fit.steps=1" for model in ("dynamics", "inverse", "reward", "value")]


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def policy_file(data, tmp_path):
    path = tmp_path / "given.npz"
    save_policy(train("bc", data, steps=1, width=4), path)
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder with outside.npz and a finished run on it by each command."""
    folder = tmp_path_factory.mktemp("finished")
    save(random_dataset(seed=0, lengths=(5, 1, 8, 3), obs_dim=4, action_dim=2), folder / "outside.npz")
    for command, words in (("train bc", TRAIN), ("improve", IMPROVE)):
        out = folder / command.replace(" ", "-")
        assert main([*command.split(), str(folder / "outside.npz"), "--out", str(out), *words]) == 0
    return folder


@pytest.fixture
def run_of(finished, tmp_path):
    """A copy of the data and of a finished run: the command's words, the data and the run directory."""

    def copy(command: str) -> tuple[list[str], Path, Path]:
        made, words = ("train-bc", TRAIN) if command.startswith("train") else ("improve", IMPROVE)
        outside = Path(shutil.copy(finished / "outside.npz", tmp_path))
        return words, outside, Path(shutil.copytree(finished / made, tmp_path / "run"))

    return copy


def by_name(source: Path, place: Path) -> Path:
    """The input itself, in that place."""
    return Path(shutil.copy(source, place))


def by_symlink(source: Path, place: Path) -> Path:
    place.symlink_to(source)
    return place


def by_hard_link(source: Path, place: Path) -> Path:
    os.link(source, place)
    return place


@pytest.mark.parametrize("given", [by_name, by_symlink, by_hard_link])
@pytest.mark.parametrize("name", ["mine.npz", "policy.npz", "improved.npz"])
@pytest.mark.parametrize("command", ["train bc", "train td3tsbc", "improve"])
def test_an_input_in_the_run_directory_is_refused(command, name, given, run_of, tmp_path, capsys):
    words, outside, out = run_of(command)
    (out / name).unlink(missing_ok=True)
    inside = given(outside, out / name)
    before = snapshot(tmp_path)
    inputs = [str(inside), str(outside)] if command.endswith("td3tsbc") else [str(inside)]
    assert main([*command.split(), *inputs, "--out", str(out), "--overwrite", "--seed", "1", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "choose another output" in error
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("command", ["train bc", "improve"])
def test_an_input_with_another_name_in_the_output_is_refused(command, run_of, tmp_path, capsys):
    """The output holds a hard link to the input, under a name that a run writes."""
    words, outside, out = run_of(command)
    (out / "policy.npz").unlink(missing_ok=True)
    os.link(outside, out / "policy.npz")
    before = snapshot(tmp_path)
    assert main([*command.split(), str(outside), "--out", str(out), "--overwrite", "--seed", "1", *words]) == 2
    assert "under another name" in capsys.readouterr().err
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("given", [by_name, by_symlink, by_hard_link])
def test_convert_and_collect_do_not_replace_their_input(given, data, policy_file, tmp_path, capsys):
    save(data, tmp_path / "a.npz")
    folder = tmp_path / "b.traj"
    save(data, folder)
    inside = given(tmp_path / "a.npz", folder / "a.npz")
    policy = given(policy_file, folder / "p.npz")
    before = snapshot(tmp_path)
    assert main(["convert", str(inside), str(folder), "--overwrite"]) == 2
    assert main(["convert", str(inside), str(inside), "--overwrite"]) == 2
    collect = ["collect", str(policy), "--env", "InvertedPendulum-v5", "--steps", "1", "--overwrite", "--out"]
    assert main([*collect, str(folder)]) == 2
    assert main([*collect, str(policy)]) == 2
    mix = ["collect", "--mix", f"{policy}:1", "--env", "InvertedPendulum-v5", "--steps", "1", "--overwrite"]
    assert main([*mix, "--out", str(folder)]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 5
    assert all("choose another output" in line for line in errors)
    assert snapshot(tmp_path) == before


def test_an_output_in_an_input_folder_is_refused(data, tmp_path, capsys):
    save(data, tmp_path / "b.traj")
    before = snapshot(tmp_path)
    assert main(["train", "bc", str(tmp_path / "b.traj"), "--out", str(tmp_path / "b.traj" / "run"), *TRAIN]) == 2
    assert "lies in the input" in capsys.readouterr().err
    assert snapshot(tmp_path) == before


def test_names_that_are_no_files_are_let_through(tmp_path):
    check_apart(["demo", "minari:mujoco/hopper/medium-v0", "random", "nothing.npz"], tmp_path)
    check_apart([str(tmp_path / "nothing.npz")], tmp_path)


def test_a_neighbour_whose_name_begins_alike_is_no_input(data, tmp_path):
    save(data, tmp_path / "run.npz")
    check_apart([str(tmp_path / "run.npz")], tmp_path / "run")
    with pytest.raises(InputError, match="choose another output"):
        check_apart([str(tmp_path / "run.npz")], tmp_path)


@pytest.mark.parametrize("command", ["train bc", "improve"])
def test_overwriting_removes_what_the_run_wrote_and_nothing_else(command, run_of):
    words, source, out = run_of(command)
    wrote = set(snapshot(out))
    mine = {"notes.txt": b"mine", "checkpoints/2nd.npz": b"mine", "improved.csv": b"mine", "old/a.npz": b"mine"}
    for name, content in mine.items():
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes(content)
    (out / ".policy.npz.12345678.part").write_bytes(b"a killed run was writing this")
    assert main([*command.split(), str(source), "--out", str(out), "--overwrite", "--seed", "1", *words]) == 0
    after = snapshot(out)
    assert {name: after[name] for name in mine} == mine
    assert set(after) == wrote | set(mine)
    assert json.loads(after["config.json"])["settings"]["seed"] == 1


def test_everything_a_run_writes_is_known_to_it(finished, tmp_path):
    """After clearing, an abandoned run of either kind has its config.json and nothing else."""
    shutil.copytree(finished / "train-bc", tmp_path / "a")
    shutil.copytree(finished / "improve", tmp_path / "b")
    shutil.copytree(Path(__file__).parents[1] / "storage" / "v0_1_0" / "morel-unfinished", tmp_path / "c")
    (tmp_path / "a" / "scores").mkdir(exist_ok=True)
    for name in "abc":
        Run.existing(tmp_path / name)._clear()
        assert list(snapshot(tmp_path / name)) == ["config.json"]
        assert [p.name for p in (tmp_path / name).iterdir()] == ["config.json"]


def test_the_input_of_a_refused_command_still_loads(data, tmp_path):
    save(data, tmp_path / "mine.npz")
    assert main(["train", "bc", str(tmp_path / "mine.npz"), "--out", str(tmp_path), "--overwrite", *TRAIN]) == 2
    assert load(tmp_path / "mine.npz").fingerprint == data.fingerprint
