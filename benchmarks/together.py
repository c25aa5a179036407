"""Model-free methods on several data sets at once, which takes a GPU little longer than one.

    python benchmarks/together.py hopper-medium hopper-replay --methods td3bc td3tsbc iql --shared FOLDER

FOLDER and the data are those of benchmarks/stitching.py; observations and actions must be of the same sizes, as
those of HalfCheetah and Walker2d are. The seeds of all data sets are members of one training, each of which draws
from rows of its own. td3tsbc goes on from td3bc's members: until its switch it is td3bc, with the same
checkpoints; stitching is done meanwhile. Each data set and method has a run directory under --runs, begun anew
each time and scored by another process while training goes on; data and stitching that are there are used again.
Results are written to --out as benchmarks/methods.py writes them.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from methods import data_of, line, paper_name, scored, setting
from stitching import judge_of

from trajstitch import fit
from trajstitch.data import Dataset
from trajstitch.files import write_json
from trajstitch.fit import Fit, State, Table
from trajstitch.formats import load
from trajstitch.improving import improve_run
from trajstitch.judge import judge_run
from trajstitch.method import Method
from trajstitch.methods import configure
from trajstitch.policy import save_policy
from trajstitch.run import Run
from trajstitch.stitch import PRESETS
from trajstitch.td3bc import TD3TSBC, FrozenCritic, Switch, without_repeats

METHODS = ("bc", "td3bc", "td3tsbc", "iql", "cql")
Save = Callable[[State], None]


# -- data --------------------------------------------------------------------------------------------------------


def prepare(asked: argparse.Namespace) -> None:
    """One data set and, where td3tsbc needs it, what stitching makes of it."""
    data = data_of(asked.prepare, asked)
    if "td3tsbc" in asked.methods:
        improve_run(data, PRESETS[asked.preset], asked.runs / asked.prepare / "improve")


def wait_for(files: Sequence[Path], preparing: Sequence[subprocess.Popen[bytes]]) -> None:
    """Until all of them are there, or whoever was to make one has failed."""
    while not any(child.poll() for child in preparing):
        if all(file.exists() for file in files):
            return
        time.sleep(0.5)
    sys.exit("a data set could not be prepared")


# -- training ----------------------------------------------------------------------------------------------------


def start(config: Method, tables: Sequence[Table], seeds: int) -> State:
    """Fresh members, the first `seeds` for the first table and so on."""
    states = [fit.start(config, table, range(seeds)) for table in tables]
    model, memory = (
        jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
        for parts in zip(*[(state.model, state.memory) for state in states], strict=True)
    )
    return State(model, memory, states[0].step)


def advance(
    config: Method, state: State, tables: Sequence[Table], asked: argparse.Namespace, until: int, keep: Save
) -> State:
    """Train all members, those of each table on its rows, until that step."""
    ends = np.cumsum([0, *[len(table["obs"]) for table in tables]])
    rows = [range(a, b) for a, b in itertools.pairwise(ends) for _ in range(asked.seeds)]
    table = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    seeds = [seed for _ in tables for seed in range(asked.seeds)]
    for reached, _ in fit.run(config, state, table, seeds, asked.every, until, rows):
        state = reached
        keep(state)
        print(f"{int(state.step):,} steps at {time.monotonic() - asked.begun:.0f} s", flush=True)
    return state


def saver(config: Method, runs: Sequence[Run], seeds: int) -> Save:
    """Writes the policies of each data set into its own run."""

    def keep(state: State) -> None:
        policy = config.policy(state.model)
        for i, run in enumerate(runs):
            own = jax.tree.map(lambda leaf, i=i: np.asarray(leaf[i * seeds : (i + 1) * seeds]), policy)
            info = run.settings()["data"]["info"]
            save_policy(own, run.checkpoint(int(state.step)), info, overwrite=True)

    return keep


def train_stitched(
    plain: Method,
    states: dict[int, State],
    names: list[str],
    runs: dict[str, Run],
    data: list[Table],
    asked: argparse.Namespace,
) -> None:
    """TD3+TS+BC from td3bc's members at the first switch on; one training with, one without a frozen critic."""
    switches = [switch_of(name, asked.steps) for name in names]
    later = [without_repeats(plain.table(load(asked.runs / name / "improve" / "improved.hdf5"))) for name in names]
    frozen = FrozenCritic(**{f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)})
    for freeze in (False, True):
        chosen = [i for i, switch in enumerate(switches) if switch.freeze_critic == freeze]
        if not chosen:
            continue
        steps = sorted({switches[i].step for i in chosen})
        member = np.concatenate([np.arange(i * asked.seeds, (i + 1) * asked.seeds) for i in chosen])
        whole = states[steps[0]]
        model, memory = jax.tree.map(lambda leaf, m=member: leaf[m], (whole.model, whole.memory))
        state = State(model, memory, whole.step)
        keep = saver(plain, [runs[names[i]] for i in chosen], asked.seeds)
        for a, b in zip(steps, [*steps[1:], asked.steps], strict=True):
            tables = [later[i] if switches[i].step <= a else data[i] for i in chosen]
            state = advance(frozen if freeze else plain, state, tables, asked, b, keep)


def switch_of(name: str, steps: int) -> Switch:
    """The paper's rule for a data set."""
    return TD3TSBC(rule=paper_name(name), fit=Fit(steps=steps)).switched


def train_all(asked: argparse.Namespace, preparing: Sequence[subprocess.Popen[bytes]]) -> None:
    """Every method."""
    names = asked.names
    files = [asked.runs / name / "data.traj" for name in names]
    wait_for(files, preparing)
    data = [load(file) for file in files]
    for method in asked.methods:
        if method == "td3tsbc":
            continue
        asked.begun = time.monotonic()
        config = configure(method, steps=asked.steps, **dict(asked.set))
        tables = [config.table(one) for one in data]
        runs = [open_run(method, name, one, asked) for name, one in zip(names, data, strict=True)]
        branch = method == "td3bc" and "td3tsbc" in asked.methods
        switches = {switch_of(name, asked.steps).step for name in names} if branch else set()
        state, states = start(config, tables, asked.seeds), {}
        for until in sorted(switches | {asked.steps}):
            state = states[until] = advance(config, state, tables, asked, until, saver(config, runs, asked.seeds))
        note_time(runs, time.monotonic() - asked.begun, len(names), asked)
        if branch:
            asked.begun = time.monotonic()
            stitched = {n: open_run("td3tsbc", n, one, asked) for n, one in zip(names, data, strict=True)}
            for run in runs:
                copy_shared(run, stitched[run.path.parent.name])
            wait_for([asked.runs / name / "improve" / "improved.hdf5" for name in names], preparing)
            train_stitched(config, states, names, stitched, tables, asked)
            note_time(list(stitched.values()), None, len(names), asked)


def open_run(method: str, name: str, data: Dataset, asked: argparse.Namespace) -> Run:
    """The run directory of a method on a data set."""
    settings = {"method": method, "steps": asked.steps, "seeds": asked.seeds, "every": asked.every}
    settings |= dict(asked.set)
    about = {"fingerprint": data.fingerprint, "transitions": data.transitions, "info": dict(data.info)}
    return Run.open(asked.runs / name / method, {**settings, "data": about})


def copy_shared(run: Run, stitched: Run) -> None:
    """td3bc's checkpoints up to the switch, which are td3tsbc's too."""
    stitched.checkpoint(0).parent.mkdir(exist_ok=True)
    for step in run.steps():
        if step <= switch_of(run.path.parent.name, run.settings()["steps"]).step:
            stitched.checkpoint(step).hardlink_to(run.checkpoint(step))  # whole or not at all, since judges look


def note_time(runs: Sequence[Run], seconds: float | None, together: int, asked: argparse.Namespace) -> None:
    """How long training took, unless it was part of another's, which says too that it is over."""
    took = {"seconds": seconds and round(seconds, 1), "together": together * asked.seeds}
    for run in runs:
        write_json(run.path / "time.json", took)


# -- scores ------------------------------------------------------------------------------------------------------


def judge_all(asked: argparse.Namespace) -> None:
    """Score every checkpoint of one data set as it appears, and write the results down."""
    name = asked.judge
    waiting = list(asked.methods)
    while waiting:
        for method in list(waiting):
            path = asked.runs / name / method
            over = (path / "time.json").exists()
            if path.exists() and (run := Run.existing(path)).steps():
                judged = judge_run(run, judge_of(run.settings()["data"]["info"], asked.episodes))
                if over:
                    waiting.remove(method)
                    report(name, method, run, scored(judged), asked)
        time.sleep(2)


def report(name: str, method: str, run: Run, summary: dict[str, Any], asked: argparse.Namespace) -> None:
    """Add to the results of a data set."""
    took = json.loads((run.path / "time.json").read_text())
    out = asked.out / f"{name}.json"
    known: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"methods": {}}
    about = run.settings()["data"]
    known |= {"name": name, "fingerprint": about["fingerprint"], "transitions": about["transitions"]}
    result = {
        "seeds": asked.seeds,
        "steps": asked.steps,
        "seconds": took["seconds"],  # of all members together
        "members_together": took["together"],
        "steps_a_second": took["seconds"] and round(asked.steps / took["seconds"], 1),
        **summary,
        "command": f"python benchmarks/together.py {asked.words}",
    }
    known["methods"][method] = result
    write_json(out, known)
    print(line(name, method, result), flush=True)


def main() -> None:
    """Prepare, then train and score side by side; parts of it where a child is asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["td3bc", "td3tsbc", "iql"])
    parser.add_argument("--shared", type=Path, default=Path("shared"))
    parser.add_argument("--runs", type=Path, default=Path("runs/together"))
    parser.add_argument("--out", type=Path, default=Path("results/methods"))
    parser.add_argument("--transitions", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--every", type=int, default=100_000)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--preset", choices=tuple(PRESETS), default="standard", help="of the stitching")
    parser.add_argument("--set", nargs="+", type=setting, default=[], metavar="NAME=VALUE", help="of the methods")
    parser.add_argument("--prepare", help="used by the script itself")
    parser.add_argument("--judge", help="used by the script itself")
    asked = parser.parse_args()
    if "td3tsbc" in asked.methods and "td3bc" not in asked.methods:
        parser.error("td3tsbc goes on from td3bc; ask for both")
    asked.words = shlex.join(sys.argv[1:]).partition(" --judge")[0]
    if asked.prepare:
        prepare(asked)
        return
    if asked.judge:
        judge_all(asked)
        return
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the children share one GPU
    own = [sys.executable, *sys.argv]
    for name in asked.names:
        for method in asked.methods:
            shutil.rmtree(asked.runs / name / method, ignore_errors=True)
    preparing = [subprocess.Popen([*own, "--prepare", name]) for name in asked.names]
    on_cpu = {**os.environ, "JAX_PLATFORMS": "cpu"}
    judging = [subprocess.Popen(["nice", *own, "--judge", name], env=on_cpu) for name in asked.names]
    try:
        train_all(asked, preparing)
    except BaseException:
        for child in (*judging, *preparing):
            child.kill()
        raise
    if any([child.wait() for child in judging]):
        sys.exit("a data set could not be scored")


if __name__ == "__main__":
    main()
