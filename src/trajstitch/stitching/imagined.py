"""Imagined: trajectories whose states a world model predicted, as a data set that says so.

Each begins in a recorded state. From there on, neither its states nor its steps are in the recording: its seams
name no rows (-1), and their landing error is how far the model's members are from their mean, in typical steps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from trajstitch.data import Bool, Dataset, Float, Int, Seams, ranges


class Rollouts(NamedTuple):
    """W rollouts of at most T steps in a world model."""

    first: Int  # [W] row of the recorded state that each begins in
    obs: Float  # [W, T + 1, S]
    action: Float  # [W, T, A]
    reward: Float  # [W, T]
    error: Float  # [W, T] disagreement of the members about the step, in typical steps
    length: Int  # [W] steps that count, at least 1
    terminal: Bool  # [W] it ends where an episode would


def imagined_data(data: Dataset, rollouts: Rollouts) -> Dataset:
    """Return rollouts as a data set with seams."""
    length = rollouts.length
    start = np.concatenate([[0], np.cumsum(length)])
    walk = np.repeat(np.arange(len(length)), length)
    step = ranges(np.zeros_like(length), length)
    place = np.repeat(np.arange(len(length)), length + 1), ranges(np.zeros_like(length), length + 1)
    error, unknown = rollouts.error[walk, step].astype(np.float32), np.full(len(walk), -1)
    source = unknown.copy()
    source[start[:-1]] = rollouts.first
    none = np.zeros(len(walk), np.float32)
    owner = np.searchsorted(data.last_row, rollouts.first)
    return Dataset(
        obs=rollouts.obs[place].astype(np.float32),
        action=rollouts.action[walk, step].astype(np.float32),
        reward=rollouts.reward[walk, step].astype(np.float32),
        start=start,
        terminal=rollouts.terminal,
        info={**data.info, "improved_from": data.fingerprint, "imagined": True},
        seams=Seams(
            source=source,
            target=unknown,
            stitched=np.ones(len(walk), bool),
            margin=none,
            spread=error,
            value_gain=none,
            return_before=data.returns[owner],
            landing_error=error,
        ),
    )
