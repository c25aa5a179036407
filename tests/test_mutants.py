"""The table of mistakes quotes the code as it is; else none of them can be tried."""

from benchmarks.mutant_table import MUTANTS, TESTS
from benchmarks.mutants import ROOT, mutants


def test_every_mistake_is_of_a_line_that_is_there():
    assert len(mutants()) > 360
    assert TESTS.keys() == MUTANTS.keys()
    files = {test.partition("::")[0] for tests in TESTS.values() for test in tests}
    assert [file for file in files if not (ROOT / file).exists()] == []
