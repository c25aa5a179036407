"""robomimic's files: chosen keys, all that a demonstration held, filter keys."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings

from trajstitch.cli import main
from trajstitch.data import concatenate, normalised_weight
from trajstitch.errors import InputError
from trajstitch.formats import load, save
from trajstitch.formats.features import Features
from worlds import datasets, random_dataset, same

LENGTHS = {"demo_0": 3, "demo_2": 4, "demo_10": 2}
ENV = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {"robots": ["Panda"]}})


def make(path, successors=True):
    """A small file as robomimic's own scripts write it, images and states among the arrays."""
    with h5py.File(path, "w") as file:
        file["mask/train"] = np.array(["demo_10", "demo_0"], "S")
        file["mask/valid"] = np.array(["demo_2"], "S")
        data = file.create_group("data")
        data.attrs.update({"env_args": ENV, "total": 9})
        for name, steps in LENGTHS.items():
            k, t = int(name[5:]), np.arange(steps + 1.0)
            arrays = {
                "object": np.stack([t, t + k], 1),
                "eef": 100.0 * k + t[:, None],
                "image": np.full((steps + 1, 2, 2, 3), k, np.uint8),
            }
            demo = data.create_group(name)
            demo.attrs.update({"num_samples": steps, "model_file": f"<mujoco {k}/>"})
            for key, rows in arrays.items():
                demo[f"obs/{key}"] = rows[:-1]
                if successors:
                    demo[f"next_obs/{key}"] = rows[1:]
            demo["actions"] = np.stack([t, -t], 1)[:-1] / 10
            demo["rewards"] = (np.arange(steps) == steps - 1).astype(float)
            demo["dones"] = (np.arange(steps) == steps - 1).astype(int)
            demo["states"] = np.full((steps, 5), k, float)
    return path


@pytest.fixture
def file(tmp_path):
    return make(tmp_path / "lift.hdf5")


def test_with_successors_nothing_is_lost(file):
    data = load(file)
    assert data.length.tolist() == [3, 4, 2]  # by number: 0, 2, 10
    assert data.obs[4].tolist() == [200, 0, 2]  # eef, then object; no image
    assert data.obs[3].tolist() == [3, 3, 3]  # from next_obs
    np.testing.assert_allclose(data.action[1], [0.1, -0.1])
    assert data.returns.tolist() == [1, 1, 1]
    assert data.terminal.all()
    assert data.info["robomimic_env"] == "Lift"
    assert "dropped_steps" not in data.info


def test_without_successors_the_last_action_is_left_out(tmp_path):
    data = load(make(tmp_path / "x.hdf5", successors=False))
    assert data.length.tolist() == [2, 3, 1]
    assert data.reward.tolist() == [0, 1, 0, 0, 1, 1]
    assert data.info["dropped_steps"] == 3


def test_keys_and_filter_keys(file):
    chosen = Features(obs=("object", "states"), filter_key="train")
    data = load(file, features=chosen)
    assert data.length.tolist() == [3, 2]
    assert data.obs[4].tolist() == [0, 10, 10, 10, 10, 10, 10]
    rule = Features(reward_from=lambda frames: frames["rewards"] * 5)
    assert load(file, features=rule).returns.tolist() == [5, 5, 5]
    assert load(file, features=Features(reward_from="success-at-end")).reward.tolist() == [
        0,
        0,
        1,
        0,
        0,
        0,
        1,
        0,
        1,
    ]


@given(datasets())
@settings(deadline=None, max_examples=10)
def test_any_data_round_trip(data):
    weight = normalised_weight(1 + np.arange(data.transitions))
    data = replace(data, weight=weight, info={"env_id": "Some-v0"})
    with tempfile.TemporaryDirectory() as folder:
        save(data, f"robomimic:{folder}/x.hdf5")
        back = load(f"{folder}/x.hdf5")
        save(back[::-1], f"robomimic:{folder}/y.hdf5")
        turned = load(f"{folder}/y.hdf5")
    assert same(back, data)
    assert back.weight.tobytes() == weight.tobytes()
    assert back.info["env_id"] == "Some-v0"
    assert same(turned, back[::-1])


@pytest.mark.parametrize("successors", [True, False])
def test_demonstrations_keep_what_they_held(tmp_path, successors):
    source = make(tmp_path / "x.hdf5", successors)
    before = source.read_bytes()
    data = load(source)
    kept = replace(data, weight=normalised_weight(1 + np.arange(data.transitions)))[[2, 0]]
    save(kept, f"robomimic:{tmp_path / 'kept.hdf5'}")
    assert source.read_bytes() == before
    with h5py.File(source) as old, h5py.File(tmp_path / "kept.hdf5") as new:
        assert list(new["data"]) == ["demo_0", "demo_1"]
        assert (new["data"].attrs["env_args"], new["data"].attrs["total"]) == (ENV, 5)
        for name, was in (("demo_0", "demo_10"), ("demo_1", "demo_0")):
            assert dict(new["data"][name].attrs) == dict(old["data"][was].attrs)
            arrays = []
            old["data"][was].visititems(lambda key, item, found=arrays: found.append(key))
            for key in arrays:
                if isinstance(old["data"][was][key], h5py.Dataset):
                    assert new["data"][name][key].dtype == old["data"][was][key].dtype
                    np.testing.assert_array_equal(new["data"][name][key], old["data"][was][key])
        assert new["mask/train"][()].tolist() == [b"demo_0", b"demo_1"]
        assert "valid" not in new["mask"]
    assert same(load(tmp_path / "kept.hdf5"), kept)


@pytest.mark.parametrize("successors", [True, False])
def test_what_the_data_say_otherwise_is_written(tmp_path, successors):
    data = load(make(tmp_path / "x.hdf5", successors))
    changed = replace(
        data, obs=data.obs + 1, action=data.action / 2, reward=data.reward + 1, terminal=~data.terminal
    )
    save(changed, f"robomimic:{tmp_path / 'y.hdf5'}")
    assert same(load(tmp_path / "y.hdf5"), changed)


def test_whole_numbers_become_floats_where_they_must(tmp_path, file):
    with h5py.File(file, "a") as opened:
        for name, steps in LENGTHS.items():
            _replace(f"data/{name}/rewards", np.ones((steps, 1), np.int64))(opened)
    data = load(file)
    assert data.returns.tolist() == [3, 4, 2]
    changed = replace(data, reward=data.reward / 4)
    save(changed, f"robomimic:{tmp_path / 'y.hdf5'}")
    assert same(load(tmp_path / "y.hdf5"), changed)


def test_what_was_not_read_is_read_as_carefully_to_be_written(tmp_path, file):
    with h5py.File(file, "a") as opened:
        _declared(opened, "data/demo_2/rewards", (1 << 40, 1))
    data = load(file, features=Features(reward_from="dones"))
    with pytest.raises(InputError, match=r"lift.hdf5: .*demo_2/rewards was declared but not all"):
        save(data, f"robomimic:{tmp_path / 'x.hdf5'}")


def test_what_cannot_be_written(tmp_path, file):
    data = load(file)
    with pytest.raises(InputError, match="is where these data were read from"):
        save(data, f"robomimic:{file}", overwrite=True)
    with pytest.raises(InputError, match="trajectory 3 was not read as robomimic, others were"):
        save(concatenate([data, random_dataset(0, (2,), 3, 2)]), f"robomimic:{tmp_path / 'x.hdf5'}")
    with pytest.raises(InputError, match="ends in .hdf5"):
        save(data, f"robomimic:{tmp_path / 'x.npz'}")
    with pytest.raises(InputError, match=r"eef object have 3 numbers per step but trajectory 0 has 2; set origin"):
        save(replace(data, obs=data.obs[:, :2]), f"robomimic:{tmp_path / 'x.hdf5'}")
    with h5py.File(make(tmp_path / "other.hdf5"), "a") as other:
        other["data"].attrs["env_args"] = "{}"
    with pytest.raises(InputError, match="env_args of .*other.hdf5 and .* differ"):
        save(concatenate([data, load(tmp_path / "other.hdf5")]), f"robomimic:{tmp_path / 'x.hdf5'}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lift.hdf5", "other.hdf5"]


def _delete(name):
    return lambda file: file.__delitem__(name)


def _replace(name, rows):
    def change(file):
        del file[name]
        file[name] = rows

    return change


def _declared(file, name, shape, kind="f4"):
    del file[name]
    file.create_dataset(name, shape, kind, chunks=(1, *shape[1:]))


def _bomb(file, name):
    del file[name]
    file.create_dataset(name, data=np.zeros(1 << 23), compression="gzip", chunks=(1 << 20,))


DAMAGE = [
    (_delete("data/demo_2/actions"), r"demo_2/eef has 4 rows but there are 0 actions"),
    (_delete("data/demo_2/obs/eef"), "demo_2 has no 'eef', but other demonstrations have"),
    (_delete("data/demo_2/rewards"), "demo_2 has no 'rewards'"),
    (_replace("data/demo_2/dones", np.zeros(2)), "demo_2/dones has 2 rows but there are 4 actions"),
    (_replace("data/demo_0/actions", np.zeros((3, 2), int)), None),
    (_replace("data/demo_0/obs/eef", np.full((3, 1), np.inf)), r"eef\[0, 0\] is inf"),
]


@pytest.mark.parametrize(("damage", "sentence"), DAMAGE)
def test_damage_is_named(file, damage, sentence):
    with h5py.File(file, "a") as opened:
        damage(opened)
    if sentence is None:  # other demonstrations have floats
        assert load(file).action[:3].tolist() == [[0, 0]] * 3
        return
    with pytest.raises(InputError, match=rf"lift.hdf5: .*{sentence}"):
        load(file)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda file: file.create_group("data/demo_2/weight"), "demo_2 is damaged"),
        (lambda file: file["data/demo_2"].attrs.__delitem__("num_samples"), "demo_2 is damaged"),
        (lambda file: file.create_group("mask/other"), "this file is damaged"),
        (lambda file: _declared(file, "mask/valid", (1 << 20, 9), "S8"), "/mask/valid was declared but not all"),
        (lambda file: _replace("mask/valid", np.arange(3))(file), "/mask/valid holds int64, not names"),
    ],
)
def test_damage_that_only_writing_finds(file, tmp_path, damage, sentence):
    with h5py.File(file, "a") as opened:
        damage(opened)
    data = load(file)
    with pytest.raises(InputError, match=rf"lift.hdf5: .*{sentence}"):
        save(data, f"robomimic:{tmp_path / 'x.hdf5'}")
    assert not (tmp_path / "x.hdf5").exists()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            _replace("data/demo_2/states", h5py.ExternalLink("other.hdf5", "/x")),
            "demo_2/states is a link to another",
        ),
        (_replace("data", h5py.ExternalLink("other.hdf5", "/x")), "data is a link to another file"),
        (_replace("data/demo_2/rewards", h5py.Empty("f4")), "demo_2/rewards holds nothing"),
        (lambda file: _declared(file, "data/demo_2/rewards", (4,)), "demo_2/rewards was declared but not all"),
        (lambda file: _declared(file, "data/demo_2/next_obs/eef", (1 << 40, 1)), "was declared but not all"),
        (lambda file: _bomb(file, "data/demo_2/rewards"), "declares arrays of"),
    ],
)
def test_nothing_comes_from_outside_and_nothing_is_made_up(file, damage, sentence):
    with h5py.File(file, "a") as opened:
        damage(opened)
    with pytest.raises(InputError, match=rf"lift.hdf5: .*{sentence}"):
        load(f"robomimic:{file}")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--obs", "eye"], "has no feature 'eye'; it has actions, dones, eef, image, object"),
        (["--filter-key", "test"], "no filter key 'test' under mask; there are train, valid"),
        (["--reward-from", "actions"], "one number is needed"),
        (["--episode-horizon", "5"], "leave --episode-horizon out"),
    ],
)
def test_a_wrong_choice_is_one_sentence(file, tmp_path, capsys, words, sentence):
    assert main(["convert", str(file), str(tmp_path / "x.npz"), *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said.replace("\n", " ")
    assert "lift.hdf5" in said
    assert [path.name for path in tmp_path.iterdir()] == ["lift.hdf5"]


def test_only_images_or_no_demonstration(file, tmp_path):
    with h5py.File(file, "a") as opened:
        for name in LENGTHS:
            del opened[f"data/{name}/obs/eef"], opened[f"data/{name}/obs/object"]
    with pytest.raises(InputError, match="holds no vectors of numbers; choose from .* with --obs"):
        load(file)
    save(random_dataset(0, (2,)), tmp_path / "d4rl.hdf5")
    with pytest.raises(InputError, match=r"d4rl.hdf5: the group 'data' is missing"):
        load(f"robomimic:{tmp_path / 'd4rl.hdf5'}")
    with pytest.raises(InputError, match="no such file"):
        load(f"robomimic:{Path(tmp_path) / 'none.hdf5'}")
