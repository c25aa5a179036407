"""TS+BC beside BC and 10%BC on data of D4RL's kinds: improve with several seeds, clone with several seeds, score.

    python benchmarks/stitching.py hopper-medium hopper-replay --shared FOLDER --out results/stitching

FOLDER holds policies/{d4rl-*-medium-v2,tqc-*-expert}.npz and replay/*-replay.hdf5. medium is recorded from D4RL's
own medium policy under D4RL's physics, medium-expert half from that and half from the TQC expert, replay is read.
One JSON file a data set is written to --out; `--tables` prints what is there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trajstitch.data import Dataset
from trajstitch.files import write_json
from trajstitch.formats import load, save
from trajstitch.graph import Search
from trajstitch.improve_cli import parse
from trajstitch.judge import Judge
from trajstitch.methods import train_run
from trajstitch.recording import collect, collect_mixture
from trajstitch.stitch import improve

ENVS = {"hopper": "Hopper", "halfcheetah": "HalfCheetah", "walker2d": "Walker2d"}


def make_data(name: str, shared: Path, transitions: int) -> Dataset:
    """The data set of this name."""
    env, _, kind = name.partition("-")
    medium = shared / "policies" / f"d4rl-{env}-medium-v2.npz"
    expert = shared / "policies" / f"tqc-{env}-expert.npz"
    where: dict[str, Any] = {"physics": "d4rl", "seed": 1, "together": 256}
    if kind == "medium":
        return collect(medium, f"{ENVS[env]}-v4", transitions, **where)
    if kind == "medium-expert":
        shares = [(str(medium), 0.5), (str(expert), 0.5)]
        return collect_mixture(shares, f"{ENVS[env]}-v4", transitions, **where)
    files = [shared / "replay" / f"{env}-replay{ending}" for ending in (".hdf5", ".npz")]
    return load(next((file for file in files if file.exists()), files[0]))


def judge_of(info: Mapping[str, Any], episodes: int = 10) -> Judge:
    """Who scores policies of data with this info: their own environment."""
    return Judge(str(info["env_id"]), str(info.get("physics", "gymnasium")), episodes)


def clone(method: str, data: Dataset, out: Path, seeds: int, first: int, steps: int) -> dict[str, Any]:
    """Last and best checkpoint of a cloned policy."""
    judge = judge_of(data.info)
    _, judged = train_run(
        method, data, out, seed=first, seeds=seeds, every=steps // 3, judge=judge, overwrite=True, steps=steps
    )
    assert judged is not None
    return judged.summary()


def stitch_and_clone(path: Path, seed: int, asked: argparse.Namespace, options: list[str]) -> None:
    """One whole TS+BC pipeline; what is known is written to --out after each clone."""
    begin = time.monotonic()
    data = load(path)
    config = parse([str(path), "--out", "unused", *options]).settings
    search = Search(data, config.graph, near=np.load(path.parent / "near.npy", mmap_mode="r"))
    result = improve(data, config, seed=1000 * seed, search=search)
    better, seams = result.dataset, result.seams
    report: dict[str, Any] = {
        "seed": seed,
        "seconds_improve": time.monotonic() - begin,
        "iterations": result.history,
        "model_errors": result.errors,
        "graph": result.graph,
        "data": {
            "return_mean": float(better.returns.mean()),
            "return_std": float(better.returns.std()),
            "transitions": better.transitions,
            "stitched": float(seams.stitched.mean()),
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, method in (("ts_bc", "bc"), ("ts_percent_bc", "percent-bc")):
            report[name] = clone(method, better, Path(folder) / method, asked.seeds, 100 * seed, asked.steps)
            write_json(asked.out, report)


def run(name: str, asked: argparse.Namespace, options: list[str]) -> None:
    """Everything for one data set; its parts appear in --out/parts as they are known."""
    data = make_data(name, asked.shared, asked.transitions)
    parts = asked.out / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    sizes = ["--seeds", str(asked.seeds), "--steps", str(asked.steps)]
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        save(data, folder / "data.traj")
        config = parse([name, "--out", "unused", *options]).settings
        near = Search(data, config.graph).near
        assert near is not None
        np.save(folder / "near.npy", near)
        own = [sys.executable, __file__, str(folder / "data.traj"), *sizes]
        children = [
            subprocess.Popen(
                [*own, "--stitch-seed", str(seed), "--out", str(parts / f"{name}.{seed}.json"), *options]
            )
            for seed in range(1, asked.stitch_seeds + 1)
        ]
        words = ["python benchmarks/stitching.py", name, *options, *sizes, "--transitions", str(asked.transitions)]
        report: dict[str, Any] = {
            "name": name,
            "command": " ".join(words),
            "transitions": data.transitions,
            "episodes": len(data),
            "return_mean": float(data.returns.mean()),
            "return_std": float(data.returns.std()),
        }
        for method in ("bc", "percent-bc"):
            key = method.replace("-", "_")
            report[key] = clone(method, data, folder / method, asked.seeds, 0, asked.steps)
        write_json(parts / f"{name}.json", report)
        for child in children:
            child.wait()
    merge(asked.out)
    print(line(json.loads((asked.out / f"{name}.json").read_text())), flush=True)


def merge(out: Path) -> None:
    """One file a data set from its parts."""
    for base in sorted((out / "parts").glob("*.json")):
        if "." not in base.stem:
            stitched = [
                json.loads(file.read_text()) for file in sorted(base.parent.glob(f"{base.stem}.[0-9]*.json"))
            ]
            write_json(out / base.name, {**json.loads(base.read_text()), "stitched": stitched})


def line(report: dict[str, Any]) -> str:
    """One row of the table."""

    def both(summaries: list[dict[str, Any]]) -> str:
        if not summaries:
            return "–"
        values = [
            np.concatenate([np.array(s[which]["normalised"]["per_seed"]) for s in summaries])
            for which in ("last", "best")
        ]
        return f"{values[0].mean():.1f} ± {values[0].std():.1f} / {values[1].mean():.1f}"

    stitched = report["stitched"]
    after = np.mean([s["data"]["return_mean"] for s in stitched]) if stitched else float("nan")
    cells = [report["name"], both([report["bc"]]), both([report["percent_bc"]])]
    cells += [both([s[name] for s in stitched if name in s]) for name in ("ts_bc", "ts_percent_bc")]
    cells += [f"{report['return_mean']:.0f} → {after:.0f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Run the data sets asked for, or one pipeline of one of them, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--shared", type=Path, default=Path("shared"))
    parser.add_argument("--out", type=Path, default=Path("results/stitching"))
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--stitch-seeds", type=int, default=3)
    parser.add_argument("--stitch-seed", type=int, help="one pipeline only; used by the script itself")
    parser.add_argument("--seeds", type=int, default=5, help="clones of each")
    parser.add_argument("--steps", type=int, default=50_000, help="of each clone")
    parser.add_argument("--tables", action="store_true")
    asked, options = parser.parse_known_args()
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several processes share the GPU
    if asked.tables:
        merge(asked.out)
        for file in sorted(asked.out.glob("*.json")):
            print(line(json.loads(file.read_text())))
    elif asked.stitch_seed is not None:
        stitch_and_clone(Path(asked.names[0]), asked.stitch_seed, asked, options)
    else:
        # A process each, all at once: none fills the machine alone.
        others = [
            subprocess.Popen([sys.executable, __file__, name, *(w for w in sys.argv[1:] if w not in asked.names)])
            for name in asked.names[1:]
        ]
        run(asked.names[0], asked, options)
        for other in others:
            other.wait()


if __name__ == "__main__":
    main()
