"""The suite mazes: walks with the rewards of each task, settings, success as the score, and the table."""

import json

import numpy as np
import pytest

from trajstitch.bench import datasets
from trajstitch.bench.grid import make_grid, open_folder, record_path
from trajstitch.bench.report import page, write_reports
from trajstitch.bench.suite_tables import maze_estimate, maze_tables
from trajstitch.bench.suites import RECIPES, train_settings
from trajstitch.bench.tables import read_results, score_table
from trajstitch.cli import main
from trajstitch.evaluation.mazes import make_maze


def test_the_walks_of_all_tasks_are_the_same_and_their_rewards_are_not(tmp_path):
    pytest.importorskip("ogbench")
    first, second = (datasets.make_data(f"pointmaze-medium-500-task{task}", tmp_path, 2000) for task in (1, 2))
    assert first.transitions >= 2000
    for data, task in ((first, 1), (second, 2)):
        assert data.info["env_id"] == f"pointmaze-medium-singletask-task{task}-v0"
        env = make_maze(str(data.info["env_id"]), 1)
        at_goal = env.at_goal(data.obs[data.row + 1])
        env.close()
        np.testing.assert_array_equal(data.reward, at_goal - 1.0)
    # Steps that start at a goal are left out of that task's data, and of no other task's.
    env = make_maze(str(first.info["env_id"]), 1)
    begins = second.obs[second.row]
    at_first_goal = env.at_goal(begins)
    env.close()
    assert at_first_goal.any()
    known = {state.tobytes() for state in first.obs[first.row]}
    np.testing.assert_array_equal([state.tobytes() in known for state in begins], ~at_first_goal)
    assert datasets.maze_parts("pointmaze-giant-5000-task3") == ("giant", 5000, 3)


def test_a_maze_has_its_own_discount_and_lengths():
    settings = {
        name: train_settings(RECIPES[name], "pointmaze-giant-500-task1", "quick", None)
        for name in ("bc", "optimal", "iql", "td3bc", "diffuser")
    }
    assert settings["bc"] == settings["optimal"] == {"steps": 20_000}
    assert settings["iql"] == {"steps": 100_000, "discount": 0.995, "expectile": 0.9}
    assert settings["td3bc"] == {"steps": 100_000, "discount": 0.995}
    assert settings["diffuser"] == {"steps": 100_000}
    assert train_settings(RECIPES["iql"], "pointmaze-giant-500-task1", "quick", 9)["steps"] == 9
    assert train_settings(RECIPES["bc"], "hopper-medium", "quick", None) == {}


def test_success_is_the_score_in_mazes(tmp_path):
    out = tmp_path / "out"
    words = ["--preset", "tiny", "--steps", "4", "--seeds", "2", "--transitions", "600", "--episodes", "3"]
    asked = ["--data", "maze-100", "--methods", "bc", "composed", "optimal", "--workers", "1", "--quiet"]
    assert main(["bench", "mazes", "--out", str(out), *asked, *words]) == 0
    results = read_results(out)
    assert results.unit == "success"
    records = {cell.method: record for cell, record in results.records.items()}
    bc = records["bc"]
    assert np.shape(bc["reached"]) == (1, 2, 3)
    assert bc["last"]["success"]["per_seed"] == (100 * (np.array(bc["reached"][-1]) >= 0).mean(1)).tolist()
    assert records["composed"]["cloned"]["fingerprint"] == records["composed"]["stitched"]["fingerprint"]
    assert records["optimal"]["cloned"]["fingerprint"] != records["optimal"]["stitched"]["fingerprint"]
    assert records["optimal"]["stitched"] == records["composed"]["stitched"]
    text, _ = write_reports(out)
    assert "Scores are success in % of episodes." in text
    assert "Best checkpoint" not in text  # there is one alone


def test_success_over_tasks_with_what_is_missing(tmp_path):
    out, names = tmp_path / "out", tuple(f"pointmaze-giant-500-task{task}" for task in (1, 2, 3))
    grid = make_grid("mazes", data=names, methods=("bc", "optimal", "iql"), seeds=2)
    open_folder(out, grid)
    success = {("bc", 1): (0, 0), ("bc", 2): (0, 20), ("bc", 3): (0, 0), ("optimal", 1): (100, 90)}
    for cell in grid.cells:
        if (per_seed := success.get((cell.method, int(cell.data[-1])))) is not None:
            scored = {unit: {"per_seed": list(per_seed)} for unit in ("success", "raw")} | {"normalised": None}
            stitched = None if cell.stitch_seed is None else {"return_mean": 2.0}
            facts = {"source": "here", "transitions": 100, "return_mean": 1.0}
            record = {"data": facts, "stitched": stitched, "last": scored, "best": scored}
            file = record_path(out, cell)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(record))
    results = read_results(out)
    (table,) = maze_tables(results)
    row = dict(zip(table.head, table.rows[0], strict=True))
    assert row["maze"] == "giant, 500 walks"
    assert row["BC"].startswith("3.3 [")
    assert row["BC"].endswith("]: 0 / 10 / 0")
    assert row["Plan+BC"].endswith("]: 95 / – / –")
    assert row["IQL"] == "missing"
    assert maze_estimate(results, "optimal", names).value == 95
    assert [row[0] for row in score_table(results, "last").rows] == [*names, "mean"]
    text = page(results)
    assert text.count("<figure>") == 1 + len(names)  # all tasks together, and the cells of each
    assert "giant, 500 walks" in text
