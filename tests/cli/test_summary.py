"""What `inspect` says of a data set, and `convert` of its weights."""

from dataclasses import replace

import numpy as np
import pytest

from trajstitch.cli import main
from trajstitch.cli.summary import EPISODE_COLUMNS, show, show_episodes, summarise
from trajstitch.data import normalised_weight
from trajstitch.errors import InputError
from trajstitch.evaluation.mazes import OWN
from trajstitch.formats import load, save
from worlds import random_dataset


def test_returns_that_differ_by_rounding_only(data):
    same_length = random_dataset(0, (5, 5, 5))
    nearly = replace(same_length, reward=np.full(15, 1 / 3, np.float32))
    assert sum(summarise(nearly)["return_histogram"]["counts"]) == 3


@pytest.mark.parametrize("large", ["obs", "action", "reward"])
@pytest.mark.parametrize("same", [False, True])
def test_the_largest_numbers(capsys, large, same):
    data = random_dataset(0, (5, 5, 5))
    values = getattr(data, large)
    huge = np.full_like(values, 3e38) if same else np.sign(values) * np.float32(3e38)
    data = replace(data, **{large: huge}, info={"env_id": "Hopper-v5"})
    summary = summarise(data)
    assert np.isfinite(summary["return"]["std"])
    assert np.isfinite(summary["action_saturation"]).all()
    assert sum(summary["return_histogram"]["counts"]) == 3
    show(data, summary, "x")


@pytest.mark.parametrize(("low", "high"), [("a", 1.0), (1.0, 1.0), (float("nan"), 1.0), (0.0, float("inf"))])
def test_reference_scores_that_are_none(data, low, high):
    named = replace(data, info={"ref_min_score": low, "ref_max_score": high})
    with pytest.raises(InputError, match="not two different numbers; correct them or leave them out"):
        summarise(named)


def test_counts_that_someone_else_wrote(data, capsys):
    odd = replace(data, info={"dropped_steps": "many", "unmarked_cuts": float("nan"), "split_by": 3})
    show(odd, summarise(odd), "x")
    assert "episodes split by 3" in " ".join(capsys.readouterr().out.split())


def test_the_numbers(data):
    obs = data.obs.copy()
    obs[:, 2] = 5
    obs[3] = obs[9]
    action = np.clip(3 * data.action, -1, 1)
    changed = replace(data, obs=obs, action=action, info={"env_id": "Hopper-v5", "dropped_steps": 4})
    s = summarise(changed)
    assert (s["episodes"], s["transitions"], s["obs_dim"], s["action_dim"]) == (4, 17, 4, 2)
    assert s["terminals"] + s["timeouts"] == 4
    assert s["constant_columns"] == [2]
    assert s["duplicate_states"] == 1
    assert s["length"]["max"] == 8
    assert s["return"]["mean"] == pytest.approx(data.returns.mean())
    assert sum(s["return_histogram"]["counts"]) == 4
    assert s["dropped_steps"] == 4
    assert s["action_saturation"] == pytest.approx((np.abs(action) == 1).mean(0))
    reference = 100 * (data.returns.mean() + 20.272305) / (3234.3 + 20.272305)
    assert s["normalised_return"]["mean"] == pytest.approx(reference)
    assert summarise(random_dataset(0, (3,)))["normalised_return"] is None


def test_weights(capsys):
    data = random_dataset(0, (10,) * 20)
    data = replace(data, reward=np.repeat(np.arange(20), 10).astype(np.float32))  # returns 0, 10, …, 190
    weight = np.repeat(np.arange(20), 10) * np.tile(np.repeat([0, 0, 1, 2, 2], 2), 20)
    data = replace(data, weight=normalised_weight(weight))
    w = summarise(data)["weights"]
    share = np.arange(20) / 190
    assert w["effective_steps"] == pytest.approx(weight.sum() ** 2 / (weight**2).sum())
    assert w["effective_share"] == pytest.approx(w["effective_steps"] / 200)
    assert w["max"] == pytest.approx(19 * 2 / weight.mean())
    assert w["best_tenth_share"] == pytest.approx(share[-2:].sum())
    assert w["mean_by_fifth"] == pytest.approx([0, 0, 1, 2, 2])
    assert w["return_spearman"] == pytest.approx(1)
    assert [t["trajectory"] for t in w["heaviest"]] == [19, 18, 17]
    assert [t["trajectory"] for t in w["lightest"]] == [0, 1, 2]
    assert w["heaviest"][0] == pytest.approx({"trajectory": 19, "return": 190, "mean_weight": 20 * share[19]})
    show(data, summarise(data), "x")
    table = capsys.readouterr().out
    for words in ("effective steps", "19.5% on the best", "correlation 1.00", "0.00  0.00  1.00  2.00  2.00"):
        assert words in table
    assert "19: 2.00 (return 190.0)  18: 1.89 (return 180.0)" in table


def test_weights_of_short_and_equal_trajectories(capsys):
    data = replace(random_dataset(0, (1, 2)), weight=np.ones(3, np.float32))
    w = summarise(data)["weights"]
    assert w["mean_by_fifth"] == [None, 1, 1, 1, None]  # the middles of the steps lie at 1/4, 1/2 and 3/4
    assert w["return_spearman"] is None
    assert len(w["heaviest"]) == len(w["lightest"]) == 2
    show(data, summarise(data), "x")
    assert "–  1.00  1.00  1.00  –" in capsys.readouterr().out


@pytest.mark.parametrize("width", [80, 60])
def test_the_table_of_episodes_is_not_cut(capsys, monkeypatch, width):
    """The condition of filter needs the names of the columns, whole where there are ten."""
    monkeypatch.setenv("COLUMNS", str(width))
    rng = np.random.default_rng(0)
    data = random_dataset(0, (5, 9, 3, 7) * 8)
    reward = (data.reward > 0).astype(np.float32)
    weight = normalised_weight(rng.exponential(size=data.transitions) ** 3)
    summary = summarise(replace(data, reward=reward, weight=weight))
    show_episodes(summary)
    lines = capsys.readouterr().out.splitlines()
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= width
    if width == 80:
        names = [name for name in EPISODE_COLUMNS if name != "duplicate"]
        assert lines[1].split() == names
        assert all(len(line.split()) == len(names) for line in lines[3:23])


def test_no_weights(data, capsys):
    assert summarise(data)["weights"] is None
    show(data, summarise(data), "x")
    assert "weight" not in capsys.readouterr().out


def test_convert_keeps_weights_unless_the_rewards_change(tmp_path, capsys):
    data = replace(random_dataset(0, (4, 3), obs_dim=2), weight=normalised_weight(np.arange(7)))
    a, b, c = (str(tmp_path / name) for name in ("a.hdf5", "b.traj", "c.npz"))
    save(data, a)
    assert main(["convert", a, b]) == 0
    assert load(b).fingerprint == data.fingerprint
    assert "left out" not in capsys.readouterr().out
    assert main(["convert", b, c, "--env", OWN, "--set-task"]) == 0
    assert load(c).weight is None
    assert "the weights are left out: they were made for other rewards" in capsys.readouterr().out
