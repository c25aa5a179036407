"""XLA's set-up: sums of many rows are right, and with one thread the bytes do not depend on the cores."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from benchmarks.kill_resume import differences, prepare

# The program on this many cores.
ON_CORES = """
import os, sys
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:int(sys.argv[1])])
from trajstitch.cli import main
sys.exit(main(sys.argv[2:]))
"""


def test_squares_of_a_product_are_summed_right_over_many_rows():
    rows = jnp.stack([jnp.arange(32_769.0), jnp.zeros(32_769), jnp.zeros(32_769)], 1)

    def squares(rows):
        return jax.vmap(lambda row: jnp.sum((jnp.eye(3) @ row) ** 2))(rows)

    assert (jax.jit(squares)(rows) == rows[:, 0] ** 2).all()


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two cores to choose from",
)
@pytest.mark.parametrize("method", ["bc", "td3bc"])
def test_one_thread_gives_the_same_bytes_on_one_core_and_on_two(method, tmp_path):
    words = ["train", method, "data.npz", "--out", "out", "--steps", "60", "--every", "30", "--no-evaluation"]
    folders = []
    for cores in (1, 2):
        folder = prepare(tmp_path / str(cores))
        done = subprocess.run(
            [sys.executable, "-c", ON_CORES, str(cores), *words, "--quiet", "--one-thread"],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert (folder / "out" / "policy.npz").exists()
        folders.append(folder)
    assert differences(*folders) == []
