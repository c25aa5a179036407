"""OGBench's npz layout: rows of states with a mark on the last row of each episode, and no rewards.

observations  s0 s1 s2 s3 │ s0 s1 s2
actions       a0 a1 a2  · │ a0 a1  ·     where the action in an episode's last row led is not recorded
terminals      0  0  0  1 │  0  0  1     the last row; the episode was cut there
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Dataset, Info
from trajstitch.formats.d4rl import from_table


def is_ogbench(table: Mapping[str, NDArray[Any]]) -> bool:
    """Whether these are the arrays of an OGBench file."""
    return {"observations", "actions", "terminals"} <= table.keys() and not {"rewards", "timeouts"} & table.keys()


def from_ogbench(table: Mapping[str, NDArray[Any]], info: Info) -> Dataset:
    """Build a Dataset with rewards of 0; `convert --set-task` gives it those of a task."""
    steps = len(table["actions"])
    data = from_table(
        {
            "observations": table["observations"],
            "actions": table["actions"],
            "rewards": np.zeros(steps, np.float32),
            "terminals": np.zeros(steps, bool),
            "timeouts": table["terminals"],
        },
        info,
    )
    # The last row of an episode is there for its state alone, so no step of the data was dropped.
    return replace(data, info={k: v for k, v in data.info.items() if k != "dropped_steps"})
