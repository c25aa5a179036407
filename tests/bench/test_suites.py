"""Suites: names, data, cells, records, resuming and engines."""

import dataclasses
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pytest

from trajstitch.bench import cells, datasets, engine
from trajstitch.bench import grid as grids
from trajstitch.bench.grid import Cell, failure_path, make_grid, open_folder, record_path, stored_grid
from trajstitch.bench.published import published_score
from trajstitch.bench.suites import PRESET, RECIPES, REWARD_DATA, SUITES, TABLE1, chosen_settings, train_settings
from trajstitch.cli import main
from trajstitch.errors import InputError
from trajstitch.formats import load
from trajstitch.jobs import weigh as weighing
from trajstitch.methods import METHODS, configure
from trajstitch.policies.policy import acting

SMALL = ["--seeds", "2", "--steps", "4", "--workers", "1", "--quiet"]


def bench(out, *words):
    return main(["bench", "smoke", "--out", str(out), *SMALL, *words])


# -- names and grids ---------------------------------------------------------------------------------------------


def test_every_suite_is_a_grid_of_known_names():
    for name, suite in SUITES.items():
        grid = make_grid(name)
        stitching = sum(RECIPES[method].planner is not None for method in suite.methods)
        models = [method for method in suite.methods if RECIPES[method].method is None]
        plain = len(suite.methods) - stitching - len(models)
        policies = [cell for cell in grid.cells if cell.method not in models]
        assert len(policies) == len(suite.data) * (plain + suite.stitch_seeds * stitching)
        assert len(grid.cells) - len(policies) == len(models) * len(REWARD_DATA.keys() & set(suite.data))
        assert len({cell.name for cell in grid.cells}) == len(grid.cells)
        for cell in policies:  # every setting is one that the method has
            configure(cell.recipe.method, **train_settings(cell.recipe, cell.data, grid.preset, 7))
    assert {RECIPES[method].method for method in TABLE1} >= METHODS.keys() - {"gaussian-bc", "weighted-bc"}


def test_cells_that_work_side_by_side_are_of_different_data():
    found = make_grid("table1").cells
    assert len({cell.data for cell in found[:12]}) == 12
    built = [cell.recipe.planner is not None or cell.recipe.teacher is not None for cell in found]
    assert built == sorted(built)


def test_the_page_and_the_help_name_what_there_is(capsys):
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text()
    assert "eighteen methods" in page
    assert len(TABLE1) == 18
    methods = page[page.index("The methods of `table1`") : page.index("## Narrow or shrink")]
    assert [name for name in TABLE1 if f"`{name}`" not in methods] == []
    assert [name for name in (*PRESET, *SUITES) if f"`{name}`" not in page] == []
    with pytest.raises(SystemExit):
        main(["bench", "--help"])
    said = capsys.readouterr().out
    assert [name for name in (*PRESET, *SUITES) if name not in said] == []


def test_a_data_set_has_the_paper_s_rules():
    assert chosen_settings("td3tsbc", "hopper-replay") == {"rule": "hopper-medium-replay"}
    assert chosen_settings("mbop", "demo") == {}
    assert chosen_settings("mopo", "hopper-medium") == {"terminate": "env", "penalty": 5.0}
    assert chosen_settings("rebrac", "hopper-replay") == {"actor_penalty": 0.05, "critic_penalty": 0.5}
    assert chosen_settings("rebrac", "demo") == {}


def test_published_scores_are_those_of_the_table():
    methods = ("bc", "ts-bc", "td3tsbc", "tsmbop", "td3bc")
    assert [published_score(method, "hopper-medium-expert") for method in methods] == [
        62.3,
        94.8,
        109.1,
        110.4,
        98.0,
    ]
    assert published_score("ts-bc", "walker2d-replay") == 61.5
    assert [published_score("percent-bc", "hopper-medium", which) for which in ("last", "best")] == [55.5, 73.8]
    assert published_score("ts-bc", "hopper-medium", "best") is None
    assert published_score("iql", "hopper-expert") is None
    assert published_score("bc", "demo") is None
    nine = datasets.LOCOMOTION[:9]
    average = {
        method: sum(published_score(method, name) for name in nine) / 9 for method in (*methods, "percent-bc")
    }
    want = {"bc": 56.4, "ts-bc": 69.8, "td3tsbc": 79.4, "tsmbop": 77.5, "td3bc": 75.3, "percent-bc": 69.3}
    assert average == pytest.approx(want, abs=0.06)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["tabel1"], "there is no suite 'tabel1'; did you mean table1?"),
        (["table1", "--data", "hoper-medium"], "there is no data set 'hoper-medium'; did you mean hopper-medium?"),
        (["table1", "--methods", "bc", "iqll"], "there is no method 'iqll'; did you mean iql?"),
        (["table1", "--preset", "papr"], "there is no preset 'papr'; did you mean paper?"),
        (["table1", "--seeds", "0"], "--seeds must be at least 1, not 0"),
        (["smoke", "--workers", "0"], "--workers must be at least 1, not 0"),
        (["smoke", "--cell", "99"], "--cell 99 does not exist; the cells are 0 to 26"),
        (
            ["reward-models", "--methods", "reward-mlp", "--data", "hopper-expert"],
            "reward models are compared on hopper-medium, halfcheetah-medium, walker2d-medium, demo; give one",
        ),
        (
            ["expert-fraction", "--data", "hopper-fraction-15"],
            "there is no data set 'hopper-fraction-15'; did you mean hopper-fraction-",
        ),
        (
            ["expert-fraction", "--shared", "nowhere"],
            "hopper-fraction-0 is recorded from an expert; give with --shared a folder that has policies",
        ),
        (["smoke", "--engine", "rai"], "there is no engine 'rai'; did you mean ray?"),
        (
            ["smoke", "--engine", "slurm", "--together"],
            "--together shares one program, so it needs --engine local",
        ),
        (["smoke", "--address", "here:6379"], "--address is that of a Ray cluster; give --engine ray too"),
        (
            ["table1", "--shared", "nowhere"],
            "hopper-medium is not in the cache of D4RL's files; trajstitch inspect",
        ),
    ],
)
def test_mistakes_are_one_sentence_and_run_nothing(words, sentence, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TRAJSTITCH_CACHE", str(tmp_path / "cache"))
    assert main(["bench", words[0], "--out", str(tmp_path / "out"), *words[1:]]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"trajstitch: {sentence}")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists() or not (tmp_path / "out" / "records").exists()


# -- data --------------------------------------------------------------------------------------------------------


def test_a_misspelt_name_is_not_replay_data(tmp_path):
    for make in (datasets.make_data, datasets.record_data):
        with pytest.raises(InputError, match="there is no data set 'hopper-experts'; did you mean hopper-expert"):
            make("hopper-experts", tmp_path, 100)
    with pytest.raises(
        InputError, match="tqc-hopper-expert.npz, which hopper-expert is made from, does not exist"
    ):
        datasets.record_data("hopper-expert", tmp_path, 100)


def test_d4rl_s_files_come_first_where_the_cache_has_them(shared, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAJSTITCH_CACHE", str(tmp_path))
    name = "hopper-medium-replay"
    assert not datasets.in_cache(name)
    ours = datasets.make_data(name, shared, 300)
    assert ours.info["source"] == "replay of a SAC agent, hopper-replay.hdf5"
    (tmp_path / "d4rl").mkdir()
    excerpt = (shared / "d4rl-excerpts" / "hopper_medium_replay-v1.hdf5").read_bytes()
    (tmp_path / "d4rl" / "hopper_medium_replay-v2.hdf5").write_bytes(excerpt)
    assert datasets.in_cache(name)
    assert datasets.make_data(name, shared, 300).info["source"] == "d4rl:hopper-medium-replay-v2"
    for recorded in (datasets.record_data(name, shared, 300), datasets.make_data("hopper-replay", shared, 300)):
        assert recorded.fingerprint == ours.fingerprint


def test_a_mixture_has_equal_shares_of_its_policies(tmp_path, monkeypatch, data):
    (tmp_path / "policies").mkdir()
    files = [tmp_path / "policies" / name for name in ("d4rl-walker2d-medium-v2.npz", "tqc-walker2d-expert.npz")]
    for file in files:
        file.touch()
    asked = []
    monkeypatch.setattr(
        datasets, "collect_mixture", lambda *words, **options: asked.append((words, options)) or data
    )
    made = datasets.record_data("walker2d-medium-expert", tmp_path, 500)
    (shares, env_id, steps), options = asked[0]
    assert shares == [(str(file), 0.5) for file in files]
    assert (env_id, steps, options["physics"]) == ("Walker2d-v4", 500, "d4rl")
    words = "recorded from d4rl-walker2d-medium-v2.npz and tqc-walker2d-expert.npz, D4RL's physics"
    assert made.info["source"] == words


def test_what_each_kind_is_recorded_from():
    made = {kind: datasets.recorded_from(f"hopper-{kind}", Path("s")) for kind in (*datasets.KINDS, "replay")}
    names = {kind: [file.name for file in files] for kind, files in made.items()}
    medium, expert, replay = "d4rl-hopper-medium-v2.npz", "tqc-hopper-expert.npz", "hopper-replay.hdf5"
    assert names == {
        "medium": [medium],
        "medium-expert": [medium, expert],
        "medium-replay": [replay],
        "expert": [expert],
        "replay": [replay],
    }


# -- folders -----------------------------------------------------------------------------------------------------


def test_a_folder_keeps_its_sizes_and_grows(tmp_path):
    out = tmp_path / "out"
    open_folder(out, make_grid("table1", data=("hopper-medium",), methods=("bc",), steps=10))
    open_folder(out, make_grid("table1", data=("walker2d-medium",), methods=("bc", "iql"), steps=10))
    assert stored_grid(out).data == ("hopper-medium", "walker2d-medium")
    assert stored_grid(out).methods == ("bc", "iql")
    with pytest.raises(InputError, match="was made with steps 10, not 20; choose another --out"):
        open_folder(out, make_grid("table1", steps=20))
    with pytest.raises(InputError, match="was made with suite table1, not smoke"):
        open_folder(out, make_grid("smoke", steps=10))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="is not a folder of trajstitch bench"):
        open_folder(tmp_path / "other", make_grid("smoke"))


# -- running -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A small part of the suite `smoke`, stopped after its first cell and continued."""
    folder = tmp_path_factory.mktemp("bench") / "out"
    grid = make_grid("smoke", seeds=2, steps=4, methods=("bc", "ts-bc-1", "ts-bc", "weighted"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_attempt", _killed_at_the_second(engine._attempt))
        open_folder(folder, grid)
        with pytest.raises(KeyboardInterrupt):
            engine.run_local(folder, Path("shared"), grid, grid.cells, 1)
    assert len(list(folder.glob("records/*/*.json"))) == 1
    assert bench(folder, "--methods", *grid.methods) == 0
    return folder


def _killed_at_the_second(attempt):
    ran = []

    def wrapped(*arguments):
        ran.append(arguments)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return attempt(*arguments)

    return wrapped


def record(out, name):
    return json.loads((out / "records" / "demo" / f"{name}.json").read_text())


def test_a_record_has_everything_to_run_the_cell_again(out):
    made = record(out, "ts-bc.s0")
    data = load(out / "data" / "demo" / "data.traj")
    assert made["cell"] == {"data": "demo", "method": "ts-bc", "stitch_seed": 0}
    assert made["data"]["fingerprint"] == data.fingerprint
    assert made["data"]["source"].startswith("the last 230 episodes")
    assert made["seeds"] == [0, 1]
    assert made["settings"]["train"]["config"]["fit"]["steps"] == 4
    assert made["settings"]["improve"]["planner"] == "greedy"
    assert made["versions"]["trajstitch"]
    assert made["made"]["machine"]["cores"] >= 1
    assert made["made"]["seconds"].keys() == {"data", "stitch", "train", "score"}
    assert made["step"] == [2, 4]
    assert [len(made["returns"]), len(made["returns"][0]), len(made["returns"][0][0])] == [2, 2, 1]
    assert made["last"]["raw"]["per_seed"] == [episodes[0] for episodes in made["returns"][-1]]
    best = [max(checkpoint[seed][0] for checkpoint in made["returns"]) for seed in range(2)]
    assert made["best"]["raw"]["per_seed"] == best


def test_the_data_after_an_iteration_are_those_of_that_iteration(out):
    folder = out / "data" / "demo" / "greedy.s0"
    done = json.loads((folder / "result.json").read_text())["iterations"]
    first = record(out, "ts-bc-1.s0")["stitched"]
    last = record(out, "ts-bc.s0")["stitched"]
    assert last["fingerprint"] == load(folder / "improved.traj").fingerprint
    assert [entry["accepted"] > 0 for entry in done] == [True, True]
    assert [first["return_mean"], last["return_mean"]] == pytest.approx([entry["return_mean"] for entry in done])
    assert first["return_mean"] < last["return_mean"]
    assert record(out, "bc")["data"]["fingerprint"] == record(out, "bc")["cloned"]["fingerprint"]
    assert (
        record(out, "weighted")["cloned"]["effective_steps"] < record(out, "weighted")["data"]["transitions"] / 2
    )


def test_finished_cells_are_not_run_again(out, monkeypatch):
    monkeypatch.setattr(cells, "train_run", lambda *_, **__: pytest.fail("ran again"))
    assert bench(out, "--methods", "bc", "ts-bc") == 0


def test_a_suite_runs_without_the_command_line(out, tmp_path):
    failures = engine.run_suite("smoke", tmp_path / "out", workers=1, seeds=2, steps=4, methods=("bc",))
    assert failures == {}
    made = json.loads((tmp_path / "out" / "records" / "demo" / "bc.json").read_text())
    assert made.pop("made")
    assert made == {name: value for name, value in record(out, "bc").items() if name != "made"}
    with pytest.raises(InputError, match="there is no suite 'smokes'"):
        engine.run_suite("smokes", tmp_path / "other")


def test_a_cell_that_is_run_again_has_the_same_record(out):
    file = out / "records" / "demo" / "bc.json"
    before = json.loads(file.read_text())
    file.unlink()
    assert bench(out, "--methods", "bc") == 0
    after = json.loads(file.read_text())
    assert after.pop("made")["resumed"]
    before.pop("made")
    assert after == before


def test_what_a_killed_call_left_is_removed(tmp_path):
    data, other = (tmp_path / "data" / "demo" / name for name in ("data.traj", "other.traj"))
    with cells.waiting_for(other):  # another process may be writing it
        parts = [path.with_name(f".{path.name}.0123abcd.part") for path in (data, other)]
        for part in parts:
            part.mkdir(parents=True)
        cells.load_or_make(tmp_path, Path("shared"), make_grid("smoke"), "demo")
    assert [part.exists() for part in parts] == [False, True]


def test_a_failed_cell_does_not_stop_the_others(out, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cells, "scoring_of", _fails_for_percent_bc(cells.scoring_of))
    words = ["--methods", "percent-bc", "bc"]
    assert bench(tmp_path / "out", *words) == 2
    assert "1 of 2 cells failed, the first, demo/percent-bc: no room" in capsys.readouterr().err
    failed = tmp_path / "out" / "records" / "demo" / "percent-bc.failed"
    assert failed.read_text() == "no room\n"
    assert (tmp_path / "out" / "records" / "demo" / "bc.json").exists()
    assert main(["report", str(tmp_path / "out")]) == 0
    assert "| demo | percent-bc | no room |" in capsys.readouterr().out
    monkeypatch.undo()
    assert bench(tmp_path / "out", *words) == 0
    assert not failed.exists()


def _fails_for_percent_bc(scoring):
    calls = []

    def wrapped(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise InputError("no room")
        return scoring(*arguments)

    return wrapped


# -- engines -----------------------------------------------------------------------------------------------------


def test_slurm_s_script_runs_every_cell_once(tmp_path, capsys, monkeypatch):
    words = [
        "--data",
        "hopper-medium",
        "walker2d-medium",
        "--methods",
        "bc",
        "ts-bc",
        "--seed",
        "3",
        "--steps",
        "9",
    ]
    place = tmp_path / "a folder"
    assert (
        main(["bench", "table1", "--out", str(place), *words, "--engine", "slurm", "--workers", "4", "--json"])
        == 0
    )
    script = json.loads(capsys.readouterr().out.splitlines()[-1])["script"]
    grid = make_grid("table1", 3, data=("hopper-medium", "walker2d-medium"), methods=("bc", "ts-bc"), steps=9)
    assert f"#SBATCH --array=0-{len(grid.cells) - 1}%4" in script
    assert len(grid.cells) == 2 + 2 * 3
    line = script.splitlines()[-1]
    assert f"--out '{place}' --data hopper-medium walker2d-medium --methods bc ts-bc --steps 9" in line
    assert line.endswith("--seed 3 --workers 1 --quiet --cell $SLURM_ARRAY_TASK_ID")
    assert not place.exists()
    monkeypatch.setenv("PJRT_NPROC", "1")  # which the command sets, and the test takes back
    assert main(["bench", "table1", "--out", str(place), *words, "--engine", "slurm", "--one-thread"]) == 0
    assert "--seed 3 --one-thread --workers 1 --quiet --cell" in " ".join(capsys.readouterr().out.split())


def test_policies_of_different_stitching_seeds_have_different_seeds():
    grid = make_grid("table1", seed=7)
    ranges = [cells.policy_seeds(grid, Cell("hopper-medium", "ts-bc", seed)) for seed in (7, 8, 9)]
    assert [len(seeds) for seeds in ranges] == [5, 5, 5]
    assert len({seed for seeds in ranges for seed in seeds}) == 15
    assert cells.policy_seeds(grid, Cell("hopper-medium", "bc")) == range(7, 12)


def test_a_process_that_dies_takes_its_own_cell_with_it(tmp_path, monkeypatch):
    grid = dataclasses.replace(make_grid("smoke"), methods=("bc", "percent-bc"))
    open_folder(tmp_path / "out", grid)
    monkeypatch.setattr(engine, "_in_process", _dies_in_the_first_cell)
    told = []
    failures = engine.run_local(
        tmp_path / "out", Path("shared"), grid, grid.cells, 2, lambda *words: told.append(words)
    )
    assert failures == {
        "demo/bc": "its process ended with code 9; run it again, with fewer --workers if memory was short",
        "demo/percent-bc": "the second sentence",
    }
    assert [words[:2] for words in told] == [(0, 2), (1, 2), (2, 2)]
    assert (tmp_path / "out" / "records" / "demo" / "percent-bc.failed").read_text() == "the second sentence\n"


def _dies_in_the_first_cell(out, shared, grid, job):
    (cell,) = job.cells
    if cell.method == "bc":
        os._exit(9)
    failure_path(out, cell).parent.mkdir(parents=True, exist_ok=True)
    failure_path(out, cell).write_text("the second sentence\n")


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"file.*cannot be written"):
        open_folder(tmp_path / "file" / "out", make_grid("smoke"))
    assert (tmp_path / "file").read_text() == "mine"


def test_calls_side_by_side_lose_nothing_that_was_asked_for(tmp_path, monkeypatch):
    """Each adds a method of its own to the folder, slowly, while the others are at it."""
    methods = ("bc", "percent-bc", "iql", "td3bc")
    open_folder(tmp_path, make_grid("smoke", methods=methods[:1]))
    read = grids.stored_grid

    def slowly(out):
        found = read(out)
        time.sleep(0.1)
        return found

    monkeypatch.setattr(grids, "stored_grid", slowly)
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: open_folder(tmp_path, make_grid("smoke", methods=(name,))), methods))
    assert sorted(read(tmp_path).methods) == sorted(methods)


def test_data_sets_of_a_method_share_a_program(tmp_path, monkeypatch):
    sizes = {"seeds": 2, "steps": 4, "methods": ("bc", "weighted"), "data": ("demo", "demo-random")}
    grid = make_grid("smoke", **sizes)
    done, trained = [], []
    monkeypatch.setattr(engine, "_attempt", _counting(engine._attempt, done))
    assert engine.run_suite("smoke", tmp_path / "together", workers=1, together=True, **sizes) == {}
    assert [(job.part, *[cell.name for cell in job.cells]) for job in done] == [
        ("record", "demo/bc", "demo/weighted"),
        ("record", "demo-random/bc", "demo-random/weighted"),
        ("weigh", "demo/weighted", "demo-random/weighted"),
        ("make", "demo/weighted"),
        ("make", "demo-random/weighted"),
        ("train", "demo/bc", "demo-random/bc"),
        ("train", "demo/weighted", "demo-random/weighted"),
        *(("run", cell.name) for cell in grid.cells),
    ]
    assert engine.run_suite("smoke", tmp_path / "alone", workers=1, **sizes) == {}
    for cell in grid.cells:
        ours, theirs = (json.loads(record_path(tmp_path / way, cell).read_text()) for way in ("together", "alone"))
        here, there = ours.pop("made"), theirs.pop("made")
        assert not here["resumed"]
        assert here["together"]["cells"] == [one.name for one in grid.cells if one.method == cell.method]
        assert here["together"]["seconds"]["train"] > here["seconds"]["train"]
        assert "together" not in there
        assert ours.keys() == theirs.keys()
        assert ours["settings"] == theirs["settings"]
        np.testing.assert_allclose(ours["returns"], theirs["returns"], rtol=1e-3)
    monkeypatch.setattr(cells, "train_together", lambda *words, **_: trained.append(words))
    cells.train_cells(tmp_path / "together", Path("shared"), grid, grid.cells)
    assert trained == []  # all are finished


def test_critics_of_data_sets_share_a_program(tmp_path, monkeypatch, caplog):
    """Rows that weigh the same data share critics; those of stitched data are made with the data."""
    methods = ("weighted", "guided-weighted", "ts-weighted", "bc")
    grid = make_grid("smoke", methods=methods, data=("demo", "demo-random"), seeds=1, steps=4)
    ((_, group),) = [job for job in engine.plan_jobs(grid, grid.cells, together=True) if job.part == "weigh"]
    assert {(cell.data, cell.method) for cell in group} == {
        (data, method) for data in grid.data for method in methods[:2]
    }
    open_folder(tmp_path, grid)
    cells.make_critics(tmp_path, Path("shared"), grid, group)
    monkeypatch.setattr(weighing, "_train_and_appraise", lambda *_: pytest.fail("trained again"))
    for name in grid.data:
        weight = cells.make_sources(tmp_path, Path("shared"), grid, Cell(name, "weighted")).cloned.weight
        assert weight is not None

    def fails(*_, **__):
        raise InputError("no room")

    monkeypatch.setattr(cells, "weigh_together", fails)
    engine._attempt(tmp_path, Path("shared"), grid, engine.Job("weigh", group[:2]))
    (said,) = caplog.messages
    assert said.startswith(
        "the critics of demo/weighted and demo-random/weighted cannot be trained in one program"
    )


def test_a_program_that_was_stopped_is_resumed(tmp_path, monkeypatch):
    sizes = {"seeds": 1, "steps": 4, "methods": ("bc",), "data": ("demo", "demo-random")}
    with monkeypatch.context() as patch:
        patch.setattr(cells, "train_together", _stopped(cells.train_together))
        with pytest.raises(KeyboardInterrupt):
            engine.run_suite("smoke", tmp_path, workers=1, together=True, **sizes)
    assert engine.run_suite("smoke", tmp_path, workers=1, together=True, **sizes) == {}
    assert record(tmp_path, "bc")["made"]["resumed"]


def test_a_program_that_ended_is_not_run_again(tmp_path, monkeypatch):
    sizes = {"seeds": 1, "steps": 4, "methods": ("bc",), "data": ("demo", "demo-random")}
    with monkeypatch.context() as patch:
        patch.setattr(cells, "_train", _stopped(lambda *_: None))
        with pytest.raises(KeyboardInterrupt):
            engine.run_suite("smoke", tmp_path, workers=1, together=True, **sizes)
    program = json.loads((tmp_path / "runs" / "demo" / "bc" / "timings.json").read_text())
    monkeypatch.setattr(cells, "train_together", lambda *_, **__: pytest.fail("trained again"))
    assert engine.run_suite("smoke", tmp_path, workers=1, together=True, **sizes) == {}
    made = record(tmp_path, "bc")["made"]
    assert {**made["together"], "resumed": made["resumed"]} == program


@pytest.mark.parametrize("together", [False, True])
def test_a_cell_of_impossible_settings_leaves_the_others_alone(together):
    """It says what is wrong when it is run: of two steps none can be the switch."""
    grid = make_grid("smoke", methods=("bc", "td3tsbc"), data=("demo", "demo-random"), steps=2)
    jobs = engine.plan_jobs(grid, grid.cells, together)
    assert [job.cells[0] for job in jobs if job.part == "run"] == grid.cells
    assert {cell.method for job in jobs if job.part == "train" for cell in job.cells} == (
        {"bc"} if together else set()
    )


def test_a_cell_whose_scoring_was_stopped_is_resumed_too(tmp_path):
    program = {"cells": ["demo/bc"], "seconds": {"train": 2.0}}
    (tmp_path / "timings.json").write_text(json.dumps({**program, "resumed": False}))
    assert cells._made_before(tmp_path) == {"resumed": False, "together": program}
    (tmp_path / "scores").mkdir()
    assert cells._made_before(tmp_path) == {"resumed": True, "together": program}
    (tmp_path / "timings.json").write_text("{")
    with pytest.raises(InputError, match=r"timings\.json: this file is damaged"):
        cells._made_before(tmp_path)


def _stopped(train):
    def wrapped(*arguments, **options):
        train(*arguments, **options)
        raise KeyboardInterrupt

    return wrapped


def test_a_program_that_fails_is_told_and_its_cells_run_alone(tmp_path, monkeypatch, caplog):
    def fails(*_, **__):
        raise InputError("no room")

    sizes = {"seeds": 1, "steps": 4, "methods": ("bc",), "data": ("demo", "demo-random")}
    monkeypatch.setattr(cells, "train_together", fails)
    assert engine.run_suite("smoke", tmp_path, workers=1, together=True, **sizes) == {}
    (said,) = caplog.messages
    assert said == (
        "demo/bc and demo-random/bc cannot be trained in one program (no room); each is trained on its own"
    )
    assert "together" not in record(tmp_path, "bc")["made"]


def test_a_program_whose_process_dies_is_told(tmp_path, monkeypatch, caplog):
    grid = make_grid("smoke", methods=("bc",), data=("demo", "demo-random"))
    open_folder(tmp_path, grid)
    monkeypatch.setattr(engine, "_attempt", lambda *_: None)
    monkeypatch.setattr(engine.multiprocessing, "get_context", lambda method: SimpleNamespace(Process=_Dying))
    engine.run_local(tmp_path, Path("shared"), grid, grid.cells, 2, together=True)
    assert [said.partition("(")[2] for said in caplog.messages] == [
        "the process ended with code -9); each is trained on its own"
    ]


def test_calls_that_name_data_in_another_order_do_not_wait_for_each_other(tmp_path, monkeypatch):
    grid = make_grid("smoke", methods=("bc",), data=("demo", "demo-random"))
    locked = []

    @contextmanager
    def noting(target):
        locked.append(target.parent.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()  # as if another call had run it
        yield

    monkeypatch.setattr(cells, "waiting_for", noting)
    for order in (grid.cells, grid.cells[::-1]):
        cells.train_cells(tmp_path, Path("shared"), grid, order)
    assert locked[:2] == locked[2:]


def _counting(attempt, seen):
    def wrapped(out, shared, grid, job):
        seen.append(job)
        return attempt(out, shared, grid, job)

    return wrapped


def test_what_can_share_a_program():
    grid = make_grid("table1", data=("hopper-medium", "walker2d-medium", "halfcheetah-expert"), preset="short")
    jobs = engine.plan_jobs(grid, grid.cells, together=True)
    shared = [job.cells for job in jobs if job.part == "train"]
    assert {group[0].method for group in shared} == {
        *(
            "bc",
            "percent-bc",
            "weighted",
            "iql",
            "td3bc",
            "rebrac",
            "cql",
        ),  # mbop plans by a rule of each data set
        *("ts-bc", "composed", "distilled", "guided", "guided-weighted"),
    }
    for group in shared:  # walker2d and halfcheetah are of one size; members of a program have one first seed
        assert [cell.data for cell in group] == ["walker2d-medium", "halfcheetah-expert"]
        assert len({cell.stitch_seed for cell in group}) == 1
    made = [job.cells for job in jobs if job.part == "make"]
    assert sorted(tuple(c.method for c in group) for group in made if group[0].data == "walker2d-medium") == [
        *[("composed",)] * 3,
        ("distilled",),
        *[("ts-bc",)] * 3,
        ("weighted", "guided-weighted"),
    ]
    alone = engine.plan_jobs(grid, grid.cells, together=False)
    assert alone == [engine.Job("run", (cell,)) for cell in grid.cells]
    ((_, weighed),) = [job for job in jobs if job.part == "weigh"]
    assert [cell.name for cell in weighed] == [
        f"{data}/{method}" for method in ("weighted", "guided-weighted") for data in grid.data[1:]
    ]
    (weigh,) = (job for job in jobs if job.part == "make" and job.cells[0].name == "walker2d-medium/weighted")
    assert engine._is_ready(weigh, alone)  # what is made for both needs no teacher
    alike = make_grid("table1", data=("hopper-replay", "hopper-medium-replay"), methods=("mbop",))
    assert len(engine.plan_jobs(alike, alike.cells, together=True)) == 1 + 1 + 1 + 2


@pytest.mark.parametrize("workers", [1, 3])
def test_what_cells_need_comes_before_them(workers, tmp_path, monkeypatch):
    grid = make_grid("smoke", methods=("bc", "distilled", "rebrac", "guided"), data=("demo", "demo-random"))
    open_folder(tmp_path, grid)
    monkeypatch.setattr(engine, "_attempt", _noting)
    monkeypatch.setattr(engine.multiprocessing, "get_context", lambda method: SimpleNamespace(Process=_Thread))
    engine.run_local(tmp_path, Path("shared"), grid, grid.cells, workers, together=True)
    order = (tmp_path / "order").read_text().split()
    begun = {name: order.index(f"begin:{name}") for name in {word.split(":", 1)[1] for word in order}}
    ended = {name: order.index(f"end:{name}") for name in begun}
    assert len(begun) == 2 + 2 + 4 + 8  # data sets, what the teachers do in them, programs, and every cell
    for data in ("demo", "demo-random"):
        every = "+".join(f"{data}/{method}" for method in ("bc", "rebrac", "distilled", "guided"))
        for method in ("bc", "rebrac", "distilled", "guided"):
            program = f"train:demo/{method}+demo-random/{method}"
            assert ended[f"record:{every}"] < begun[program] < ended[program] < begun[f"run:{data}/{method}"]
        made = f"make:{data}/distilled"
        assert (
            ended[f"run:{data}/rebrac"]
            < begun[made]
            < ended[made]
            < begun["train:demo/distilled+demo-random/distilled"]
        )
        assert ended[f"run:{data}/rebrac"] < begun["train:demo/guided+demo-random/guided"]


class _Dying:
    """A process that the system kills before it does anything."""

    exitcode = -9

    def __init__(self, target, args):
        self.sentinel, self.end = os.pipe()

    def start(self):
        os.close(self.end)

    def join(self):
        pass


class _Thread(Thread):
    """A thread that looks like a process, and starts at once."""

    exitcode = 0

    def __init__(self, target, args):
        super().__init__(target=lambda: (engine._attempt(*args), os.close(self.end)))
        self.sentinel, self.end = os.pipe()


def _noting(out, shared, grid, job):
    name = f"{job.part}:" + "+".join(cell.name for cell in job.cells)
    for word in ("begin", "end"):
        with (out / "order").open("a") as file:
            file.write(f"{word}:{name}\n")
        time.sleep(0.05)


# -- teachers ----------------------------------------------------------------------------------------------------


def test_a_teacher_is_trained_once_and_distilled(tmp_path, monkeypatch):
    sizes = {"seeds": 2, "steps": 4, "workers": 1}
    pupils = ("distilled", "guided", "guided-weighted")
    assert engine.run_suite("smoke", tmp_path, methods=pupils, **sizes) == {}
    assert make_grid("smoke", methods=pupils).cells[0].teacher == Cell("demo", "rebrac")
    made = {name: record(tmp_path, name) for name in ("rebrac", *pupils)}  # the teacher has a record of its own
    data = load(tmp_path / "data" / "demo" / "data.traj")
    assert made["distilled"]["cloned"]["transitions"] == data.transitions  # one step from every state
    assert made["distilled"]["cloned"]["effective_steps"] is None
    share = [made[name]["cloned"]["effective_steps"] / data.transitions for name in pupils[1:]]
    assert share == pytest.approx([0.1, 0.1], rel=0.05)
    assert made["guided"]["settings"]["weigh"] == made["guided-weighted"]["settings"]["weigh"]
    assert "weigh" not in made["distilled"]["settings"]
    assert [made[name]["settings"]["teacher"] for name in pupils] == [made["rebrac"]["settings"]["train"]] * 3
    ran = json.loads((tmp_path / "data" / "demo" / "rebrac" / "config.json").read_text())["settings"]["config"]
    assert made["distilled"]["settings"]["improve"] == ran
    assert ran["planner"] == "policy"
    assert "improve" not in made["guided"]["settings"]
    # Resumed on another machine, where the last digits of what the teacher does may differ.
    monkeypatch.setattr(cells, "acting", lambda policies: lambda obs: 0.999 * acting(policies)(obs))
    for name in pupils[1:]:
        (tmp_path / "records" / "demo" / f"{name}.json").unlink()
    assert engine.run_suite("smoke", tmp_path, methods=pupils, **sizes) == {}
    assert {name: record(tmp_path, name)["cloned"] for name in pupils} == {
        name: made[name]["cloned"] for name in pupils
    }
