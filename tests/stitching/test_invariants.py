"""Each invariant of improved data notices what it is for, on a case small enough to compute by hand."""

import dataclasses

import numpy as np
import pytest

from trajstitch.data import Dataset, Seams
from trajstitch.errors import InvariantError
from trajstitch.stitching.current import Accepted
from trajstitch.stitching.improve import Improve, Result
from trajstitch.stitching.invariants import check_loops, check_result
from worlds import random_dataset

# Trajectory 0 goes rows 0 1 2, is stitched from row 2 to row 7 of trajectory 1, and ends as that one, in row 9.
SOURCE = [0, 1, 2, 7, 8, 5, 6, 7, 8, 10, 11, 12]
TARGET = [1, 2, 7, 8, 9, 6, 7, 8, 9, 11, 12, 13]
RECORDED = [0, 1, -1, 6, 7, 4, 5, 6, 7, 8, 9, 10]  # the recorded step of each; -1: stitched
PLAIN = Improve(value_cut_ends=False, max_length=9)
ENDS = Improve(value_cut_ends=True, max_length=9)


def recorded() -> Dataset:
    data = random_dataset(0, [4, 4, 3], obs_dim=2, action_dim=2)
    reward = np.array([1, 1, 1, 1, 0, 0, 3, 4, 1, 1, 1], np.float32)
    return dataclasses.replace(data, reward=reward, terminal=np.array([False, True, False]))


def stitched() -> tuple[Dataset, Result]:
    """The data, and what was made of them: a return of 1 + 1 + 2 + 3 + 4 = 11 in place of 4."""
    data = recorded()
    step = np.array(RECORDED)
    new = step < 0
    action = np.where(new[:, None], np.float32(0.1), data.action[step])
    reward = np.where(new, np.float32(2), data.reward[step])
    margin = np.where(new, 0.5, 0).astype(np.float32)
    seams = Seams(np.array(SOURCE), np.array(TARGET), new, margin, margin, margin, data.returns.copy())
    rows = np.insert(SOURCE, [5, 9, 12], [9, 9, 13])
    terminal = np.array([True, True, False])
    improved = Dataset(data.obs[rows], action, reward, np.array([0, 5, 9, 12]), terminal, seams=seams)
    accepted = Accepted(
        np.array([0]),
        total=np.array([[4.0], [11.0]]),
        length=np.array([[4], [5]]),
        terminal=np.array([[False], [True]]),
        value=np.array([[2.0], [0.0]]),
    )
    return data, Result(improved, [], accepted=(accepted,))


def changed(name: str, where: object, value: object) -> Result:
    """The result with other numbers in an array of its data, its seams or its accepted, such as seams.margin."""
    result = stitched()[1]
    part, _, name = name.partition(".")
    owner = {"data": result.dataset, "seams": result.seams, "accepted": result.accepted[0]}[part]
    array = getattr(owner, name).copy()
    array[where] = value
    if part == "accepted":
        return dataclasses.replace(result, accepted=(owner._replace(**{name: array}),))
    if part == "seams":
        seams = dataclasses.replace(owner, **{name: array})
        return dataclasses.replace(result, dataset=dataclasses.replace(result.dataset, seams=seams))
    dataset = dataclasses.replace(owner)
    object.__setattr__(dataset, name, array)  # past the checks of Dataset, as a defect could be
    return dataclasses.replace(result, dataset=dataset)


@pytest.mark.parametrize("config", [PLAIN, ENDS])
def test_a_sound_result_passes(config):
    data, result = stitched()
    check_result(data, result, config)
    check_result(data, dataclasses.replace(result, plan=result.dataset), config)


@pytest.mark.parametrize(
    ("mutation", "sentence"),
    [
        (("data.obs", (2, 0), 9.0), "trajectory 0, step 2 .* a state is not the recorded one"),
        (
            ("data.obs", (5, 1), np.nextafter(np.float32(recorded().obs[9, 1]), 9)),
            "step 4 .* not the recorded one",
        ),
        (("seams.source", 3, 14), "row that the original data do not have"),
        (("seams.target", 4, -2), "row that the original data do not have"),
        (("seams.source", 3, 6), "step 2 .* does not start in the row where the step before it lands"),
        (("data.action", (7, 1), 0.0), "trajectory 1, step 2 .* not stitched differs"),
        (("data.reward", 9, 1.0000001), "trajectory 2, step 0 .* not stitched differs"),
        (("seams.stitched", 2, False), "trajectory 0, step 2 .* not marked as stitched, but was never recorded"),
        (("data.reward", 2, np.nan), "step 2 .* not finite"),
        (("data.action", (2, 0), np.inf), "step 2 .* not finite"),
        (("seams.margin", 2, np.inf), "step 2 .* not finite"),
        (("seams.landing_error", 2, np.inf), "step 2 .* not finite"),
        (("seams.landing_error", 3, np.nan), "step 3 .* not finite"),
        (("data.action", (2, 0), 1.1), "step 2 .* outside the range of the recorded actions"),
        (("data.terminal", 0, False), "trajectory 0 .* terminal flag"),
        (("data.terminal", 2, True), "trajectory 2 .* terminal flag"),
        (("seams.return_before", 1, 8.0), "trajectory 1 .* return_before"),
        (("accepted.trajectory", 0, 1), "trajectory 1 .* not what it replaced"),
        (("accepted.total", (0, 0), 3.0), "trajectory 0 .* not what it replaced"),
        (("accepted.total", (1, 0), 12.0), "trajectory 0 .* not those that were accepted or recorded"),
        (("accepted.total", (1, 0), 4.4), "trajectory 0 .* not worth more by the rule"),
        (("accepted.length", (1, 0), 4), "trajectory 0 .* not those that were accepted or recorded"),
        (("accepted.length", (1, 0), 10), "trajectory 0 .* longer than max_length"),
    ],
)
def test_each_invariant_notices(mutation, sentence):
    data, result = stitched()[0], changed(*mutation)
    with pytest.raises(InvariantError, match=sentence) as failure:
        check_result(data, result, PLAIN)
    assert "nothing was written" in str(failure.value)


def test_the_plan_is_checked_too():
    data, result = stitched()
    broken = changed("data.action", (7, 1), 0.0).dataset
    with pytest.raises(InvariantError, match="trajectory 1, step 2"):
        check_result(data, dataclasses.replace(result, plan=broken), PLAIN)


def test_nothing_may_continue_past_a_real_end():
    """With the flags of the original turned, trajectory 1 of the result continues past a real end."""
    data, result = stitched()
    cut = dataclasses.replace(data, terminal=np.array([False, False, False]))
    with pytest.raises(InvariantError, match="terminal flag"):
        check_result(cut, result, PLAIN)
    ended = np.insert(recorded().start, 2, 6)  # the original's second episode really ended after two steps
    split = dataclasses.replace(
        recorded(),
        obs=np.insert(recorded().obs, 8, 0, axis=0),
        start=ended,
        terminal=np.array([False, True, True, False]),
    )
    seams = result.seams
    rows = {name: row + (row > 7) for name, row in (("source", seams.source), ("target", seams.target))}
    moved = dataclasses.replace(
        result.dataset, seams=dataclasses.replace(seams, stitched=np.ones(12, bool), **rows)
    )
    with pytest.raises(InvariantError, match="trajectory 0, step 3 .* past a state in which"):
        check_result(split, dataclasses.replace(result, dataset=moved), PLAIN)


def test_cut_ends_count_in_the_rule():
    """The old trajectory is cut with 5 steps left; its end is worth its own mean reward for each of them, 5."""
    data, result = stitched()
    high = changed("accepted.value", (0, 0), 1e6)
    check_result(data, high, ENDS)  # 4 + 5 = 9, and 11 is above 1.1 * 9
    dear = dataclasses.replace(ENDS, accept=0.3)
    check_result(data, result, dataclasses.replace(dear, value_cut_ends=False))
    with pytest.raises(InvariantError, match="not worth more by the rule"):
        check_result(data, high, dear)


def test_what_was_never_accepted_is_not_written():
    data, result = stitched()
    with pytest.raises(InvariantError, match="trajectory 0 .* not those that were accepted or recorded"):
        check_result(data, dataclasses.replace(result, accepted=()), PLAIN)
    many = changed("seams.stitched", slice(0, 5), True)
    with pytest.raises(InvariantError, match="more stitched steps than max_changes"):
        check_result(data, many, dataclasses.replace(PLAIN, max_changes=4))
    with pytest.raises(InvariantError, match="trajectory 1 .* stitched steps that were never accepted"):
        check_result(data, changed("seams.stitched", 5, True), PLAIN)
    with pytest.raises(InvariantError, match="2 are to be written"):
        check_result(data, dataclasses.replace(result, dataset=result.dataset[:2]), PLAIN)
    with pytest.raises(InvariantError, match="trajectory 0 .* does not begin where"):
        check_result(data, dataclasses.replace(result, dataset=result.dataset[np.array([1, 0, 2])]), PLAIN)
    with pytest.raises(InvariantError, match="no seams"):
        check_result(data, dataclasses.replace(result, dataset=data), PLAIN)


def test_states_of_a_model_need_no_recorded_row():
    """Row -1 lifts the comparison of that state, and nothing else."""
    data, result = stitched()
    improved, seams = result.dataset, result.seams
    obs = improved.obs.copy()
    obs[2] = 9.0  # the state after step 1, from which step 2 starts
    target, source, new = seams.target.copy(), seams.source.copy(), seams.stitched.copy()
    target[1] = source[2] = -1
    new[1] = True
    rows = dataclasses.replace(seams, source=source, target=target, stitched=new)
    check_result(
        data, dataclasses.replace(result, dataset=dataclasses.replace(improved, obs=obs, seams=rows)), PLAIN
    )
    obs[3] = 9.0  # row 7, which was recorded
    with pytest.raises(InvariantError, match="step 3 .* not the recorded one"):
        check_result(
            data, dataclasses.replace(result, dataset=dataclasses.replace(improved, obs=obs, seams=rows)), PLAIN
        )
    unmarked = dataclasses.replace(rows, stitched=seams.stitched)
    with pytest.raises(InvariantError, match="step 1 .* never recorded"):
        check_result(
            data, dataclasses.replace(result, dataset=dataclasses.replace(improved, seams=unmarked)), PLAIN
        )


def test_a_callers_own_actions_may_leave_the_range():
    data, result = stitched()[0], changed("data.action", (2, 0), 1.1)
    check_result(data, result, PLAIN, own_actions=True)


def test_a_loop_is_noticed():
    """Rows 5 6 7 8 9 become 5 6 5 8 9, with a step that is stitched from 6 back to 5."""
    data, result = stitched()
    check_loops(data, result.dataset, 0)
    source, target = np.array(SOURCE), np.array(TARGET)
    source[7], target[6] = 5, 5
    looped = dataclasses.replace(
        result.dataset, seams=dataclasses.replace(result.seams, source=source, target=target)
    )
    with pytest.raises(InvariantError, match="trajectory 1 .* more often than max_repeats"):
        check_loops(data, looped, 0)
    check_loops(data, looped, 1)
    target[3], source[4], target[4] = 2, 2, 1  # the first goes 0 1 2 7 2 1: its last state counts too
    with pytest.raises(InvariantError, match="trajectory 0 .* more often than max_repeats"):
        check_loops(data, dataclasses.replace(result.dataset, seams=dataclasses.replace(looped.seams)), 0)
