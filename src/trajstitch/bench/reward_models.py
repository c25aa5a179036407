"""Reward models compared: squared errors during training, and on other data (paper, Choice of reward model)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Dataset, step_table
from trajstitch.jobs.run_dir import Run, numbers
from trajstitch.models.reward import RewardConfig
from trajstitch.training import loop
from trajstitch.training.loop import Table
from trajstitch.training.networks import pick

_TRAINED = 0.95  # share of the trajectories that are learned from; the others are the test
_ROWS = 8192  # at most so many transitions of each part are measured during training
_BLOCK = 65_536  # transitions predicted at once


def compare_reward_model(
    data: Dataset,
    others: Mapping[str, Dataset],
    config: RewardConfig,
    seeds: Sequence[int],
    checkpoints: int,
    folder: Path,
) -> dict[str, Any]:
    """Train one model per seed side by side; return errors at every checkpoint, and at the end on other data.

    An error is the squared difference of predicted and true rewards, in raw units. The last weights count, and no
    training stops early. After a kill the same call goes on from the last checkpoint.
    """
    train, test = (step_table(part) for part in data.split(_TRAINED, seeds[0]))
    every = -(-config.fit.steps // checkpoints)
    asked = {
        "job": "reward",
        "config": dataclasses.asdict(config),
        "seed": seeds[0],
        "seeds": len(seeds),
        "every": every,
        "data": {"fingerprint": data.fingerprint, "info": dict(data.info)},
    }
    count = min(_ROWS, len(test["reward"]), len(train["reward"]))  # the same of both, as in the paper
    shown = {"train": _some(train, count), "test": _some(test, count)}
    with Run.working(folder, asked) as run:
        state = run.load_state(loop.start(config, train, seeds))
        for reached, _ in loop.run(config, state, train, seeds, every):
            state = reached
            errors = {name: squared_errors(state.model, table, seeds).mean(1) for name, table in shown.items()}
            run.record(int(state.step), **{name: numbers(error) for name, error in errors.items()})
            run.save_state(state)  # last, so that everything up to its step is on disk
        lines = run.metrics()
        found = {
            name: _summary(squared_errors(state.model, step_table(one), seeds)) for name, one in others.items()
        }
    return {
        "step": [line["step"] for line in lines],
        "train": [line["train"] for line in lines],  # [C, P]
        "test": [line["test"] for line in lines],
        "others": found,
    }


def squared_errors(model: Any, table: Table, seeds: Sequence[int]) -> NDArray[np.float64]:
    """Return the squared errors [P, N] of P models in raw units; a model that draws rewards draws one each."""
    names, total = ("obs", "action", "next_obs"), len(table["reward"])
    errors = np.zeros((len(seeds), total))
    for p, seed in enumerate(seeds):
        one, key = pick(model, p), jax.random.key(seed)
        for first in range(0, total, _BLOCK):
            block = slice(first, first + _BLOCK)
            made = one.rewards(*(table[name][block] for name in names), jax.random.fold_in(key, first))
            errors[p, block] = (np.asarray(made, np.float64) - table["reward"][block]) ** 2
    return errors


def _summary(errors: NDArray[np.float64]) -> dict[str, list[float]]:
    """Return mean and standard deviation over the data, per model."""
    return {"mse": errors.mean(1).tolist(), "std": errors.std(1).tolist()}


def _some(table: Table, count: int) -> dict[str, Any]:
    chosen = np.random.default_rng(0).permutation(len(table["reward"]))[:count]
    return {name: column[chosen] for name, column in table.items()}
