"""Minari data sets, made by Minari itself, read by us, and the other way round."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import gc
import json
import os
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import trajstitch as ts
from trajstitch.data import normalised_weight
from trajstitch.errors import InputError
from trajstitch.formats import minari as ours
from trajstitch.progress import silent

minari = pytest.importorskip("minari")
EpisodeBuffer = pytest.importorskip("minari.data_collector").EpisodeBuffer

OBS = spaces.Box(-np.inf, np.inf, (4,), np.float64)
ACTION = spaces.Box(-1, 1, (2,), np.float32)
GOAL = spaces.Dict(
    {
        "observation": spaces.Box(-np.inf, np.inf, (3,), np.float64),
        "desired_goal": spaces.Box(-np.inf, np.inf, (2,), np.float64),
        "achieved_goal": spaces.Box(-np.inf, np.inf, (2,), np.float64),
    }
)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Minari's folder."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture(autouse=True)
def nothing_printed(capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    yield
    assert capfd.readouterr() == ("", "")


def episode(steps: int, space: spaces.Space[Any] = OBS, action: spaces.Space[Any] = ACTION, **changes: Any) -> Any:
    """An episode of random numbers that is neither terminated nor truncated."""
    rng = np.random.default_rng(steps)

    def values(space: Any, rows: int) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: values(part, rows) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(values(part, rows) for part in space.spaces)
        return rng.normal(size=(rows, *space.shape)).astype(space.dtype)

    fields = {
        "observations": values(space, steps + 1),
        "actions": values(action, steps),
        "rewards": rng.normal(size=steps),
        "terminations": np.zeros(steps, bool),
        "truncations": np.zeros(steps, bool),
        "infos": {"x": rng.normal(size=(steps + 1, 3))},
    }
    return EpisodeBuffer(**(fields | changes))


def make(
    episodes: Sequence[Any],
    space: spaces.Space[Any] = OBS,
    action: spaces.Space[Any] = ACTION,
    dataset_id: str = "test/made-v0",
    metadata: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    """A data set made by Minari, with its warnings about what is not given."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = minari.create_dataset_from_buffers(
            dataset_id, list(episodes), observation_space=space, action_space=action, **options
        )
    if metadata:
        made.storage.update_metadata(metadata)
    return made


def edit(root: Path, change: Callable[[h5py.File], None]) -> None:
    with h5py.File(root / "test" / "made-v0" / "data" / "main_data.hdf5", "r+") as file:
        change(file)


def replace(file: h5py.File, name: str, value: Any) -> None:
    del file[name]
    file[name] = value


def read(name: str = "minari:test/made-v0", flatten: bool = False) -> ts.Dataset:
    return ours.read(name, flatten, silent)


def sample(info: dict[str, Any] | None = None) -> ts.Dataset:
    rng = np.random.default_rng(0)
    return ts.Dataset(
        obs=rng.normal(size=(9, 4)).astype(np.float32),
        action=rng.uniform(-1, 1, size=(6, 2)).astype(np.float32),
        reward=rng.normal(size=6).astype(np.float32),
        start=np.array([0, 3, 4, 6]),
        terminal=np.array([True, False, True]),
        info=info or {},
    )


# -- reading -----------------------------------------------------------------------------------------------------


def test_arrays_are_minaris_in_float32() -> None:
    given = [episode(5), episode(1), episode(3)]
    make(given)
    data = read()
    assert data.length.tolist() == [5, 1, 3]
    for trajectory, buffer in zip(data, given, strict=True):
        np.testing.assert_array_equal(trajectory.obs, buffer.observations.astype(np.float32))
        np.testing.assert_array_equal(trajectory.action, buffer.actions)
        np.testing.assert_array_equal(trajectory.reward, buffer.rewards.astype(np.float32))


def test_a_termination_ends_an_episode_and_a_truncation_cuts_it() -> None:
    last, none = np.array([0, 0, 1], bool), np.zeros(3, bool)
    make(
        [
            episode(3, terminations=last),
            episode(3, truncations=last),
            episode(3, terminations=last, truncations=last),
            episode(3, terminations=none, truncations=none),
        ]
    )
    assert read().terminal.tolist() == [True, False, True, False]


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_a_termination_inside_an_episode_splits_it(data_format: str) -> None:
    make(
        [
            episode(2, terminations=np.array([1, 1], bool)),
            episode(3),
            episode(4, terminations=np.array([0, 1, 0, 0], bool)),
        ],
        data_format=data_format,
    )
    data = read()
    assert data.length.tolist() == [1, 1, 3, 2, 2]
    assert data.terminal.tolist() == [True, True, False, True, False]
    assert data.info["split_terminations"] == 2
    np.testing.assert_array_equal(data[0].obs[-1], data[1].obs[0])  # the state it led to begins the next one
    np.testing.assert_array_equal(data[3].obs[-1], data[4].obs[0])


def test_a_collected_environment() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = minari.DataCollector(gymnasium.make("Pendulum-v1", max_episode_steps=7))
        env.action_space.seed(0)
        for seed in range(3):
            env.reset(seed=seed)
            while not env.step(env.action_space.sample())[3]:
                pass
        made = env.create_dataset("pendulum/random-v0", algorithm_name="random")
        env.close()
        del env  # with the folder it leaves to the garbage collector, and that one's warning
        gc.collect()
    data = read("minari:pendulum/random-v0")
    assert (data.length.tolist(), data.obs_dim, data.action_dim) == ([7, 7, 7], 3, 1)
    assert not data.terminal.any()
    for trajectory, theirs in zip(data, made, strict=True):
        np.testing.assert_array_equal(trajectory.obs, theirs.observations)
    assert data.info["env_id"] == "Pendulum-v1"
    assert json.loads(str(data.info["env_spec"]))["max_episode_steps"] == 7
    assert data.info["algorithm_name"] == "random"
    assert json.loads(str(data.info["action_space"]))["high"] == [2.0]


def test_metadata_become_info() -> None:
    make(
        [episode(3)],
        author={*"DFBEAC"},
        author_email="a@b.c",
        description="made up",
        algorithm_name="none",
        code_permalink="nowhere",
        requirements=["a>=1,<2", "b; python_version>'3'"],
        metadata={"ref_min_score": -1.5, "ref_max_score": 10.0, "odd": [1, 2], "empty": None},
    )
    info = dict(read().info)
    assert info.pop("action_space") == json.dumps(
        {"type": "Box", "dtype": "float32", "shape": [2], "low": [-1.0, -1.0], "high": [1.0, 1.0]}
    )
    assert info == {
        "author": "A; B; C; D; E; F",
        "author_email": "a@b.c",
        "description": "made up",
        "algorithm_name": "none",
        "code_permalink": "nowhere",
        "requirements": "a>=1,<2\nb; python_version>'3'",
        "ref_min_score": -1.5,
        "ref_max_score": 10.0,
        "source": "minari:test/made-v0",
    }


def test_a_folder_is_read_like_an_id(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make([episode(3)])
    by_id = ts.load("minari:test/made-v0")
    monkeypatch.delenv("MINARI_DATASETS_PATH")
    assert ts.load(root / "test" / "made-v0").fingerprint == by_id.fingerprint


def test_progress_is_told_to_the_last_episode() -> None:
    make([episode(1)] * 70)
    told: list[tuple[int, int, str]] = []
    ours.read("minari:test/made-v0", False, lambda *what: told.append(what))
    assert told == [(64, 70, "episodes"), (70, 70, "episodes")]


@pytest.mark.parametrize("data_format", ["arrow", "parquet"])
@pytest.mark.parametrize("space", [OBS, GOAL])
def test_arrow_is_read_like_hdf5(data_format: str, space: spaces.Space[Any]) -> None:
    pytest.importorskip("pyarrow")
    given = [episode(5, space, terminations=np.arange(5) == 4), episode(1, space)]
    make(given, space)
    make(given, space, dataset_id="test/arrow-v0", data_format=data_format)
    assert read("minari:test/arrow-v0", flatten=True).fingerprint == read(flatten=True).fingerprint


def test_damaged_arrow(root: Path) -> None:
    pytest.importorskip("pyarrow")
    make([episode(5), episode(2)], data_format="arrow")
    (table,) = (root / "test" / "made-v0" / "data" / "1").glob("*.arrow")
    table.write_bytes(table.read_bytes()[:100])
    with pytest.raises(InputError, match=r"episode 1: its table cannot be read"):
        read()
    table.unlink()
    table.parent.rename(table.parent.with_name("7"))
    with pytest.raises(InputError, match=r"episode 1: its table cannot be read"):
        read()


# -- flattening --------------------------------------------------------------------------------------------------


def test_a_dict_is_refused_unless_flattened() -> None:
    make([episode(3, GOAL)], GOAL)
    with pytest.raises(InputError, match="a Dict of achieved_goal, desired_goal, observation; pass --flatten"):
        ts.load("minari:test/made-v0")


@pytest.mark.parametrize(
    "space",
    [
        GOAL,
        spaces.Dict({"b": GOAL, "a": OBS, "C": spaces.Box(0, 1, (), np.float32)}),
        spaces.Dict({"z": spaces.Box(0, 1, (2, 3), np.float64), "y": OBS}),
    ],
)
def test_flattening_is_gymnasiums(space: spaces.Dict) -> None:
    given = episode(4, space)
    make([given, episode(2, space)], space)
    data = ts.load("minari:test/made-v0", flatten=True)

    def state(values: Any, t: int) -> Any:
        return {k: state(v, t) for k, v in values.items()} if isinstance(values, dict) else values[t]

    for t in range(5):
        expected = spaces.flatten(space, state(given.observations, t))
        np.testing.assert_array_equal(data.obs[t], expected.astype(np.float32))


def test_the_order_is_recorded() -> None:
    space = spaces.Dict(OrderedDict([("b", GOAL), ("a", OBS)]))  # Gymnasium leaves this order as it is
    make([episode(4, space)], space)
    assert read(flatten=True).info["flattened"] == "a, b/achieved_goal, b/desired_goal, b/observation"


def test_a_matrix_is_flattened_on_request() -> None:
    space = spaces.Box(0, 1, (2, 3), np.float64)
    given = episode(4, space)
    make([given], space)
    with pytest.raises(InputError, match=r"the shape \[2, 3\]; pass --flatten"):
        read()
    np.testing.assert_array_equal(read(flatten=True).obs, given.observations.reshape(5, 6).astype(np.float32))


@pytest.mark.parametrize(
    ("leaf", "why"),
    [
        (spaces.Discrete(3), "observations/x is Discrete; only Box observations of floats"),
        (spaces.Box(0, 255, (4, 4, 3), np.uint8), "observations/x is an image of shape"),
        (spaces.Box(0, 1, (4, 4, 3), np.float32), "observations/x is an image of shape"),
        (spaces.Box(0, 9, (4,), np.int64), "observations/x is a Box of int64"),
        (spaces.MultiBinary(3), "observations/x is MultiBinary"),
        (spaces.Tuple([OBS]), "observations/x is Tuple"),
    ],
)
def test_leaves_that_cannot_be_flattened(leaf: spaces.Space[Any], why: str) -> None:
    space = spaces.Dict({"a": OBS, "x": leaf})
    make([episode(2, space)], space)
    with pytest.raises(InputError, match=why):
        read(flatten=True)


# -- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(0, 9, (4,), np.int32)])
def test_observations_that_are_no_floats(space: spaces.Space[Any]) -> None:
    make([episode(2, space)], space)
    with pytest.raises(
        InputError, match=r"minari:test/made-v0: observations is .*only Box observations of floats"
    ):
        read()


@pytest.mark.parametrize(
    "action",
    [
        spaces.Discrete(3),
        spaces.MultiDiscrete([2, 3]),
        spaces.Box(0, 9, (2,), np.int32),
        spaces.Box(0, 1, (2, 2), np.float32),
        spaces.Dict({"a": ACTION}),
    ],
)
def test_actions_that_are_no_vectors_of_floats(action: spaces.Space[Any]) -> None:
    make([episode(2, action=action)], action=action)
    with pytest.raises(InputError, match=r"its actions are .*; only continuous actions"):
        read(flatten=True)


@pytest.mark.parametrize(("name", "place"), [("observations", (2, 3)), ("actions", (1, 0)), ("rewards", (1,))])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_name_their_episode(
    root: Path, name: str, place: tuple[int, ...], value: float
) -> None:
    make([episode(5), episode(3), episode(2)])

    def spoil(file: h5py.File) -> None:
        file[f"episode_1/{name}"][place] = value

    edit(root, spoil)
    where = ", ".join(map(str, place))
    with pytest.raises(InputError, match=rf"test/made-v0: episode 1: {name}\[{where}\] is {value}"):
        read()


def test_a_number_too_large_for_float32(root: Path) -> None:
    make([episode(5), episode(3, rewards=np.array([0, 1e300, 0]))])
    with pytest.raises(InputError, match=r"episode 1: rewards\[1\] is inf"):
        read()


def test_an_episode_without_steps(root: Path) -> None:
    make([episode(5), episode(3)])

    def empty(file: h5py.File) -> None:
        for name in ("actions", "rewards", "terminations", "truncations"):
            replace(file, f"episode_1/{name}", np.zeros((0, 2) if name == "actions" else 0))

    edit(root, empty)
    with pytest.raises(InputError, match="episode 1 has no step"):
        read()


def test_no_episode() -> None:
    make([])
    with pytest.raises(InputError, match="it holds no episode"):
        read()


def test_rows_that_do_not_go_together(root: Path) -> None:
    make([episode(5), episode(3)])
    edit(root, lambda file: replace(file, "episode_1/observations", np.zeros((3, 4))))
    with pytest.raises(InputError, match=r"episode 1: observations has the shape \(3, 4\), but .* need \(4, 4\)"):
        read()


def test_an_array_that_is_missing(root: Path) -> None:
    make([episode(5), episode(3)])
    edit(root, lambda file: file.__delitem__("episode_1/actions"))
    with pytest.raises(InputError, match=r"episode 1: actions cannot be read"):
        read()


def test_an_array_of_words(root: Path) -> None:
    make([episode(5), episode(3)])
    edit(root, lambda file: replace(file, "episode_1/rewards", np.array([b"a", b"b", b"c"])))
    with pytest.raises(InputError, match=r"episode 1: rewards cannot be read"):
        read()


def test_a_damaged_file(root: Path) -> None:
    make([episode(5)])
    path = root / "test" / "made-v0" / "data" / "main_data.hdf5"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"made-v0: data/main_data.hdf5: this HDF5 file is truncated or damaged"):
        read()
    path.unlink()
    with pytest.raises(InputError, match=r"data/main_data.hdf5 is missing; copy"):
        read()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text[:50], "metadata.json is damaged"),
        (lambda text: text.replace('"action_space"', '"x"'), "'action_space' is missing in data/metadata.json"),
        (lambda text: text.replace('"hdf5"', '"zip"'), "its storage is 'zip'"),
        (lambda text: text[:-1] + ', "env_spec": "{}"}', "env_spec in data/metadata.json is damaged"),
    ],
)
def test_damaged_metadata(root: Path, change: Callable[[str], str], why: str) -> None:
    make([episode(5)])
    path = root / "test" / "made-v0" / "data" / "metadata.json"
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=why):
        read()


def test_missing_metadata_and_other_kinds(root: Path) -> None:
    """Whatever entry is missing or of another kind, it is one sentence or does not matter."""
    make([episode(5)])
    path = root / "test" / "made-v0" / "data" / "metadata.json"
    whole = json.loads(path.read_text())
    for name in whole:
        for value in ("absent", None, 3, -1, [], {}, "x", "[]", "{}", '{"type": "Box"}', '{"type": "Dict"}'):
            changed = {k: v for k, v in whole.items() if k != name} if value == "absent" else whole | {name: value}
            path.write_text(json.dumps(changed))
            with contextlib.suppress(InputError):
                assert read().transitions == 5
    path.write_text("[" * 100_000)
    with pytest.raises(InputError, match="damaged"):
        read()


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_episodes_that_the_metadata_do_not_count_are_not_lost(root: Path, data_format: str) -> None:
    make([episode(5), episode(2)], data_format=data_format)
    path = root / "test" / "made-v0" / "data" / "metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"total_episodes": 1}))
    with pytest.raises(InputError, match="says that it holds 1 episodes, but it holds 2"):
        read()


@pytest.mark.parametrize("kind", ["external link", "virtual", "pipe", "bomb"])
def test_nothing_outside_its_file_is_read(root: Path, kind: str) -> None:
    make([episode(5)])
    name = "episode_0/observations"

    def change(file: h5py.File) -> None:
        if kind in ("external link", "virtual", "bomb"):
            del file[name]
        if kind == "external link":
            file[name] = h5py.ExternalLink("other.hdf5", "/x")
        if kind == "virtual":
            layout = h5py.VirtualLayout((6, *OBS.shape), "f4")
            layout[:] = h5py.VirtualSource("other.hdf5", "x", (6, *OBS.shape))
            file.create_virtual_dataset(name, layout)
        if kind == "bomb":
            del file["episode_0/rewards"]
            file.create_dataset("episode_0/rewards", (1 << 28,), "f8", chunks=(1 << 16,))

    edit(root, change)
    path = root / "test" / "made-v0" / "data" / "main_data.hdf5"
    if kind == "pipe":
        path.unlink()
        os.mkfifo(path)
    why = {
        "external link": "episode_0/observations is a link to another file",
        "virtual": "episode 0: observations takes its numbers from other files",
        "pipe": "is a pipe or a device",
        "bomb": "more than 100 times as many",
    }
    with pytest.raises(InputError, match=why[kind]):
        read()


@pytest.mark.parametrize("flag", [np.int64(2), np.float64(0.5), np.uint8(255)])
def test_terminations_that_are_no_flags(root: Path, flag: Any) -> None:
    make([episode(3), episode(3)])
    edit(root, lambda file: replace(file, "episode_1/terminations", np.array([0, flag, 0]).astype(flag.dtype)))
    with pytest.raises(InputError, match=r"episode 1: terminations\[1\] is .* must hold only 0 and 1"):
        read()
    edit(root, lambda file: replace(file, "episode_1/terminations", np.array([0, 0, 1]).astype(flag.dtype)))
    assert read().terminal.tolist() == [False, True]


def test_rows_of_uneven_length_are_not_shifted(root: Path) -> None:
    """Two rows with as many numbers together as two whole ones have."""
    arrow = pytest.importorskip("pyarrow")
    make([episode(2)], data_format="arrow")
    part = next((root / "test" / "made-v0" / "data" / "0").glob("*.arrow"))
    with arrow.ipc.open_file(part) as reader:
        table = reader.read_all()
    size = OBS.shape[0]
    rows = [[0.0] * (size - 1), [0.0] * (size + 1), [0.0] * size]
    uneven = arrow.array(rows, arrow.list_(arrow.float32()))
    changed = table.set_column(table.schema.get_field_index("observations"), "observations", uneven)
    with arrow.ipc.new_file(str(part), changed.schema) as writer:
        writer.write_table(changed)
    with pytest.raises(InputError, match=rf"its rows have {size - 1}, {size}, {size + 1} numbers, not all {size}"):
        read()


def test_rows_outside_the_numbers_are_refused(root: Path) -> None:
    """Arrow itself would read what lies there, or end the process."""
    arrow = pytest.importorskip("pyarrow")
    make([episode(2)], data_format="arrow")
    part = next((root / "test" / "made-v0" / "data" / "0").glob("*.arrow"))
    table = arrow.ipc.open_file(arrow.py_buffer(part.read_bytes())).read_all()
    at, size = table.schema.get_field_index("observations"), OBS.shape[0]
    places = np.arange(0, 3 * size + 1, size, dtype=np.int32)
    lists = arrow.ListArray.from_arrays(places, table.column(at).combine_chunks().flatten())
    table = table.set_column(at, "observations", lists)
    with arrow.ipc.new_file(str(part), table.schema) as writer:
        writer.write_table(table)
    read()
    content = part.read_bytes()
    assert content.count(places.tobytes()) == 1
    part.write_bytes(content.replace(places.tobytes(), (places + np.int32(size)).tobytes()))
    with pytest.raises(InputError, match="episode 0: observations.* cannot be read .*offset out of bounds"):
        read()


def test_a_folder_without_data(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no data/metadata.json in it"):
        read(str(tmp_path))


@pytest.mark.parametrize("name", ["", "hopper", "hopper/medium", "a/b/../c-v0", "/etc-v0", "a b-v0", "é.x-v0"])
def test_what_is_no_id(name: str) -> None:
    with pytest.raises(InputError, match=r"is not a Minari id; an id is NAME-vNUMBER"):
        read(f"minari:{name}")
    with pytest.raises(InputError, match=r"is not a Minari id; an id is NAME-vNUMBER"):
        ts.save(sample(), f"minari:{name}")


# -- what is not installed or not local --------------------------------------------------------------------------


def test_minari_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    for call in (lambda: ts.load("minari:a-v0"), lambda: ts.save(sample(), "minari:a-v0")):
        with pytest.raises(InputError, match=r'pip install "trajstitch\[minari\]"'):
            call()


def test_pyarrow_is_optional(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make([episode(5)])
    path = root / "test" / "made-v0" / "data" / "metadata.json"
    path.write_text(path.read_text().replace('"hdf5"', '"arrow"'))
    monkeypatch.setitem(sys.modules, "pyarrow.dataset", None)
    with pytest.raises(InputError, match=r'its storage is arrow; run pip install "minari\[arrow\]"'):
        read()


@pytest.mark.parametrize("error", [ConnectionError("no route\nmore"), ValueError("no route")])
def test_offline(root: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(dataset_id: str) -> None:
        raise error

    monkeypatch.setattr(minari, "download_dataset", fail)
    with pytest.raises(InputError) as caught:
        read("minari:mujoco/hopper/medium-v0")
    assert str(caught.value) == (
        f"minari:mujoco/hopper/medium-v0: it is not in {root}/mujoco/hopper/medium-v0 and could not be "
        "downloaded (no route); check the id and the connection, or run `minari download mujoco/hopper/medium-v0` "
        "where there is one and copy its folder there"
    )


def test_downloads_need_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delenv("MINARI_REMOTE", raising=False)
    with pytest.raises(InputError, match=r'Minari cannot download it; .*pip install "minari\[hf\]"'):
        read("minari:mujoco/hopper/medium-v0")


def test_a_download_is_quiet_and_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake(dataset_id: str) -> None:
        print("Downloading …")
        warnings.warn_explicit(
            "there is a newer one", UserWarning, "hosting.py", 1, module="minari.storage.hosting"
        )
        make([episode(5)], dataset_id=dataset_id)

    monkeypatch.setattr(minari, "download_dataset", fake)
    assert read("minari:far/away-v0").transitions == 5


def test_minaris_folder_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "file" / "below"))
    with pytest.raises(InputError, match=r"Minari's data folder cannot be made .*MINARI_DATASETS_PATH"):
        read("minari:a-v0")


# -- writing -----------------------------------------------------------------------------------------------------


def check_written(data: ts.Dataset, theirs: Any) -> None:
    """Minari loads what we hold, to the bit."""
    assert theirs.total_episodes == len(data)
    assert theirs.total_steps == data.transitions
    for trajectory, loaded in zip(data, theirs, strict=True):
        for mine, other in (
            (trajectory.obs, loaded.observations),
            (trajectory.action, loaded.actions),
            (trajectory.reward, loaded.rewards),
        ):
            assert mine.dtype == other.dtype
            assert mine.tobytes() == other.tobytes()
        last = np.arange(len(trajectory)) == len(trajectory) - 1
        np.testing.assert_array_equal(loaded.terminations, last & trajectory.terminal)
        np.testing.assert_array_equal(loaded.truncations, last & (not trajectory.terminal))
        assert repr(loaded)


def test_minari_loads_what_we_write() -> None:
    data = sample()
    ts.save(data, "minari:our/own-v3")
    theirs = minari.load_dataset("our/own-v3")
    check_written(data, theirs)
    assert theirs.observation_space == spaces.Box(-np.inf, np.inf, (4,), np.float32)
    assert theirs.action_space == spaces.Box(-1, 1, (2,), np.float32)
    assert list(minari.list_local_datasets()) == ["our/own-v3"]
    assert theirs.env_spec is None


def test_namespaces_are_made_once() -> None:
    from minari.namespace import list_local_namespaces

    ts.save(sample(), "minari:one/two/a-v0")
    ts.save(sample(), "minari:one/two/b-v0")
    ts.save(sample(), "minari:c-v0")
    assert list_local_namespaces() == ["one", "one/two"]
    assert list(minari.list_local_datasets()) == ["c-v0", "one/two/a-v0", "one/two/b-v0"]


def test_info_comes_back() -> None:
    info = {
        "env_id": "Nowhere-v7",
        "physics": "d4rl",
        "source": "d4rl:hopper-medium-v2",
        "ref_min_score": -20.25,
        "ref_max_score": 3234.3,
        "dropped_steps": 12,
        "flag": True,
        "author": "A; B",
        "author_email": "a@b.c",
        "requirements": "x>=1,<2\ny",
        "algorithm_name": "TS",
        "description": "täglich",
    }
    ts.save(sample(info), "minari:a-v0")
    back = dict(ts.load("minari:a-v0").info)
    del back["action_space"]
    assert back == info
    metadata = minari.load_dataset("a-v0").storage.metadata
    assert metadata["author"] == {"A", "B"}
    assert metadata["requirements"] == ["x>=1,<2", "y"]
    assert minari.get_normalized_score(minari.load_dataset("a-v0"), np.array(3234.3)) == 1.0


def test_the_second_round_trip_is_exact() -> None:
    make(
        [episode(4, terminations=np.arange(4) == 3), episode(2)],
        action=spaces.Box(np.float64([-2, -np.inf]), np.float64([3, 1.7e308]), dtype=np.float64),
        author={"B", "A"},
        env="Pendulum-v1",
        metadata={"ref_min_score": 1.0},
    )
    once = read()
    ts.save(once, "minari:twice-v0")
    twice = read("minari:twice-v0")
    assert twice.fingerprint == once.fingerprint
    assert twice.info == once.info
    assert minari.load_dataset("twice-v0").env_spec == minari.load_dataset("test/made-v0").env_spec
    assert minari.load_dataset("twice-v0").action_space.high.tolist() == [3, np.inf]


def test_an_environment_that_is_only_named_is_looked_up() -> None:
    ts.save(sample({"env_id": "Hopper-v4"}), "minari:a-v0")
    assert minari.load_dataset("a-v0").env_spec.id == "Hopper-v4"
    assert read("minari:a-v0").info["env_id"] == "Hopper-v4"


def test_an_environment_that_cannot_be_written_down_keeps_its_name() -> None:
    gymnasium.register("TrajstitchTest-v0", entry_point=lambda: None)  # type: ignore[arg-type, return-value]
    try:
        ts.save(sample({"env_id": "TrajstitchTest-v0"}), "minari:a-v0")
    finally:
        del gymnasium.registry["TrajstitchTest-v0"]
    info = read("minari:a-v0").info
    assert info["env_id"] == "TrajstitchTest-v0"
    assert "env_spec" not in info


def test_bounds_that_do_not_hold_are_widened() -> None:
    make([episode(4)])
    data = read()
    wider = ts.Dataset(data.obs, data.action * 0 - 3, data.reward, data.start, data.terminal, data.info)
    ts.save(wider, "minari:a-v0")
    assert minari.load_dataset("a-v0").action_space == spaces.Box(-3, 3, (2,), np.float32)


def test_a_folder_is_written_under_its_own_name(tmp_path: Path) -> None:
    ours.write(sample(), str(tmp_path / "elsewhere" / "mine-v1"), overwrite=False)
    check_written(sample(), minari.MinariDataset(tmp_path / "elsewhere" / "mine-v1" / "data"))
    assert ts.load(tmp_path / "elsewhere" / "mine-v1").info["source"] == "minari:mine-v1"
    with pytest.raises(InputError, match="'mine' is not a Minari id"):
        ours.write(sample(), str(tmp_path / "mine"), overwrite=False)


def test_an_id_is_not_overwritten_unless_asked(root: Path) -> None:
    ts.save(sample(), "minari:a-v0")
    other = sample()[:2]
    with pytest.raises(InputError, match="a-v0 exists already.*--overwrite"):
        ts.save(other, "minari:a-v0")
    assert read("minari:a-v0").fingerprint == sample().fingerprint
    ts.save(other, "minari:a-v0", overwrite=True)
    assert read("minari:a-v0").fingerprint == other.fingerprint
    assert [path.name for path in root.iterdir()] == ["a-v0"]


def test_other_folders_are_never_overwritten() -> None:
    ts.save(sample(), "minari:space-v0/a-v0")
    with pytest.raises(InputError, match="exists and is not a data set; choose another id"):
        ts.save(sample(), "minari:space-v0", overwrite=True)
    assert read("minari:space-v0/a-v0").transitions == 6


@pytest.mark.parametrize("before", [True, False])
def test_a_failure_leaves_nothing_behind(root: Path, monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    if before:
        ts.save(sample()[:1], "minari:a-v0")

    def fill_the_disk(data: ts.Dataset) -> Iterator[Any]:
        yield from list(real(data))[:1]
        raise OSError(errno.ENOSPC, "No space left on device")

    real = ours._buffers
    monkeypatch.setattr(ours, "_buffers", fill_the_disk)
    with pytest.raises(InputError, match="a-v0: the disk is full"):
        ts.save(sample(), "minari:a-v0", overwrite=True)
    assert [path.name for path in root.iterdir()] == ["a-v0"] * before
    if before:
        assert read("minari:a-v0").fingerprint == sample()[:1].fingerprint


@pytest.mark.parametrize(
    ("info", "why"),
    [
        ({"env_spec": "nonsense"}, r"minari:a-v0: Minari cannot load this \(.*\); correct data.info"),
        ({"action_space": "nonsense"}, r"info\['action_space'\] is not a Box"),
    ],
)
def test_info_that_minari_cannot_load_is_not_written(root: Path, info: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        ts.save(sample(info), "minari:a-v0")
    assert list(root.iterdir()) == []


# -- weights -----------------------------------------------------------------------------------------------------


def weighed() -> ts.Dataset:
    return dataclasses.replace(sample(), weight=np.float32([1, 2, 0, 0.5, 2.5, 0.003]))


def test_weights_are_infos_with_padding() -> None:
    data = weighed()
    ts.save(data, "minari:a-v0")
    theirs = minari.load_dataset("a-v0")
    check_written(data, theirs)
    assert [e.infos["weight"].tolist() for e in theirs][:2] == [[1, 2, 0, 0], [0.5, 0]]
    back = ts.load("minari:a-v0")
    assert back.weight is not None
    assert data.weight is not None
    assert back.weight.tobytes() == data.weight.tobytes()


def with_weights(steps: int, weight: Any) -> Any:
    return episode(steps, infos={"x": np.zeros((steps + 1, 3)), "weight": weight})


@pytest.mark.parametrize("data_format", ["hdf5", "arrow", "parquet"])
@pytest.mark.parametrize("kind", [list, np.array])
def test_weights_from_elsewhere_are_scaled(data_format: str, kind: Callable[[list[float]], Any]) -> None:
    pytest.importorskip("pyarrow")
    given = [with_weights(2, kind([4.0, 8.0, 77.0])), with_weights(1, kind([0.0, np.nan]))]
    make(given, data_format=data_format)
    weight = read().weight
    assert weight is not None
    assert weight.tolist() == [1, 2, 0]


@pytest.mark.parametrize("data_format", ["hdf5", "arrow"])
def test_weights_in_some_episodes_only(data_format: str) -> None:
    pytest.importorskip("pyarrow")
    make([episode(3), with_weights(2, np.ones(3))], data_format=data_format)
    with pytest.raises(InputError, match="episode 0 has no infos/weight but episode 1 has; give all"):
        read()


@pytest.mark.parametrize(
    ("weight", "why"),
    [
        (np.ones(2), r"episode 1: infos/weight has the shape \(2,\), but .* need \(3,\)"),
        (np.ones((3, 2)), r"episode 1: infos/weight has the shape \(3, 2\)"),
        (np.array([1, -1, 0.0]), r"episode 1: infos/weight\[1\] is -1, one of 1 weights below 0"),
        (np.array([np.nan, 1, 0]), r"episode 1: infos/weight\[0\] is nan"),
        (["a", "b", "c"], "episode 1: infos/weight cannot be read"),
        ({"y": np.ones(3)}, "episode 1: infos/weight cannot be read"),
    ],
)
def test_bad_weights(weight: Any, why: str) -> None:
    make([with_weights(3, np.ones(4)), with_weights(2, weight)])
    with pytest.raises(InputError, match=why):
        read()


@pytest.mark.parametrize("weight", [["a", "b", "c"], {"y": np.ones(3)}, np.ones((3, 2))])
def test_bad_weights_in_arrow(weight: Any) -> None:
    pytest.importorskip("pyarrow")
    make([with_weights(3, np.ones(4)), with_weights(2, weight)], data_format="arrow")
    with pytest.raises(InputError, match="episode 1: infos/weight cannot be read"):
        read()


def test_weights_that_are_all_0() -> None:
    make([with_weights(2, np.array([0.0, 0.0, 1.0]))])
    with pytest.raises(InputError, match="made-v0: infos/weight is 0 for all of these steps"):
        read()


# -- random data -------------------------------------------------------------------------------------------------

NUMBER = st.floats(allow_nan=False, allow_infinity=False, width=32)
KEY = st.text("abcdefgh_", min_size=3, max_size=8).filter(lambda key: key not in ours._OWN)


@st.composite
def datasets(draw: st.DrawFn) -> ts.Dataset:
    length = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    n, m = sum(length), len(length)
    size = st.integers(1, 5)

    def numbers(*shape: int) -> Any:
        return draw(hnp.arrays(np.float32, shape, elements=NUMBER))

    weight = draw(st.none() | hnp.arrays(np.float64, n, elements=st.floats(0, 9)).filter(np.any))
    return ts.Dataset(
        obs=numbers(n + m, draw(size)),
        action=numbers(n, draw(size)),
        reward=numbers(n),
        start=np.cumsum([0, *length]),
        terminal=draw(hnp.arrays(bool, m)),
        info=draw(st.dictionaries(KEY, st.text() | st.integers() | NUMBER | st.booleans(), max_size=4)),
        weight=None if weight is None else normalised_weight(weight),
    )


@given(data=datasets())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_data_set_comes_back(data: ts.Dataset) -> None:
    ts.save(data, "minari:random-v0", overwrite=True)
    check_written(data, minari.load_dataset("random-v0"))
    back = ts.load("minari:random-v0")
    assert back.fingerprint == data.fingerprint
    assert {key: back.info[key] for key in data.info} == data.info
