"""Fixtures shared by all tests; and XLA set so that compiling, about half of the suite's time, costs less."""

import os
from collections.abc import Iterator
from pathlib import Path

# Each worker has a core, and threads that wait for one another cost more than they save. The variable is for
# libraries that are loaded later and for subprocesses: a plugin of pytest has loaded NumPy already.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Before JAX is imported. Programs the tests compile are small and run briefly: fewer passes over them, each in one
# piece rather than in pieces for many cores, and a cache that test modules, workers, subprocesses and later runs
# share.
CACHE = Path(__file__).resolve().parents[1] / ".pytest_cache" / "compiled"
FLAGS = ("backend_optimization_level=0", "cpu_use_fusion_emitters=false", "cpu_parallel_codegen_split_count=1")
os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_{flag}" for flag in FLAGS))
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import jax
import pytest
from threadpoolctl import threadpool_limits

from trajstitch.data import Dataset
from trajstitch.formats import save
from worlds import random_dataset

threadpool_limits(int(os.environ["OPENBLAS_NUM_THREADS"]), "blas")
MAPS = 6_000  # memory maps after which compiled functions are forgotten: about 2.5 GB
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="module", autouse=True)
def forget_compiled() -> Iterator[None]:
    """A compiled function holds a few memory maps, of which Linux lets a process have 65,530.

    They are forgotten when many are held, not after each module, since modules share functions.
    """
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > MAPS:
        jax.clear_caches()


@pytest.fixture(scope="session")
def shared() -> Path:
    """Recorded data and policies that are not part of the repository."""
    if not SHARED.exists():
        pytest.skip("needs the recorded data and policies in ../shared/data beside the checkout")
    return SHARED


@pytest.fixture
def data() -> Dataset:
    return random_dataset(seed=0, lengths=(5, 1, 8, 3), obs_dim=4, action_dim=2)


@pytest.fixture
def hdf5(tmp_path: Path, data: Dataset) -> Path:
    """A small, sound D4RL file."""
    path = tmp_path / "small.hdf5"
    save(data, path)
    return path
