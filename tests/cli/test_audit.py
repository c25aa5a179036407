"""`trajstitch audit` end to end: a run and a file, the report, the data it writes, and every mistake."""

import dataclasses
import json

import numpy as np
import pytest

from trajstitch.cli import main
from trajstitch.data import Dataset, Seams
from trajstitch.evaluation.collect import collect
from trajstitch.formats import load, save
from trajstitch.jobs.improve import write_report
from trajstitch.jobs.run_dir import Run
from trajstitch.stitching.improve import Improve, Result

SECTION = "<h2>Replayed in the simulator</h2>"


@pytest.fixture
def call(capsys):
    def call(*words):
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, " ".join(out.split()), err

    return call


@pytest.fixture(scope="module")
def original() -> Dataset:
    return collect("random", "Hopper-v5", 300)


@pytest.fixture(scope="module")
def improved(original) -> Dataset:
    """Steps 5, 25, 45, … have wrong actions; those are the seams, and the model promises what it likes."""
    step = np.arange(5, 300, 20)
    action, mark = original.action.copy(), np.zeros(original.transitions, bool)
    action[step], mark[step] = -action[step], True
    none = np.zeros(original.transitions, np.float32)
    error = np.where(mark, np.linspace(0.1, 2, original.transitions), 0).astype(np.float32)
    row = original.row
    seams = Seams(row, row + 1, mark, none + mark, none, none, original.returns, error)
    info = {**original.info, "improved_from": original.fingerprint}
    return dataclasses.replace(original, action=action, seams=seams, info=info)


@pytest.fixture
def run(original, improved, tmp_path) -> Run:
    """What improve would have left."""
    settings = {
        "config": dataclasses.asdict(Improve()),
        "seed": 0,
        "data": {"fingerprint": original.fingerprint, "info": dict(original.info)},
    }
    run = Run.open(tmp_path / "run", settings)
    save(improved, run.path / "improved.hdf5")
    write_report(run, original, Result(improved, []))
    return run


def test_audit_of_a_run(call, run, original, improved, tmp_path):
    assert SECTION not in (run.path / "report.html").read_text()
    data = tmp_path / "original.npz"
    save(original, data)
    code, out, err = call("audit", run.path, "--data", data)
    assert code == 0, err
    for words in (
        "15 of 15 seams replayed",
        "recorded steps, replayed (the floor)",
        "distance bridged",
        "by promise",
    ):
        assert words in out
    text, page = (run.path / "audit.json").read_text(), (run.path / "report.html").read_text()
    stored = json.loads(text)
    assert stored["settings"]["env"] == "Hopper-v5"
    assert stored["settings"]["original"] == original.fingerprint
    assert stored["seams"]["replayed"] == 15
    assert len(stored["points"]["promised"]) == len(stored["points"]["landing"]) == 15
    assert page.count(SECTION) == 1
    assert "Promised and real" in page

    assert call("audit", run.path, "--data", data, "--quiet")[:2] == (0, "")
    assert (run.path / "audit.json").read_text() == text  # the same again
    assert (run.path / "report.html").read_text() == page
    write_report(run, original, Result(improved, []))  # and improve's own report shows it too
    assert (run.path / "report.html").read_text() == page
    other = dataclasses.replace(improved, reward=improved.reward + 1)
    write_report(run, original, Result(other, []))  # but not with other data
    assert SECTION not in (run.path / "report.html").read_text()


def test_without_a_promise_the_page_shows_what_there_is(call, run, improved, tmp_path, original):
    silent = dataclasses.replace(improved, seams=dataclasses.replace(improved.seams, landing_error=None))
    save(silent, run.path / "improved.hdf5", overwrite=True)
    page = run.path / "report.html"
    page.write_text("<main>\n</main></body></html>\n")  # of an older version, which has no place for an audit
    assert call("audit", run.path)[0] == 0
    assert "Landing errors" in page.read_text()
    save(original, tmp_path / "original.npz")
    assert call("audit", run.path, "--data", tmp_path / "original.npz")[0] == 0
    assert "Bridged and missed" in page.read_text()
    assert page.read_text().count(SECTION) == 1


def test_audit_of_a_file(call, improved, tmp_path):
    file, out = tmp_path / "improved.npz", tmp_path / "found.json"
    save(improved, file)
    code, text, err = call("audit", file, "--out", out, "--sample", 4, "--json", "--quiet")
    assert code == 0, err
    numbers, stored = json.loads(text), json.loads(out.read_text())
    assert numbers["seams"] == {"distinct": 15, "chosen": 4, "clipped": 0, "replayed": 4}
    assert {name: stored[name] for name in numbers} == numbers
    assert numbers["scale"]["of"] == "improved"
    assert "points" not in numbers
    assert "exists already" in call("audit", file, "--out", out)[2]
    assert call("audit", file, "--out", out, "--overwrite", "--quiet")[0] == 0
    assert json.loads(out.read_text())["seams"]["chosen"] == 15
    assert "not quite the simulator of the data" in call("audit", file, "--physics", "d4rl")[1]


def test_drop_writes_other_data(call, run, improved, tmp_path):
    bytes_before, out = (run.path / "improved.hdf5").read_bytes(), tmp_path / "kept.hdf5"
    code, text, err = call(
        "audit", run.path, "--drop-worse-than", 0.0, "--out", out, "--sample", 2, "--json", "--quiet"
    )
    assert code == 0, err
    kept = load(out)
    assert kept.transitions == improved.transitions - 15  # all were replayed, in spite of --sample
    assert json.loads(text)["dropped"] == {"out": str(out), "steps": 15, "fingerprint": kept.fingerprint}
    assert not kept.seams.stitched.any()
    assert (kept.info["used_simulator"], kept.info["audit_drop_worse_than"]) == (True, 0.0)
    assert (run.path / "improved.hdf5").read_bytes() == bytes_before


def test_mistakes(call, run, original, improved, tmp_path):
    file, other = tmp_path / "improved.npz", tmp_path / "other.npz"
    save(improved, file)
    save(original, other)
    empty = Run.open(tmp_path / "empty", {"config": {}, "seed": 0, "data": {"info": {}}})
    trained = Run.open(tmp_path / "trained", {"method": "bc", "config": {}, "seed": 0, "data": {"info": {}}})
    kept, found = tmp_path / "kept.npz", tmp_path / "found.json"
    for words, sentence in {
        (other,): "have no table of seams",
        (file, "--data", "demo"): "were not made from the data given",
        (file, "--env", "InvertedPendulum-v5"): "InvertedPendulum-v5 cannot be set to the state",
        (file, "--env", "HalfCheetah-v5"): "HalfCheetah-v5 has 17 and 6",
        (file, "--sample", -1): "sample must not be below 0",
        (file, "--out", kept): "an audit is written as .json",
        (run.path, "--out", found): "leave --out out",
        (file, "--drop-worse-than", 1): "name it with --out",
        (file, "--drop-worse-than", -1, "--out", kept): "must not be below 0",
        (file, "--drop-worse-than", 1, "--out", tmp_path / "kept.csv"): "names no format",
        (file, "--drop-worse-than", 1, "--out", file): "which would replace it",
        (run.path, "--drop-worse-than", 1, "--out", run.path / "improved.hdf5"): "lies in the input",
        (empty.path,): "holds no improved data yet",
        (trained.path,): "is a run of train",
        (tmp_path / "nothing",): "there is no such file",
    }.items():
        code, _, err = call("audit", *words)
        assert (code, err.count("\n")) == (2, 1), (words, err)
        assert sentence in err, (words, err)
    assert not kept.exists()
    assert not (run.path / "audit.json").exists()


def test_overwriting_a_run_removes_its_audit(call, run):
    assert call("audit", run.path, "--quiet")[0] == 0
    Run.open(run.path, {"config": {}, "seed": 1, "data": {}}, overwrite=True)
    assert not (run.path / "audit.json").exists()
