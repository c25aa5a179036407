"""Statistics of scores [runs, tasks], against values by hand."""

import numpy as np
import pytest

from trajstitch.evaluation.stats import (
    iqm,
    mean,
    median,
    probability_of_improvement,
    profile,
    std,
    stratified_interval,
)

NAN = float("nan")
TWO = np.array([[1.0, 10.0], [3.0, 30.0]])  # two runs of two tasks
RAGGED = np.array([[1.0, 10.0, 100.0], [3.0, NAN, 300.0]])  # a run of the second task is missing


def test_mean_and_median_are_over_tasks():
    assert mean(TWO) == pytest.approx((2 + 20) / 2)
    assert mean(RAGGED) == pytest.approx((2 + 10 + 200) / 3)
    assert median(RAGGED) == 10


def test_std_is_over_runs():
    assert std(TWO) == pytest.approx((np.sqrt(2) + np.sqrt(200)) / 2)
    assert std(RAGGED) == pytest.approx((np.sqrt(2) + np.sqrt(20_000)) / 2)  # of the tasks with two runs
    assert np.isnan(std(TWO[:1]))


def test_iqm_leaves_out_a_quarter_at_either_end():
    assert iqm(np.arange(8.0).reshape(4, 2)) == pytest.approx(3.5)
    assert iqm(np.array([[0.0, 1, 2, 3, 4, 5, 6, 7000]])) == pytest.approx(3.5)  # not moved by one run
    assert iqm(np.array([[1.0, 2, 3, 100, 7]])) == pytest.approx((2 + 3 + 7) / 3)  # 5/4 is rounded down to 1
    assert iqm(RAGGED) == pytest.approx((3 + 10 + 100) / 3)
    stack = np.stack([TWO, TWO + 1])
    np.testing.assert_allclose(iqm(stack), [iqm(TWO), iqm(TWO) + 1])


def test_a_profile_is_the_share_above_each_threshold():
    np.testing.assert_allclose(profile(TWO, np.array([0.0, 1.0, 9.0, 10.0, 30.0])), [1, 0.75, 0.5, 0.25, 0])
    # Of the task with one run that run counts as much as two of another.
    np.testing.assert_allclose(profile(RAGGED, np.array([5.0, 50.0, 200.0])), [2 / 3, 1 / 3, 1 / 6])


def test_probability_of_improvement_counts_pairs():
    assert probability_of_improvement(TWO, TWO) == 0.5
    assert probability_of_improvement(TWO + 100, TWO) == 1
    ours, theirs = np.array([[1.0], [4.0]]), np.array([[0.0], [4.0], [9.0]])
    # 1 > 0; 4 > 0 and 4 = 4: 2.5 of 6 pairs.
    assert probability_of_improvement(ours, theirs) == pytest.approx(2.5 / 6)
    assert probability_of_improvement(np.array([[5.0], [NAN]]), theirs) == pytest.approx(2 / 3)


def test_runs_are_drawn_within_each_task():
    constant = np.array([[1.0, 100.0], [1.0, 100.0], [1.0, NAN]])  # drawing across tasks would mix 1 and 100
    for statistic in (mean, median, iqm):
        assert stratified_interval(statistic, constant) == pytest.approx((statistic(constant),) * 2)


def test_the_interval_of_a_mean_is_as_wide_as_its_standard_error():
    scores = np.random.default_rng(0).normal(50, 10, (100, 4))
    low, high = stratified_interval(mean, scores)
    assert low < mean(scores) < high
    assert high - low == pytest.approx(2 * 1.96 * 10 / np.sqrt(400), rel=0.12)


def test_intervals_cover_the_truth_as_often_as_they_say():
    generator = np.random.default_rng(1)
    covered = 0
    for draw in range(200):
        low, high = stratified_interval(mean, generator.normal(0, 1, (20, 3)), draws=300, seed=draw)
        covered += low <= 0 <= high
    assert 175 <= covered <= 199  # 95% of 200 is 190


def test_the_interval_of_a_comparison_draws_both():
    low, high = stratified_interval(probability_of_improvement, np.array([[1.0], [4.0]]), np.array([[2.0], [3.0]]))
    assert (low, high) == (0, 1)
    thresholds = np.array([0.0, 2.0, 40.0])
    low, high = stratified_interval(lambda scores: profile(scores, thresholds), TWO)
    np.testing.assert_allclose(low, [1, 0.5, 0])
    np.testing.assert_allclose(high, [1, 1, 0])
