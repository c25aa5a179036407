"""The suite expert-fraction: data with a share of expert episodes, clones compared with the expert, and tables."""

import json

import jax
import numpy as np
import pytest

from trajstitch.bench import datasets
from trajstitch.bench.grid import make_grid, open_folder, record_path
from trajstitch.bench.report import markdown, page
from trajstitch.bench.suite_tables import fraction_curve, fraction_tables, kl_gain
from trajstitch.bench.suites import RECIPES, improve_settings
from trajstitch.bench.tables import read_results
from trajstitch.cli import main
from trajstitch.evaluation.divergence import distance_to_expert
from trajstitch.formats import load
from trajstitch.policies.policy import Policy
from trajstitch.policies.policy_files import load_policy, save_policy
from trajstitch.training.networks import Range, Scale

NAME = "hopper-fraction-20"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with an expert that falls soon, as good as any for counting."""
    place = tmp_path_factory.mktemp("shared")
    (place / "policies").mkdir()
    expert = Policy.init(Scale.unit(11), Range(-np.ones(3), np.ones(3)), jax.random.key(0), width=8)
    save_policy(expert, place / "policies" / "tqc-hopper-expert.npz")
    return place


@pytest.mark.parametrize(
    ("noisy", "percent", "experts"),
    [(999, 0.1, 1), (90, 10, 10), (60, 40, 40), (300, 0, 0), (50, 0.1, 1), (39, 2.5, 1), (700, 30, 300)],
)
def test_experts_make_up_their_percentage_of_all_episodes(noisy, percent, experts):
    assert datasets.expert_count(noisy, percent) == experts


def first_states(data):
    return {state.tobytes() for state in data.obs[data.row[data.start[:-1]]]}


def test_the_same_noisy_episodes_with_more_and_more_experts(folder):
    none, some = (datasets.record_data(name, folder, 600) for name in ("hopper-fraction-0", NAME))
    noisy = len(none)
    assert none.transitions >= 600
    assert len(some) == noisy + round(noisy * 20 / 80)
    assert some[:noisy].fingerprint == none.fingerprint
    assert len(first_states(some)) == len(some)  # experts start elsewhere
    expert = load_policy(folder / "policies" / "tqc-hopper-expert.npz")
    shake = np.asarray(jax.vmap(expert.act)(some.obs[some.row])) - some.action
    assert shake[: none.transitions].std() == pytest.approx(0.3, rel=0.1)
    assert shake[none.transitions :].std() == pytest.approx(0.01, rel=0.2)
    words = (
        f"{noisy} episodes of tqc-hopper-expert.npz with noise 0.3, {len(some) - noisy} with 0.01, D4RL's physics"
    )
    assert some.info["source"] == words
    assert some.info["physics"] == "d4rl"


def test_walker2d_alone_takes_few_changes():
    recipe = RECIPES["ts-gaussian-bc"]
    changes = {
        name: improve_settings(recipe, name, "standard").max_changes
        for name in ("walker2d-fraction-5", "hopper-fraction-5", "walker2d-medium")
    }
    assert changes == {"walker2d-fraction-5": 10, "hopper-fraction-5": None, "walker2d-medium": None}


def test_a_record_has_the_distance_to_the_expert_at_every_checkpoint(folder, tmp_path):
    out = tmp_path / "out"
    words = ["--preset", "tiny", "--steps", "4", "--seeds", "2", "--transitions", "300", "--episodes", "1"]
    place = ["--shared", str(folder), "--workers", "1", "--quiet"]
    asked = ["--data", NAME, "--methods", "gaussian-bc"]
    assert main(["bench", "expert-fraction", "--out", str(out), *asked, *words, *place]) == 0
    record = json.loads((out / "records" / NAME / "gaussian-bc.json").read_text())
    assert np.shape(record["expert"]["kl"]) == np.shape(record["expert"]["action_error"]) == (4, 2)
    episodes = load(out / "data" / NAME / "expert.traj")
    assert len(episodes) == 10
    assert not first_states(episodes) & first_states(load(out / "data" / NAME / "data.traj"))
    assert record["expert"]["fingerprint"] == episodes.fingerprint
    clones = load_policy(out / "runs" / NAME / "gaussian-bc" / "policy.npz")
    expert = load_policy(folder / "policies" / "tqc-hopper-expert.npz")
    last = distance_to_expert(clones, expert, episodes.obs[episodes.row])
    assert record["expert"]["kl"][-1] == pytest.approx(last.kl.tolist())
    assert record["expert"]["action_error"][-1] == pytest.approx(last.action_error.tolist())
    assert main(["report", str(out), "--quiet"]) == 0
    assert "Expert fraction, hopper" in (out / "report.md").read_text()


# -- tables ------------------------------------------------------------------------------------------------------


def write(out, cell, score, kl):
    """A record of two policies whose first checkpoint is far off; the second policy has one more of everything."""
    scored = {"normalised": {"per_seed": [score, score + 1]}, "raw": {"per_seed": [score, score + 1]}}
    record = {
        "data": {"source": "here", "transitions": 100, "return_mean": 1.0},
        "stitched": None if cell.stitch_seed is None else {"return_mean": 2.0},
        "last": scored,
        "best": scored,
        "expert": {"kl": [[99, 99], [kl, kl + 1]], "action_error": [[9, 9], [kl / 100, (kl + 1) / 100]]},
    }
    file = record_path(out, cell)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record))


def test_curves_by_the_share_of_experts_beside_what_is_missing(tmp_path):
    out, names = tmp_path / "out", ("hopper-fraction-0", "hopper-fraction-2.5", "hopper-fraction-40")
    grid = make_grid(
        "expert-fraction", data=names, methods=("gaussian-bc", "ts-gaussian-bc"), stitch_seeds=1, seeds=2
    )
    open_folder(out, grid)
    scores = {"gaussian-bc": (10, 20, 30), "ts-gaussian-bc": (12, 25, None)}
    kl = {"gaussian-bc": (8, 6, 4), "ts-gaussian-bc": (9, 4, None)}
    for cell in grid.cells:
        at = names.index(cell.data)
        if scores[cell.method][at] is not None:
            write(out, cell, scores[cell.method][at], kl[cell.method][at])
    results = read_results(out)
    curve = fraction_curve(results, "gaussian-bc", "hopper", "kl")
    assert [(point.percent, point.estimate.value) for point in curve] == [(0, 8.5), (2.5, 6.5), (40, 4.5)]
    assert curve[0].estimate[1:] == (8, 9)
    (table,) = fraction_tables(results)
    rows = {row[0]: dict(zip(table.head, row, strict=True)) for row in table.rows}
    assert rows["2.5%"]["Gaussian BC, score"].startswith("20.5 [")
    assert rows["2.5%"]["TS+Gaussian BC, KL to the expert"] == "4.5 [4, 5]"
    assert rows["2.5%"]["Gaussian BC, action error"] == "0.065 [0.06, 0.07]"
    # Divergences reach from 4.5 to 9.5.
    assert {name: row["closer by"] for name, row in rows.items()} == {"0%": "−0.20", "2.5%": "+0.40", "40%": "–"}
    assert rows["40%"]["TS+Gaussian BC, score"] == "missing"
    text = page(results)
    assert text.count("<figure>") >= 3
    assert "Teal: TS+Gaussian BC" in text
    assert "## Expert fraction, hopper" in markdown(results)


def test_the_paper_s_scaled_difference_by_hand():
    assert kl_gain({0: 5.0, 10: 3.0}, {0: 4.0, 10: 1.0}) == {0: 0.25, 10: 0.5}
    assert kl_gain({0: 5.0}, {}) == {}
    assert kl_gain({0: 5.0}, {0: 5.0}) == {}  # no range, no scale
