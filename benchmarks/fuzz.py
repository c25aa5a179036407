"""Fuzzing: mutated files of every kind that trajstitch reads must load or be refused in one sentence.

python -m benchmarks.fuzz --mutations 6000 --structured 1000 --seed 0 --json results/fuzz.json

Each kind of file gets that many mutations of bytes and that many of content. They are read in worker processes, so
that a crash or a hang is seen. A case fails if it raises anything but an InputError of one line, takes over 10 s,
ends the process, needs more memory than 3 times the file plus 200 MB, or writes, deletes or starts anything.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from benchmarks.command import command
from benchmarks.mutations import mutate_bytes, mutate_file, replace_file
from trajstitch.data import Dataset, Seams, Trajectory, from_trajectories
from trajstitch.errors import InputError
from trajstitch.formats import load, save
from trajstitch.formats.d4rl import to_table
from trajstitch.storage.atomic import write_json

LIMIT_S = 10.0
LIMIT_BYTES = 200 << 20  # beside 3 times the file
FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.fork", "socket.connect", "pickle.find_class")
CHANGING = (
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.symlink",
    "os.link",
    "os.truncate",
    "shutil.rmtree",
)


# -- what is mutated ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A kind of file: sound examples, of which one is mutated and read each time."""

    name: str
    make: Callable[[Path], list[str]]  # writes sound files or folders and returns their names
    read: Callable[[Path], Any]


def sample() -> Dataset:
    """A small data set with seams, weights and info."""
    rng = np.random.default_rng(0)
    many = []
    for steps in (6, 3, 9, 4):
        rows = rng.uniform(-1, 1, (steps + 1, 6)).astype(np.float32)
        many.append(Trajectory(rows[:, :3], rows[:-1, 3:5], rows[:-1, 5], steps % 2 == 0))
    data = from_trajectories(many, {"env_id": "Hopper-v5", "ref_min_score": 0.0, "ref_max_score": 9.0, "seed": 3})
    stitched = np.arange(data.transitions) % 5 == 0
    zero = np.zeros(data.transitions, np.float32)
    seams = Seams(data.row, data.row + 1, stitched, zero, zero, zero, data.returns)
    return replace(data, seams=seams, weight=np.ones(data.transitions, np.float32))


def read_data(path: Path) -> Any:
    """Load and inspect."""
    from trajstitch.cli.summary import summarise

    data = load(path, flatten=True)
    return repr(data), summarise(data)


def make_hdf5(folder: Path) -> list[str]:
    """Our layout, and a compressed one as D4RL has it."""
    save(sample(), folder / "ours.hdf5")
    with h5py.File(folder / "theirs.hdf5", "w") as file:
        table = to_table(sample())
        del table["next_observations"]
        for name, column in table.items():
            file.create_dataset(name, data=column, compression="gzip", chunks=True)
        file["infos/goal"] = np.zeros((len(table["actions"]), 2))
        file.attrs["algorithm"] = np.bytes_("sac")
    return ["ours.hdf5", "theirs.hdf5"]


def make_npz(folder: Path) -> list[str]:
    """Our layout, D4RL's keys and OGBench's."""
    save(sample(), folder / "ours.npz")
    table = to_table(sample())
    np.savez_compressed(folder / "d4rl.npz", **table)  # type: ignore[arg-type]
    ends = table["timeouts"] | table["terminals"]
    np.savez(folder / "ogbench.npz", observations=table["observations"], actions=table["actions"], terminals=ends)
    return ["ours.npz", "d4rl.npz", "ogbench.npz"]


def make_traj(folder: Path) -> list[str]:
    """Our folder."""
    save(sample(), folder / "ours.traj")
    return ["ours.traj"]


def make_minari(folder: Path) -> list[str]:
    """Minari's two kinds of storage."""
    import minari
    from gymnasium.spaces import Box

    from trajstitch.formats import minari as ours

    os.environ["MINARI_DATASETS_PATH"] = str(folder)
    data = replace(sample(), seams=None)
    spaces = {"observation_space": Box(-9, 9, (3,)), "action_space": Box(-1, 1, (2,))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours.write(data, str(folder / "hdf5-v0"))
        minari.create_dataset_from_buffers("arrow-v0", list(ours._buffers(data)), data_format="arrow", **spaces)
    return ["hdf5-v0", "arrow-v0"]


def make_policies(folder: Path) -> list[str]:
    """Ours, stacked ones, a tanh-Gaussian and the policy inside a D4RL file."""
    import jax

    from trajstitch.policies.policy import Policy, stack
    from trajstitch.policies.policy_files import save_policy
    from trajstitch.training.networks import Range, Scale

    data = sample()
    scale, span = Scale.of(data.obs), Range.of(data.action)
    keys = jax.random.split(jax.random.key(0))
    policies = [Policy.init(scale, span, key, "gaussian", width=4) for key in keys]
    save_policy(policies[0], folder / "ours.npz", data.info)
    save_policy(stack(policies), folder / "stack.npz", data.info)
    rng = np.random.default_rng(0)
    sizes = {"fc0": (4, 3), "fc1": (4, 4), "mean": (2, 4), "logstd": (2, 4)}
    arrays = {f"{name}_w": rng.normal(size=size) for name, size in sizes.items()}
    arrays |= {f"{name}_b": rng.normal(size=size[0]) for name, size in sizes.items()}
    np.savez(folder / "sac.npz", **arrays)  # type: ignore[arg-type]
    with h5py.File(folder / "d4rl.hdf5", "w") as file:
        for theirs, ours in {"fc0": "fc0", "fc1": "fc1", "last_fc": "mean", "last_fc_log_std": "logstd"}.items():
            file[f"metadata/policy/{theirs}/weight"] = arrays[f"{ours}_w"]
            file[f"metadata/policy/{theirs}/bias"] = arrays[f"{ours}_b"]
    return ["ours.npz", "stack.npz", "sac.npz", "d4rl.hdf5"]


def make_planners(folder: Path) -> list[str]:
    """Two planners as they are before training."""
    import jax

    from trajstitch.methods import configure
    from trajstitch.policies.policy_files import save_policy

    data = replace(sample(), seams=None, weight=None)
    settings: dict[str, dict[str, Any]] = {
        "mbop": {"width": 4, "depth": 1, "members": 2, "samples": 4},
        "diffuser": {"width": 8, "depth": 2, "blocks": 1, "plan_horizon": 4, "diffusion_steps": 2},
    }
    names = []
    for name, chosen in settings.items():
        method = configure(name, **chosen)
        model = method.init(method.table(data), jax.random.key(0))
        save_policy(method.policy(model), folder / f"{name}.npz", data.info)
        names.append(f"{name}.npz")
    return names


def read_policy(path: Path) -> Any:
    """Load a policy or planner and its info."""
    from trajstitch.policies.policy_files import load_policy, policy_info

    return load_policy(path).action_dim, policy_info(path)


def make_stages(folder: Path) -> list[str]:
    """What `improve` keeps of its stages, with models as they are before training."""
    import jax

    from trajstitch.data import change_table, step_table
    from trajstitch.models.dynamics import DynamicsConfig
    from trajstitch.models.inverse import InverseConfig
    from trajstitch.models.reward import RewardConfig
    from trajstitch.models.value import ValueConfig
    from trajstitch.stitching.graph import EdgeFinder, GraphConfig
    from trajstitch.storage.serialise import store

    data, key = sample(), jax.random.key(0)
    steps = step_table(data)
    stages = {
        "dynamics": DynamicsConfig(width=4, depth=1).init(change_table(data), key),
        "inverse": InverseConfig(width=4).init(steps, key),
        "reward": RewardConfig(kind="vae", width=4).init(steps, key),
        "value": ValueConfig(width=4).init(steps, key),
        "graph": EdgeFinder(data, GraphConfig(epsilon=1.0)).empty(),
    }
    for name, stage in stages.items():
        store((stage, {"note": [1, 2.5, None]}), folder / f"{name}.npz", note="0123")
    return [f"{name}.npz" for name in stages]


def read_stage(path: Path) -> Any:
    """Read a stage and its note."""
    from trajstitch.storage.serialise import read_note, restore

    return read_note(path), restore(path)


def make_runs(folder: Path) -> list[str]:
    """A run directory with settings, metrics and a training state."""
    from trajstitch.jobs.run_dir import Run

    settings = {
        "method": "bc",
        "config": {"width": 4, "fit": {"steps": 2}},
        "data": {"info": {"env_id": "Hopper-v5"}},
    }
    run = Run.open(folder / "run", settings)
    run.record(1, loss=[0.5])
    run.record(2, loss=[0.25])
    run.save_state([np.zeros((2, 3), np.float32), np.zeros(2, np.int32)])
    return ["run"]


def read_run(path: Path) -> Any:
    """Read all that a run directory holds."""
    from trajstitch.jobs.run_dir import Run

    run = Run.existing(path)
    state = run.load_state([np.zeros((2, 3), np.float32), np.zeros(2, np.int32)])
    return run.job, run.settings(), run.metrics(), run.steps(), state


KINDS = (
    Kind("hdf5", make_hdf5, read_data),
    Kind("npz", make_npz, read_data),
    Kind("traj", make_traj, read_data),
    Kind("minari", make_minari, read_data),
    Kind("policies", make_policies, read_policy),
    Kind("planners", make_planners, read_policy),
    Kind("stages", make_stages, read_stage),
    Kind("configurations", make_runs, read_run),
)


# -- one case -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A number that stands for one mutation of one kind of file."""

    kind: str
    structured: bool
    number: int
    seed: int


class Bench:
    """Sound files of every kind, and a place to mutate copies of them."""

    def __init__(self, folder: Path, kinds: tuple[Kind, ...] = KINDS) -> None:
        self.folder, self.kinds, self.names = folder, {kind.name: kind for kind in kinds}, {}
        for kind in kinds:
            (folder / kind.name).mkdir(parents=True)
            self.names[kind.name] = kind.make(folder / kind.name)
            for name in self.names[kind.name]:  # all modules are now imported, and sound files do load
                kind.read(folder / kind.name / name)

    def mutated(self, case: Case) -> Path:
        """Write the mutated copy of a case and return its path."""
        rng = np.random.default_rng([case.seed, list(self.kinds).index(case.kind), case.structured, case.number])
        names = self.names[case.kind]
        name = names[case.number % len(names)]
        place = self.folder / "case"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        source, target = self.folder / case.kind / name, place / name
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
        files = sorted(p for p in target.rglob("*") if p.is_file()) if target.is_dir() else [target]
        chosen = files[rng.integers(len(files))]
        if not case.structured:
            chosen.write_bytes(mutate_bytes(chosen.read_bytes(), rng))
        elif rng.random() < 0.08:
            replace_file(chosen, rng)
        else:
            mutate_file(chosen, rng)
        return target

    def attempt(self, case: Case, path: Path) -> dict[str, Any]:
        """Read the mutated copy of a case; return how that ended."""
        before, size = _state(self.folder / "case"), sum(entry[1] for entry in _state(path.parent).values())
        start, held = time.monotonic(), _reset_peak()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.kinds[case.kind].read(path)
            outcome, text = "loaded", ""
        except InputError as error:
            outcome, text = "refused", str(error)
            if "\n" in text or len(text) > 2000:
                outcome = "long sentence"
        except Exception:
            outcome, text = "traceback", traceback.format_exc(limit=-4)
        took = time.monotonic() - start
        memory = _peak() - held
        if took > LIMIT_S:
            outcome = "hang"
        elif memory > 3 * size + LIMIT_BYTES:
            outcome = "memory"
        elif _state(self.folder / "case") != before:
            outcome = "touched its input"
        return {"outcome": outcome, "text": text, "seconds": took, "memory": memory}


def _state(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the time of change and the size of all files in a folder; a run may set damaged ones aside."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_dir() or path.is_symlink():
            status = path.lstat()
            found[str(path).removesuffix(".damaged")] = status.st_mtime_ns, status.st_size
    return found


def _status(name: str) -> int:
    """Return an entry of Linux's account of this process, in bytes; 0 elsewhere."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def _reset_peak() -> int:
    """Let the peak of this process's memory start again from what it holds now, and return that."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


# -- in worker processes ------------------------------------------------------------------------------------------


def work(folder: str, kinds: list[str], pipe: Connection) -> None:
    """Do cases as they come; report what an audit hook sees of writing, deleting and starting things."""
    place = Path(folder)
    (place / "home").mkdir(parents=True)
    os.environ["HOME"] = str(place / "home")
    bench = Bench(place / "files", tuple(kind for kind in KINDS if kind.name in kinds))
    elsewhere = place / "cwd"
    elsewhere.mkdir()
    os.chdir(elsewhere)
    seen: list[str] = []
    watching = False

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not watching:
            return
        if event == "open" and isinstance(arguments[0], str):
            mode, flags = arguments[1], arguments[2]
            writes = any(letter in (mode or "") for letter in "wax+") or bool(flags & (os.O_WRONLY | os.O_RDWR))
            if writes and not arguments[0].startswith(("/dev/null", "/proc/self/clear_refs")):
                seen.append(f"open {arguments[0]}")
        elif event == "os.rename" and str(arguments[1]) == f"{arguments[0]}.damaged":
            pass  # a run sets its own damaged file aside, and keeps it
        elif event in FORBIDDEN or event in CHANGING:
            seen.append(event)

    sys.addaudithook(hook)
    pipe.send("ready")
    while True:
        case = pipe.recv()
        path = bench.mutated(case)
        seen.clear()
        watching = True
        result = bench.attempt(case, path)
        watching = False
        if seen or any(elsewhere.iterdir()) or any((place / "home").iterdir()):
            result |= {"outcome": "wrote or started something", "text": "; ".join(seen)}
        pipe.send(result)


class Worker:
    """A process that does cases, and is started again when it ends or hangs."""

    def __init__(self, kinds: list[str]) -> None:
        self.kinds = kinds
        self._start()

    def _start(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="fuzz")
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=work, args=(self.folder + "/w", self.kinds, theirs), daemon=True)
        self.process.start()
        theirs.close()
        if self.pipe.recv() != "ready":
            raise RuntimeError("the worker did not start")

    def attempt(self, case: Case) -> dict[str, Any]:
        """Do a case in the process."""
        self.pipe.send(case)
        try:
            if self.pipe.poll(3 * LIMIT_S):
                result: dict[str, Any] = self.pipe.recv()
                return result
            outcome = "hang"
        except EOFError:
            outcome = "crash"
        kept = Path(tempfile.gettempdir()) / f"fuzz-{case.kind}-{case.structured}-{case.number}"
        shutil.rmtree(kept, ignore_errors=True)
        with suppress(shutil.Error):  # a pipe is not copied
            shutil.copytree(Path(self.folder) / "w" / "files" / "case", kept, symlinks=True)
        self.close()
        self._start()
        return {"outcome": outcome, "text": f"kept as {kept}", "seconds": 3 * LIMIT_S, "memory": 0}

    def close(self) -> None:
        """End the process and remove its files."""
        self.process.kill()
        self.process.join()
        shutil.rmtree(self.folder, ignore_errors=True)


def fuzz(mutations: int, structured: int, seed: int, kinds: list[str]) -> dict[str, Any]:
    """Run all cases and return counts by kind, and every failure."""
    results: dict[str, Any] = {}
    for name in kinds:
        worker = Worker([name])
        counts: Counter[str] = Counter()
        failures, slowest, most = [], 0.0, 0
        for is_structured, many in ((False, mutations), (True, structured)):
            for number in range(many):
                case = Case(name, is_structured, number, seed)
                result = worker.attempt(case)
                counts[result["outcome"]] += 1
                slowest, most = max(slowest, result["seconds"]), max(most, result["memory"])
                if result["outcome"] not in ("loaded", "refused"):
                    failures.append({"structured": is_structured, "number": number, **result})
                    print(name, is_structured, number, result["outcome"], result["text"][-600:], flush=True)
        worker.close()
        results[name] = {
            "mutations": mutations,
            "structured": structured,
            "outcomes": dict(sorted(counts.items())),
            "slowest_s": round(slowest, 2),
            "most_memory_mb": round(most / 2**20, 1),
            "failures": failures,
        }
        print(name, dict(counts), f"slowest {slowest:.2f} s, most memory {most / 2**20:.0f} MB", flush=True)
    return results


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=6000, help="mutations of bytes of each kind of file")
    parser.add_argument("--structured", type=int, default=1000, help="mutations of content of each kind of file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=[kind.name for kind in KINDS])
    parser.add_argument("--json", type=Path, help="file for the results")
    given = parser.parse_args()
    start = time.monotonic()
    results = fuzz(given.mutations, given.structured, given.seed, given.kinds)
    run = {"command": command("fuzz"), "seconds": round(time.monotonic() - start)}
    failures = sum(len(result["failures"]) for result in results.values())
    print(f"{failures} failures")
    if given.json:  # kinds of file that were not tried this time keep what they have
        before = json.loads(given.json.read_text()) if given.json.exists() else {}
        write_json(given.json, before | {name: run | result for name, result in results.items()})
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
