"""Does every test module pass alone, and do all tests pass in any order?

    python -m benchmarks.test_orders --orders 3 --out results/test_orders.json

Each module of tests runs in a process of its own; then all tests in reverse, and in random orders of the modules
and of the tests inside each. What a process ended with is recorded, and the tests that failed are named.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ORDER = "TRAJSTITCH_TEST_ORDER"  # for the plugin: reversed, or the seed of a random order


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Reorder the tests; modules stay whole, since the tests of one share what is costly to make."""
    order = os.environ.get(ORDER)
    if order == "reversed":
        items.reverse()
    elif order is not None:
        rng = random.Random(int(order))
        modules = sorted({str(item.path) for item in items})
        place = {module: rng.random() for module in modules}
        items.sort(key=lambda item: (place[str(item.path)], rng.random()))


def attempt(words: list[str], order: str | None = None) -> dict[str, Any]:
    """Run pytest once and return how it ended."""
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(str(Path(folder).resolve()) for folder in ("src", ".")))
    if order is not None:
        env[ORDER] = order
    begin = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-p", "benchmarks.test_orders", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    return {
        "code": done.returncode,
        "seconds": round(time.monotonic() - begin),
        "end": lines[-1] if lines else done.stderr[-200:],
        "failed": [line for line in lines if line.startswith(("FAILED", "ERROR"))],
    }


def main() -> None:
    """Try all, and write the result after each try, so that a run that is stopped counts too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=3, help="random orders of all tests")
    parser.add_argument("--workers", type=int, default=2, help="processes for all tests")
    parser.add_argument("--out", type=Path, default=Path("results/test_orders.json"))
    args = parser.parse_args()
    command = f"python -m benchmarks.test_orders --orders {args.orders} --workers {args.workers}"
    tries: dict[str, Any] = {"command": command, "alone": {}, "orders": {}}
    for module in sorted(str(path) for path in Path("tests").rglob("test_*.py")):
        tries["alone"][module] = attempt([module])
        print(module, tries["alone"][module], flush=True)
        args.out.write_text(json.dumps(tries, indent=1) + "\n")
    for order in ["reversed", *map(str, range(args.orders))]:
        tries["orders"][order] = attempt(["-n", str(args.workers), "--dist", "worksteal"], order)
        print(order, tries["orders"][order], flush=True)
        args.out.write_text(json.dumps(tries, indent=1) + "\n")


if __name__ == "__main__":
    main()
