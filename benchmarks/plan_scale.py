"""Time and memory of the reachable graph and the optimal plan, beside the paper's graph in the same run.

    python -m benchmarks.plan_scale graph walks:100000 hopper-medium.traj:1000000 --json results/plan_scale.json
    python -m benchmarks.plan_scale plan 10000000 --edges 25 --json results/plan_scale.json

`graph` builds both graphs of a data set and plans on the reachable one; `walks` are recorded in OGBench's giant
point maze, other data are files, cut or repeated with noise as `trajstitch bench speed` does. The world model is
that of the preset quick, trained on at most 100,000 transitions, so that it lets pass about as many candidates as
in use; the plausible graph has the networks and the 48 neighbours of `trajstitch bench speed`. `plan` plans on a
graph of random edges between near rows, which needs no models. Every measurement has a process of its own; peak
memory is that of each stage. Core seconds are those of all threads together; what others do on the machine hardly
changes them.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command import command
from trajstitch.bench.speed import machine, resized
from trajstitch.data import Dataset
from trajstitch.evaluation.walker import walk
from trajstitch.formats import load
from trajstitch.models.dynamics import Dynamics, DynamicsConfig, train_dynamics
from trajstitch.models.world_model import train_action_dynamics
from trajstitch.stitching.edges import Reachable, Trials
from trajstitch.stitching.graph import EdgeFinder, Graph, GraphConfig
from trajstitch.stitching.optimal import Neighbourhood, OptimalConfig, Plan, Problem, cover, follow, solve
from trajstitch.stitching.presets import PRESETS
from trajstitch.stitching.reach import ReachConfig, ReachFinder
from trajstitch.training.loop import Fit

MAZE = "pointmaze-giant-singletask-task1-v0"
KNOWN = 100_000  # transitions that models are trained on
HORIZON = 1000  # steps of the longest walk


class Stages:
    """Seconds and peak memory of stages."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, float]] = {}

    def time(self, name: str, make: Any) -> Any:
        """Run a stage and return its result."""
        before = memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        begin, used = time.perf_counter(), time.process_time()
        made = make()
        taken = {"seconds": time.perf_counter() - begin, "core_seconds": time.process_time() - used}
        self.found[name] = {**taken, "peak_gb": memory("VmHWM"), "gb_before": before}
        print(f"  {name}:", {k: round(v, 2) for k, v in self.found[name].items()}, flush=True)
        return made

    def ratio(self, ours: list[str], other: list[str], unit: str) -> float:
        """Return the time of our stages over that of the others."""
        mine, theirs = (sum(self.found[name][unit] for name in names) for names in (ours, other))
        return mine / theirs


def memory(name: str) -> float:
    """Return a size of this process in GB: VmRSS, what it has now, or VmHWM, its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 2**20


def give_back() -> None:
    """Give freed memory back to the system, so that what one graph took is not counted for the other (glibc)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def read_data(name: str, transitions: int) -> Dataset:
    """Record or read the data set."""
    if name == "walks":
        return walk(MAZE, transitions)
    return resized(load(name), transitions, 0)


def measure_graph(name: str, transitions: int, steps: int | None, tolerance: float | None) -> dict[str, Any]:
    """Measure both graphs of a data set, and the plan on the reachable one."""
    data = read_data(name, transitions)
    train, held_out = resized(data, min(KNOWN, data.transitions), 0).split(0.95, 0)
    config = PRESETS["quick"].world
    if steps is not None:
        config = replace(config, fit=replace(config.fit, steps=steps))
    world, _ = train_action_dynamics(train, held_out, config, 0)
    dynamics, _ = train_dynamics(train, held_out, DynamicsConfig(fit=Fit(600, 256, 1e-3)), 0)
    stages = Stages()

    plausible_edges = measure_plausible(stages, data, dynamics)
    give_back()
    finder = stages.time("reachable setup", lambda: ReachFinder(data, world, ReachConfig(tolerance=tolerance)))
    net = stages.time("reachable net", lambda: finder.net)
    stages.time("reachable neighbours", lambda: finder.near)
    few = data.row[:4096]
    finder.aim(few, finder.net[np.arange(len(few)) % len(finder.net)])  # compiles, as the next
    finder.extend(finder.empty(), few, few + 1, tried=False)
    graph = stages.time(
        "reachable edges", lambda: finder.extend(finder.empty(), data.row, data.row + 1, tried=False)
    )
    end = np.zeros(len(data.obs))
    discount = OptimalConfig().discount
    end[data.last_row[~data.terminal]] = data.reward.mean() / (1 - discount)  # as if it went on as usual
    error = graph.epsilon - graph.margin
    problem = Problem(graph, data.reward, graph.reward, error, end)
    around, trials = Reachable(finder).neighbourhood, Trials(finder, graph)
    plan = stages.time("plan", lambda: solve(problem, OptimalConfig(), around, attempt=trials.attempt))
    measure_walks(stages, graph, plan, data.row[data.start[:-1]], len(data.obs))
    paper_stages = ["plausible neighbours", "plausible edges"]
    ours = ["reachable setup", "reachable net", "reachable neighbours", "reachable edges", "plan"]
    return {
        "data": {"name": Path(name).stem, "transitions": data.transitions, "states": len(data.obs)},
        "plausible_edges": plausible_edges,
        "usual_error": finder.usual,
        "tolerance": finder.tolerance,
        "net": len(net),
        "candidates_per_state": graph.candidates / data.transitions,
        "edges_per_state": len(graph.landing) / data.transitions,
        "rounds": plan.rounds,
        "tried_per_state": plan.tried / data.transitions,
        "stages": stages.found,
        "ratio": stages.ratio(ours, paper_stages, "seconds"),
        "ratio_of_core_seconds": stages.ratio(ours, paper_stages, "core_seconds"),
    }


def measure_plausible(stages: Stages, data: Dataset, dynamics: Dynamics) -> int:
    """Build the paper's graph; return the number of its edges."""
    finder, few = EdgeFinder(data, GraphConfig(nearest=48)), data.row[:4096]
    stages.time("plausible neighbours", lambda: finder.near)
    finder.extend(finder.empty(), few, few + 1, dynamics)  # compiles
    graph = stages.time("plausible edges", lambda: finder.extend(finder.empty(), data.row, data.row + 1, dynamics))
    return len(graph.landing)


def measure_walks(stages: Stages, graph: Graph, plan: Plan, first: Any, rows: int) -> None:
    """Follow the plan from all starts, and cover all states."""
    stages.time("follow", lambda: follow(graph, plan, rows, first, HORIZON))
    stages.time("cover", lambda: cover(graph, plan, rows))


def measure_plan(transitions: int, edges: int, tolerance: float) -> dict[str, Any]:
    """Measure the plan on a graph of random edges between near rows."""
    length = 200
    many = transitions // length
    rng = np.random.default_rng(0)
    source = (np.arange(many)[:, None] * (length + 1) + np.arange(length)).reshape(-1)
    rows = many * (length + 1)
    begin = np.arange(transitions + 1, dtype=np.int64) * edges
    landing = np.empty(transitions * edges, np.int32)
    for a in range(0, transitions, 1 << 16):
        some = source[a : a + (1 << 16)]
        away = rng.integers(-4 * length, 4 * length, (len(some), edges))
        landing[begin[a] : begin[a + len(some)]] = ((some[:, None] + away) % rows).reshape(-1)
    columns = [rng.random(transitions * edges, np.float32) for _ in range(3)]
    margin, spread, edge_reward = columns
    rows_of_edges: Any = landing  # int32, as ReachFinder has it
    graph = Graph(source, source + 1, begin, rows_of_edges, margin, spread, 0, 1.0, edge_reward)
    reward = rng.random(transitions, np.float32)
    near = rng.integers(0, rows, (rows // 4, 8)).astype(np.int32)
    distance = rng.random((rows // 4, 8), np.float32) + np.float32(0.1)
    print(f"  {memory('VmRSS'):.2f} GB at first", flush=True)

    def slopes(value: Any) -> Any:
        """As Reachable.slopes, with a net of a quarter of the rows."""
        slope = np.zeros(rows, np.float32)
        for a in range(0, len(near), 1 << 16):
            part = slice(a, a + (1 << 16))
            fall = (value[: len(near)][part, None] - value[near[part]]) / distance[part]
            slope[: len(near)][part] = np.maximum(fall, 0).max(1)
        return slope * np.float32(0.01)

    stages = Stages()
    around = Neighbourhood(slopes, lambda value: value)
    problem = Problem(graph, reward, edge_reward, margin, np.zeros(rows))
    plan = stages.time("plan", lambda: solve(problem, OptimalConfig(tolerance=tolerance), around))
    measure_walks(stages, graph, plan, source[::length], rows)
    return {"transitions": transitions, "edges": len(landing), "rounds": plan.rounds, "stages": stages.found}


def main() -> None:
    """Measure, each in a process of its own, and add to the file of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    one = commands.add_parser("graph", help="Both graphs of data sets, and the plan.")
    one.add_argument("data", nargs="+", help="Data sets as FILE:TRANSITIONS or walks:TRANSITIONS.")
    one.add_argument("--steps", type=int, help="Training steps of the world model; unless given, those of quick.")
    one.add_argument("--tolerance", type=float, help="Landing error that is accepted; unless given, as chosen.")
    two = commands.add_parser("plan", help="The plan alone, on a random graph.")
    two.add_argument("transitions", nargs="+", type=int, help="Numbers of transitions.")
    two.add_argument("--edges", type=int, default=25, help="Edges per state.")
    two.add_argument("--tolerance", type=float, default=1e-6, help="Of the plan; a coarse one saves rounds.")
    for part in (one, two):
        part.add_argument("--json", type=Path, help="File of results to add to.")
    args = parser.parse_args()
    if args.what == "graph":
        sizes = [(item.rpartition(":")[0], int(item.rpartition(":")[2])) for item in args.data]
        jobs = {
            f"{Path(name).stem}:{size}": partial(measure_graph, name, size, args.steps, args.tolerance)
            for name, size in sizes
        }
    else:
        jobs = {
            f"plan:{size}": partial(measure_plan, size, args.edges, args.tolerance) for size in args.transitions
        }
    context = multiprocessing.get_context("spawn")
    for name, job in jobs.items():
        print(name, flush=True)
        with ProcessPoolExecutor(1, context) as pool:
            load_before = os.getloadavg()[0]
            result = {"command": command("plan_scale"), **pool.submit(job).result()}
        result |= {"load_before": load_before, "load_after": os.getloadavg()[0], "machine": machine()}
        print(json.dumps({k: v for k, v in result.items() if k != "stages"}), flush=True)
        if args.json:
            known = json.loads(args.json.read_text()) if args.json.exists() else {}
            args.json.write_text(json.dumps({**known, name: result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
