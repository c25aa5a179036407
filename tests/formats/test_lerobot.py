"""LeRobot's folders: what is read, what is written, and that episodes keep all they held, videos too."""

import json
import os
import shutil
import sys
import tempfile
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajstitch.cli import main
from trajstitch.data import Seams, concatenate, normalised_weight
from trajstitch.errors import InputError
from trajstitch.formats import load, save
from trajstitch.formats.features import Features
from worlds import datasets, random_dataset, same

LENGTHS = (4, 1, 3, 5)
KEY = "observation.images.top"


def columns(episode, length):
    """The frames of an episode; every number says where it is from."""
    t = np.arange(length)
    last = t == length - 1
    return {
        "observation.state": (np.float32([[episode, i] for i in t]), [2], "float32"),
        "observation.effort": (100.0 * episode + t, [1], "float64"),
        "action": (np.float32([[i, -i, episode] for i in t]), [3], "float32"),
        "next.reward": (np.where(last, 10, 1).astype(np.float32), [1], "float32"),
        "next.done": (last & (episode % 2 == 0), [1], "bool"),
        "next.success": (last & (episode != 3), [1], "bool"),
    }


def arrow_table(episode, length, first):
    given = {name: _column(rows, shape) for name, (rows, shape, _) in columns(episode, length).items()}
    given["observation.images.still"] = pa.array(
        [{"bytes": bytes([episode, i]), "path": None} for i in range(length)]
    )
    given["timestamp"] = pa.array((np.arange(length) / 10).astype(np.float32))
    given["frame_index"] = pa.array(np.arange(length))
    given["episode_index"] = pa.array(np.full(length, episode))
    given["index"] = pa.array(first + np.arange(length))
    given["task_index"] = pa.array(np.full(length, episode % 2))
    return pa.table(given)


def _column(rows, shape):
    flat = pa.array(rows.reshape(-1))
    return flat if shape == [1] else pa.FixedSizeListArray.from_arrays(flat, shape[0])


def features():
    found = {
        name: {"dtype": kind, "shape": shape, "names": None} for name, (_, shape, kind) in columns(0, 1).items()
    }
    found["observation.images.still"] = {"dtype": "image", "shape": [4, 4, 3], "names": None}
    found[KEY] = {"dtype": "video", "shape": [4, 4, 3], "names": None, "info": {"video.codec": "av1"}}
    return found


def picture_stats(episode):
    one = [[[episode / 4]]] * 3
    return {KEY: {"min": one, "max": one, "mean": one, "std": [[[0.0]]] * 3, "count": [LENGTHS[episode]]}}


def put(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text) if isinstance(text, bytes) else file.write_text(text)


def make_v3(root):
    """Two tables and two videos of two episodes each, written here with pyarrow alone."""
    info = {
        "codebase_version": "v3.0",
        "fps": 10,
        "robot_type": "arm",
        "features": features(),
        "chunks_size": 1000,
    }
    info["data_path"] = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    info["video_path"] = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    put(root / "meta/info.json", json.dumps(info))
    first = np.cumsum([0, *LENGTHS])
    tables = [arrow_table(m, n, first[m]) for m, n in enumerate(LENGTHS)]
    rows = []
    for m, n in enumerate(LENGTHS):
        row = {"episode_index": m, "tasks": [f"task {m % 2}"], "length": n, "data/chunk_index": 0}
        row |= {"data/file_index": m // 2, f"videos/{KEY}/chunk_index": 0, f"videos/{KEY}/file_index": m // 2}
        begin = LENGTHS[m - 1] / 10 if m % 2 else 0.0
        row |= {f"videos/{KEY}/from_timestamp": begin, f"videos/{KEY}/to_timestamp": begin + n / 10}
        row |= {f"stats/{KEY}/{k}": v for k, v in picture_stats(m)[KEY].items()}
        row["operator"] = f"person {m}"
        rows.append(row)
    for file, pair in ((0, tables[:2]), (1, tables[2:])):
        (root / "data/chunk-000").mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.concat_tables(pair), root / f"data/chunk-000/file-{file:03d}.parquet")
        put(root / f"videos/{KEY}/chunk-000/file-{file:03d}.mp4", f"video {root.name} {file}".encode())
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), root / "meta/episodes/chunk-000/file-000.parquet")
    tasks = pa.table({"task_index": [0, 1], "__index_level_0__": ["task 0", "task 1"]})
    pq.write_table(tasks, root / "meta/tasks.parquet")
    return root


def make_v2(root):
    info = {
        "codebase_version": "v2.1",
        "fps": 10,
        "robot_type": "arm",
        "features": features(),
        "chunks_size": 1000,
    }
    info["data_path"] = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    info["video_path"] = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    put(root / "meta/info.json", json.dumps(info))
    episodes = [{"episode_index": m, "tasks": [f"task {m % 2}"], "length": n} for m, n in enumerate(LENGTHS)]
    episodes = [row | {"operator": f"person {row['episode_index']}"} for row in episodes]
    stats = [{"episode_index": m, "stats": picture_stats(m)} for m in range(4)]
    tasks = [{"task_index": i, "task": f"task {i}"} for i in range(2)]
    for name, rows in (("episodes", episodes), ("episodes_stats", stats), ("tasks", tasks)):
        put(root / f"meta/{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    (root / "data/chunk-000").mkdir(parents=True)
    for m, n in enumerate(LENGTHS):
        table = arrow_table(m, n, sum(LENGTHS[:m]))
        pq.write_table(table, root / f"data/chunk-000/episode_{m:06d}.parquet")
        put(root / f"videos/chunk-000/{KEY}/episode_{m:06d}.mp4", f"video {m}".encode())
    return root


MAKE = {"v2.1": make_v2, "v3.0": make_v3}


@pytest.fixture
def folder(tmp_path):
    return make_v3(tmp_path / "recorded")


def rows_of(root):
    return pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pylist()


def table_of(root):
    return pa.concat_tables([pq.read_table(file) for file in sorted((root / "data").glob("*/*.parquet"))])


def everything(root):
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# -- reading -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", MAKE)
def test_frames_become_steps(tmp_path, version):
    data = load(MAKE[version](tmp_path / "x"))
    assert data.length.tolist() == [3, 2, 4]  # an episode of one frame has no step
    assert data.obs[:4].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]
    assert data.action[3:5].tolist() == [[0, 0, 2], [1, -1, 2]]
    assert data.reward.tolist() == [1, 1, 11, 1, 11, 1, 1, 1, 11]  # the last frame's reward is kept
    assert data.terminal.tolist() == [True, True, False]
    assert data.info["dropped_steps"] == 4
    assert data.info["dropped_episodes"] == 1
    assert (data.info["fps"], data.info["robot_type"], data.info["reward_from"]) == (10, "arm", "next.reward")
    assert [name.rpartition("#")[2] for name in data.origin] == ["0", "2", "3"]


def test_features_are_chosen_by_name(folder):
    chosen = Features(obs=("observation.effort", "observation.state"), action=("observation.state",))
    data = load(f"lerobot:{folder}", features=chosen)
    assert data.obs[5].tolist() == [201, 2, 1]
    assert data.action[0].tolist() == [0, 0]
    assert data.info["obs_features"] == "observation.effort observation.state"


def test_rules_of_rewards(folder):
    won = load(folder, features=Features(reward_from="success-at-end"))
    assert won.reward.tolist() == [0, 0, 1, 0, 1, 0, 0, 0, 0]  # the last episode did not succeed
    by_effort = load(folder, features=Features(reward_from="observation.effort"))
    assert by_effort.returns.tolist() == [6, 603, 1510]
    rule = Features(reward_from=lambda frames: frames["action"][:, 0] * 2)
    assert load(folder, features=rule).returns.tolist() == [12, 6, 20]
    with pytest.raises(InputError, match=r"shape \(\) for episode 0; it must return one number for each of its 4"):
        load(folder, features=Features(reward_from=lambda frames: 1))


def test_no_rewards_and_no_ends(folder):
    info = json.loads((folder / "meta/info.json").read_text())
    del info["features"]["next.reward"], info["features"]["next.done"], info["features"]["next.success"]
    put(folder / "meta/info.json", json.dumps(info))
    data = load(folder)
    assert not data.reward.any()
    assert not data.terminal.any()
    assert data.info["reward_from"] == "none recorded"
    done = load(folder, features=Features(reward_from="success-at-end"))
    assert done.terminal.all()
    assert done.returns.tolist() == [1, 1, 1]


# -- round trips -------------------------------------------------------------------------------------------------


@given(data=datasets(), seed=st.integers(0, 9), prefix=st.sampled_from(["lerobot:", "lerobot-v2.1:"]))
@settings(deadline=None, max_examples=10)
def test_any_data_round_trip(data, seed, prefix):
    weight = normalised_weight(np.random.default_rng(seed).exponential(size=data.transitions))
    data = replace(data, weight=weight, info={"env_id": "Some-v0", "fps": 25})
    with tempfile.TemporaryDirectory() as folder:
        save(data, f"{prefix}{folder}/x")
        back = load(f"{folder}/x")
        again = f"{prefix}{folder}/y"
        save(back[::-1], again)  # by its origin this time
        turned = load(again)
    assert same(back, data)
    assert back.weight.tobytes() == weight.tobytes()
    assert back.info.items() >= data.info.items()
    assert "dropped_steps" not in back.info
    assert same(turned, back[::-1])


def test_improved_data_keep_their_seams(tmp_path):
    data = random_dataset(0, (3, 2))
    numbers = np.arange(5)
    floats = numbers.astype(np.float32)
    seams = Seams(numbers, numbers + 1, numbers % 2 == 0, floats, floats + 1, floats + 2, np.array([1.5, 2.5]))
    save(replace(data, seams=seams), f"lerobot:{tmp_path / 'x'}")
    back = load(tmp_path / "x")
    for name, array in seams.arrays().items():
        np.testing.assert_array_equal(back.seams.arrays()[name], array)
    assert {"seam.margin", "seam.stitched"} <= set(table_of(tmp_path / "x").column_names)


def test_statistics(tmp_path):
    data = random_dataset(0, (6, 3))
    save(data, f"lerobot:{tmp_path / 'x'}")
    stats = json.loads((tmp_path / "x/meta/stats.json").read_text())["observation.state"]
    assert stats["count"] == [11]
    for name in ("mean", "std", "min", "max"):
        np.testing.assert_allclose(stats[name], getattr(data.obs.astype(float), name)(0), rtol=1e-6)
    row = rows_of(tmp_path / "x")[1]
    np.testing.assert_allclose(row["stats/observation.state/q50"], np.median(data.obs[7:].astype(float), 0))


# -- what the episodes held --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", MAKE)
def test_chosen_episodes_keep_everything(tmp_path, version):
    """Left out, put in another order and weighed: images, other features, tasks, last actions are as recorded."""
    source = MAKE[version](tmp_path / "recorded")
    put(source / "meta/modality.json", "{}")
    before = everything(source)
    data = load(source)
    kept = replace(data, weight=normalised_weight(1 + np.arange(9)))[[2, 0]]  # episodes 3 and 0
    save(kept, f"lerobot:{tmp_path / 'kept'}")
    table, old = table_of(tmp_path / "kept"), table_of(source)
    for name in ("observation.state", "observation.effort", "action", "next.reward", "observation.images.still"):
        assert table[name].type == old[name].type
        assert table[name].to_pylist() == [*old[name].to_pylist()[8:], *old[name].to_pylist()[:4]], name
    assert table["index"].to_pylist() == list(range(9))
    assert table["episode_index"].to_pylist() == [0] * 5 + [1] * 4
    assert table["weight"].to_pylist()[4] == table["weight"].to_pylist()[8] == 0
    rows = rows_of(tmp_path / "kept")
    assert [row["tasks"] for row in rows] == [["task 1"], ["task 0"]]
    assert [row["operator"] for row in rows] == ["person 3", "person 0"]
    assert (tmp_path / "kept/meta/modality.json").read_text() == "{}"
    assert [row[f"stats/{KEY}/mean"][0][0][0] for row in rows] == [0.75, 0]
    assert same(load(tmp_path / "kept"), kept)
    assert everything(source) == before


def test_videos_of_v3_stay_where_they_were(tmp_path, folder):
    data = load(folder)
    save(data[[2, 0, 1]], f"lerobot:{tmp_path / 'kept'}")
    seen = []
    for row in rows_of(tmp_path / "kept"):
        file = tmp_path / "kept" / f"videos/{KEY}/chunk-000/file-{row[f'videos/{KEY}/file_index']:03d}.mp4"
        seen.append((file.read_text(), round(row[f"videos/{KEY}/from_timestamp"], 6)))
    assert seen == [("video recorded 1", 0.3), ("video recorded 0", 0.0), ("video recorded 1", 0.0)]
    assert file.stat().st_ino == (folder / f"videos/{KEY}/chunk-000/file-001.mp4").stat().st_ino  # not a copy


def test_videos_of_v2_follow_their_episodes(tmp_path):
    data = load(make_v2(tmp_path / "x"))
    for prefix, path in (
        ("lerobot-v2.1:", "videos/chunk-000/{key}/episode_{m:06d}.mp4"),
        ("lerobot:", "videos/{key}/chunk-000/file-{m:03d}.mp4"),
    ):
        out = tmp_path / prefix[:-1]
        save(data[[2, 0]], f"{prefix}{out}")
        names = [(out / path.format(key=KEY, m=m)).read_text() for m in range(2)]
        assert names == ["video 3", "video 0"]
    assert rows_of(tmp_path / "lerobot")[0][f"videos/{KEY}/to_timestamp"] == 0.5


def test_joined_folders(tmp_path, folder):
    other = make_v3(tmp_path / "other")
    both = concatenate([load(folder)[:1], load(other)])
    save(both, f"lerobot:{tmp_path / 'both'}")
    texts = [file.read_text() for file in sorted((tmp_path / "both/videos").rglob("*.mp4"))]
    assert texts == ["video recorded 0", "video other 0", "video other 1"]
    assert [row[f"videos/{KEY}/file_index"] for row in rows_of(tmp_path / "both")] == [0, 1, 2, 2]
    assert same(load(tmp_path / "both"), both)


def test_weights_come_and_go(tmp_path, folder):
    data = load(folder)
    weighed = replace(data, weight=normalised_weight(1 + np.arange(9)))
    save(weighed, f"lerobot:{tmp_path / 'x'}")
    back = load(tmp_path / "x")
    save(replace(back, weight=None), f"lerobot:{tmp_path / 'y'}")
    assert load(tmp_path / "y").weight is None
    assert "weight" not in table_of(tmp_path / "y").column_names
    save(concatenate([back, data]), f"lerobot:{tmp_path / 'z'}")  # one with weights, one without
    np.testing.assert_allclose(load(tmp_path / "z").weight, [*weighed.weight, *np.ones(9)])


def test_somebody_elses_weight_is_left_alone(tmp_path, folder):
    info = json.loads((folder / "meta/info.json").read_text())
    info["features"]["weight"] = {"dtype": "float32", "shape": [2], "names": None}
    put(folder / "meta/info.json", json.dumps(info))
    for file in (folder / "data").glob("*/*.parquet"):
        table = pq.read_table(file)
        pq.write_table(table.append_column("weight", pa.array([[-1.0, 5.0]] * len(table))), file)
    data = load(folder, features=Features(reward_from=lambda frames: frames["weight"][:, 1]))
    assert data.weight is None
    save(data, f"lerobot:{tmp_path / 'x'}")
    assert table_of(tmp_path / "x")["weight"].to_pylist() == [[-1, 5]] * 12


def test_what_the_data_say_otherwise_is_written(tmp_path, folder):
    data = load(folder)
    changed = replace(data, action=data.action + 1, reward=data.reward * 2, terminal=~data.terminal)
    save(changed, f"lerobot:{tmp_path / 'x'}")
    back = load(tmp_path / "x")
    assert same(back, changed)
    assert table_of(tmp_path / "x")["action"].to_pylist()[:4] == [[1, 1, 1], [2, 0, 1], [3, -1, 1], [3, -3, 0]]
    assert table_of(tmp_path / "x")["observation.state"].to_pylist()[:2] == [[0, 0], [0, 1]]


def test_whole_numbers_cannot_hold_all(tmp_path, folder):
    info = json.loads((folder / "meta/info.json").read_text())
    info["features"]["next.reward"]["dtype"] = "int64"
    put(folder / "meta/info.json", json.dumps(info))
    for file in (folder / "data").glob("*/*.parquet"):
        table = pq.read_table(file)
        at = table.column_names.index("next.reward")
        pq.write_table(table.set_column(at, "next.reward", table["next.reward"].cast(pa.int64())), file)
    data = load(folder)
    save(replace(data, reward=data.reward * 2), f"lerobot:{tmp_path / 'x'}")
    assert load(tmp_path / "x").reward.tolist() == (data.reward * 2).tolist()
    with pytest.raises(InputError, match="next.reward is int64, which cannot hold the new values"):
        save(replace(data, reward=data.reward / 4), f"lerobot:{tmp_path / 'y'}")
    assert not (tmp_path / "y").exists()


def test_chosen_features_are_remembered(tmp_path, folder):
    data = load(folder, features=Features(obs=("observation.effort",)))
    save(data[:1], f"lerobot:{tmp_path / 'x'}")
    assert same(load(tmp_path / "x"), data[:1])


# -- what is refused ---------------------------------------------------------------------------------------------


def test_v2_cannot_hold_shared_videos(tmp_path, folder):
    with pytest.raises(InputError, match=r"file-000\.mp4 holds several episodes.*write v3.0"):
        save(load(folder)[:1], f"lerobot-v2.1:{tmp_path / 'x'}")
    assert [path.name for path in tmp_path.iterdir()] == ["recorded"]


def test_writing_that_cannot_be_right(tmp_path, folder):
    data = load(folder)
    with pytest.raises(InputError, match="is where these data were read from"):
        save(data, f"lerobot:{folder}", overwrite=True)
    with pytest.raises(InputError, match="trajectory 3 was not read as lerobot, others were"):
        save(concatenate([data, random_dataset(0, (2,), 2, 3)]), f"lerobot:{tmp_path / 'x'}")
    with pytest.raises(InputError, match="exists already"):
        save(random_dataset(0, (2,)), f"lerobot:{folder}")
    put(tmp_path / "notes/diary.txt", "dear diary")
    with pytest.raises(InputError, match="holds something else"):
        save(data, f"lerobot:{tmp_path / 'notes'}", overwrite=True)
    other = make_v3(tmp_path / "other")
    info = json.loads((other / "meta/info.json").read_text())
    del info["features"]["next.success"]
    put(other / "meta/info.json", json.dumps(info))
    with pytest.raises(InputError, match=r"next.success is bool of shape \[1\] in .*recorded but missing in"):
        save(concatenate([data, load(other)]), f"lerobot:{tmp_path / 'x'}")
    mixed = concatenate(
        [load(folder, features=Features(obs=(name,))) for name in ("observation.effort", "next.reward")]
    )
    with pytest.raises(InputError, match="read by different features"):
        save(mixed, f"lerobot:{tmp_path / 'x'}")
    shutil.rmtree(folder)
    with pytest.raises(InputError, match="recorded, which these data were read from, is gone"):
        save(data, f"lerobot:{tmp_path / 'x'}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes", "other"]


def test_a_missing_video_leaves_nothing_behind(tmp_path, folder):
    data = load(folder)
    (folder / f"videos/{KEY}/chunk-000/file-001.mp4").unlink()
    with pytest.raises(InputError, match=rf"file-001.mp4 is missing, the video of {KEY} in episode 2"):
        save(data, f"lerobot:{tmp_path / 'x'}")
    assert [path.name for path in tmp_path.iterdir()] == ["recorded"]


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("../secret.mp4", "video_path in meta/info.json leads out of the folder"),
        ("/etc/{video_key}", "leads out of the folder"),
        ("videos/{colour}.mp4", "is no pattern that LeRobot writes"),
    ],
)
def test_a_folder_cannot_lead_elsewhere(tmp_path, folder, path, sentence):
    """Videos are carried along without a look, so where they come from is looked at."""
    data = load(folder)
    put(tmp_path / "secret.mp4", b"not yours")
    set_info(folder, video_path=path)
    with pytest.raises(InputError, match=sentence):
        save(data, f"lerobot:{tmp_path / 'x'}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["recorded", "secret.mp4"]


def test_a_row_without_its_place(tmp_path, folder):
    data = load(folder)
    file = folder / "meta/episodes/chunk-000/file-000.parquet"
    pq.write_table(pq.read_table(file).drop_columns([f"videos/{KEY}/to_timestamp"]), file)
    with pytest.raises(InputError, match=r"recorded: episode 0 is damaged \(KeyError.*to_timestamp"):
        save(data, f"lerobot:{tmp_path / 'x'}")
    cut = replace(
        data[:1], obs=data.obs[:3], action=data.action[:2], reward=data.reward[:2], start=np.array([0, 2])
    )
    with pytest.raises(InputError, match="a trajectory has 3 states but episode 0 of .* has 4 frames"):
        save(cut, f"lerobot:{tmp_path / 'x'}")
    assert [path.name for path in tmp_path.iterdir()] == ["recorded"]


def set_info(root, **entries):
    info = json.loads((root / "meta/info.json").read_text()) | entries
    put(root / "meta/info.json", json.dumps({k: v for k, v in info.items() if v is not None}))


def set_column(root, name, values):
    file = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(file)
    pq.write_table(table.set_column(table.column_names.index(name), name, values), file)


DAMAGE = [
    (lambda root: put(root / "meta/info.json", "{"), "info.json is damaged"),
    (lambda root: set_info(root, features=None), "info.json has no 'features'"),
    (lambda root: set_info(root, codebase_version="v1.6"), "v1.6 in meta/info.json is none of v2.0 to v3.0"),
    (
        lambda root: set_info(root, features=features() | {"../up": {"dtype": "video"}}),
        "'../up' in meta/info.json",
    ),
    (lambda root: shutil.rmtree(root / "data"), "data/ holds no .parquet file"),
    (lambda root: shutil.rmtree(root / "meta/episodes"), "meta/episodes holds no .parquet file"),
    (lambda root: (root / "data/chunk-000/file-001.parquet").unlink(), "lists 4 episodes but data/ holds 2"),
    (
        lambda root: put(root / "data/chunk-000/file-000.parquet", b"PAR1"),
        "file-000.parquet is missing or damaged",
    ),
    (lambda root: put(root / "meta/tasks.parquet", b"no"), "tasks.parquet is missing or damaged"),
    (lambda root: set_column(root, "frame_index", pa.array([0, 2, 1, 3, 7])), "frame_index of episode 1 does not"),
    (lambda root: set_column(root, "episode_index", pa.array([0, 0, 0, 1, 1])), "episode 0 has 3 frames in data/"),
    (lambda root: set_column(root, "action", pa.array([[1.0], None, [1.0], [1.0], [1.0]])), "action is null in 1"),
    (
        lambda root: set_column(root, "observation.state", pa.array([[1.0], [1.0] * 3, *[[1.0] * 2] * 3])),
        "observation.state has lists of different lengths",  # two on average
    ),
    (
        lambda root: set_column(root, "observation.state", pa.array([[np.nan, 1.0]] * 5)),
        r"observation.state\[0, 0\] is nan",
    ),
]


@pytest.mark.parametrize(("damage", "sentence"), DAMAGE)
def test_damage_is_named(folder, damage, sentence):
    damage(folder)
    with pytest.raises(InputError, match=rf"recorded: .*{sentence}"):
        load(folder)


def set_episodes(root, change):
    file = root / "meta/episodes/chunk-000/file-000.parquet"
    pq.write_table(pa.Table.from_pylist([change(row) for row in pq.read_table(file).to_pylist()]), file)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda root: set_episodes(root, lambda row: row | {"data/file_index": "x"}), "pattern"),
        (
            lambda root: set_episodes(root, lambda row: row | {f"videos/{KEY}/file_index": None}),
            "episode 0 is damaged",
        ),
        (
            lambda root: set_episodes(root, lambda row: row | {f"videos/{KEY}/chunk_index": float("inf")}),
            "damaged or has a layout",
        ),
    ],
)
def test_damage_that_only_writing_finds(folder, tmp_path, damage, sentence):
    damage(folder)
    data = load(folder)
    with pytest.raises(InputError, match=rf"recorded: .*{sentence}"):
        save(data, f"lerobot:{tmp_path / 'x'}")
    assert not (tmp_path / "x").exists()


def test_what_is_not_known_of_a_seam_can_be_written_again(tmp_path):
    data = random_dataset(0, (4, 2))
    zero = np.zeros(data.transitions, np.float32)
    seams = Seams(data.row, data.row + 1, zero == 0, zero, zero, zero, data.returns)
    save(replace(data, seams=seams), f"lerobot:{tmp_path / 'x'}")
    save(load(tmp_path / "x"), f"lerobot:{tmp_path / 'y'}")
    back = load(tmp_path / "y")
    assert same(replace(back, origin=None), replace(load(tmp_path / "x"), origin=None))
    assert np.isnan(back.seams.landing_error).all()


@pytest.mark.parametrize(
    "name",
    [
        "meta/info.json",
        "meta/tasks.parquet",
        "meta/trajstitch.json",
        "meta/episodes/chunk-000/file-000.parquet",
        "data/chunk-000/file-000.parquet",
    ],
)
def test_a_pipe_is_not_waited_for(folder, name):
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match="recorded: .*this is a pipe or a device"):
        load(folder)


def test_rows_that_would_fill_the_memory(folder):
    file = folder / "meta/episodes/chunk-000/file-000.parquet"
    pq.write_table(pq.read_table(file).take(np.zeros(1 << 16, int)), file)
    with pytest.raises(InputError, match="recorded: .*declares arrays of"):
        load(folder)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--obs", "observation.stat"], "has no feature 'observation.stat'; it has action, "),
        (["--obs", KEY], f"has no feature '{KEY}'"),
        (["--reward-from", "reward"], "has no feature 'reward'"),
        (["--reward-from", "action"], "one number is needed"),
        (["--action", "next.done"], "next.done is bool; only continuous"),
        (["--filter-key", "train"], "leave --filter-key out"),
        (["--episode-horizon", "5"], "leave --episode-horizon out"),
    ],
)
def test_a_wrong_choice_is_one_sentence(folder, tmp_path, capsys, words, sentence):
    assert main(["convert", str(folder), str(tmp_path / "x.npz"), *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said.replace("\n", " ")
    assert str(folder) in said
    assert [path.name for path in tmp_path.iterdir()] == ["recorded"]


def test_other_formats_have_no_features(hdf5, capsys, tmp_path):
    assert main(["convert", str(hdf5), str(tmp_path / "x.npz"), "--reward-from", "rewards"]) == 2
    assert "has no named features to choose from; leave --reward-from out" in capsys.readouterr().err
    with pytest.raises(InputError, match="there is no LeRobotDataset"):
        load(f"lerobot:{tmp_path / 'none'}")


def test_without_pyarrow(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"need pyarrow; run pip install 'trajstitch\[lerobot\]'"):
        load(folder)
    with pytest.raises(InputError, match="need pyarrow"):
        save(random_dataset(0, (3,)), f"lerobot:{tmp_path / 'x'}")
    assert not (tmp_path / "x").exists()


def test_commands_convert_both_ways(folder, tmp_path, capsys):
    assert main(["convert", str(folder), str(tmp_path / "x.npz"), "--quiet", "--obs", "observation.effort"]) == 0
    data = load(tmp_path / "x.npz")
    assert data.obs_dim == 1
    assert main(["convert", str(tmp_path / "x.npz"), f"lerobot:{tmp_path / 'y'}", "--quiet"]) == 0
    assert same(load(tmp_path / "y"), data)
    assert main(["convert", f"lerobot:{folder}", f"lerobot:{folder}", "--overwrite"]) == 2
    assert "is or lies in the output" in capsys.readouterr().err
