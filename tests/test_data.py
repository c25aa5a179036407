"""The data types: what they hold, what they refuse."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trajstitch.data import (
    Dataset,
    Seams,
    Trajectory,
    change_table,
    concatenate,
    count_revisits,
    effective_steps,
    from_trajectories,
    normalised_weight,
    repeated,
    step_table,
)
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


def test_rows_of_steps_and_ends_by_hand():
    """Three steps to a real end, then two that were cut."""
    data = replace(random_dataset(0, (3, 2)), terminal=np.array([True, False]))
    assert data.row.tolist() == [0, 1, 2, 4, 5]
    assert data.last_row.tolist() == [3, 6]
    assert data.steps_left.tolist() == [3, 2, 1, 2, 1]
    table = step_table(data)
    assert table["done"].tolist() == [0, 0, 1, 0, 0]
    np.testing.assert_array_equal(table["obs"], data.obs[[0, 1, 2, 4, 5]])
    np.testing.assert_array_equal(table["next_obs"], data.obs[[1, 2, 3, 5, 6]])
    changes = change_table(data)
    np.testing.assert_array_equal(changes["given"], table["obs"])
    np.testing.assert_array_equal(changes["change"], table["next_obs"] - table["obs"])


def test_revisits_are_counted_within_a_trajectory():
    assert count_revisits(np.array([3, 0, 1, 2]), np.array([0, 1, 4])) == 0
    assert count_revisits(np.array([1, 2, 1, 1, 2, 1]), np.array([0, 4, 6])) == 2


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


@pytest.mark.parametrize("fraction", [-1, 0, 1, 1.5, 2, np.nan])
def test_only_a_share_splits(data, fraction):
    with pytest.raises(InputError, match=f"a share above 0 and below 1, not {fraction:g}"):
        data.split(fraction)


def test_a_slice_is_a_view(data):
    assert np.shares_memory(data[1:3].obs, data.obs)
    assert not np.shares_memory(data[[1, 2]].obs, data.obs)


def test_top_takes_the_best_by_return(data):
    best = data.top(50)
    assert len(best) == 2
    assert best.returns.min() >= np.sort(data.returns)[-2]
    assert len(data.top(1e-6)) == 1
    assert len(data.top(40)) == 2  # rounded
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
    # The same numbers in other shapes: 6 × 3 and 4 × 1 of them, or 6 × 1 and 4 × 4.
    numbers = np.arange(22, dtype=np.float32)
    rest = {"reward": np.zeros(4, np.float32), "start": np.array([0, 2, 4]), "terminal": np.zeros(2, bool)}
    one, other = (
        Dataset(numbers[:cut].reshape(6, -1), numbers[cut:].reshape(4, -1), **rest).fingerprint for cut in (18, 6)
    )
    assert one != other


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


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        (
            "terminal",
            np.zeros(2, bool),
            r"one bool for the whole episode, not bool of shape \(2,\): .* the last one",
        ),
        ("terminal", "False", "one bool for the whole episode, not 'False'"),
        ("terminal", None, "one bool for the whole episode, not None"),
        ("terminal", 2, "one bool for the whole episode, not 2"),
        ("reward", None, "reward must be an array of one number per step, not None"),
        ("reward", np.zeros((2, 1)), r"reward must be .* one number per step, not float64 of shape \(2, 1\)"),
        ("reward", ["a", "b"], "reward must be an array of one number per step, not <U1"),
        ("action", None, "action must be an array of one vector per step, not None"),
        ("action", [[0], [0, 1]], "action must be an array of one vector per step, all of one size"),
        ("obs", None, "obs must be an array of one vector per state, not None"),
        ("obs", np.zeros(3), r"obs must be an array of one vector per state, not float64 of shape \(3,\)"),
    ],
)
def test_a_trajectory_says_what_its_fields_must_be(field, value, sentence):
    fields = {"obs": np.zeros((3, 2)), "action": np.zeros((2, 1)), "reward": np.zeros(2), "terminal": False}
    with pytest.raises(InputError, match=sentence):
        Trajectory(**fields | {field: value})


@pytest.mark.parametrize("ended", [True, np.True_, 1, 1.0, np.array(True)])
def test_one_flag_of_any_kind_is_a_terminal(ended):
    trajectory = Trajectory([[0.0], [1.0]], [[1.0]], [2.0], ended)
    assert from_trajectories([trajectory]).terminal.tolist() == [True]


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


# -- weights -----------------------------------------------------------------------------------------------------


@st.composite
def weighed(draw: st.DrawFn) -> Dataset:
    """Any small data set with any weights, some of them 0."""
    data = draw(datasets())
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    weight = rng.exponential(size=data.transitions) * (rng.random(data.transitions) < 0.8)
    weight[0] = 1
    return replace(data, weight=normalised_weight(weight))


def weights_of(data: Dataset, m: int) -> np.ndarray:
    return data.weight[data.start[m] : data.start[m + 1]].astype(float)


@given(weighed(), st.data())
def test_chosen_steps_keep_their_weights_up_to_a_factor(data, draw):
    chosen = draw.draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=8))
    a = draw.draw(st.integers(0, len(data) - 1))
    b = draw.draw(st.integers(a + 1, len(data)))
    mask = np.isin(np.arange(len(data)), chosen)
    for which, numbers in ((chosen, chosen), (slice(a, b), range(a, b)), (mask, np.flatnonzero(mask))):
        weight = np.concatenate([weights_of(data, m) for m in numbers])
        if not weight.any():
            with pytest.raises(InputError, match="weight is 0 for all of these steps; choose others"):
                data[which]
            continue
        # Weights whose mean is about 1 already are not scaled, so this is exact to a thousandth only.
        np.testing.assert_allclose(data[which].weight, weight / weight.mean(), rtol=1.1e-3)
    assert data[:].fingerprint == data.fingerprint


@given(weighed(), datasets())
def test_joined_steps_keep_their_weights(data, plain):
    plain = random_dataset(1, plain.length.tolist(), data.obs_dim, data.action_dim)
    joined = concatenate([plain, data, data])
    ones = np.ones(plain.transitions, np.float32)
    assert joined.weight.tobytes() == np.concatenate([ones, data.weight, data.weight]).tobytes()
    assert concatenate([plain, plain]).weight is None


def test_top_split_and_filter_keep_weights(data):
    data = replace(data, weight=normalised_weight(np.arange(1, 18)))
    first, second = data.split(0.5)
    for part in (data.top(50), first, second, data.filter(lambda t: len(t) > 2)):
        whole = {t.obs.tobytes(): weights_of(data, m) for m, t in enumerate(data)}
        expected = np.concatenate([whole[t.obs.tobytes()] for t in part])
        np.testing.assert_allclose(part.weight, expected / expected.mean(), rtol=1.1e-3)


def test_without_weights_nothing_changes(data):
    assert random_dataset(0, (2, 3)).fingerprint == "756b34dddba48d723d367db46f2a632b"
    assert data.weight is None
    assert "effective" not in repr(data)
    assert data[1:].weight is None
    assert list(data.arrays()) == [field.name for field in fields(data)][:5]


def test_weights_are_part_of_the_data(data):
    weight = normalised_weight(np.arange(1, 18))
    heavy = replace(data, weight=weight)
    other = replace(data, weight=weight[::-1].copy())
    assert len({data.fingerprint, heavy.fingerprint, other.fingerprint}) == 3
    assert data.steps_fingerprint == heavy.steps_fingerprint == data.fingerprint
    assert heavy.nbytes == data.nbytes + 17 * 4
    assert f"{effective_steps(weight):.0f} effective steps by weight" in repr(heavy)
    with pytest.raises(ValueError, match="read-only"):
        heavy.weight[0] = 1
    weight[0] = 1  # the caller's own array is not locked


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=30).filter(any))
def test_weights_are_scaled_to_mean_one(weight):
    scaled = normalised_weight(weight)
    assert scaled.dtype == np.float32
    assert abs(scaled.mean(dtype=float) - 1) <= 1e-3
    share = np.array(weight) / max(weight)
    np.testing.assert_allclose(scaled, share / share.mean(), rtol=1.1e-3, atol=1e-30)
    assert normalised_weight(scaled) is scaled


def test_weights_of_mean_one_keep_their_bits():
    weight = np.array([0.5, 1.50005], np.float32)
    assert normalised_weight(weight) is weight
    assert normalised_weight(weight * 2).mean(dtype=float) == pytest.approx(1, abs=1e-7)
    assert normalised_weight([True, False]).tolist() == [2, 0]


@pytest.mark.parametrize(
    ("weight", "sentence"),
    [
        ([1, -1, 1], r"w\[1\] is -1, one of 1 weights below 0; correct them"),
        ([1, np.nan], r"w\[1\] is nan, one of 1 values that are not finite"),
        ([np.inf, 1], r"w\[0\] is inf"),
        ([0, 0], "w is 0 for all of these steps"),
        ([], "w is 0 for all of these steps"),
        (["a", "b"], "w must hold one number per step, not <U1 of shape"),
        ([[1], [1]], r"w must hold one number per step, not int64 of shape \(2, 1\)"),
    ],
)
def test_weights_that_cannot_be_scaled(weight, sentence):
    with pytest.raises(InputError, match=sentence):
        normalised_weight(weight, "w")


def test_effective_steps_are_kishs():
    assert effective_steps(np.ones(7, np.float32)) == 7
    assert effective_steps(np.array([2, 2, 0, 0], np.float32)) == 2
    assert effective_steps(np.array([3, 1], np.float32)) == pytest.approx(16 / 10)


@pytest.mark.parametrize(
    ("weight", "sentence"),
    [
        (np.ones(16, np.float32), r"of the 17 transitions, not float32 of shape \(16,\); .*normalised_weight"),
        (np.ones((17, 1), np.float32), r"not float32 of shape \(17, 1\)"),
        (np.ones(17), "not float64 of shape"),
        ([1.0] * 17, "not list"),
        (np.full(17, 1.01, np.float32), "weight has mean 1.01, not 1; scale it with .*normalised_weight"),
        (np.zeros(17, np.float32), "weight has mean 0, not 1"),
        (np.float32([2, *np.ones(15), -0.0001]), r"weight\[16\] is -0.0001, one of 1 weights below 0"),
        (np.float32([np.nan, *np.ones(16)]), r"weight\[0\] is nan"),
    ],
)
def test_weights_that_are_refused(data, weight, sentence):
    with pytest.raises(InputError, match=sentence):
        replace(data, weight=weight)


@pytest.mark.parametrize("ball", [False, True])
def test_weights_for_other_rewards_are_left_out(data, ball):
    from trajstitch.evaluation.mazes import OWN, MazeEnv, make_maze, set_task

    data = replace(data, obs=data.obs[:, : 4 if ball else 2].copy(), weight=normalised_weight(np.arange(1, 18)))
    env = MazeEnv(replace(make_maze(OWN, 1).maze, ball=ball), 1)
    assert set_task(data, env).weight is None


def test_weights_go_with_the_steps_that_are_left():
    from trajstitch.evaluation.audit import _without_steps

    data = random_dataset(0, (4, 2))
    none = np.zeros(6, np.float32)
    seams = Seams(data.row, data.row + 1, none > 0, none, none, none, data.returns)
    left = _without_steps(replace(data, seams=seams, weight=np.float32([1, 3, 1, 0, 0, 1])), np.array([1]))
    np.testing.assert_allclose(left.weight, np.array([1, 1, 0, 0, 1]) / 0.6)


def test_origin_goes_with_the_trajectories():
    data = replace(random_dataset(0, (3, 2, 4)), origin=np.array(["a#0", "a#1", "a#2"]))
    assert data[[2, 0]].origin.tolist() == ["a#2", "a#0"]
    assert data[1:].origin.tolist() == ["a#1", "a#2"]
    assert data.fingerprint == replace(data, origin=None).fingerprint
    other = random_dataset(1, (2,))
    assert concatenate([other, data[:1]]).origin.tolist() == ["", "a#0"]
    assert concatenate([other, other]).origin is None
    with pytest.raises(InputError, match=r"origin has shape \(3,\) for 1 trajectories"):
        replace(other, origin=data.origin)
