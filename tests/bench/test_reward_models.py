"""The suite reward-models: errors by hand, resuming, and tables."""

import json
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from trajstitch.bench import reward_models
from trajstitch.bench.grid import make_grid, open_folder, record_path
from trajstitch.bench.published import published_reward_error, published_score
from trajstitch.bench.report import page
from trajstitch.bench.reward_models import compare_reward_model, squared_errors
from trajstitch.bench.suite_tables import reward_curves, reward_tables
from trajstitch.bench.suites import RECIPES, improve_settings, reward_settings
from trajstitch.bench.tables import read_results
from trajstitch.data import step_table
from trajstitch.models.reward import RewardConfig
from trajstitch.training.loop import Fit
from worlds import random_dataset

SMALL = RewardConfig(width=8, fit=Fit(6, 16, 1e-3), patience=0)


class Constant:
    """Predicts one number, whatever the transition."""

    def __init__(self, value):
        self.value = value

    def rewards(self, obs, action, next_obs, key):
        return jnp.full(len(obs), self.value)


def test_squared_errors_by_hand(data, monkeypatch):
    monkeypatch.setattr(reward_models, "pick", lambda models, p: models[p])
    monkeypatch.setattr(reward_models, "_BLOCK", 5)  # the data have 17 steps
    table = {**step_table(data), "reward": np.arange(17, dtype=np.float32)}
    found = squared_errors([Constant(0.0), Constant(2.0)], table, [0, 1])
    assert found.tolist() == [[float(r**2) for r in range(17)], [float((r - 2) ** 2) for r in range(17)]]


@pytest.mark.parametrize("kind", ["wgan", "mlp"])
def test_a_killed_comparison_goes_on_and_ends_with_the_same_numbers(kind, tmp_path, monkeypatch):
    data = random_dataset(seed=0, lengths=(9,) * 20, obs_dim=3, action_dim=2)
    other = random_dataset(seed=1, lengths=(9,) * 3, obs_dim=3, action_dim=2)
    config = replace(SMALL, kind=kind)
    whole = compare_reward_model(data, {"other": other}, config, [0, 1], 3, tmp_path / "whole")
    assert whole["step"] == [2, 4, 6]
    assert np.shape(whole["train"]) == np.shape(whole["test"]) == (3, 2)
    assert len(whole["others"]["other"]["mse"]) == 2
    calls = []

    def killed(*arguments):
        calls.append(arguments)
        if len(calls) == 4:  # in the middle of the second checkpoint
            raise KeyboardInterrupt
        return squared_errors(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(reward_models, "squared_errors", killed)
        with pytest.raises(KeyboardInterrupt):
            compare_reward_model(data, {"other": other}, config, [0, 1], 3, tmp_path / "killed")
    again = compare_reward_model(data, {"other": other}, config, [0, 1], 3, tmp_path / "killed")
    assert again == whole


def test_an_mlp_learns_rewards_that_it_can_know(tmp_path):
    data = random_dataset(seed=0, lengths=(50,) * 40, obs_dim=3, action_dim=2)
    known = replace(data, reward=(5 + data.action[:, 0]).astype(np.float32))
    config = replace(SMALL, width=32, fit=Fit(600, 64, 3e-3))
    found = compare_reward_model(known, {"same": known}, config, [0], 3, tmp_path / "run")
    assert found["test"][-1][0] < 0.1 * known.reward.var()
    assert found["test"][-1][0] < found["test"][0][0]
    assert found["others"]["same"]["mse"][0] == pytest.approx(found["train"][-1][0], rel=0.5)


def test_the_settings_of_compared_and_of_stitching_models():
    assert reward_settings(RECIPES["reward-vae"], "standard", None).fit.steps == 500_000
    assert reward_settings(RECIPES["reward-vae"], "standard", 70).fit.steps == 70
    assert reward_settings(RECIPES["reward-wgan"], "paper", None).penalty == 0
    kinds = {
        name: improve_settings(RECIPES[name], "hopper-medium", "standard").reward.kind
        for name in ("ts-wgan-bc", "ts-mlp-bc", "ts-bc")
    }
    assert kinds == {"ts-wgan-bc": "wgan", "ts-mlp-bc": "mlp", "ts-bc": "mlp"}


def test_published_errors_and_scores():
    assert published_reward_error("reward-vae", "hopper-medium", "hopper-expert") == (0.000021, 0.00011)
    assert published_reward_error("reward-gaussian", "hopper-medium", "hopper-random") == (5.18, 2.05)
    assert published_reward_error("reward-vae", "walker2d-medium", "walker2d-expert") is None
    assert published_score("ts-mlp-bc", "hopper-medium-expert") == 97.7
    assert published_score("ts-wgan-bc", "hopper-medium-expert") == 94.8


def stored(out, train=((4.0, 2.0), (0.25, 0.75)), mse=(0.5, 1.5)):
    """Results of a folder where one reward model is finished, and no policy."""
    grid = make_grid("reward-models", data=("hopper-medium",), methods=("reward-mlp", "reward-gaussian", "bc"))
    open_folder(out, grid)
    cell = grid.cells[0]
    assert cell.method == "reward-mlp"
    record = {
        "data": {"source": "here", "transitions": 100, "return_mean": 1.0},
        "step": [10, 20],
        "train": train,
        "test": [[5.0, 3.0], [0.002, 0.004]],
        "others": {name: {"mse": mse, "std": [0.1, 0.3]} for name in cell.needs[1:]},
    }
    file = record_path(out, cell)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record))
    return read_results(out)


def test_an_error_that_is_not_finite_is_a_dash(tmp_path):
    """In a record, strict JSON, it is null. No policy is finished, so no score is success."""
    results = stored(tmp_path / "out", train=((4.0, 2.0), (None, 0.75)), mse=(None, 1.5))
    (table,) = reward_tables(results)
    row = dict(zip(table.head, table.rows[0], strict=True))
    assert row["train"] == "–"
    assert row["test"].startswith("0.003")
    assert row["hopper-random"].startswith("– ± 0.2")
    assert results.unit == "raw"
    assert "success" not in page(results)


def test_errors_stand_beside_published_ones_and_are_drawn(tmp_path):
    results = stored(tmp_path / "out")
    assert reward_curves(results, "hopper-medium")["reward-mlp"].test.tolist() == [[5, 3], [0.002, 0.004]]
    (table,) = reward_tables(results)
    (row,) = (dict(zip(table.head, row, strict=True)) for row in table.rows)
    assert [row[name] for name in ("model", "train", "test")] == ["MLP", "0.50", "0.0030"]
    assert row["hopper-random"] == "1.0 ± 0.20"
    assert row["hopper-expert, published"] == "0.000024 ± 0.00014"
    text = page(results)  # no policy is finished yet
    assert text.count("<figure>") == 1 + 1  # errors, and the cells of a data set
    assert "Teal: held-out ones." in text
    assert "<small>published 0.000024 ± 0.00014</small>" in text
