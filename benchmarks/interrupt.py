"""Ctrl-C and SIGTERM at random moments: how does the program end, and how fast?

    python -m benchmarks.interrupt --tries 60 --out results/interrupt.json

Each try starts a command, sends the signal after a random time of up to `--within` seconds (a sixth of that for
commands that are soon done), and waits. What is right: exit code 130 (Ctrl-C) or 143 (SIGTERM), one sentence and
nothing else on stderr, and no file that is half written. A try whose signal comes before the first line of
trajstitch runs, while Python itself starts, is counted apart (Linux tells which those are).
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from trajstitch.formats import load, save

TINY = [f"--{model}.fit.steps=200" for model in ("dynamics", "inverse", "reward", "value")]
COMMANDS = {
    "inspect": ["inspect", "DATA"],
    "improve": ["improve", "DATA", "--out", "OUT", "--preset", "quick", *TINY],
    "train": ["train", "bc", "DATA", "--out", "OUT", "--steps", "4000", "--every", "200", "--no-evaluation"],
    "weigh": ["weigh", "DATA", "--out", "OUT.npz", "--preset", "quick", "--fit.steps=2000"],
    "collect": ["collect", "random", "--env", "Hopper-v5", "--steps", "20000", "--out", "OUT.npz"],
    "convert": ["convert", "DATA", "OUT.hdf5"],
}
SHORT = ("inspect", "convert")


def attempt(words: list[str], number: int, after: float, folder: Path) -> dict[str, Any]:
    """Start a command, send the signal after so many seconds, and return how it ended."""
    names = {"DATA": str(folder / "data.npz")}
    words = [names.get(word, word.replace("OUT", str(folder / "out"))) for word in words]
    begin = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "trajstitch.cli", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(after)
    if process.poll() is not None:
        process.communicate()
        return {"end": "finished before"}
    heard = listens(process.pid)
    sent = time.monotonic()
    process.send_signal(number)
    try:
        _, text = process.communicate(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"end": "swallowed", "after": after}
    took, lines = time.monotonic() - sent, text.splitlines()
    seen = {"after": round(sent - begin, 3), "seconds": round(took, 3), "code": process.returncode}
    left = [str(path.relative_to(folder)) for path in folder.rglob(".*.part")]
    if process.returncode == 128 + number and len(lines) == 1 and lines[0].startswith("trajstitch: stopped"):
        return {"end": "left files", "left": left, **seen} if left else {"end": "right", **seen}
    if process.returncode == 0 and not lines:
        return {"end": "finished", **seen}
    if not heard:
        return {"end": "before trajstitch", **seen}
    return {"end": "crash" if process.returncode < 0 else "traceback", "text": lines[-3:], **seen}


def listens(pid: int) -> bool:
    """Whether trajstitch has begun to listen for signals: Python alone does not catch SIGTERM."""
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status["SigCgt"], 16) >> (signal.SIGTERM - 1) & 1)


def main() -> None:
    """Try, and write the counts and every try that was not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=60)
    parser.add_argument("--within", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/interrupt.json"))
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background
    rng = random.Random(args.seed)
    tries = []
    for k in range(args.tries):
        name = list(COMMANDS)[k % len(COMMANDS)]
        number = signal.SIGINT if rng.random() < 0.75 else signal.SIGTERM
        with tempfile.TemporaryDirectory() as folder:
            save(load("demo"), Path(folder) / "data.npz")
            within = args.within / 6 if name in SHORT else args.within
            found = attempt(COMMANDS[name], number, rng.uniform(0, within), Path(folder))
        tries.append({"command": name, "signal": number.name, **found})
        print(tries[-1], flush=True)
    ended = [each for each in tries if "seconds" in each]
    options = f"--tries {args.tries} --seed {args.seed} --within {args.within:g}"
    summary = {
        "command": f"python -m benchmarks.interrupt {options}",
        "ends": dict(Counter(each["end"] for each in tries)),
        "by_signal": dict(Counter(f"{each['signal']} {each['end']}" for each in tries)),
        "slowest_seconds": max((each["seconds"] for each in ended), default=None),
        "tries": tries,
    }
    args.out.write_text(json.dumps(summary, indent=2) + "\n")
    print(summary["ends"])


if __name__ == "__main__":
    main()
