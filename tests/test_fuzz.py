"""Mutated files of every kind: a short, seeded version of benchmarks/fuzz.py, in this process."""

import pytest

from benchmarks.fuzz import KINDS, Bench, Case

pytest.importorskip("minari")


@pytest.fixture(scope="module")
def bench(tmp_path_factory) -> Bench:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", "")  # set by the bench, and restored here
        return Bench(tmp_path_factory.mktemp("fuzz") / "files")


@pytest.mark.parametrize("kind", [kind.name for kind in KINDS])
@pytest.mark.parametrize("structured", [False, True])
def test_mutated_files_load_or_are_refused_in_one_sentence(bench, kind, structured):
    outcomes = []
    for number in range(20):
        case = Case(kind, structured, number, seed=7)
        result = bench.attempt(case, bench.mutated(case))
        assert result["outcome"] in ("loaded", "refused"), (
            f"{case}: {result!a}"
        )  # pytest-xdist hangs at a lone surrogate
        outcomes.append(result["outcome"])
    assert "refused" in outcomes


def test_a_reader_that_fails_is_seen(bench, monkeypatch):
    """The bench itself must notice what it is for."""
    case = Case("npz", False, 0, seed=7)

    def fails(path):
        raise KeyError("x")

    def writes(path):
        (path.parent / "new").write_text("x")

    for read, outcome in ((fails, "traceback"), (writes, "touched its input")):
        kind = bench.kinds["npz"].__class__("npz", bench.kinds["npz"].make, read)
        monkeypatch.setitem(bench.kinds, "npz", kind)
        assert bench.attempt(case, bench.mutated(case))["outcome"] == outcome
