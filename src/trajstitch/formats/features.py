"""Features: which columns of a robot's recording are observations, actions, rewards and ends; frames into steps.

A frame is a state and the action taken in it. An episode of T frames has T states, hence T - 1 steps:

    frame     0  1  2  3
    obs      s0 s1 s2 s3        all are kept
    action   a0 a1 a2  ·        where the last action led is not recorded, so it is left out
    reward   r0 r1 r2+r3        the last reward goes to the step before: an episode keeps its return
    done      0  0  ended       if the last frame or the one before is done
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajstitch.data import Dataset, Float, Info, Int, Seams, check_finite, normalised_weight
from trajstitch.errors import InputError

Frames = Mapping[str, NDArray[Any]]  # feature: one row per frame
RewardRule = Callable[[Frames], ArrayLike]  # the frames of an episode -> one reward per frame
WEIGHT = "weight"  # a feature of one number: how much a step counts when cloned
SEAM = "seam."  # in front of the columns of improved data
SUCCESS = "success-at-end"  # a rule by name: 1 for the last step of an episode that succeeds, and 0 otherwise


@dataclass(frozen=True)
class Features:
    """What to take from a file whose features have names; empty: what is usual in its format."""

    obs: tuple[str, ...] = ()  # put one after another into one vector
    action: tuple[str, ...] = ()
    reward_from: str | RewardRule | None = None  # a feature, success-at-end, or a function of an episode's frames
    done_from: str | None = None  # a feature: the episode really ends there
    filter_key: str | None = None  # of robomimic: only the demonstrations it names

    @property
    def chosen(self) -> list[str]:
        """Names of the choices that are not the usual ones."""
        return [name for name, value in vars(self).items() if value]

    @property
    def note(self) -> dict[str, str]:
        """What data are to remember of the choice, so that they can be written as they were read."""
        rule = "a function" if callable(self.reward_from) else self.reward_from or "none recorded"
        names = {"obs_features": " ".join(self.obs), "action_features": " ".join(self.action)}
        return names | {"reward_from": rule}

    def check_known(self, known: Mapping[str, Any], place: str) -> None:
        """Raise InputError if a feature is not there."""
        names = [*self.obs, *self.action, self.done_from, self.reward_from]
        for name in names:
            if isinstance(name, str) and name != SUCCESS and name not in known:
                raise InputError(f"{place} has no feature {name!r}; it has {', '.join(sorted(known))}")


def _joined(columns: Mapping[str, NDArray[Any]], names: tuple[str, ...], what: str) -> Float:
    """Return these features side by side as float32, [frames, S]."""
    parts = []
    for name in names:
        column = columns[name]
        if column.dtype.kind not in "bfiu":
            raise InputError(f"the feature {name} holds {column.dtype}, not numbers; choose another for --{what}")
        if what == "action" and column.dtype.kind != "f":
            raise InputError(
                f"the feature {name} is {column.dtype}; only continuous (float) actions can be used: if these are "
                "continuous values, convert them to float32"
            )
        flat = column.reshape(len(column), -1).astype(np.float32)
        check_finite(name, flat)
        parts.append(flat)
    return np.ascontiguousarray(np.concatenate(parts, axis=1))


def _rewards(rule: str | RewardRule | None, columns: Frames, success: str | None, length: Int) -> NDArray[Any]:
    """Return one reward per frame by this rule; of 0 where no rule is given."""
    end = np.cumsum(length)
    if rule is None:
        return np.zeros(end[-1], np.float32)
    if callable(rule):
        spans = enumerate(zip(end - length, end, strict=True))
        return np.concatenate([_by_function(rule, columns, m, a, b) for m, (a, b) in spans])
    if rule != SUCCESS:
        return _one_number(rule, columns[rule])
    reward = np.zeros(end[-1], np.float32)
    won = np.ones(len(end), bool)  # demonstrations succeed, unless the file says otherwise
    if success is not None:
        won = np.logical_or.reduceat(_one_number(success, columns[success]) > 0, end - length)
    reward[end - 1] = won
    return reward


def _one_number(name: str, column: NDArray[Any]) -> NDArray[Any]:
    """Return a feature of one number per frame as [frames]."""
    if column.dtype.kind not in "bfiu" or column.size != len(column):
        raise InputError(
            f"the feature {name} has {column.dtype} of shape {column.shape[1:]} per frame; one number is needed"
        )
    return column.reshape(-1).astype(np.float32)


def from_frames(
    columns: Frames,
    chosen: Features,
    length: Int,
    info: Info,
    origin: NDArray[np.str_],
    success: str | None = None,
) -> Dataset:
    """Build a Dataset from frames, one row per frame, of episodes of these lengths [M]; see the top of this file.

    Episodes of one frame have no step and are left out; `info` says how many, and how many steps.
    """
    reward = _rewards(chosen.reward_from, columns, success, length)
    done = np.zeros(len(reward), bool)
    if chosen.done_from:
        done = _one_number(chosen.done_from, columns[chosen.done_from]) > 0
    elif chosen.reward_from == SUCCESS:
        done = reward > 0
    weight = columns.get(WEIGHT)
    if weight is not None and weight.size != len(weight):
        weight = None  # somebody else's feature of that name
    end = np.cumsum(length)
    whole = length > 1
    if not whole.any():
        raise InputError("no episode has two frames, so there is no step; a step needs the state after it")
    last = np.zeros(end[-1], bool)
    last[end - 1] = True
    in_whole = np.repeat(whole, length)
    step = in_whole & ~last
    check_finite("reward", reward)
    reward[end[whole] - 2] += reward[end[whole] - 1]
    note = {**info, "dropped_steps": len(length)}
    if short := int((~whole).sum()):
        note["dropped_episodes"] = short
    return Dataset(
        obs=_joined(columns, chosen.obs, "obs")[in_whole],
        action=_joined(columns, chosen.action, "action")[step],
        reward=reward[step],
        start=np.concatenate([[0], np.cumsum(length[whole] - 1)]),
        terminal=done[end[whole] - 1] | done[end[whole] - 2],
        info=note,
        weight=None if weight is None else normalised_weight(weight[step]),
        seams=_seams({k: v for k, v in columns.items() if k.startswith(SEAM)}, step, end[whole] - 2),
        origin=origin[whole],
    )


def origins(data: Dataset, prefix: str) -> list[tuple[str, str]]:
    """Return the file and the episode that each trajectory was read from in a format; none if none was."""
    origin = np.full(len(data), "") if data.origin is None else data.origin
    have = np.char.startswith(origin, prefix)
    if not have.any():
        return []
    if not have.all():
        raise InputError(
            f"trajectory {np.argmin(have)} was not read as {prefix.rstrip(':')}, others were; write both apart "
            "or through .npz, which leaves behind what else the episodes hold"
        )
    parted = (str(name).removeprefix(prefix).rpartition("#") for name in origin)
    return [(file, episode) for file, _, episode in parted]


def is_ours(name: str) -> bool:
    """Whether a column is one that we add to a recording: the weight, and those of seams."""
    return name == WEIGHT or name.startswith(SEAM)


def names_of(data: Dataset) -> tuple[list[str], list[str]]:
    """Return the features that observation and action were read from, which are needed to write them there."""
    names = [str(data.info.get(f"{key}_features", "")).split() for key in ("obs", "action")]
    if not all(names):
        raise InputError(
            "these data were read by different features, so they cannot be written back; read all by the same "
            "--obs and --action, or set origin=None"
        )
    return names[0], names[1]


def to_frames(data: Dataset, m: int) -> dict[str, NDArray[Any]]:
    """Return the frames of trajectory m: obs, reward, done, weight and seams, and action with one row fewer."""
    a, b = data.start[m], data.start[m + 1]
    done = np.zeros(b - a + 1, bool)
    done[-2:] = data.terminal[m]
    frames: dict[str, NDArray[Any]] = {"obs": data.obs[a + m : b + m + 1], "action": data.action[a:b]}
    frames |= {"reward": np.append(data.reward[a:b], np.float32(0)), "done": done}
    if data.weight is not None:
        frames[WEIGHT] = np.append(data.weight[a:b], np.float32(0))
    for name, column in data.seams.arrays().items() if data.seams else ():
        whole = np.repeat(column[m], b - a) if name == "return_before" else column[a:b]
        frames[SEAM + name] = np.append(whole, whole[-1:])
    return frames


def _seams(columns: Mapping[str, NDArray[Any]], step: NDArray[np.bool_], last: Int) -> Seams | None:
    """Return the seams of these steps; None unless all their columns are there."""
    if columns.keys() != {SEAM + item.name for item in fields(Seams)}:
        return None
    short = {name.removeprefix(SEAM): column for name, column in columns.items()}
    return Seams(**{name: column[last if name == "return_before" else step] for name, column in short.items()})


def _by_function(rule: RewardRule, columns: Frames, m: int, begin: int, end: int) -> NDArray[Any]:
    given = np.asarray(rule({name: column[begin:end] for name, column in columns.items()}), np.float32)
    if given.shape != (end - begin,):
        raise InputError(
            f"the reward function returned shape {given.shape} for episode {m}; it must return one number for "
            f"each of its {end - begin} frames"
        )
    return given
