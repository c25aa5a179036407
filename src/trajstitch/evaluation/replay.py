"""Replay: seams of improved data tried in the simulator, one step each.

The simulator is set to the state that a seam starts from, and the action of the seam is applied. Improved data
hold that state and the landing, so the original data are needed only for what the recorded action would do.

    s ──── action of the seam ────► real state ◄── landing error ──► landing (next row of the improved data)
     └──── recorded action ───────► recorded successor ◄── distance bridged ──► landing

Distances are Euclidean, with states divided by their standard deviations, in typical steps: divided by the median
length of a recorded step too.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajstitch.data import Bool, Dataset, Info, Int, Seams, Spread
from trajstitch.errors import InputError
from trajstitch.evaluation import envs
from trajstitch.evaluation.env import Env, Float
from trajstitch.progress import Tell, silent


@runtime_checkable
class StateEnv(Env, Protocol):
    """Environments whose observation is the whole state but for what never matters, such as x."""

    def state_of(self, obs: NDArray[Any]) -> tuple[Float, Float]:
        """Return positions and velocities of obs[B, S]."""

    def set_state(self, index: ArrayLike, qpos: ArrayLike, qvel: ArrayLike) -> Float:
        """Set the state of the environments `index`; return obs[len(index), S]."""


class Simulator:
    """Takes one step from any state that an observation shows, many at a time."""

    def __init__(self, env_id: str, physics: str, info: Info, count: int = 256) -> None:
        env = envs.make(env_id, count, physics=physics, **envs.env_options(env_id, info))
        if not isinstance(env, StateEnv):
            env.close()
            raise InputError(
                f"{env_id} cannot be set to the state of an observation, so its seams cannot be replayed; the "
                "audit is for Hopper, HalfCheetah, Walker2d and the mazes"
            )
        self.env: StateEnv = env

    def settable(self, obs: NDArray[Any]) -> Bool:
        """Mark the observations [B, S] that show the whole state; a clipped velocity could be any larger one."""
        _, at_rest = self._show(np.zeros((1, self.env.obs_dim)))
        marks = [np.zeros(0, bool)]
        for begin in range(0, len(obs), self.env.count):
            part = obs[begin : begin + self.env.count].astype(np.float64)
            shown, moved = self._show(part)
            marks.append((np.abs(shown - part) <= 1e-5 * (1 + np.abs(part))).all(1) & (moved == at_rest[0]))
        return np.concatenate(marks)

    def _show(self, obs: Float) -> tuple[Float, Int]:
        """Set states; return what they show, and how many numbers [B] of it change when all is a bit faster."""
        rows = np.arange(len(obs))
        qpos, qvel = self.env.state_of(obs)
        shown = self.env.set_state(rows, qpos, qvel)
        faster = self.env.set_state(rows, qpos, qvel + np.where(qvel < 0, -1e-3, 1e-3))
        return shown, (faster != shown).sum(1)

    def step(
        self, obs: NDArray[Any], action: NDArray[Any], tell: Tell = silent, note: str = ""
    ) -> tuple[Float, Float, Bool]:
        """Return the next observation [B, S], reward [B] and terminal [B] after obs[B, S] and action[B, A]."""
        count = self.env.count
        next_obs, reward = np.zeros((len(obs), self.env.obs_dim)), np.zeros(len(obs))
        terminal = np.zeros(len(obs), bool)
        for begin in range(0, len(obs), count):
            part = slice(begin, begin + count)
            rows = np.arange(len(obs[part]))
            self.env.set_state(rows, *self.env.state_of(obs[part].astype(np.float64)))
            given = np.zeros((count, action.shape[1]))
            given[rows] = action[part]
            result = self.env.step(given, np.arange(count) < len(rows))
            next_obs[part], reward[part], terminal[part] = (column[rows] for column in result[:3])
            tell(begin + len(rows), len(obs), note)
        return next_obs, reward, terminal

    def close(self) -> None:
        """Release threads and windows."""
        self.env.close()


@dataclass(frozen=True, eq=False)
class Unit:
    """What distances are measured in."""

    of: str  # the data it is of: original or improved
    std: Float  # [S]
    typical_step: float  # median length of a recorded step, with states divided by std

    @staticmethod
    def of_data(improved: Dataset, original: Dataset | None = None) -> Unit:
        """Return the unit of the original data; without them, of the recorded steps in the improved data."""
        data, row = (original, original.row) if original is not None else (improved, _recorded_rows(improved))
        obs = original.obs if original is not None else improved.obs[row]
        std = Spread.of(obs).unit
        step = float(np.median(np.linalg.norm((data.obs[row + 1] - data.obs[row]) / std, axis=1)))
        if not step > 0:
            raise InputError("half of all steps do not change the state, so a typical step is not known")
        return Unit("improved" if original is None else "original", std, step)

    def distance(self, a: NDArray[Any], b: NDArray[Any]) -> Float:
        """Return the distances [B] between states a and b [B, S], in typical steps."""
        return np.asarray(np.linalg.norm((a - b) / self.std, axis=1) / self.typical_step)


@dataclass(frozen=True, eq=False)
class Replays:
    """X distinct seams, replayed; distances are in typical steps."""

    distinct: int  # seams of the data, each counted once
    chosen: int  # of them, those that were to be replayed
    step: Int  # [X] the first step of the improved data that uses the seam; clipped states are left out
    uses: Int  # [X] steps of the improved data that use the seam
    promised: Float  # [X] landing error by the models; nan where none was asked
    landing: Float  # [X] landing error in the simulator
    reward_promised: Float  # [X] reward in the data
    reward: Float  # [X] reward in the simulator
    ended: Bool  # [X] the episode really ends here, although the data go on
    # What follows is None without the original data, and nan where the original has no step from the state.
    bridged: Float | None = None  # [X] from the recorded successor to the landing
    recorded_landing: Float | None = None  # [X] landing error of the recorded action
    replay_error: Float | None = None  # [X] from the recorded successor to where the recorded action really leads
    replay_reward_error: Float | None = None  # [X] of the recorded action


def replay_seams(
    improved: Dataset,
    simulator: Simulator,
    unit: Unit,
    original: Dataset | None = None,
    *,
    sample: int = 0,
    seed: int = 0,
    tell: Tell = silent,
) -> Replays:
    """Replay distinct seams, all or a random sample of them."""
    seams = seams_of(improved)
    stitched = np.flatnonzero(seams.stitched)
    _, first, uses = np.unique(seam_number(seams, stitched), return_index=True, return_counts=True)
    distinct = len(first)
    if 0 < sample < distinct:
        some = np.sort(np.random.default_rng(seed).permutation(distinct)[:sample])
        first, uses = first[some], uses[some]
    chosen = len(first)
    settable = simulator.settable(improved.obs[improved.row[stitched[first]]])
    step, uses = stitched[first[settable]], uses[settable]
    obs, landing = improved.obs[improved.row[step]], improved.obs[improved.row[step] + 1]
    landed, reward, terminal = simulator.step(obs, improved.action[step], tell, "seams replayed")
    owner = improved.trajectory[step]
    data_end = (step == improved.start[owner + 1] - 1) & improved.terminal[owner]
    assert seams.landing_error is not None
    found = Replays(
        distinct,
        chosen,
        step,
        uses,
        promised=seams.landing_error[step].astype(np.float64),
        landing=unit.distance(landed, landing),
        reward_promised=improved.reward[step].astype(np.float64),
        reward=reward,
        ended=terminal & ~data_end,
    )
    return found if original is None else _with_recorded(found, improved, original, simulator, unit, tell)


def _with_recorded(
    found: Replays, improved: Dataset, original: Dataset, simulator: Simulator, unit: Unit, tell: Tell
) -> Replays:
    """Return the replays with what the recorded actions of the same states do."""
    source = seams_of(improved).source[found.step]
    at = np.flatnonzero(np.isin(source, original.row))  # a last state has no recorded action
    old = np.searchsorted(original.row, source[at])
    obs, usual = original.obs[source[at]], original.obs[source[at] + 1]
    landing = improved.obs[improved.row[found.step[at]] + 1]
    replayed, reward, _ = simulator.step(obs, original.action[old], tell, "recorded actions replayed")

    def everywhere(values: Float) -> Float:
        column = np.full(len(source), np.nan)
        column[at] = values
        return column

    return dataclasses.replace(
        found,
        bridged=everywhere(unit.distance(usual, landing)),
        recorded_landing=everywhere(unit.distance(replayed, landing)),
        replay_error=everywhere(unit.distance(replayed, usual)),
        replay_reward_error=everywhere(np.abs(reward - original.reward[old])),
    )


def seams_of(data: Dataset) -> Seams:
    """Return the seams; InputError if the data have none."""
    if data.seams is None:
        raise InputError("these data have no table of seams; give a run of trajstitch improve, or its data")
    return data.seams


def seam_number(seams: Seams, step: Int) -> Int:
    """Return a number for the seam of each of these steps, the same for the same source and landing.

    A step to a state that is not in the recording is the only one of its kind.
    """
    number: Int = seams.source[step] * (seams.target.max() + 1) + seams.target[step]
    return np.where(seams.target[step] < 0, -1 - step, number)


def _recorded_rows(improved: Dataset) -> Int:
    """Return rows of the improved data: each recorded step once, where it begins."""
    seams = seams_of(improved)
    step = np.flatnonzero(~seams.stitched)
    if not len(step):
        raise InputError("every step of these data is stitched; give the original as --data, for the scale")
    return improved.row[step[np.unique(seams.source[step], return_index=True)[1]]]
