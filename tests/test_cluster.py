"""Which cluster is connected to; Ray itself is not needed."""

import sys
from types import SimpleNamespace

import pytest

from trajstitch.cli.improve import blocks_on
from trajstitch.cluster import connected
from trajstitch.errors import InputError
from trajstitch.xla import use_one_thread


@pytest.fixture
def asked(monkeypatch):
    """The options of every connection that is asked for."""
    options = []
    ray = SimpleNamespace(
        is_initialized=lambda: False, init=lambda **given: options.append(given), shutdown=lambda: None
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return options


@pytest.mark.parametrize(
    ("given", "variable", "address"),
    [
        (None, None, "local"),
        (None, "there:6379", "there:6379"),
        ("here:1", "there:6379", "here:1"),
        ("local", "there:6379", "local"),
    ],
)
def test_local_is_this_machine_whatever_the_variable_says(given, variable, address, asked, monkeypatch):
    if variable:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    with connected(given, cpus=3):
        pass
    assert [one["address"] for one in asked] == [address]
    assert [one.get("num_cpus") for one in asked] == [3 if address == "local" else None]


def test_improve_hands_the_word_local_on(asked, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "there:6379")
    with blocks_on("local"):
        assert asked[0]["address"] == "local"


def test_one_thread_is_for_the_tasks_of_a_cluster_too(asked, monkeypatch):
    monkeypatch.delenv("PJRT_NPROC", raising=False)
    with connected("here:1"):
        assert "runtime_env" not in asked[0]
    monkeypatch.setenv("PJRT_NPROC", "")  # so that it is taken back
    use_one_thread()
    with connected("here:1"):
        assert asked[1]["runtime_env"] == {"env_vars": {"PJRT_NPROC": "1"}}


def test_no_cluster_is_one_sentence(asked, monkeypatch):
    def init(**given):
        raise ConnectionError("no\none")

    monkeypatch.setattr(sys.modules["ray"], "init", init)
    for address, where in (("local", "on this machine"), ("here:1", "at here:1")):
        with pytest.raises(InputError, match=f"^no Ray cluster {where}: no one$"), connected(address):
            pass
