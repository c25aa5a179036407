"""Invariants: what must hold of every improved data set; checked from the data alone before anything is written.

    rows         every state is the recorded one that its seams name; a step lands where the next one starts
    steps        a step that is not stitched is the recorded one, bit for bit
    numbers      everything is finite, and actions stay within the range of the recorded ones
    ends         nothing continues past a real end, and `terminal` says where the last state is one
    acceptance   a trajectory is as recorded, or was replaced by ones that are worth more by the rule
    loops        of the planner greedy: a trajectory comes back to a state at most max_repeats times

A row of -1 is a state that was not recorded, but comes from a model: it has no recorded state to be equal to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Bool, Dataset, Float, Int, Seams
from trajstitch.errors import InvariantError
from trajstitch.stitching.greedy import Ends

if TYPE_CHECKING:
    from trajstitch.stitching.current import Accepted
    from trajstitch.stitching.improve import Improve, Result

_BLOCK = 1 << 16  # rows compared at once
_ROUNDING = 1e-5  # share of a range by which float32 may exceed it
_SUMMING = 1e-6  # share of the sum of absolute rewards by which two sums of the same rewards may differ


def check_result(data: Dataset, result: Result, config: Improve, own_actions: bool = False) -> None:
    """Raise InvariantError unless the improved data, and the plan if there is one, keep every invariant.

    The actions of a caller's own models (`own_actions`) may leave the range of the recorded ones.
    """
    for improved in (result.dataset, result.plan):
        if improved is not None:
            check_steps(data, improved, own_actions)
    if "imagined" not in result.dataset.info:  # imagined trajectories replace none
        check_acceptance(data, result.dataset, result.accepted, config)
    if config.planner == "greedy" and config.max_repeats is not None:
        check_loops(data, result.dataset, config.max_repeats)


def check_loops(data: Dataset, improved: Dataset, max_repeats: int) -> None:
    """Raise InvariantError unless no trajectory is in a state more than `max_repeats` times again."""
    seams = improved.seams
    assert seams is not None
    row = np.insert(seams.source, improved.start[1:], seams.target[improved.start[1:] - 1])
    owner = np.repeat(np.arange(len(improved)), improved.length + 1)
    visit = np.sort(owner * len(data.obs) + row)
    again = visit[max_repeats + 1 :][visit[max_repeats + 1 :] == visit[: -max_repeats - 1]]
    _demand(
        ~np.isin(np.arange(len(improved)), again // len(data.obs)), "it is in a state more often than max_repeats"
    )


def check_steps(data: Dataset, improved: Dataset, own_actions: bool = False) -> None:
    """Raise InvariantError unless rows, steps, numbers and ends are as they must be."""
    seams = improved.seams
    if seams is None:
        raise InvariantError("the improved data have no seams, so that nothing says where their states come from")
    _check_rows(data, improved, seams)
    _check_recorded(data, improved, seams)
    _check_numbers(data, improved, seams, own_actions)
    _check_ends(data, improved, seams)


def check_acceptance(data: Dataset, improved: Dataset, accepted: tuple[Accepted, ...], config: Improve) -> None:
    """Raise InvariantError unless every replaced trajectory is worth more than the one before, by the rule."""
    seams = improved.seams
    assert seams is not None
    if len(improved) != len(data):
        raise InvariantError(f"{len(data)} trajectories were recorded but {len(improved)} are to be written")
    first = seams.source[improved.start[:-1]]
    _demand((first < 0) | (first == data.row[data.start[:-1]]), "it does not begin where the recorded one does")
    total, length, terminal = data.returns.copy(), data.length.copy(), data.terminal.copy()
    size = np.maximum(_absolute(data), _absolute(improved))
    replaced = np.zeros(len(data), bool)
    for entry in accepted:
        who = entry.trajectory
        same = (length[who] == entry.length[0]) & (terminal[who] == entry.terminal[0])
        same &= _near(total[who], entry.total[0], size[who])
        _demand(same, "what it was compared with is not what it replaced", who)
        _check_entry(entry, config, config.horizon(data))
        total[who], length[who], terminal[who] = entry.total[1], entry.length[1], entry.terminal[1]
        size[who] = np.maximum(size[who], np.abs(total[who]))
        replaced[who] = True
    same = (length == improved.length) & (terminal == improved.terminal) & _near(total, improved.returns, size)
    _demand(same, "its steps are not those that were accepted or recorded")
    stitched = np.add.reduceat(seams.stitched, improved.start[:-1], dtype=np.int64)
    _demand(replaced | (stitched == 0), "it has stitched steps that were never accepted")
    if config.max_changes is not None:
        _demand(stitched <= config.max_changes, "it has more stitched steps than max_changes")
    _demand(_near(seams.return_before, data.returns, _absolute(data)), "its return_before is not the recorded one")


def _check_entry(entry: Accepted, config: Improve, horizon: int) -> None:
    """Check the rule for what one iteration accepted, with what cut ends are worth if they count."""
    worth = entry.total
    if config.value_cut_ends:
        ends = Ends(entry.value.ravel(), config.discount, horizon)
        mean = entry.total / entry.length
        state = np.arange(entry.value.size)
        end = ends.worth(state, entry.terminal.ravel(), entry.length.ravel(), mean.ravel())
        worth = worth + end.reshape(worth.shape)
    better = worth[1] > worth[0] + config.accept * np.abs(worth[0])
    _demand(better, "it was accepted though it is not worth more by the rule", entry.trajectory)
    _demand(entry.length[1] <= horizon, "it was accepted though it is longer than max_length", entry.trajectory)


def _check_rows(data: Dataset, improved: Dataset, seams: Seams) -> None:
    rows = len(data.obs)
    for row in (seams.source, seams.target):
        _demand((row >= -1) & (row < rows), "its seams name a row that the original data do not have", improved)
    inside = np.ones(improved.transitions, bool)
    inside[improved.start[1:] - 1] = False
    inside = inside[:-1]
    chained = ~inside | (seams.target[:-1] == seams.source[1:])
    _demand(np.append(chained, True), "a step does not start in the row where the step before it lands", improved)
    for row, shift in ((seams.source, 0), (seams.target, 1)):
        for part in _parts(improved.transitions):
            named = np.flatnonzero(row[part] >= 0)
            same = np.ones(part.stop - part.start, bool)
            new = improved.obs[improved.row[part][named] + shift]
            same[named] = _same_bits(new, data.obs[row[part][named]])
            _demand(same, "a state is not the recorded one that its seams name", improved, part.start)


def _check_recorded(data: Dataset, improved: Dataset, seams: Seams) -> None:
    step = np.full(len(data.obs), -1)  # the step that was recorded from each row; -1: none
    step[data.row] = np.arange(data.transitions)
    for part in _parts(improved.transitions):
        source = seams.source[part]
        recorded: Int = np.where(source >= 0, step[source], -1)
        leads = seams.stitched[part] | (recorded >= 0) & (seams.target[part] == source + 1)
        _demand(leads, "a step is not marked as stitched, but was never recorded", improved, part.start)
        kept = np.flatnonzero(~seams.stitched[part])
        same = np.ones(part.stop - part.start, bool)
        same[kept] = _same_bits(improved.action[part][kept], data.action[recorded[kept]])
        same[kept] &= _same_bits(improved.reward[part][kept, None], data.reward[recorded[kept], None])
        _demand(same, "a step that is not stitched differs from the recorded one", improved, part.start)


def _check_numbers(data: Dataset, improved: Dataset, seams: Seams, own_actions: bool) -> None:
    state = _whole(np.isfinite(improved.obs))
    finite = _whole(np.isfinite(improved.action)) & np.isfinite(improved.reward)
    finite &= state[improved.row] & state[improved.row + 1]
    for array in (seams.margin, seams.spread, seams.value_gain):
        finite &= np.isfinite(array)
    assert seams.landing_error is not None
    finite &= np.isfinite(seams.landing_error) | (seams.stitched & np.isnan(seams.landing_error))  # nan: not asked
    _demand(finite, "a number of a step or of its seam is not finite, as with states of extreme size", improved)
    if not own_actions:
        low, high = data.action.min(0), data.action.max(0)
        slack = _ROUNDING * (high - low)
        inside = _whole((improved.action >= low - slack) & (improved.action <= high + slack))
        _demand(inside, "an action lies outside the range of the recorded actions", improved)


def _check_ends(data: Dataset, improved: Dataset, seams: Seams) -> None:
    ended = np.zeros(len(data.obs) + 1, bool)  # the last entry is that of row -1, of which nothing is known
    ended[data.last_row[data.terminal]] = True
    _demand(~ended[seams.source], "it continues past a state in which the recorded episode really ended", improved)
    last = seams.target[improved.start[1:] - 1]
    right = (last < 0) | (improved.terminal == ended[last])
    _demand(right, "its terminal flag is not that of the state it ends in")


def _absolute(data: Dataset) -> NDArray[np.float64]:
    """Sum the absolute rewards of each trajectory, [M]."""
    return np.add.reduceat(np.abs(data.reward), data.start[:-1], dtype=np.float64)


def _near(a: NDArray[np.float64], b: NDArray[np.float64], size: NDArray[np.float64]) -> Bool:
    """Whether two sums of the same rewards are the same, but for the order of summing."""
    return np.abs(a - b) <= _SUMMING * size


def _same_bits(a: Float, b: Float) -> Bool:
    """Compare rows bit for bit, [rows]."""
    return _whole(np.ascontiguousarray(a).view(np.uint32) == np.ascontiguousarray(b).view(np.uint32))


def _whole(table: Bool) -> Bool:
    """Whether all of a row is true, [rows]."""
    whole: Bool = np.logical_and.reduce(table, axis=1)
    return whole


def _parts(rows: int) -> Iterator[slice]:
    return (slice(a, min(a + _BLOCK, rows)) for a in range(0, rows, _BLOCK))


def _demand(holds: Bool, what: str, of: Dataset | Int | None = None, offset: int = 0) -> None:
    """Raise InvariantError where `holds` is false first.

    Its entries are the steps of a data set from number `offset` on, trajectories of these numbers, or all
    trajectories.
    """
    if not holds.all():
        _fail(int(np.argmin(holds)) + offset, what, of)


def _fail(number: int, what: str, of: Dataset | Int | None) -> NoReturn:
    place = f"trajectory {number if of is None or isinstance(of, Dataset) else of[number]}"
    if isinstance(of, Dataset):
        trajectory = int(of.trajectory[number])
        place = f"trajectory {trajectory}, step {number - of.start[trajectory]}"
    raise InvariantError(
        f"{place} of the improved data breaks an invariant: {what}; nothing was written, please report this"
    )
