"""Tests that notice: small mistakes are put into the code, one at a time, and the module's own tests must fail.

python -m benchmarks.mutants --json results/mutants.json

The mistakes are in mutant_table.py. Each is put into a copy of the checkout, in which the module's tests run until
one fails. What the file records already is skipped, so a run that was stopped goes on; `--again survived` tries
the survivors once more, after a test was added. First all these tests must pass without any mistake.
"""

from __future__ import annotations

import argparse
import compileall
import json
import multiprocessing
import os
import py_compile
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from benchmarks.command import command
from benchmarks.mutant_table import MUTANTS, TESTS

ROOT = Path(__file__).resolve().parents[1]
SOURCE = Path("src/trajstitch")
_COPIED = ("src", "tests", "docs", "pyproject.toml", "README.md")
_OPTIONS = ("-x", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-W", "ignore:Module already")
_PASSED, _FAILED = 100, 101  # exit codes of pytest, and 100, since Python's own are small too
# Importing these takes longer than most tests. So tests run in forks of a process that has imported them, but
# nothing of trajstitch; JAX reads these variables when it is imported.
_IMPORTED = ["numpy", "scipy.stats", "h5py", "jax", "equinox", "optax", "hypothesis", "pytest", "gymnasium"]
_SETTINGS = {
    "OPENBLAS_NUM_THREADS": "1",
    "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".pytest_cache" / "compiled"),
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


@dataclass(frozen=True)
class Mutant:
    """One mistake: the text that stands there once, and the text that replaces it."""

    file: str
    old: str
    new: str
    mistake: str  # in words

    @property
    def name(self) -> str:
        """What tells this mutant from all others."""
        return f"{self.file}: {self.old} -> {self.new}"


def mutants() -> list[Mutant]:
    """Return all mutants; ValueError where a text does not stand in its module exactly once."""
    made = [Mutant(file, *row) for file, rows in MUTANTS.items() for row in rows]
    for mutant in made:
        count = (ROOT / SOURCE / mutant.file).read_text().count(mutant.old)
        if count != 1 or mutant.old == mutant.new:
            raise ValueError(f"{mutant.name}: the text is there {count} times, or is not changed")
    if len({mutant.name for mutant in made}) < len(made):
        raise ValueError("a mutant is in the table twice")
    return made


def copy_checkout(folder: Path) -> Path:
    """Copy what tests need; compiled modules know their source by its hash, as files change faster than clocks."""
    for name in _COPIED:
        copied = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copied(ROOT / name, folder / name)
    mode = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(folder / "src", quiet=1, force=True, invalidation_mode=mode)
    return folder


def _pytest(checkout: Path, tests: tuple[str, ...]) -> None:
    """Run tests in this process, with their output in a file beside the checkout."""
    import pytest

    assert "trajstitch" not in sys.modules
    os.chdir(checkout)
    log = os.open(checkout.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.dont_write_bytecode = True
    sys.path[:0] = [str(checkout / "src")]
    sys.exit(_PASSED + int(pytest.main([*_OPTIONS, *tests])))


def run_tests(checkout: Path, tests: tuple[str, ...], limit: float) -> dict[str, Any]:
    """Run tests until one fails; return whether they passed, failed or took too long, and which one failed."""
    begin = time.monotonic()
    process = multiprocessing.get_context("forkserver").Process(target=_pytest, args=(checkout, tests))
    process.start()
    process.join(limit)
    if process.exitcode is None:
        process.kill()
        return {"outcome": "too slow", "seconds": limit}
    log = (checkout.parent / "log").read_text() if (checkout.parent / "log").exists() else ""
    if process.exitcode not in (_PASSED, _FAILED):
        raise RuntimeError(f"the tests could not run: {log[-3000:]}")
    failed = re.search(r"^(?:FAILED|ERROR) (\S+::\S+)", log, re.MULTILINE)
    if (process.exitcode == _FAILED) != bool(failed):
        raise RuntimeError(f"no test failed, yet they did not pass: {log[-3000:]}")
    outcome = {"outcome": "killed", "by": failed[1]} if failed else {"outcome": "survived"}
    return outcome | {"seconds": round(time.monotonic() - begin, 1)}


def try_mutant(checkout: Path, mutant: Mutant, limit: float) -> dict[str, Any]:
    """Put the mistake into the copy, run the module's tests, and put the module back."""
    path = checkout / SOURCE / mutant.file
    sound = path.read_text()
    path.write_text(sound.replace(mutant.old, mutant.new))
    try:
        return asdict(mutant) | run_tests(checkout, TESTS[mutant.file], limit)
    finally:
        path.write_text(sound)


def write(target: Path, records: dict[str, dict[str, Any]], order: list[Mutant]) -> None:
    """Write what is known, in the order of the table."""
    known = [records[mutant.name] for mutant in order if mutant.name in records]
    count = Counter(record["outcome"] for record in known)
    share = round(count["killed"] / max(len(known), 1), 4)
    summary = {"in_table": len(order), "tried": len(known), **count, "share_killed": share}
    part = target.with_name(f".{target.name}.part")
    part.write_text(
        json.dumps({"command": command("mutants"), **summary, "records": known}, indent=1, ensure_ascii=False)
        + "\n"
    )
    part.replace(target)


def main() -> None:
    """Try all mutants that are not recorded yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=ROOT / "results" / "mutants.json", help="Where to record.")
    parser.add_argument("--only", nargs="+", default=[""], help="Only modules whose path contains one of these.")
    parser.add_argument("--again", choices=("survived", "all"), help="Try these once more.")
    parser.add_argument("--limit", type=float, default=240, help="Seconds that the tests of a mutant may take.")
    parser.add_argument("--workers", type=int, default=1, help="Mutants at a time.")
    parser.add_argument("--no-baseline", action="store_true", help="Do not run the tests without a mistake first.")
    options = parser.parse_args()
    order = mutants()
    records: dict[str, dict[str, Any]] = {}
    if options.json.exists() and options.again != "all":
        old = json.loads(options.json.read_text())["records"]
        records = {f"{row['file']}: {row['old']} -> {row['new']}": row for row in old}
    done = {name for name, row in records.items() if options.again != "survived" or row["outcome"] == "killed"}
    asked = [mutant for mutant in order if any(part in mutant.file for part in options.only)]
    waiting = [mutant for mutant in asked if mutant.name not in done]
    os.environ.update(_SETTINGS)
    multiprocessing.set_forkserver_preload(_IMPORTED)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(options.workers):
            (copy := Path(folder) / str(number) / "checkout").mkdir(parents=True)
            free.put(copy_checkout(copy))
        if waiting and not options.no_baseline:
            tests = tuple(dict.fromkeys(test for mutant in waiting for test in TESTS[mutant.file]))
            sound = run_tests(copy, tests, 20 * options.limit)
            if sound["outcome"] != "survived":
                raise SystemExit(f"without any mistake: {sound}")

        def attempt(mutant: Mutant) -> dict[str, Any]:
            checkout = free.get()
            try:
                return try_mutant(checkout, mutant, options.limit)
            finally:
                free.put(checkout)

        for mutant, record in zip(waiting, pool.map(attempt, waiting), strict=True):
            records[mutant.name] = record
            write(options.json, records, order)
            print(f"{record['outcome']:9} {record['seconds']:6} s  {mutant.file}: {mutant.mistake}", flush=True)
    write(options.json, records, order)


if __name__ == "__main__":
    main()
