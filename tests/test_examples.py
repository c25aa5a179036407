"""Every script in examples/ runs, with tiny sizes."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [path.name, "--quick"])
    runpy.run_path(str(path), run_name="__main__")
    assert "%" in capsys.readouterr().out


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_is_short_and_says_what_it_is(path):
    text = path.read_text()
    assert text.startswith('"""')
    assert text.count("\n") < 60


def test_there_are_examples():
    assert len(EXAMPLES) >= 3
