"""The README's Python blocks run as they stand."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()
BLOCKS = re.findall(r"<!-- run -->\n```python\n(.*?)```", README, re.DOTALL)


def test_there_are_blocks():
    assert len(BLOCKS) >= 2
    assert README.count("```python") == len(BLOCKS)


@pytest.mark.parametrize("block", BLOCKS)
def test_block_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})


def test_both_commands_are_shown():
    assert "make demo" in README
    assert "make test" in README
