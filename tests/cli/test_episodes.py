"""filter, merge, and the page of inspect."""

import json
from dataclasses import replace

import numpy as np
import pytest

from trajstitch.cli import main
from trajstitch.data import concatenate
from trajstitch.formats import load, save
from worlds import random_dataset, same


@pytest.fixture
def file(tmp_path):
    data = random_dataset(0, (5, 9, 3, 7))
    save(replace(data, info={"env_id": "Some-v0", "fps": 5}), tmp_path / "x.npz")
    return tmp_path / "x.npz"


def test_filter_keeps_what_meets_the_condition(file, tmp_path, capsys):
    before = file.read_bytes()
    out = tmp_path / "long.hdf5"
    assert main(["filter", str(file), "--where", "length > 4 and jumps >= 0", "--out", str(out), "--json"]) == 0
    data = load(file)
    kept = load(out)
    assert same(kept, data[[0, 1, 3]])
    assert kept.info["filtered_by"] == "length > 4 and jumps >= 0"
    assert file.read_bytes() == before
    record = json.loads((tmp_path / "long.hdf5.left-out.json").read_text())
    assert [(entry["episode"], entry["length"]) for entry in record["left_out"]] == [(2, 3)]
    assert record["sources"][0]["fingerprint"] == data.fingerprint
    assert record["kept"] == 3
    said = capsys.readouterr().out
    assert "3 of 4 episodes kept" in said
    assert json.loads(said.splitlines()[-1])["left_out"] == record["left_out"]


def test_filter_keeps_the_videos_side_of_lerobot(file, tmp_path):
    """The origin goes with the episodes, through the command too."""
    source = tmp_path / "robot"
    save(load(file), f"lerobot:{source}")
    words = ["filter", str(source), "--where", "length == 9", "--out", f"lerobot:{tmp_path / 'kept'}", "--quiet"]
    assert main(words) == 0
    assert same(load(tmp_path / "kept"), load(file)[[1]])
    record = json.loads((tmp_path / "kept.left-out.json").read_text())
    assert record["left_out"][0]["origin"].endswith("robot#0")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--where", "length > 100"], "no episode of"),
        (["--where", "lenght > 1"], "did you mean length?"),
        (["--where", "weight > 1"], "weight is not known of these data"),
        (["--where", "length > 1", "--record", "notes.txt"], "ends in .json"),
    ],
)
def test_filter_refuses(file, tmp_path, capsys, words, sentence):
    assert main(["filter", str(file), *words, "--out", str(tmp_path / "y.npz")]) == 2
    assert sentence in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["x.npz"]


def test_outputs_are_checked_first(file, tmp_path, capsys):
    (tmp_path / "y.npz.left-out.json").write_text("mine")
    assert main(["filter", str(file), "--where", "length > 4", "--out", str(tmp_path / "y.npz")]) == 2
    assert "y.npz.left-out.json exists already" in capsys.readouterr().err
    assert not (tmp_path / "y.npz").exists()
    assert main(["filter", str(file), "--where", "length > 4", "--out", str(file), "--overwrite"]) == 2
    assert "which would replace it" in capsys.readouterr().err


def test_merge_with_and_without_duplicates(file, tmp_path, capsys):
    other = replace(random_dataset(1, (4, 2)), info={"env_id": "Some-v0", "fps": 9})
    both = concatenate([other, load(file)[:1]])
    save(replace(both, info=other.info), tmp_path / "other.npz")
    names = [str(file), str(tmp_path / "other.npz")]
    assert main(["merge", *names, "--out", str(tmp_path / "all.npz")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "differ in it: fps" in said
    assert "duplicates" not in said  # nobody looked for them
    assert same(load(tmp_path / "all.npz"), concatenate([load(file), both]))
    assert load(tmp_path / "all.npz").info == {"env_id": "Some-v0"}
    assert main(["merge", *names, "--out", str(tmp_path / "new.npz"), "--drop-duplicates"]) == 0
    assert ", without 1 duplicates" in " ".join(capsys.readouterr().out.split())
    assert same(load(tmp_path / "new.npz"), concatenate([load(file), other]))
    record = json.loads((tmp_path / "new.npz.left-out.json").read_text())
    assert [(entry["source"], entry["episode"]) for entry in record["left_out"]] == [(names[1], 2)]
    assert record["info_left_out"] == ["fps"]


def test_merge_refuses_one_data_set(file, tmp_path, capsys):
    """What it names in its place does what was wanted."""
    data = load(file)
    save(concatenate([data, data[:1]]), tmp_path / "twice.npz")
    words = [str(tmp_path / "twice.npz"), "--out", str(tmp_path / "y.npz")]
    assert main(["merge", *words, "--drop-duplicates"]) == 2
    assert "merge needs at least two data sets; to copy one use convert" in capsys.readouterr().err
    assert not (tmp_path / "y.npz").exists()
    assert main(["filter", *words, "--where", "duplicate < 0"]) == 0
    assert same(load(tmp_path / "y.npz"), data)


def test_merge_refuses_other_sizes(file, tmp_path, capsys):
    save(random_dataset(0, (3,), obs_dim=7), tmp_path / "wide.npz")
    assert main(["merge", str(file), str(tmp_path / "wide.npz"), "--out", str(tmp_path / "y.npz")]) == 2
    assert "different obs_dim" in capsys.readouterr().err
    assert not (tmp_path / "y.npz").exists()


def test_inspect_says_it_in_every_way(file, tmp_path, capsys):
    data = load(file)
    odd = replace(concatenate([data, data, data, data[:1]]), reward=np.zeros(77, np.float32))
    save(odd, tmp_path / "odd.npz")
    page = tmp_path / "odd.html"
    assert main(["inspect", str(tmp_path / "odd.npz"), "--html", str(page), "--json"]) == 0
    said = capsys.readouterr().out
    summary = json.loads(said.splitlines()[-1])
    assert len(summary["per_episode"]) == 13
    assert summary["per_episode"][4]["duplicate"] == 0
    assert summary["per_episode"][0]["return"] is None
    assert {"episode": 12, "why": summary["per_episode"][12]["outlier"]} in summary["outliers"]
    assert "all rewards are 0" in said
    assert "episode 12: the same as episode 0" in said
    html = page.read_text()
    assert "the same as episode 0" in html
    assert "<td>12" in html
    assert html.count("<svg") >= 3
    assert "no rewards" in html


def test_the_page_is_checked_first(file, tmp_path, capsys):
    assert main(["inspect", str(file), "--html", str(tmp_path / "x.txt")]) == 2
    assert "ends in .html" in capsys.readouterr().err
    (tmp_path / "x.html").write_text("mine")
    assert main(["inspect", str(file), "--html", str(tmp_path / "x.html")]) == 2
    assert "exists already" in capsys.readouterr().err
