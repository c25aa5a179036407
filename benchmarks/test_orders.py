"""Does every test module pass alone, and do the tests pass in any order, again and again?

    nice python -m benchmarks.test_orders --orders 20 --out results/test_orders.json

First each module of tests runs in a process of its own. The tests that took at most `--fast` seconds there are the
fast suite; the others are listed as slow. Then the fast suite runs in random orders, each in one process: the
modules are shuffled and so are the tests inside each, or, in every fifth order, all tests regardless of modules.
The number of an order is the seed of the shuffle. At last all tests, the slow ones too, run in reverse, in one
process.

The results are written after each run, and a call goes on where the one before was stopped. `--again` runs once
more what did not pass; what was found before stays under `earlier`. What pytest said of a run that did not pass,
and the seconds of every test, are in .pytest_cache/orders.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ORDER = "TRAJSTITCH_TEST_ORDER"  # for the plugin: reversed, or the seed of a random order
SLOW = "TRAJSTITCH_TEST_SLOW"  # for the plugin: a JSON file with the tests, or whole modules, that are left out
REPORT = "TRAJSTITCH_TEST_REPORT"  # for the plugin: where to write what happened
NOTES = Path(".pytest_cache/orders")
MIXED = 5  # every such order mixes the modules

# Below is what pytest uses of this file, as the plugin benchmarks.test_orders.
_ids: list[str] = []
_seconds: Counter[str] = Counter()


def shuffled(tests: Sequence[tuple[str, str]], order: str | None) -> list[int]:
    """Return the places of tests, each a module and a name, in an order: reversed, or the seed of a random one.

    Mostly modules stay whole, since the tests of one share what is costly to make.
    """
    places = list(range(len(tests)))
    if order is None:
        return places
    if order == "reversed":
        return places[::-1]
    rng = random.Random(int(order))
    modules = {module: rng.random() for module in sorted({module for module, _ in tests})}
    chance = [rng.random() for _ in tests]
    mixed = int(order) % MIXED == MIXED - 1
    return sorted(places, key=lambda k: (0.0 if mixed else modules[tests[k][0]], chance[k]))


class Plugin:
    """Leaves the slow tests out, changes the order, and writes how long each test took."""

    # Last, since pytest brings tests that share fixtures together; the order is what it says.
    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        if SLOW in os.environ:
            slow = set(json.loads(Path(os.environ[SLOW]).read_text()))
            left_out = [item for item in items if {item.nodeid, item.nodeid.partition("::")[0]} & slow]
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item not in left_out]
        tests = [(str(item.path), item.nodeid) for item in items]
        items[:] = [items[k] for k in shuffled(tests, os.environ.get(ORDER))]
        _ids[:] = [item.nodeid for item in items]

    def pytest_runtest_logreport(self, report: Any) -> None:
        _seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        if REPORT in os.environ:
            Path(os.environ[REPORT]).write_text(json.dumps({"ids": _ids, "seconds": _seconds}))


def pytest_configure(config: Any) -> None:
    """Register the hooks; the one of the order runs after pytest's own."""
    import pytest

    plugin: Any = Plugin
    plugin.pytest_collection_modifyitems = pytest.hookimpl(trylast=True)(plugin.pytest_collection_modifyitems)
    config.pluginmanager.register(plugin(), "orders")


# Below is the program.
def attempt(words: Sequence[str], order: str | None = None, slow: Sequence[str] = ()) -> dict[str, Any]:
    """Run pytest once, in one process, and return how it ended."""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(str(Path(folder).resolve()) for folder in ("src", ".")))
    with tempfile.TemporaryDirectory() as folder:
        report, left_out = Path(folder) / "report.json", Path(folder) / "slow.json"
        env[REPORT] = str(report)
        if order is not None:
            env[ORDER] = order
        if slow:
            left_out.write_text(json.dumps(list(slow)))
            env[SLOW] = str(left_out)
        begin = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-p", "benchmarks.test_orders", "-n", "0", "-rfEs", *words]
        command += ["--basetemp", str(Path(folder) / "tests"), "--color=no"]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        took = time.monotonic() - begin
        seen = json.loads(report.read_text()) if report.exists() else {"ids": [], "seconds": {}}
    lines = done.stdout.splitlines()
    end = lines[-1] if lines else done.stderr[-200:]
    counts = dict.fromkeys(("passed", "failed", "skipped", "deselected"), 0)
    for number, word in zip(end.split(), end.split()[1:], strict=False):
        word = "failed" if word.startswith("error") else word.rstrip(",")
        if word in counts and number.isdigit():
            counts[word] += int(number)
    found: dict[str, Any] = {"code": done.returncode, "seconds": round(took), **counts}
    bad = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if done.returncode:
        found |= {"bad": bad, "log": lines[-200:], "stderr": done.stderr.splitlines()[-20:]}
    if order is not None:
        found["order"] = hashlib.sha256("\n".join(seen["ids"]).encode()).hexdigest()[:16]
    found["times"] = seen["seconds"]
    return found


def passed(found: dict[str, Any]) -> bool:
    """Return whether a run ended well; a module of which every test was left out has the code 5."""
    return found["code"] == 0


def times_of(place: str, name: str) -> Path:
    """Return the file with the seconds of every test of a run."""
    return NOTES / f"{place}-{name.replace('/', '-')}.json"


def slow_tests(limit: float) -> list[str]:
    """Return what is not in the fast suite; a whole module where the seconds of its tests are not known."""
    slow = []
    for module in sorted(str(path) for path in Path("tests").rglob("test_*.py")):
        times = times_of("alone", module)
        found = json.loads(times.read_text()) if times.exists() else {module: float("inf")}
        slow += [test for test, took in found.items() if took > limit]
    return slow


def main() -> None:
    """Try all, and write the result after each try, so that a run that is stopped counts too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=20, help="random orders of the fast suite")
    parser.add_argument("--fast", type=float, default=0.3, help="most seconds of a test of the fast suite")
    parser.add_argument("--phases", nargs="*", default=["alone", "orders", "reversed"])
    parser.add_argument("--only", default="", help="of the modules alone, those whose path contains this")
    parser.add_argument("--again", action="store_true", help="run once more what did not pass")
    parser.add_argument("--out", type=Path, default=Path("results/test_orders.json"))
    args = parser.parse_args()
    empty: dict[str, Any] = {"command": "", "alone": {}, "slow": [], "orders": {}, "reversed": {}, "earlier": []}
    tries = json.loads(args.out.read_text()) if args.out.exists() else empty
    tries["command"] = f"python -m benchmarks.test_orders --orders {args.orders} --fast {args.fast}"

    def run(place: str, name: str, words: Sequence[str] = (), order: str | None = None) -> None:
        before = tries[place].get(name)
        if before is not None and (passed(before) or not args.again):
            return
        found = attempt(words, order, tuple(tries["slow"]) if place == "orders" else ())
        notes = times_of(place, name)
        notes.write_text(json.dumps(found.pop("times"), indent=1))
        if log := [*found.pop("log", []), *found.pop("stderr", [])]:
            notes.with_suffix(".txt").write_text("\n".join(log))
        if before is not None:
            tries["earlier"].append({"run": f"{place} {name}", **before})
        tries[place][name] = found
        print(place, name, found, flush=True)

    def write() -> None:
        part = args.out.with_suffix(".part")
        part.write_text(json.dumps(tries, indent=1) + "\n")
        part.replace(args.out)

    NOTES.mkdir(parents=True, exist_ok=True)
    if "alone" in args.phases:
        for module in sorted(str(path) for path in Path("tests").rglob("test_*.py")):
            if args.only in module:
                run("alone", module, [module])
                write()
    if not tries["orders"]:
        tries["slow"] = slow_tests(args.fast)
    for order in map(str, range(args.orders) if "orders" in args.phases else ()):
        run("orders", order, order=order)
        write()
    if "reversed" in args.phases:
        run("reversed", "all", order="reversed")
        write()


if __name__ == "__main__":
    main()
