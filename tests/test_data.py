"""The data types: what they hold, what they refuse."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajstitch.data import Dataset, Trajectory, concatenate, from_trajectories, repeated
from trajstitch.errors import InputError
from worlds import datasets, random_dataset, same


@given(datasets())
def test_no_step_crosses_an_episode(data):
    """Each transition starts and ends inside its own trajectory, and the steps cover every trajectory whole."""
    for m, trajectory in enumerate(data):
        steps = np.flatnonzero(data.trajectory == m)
        np.testing.assert_array_equal(data.obs[data.row[steps]], trajectory.obs[:-1])
        np.testing.assert_array_equal(data.obs[data.row[steps] + 1], trajectory.obs[1:])
        np.testing.assert_array_equal(data.action[steps], trajectory.action)
    assert len(data) == len(list(data)) == len(data.length) == len(data.returns)
    assert data.length.sum() == data.transitions == len(data.row)


@given(datasets())
def test_returns_are_plain_sums(data):
    np.testing.assert_allclose(data.returns, [t.reward.astype(float).sum() for t in data], rtol=1e-6, atol=1e-9)


@given(datasets())
def test_trajectories_make_the_data_set_again(data):
    again = from_trajectories(data)
    assert same(again, data)
    assert again.fingerprint == data.fingerprint


@given(datasets(), st.data())
def test_choosing_equals_choosing_one_by_one(data, draw):
    chosen = draw.draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=8))
    assert same(data[chosen], from_trajectories([data[m] for m in chosen]))
    a = draw.draw(st.integers(0, len(data) - 1))
    b = draw.draw(st.integers(a + 1, len(data)))
    assert same(data[a:b], from_trajectories([data[m] for m in range(a, b)]))
    mask = np.zeros(len(data), bool)
    mask[chosen] = True
    assert same(data[mask], from_trajectories([data[m] for m in np.flatnonzero(mask)]))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=4))
def test_concatenate_keeps_every_trajectory(seeds):
    parts = [random_dataset(seed, (2, 4)) for seed in seeds]
    assert same(concatenate(parts), from_trajectories([t for part in parts for t in part]))


@given(datasets(max_trajectories=9), st.floats(0.01, 0.99), st.integers(0, 99))
def test_split_parts_the_trajectories(data, fraction, seed):
    if len(data) < 2:
        with pytest.raises(InputError, match="at least two"):
            data.split(fraction, seed)
        return
    a, b = data.split(fraction, seed)
    assert len(a) + len(b) == len(data)
    both = sorted(t.obs.tobytes() for part in (a, b) for t in part)
    assert both == sorted(t.obs.tobytes() for t in data)


def test_a_slice_is_a_view(data):
    assert np.shares_memory(data[1:3].obs, data.obs)
    assert not np.shares_memory(data[[1, 2]].obs, data.obs)


def test_top_takes_the_best_by_return(data):
    best = data.top(50)
    assert len(best) == 2
    assert best.returns.min() >= np.sort(data.returns)[-2]
    assert len(data.top(1e-6)) == 1
    assert same(data.top(100), data)


def test_filter(data):
    assert same(data.filter(lambda t: len(t) > 2), data[[0, 2, 3]])
    with pytest.raises(InputError, match="at least one"):
        data.filter(lambda t: False)


def test_iteration_and_numbers(data):
    assert len(data[-1]) == 3
    assert data[0].obs.shape == (6, 4)
    with pytest.raises(IndexError):
        data[4]


def test_fingerprint_sees_every_array_and_only_them(data):
    prints = {data.fingerprint}
    for name in ("obs", "action", "reward", "terminal"):
        changed = getattr(data, name).copy()
        changed[0] = ~changed[0] if name == "terminal" else changed[0] + 1
        prints.add(replace(data, **{name: changed}).fingerprint)
    prints.add(replace(data, start=np.array([0, 6, 7, 14, 17]) - [0, 1, 0, 0, 0]).fingerprint)
    assert len(prints) == 6
    assert replace(data, info={"env_id": "X"}).fingerprint == data.fingerprint


def test_repr_tells_the_essentials(data):
    text = repr(replace(data, info={"env_id": "Hopper-v5"}))
    for word in ("Hopper-v5", "4 trajectories", "17 transitions", "obs 4", "action 2", "length 1–8"):
        assert word in text


def test_arrays_cannot_be_changed_through_a_data_set(data):
    with pytest.raises(ValueError, match="read-only"):
        data.obs[0, 0] = 1


def test_memory_mapped_arrays_stay_mapped(data, tmp_path):
    np.save(tmp_path / "obs.npy", data.obs)
    mapped = replace(data, obs=np.load(tmp_path / "obs.npy", mmap_mode="r"))
    assert isinstance(mapped.obs, np.memmap)
    assert mapped.fingerprint == data.fingerprint


def broken(data: Dataset, **change: object) -> Dataset:
    return replace(data, **change)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda d: {"obs": d.obs.astype(np.float64)}, "obs must be a 2-dimensional float32"),
        (lambda d: {"obs": d.obs.tolist()}, "obs must be .* not list"),
        (lambda d: {"action": d.action[:, 0]}, "action must be a 2-dimensional"),
        (lambda d: {"reward": d.reward[:-1]}, "reward has 16 rows for 17 actions"),
        (lambda d: {"obs": d.obs[:-1]}, "each trajectory owns its last state"),
        (lambda d: {"start": np.array([0, 5, 5, 14, 17])}, "trajectory 1 has no step"),
        (lambda d: {"start": np.array([0, 5, 4, 14, 17])}, "trajectory 1 has no step"),
        (lambda d: {"start": np.array([1, 5, 6, 14, 17])}, "from 0 to the 17"),
        (lambda d: {"start": np.array([0, 5, 6, 14, 16])}, "from 0 to the 17"),
        (lambda d: {"start": np.array([0, 5, 6, 17])}, "one more than there are trajectories"),
        (lambda d: {"terminal": d.terminal.astype(int)}, "terminal must be a 1-dimensional bool"),
        (lambda d: {"obs": d.obs[:, :0]}, "at least one column"),
    ],
)
def test_what_does_not_fit_is_refused(data, change, sentence):
    with pytest.raises(InputError, match=sentence):
        replace(data, **change(data))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["obs", "action", "reward"])
def test_numbers_must_be_finite(data, name, value):
    bad = getattr(data, name).copy()
    bad[(3, 1) if bad.ndim == 2 else 3] = value
    place = r"\[3, 1\]" if bad.ndim == 2 else r"\[3\]"
    with pytest.raises(InputError, match=f"{name}{place} is -?{abs(value)}, one of 1 values"):
        replace(data, **{name: bad})


def test_a_trajectory_needs_its_last_state():
    with pytest.raises(InputError, match="append the last state"):
        Trajectory(np.zeros((3, 2)), np.zeros((3, 1)), np.zeros(3), False)


def test_different_sizes_cannot_be_put_together():
    with pytest.raises(InputError, match="obs_dim"):
        concatenate([random_dataset(0, (2,), obs_dim=3), random_dataset(0, (2,), obs_dim=4)])
    with pytest.raises(InputError, match="at least one"):
        concatenate([])
    with pytest.raises(InputError, match="at least one"):
        from_trajectories([])


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 3))
def test_repeated_rows_agree_with_a_set(values, columns):
    rows = np.repeat(np.array(values, np.float32)[:, None], columns, 1)
    assert repeated(rows).tolist() == [value in values[:i] for i, value in enumerate(values)]
