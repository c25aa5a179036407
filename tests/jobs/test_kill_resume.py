"""Killed and called again, a run ends with the same bytes; so it does with one thread, and in other blocks."""

import os
import subprocess
import sys
import time

import pytest

from benchmarks.kill_resume import differences, finish, prepare, start
from trajstitch.cli import main

TRAIN = [
    "train",
    "bc",
    "data.npz",
    "--out",
    "out",
    "--steps",
    "200",
    "--every",
    "5",
    "--seeds",
    "2",
    "--width",
    "8",
]
TRAIN += ["--batch", "16", "--no-evaluation", "--quiet"]
IMPROVE = ["improve", "data.npz", "--out", "out", "--preset", "quick", "--iterations", "1", "--quiet"]
MODELS = ("dynamics", "inverse", "reward", "value")
IMPROVE += [f"--{model}.{size}" for model in MODELS for size in ("fit.steps=20", "width=8")]
# The same program on one core, in blocks of other sizes.
OTHERWISE = """
import os, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from trajstitch.stitching import graph, model_calls
model_calls._BLOCK = 1536
graph._BLOCK = 700
from trajstitch.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def reference(tmp_path, monkeypatch):
    """A function that runs a command undisturbed, in a folder with the inputs, and returns the folder."""

    def run(words):
        folder = prepare(tmp_path / "reference")
        monkeypatch.chdir(folder)
        assert main(words) == 0
        return folder

    return run


def test_a_training_killed_twice_ends_with_the_same_bytes(reference, tmp_path):
    undisturbed, folder = reference(TRAIN), prepare(tmp_path / "killed")
    for seen in ("config.json", "checkpoints/000000010.npz"):
        process = start(TRAIN, folder)
        while not (folder / "out" / seen).exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.002)
        process.kill()
        process.communicate()
        assert not (folder / "out" / "policy.npz").exists()
        assert (folder / "out" / ".lock").exists()
    finish(start(TRAIN, folder))
    assert differences(undisturbed, folder) == []


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs Linux to choose the cores of a process")
def test_an_improvement_on_one_core_in_other_blocks_has_the_same_bytes(reference, tmp_path):
    undisturbed, folder = reference(IMPROVE), prepare(tmp_path / "otherwise")
    words = [sys.executable, "-c", OTHERWISE, *IMPROVE]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (folder / "out" / "report.html").exists()
    assert differences(undisturbed, folder) == []
