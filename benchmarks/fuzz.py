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
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import command
from benchmarks.file_mutations import mutate_file, replace_file
from benchmarks.fuzz_kinds import KINDS, Kind
from benchmarks.mutations import mutate_bytes
from trajstitch.errors import InputError
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
    kept = _state(place / "home")  # where libraries keep what they make when they are imported
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
        if seen or any(elsewhere.iterdir()) or _state(place / "home") != kept:
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


def fuzz(name: str, mutations: int, structured: int, seed: int) -> dict[str, Any]:
    """Run all cases of a kind of file and return counts, and every failure."""
    worker = Worker([name])
    counts: Counter[str] = Counter()
    failures, slowest, most = [], 0.0, 0
    for is_structured, many in ((False, mutations), (True, structured)):
        for number in range(many):
            result = worker.attempt(Case(name, is_structured, number, seed))
            counts[result["outcome"]] += 1
            slowest, most = max(slowest, result["seconds"]), max(most, result["memory"])
            if result["outcome"] not in ("loaded", "refused"):
                failures.append({"structured": is_structured, "number": number, **result})
                print(name, is_structured, number, result["outcome"], ascii(result["text"][-600:]), flush=True)
    worker.close()
    print(name, dict(counts), f"slowest {slowest:.2f} s, most memory {most / 2**20:.0f} MB", flush=True)
    return {
        "mutations": mutations,
        "structured": structured,
        "outcomes": dict(sorted(counts.items())),
        "slowest_s": round(slowest, 2),
        "most_memory_mb": round(most / 2**20, 1),
        "failures": failures,
    }


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mutations", type=int, default=6000, help="mutations of bytes of each kind of file")
    parser.add_argument("--structured", type=int, default=1000, help="mutations of content of each kind of file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=[kind.name for kind in KINDS])
    parser.add_argument("--json", type=Path, help="file for the results")
    given = parser.parse_args()
    failures = 0
    for name in given.kinds:
        start = time.monotonic()
        result = fuzz(name, given.mutations, given.structured, given.seed)
        failures += len(result["failures"])
        if given.json:  # at once, so that a run that is stopped keeps what it has; other kinds keep what they had
            before = json.loads(given.json.read_text()) if given.json.exists() else {}
            run = {"command": command("fuzz"), "seconds": round(time.monotonic() - start)}
            write_json(given.json, before | {name: run | result})
    print(f"{failures} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
