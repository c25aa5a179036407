"""Fixtures shared by all tests."""

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from trajstitch.data import Dataset
from trajstitch.formats import save
from worlds import random_dataset

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="module", autouse=True)
def forget_compiled() -> Iterator[None]:
    """A compiled function holds a few memory maps, of which Linux lets a process have 65,530."""
    yield
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
