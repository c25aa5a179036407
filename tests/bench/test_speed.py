"""The plain loop chooses what the fast path chooses; what `bench speed` measures and prints."""

import json

import jax
import numpy as np
import pytest

from trajstitch.bench.reference_loop import plain_loop
from trajstitch.bench.speed import Speed, resized
from trajstitch.cli import main
from trajstitch.data import step_table
from trajstitch.errors import InputError
from trajstitch.formats import load
from trajstitch.models.dynamics import DynamicsConfig, train_dynamics
from trajstitch.models.inverse import InverseConfig, train_inverse
from trajstitch.models.reward import RewardConfig, train_reward
from trajstitch.models.value import ValueConfig, train_value
from trajstitch.stitching import improve as stitch
from trajstitch.stitching.graph import EdgeFinder, GraphConfig
from trajstitch.stitching.greedy import choose_edges, occurrences
from trajstitch.training.loop import Fit
from worlds import random_dataset


def test_the_plain_loop_chooses_the_same_stitches():
    data = load("demo")[:60]
    halves = data.split(0.9, 0)
    models = {
        "dynamics": train_dynamics(*halves, DynamicsConfig(width=16, fit=Fit(60, 64, 3e-3)), 0)[0],
        "inverse": train_inverse(*halves, InverseConfig(width=8, fit=Fit(1, 8)), 0)[0],
        "reward": train_reward(*halves, RewardConfig(width=8, fit=Fit(1, 8)), 0)[0],
        "value": train_value(step_table(data), ValueConfig(width=16, fit=Fit(50, 64, 3e-3)), 0)[0],
    }
    search = EdgeFinder(data, GraphConfig(nearest=20))
    rates, chosen, row = plain_loop(data, search, models, states=400, seed=0)
    assert rates["graph"] > rates["all"] > 0  # a part of the work takes less time than all of it
    assert len(row) >= 400
    assert 10 < (chosen >= 0).sum() < len(row)

    graph = search.extend(search.empty(), data.row, data.row + 1, models["dynamics"])
    current = stitch.original(data, graph)
    value = stitch.state_values(data, models["value"], stitch.compared(data, graph))
    choice = choose_edges(
        graph, value, occurrences(graph, current.pairs.reward, current.paths), current.paths.pair
    )
    edge = choice[np.searchsorted(data.row, row)]
    ours = np.where(edge >= 0, graph.landing[edge], -1)
    assert np.mean(ours == chosen) > 0.995  # but where float32 and float64 differ about a hair's breadth


def test_data_are_cut_or_repeated_with_noise():
    data = random_dataset(0, [5, 9, 4, 7])
    short = resized(data, 12, 0)
    assert len(short) == 2
    np.testing.assert_array_equal(short.obs, data.obs[: len(short.obs)])
    long = resized(data, 60, 0)
    assert long.length.tolist() == [5, 9, 4, 7, 5, 9, 4, 7, 5, 9]
    np.testing.assert_array_equal(long.obs[: len(data.obs)], data.obs)
    again = long.obs[len(data.obs) : 2 * len(data.obs)]
    shift = np.std((again - data.obs) / data.obs.std(0))
    assert 0.01 < shift < 0.04
    for name in ("action", "reward"):
        np.testing.assert_array_equal(getattr(long, name)[25:50], getattr(data, name))
    np.testing.assert_array_equal(long.terminal, np.resize(data.terminal, 10))


def test_bench_speed_prints_a_table_and_a_line(capsys):
    words = ["bench", "speed", "--transitions", "3000", "--steps", "3", "--states", "20", "--json"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "share of improve" in out.replace("\n", " ") or "share of" in out
    result = json.loads(out.splitlines()[-1])
    stages = result["stages"]
    names = {
        "dynamics",
        "inverse",
        "reward",
        "value",
        "bc",
        "neighbours",
        "edges",
        "graph",
        "iteration",
        "evaluation",
    }
    assert set(stages) == names
    for stage in stages.values():
        assert stage["seconds"] > 0
        assert stage["per_second"] > 0
        assert stage["ratio"] > 0
    parts = [stages[name]["share"] for name in names - {"graph", "bc", "evaluation"}]
    assert sum(parts) == pytest.approx(1)
    assert stages["graph"]["seconds"] == pytest.approx(
        stages["neighbours"]["seconds"] + stages["edges"]["seconds"]
    )
    assert result["loop"]["stitches_equal"] > 0.95
    assert result["machine"]["jax"] == jax.__version__


def test_sizes_must_make_sense():
    with pytest.raises(InputError, match="transitions must be at least 1, not 0"):
        Speed(transitions=0)
