"""Every format to Dataset and back, and D4RL's layouts as they were really recorded."""

import tempfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajstitch.data import Dataset
from trajstitch.errors import InputError
from trajstitch.formats import _PREFIXES, ENDINGS, load, save
from trajstitch.formats.d4rl import from_table, read, to_table
from trajstitch.sources import SOURCES, TARGETS
from worlds import changed, datasets, random_dataset, same


@pytest.mark.parametrize("ending", [".hdf5", ".npz", ".traj"])
@given(data=datasets())
@settings(max_examples=25, deadline=None)
def test_round_trips_are_exact(ending, data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"data{ending}"
        save(data, path)
        assert same(load(path), data)
        assert [p.name for p in Path(folder).iterdir()] == [path.name]


@pytest.mark.parametrize("ending", [".hdf5", ".npz", ".traj"])
def test_info_goes_along(ending, data, tmp_path):
    info = {"env_id": "Hopper-v5", "ref_min_score": -1.5, "dropped_steps": 3, "flag": True}
    save(replace(data, info=info), tmp_path / f"x{ending}")
    assert load(tmp_path / f"x{ending}").info == info


def test_npz_with_d4rl_keys(data, tmp_path):
    np.savez(tmp_path / "table.npz", **to_table(data))
    assert same(load(tmp_path / "table.npz"), data)


def weighed(data: Dataset, seed: int = 0) -> Dataset:
    """The data with weights of a mean that is only about 1, which must not be made exact."""
    weight = np.random.default_rng(seed).exponential(size=data.transitions)
    return replace(data, weight=(weight / weight.mean() * 1.0005).astype(np.float32))


@pytest.mark.parametrize("ending", [".hdf5", ".npz", ".traj", "-d4rl.npz"])
@given(data=datasets(), seed=st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_weights_keep_their_bits(ending, data, seed):
    data = weighed(data, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"data{ending}"
        if ending == "-d4rl.npz":
            np.savez(path, **to_table(data))
        else:
            save(data, path)
        back = load(path)
        assert same(back, data)
        assert back.weight.tobytes() == data.weight.tobytes()


@pytest.mark.parametrize("ending", [".hdf5", ".npz", ".traj"])
def test_overwritten_weights_are_gone(ending, data, tmp_path):
    path = tmp_path / f"x{ending}"
    save(weighed(data), path)
    save(data, path, overwrite=True)
    assert load(path).weight is None


def test_weights_in_a_folder_are_memory_mapped(data, tmp_path):
    save(weighed(data), tmp_path / "x.traj")
    base = load(tmp_path / "x.traj").weight
    while not isinstance(base, np.memmap):
        base = base.base
        assert base is not None


@pytest.mark.parametrize("factor", [1e-9, 0.5, 1000])
def test_weights_of_another_mean_are_scaled(data, factor):
    given = np.arange(17.0)[:, None] * factor  # old files have columns
    read = from_table({**to_table(data), "weights": given}, {})
    np.testing.assert_allclose(read.weight, np.arange(17) / 8, rtol=1e-6)


def test_weights_of_dropped_steps_are_dropped():
    data = replace(random_dataset(0, (3, 1, 2)), weight=np.float32([1, 3, 0, 0, 2, 0]))
    table = to_table(data)
    del table["next_observations"]
    read = from_table(table, {})
    assert read.length.tolist() == [2, 1]
    assert read.weight.tolist() == [0.5, 1.5, 1]
    table["weights"] = np.float32([0, 0, 6, 0, 0, 0])
    with pytest.raises(InputError, match="weights is 0 for all of these steps"):
        from_table(table, {})


def test_ogbench_has_no_weights(data, tmp_path):
    ends = np.zeros(17, bool)
    ends[data.start[1:] - 1] = True
    table = {"observations": data.obs[data.row], "actions": data.action, "terminals": ends}
    np.savez(tmp_path / "x.npz", **table, weights=np.ones(17))
    assert load(tmp_path / "x.npz").weight is None


def test_the_folder_is_memory_mapped(data, tmp_path):
    save(data, tmp_path / "x.traj")
    assert isinstance(load(tmp_path / "x.traj").obs, np.memmap)


# -- D4RL's layouts ---------------------------------------------------------------------------------------------


def plain_reading(table):
    """An independent reading, one row at a time: the list of (states, actions, ended)."""
    episodes, states, actions = [], [], []
    for i in range(len(table["actions"])):
        states.append(table["observations"][i])
        actions.append(table["actions"][i])
        if table["terminals"][i] or table["timeouts"][i] or i == len(table["actions"]) - 1:
            if "next_observations" in table:
                states.append(table["next_observations"][i])
            else:
                actions.pop()
            if actions:
                episodes.append((np.array(states), np.array(actions), bool(table["terminals"][i])))
            states, actions = [], []
    return episodes


@given(data=datasets(), successors=st.booleans(), cut=st.integers(0, 3))
@settings(deadline=None)
def test_reading_agrees_with_a_plain_loop(data, successors, cut):
    """With and without successors, whole or ending inside an episode."""
    table = to_table(data)
    keep = max(1, data.transitions - cut)
    table = {name: column[:keep] for name, column in table.items()}
    if not successors:
        del table["next_observations"]
    expected = plain_reading(table)
    if not expected:
        with pytest.raises(InputError, match="none has a successor"):
            from_table(table, {})
        return
    read = from_table(table, {})
    assert len(read) == len(expected)
    for trajectory, (states, actions, ended) in zip(read, expected, strict=True):
        np.testing.assert_array_equal(trajectory.obs, states)
        np.testing.assert_array_equal(trajectory.action, actions)
        assert trajectory.terminal == ended
    if not successors:
        ends = table["terminals"] | table["timeouts"]
        ends[-1] = True
        assert read.info["dropped_steps"] == ends.sum()


def test_an_episode_ends_or_times_out():
    data = replace(random_dataset(0, (2, 1, 2)), terminal=np.array([True, True, False]))
    table = to_table(data)
    assert table["terminals"].tolist() == [False, True, True, False, False]
    assert table["timeouts"].tolist() == [False, False, False, False, True]


def test_the_usual_time_limit_is_for_files_that_record_no_time_outs(hdf5, data):
    assert read(hdf5, usual_horizon=2).length.tolist() == data.length.tolist()
    unmarked = read(changed(hdf5, timeouts=None), usual_horizon=4)
    assert unmarked.info["split_by"] == "horizon 4"
    assert unmarked.length.tolist() == [4, 1, 1, 4, 4, 3]
    assert read(hdf5, episode_horizon=5, usual_horizon=4).length.tolist() == [5, 1, 5, 3, 3]


def test_a_jump_in_one_column_is_a_jump():
    table = to_table(random_dataset(0, (6,)))
    table["next_observations"][2, 1] += 1
    assert from_table(table, {}).length.tolist() == [3, 3]


def test_old_files_have_rewards_in_a_column_and_flags_as_numbers(data):
    table = to_table(data)
    table["rewards"] = table["rewards"][:, None].astype(np.float64)
    table["terminals"] = table["terminals"].astype(np.float64)
    table["timeouts"] = table["timeouts"].astype(np.int8)
    table["observations"] = table["observations"].astype(np.float64)
    assert same(from_table(table, {}), data)


def test_missing_timeouts_are_found_by_the_discontinuity(data):
    table = to_table(data)
    del table["timeouts"]
    read = from_table(table, {})
    assert same(read, data)
    assert read.info["split_by"] == "discontinuity"


def test_missing_timeouts_are_found_by_a_given_horizon():
    data = random_dataset(0, (4, 4, 2, 4, 3))
    table = to_table(data)
    table["terminals"][:] = False
    table["terminals"][[9, 16]] = True  # the third and the last episode end, the others are cut after four steps
    del table["timeouts"], table["next_observations"]
    read = from_table(table, {}, episode_horizon=4)
    assert read.length.tolist() == [3, 3, 1, 3, 2]
    assert read.terminal.tolist() == [False, False, True, False, True]
    assert read.info["split_by"] == "horizon 4"
    with pytest.raises(InputError, match="--episode-horizon"):
        from_table(table, {})
    with pytest.raises(InputError, match="at least 1"):
        from_table(table, {}, episode_horizon=0)
    with pytest.raises(InputError, match="leave --episode-horizon out"):
        from_table(to_table(data), {}, episode_horizon=4)


def test_the_horizon_counts_from_a_jump_too():
    table = to_table(random_dataset(0, (6, 14)))
    del table["timeouts"]
    table["terminals"][:] = False
    read = from_table(table, {}, episode_horizon=8)
    assert read.length.tolist() == [6, 8, 6]


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_damaged_notes(tmp_path, data, text):
    save(data, tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as archive:
        np.savez(tmp_path / "y.npz", **{**archive, "info_json": np.array(text)})
    with pytest.raises(InputError, match=r"y\.npz: this file is damaged"):
        load(tmp_path / "y.npz")


def test_a_foreign_seams_group(hdf5):
    with h5py.File(hdf5, "a") as file:
        file["seams/colour"] = np.zeros(3)
    with pytest.raises(InputError, match="damaged or has a layout"):
        load(hdf5)


def test_a_jump_inside_an_episode_is_never_a_step(data):
    table = to_table(data)
    table["timeouts"][:] = False
    table["terminals"][:] = False
    read = from_table(table, {})
    assert read.length.tolist() == data.length.tolist()
    assert read.info["unmarked_cuts"] == len(data) - 1
    assert not read.terminal.any()


def test_a_rounded_successor_is_no_jump(data):
    table = to_table(data)
    table["next_observations"] = table["next_observations"] + np.float32(1e-6)
    read = from_table(table, {})
    assert read.length.tolist() == data.length.tolist()
    assert "unmarked_cuts" not in read.info


EXCERPTS = {
    "ant_medium-v2": (2, 2000, 111, 8, 0),
    "halfcheetah_medium-v2": (2, 2000, 17, 6, 0),
    "halfcheetah_medium_replay-v1": (2, 2000, 17, 6, 0),
    "hopper_medium-v2": (2, 911, 11, 3, 2),
    "hopper_medium": (2, 522, 11, 3, 2),
    "hopper_medium_replay-v1": (2, 49, 11, 3, 2),
    "hopper_random-v1": (2, 50, 11, 3, 2),
    "walker2d_medium-v2": (2, 2000, 17, 6, 0),
    "walker2d_medium": (2, 745, 17, 6, 2),
    "walker2d_medium_replay-v1": (2, 31, 17, 6, 2),
}


@pytest.mark.parametrize("name", EXCERPTS)
def test_real_d4rl_files(shared, name):
    path = shared / "d4rl-excerpts" / f"{name}.hdf5"
    data = load(path)
    episodes, transitions, obs_dim, action_dim, ended = EXCERPTS[name]
    assert (len(data), data.transitions, data.obs_dim, data.action_dim) == (
        episodes,
        transitions,
        obs_dim,
        action_dim,
    )
    assert data.terminal.sum() == ended
    with h5py.File(path) as file:
        table = {k: file[k][()] for k in file if isinstance(file[k], h5py.Dataset)}
    for trajectory, (states, actions, terminal) in zip(data, plain_reading(table), strict=True):
        np.testing.assert_array_equal(trajectory.obs, states.astype(np.float32))
        np.testing.assert_array_equal(trajectory.action, actions.astype(np.float32))
        assert trajectory.terminal == terminal
    assert data.info.get("dropped_steps", 0) == (0 if "next_observations" in table else 2)


def test_a_replay_file_round_trips(shared, tmp_path):
    data = load(shared / "replay" / "hopper-replay.hdf5")
    assert (len(data), data.transitions, data.info["env_id"]) == (950, 156_287, "Hopper-v5")
    save(data, tmp_path / "x.npz")
    assert same(load(tmp_path / "x.npz"), data)


# -- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "terminals"])
def test_a_missing_key_is_named(hdf5, name):
    with pytest.raises(InputError, match=rf"small.hdf5: the key '{name}' is missing"):
        load(changed(hdf5, **{name: None}))


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"rewards": np.zeros(3, np.float32)}, "rewards has 3 rows but actions has 17"),
        ({"actions": np.zeros((17, 2), int)}, "actions are int64; only continuous"),
        ({"observations": np.zeros((17, 2, 2), np.float32)}, "observations has 3 dimensions"),
        ({"observations": np.full((17, 4), np.nan)}, r"observations\[0, 0\] is nan"),
        ({"next_observations": np.full((17, 4), np.inf)}, r"next_observations\[0, 0\] is inf"),
        ({"rewards": np.full(17, np.nan)}, r"rewards\[0\] is nan"),
        ({"terminals": np.full(17, np.nan)}, "terminals must hold only 0 and 1"),
        ({"next_observations": np.zeros((17, 3), np.float32)}, "different numbers of columns"),
        ({"actions": np.array([b"x"] * 17)}, "actions holds .* not numbers"),
        ({"rewards": np.zeros((17, 2))}, "rewards has 2 dimensions"),
    ],
)
def test_arrays_that_do_not_fit_are_named(hdf5, arrays, sentence):
    with pytest.raises(InputError, match=sentence):
        load(changed(hdf5, **arrays))


def test_no_transition_at_all(hdf5):
    names = ("observations", "next_observations", "actions")
    empty = {name: np.zeros((0, 2), np.float32) for name in names}
    empty |= {name: np.zeros(0, np.float32) for name in ("rewards", "terminals", "timeouts")}
    with pytest.raises(InputError, match="no transition"):
        load(changed(hdf5, **empty))


@pytest.mark.parametrize("ending", [".hdf5", ".npz"])
def test_files_that_are_none(tmp_path, data, ending):
    path = tmp_path / f"x{ending}"
    with pytest.raises(InputError, match="no such file"):
        load(path)
    path.write_bytes(b"")
    with pytest.raises(InputError, match="empty"):
        load(path)
    path.write_bytes(b"not what it says it is")
    with pytest.raises(InputError, match="not an"):
        load(path)
    path.unlink()
    save(data, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="truncated|damaged"):
        load(path)


def test_a_truncated_folder(tmp_path, data):
    save(data, tmp_path / "x.traj")
    file = tmp_path / "x.traj" / "obs.npy"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(InputError, match=r"obs.npy is truncated"):
        load(tmp_path / "x.traj")
    file.unlink()
    with pytest.raises(InputError, match=r"obs.npy is missing"):
        load(tmp_path / "x.traj")


def test_npz_without_a_key_or_with_objects(tmp_path, data):
    arrays = {"obs": data.obs, "action": data.action, "reward": data.reward, "start": data.start}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match="'terminal' is missing"):
        load(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", **arrays, terminal=np.array([{}] * 4, object))
    with pytest.raises(InputError, match="never loaded"):
        load(tmp_path / "b.npz")


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"x": np.zeros(3), "y": np.zeros(3)}, "it holds x, y, none of which is an array of a data set"),
        (
            {"obs": np.zeros((3, 2)), "actions": np.zeros(3)},
            "it holds actions, obs, but 'action' is missing; save all arrays under our names \\(obs,",
        ),
        ({"terminal": np.frombuffer(b"\2\0\0\1", bool)}, r"terminal\[0\] is 2, one of 1 flags that are none"),
    ],
)
def test_an_npz_of_something_else(tmp_path, data, arrays, sentence):
    ours = data.arrays() if "terminal" in arrays else {}
    np.savez(tmp_path / "x.npz", **ours | arrays)
    with pytest.raises(InputError, match=sentence):
        load(tmp_path / "x.npz")


def saved(folder: Path, ending: str, arrays: dict) -> Path:
    """Our layout with arrays of any dtype, as someone else's program would save it."""
    path = folder / f"x{ending}"
    if ending == ".npz":
        np.savez(path, **arrays)
        return path
    path.mkdir()
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    return path


@pytest.mark.parametrize("ending", [".npz", ".traj"])
@pytest.mark.parametrize("kind", ["f2", "f8", ">f4"])
def test_our_layout_takes_numbers_of_any_width(tmp_path, data, ending, kind):
    arrays = {name: getattr(data, name).astype(kind) for name in ("obs", "action")}
    arrays |= {
        "reward": np.arange(17),
        "start": data.start.astype(np.int32),
        "terminal": data.terminal.astype(float),
    }
    made = load(saved(tmp_path, ending, arrays))
    np.testing.assert_array_equal(made.obs, data.obs.astype(kind))
    np.testing.assert_array_equal(made.action, data.action.astype(kind))
    assert made.reward.tolist() == list(range(17))
    assert made.start.tolist() == data.start.tolist()
    assert made.terminal.tolist() == data.terminal.tolist()


@pytest.mark.parametrize("ending", [".npz", ".traj"])
@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"obs": np.full((21, 4), 1e300)}, r"obs\[0, 0\] is inf, one of 84 values that are not finite"),
        ({"action": np.zeros((17, 2), int)}, "actions are int64; only continuous"),
        ({"reward": np.array([b"x"] * 17)}, "reward holds .* not numbers"),
        ({"terminal": np.full(4, 0.5)}, r"terminal\[0\] is 0.5"),
        ({"start": np.linspace(0, 17, 5)}, "start must be a 1-dimensional int64 array, not float64"),
    ],
)
def test_our_layout_refuses_what_d4rls_refuses(tmp_path, data, ending, arrays, sentence):
    with pytest.raises(InputError, match=sentence):
        load(saved(tmp_path, ending, data.arrays() | arrays))


def test_numbers_beyond_float32_are_named_in_an_npz_of_d4rls_keys_too(tmp_path, data):
    np.savez(tmp_path / "x.npz", **to_table(data) | {"rewards": np.full(17, -1e300)})
    with pytest.raises(InputError, match=r"rewards\[0\] is -inf"):
        load(tmp_path / "x.npz")


def test_discrete_actions_are_named_as_such(hdf5):
    with pytest.raises(InputError, match="actions are int64; only continuous"):
        load(changed(hdf5, actions=np.zeros(17, int)))
    with pytest.raises(InputError, match=r"actions has 1 dimensions \(17,\), not 2; give one vector per action"):
        load(changed(hdf5, actions=np.zeros(17)))


@pytest.mark.parametrize("value", [None, [1], b"x", {"a": 1}, 1j])
def test_info_that_no_file_can_hold_is_refused_at_once(data, value):
    with pytest.raises(InputError, match=r"info\['odd'\] is a .*text, a number, true or false"):
        replace(data, info={"odd": value})


def test_info_that_one_format_cannot_hold(data, tmp_path):
    for value in ("x\0y", "\ud800", 1 << 80):
        with pytest.raises(InputError, match=r"x\.hdf5: this format cannot hold the data or their info"):
            save(replace(data, info={"odd": value}), tmp_path / "x.hdf5")
    assert not list(tmp_path.iterdir())
    assert replace(data, info={"one": np.float32(2)}).info == {"one": 2.0}


def test_unknown_endings(tmp_path, data):
    (tmp_path / "x.csv").write_text("1,2")
    with pytest.raises(InputError, match=r"\.csv names no format"):
        load(tmp_path / "x.csv")
    with pytest.raises(InputError, match="names no format; known are .hdf5, .h5, .npz, .traj$"):
        save(data, tmp_path / "x.csv")
    with pytest.raises(InputError, match="leave --episode-horizon out"):
        load("d4rl:hopper-medium-v2", episode_horizon=5)
    with pytest.raises(InputError, match="read-only"):
        save(data, "d4rl:hopper-medium-v2")


def test_logs_that_are_no_data_set_yet(tmp_path):
    """The hint is the same for a file and for a folder of such files, and is of use without the pages."""
    hint = "ts.from_trajectories makes a data set of logs and ts.save writes it"
    folder = tmp_path / "logs"
    folder.mkdir()
    with pytest.raises(InputError, match=r"logs: the ending \(none\) names no format; known are \.hdf5"):
        load(folder)
    np.save(tmp_path / "x.npy", np.zeros(3))
    (folder / "monday.csv").write_text("1,2")
    for path in (tmp_path / "x.npy", folder, folder / "monday.csv"):
        with pytest.raises(InputError, match=hint):
            load(path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_run_of_improve_names_its_data(tmp_path, data, ending):
    save(data, tmp_path / f"improved{ending}")
    with pytest.raises(InputError, match=rf"a run of improve, whose data are .*/improved\{ending}: give that"):
        load(tmp_path)


def test_help_and_messages_name_every_format():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "command-line.md").read_text().replace("`", "")
    for name in (*ENDINGS, *_PREFIXES, "d4rl:", "hf:", "demo"):
        if name != "lerobot-v2.1:":  # of interest to who writes
            assert name in SOURCES
            assert name in page
    for name in (*ENDINGS, *_PREFIXES):
        assert name in TARGETS or name == "lerobot-v2.1:"


BAD_WEIGHTS = [
    (np.ones(3), "has 3 rows|not float32 of shape \\(3,\\)"),
    (np.float32([-1, *np.ones(16)]), r"\[0\] is -1, one of 1 weights below 0"),
    (np.float32([*np.ones(16), np.nan]), r"\[16\] is nan"),
    (np.array([b"x"] * 17), "holds .* not numbers|must hold one number per step, not"),
    (np.ones((17, 2)), r"has 2 dimensions|must hold one number per step, not float64 of shape \(17, 2\)"),
    (np.zeros(17), "is 0 for all of these steps"),
]


@pytest.mark.parametrize(("weight", "sentence"), BAD_WEIGHTS)
@pytest.mark.parametrize("ending", [".hdf5", ".npz", ".traj"])
def test_bad_weights_name_their_key(tmp_path, data, ending, weight, sentence):
    path = tmp_path / f"x{ending}"
    save(weighed(data), path)
    if ending == ".hdf5":
        changed(path, weights=weight)
    elif ending == ".traj":
        np.save(path / "weight.npy", weight)
    else:
        np.savez(path, **{**data.arrays(), "weight": weight})
    with pytest.raises(InputError, match=rf"x\{ending}: weight.*({sentence})"):
        load(path)


def test_a_truncated_weight_file(tmp_path, data):
    save(weighed(data), tmp_path / "x.traj")
    file = tmp_path / "x.traj" / "weight.npy"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(InputError, match=r"weight.npy is truncated"):
        load(tmp_path / "x.traj")


def test_files_that_only_look_like_d4rl_get_a_sentence_with_a_remedy(tmp_path: Path, data: Dataset) -> None:
    """Dict observations, and demonstrations without rewards."""
    parts = tmp_path / "parts.hdf5"
    with h5py.File(parts, "w") as file:
        file["observations/camera"] = np.zeros((3, 8, 8, 3), np.uint8)
        file["observations/goal"] = np.zeros((3, 2), np.float32)
    with pytest.raises(
        InputError, match="observations holds camera, goal, not one array; put its arrays side by side"
    ):
        load(parts)
    save(data, tmp_path / "whole.hdf5")
    with h5py.File(tmp_path / "whole.hdf5", "a") as file:
        del file["rewards"]
    with pytest.raises(InputError, match="'rewards' is missing.*where there are none, add zeros"):
        load(tmp_path / "whole.hdf5")
