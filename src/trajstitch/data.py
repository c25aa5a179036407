"""Dataset: trajectories in flat arrays; T steps have T+1 observations, so every step has its own successor.

Axis letters, here and everywhere: N transitions, M trajectories, E ensemble members, P policies (seeds),
B batch, S state, A action, T time, K candidates.

    trajectory      0             1
    obs       s0 s1 s2 s3 │ s0 s1 s2          N + M rows; trajectory m owns rows start[m]+m … start[m+1]+m
    action    a0 a1 a2    │ a0 a1             N rows;     trajectory m owns rows start[m]   … start[m+1]-1
    reward    r0 r1 r2    │ r0 r1
    weight    w0 w1 w2    │ w0 w1             optional: how much a step counts when cloned; the mean is 1
    start     0             3         5       M + 1 offsets into the transitions
    terminal  true          false             true: the episode really ended in its last state; false: it was cut

The successor of a step is the next row of `obs`; it is never stored a second time. An observation's row is its
node id in the stitching graph.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from os import PathLike
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajstitch.errors import InputError

Float = NDArray[np.float32]
Int = NDArray[np.int64]
Bool = NDArray[np.bool_]
Info = Mapping[str, str | int | float | bool]


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One episode: T+1 observations, T actions and rewards."""

    obs: Float
    action: Float
    reward: Float
    terminal: bool

    def __post_init__(self) -> None:
        _check_numbers("obs", self.obs, 2, "one vector per state")
        _check_numbers("action", self.action, 2, "one vector per step")
        _check_numbers("reward", self.reward, 1, "one number per step")
        _check_terminal(self.terminal)
        steps = len(self.action)
        if len(self.obs) != steps + 1 or len(self.reward) != steps:
            raise InputError(
                f"a trajectory of {steps} actions needs {steps + 1} observations and {steps} rewards, "
                f"not {len(self.obs)} and {len(self.reward)}: append the last state of the episode"
            )

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, eq=False)
class Seams:
    """Where each step of improved data comes from, and why a stitched one was taken.

    Rows are row numbers of the original data's `obs`; -1 is a state that is not there, because a world model
    predicted it (stitching/imagined.py). `margin`, `spread`, `value_gain` and `landing_error` are 0 for steps that
    are not stitched. The action and reward of a stitched step, in the data set itself, come from the models.
    """

    source: Int  # [N] row the step starts from
    target: Int  # [N] row it lands on
    stitched: Bool  # [N]
    margin: Float  # [N] plausibility: min_i log p_i(landing) - logmeanexp_i log p_i(old target), above 0
    spread: Float  # [N] disagreement of the ensemble members, in units of their predicted std
    value_gain: Float  # [N] value of the landing minus value of the old target, when it was chosen
    return_before: NDArray[np.float64]  # [M] return of the original trajectory with this first state
    # [N] how far from the landing the model says the action leads, in typical steps; nan where no model was asked.
    landing_error: Float | None = None

    def __post_init__(self) -> None:
        if self.landing_error is None:
            unknown = np.where(self.stitched, np.nan, 0).astype(np.float32)
            object.__setattr__(self, "landing_error", unknown)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, as files store them."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def choose(self, step: Any, trajectory: Any) -> Seams:
        """Return the seams of these steps and trajectories."""
        chosen = {k: v[trajectory if k == "return_before" else step] for k, v in self.arrays().items()}
        return Seams(**chosen)


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """M trajectories with N transitions in total; checked when created, read-only afterwards."""

    obs: Float  # [N + M, S]
    action: Float  # [N, A]
    reward: Float  # [N]
    start: Int  # [M + 1]
    terminal: Bool  # [M]
    info: Info = field(default_factory=dict)  # env_id, physics, reference scores, what loading left out
    seams: Seams | None = None  # only in improved data
    weight: Float | None = None  # [N] how much a step counts when cloned: 0 or more, mean 1; None: all the same
    # [M] FILE#EPISODE that each trajectory was read from, whole; "" or None: unknown. It is not part of the
    # fingerprint. Formats that hold more than a Dataset does (videos, other features) carry that along by it.
    origin: NDArray[np.str_] | None = None

    def __post_init__(self) -> None:
        for name, dtype, ndim in _FIELDS:
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype != dtype or array.ndim != ndim:
                raise InputError(f"{name} must be a {ndim}-dimensional {dtype} array, not {_describe(array)}")
            object.__setattr__(self, name, _frozen(array))
        object.__setattr__(self, "info", _checked_info(self.info))
        check_flags("terminal", self.terminal)
        _check_offsets(self)
        for name in ("obs", "action", "reward"):
            check_finite(name, getattr(self, name))
        if self.seams is not None:
            _check_seams(self.seams, self.transitions, len(self))
        if self.weight is not None:
            _check_weight(self.weight, self.transitions)
            object.__setattr__(self, "weight", _frozen(self.weight))
        if self.origin is not None and self.origin.shape != (len(self),):
            raise InputError(f"origin has shape {self.origin.shape} for {len(self)} trajectories; leave it out")

    # -- sizes -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.terminal)

    @property
    def transitions(self) -> int:
        """Number of transitions, N."""
        return len(self.action)

    @property
    def obs_dim(self) -> int:
        """Size of an observation, S."""
        return self.obs.shape[1]

    @property
    def action_dim(self) -> int:
        """Size of an action, A."""
        return self.action.shape[1]

    @property
    def nbytes(self) -> int:
        """Total size of the arrays in bytes."""
        return sum(array.nbytes for array in self.arrays().values())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, as files store them; `weight` only if the data have weights."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        return arrays if self.weight is None else arrays | {"weight": self.weight}

    # -- per trajectory and per transition ---------------------------------------------------------------------

    @cached_property
    def length(self) -> Int:
        """Steps of each trajectory, [M]."""
        return np.diff(self.start)

    @cached_property
    def returns(self) -> NDArray[np.float64]:
        """Undiscounted return of each trajectory, [M], summed in float64."""
        return np.add.reduceat(self.reward, self.start[:-1], dtype=np.float64)

    @cached_property
    def trajectory(self) -> Int:
        """The trajectory each transition belongs to, [N]."""
        return np.repeat(np.arange(len(self)), self.length)

    @cached_property
    def steps_left(self) -> Int:
        """Steps from each transition to the end of its trajectory, counting itself, [N]."""
        return np.repeat(self.start[1:], self.length) - np.arange(self.transitions)

    @cached_property
    def row(self) -> Int:
        """The row of `obs` each transition starts in, [N]; it ends in `row + 1`."""
        return np.arange(self.transitions) + self.trajectory

    @cached_property
    def last_row(self) -> Int:
        """The row of `obs` each trajectory ends in, [M]."""
        return self.start[1:] + np.arange(len(self))

    # -- choosing ----------------------------------------------------------------------------------------------

    @overload
    def __getitem__(self, which: int | np.integer[Any]) -> Trajectory: ...
    @overload
    def __getitem__(self, which: slice | Sequence[int] | NDArray[Any]) -> Dataset: ...
    def __getitem__(
        self, which: int | np.integer[Any] | slice | Sequence[int] | NDArray[Any]
    ) -> Trajectory | Dataset:
        """Return a Trajectory for a number; a Dataset for a slice (a view if possible), a list or a mask."""
        if isinstance(which, (int, np.integer)):
            m = range(len(self))[int(which)]
            a, b = self.start[m], self.start[m + 1]
            return Trajectory(
                self.obs[a + m : b + m + 1], self.action[a:b], self.reward[a:b], bool(self.terminal[m])
            )
        chosen = np.arange(len(self))[which]
        if not len(chosen):
            raise InputError("this selection leaves no trajectory; a data set needs at least one")
        length = self.length[chosen]
        start = np.concatenate([[0], np.cumsum(length)])
        if isinstance(which, slice) and which.step in (None, 1):
            a, b = chosen[0], chosen[-1] + 1
            step: Any = slice(self.start[a], self.start[b])
            row: Any = slice(self.start[a] + a, self.start[b] + b)
        else:
            step = ranges(self.start[chosen], length)
            row = ranges(self.start[chosen] + chosen, length + 1)
        return replace(
            self,
            obs=self.obs[row],
            action=self.action[step],
            reward=self.reward[step],
            start=start,
            terminal=self.terminal[chosen],
            seams=self.seams.choose(step, chosen) if self.seams else None,
            weight=self.choose_weight(step),
            origin=None if self.origin is None else self.origin[chosen],
        )

    def choose_weight(self, step: Any) -> Float | None:
        """Return the weights of these steps, scaled to mean 1 again; None if the data have none."""
        return None if self.weight is None else normalised_weight(self.weight[step])

    def __iter__(self) -> Iterator[Trajectory]:
        return (self[m] for m in range(len(self)))

    def filter(self, keep: Callable[[Trajectory], bool]) -> Dataset:
        """Return the trajectories for which `keep` is true."""
        return self[np.array([keep(trajectory) for trajectory in self], bool)]

    def top(self, percent: float) -> Dataset:
        """Return the best `percent` % of trajectories by return (at least one), in order; ties by number."""
        return self[self.best(percent)]

    def best(self, percent: float) -> Int:
        """Return the numbers of the trajectories that `top` takes."""
        if not 0 < percent <= 100:
            raise InputError(f"percent must be above 0 and at most 100, not {percent:g}")
        count = max(1, round(len(self) * percent / 100))
        return np.sort(np.argsort(-self.returns, kind="stable")[:count])

    def split(self, fraction: float, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Split by whole trajectories: about `fraction` of them in the first part, at least one in each part."""
        if not 0 < fraction < 1:
            raise InputError(f"fraction must be a share above 0 and below 1, not {fraction:g}")
        if len(self) < 2:
            raise InputError("one trajectory cannot be split in two parts; give at least two trajectories")
        count = min(max(round(len(self) * fraction), 1), len(self) - 1)
        order = np.random.default_rng(seed).permutation(len(self))
        return self[np.sort(order[:count])], self[np.sort(order[count:])]

    # -- identity ----------------------------------------------------------------------------------------------

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all arrays; `info` is not part of it."""
        return _hash(self.arrays())

    @cached_property
    def steps_fingerprint(self) -> str:
        """Hash of all arrays but the weights: the same before and after weighing."""
        return _hash({name: array for name, array in self.arrays().items() if name != "weight"})

    def __repr__(self) -> str:
        returns, length = self.returns, self.length
        name = f"{self.info['env_id']}: " if "env_id" in self.info else ""
        weighed = "" if self.weight is None else f", {effective_steps(self.weight):,.0f} effective steps by weight"
        return (
            f"Dataset({name}{len(self):,} trajectories, {self.transitions:,} transitions, "
            f"obs {self.obs_dim}, action {self.action_dim}, return {returns.mean():.1f} ± {returns.std():.1f}, "
            f"length {length.min():,}–{length.max():,}, {self.terminal.sum():,} terminal{weighed})"
        )


_FIELDS = (
    ("obs", np.dtype(np.float32), 2),
    ("action", np.dtype(np.float32), 2),
    ("reward", np.dtype(np.float32), 1),
    ("start", np.dtype(np.int64), 1),
    ("terminal", np.dtype(np.bool_), 1),
)
ARRAYS = tuple(name for name, _, _ in _FIELDS)  # those that every data set has
ROUNDING = 2 * float(np.finfo(np.float32).eps)  # share of a number that float32 may change
_MEAN_TOLERANCE = 1e-3  # weights whose mean is this near to 1 are taken as they are


def concatenate(parts: Sequence[Dataset]) -> Dataset:
    """Join data sets in order; `info` keeps the entries that all parts share, `seams` are left out.

    If a part has weights, each step of a part without any has weight 1.
    """
    if not parts:
        raise InputError("nothing to concatenate; give at least one data set")
    for name in ("obs_dim", "action_dim"):
        if len({getattr(part, name) for part in parts}) > 1:
            sizes = " and ".join(str(getattr(part, name)) for part in parts)
            raise InputError(f"data sets of different {name} ({sizes}) cannot be put together")
    offset = np.cumsum([0] + [part.transitions for part in parts])
    first = parts[0].info
    return Dataset(
        obs=np.concatenate([part.obs for part in parts]),
        action=np.concatenate([part.action for part in parts]),
        reward=np.concatenate([part.reward for part in parts]),
        start=np.concatenate(
            [part.start[:-1] + base for part, base in zip(parts, offset[:-1], strict=True)] + [offset[-1:]]
        ),
        terminal=np.concatenate([part.terminal for part in parts]),
        info={k: v for k, v in first.items() if all(part.info.get(k) == v for part in parts)},
        weight=_joined_weight(parts),
        origin=_joined_origin(parts),
    )


def _joined_origin(parts: Sequence[Dataset]) -> NDArray[np.str_] | None:
    if all(part.origin is None for part in parts):
        return None
    return np.concatenate([np.full(len(part), "") if part.origin is None else part.origin for part in parts])


def _joined_weight(parts: Sequence[Dataset]) -> Float | None:
    if all(part.weight is None for part in parts):
        return None
    ones = (np.ones(part.transitions, np.float32) if part.weight is None else part.weight for part in parts)
    return np.concatenate(list(ones))  # the mean of each is 1, so theirs is too


def from_trajectories(trajectories: Iterable[Trajectory], info: Info | None = None) -> Dataset:
    """Build a Dataset from trajectories; numbers are converted to float32."""
    given = list(trajectories)
    if not given:
        raise InputError("a data set needs at least one trajectory")
    for name in ("obs", "action"):
        widths = {np.shape(getattr(t, name))[1:] for t in given}
        if len(widths) > 1 or len(next(iter(widths))) != 1:
            raise InputError(f"{name} must be vectors of one size in all trajectories, not {sorted(widths)}")
    return Dataset(
        obs=np.concatenate([as_float32(np.asarray(t.obs)) for t in given]),
        action=np.concatenate([as_float32(np.asarray(t.action)) for t in given]),
        reward=np.concatenate([as_float32(np.asarray(t.reward)) for t in given]),
        start=np.cumsum([0] + [len(t) for t in given], dtype=np.int64),
        terminal=np.array([t.terminal for t in given], bool),
        info=info or {},
    )


def normalised_weight(weight: ArrayLike, name: str = "weight") -> Float:
    """Return one weight per step, scaled to mean 1; weights whose mean is 1 already keep their bits.

    InputError if one is negative or not finite, or if all are 0; its message calls them `name`.
    """
    given = np.asarray(weight)
    if given.dtype.kind not in "bfiu" or given.ndim != 1:
        raise InputError(f"{name} must hold one number per step, not {_describe(given)}")
    check_weight_values(name, given)
    if not given.any():
        raise InputError(f"{name} is 0 for all of these steps; choose others, or leave the weights out")
    single = as_float32(given)  # what is too large for it is scaled below
    if abs(single.mean(dtype=np.float64) - 1) <= _MEAN_TOLERANCE:
        return single
    share = np.divide(given, given.max(), dtype=np.float64)  # of the largest, so that no sum overflows
    return (share / share.mean()).astype(np.float32)


def effective_steps(weight: Float) -> float:
    """Return how many steps of equal weight say as much as these: the squared sum over the sum of squares."""
    double = weight.astype(np.float64)
    return float(double.sum() ** 2 / np.square(double).sum())


class Spread(NamedTuple):
    """How columns spread, whatever their units: a float32 column is constant if it varies by rounding alone."""

    std: NDArray[np.float64]
    size: NDArray[np.float64]  # largest absolute value

    @staticmethod
    def of(rows: NDArray[Any]) -> Spread:
        """Compute the spread of these rows."""
        size = np.maximum(np.max(rows, 0), -np.min(rows, 0)).astype(np.float64)
        return Spread(np.std(rows, 0, dtype=np.float64), size)

    @property
    def varies(self) -> Bool:
        """Which columns are not constant."""
        return np.asarray(self.std > ROUNDING * self.size)

    @property
    def unit(self) -> NDArray[np.float64]:
        """What each column is measured in: its std; of a constant one its size, or 1 if that is 0."""
        return np.where(self.varies, self.std, np.where(self.size > 0, self.size, 1.0))


def count_revisits(state: Int, start: Int) -> int:
    """Count the steps whose start state (a row number) was a start state earlier in the same trajectory."""
    visit = np.repeat(np.arange(len(start) - 1), np.diff(start)) * (state.max() + 1) + state
    visit.sort()  # much faster than np.unique
    return int((visit[1:] == visit[:-1]).sum())


def repeated(rows: Float) -> Bool:
    """Mark the rows that equal an earlier row, bit for bit."""
    words = np.ascontiguousarray(rows).view(np.uint32)
    odd = np.random.default_rng(0).integers(1 << 62, size=(words.shape[1],), dtype=np.uint64) | np.uint64(1)
    key = np.zeros(len(words), np.uint64)
    for column, factor in zip(words.T, odd, strict=True):  # a multiplicative hash; overflow is intended
        key = (key ^ column) * factor
        key ^= key >> np.uint64(29)
    order = np.argsort(key, kind="stable")
    alike = np.flatnonzero(np.diff(key[order]) == 0)
    again = np.zeros(len(words), bool)
    again[order[alike + 1]] = (words[order[alike]] == words[order[alike + 1]]).all(1)
    return again


def check_dataset(name: str, data: object) -> None:
    """Raise InputError if an argument is no Dataset, such as the name of a file in place of what is in it."""
    if not isinstance(data, Dataset):
        named = isinstance(data, str | PathLike)
        raise InputError(
            f"{name} must be a Dataset, not {repr(data) if named else f'a {_describe(data)}'}; "
            f"ts.load({str(data) if named else 'demo'!r}) reads one, ts.from_trajectories makes one"
        )


def as_float32(array: NDArray[Any]) -> Float:
    """Return numbers as float32, unchanged if they are; those too large become inf, which `check_finite` names."""
    with np.errstate(over="ignore"):
        return array.astype(np.float32, copy=False)


def check_finite(name: str, array: NDArray[Any]) -> None:
    """Raise InputError if a number is nan or inf; the message names the first one and every such column."""
    flat = array.reshape(-1)
    with np.errstate(all="ignore"):
        if np.isfinite(flat @ flat) or np.isfinite(array).all():
            return  # a finite sum of squares has only finite terms; this is fast and copies nothing
    bad = np.argwhere(~np.isfinite(array))
    place = ", ".join(map(str, bad[0]))
    columns = ", ".join(map(str, np.unique(bad[:, 1]))) if array.ndim == 2 else ""
    raise InputError(
        f"{name}[{place}] is {array[tuple(bad[0])]}, one of {len(bad)} values that are not finite"
        f"{f' (columns {columns})' if columns else ''}; remove those episodes or correct the values"
    )


def check_flags(name: str, array: NDArray[Any]) -> Bool:
    """Return flags as bool; InputError if one is neither 0 nor 1, which the byte of a bool can be too."""
    values = np.ascontiguousarray(array).view(np.uint8) if array.dtype == bool else array
    if (odd := np.flatnonzero((values != 0) & (values != 1))).size:
        raise InputError(
            f"{name}[{odd[0]}] is {values.reshape(-1)[odd[0]]:g}, one of {len(odd)} flags that are none; "
            f"{name} must hold only 0 and 1 (or false and true)"
        )
    return array.astype(bool, copy=False)


def info_horizon(info: Info) -> int | None:
    """Return the time limit of episodes that `info` names as env_horizon, or None; InputError if it is none."""
    value = info.get("env_horizon")
    if value is None:
        return None
    if not isinstance(value, int | float) or not 1 <= value < 1e9 or value != int(value):
        raise InputError(f"env_horizon in the file's info is {value!r}; it must be a number of steps, at least 1")
    return int(value)


def check_weight_values(name: str, array: NDArray[Any]) -> None:
    """Raise InputError if a weight is nan, inf or below 0; the message names the first one."""
    check_finite(name, array.astype(np.float64) if array.dtype.kind != "f" else array)
    if (below := np.flatnonzero(array < 0)).size:
        raise InputError(
            f"{name}[{below[0]}] is {array[below[0]]:g}, one of {len(below)} weights below 0; "
            "correct them: a step that should not count has weight 0"
        )


def _checked_info(info: Info) -> dict[str, str | int | float | bool]:
    """Return `info` with Python's own numbers; InputError if an entry is none that every format can hold."""
    checked = {k: v.item() if isinstance(v, np.generic) else v for k, v in dict(info).items()}
    for name, value in checked.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | bool):
            raise InputError(
                f"info[{name!r}] is a {_describe(value)}; every entry needs a name and is a text, a number, true "
                "or false: write it as text, or leave it out"
            )
    return checked


def _check_offsets(data: Dataset) -> None:
    start, steps, many = data.start, len(data.action), len(data.terminal)
    if many < 1 or len(start) != many + 1:
        raise InputError(
            f"start has {len(start)} offsets for {many} trajectories; it needs one more than there are "
            "trajectories, and at least one trajectory"
        )
    if start[0] != 0 or start[-1] != steps:
        raise InputError(
            f"start runs from {start[0]} to {start[-1]}; it must run from 0 to the {steps} transitions"
        )
    if (short := np.flatnonzero(np.diff(start) < 1)).size:
        raise InputError(f"trajectory {short[0]} has no step; every trajectory needs at least one: remove it")
    if len(data.reward) != steps:
        raise InputError(f"reward has {len(data.reward)} rows for {steps} actions; they must be equal")
    if len(data.obs) != steps + many:
        raise InputError(
            f"obs has {len(data.obs)} rows; {steps} transitions in {many} trajectories need {steps + many}: "
            "each trajectory owns its last state too"
        )
    if not data.obs.shape[1] or not data.action.shape[1]:
        raise InputError("obs and action need at least one column each")


def _check_seams(seams: Seams, steps: int, many: int) -> None:
    for name, array in seams.arrays().items():
        kinds = {"source": "iu", "target": "iu", "stitched": "b"}.get(name, "f")
        if array.dtype.kind not in kinds:
            raise InputError(f"seams {name} holds {array.dtype}, which it cannot be; the file is damaged")
        if array.shape != ((many,) if name == "return_before" else (steps,)):
            raise InputError(
                f"seams {name} has shape {array.shape} for {steps} transitions in {many} trajectories"
            )


def _check_weight(weight: Float, steps: int) -> None:
    if not isinstance(weight, np.ndarray) or weight.dtype != np.float32 or weight.shape != (steps,):
        raise InputError(
            f"weight must be a float32 array of one number for each of the {steps} transitions, "
            f"not {_describe(weight)}; trajstitch.data.normalised_weight makes one of a list of numbers"
        )
    check_weight_values("weight", weight)
    mean = weight.mean(dtype=np.float64)
    if abs(mean - 1) > _MEAN_TOLERANCE:
        raise InputError(f"weight has mean {mean:.4g}, not 1; scale it with trajstitch.data.normalised_weight")


def _check_numbers(name: str, value: ArrayLike, ndim: int, what: str) -> None:
    """Raise InputError unless this is an array of numbers with so many dimensions."""
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of different lengths
        raise InputError(f"{name} must be an array of {what}, all of one size; correct its rows") from error
    if array.dtype.kind not in "bfiu" or array.ndim != ndim:
        raise InputError(f"{name} must be an array of {what}, not {_given(array, value)}")


def _check_terminal(terminal: object) -> None:
    """Raise InputError unless this is one flag: false or true, 0 or 1."""
    flag = np.asarray(terminal)
    if flag.ndim or flag.dtype.kind not in "bfiu" or flag not in (0, 1):
        raise InputError(
            f"terminal must be one bool for the whole episode, not {_given(flag, terminal)}: True if the episode "
            "really ended in its last state, False if it was cut; of flags per step, give the last one"
        )


def _given(array: NDArray[Any], value: object) -> str:
    return _describe(array) if array.ndim else repr(value)


def ranges(begin: Int, length: Int) -> Int:
    """Concatenate the ranges begin[i], …, begin[i] + length[i] - 1."""
    ends = np.cumsum(length)
    return np.arange(ends[-1]) + np.repeat(begin - (ends - length), length)


def _hash(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, array in arrays.items():
        digest.update(f"{name}{array.shape}{array.dtype.str}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def _describe(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return type(value).__name__


def change_table(data: Dataset) -> dict[str, Any]:
    """Return the training table of the dynamics, one row per transition: the state and its change."""
    obs = data.obs[data.row]
    return {"given": obs, "change": data.obs[data.row + 1] - obs}


def step_table(data: Dataset) -> dict[str, Any]:
    """Return one row per transition: obs, action, reward, next_obs, `done` (1 where the episode really ended)."""
    done = np.zeros(data.transitions, np.float32)
    done[data.start[1:] - 1] = data.terminal
    return {
        "obs": data.obs[data.row],
        "action": data.action,
        "reward": data.reward,
        "next_obs": data.obs[data.row + 1],
        "done": done,
    }
