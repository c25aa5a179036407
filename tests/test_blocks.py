"""Blocks: neighbours and edges are the same wherever their blocks are computed."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from trajstitch.blocks import RayMapper, in_process, parts
from trajstitch.cli import main
from trajstitch.cluster import connected
from trajstitch.errors import InputError
from trajstitch.stitching import graph, reach
from trajstitch.stitching.graph import EdgeFinder, GraphConfig
from trajstitch.stitching.neighbours import kdtree
from trajstitch.stitching.reach import ReachConfig, ReachFinder
from worlds import random_dataset


class Drift:
    """A caller's own dynamics and world: states hardly change, and actions move them a little."""

    def moments(self, obs):
        return np.stack([obs, obs + 0.01]), np.full((2, *obs.shape), 0.3, np.float32)

    def steps(self, obs, action):
        after = obs + np.pad(np.asarray(action), ((0, 0), (0, obs.shape[1] - action.shape[1])))
        return np.stack([after, after + 0.01]), np.stack([obs[:, 0], obs[:, 0]])


def complain(shared, part):
    raise InputError(f"{shared} about {part.start}")


def found_by(mapper, data):
    """Return every array of both kinds of edges, with their neighbours."""
    finder = EdgeFinder(data, GraphConfig(nearest=6), mapper=mapper)
    plausible = finder.extend(finder.empty(), data.row, data.row + 1, Drift())
    unlimited = EdgeFinder(data, GraphConfig(nearest=0, epsilon=0.2), mapper=mapper)
    without_cap = unlimited.extend(unlimited.empty(), data.row, data.row + 1, Drift())
    other = ReachFinder(data, Drift(), ReachConfig(nearest=6, tolerance=0.4), mapper=mapper)
    reachable = other.extend(other.empty(), data.row, data.row + 1)
    arrays = {"near": finder.near, "landing states": other.near}
    for name, one in (("plausible", plausible), ("without cap", without_cap), ("reachable", reachable)):
        arrays |= {f"{name} {field}": value for field, value in vars(one).items() if value is not None}
    return arrays


@pytest.fixture
def data(monkeypatch):
    """Enough states for several blocks of each kind, which are made small."""
    monkeypatch.setattr(graph, "TOGETHER", graph._BLOCK)
    monkeypatch.setattr(reach, "TOGETHER", reach._BLOCK)
    monkeypatch.setattr(kdtree, "_QUERIES", 4000)
    return random_dataset(seed=0, lengths=(100,) * 90, obs_dim=3, action_dim=2)


def test_blocks_are_what_one_piece_is(data, monkeypatch):
    small = found_by(in_process, data)
    monkeypatch.undo()
    whole = found_by(in_process, data)
    for name, array in whole.items():
        np.testing.assert_array_equal(small[name], array, err_msg=name)
    assert all(len(whole[f"{kind} landing"]) > 1000 for kind in ("plausible", "without cap", "reachable"))
    assert parts(5, 2) == [slice(0, 2), slice(2, 4), slice(4, 5)]


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_tasks_of_a_cluster_find_what_this_process_does(data):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'trajstitch[ray]'")
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers cannot import this file
    with connected(cpus=2) as ray:
        theirs = found_by(RayMapper(ray), data)
        with pytest.raises(InputError) as caught:
            list(RayMapper(ray)(complain, "a sentence", 4, 2))
    assert type(caught.value) is InputError
    assert str(caught.value) == "a sentence about 0"
    for name, array in found_by(in_process, data).items():
        np.testing.assert_array_equal(theirs[name], array, err_msg=name)


class OneNode:
    """As much of Ray as a mapper uses, on a node of one CPU; a task is run when its result is asked for."""

    class exceptions:
        class RayError(Exception):
            pass

        class RayTaskError(RayError):
            pass

        class WorkerCrashedError(RayError):
            pass

    def remote(self, **options):
        return lambda work: SimpleNamespace(remote=lambda *given: lambda: work(*given))

    def put(self, shared):
        return shared

    def cluster_resources(self):
        return {"CPU": 1}

    def get(self, result):
        return result()


def test_results_of_tasks_come_in_order():
    found = list(RayMapper(OneNode())(lambda shared, part: (shared, part.start), "all", 9, 2))
    assert found == [(part, ("all", part.start)) for part in parts(9, 2)]


def test_a_task_that_is_lost_for_good_is_told_in_a_sentence():
    def lost(shared, part):
        raise OneNode.exceptions.WorkerCrashedError("of two\nlines")

    with pytest.raises(InputError, match=r"^a task of the Ray cluster was lost \(WorkerCrashedError\)"):
        list(RayMapper(OneNode())(lost, None, 4, 2))


def test_without_ray_improve_names_the_extra(hdf5, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["improve", str(hdf5), "--out", str(tmp_path / "run"), "--ray", "local"]) == 2
    assert capsys.readouterr().err == "trajstitch: a Ray cluster needs Ray; run pip install 'trajstitch[ray]'\n"
