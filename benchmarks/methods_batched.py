"""Model-free methods on several data sets in one training run, which takes a GPU little longer than one data set.

    python -m benchmarks.methods_batched hopper-medium hopper-replay --methods td3bc td3tsbc iql --shared FOLDER

FOLDER and the data sets are described in benchmarks/datasets.py. All data sets must have observations of one size
and actions of one size; HalfCheetah and Walker2d have the same. The seeds of all data sets are members of one
training run, and each member draws batches from the rows of its own data set.

td3tsbc continues from the members of td3bc: before its switch it is td3bc, with the same checkpoints. The data are
stitched meanwhile.

Each data set and method has a run directory in --runs. It is started again each time, and another process scores
its checkpoints during training. Data and stitching results that exist already are used again. Results are written
to --out in the format of benchmarks/methods.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
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

from benchmarks.command import command, setting
from benchmarks.datasets import paper_name, scoring_of, stored_data
from benchmarks.methods import score_summary, table_row
from trajstitch.bench.suites import chosen_settings
from trajstitch.data import Dataset
from trajstitch.formats import load
from trajstitch.jobs.improve import improve_run
from trajstitch.jobs.run_dir import Run
from trajstitch.jobs.score import score_run
from trajstitch.methods import configure
from trajstitch.methods.method import Method
from trajstitch.methods.td3bc import FrozenCritic
from trajstitch.methods.td3tsbc import TD3TSBC, Switch, without_repeats
from trajstitch.policies.policy_files import save_policy
from trajstitch.stitching.presets import PRESETS
from trajstitch.storage.atomic import write_json
from trajstitch.training import loop
from trajstitch.training.loop import Fit, Learner, State, Table
from trajstitch.training.networks import pick

METHODS = ("bc", "td3bc", "rebrac", "td3tsbc", "iql", "cql")
Save = Callable[[State], None]


# -- data --------------------------------------------------------------------------------------------------------


def prepare(args: argparse.Namespace) -> None:
    """Make one data set and, for td3tsbc, stitch it."""
    data = stored_data(args.prepare, args)
    if "td3tsbc" in args.methods:
        improve_run(data, PRESETS[args.preset], args.runs / args.prepare / "improve")


def wait_for(files: Sequence[Path], preparing: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait until all files exist; exit if a process that makes them has failed."""
    while not any(child.poll() for child in preparing):
        if all(file.exists() for file in files):
            return
        time.sleep(0.5)
    sys.exit("a data set could not be prepared")


# -- training ----------------------------------------------------------------------------------------------------


def start(configs: Sequence[Learner], tables: Sequence[Table], seeds: int) -> State:
    """New members: the first `seeds` of them for the first configuration and table, the next for the second."""
    states = [loop.start(config, table, range(seeds)) for config, table in zip(configs, tables, strict=True)]
    model, opt_state = (
        jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)
        for parts in zip(*[(state.model, state.opt_state) for state in states], strict=True)
    )
    return State(model, opt_state, states[0].step)


def advance(
    config: Method, state: State, tables: Sequence[Table], args: argparse.Namespace, until: int, save: Save
) -> State:
    """Train all members until this step, those of each table on the rows of that table."""
    ends = np.cumsum([0, *[len(table["obs"]) for table in tables]])
    rows = [range(a, b) for a, b in itertools.pairwise(ends) for _ in range(args.seeds)]
    table = {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
    seeds = [seed for _ in tables for seed in range(args.seeds)]
    begin = time.monotonic()
    for reached, _ in loop.run(config, state, table, seeds, args.every, until, rows):
        state = reached
        save(state)
        print(f"{int(state.step):,} steps, {time.monotonic() - begin:.0f} s", flush=True)
        if time.monotonic() - begin > args.limit:
            break
    return state


def saver(config: Method, runs: Sequence[Run], seeds: int) -> Save:
    """A function that saves the policies of each data set in its own run directory."""

    def save(state: State) -> None:
        policies = jax.device_get(config.policy(state.model))
        for i, run in enumerate(runs):
            own = pick(policies, slice(i * seeds, (i + 1) * seeds))
            info = run.settings()["data"]["info"]
            save_policy(own, run.checkpoint(int(state.step)), info, overwrite=True)

    return save


def train_stitched(
    plain: Method,
    states: dict[int, State],
    names: list[str],
    runs: dict[str, Run],
    data: list[Table],
    args: argparse.Namespace,
) -> None:
    """Train td3tsbc from td3bc's members at the switch; data sets with a frozen critic are a run of their own."""
    switches = [switch_of(name, args.steps) for name in names]
    later = [without_repeats(plain.table(load(improved_file(name, args)))) for name in names]
    frozen = FrozenCritic(**{f.name: getattr(plain, f.name) for f in dataclasses.fields(plain)})
    for freeze in (False, True):
        chosen = [i for i, switch in enumerate(switches) if switch.freeze_critic == freeze]
        if not chosen:
            continue
        steps = sorted({switches[i].step for i in chosen})
        members = np.concatenate([np.arange(i * args.seeds, (i + 1) * args.seeds) for i in chosen])
        before = states[steps[0]]
        state = State(pick(before.model, members), pick(before.opt_state, members), before.step)
        save = saver(plain, [runs[names[i]] for i in chosen], args.seeds)
        for a, b in zip(steps, [*steps[1:], args.steps], strict=True):
            tables = [later[i] if switches[i].step <= a else data[i] for i in chosen]
            state = advance(frozen if freeze else plain, state, tables, args, b, save)


def switch_of(name: str, steps: int) -> Switch:
    """The paper's rule for a data set."""
    return TD3TSBC(rule=paper_name(name), fit=Fit(steps=steps)).switched


def improved_file(name: str, args: argparse.Namespace) -> Path:
    """The stitched data of a data set."""
    file: Path = args.runs / name / "improve" / "improved.hdf5"
    return file


def train_all(args: argparse.Namespace, preparing: Sequence[subprocess.Popen[bytes]]) -> None:
    """Train every method."""
    names = args.names
    files = [args.runs / name / "data.traj" for name in names]
    wait_for(files, preparing)
    data = [load(file) for file in files]
    for method in args.methods:
        if method == "td3tsbc":
            continue  # trained with td3bc
        begin = time.monotonic()
        # Only rebrac's differ between data sets, in numbers that each member carries itself.
        settings = [{**chosen_settings(method, name), **dict(args.set)} for name in names]
        configs = [configure(method, steps=args.steps, **own) for own in settings]
        config = configs[0]
        for one in data:
            config.check(one)
        tables = [config.table(one) for one in data]
        runs = [open_run(method, name, one, args) for name, one in zip(names, data, strict=True)]
        branch = method == "td3bc" and "td3tsbc" in args.methods
        switches = {switch_of(name, args.steps).step for name in names} if branch else set()
        state, states = start(configs, tables, args.seeds), {}
        for until in sorted(switches | {args.steps}):
            state = states[until] = advance(config, state, tables, args, until, saver(config, runs, args.seeds))
        save_time(runs, time.monotonic() - begin, args)
        if branch:
            stitched = {n: open_run("td3tsbc", n, one, args) for n, one in zip(names, data, strict=True)}
            for run in runs:
                copy_shared(run, stitched[run.path.parent.name])
            wait_for([improved_file(name, args) for name in names], preparing)
            train_stitched(config, states, names, stitched, tables, args)
            save_time(list(stitched.values()), None, args)


def open_run(method: str, name: str, data: Dataset, args: argparse.Namespace) -> Run:
    """The run directory of a method on a data set."""
    own = {**chosen_settings(method, name), **dict(args.set)}
    config = {"steps": args.steps, "seeds": args.seeds, "every": args.every, **own}
    about = {"fingerprint": data.fingerprint, "transitions": data.transitions, "info": dict(data.info)}
    return Run.open(args.runs / name / method, {"method": method, "config": config, "data": about})


def copy_shared(run: Run, stitched: Run) -> None:
    """Copy td3bc's checkpoints up to the switch, which are td3tsbc's too."""
    stitched.checkpoint(0).parent.mkdir(exist_ok=True)
    for step in run.steps():
        if step <= switch_of(run.path.parent.name, run.settings()["config"]["steps"]).step:
            # A link is never seen half written by the process that scores.
            stitched.checkpoint(step).hardlink_to(run.checkpoint(step))


def save_time(runs: Sequence[Run], seconds: float | None, args: argparse.Namespace) -> None:
    """Save the training time, None if it was part of another run; the file marks the runs as finished."""
    took = {"seconds": seconds and round(seconds, 1), "members": len(args.names) * args.seeds}
    for run in runs:
        write_json(run.path / "time.json", took)


# -- scores ------------------------------------------------------------------------------------------------------


def score_all(args: argparse.Namespace) -> None:
    """Score the checkpoints of one data set as they appear, and save the results of each finished run."""
    name = args.score
    waiting = list(args.methods)
    while waiting:
        for method in list(waiting):
            path = args.runs / name / method
            finished = (path / "time.json").exists()
            if path.exists() and (run := Run.existing(path)).steps():
                scores = score_run(run, scoring_of(run.settings()["data"]["info"], args.episodes))
                if finished:
                    waiting.remove(method)
                    report(name, method, run, score_summary(scores), args)
        time.sleep(2)


def report(name: str, method: str, run: Run, summary: dict[str, Any], args: argparse.Namespace) -> None:
    """Add a method to the result file of a data set."""
    took = json.loads((run.path / "time.json").read_text())
    out = args.out / f"{name}.json"
    known: dict[str, Any] = json.loads(out.read_text()) if out.exists() else {"methods": {}}
    about = run.settings()["data"]
    known |= {"name": name, "fingerprint": about["fingerprint"], "transitions": about["transitions"]}
    steps = run.steps()[-1]
    result = {
        "seeds": args.seeds,
        "steps": steps,
        "seconds": took["seconds"],  # of all members together
        "members_together": took["members"],
        "steps_a_second": took["seconds"] and round(steps / took["seconds"], 1),
        **summary,
        "command": command("methods_batched", sys.argv[1:-2]),  # without --score NAME
    }
    known["methods"][method] = result
    write_json(out, known)
    print(table_row(name, method, result), flush=True)


def main() -> None:
    """Prepare the data, then train and score at the same time; --prepare and --score do one part only."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help="Data sets, such as hopper-medium-expert.")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=["td3bc", "td3tsbc", "iql"], help="Methods to train."
    )
    parser.add_argument("--shared", type=Path, default=Path("shared"), help="Folder with policies/ and replay/.")
    parser.add_argument("--runs", type=Path, default=Path("runs/methods_batched"), help="Folder of the runs.")
    parser.add_argument("--out", type=Path, default=Path("results/methods"), help="Folder of the result files.")
    parser.add_argument("--transitions", type=int, default=1_000_000, help="Transitions to record per data set.")
    parser.add_argument("--seeds", type=int, default=5, help="Seeds per data set.")
    parser.add_argument("--steps", type=int, default=1_000_000, help="Gradient steps.")
    parser.add_argument("--every", type=int, default=100_000, help="Steps between checkpoints.")
    parser.add_argument("--limit", type=float, default=float("inf"), help="Seconds after which training stops.")
    parser.add_argument("--episodes", type=int, default=10, help="Evaluation episodes per seed and checkpoint.")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="standard", help="Preset of the stitching.")
    parser.add_argument(
        "--set",
        nargs="+",
        type=setting,
        default=[],
        metavar="NAME=VALUE",
        help="Method settings; values are JSON.",
    )
    parser.add_argument("--prepare", metavar="NAME", help="Prepare this data set only; used by the script itself.")
    parser.add_argument("--score", metavar="NAME", help="Score this data set only; used by the script itself.")
    args = parser.parse_args()
    if "td3tsbc" in args.methods and "td3bc" not in args.methods:
        parser.error("td3tsbc continues from td3bc; give both")
    if args.prepare:
        prepare(args)
    elif args.score:
        score_all(args)
    else:
        run_all(args)


def run_all(args: argparse.Namespace) -> None:
    """Train in this process, while others prepare data and score checkpoints."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the processes share one GPU
    own = [sys.executable, "-m", "benchmarks.methods_batched", *sys.argv[1:]]
    for name in args.names:
        for method in args.methods:
            shutil.rmtree(args.runs / name / method, ignore_errors=True)
    preparing = [subprocess.Popen([*own, "--prepare", name]) for name in args.names]
    on_cpu = {**os.environ, "JAX_PLATFORMS": "cpu"}
    scoring = [subprocess.Popen(["nice", *own, "--score", name], env=on_cpu) for name in args.names]
    try:
        train_all(args, preparing)
    except BaseException:
        for child in (*scoring, *preparing):
            child.kill()
        raise
    if any([child.wait() for child in scoring]):
        sys.exit("a data set could not be scored")


if __name__ == "__main__":
    main()
