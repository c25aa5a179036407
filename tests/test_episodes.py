"""What is said of episodes, against plain loops and cases whose answer is known."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from trajstitch.data import Trajectory as T
from trajstitch.data import concatenate, from_trajectories, normalised_weight
from trajstitch.episodes import episode_table
from worlds import datasets, random_dataset


def walk(steps=20, noise=0.0, speed=0.1, seed=0, reward=1.0):
    """A smooth walk along a line; its action is a slow wave."""
    rng = np.random.default_rng(seed)
    place = speed * np.arange(steps + 1) + noise * rng.normal(size=steps + 1)
    action = np.sin(np.arange(steps) / 5)[:, None] + 0 * rng.normal(size=(steps, 1))
    return T(place[:, None], action, np.full(steps, reward), False)


@given(datasets())
@settings(deadline=None, max_examples=20)
def test_columns_agree_with_plain_loops(data):
    table = episode_table(data)
    half = np.ptp(data.action, axis=0) / 2
    half = np.where(half > 0, half, 1)
    for m, one in enumerate(data):
        row = table.rows()[m]
        change = np.diff(one.action, axis=0) / half
        assert row["length"] == len(one)
        assert row["return"] == pytest.approx(one.reward.astype(float).sum(), rel=1e-5, abs=1e-5)
        assert row["jumps"] == sum(np.abs(c).max() > 1 for c in change)
        if len(one) > 3:
            third = np.diff(one.action / half, 3, axis=0)
            assert row["jerk"] == pytest.approx(np.linalg.norm(third, axis=1).mean(), rel=1e-4)
        else:
            assert row["jerk"] is None
        assert row["weight"] is None
        assert row["terminal"] == one.terminal
        assert row["duplicate"] is None


def test_a_sound_set_has_no_outlier():
    data = from_trajectories([walk(20 + m % 3, 0.01, seed=m) for m in range(12)])
    assert episode_table(data).outlier == {}


def test_every_defect_is_named():
    """One episode per defect, among twelve that are alike."""
    good = [walk(20, 0.01, seed=m) for m in range(12)]
    still = walk(20, 0.01, seed=20)
    still.obs[5:] = still.obs[5]
    jumpy = walk(20, 0.01, seed=21)
    jumpy.action[::2] *= -1
    full = walk(20, 0.01, seed=22)
    full.action[:] = 1.5
    full.action[0] = -1.5  # the range of all actions
    far = walk(20, 0.01, seed=23)
    far.obs[:] += 30
    poor = walk(20, 0.01, seed=24, reward=-5.0)
    short = walk(6, 0.01, seed=25)
    data = from_trajectories([*good, still, jumpy, full, far, poor, short, good[3]])
    table = episode_table(data)
    why = {m: " ".join(words) for m, words in table.outlier.items()}
    assert set(why) == set(range(12, 19))
    assert why[12].startswith("idle 0.75, above the usual 0")
    assert "jerk" in why[13]
    assert "saturation" in why[14]
    assert why[15].startswith("distance")
    assert why[16] == "return -100, below the usual 20"
    assert why[17].startswith("length 6, below the usual 20")
    assert why[18] == "the same as episode 3"
    assert table.rows()[18]["duplicate"] == 3


def test_success_is_known_where_rewards_are_sparse():
    sparse = [walk(5, reward=0.0, seed=m) for m in range(5)]
    for one in sparse[:4]:
        one.reward[-1] = 1
    table = episode_table(from_trajectories(sparse))
    assert [row["success"] for row in table.rows()] == [True] * 4 + [False]
    assert "no success" in table.outlier[4]
    dense = episode_table(random_dataset(0, (4, 4)))
    assert not dense.known("success")


def test_without_rewards_and_with_weights():
    data = from_trajectories([walk(5, 0.1, seed=m, reward=0.0) for m in range(3)])
    table = episode_table(data)
    assert not table.known("return")
    assert table.rows()[0]["return"] is None
    weighed = replace(data, weight=normalised_weight(np.repeat([0, 1, 2], 5)))
    assert [row["weight"] for row in episode_table(weighed).rows()] == [0, 1, 2]


def test_distance_counts_other_episodes_only():
    data = random_dataset(0, (30,))
    assert not episode_table(data).known("distance")  # there is no other
    twice = concatenate([data, data])
    assert episode_table(twice).column["distance"].tolist() == pytest.approx([0, 0], abs=1e-2)
