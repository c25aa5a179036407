"""The Ray engine, on a cluster of several nodes on this machine, one of which is killed in the middle."""

import json
import sys
import time
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from trajstitch.bench import cells, ray_engine
from trajstitch.bench.engine import run_local
from trajstitch.bench.grid import Cell, make_grid, open_folder
from trajstitch.bench.ray_engine import Cluster, pack, run_ray, unpack
from trajstitch.cli import main
from trajstitch.errors import InputError
from trajstitch.policies.policy import acting

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own
METHODS = ("bc", "percent-bc", "weighted", "ts-bc", "ts-bc-1", "ts-percent-bc")


@pytest.fixture
def cluster():
    """Start a head that runs no tasks, and two nodes with room for one task each."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'trajstitch[ray]'")
    from ray.cluster_utils import Cluster as Nodes

    nodes = Nodes(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        nodes.add_node(num_cpus=1)
    yield nodes
    nodes.shutdown()


def records(out):
    """Return the records by name, without what differs from run to run."""
    found = {}
    for file in out.glob("records/*/*.json"):
        found[file.stem] = json.loads(file.read_text())
        del found[file.stem]["made"]
    return found


def test_a_node_that_dies_costs_only_what_ran_there(cluster, tmp_path, monkeypatch):
    grid = make_grid("smoke", seeds=2, steps=4, methods=METHODS)
    started = Counter()
    start = ray_engine._Scheduler._start

    def counted(self, job):
        started[job.cell.method, job.stitches] += 1
        return start(self, job)

    def kill_a_node(done, total, note):
        if done == 1:
            time.sleep(1)  # the node that has just ended a cell begins the next
            cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    monkeypatch.setattr(ray_engine._Scheduler, "_start", counted)
    out = tmp_path / "ray"
    open_folder(out, grid)
    assert run_ray(out, tmp_path, grid, grid.cells, Cluster(cluster.address), kill_a_node) == {}

    jobs = [(cell.method, False) for cell in grid.cells] + [("ts-bc", True)]
    assert started.keys() == set(jobs)
    assert started.total() == len(jobs) + 1, started  # the one that ran on that node
    assert run_ray(out, tmp_path, grid, grid.cells, Cluster(cluster.address)) == {}
    assert started.total() == len(jobs) + 1, started  # nothing is left to run

    here = tmp_path / "local"
    open_folder(here, grid)
    assert run_local(here, tmp_path, grid, grid.cells, 1) == {}
    assert records(out).keys() == {f"{m}.s0" if m.startswith("ts") else m for m in METHODS}
    assert records(out) == records(here)
    ours, theirs = ({file.relative_to(f) for file in f.rglob("*.npz")} for f in (out, here))
    assert ours == theirs  # checkpoints, policies and stages are there too


def test_a_cell_that_fails_says_why_and_a_stitch_that_fails_ends_its_cells(cluster, tmp_path, capsys):
    words = ["bench", "smoke", "--out", str(tmp_path / "out"), "--seeds", "1", "--steps", "4", "--quiet"]
    words += ["--engine", "ray", "--address", cluster.address, "--methods", "bc", "ts-bc", "ts-percent-bc"]
    place = tmp_path / "out" / "data" / "demo" / "greedy.s0"
    place.mkdir(parents=True)
    (place / "mine.txt").write_text("not a run")  # so this is not a place to stitch in
    (tmp_path / "out" / "suite.json").write_text(
        json.dumps(asdict(make_grid("smoke", seeds=1, steps=4, methods=("bc",))))
    )
    assert main(words) == 2
    assert "2 of 3 cells failed, the first, demo/ts-bc.s0: " in capsys.readouterr().err
    for name in ("ts-bc.s0", "ts-percent-bc.s0"):
        assert "is not a run of trajstitch" in (tmp_path / f"out/records/demo/{name}.failed").read_text()
    assert (tmp_path / "out/records/demo/bc.json").exists()
    assert main([*words, "--cell-cpus", "64"]) == 2
    assert "2 of 3 cells failed, the first, demo/ts-bc.s0: no node of the" in capsys.readouterr().err
    sentence = (tmp_path / "out/records/demo/ts-percent-bc.s0.failed").read_text()
    assert sentence.startswith("no node of the cluster has 64 CPUs, 0 GPUs and")


class _Reference:
    def __init__(self, value):
        self.value = value


class _RayHere:
    """What the engine asks of Ray, done in this process."""

    exceptions = SimpleNamespace(RayTaskError=type("RayTaskError", (Exception,), {}), RayError=OSError)

    def __init__(self):
        self.started = []

    def remote(self, **_):
        return lambda work: SimpleNamespace(
            options=lambda name, **_: SimpleNamespace(remote=self._task(work, name))
        )

    def _task(self, work, name):
        def start(*arguments):
            self.started.append(name)
            return _Reference(work(*(getattr(one, "value", one) for one in arguments)))

        return start

    def put(self, value):
        return _Reference(value)

    def wait(self, references, timeout):
        return references[:1], references[1:]

    def get(self, reference):
        return reference.value

    def nodes(self):
        return [{"Alive": True, "Resources": {"CPU": 1, "memory": 2**40}}]


@pytest.mark.parametrize("asked", [(), ("rebrac",)])
def test_a_teacher_is_trained_once_before_its_pupils(asked, tmp_path, monkeypatch):
    """Where it is a cell of its own and where it is not; the records are those of this machine's processes."""
    ray = _RayHere()
    monkeypatch.setattr(ray_engine, "connected", lambda *_: nullcontext(ray))
    grid = make_grid("smoke", seeds=2, steps=4, methods=("distilled", "guided", *asked))
    here, there = tmp_path / "here", tmp_path / "there"
    for out in (here, there):
        open_folder(out, grid)
    assert run_ray(there, tmp_path, grid, grid.cells, Cluster()) == {}
    assert ray.started == ["cell demo/rebrac", "cell demo/distilled", "cell demo/guided"]
    assert run_local(here, tmp_path, grid, grid.cells, 1) == {}
    assert records(there) == records(here)
    assert (there / "runs/demo/rebrac/policy.npz").exists()
    # Gone on with by a node that rounds in another way: the weights of what was begun are handed to it.
    monkeypatch.setattr(cells, "acting", lambda policies: lambda obs: 0.999 * acting(policies)(obs))
    (there / "records/demo/guided.json").unlink()
    assert run_ray(there, tmp_path, grid, grid.cells, Cluster()) == {}
    assert records(there) == records(here)


def test_the_memory_of_a_cell_is_for_all_data_that_it_needs(tmp_path):
    node = {"Alive": True, "Resources": {"CPU": 1}}
    ray = SimpleNamespace(remote=lambda **options: lambda work: work, nodes=lambda: [node])
    cell = Cell("hopper-medium", "reward-mlp")
    for i, name in enumerate(cell.needs):
        (tmp_path / "data" / name / "data.traj").mkdir(parents=True)
        (tmp_path / "data" / name / "data.traj" / "obs.npy").write_bytes(bytes(100 * (i + 1)))
    scheduler = ray_engine._Scheduler(ray, tmp_path, tmp_path, make_grid("smoke"), Cluster())
    size = 50 * len(cell.needs) * (len(cell.needs) + 1)
    node["Resources"]["memory"] = 2**30 + 25 * size
    assert scheduler._resources(cell) == {"num_cpus": 1, "num_gpus": 0, "memory": 2**30 + 25 * size}
    node["Resources"]["memory"] -= 1
    with pytest.raises(InputError, match=r"no node of the cluster has 1 CPUs, 0 GPUs and 1\.0 GiB"):
        scheduler._resources(cell)


def test_without_ray_one_sentence_names_the_extra(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["bench", "smoke", "--out", str(tmp_path / "out"), "--engine", "ray", "--quiet"]) == 2
    error = capsys.readouterr().err
    assert error == "trajstitch: a Ray cluster needs Ray; run pip install 'trajstitch[ray]'\n"
    with pytest.raises(InputError, match="must not be below 0"):
        Cluster(cpus=-1)


def test_a_cluster_of_this_machine_has_room_for_all_its_tasks(tmp_path, monkeypatch):
    asked = []

    @contextmanager
    def connected(address, cpus):
        asked.append(cpus)
        yield

    monkeypatch.setattr(ray_engine, "connected", connected)
    monkeypatch.setattr(ray_engine, "run_missing", lambda *arguments: {})
    for cluster in (Cluster(tasks=3, cpus=2), Cluster(tasks=3, cpus=0.5), Cluster(tasks=3, cpus=0), Cluster()):
        run_ray(tmp_path, tmp_path, make_grid("smoke"), [], cluster)
    assert asked == [6, 2, 1, None]


def test_files_travel_as_they_are(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    contents = {"data/d/data.traj/obs.npy": b"12", "runs/d/bc/scores/a.json": b"", "records/d/bc.json": b"{}"}
    for name, content in {**contents, "runs/d/bc/.lock": b"x"}.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(content)
    unpack(pack(here), there)
    assert {str(f.relative_to(there)): f.read_bytes() for f in there.rglob("*") if f.is_file()} == contents
    assert pack(here, "runs/d/bc").keys() == {"runs/d/bc/scores/a.json"}
    unpack({"runs/d/bc/new.json": np.frombuffer(b"1", np.uint8)}, there)  # as a whole: what is gone is gone
    assert [file.name for file in Path(there / "runs/d/bc").iterdir()] == ["new.json"]
