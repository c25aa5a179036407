"""Speed: every stage timed against a plain baseline in the same run (`trajstitch bench speed`).

The baseline of stitching is reference_loop.py. The baseline of training calls one compiled step at a time, one
member after another, on a batch gathered by NumPy.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from trajstitch.bench.reference_loop import members, plain_loop, plausible
from trajstitch.checks import check_sizes
from trajstitch.data import Dataset, Int, change_table, step_table
from trajstitch.errors import InputError
from trajstitch.evaluation.envs import make_one
from trajstitch.evaluation.scores import evaluate
from trajstitch.methods.bc import BC
from trajstitch.models.dynamics import Dynamics, DynamicsConfig
from trajstitch.models.inverse import InverseConfig
from trajstitch.models.reward import RewardConfig
from trajstitch.models.value import ValueConfig
from trajstitch.progress import Tell, silent
from trajstitch.stitching import improve as stitch
from trajstitch.stitching.current import Setup, just_make, original
from trajstitch.stitching.edges import Plausible
from trajstitch.stitching.graph import EdgeFinder, Graph, GraphConfig
from trajstitch.stitching.greedy import choose_edges, occurrences
from trajstitch.stitching.presets import PRESETS
from trajstitch.training import loop
from trajstitch.training.loop import Fit, Learner, Table
from trajstitch.training.networks import pick

_NOISE = 0.02  # noise on the states of repeated trajectories, in units of their std


@dataclass(frozen=True)
class Speed:
    """How much is measured."""

    transitions: int = 100_000  # Cut or repeat the data to about this many transitions.
    steps: int = 300  # Training steps to time, after as many steps to warm up.
    states: int = 500  # States that the plain loop stitches.
    queries: int = 2000  # Queries to time other nearest-neighbour searches with.
    episodes: int = 10  # Episodes of each of five policies.
    graph: GraphConfig = GraphConfig()

    def __post_init__(self) -> None:
        check_sizes(self, "transitions", "steps", "states", "queries", "episodes")
        if self.graph.nearest == 0:
            raise InputError(
                "nearest must be at least 1 here: the plain loop queries a fixed number of neighbours"
            )


@dataclass(frozen=True)
class Timing:
    """The measurement of one stage."""

    seconds: float
    amount: float  # states, transitions or steps done in that time
    unit: str  # of the amount
    baseline: float  # amount per second
    against: str  # description of the baseline
    more: Mapping[str, float] = field(default_factory=dict)  # further numbers

    @property
    def per_second(self) -> float:
        """Amount per second."""
        return self.amount / self.seconds

    def summary(self) -> dict[str, Any]:
        """Return the measurement as a dictionary."""
        return {
            "seconds": self.seconds,
            "per_second": self.per_second,
            "unit": self.unit,
            "ratio": self.per_second / self.baseline,
            "baseline": self.against,
            **self.more,
        }


def measure(data: Dataset, config: Speed, seed: int = 0, tell: Callable[[str], Tell] = lambda name: silent) -> Any:
    """Measure all stages; return a dictionary of `stages`, `machine` and the sizes of the data."""
    data = resized(data, config.transitions, seed)
    trained, stages = _training(data, config, seed, tell)
    finder = EdgeFinder(data, config.graph, tell("neighbours"))
    graph, timed = _graph(data, finder, trained, config, seed, tell)
    stages |= timed
    loop, chosen, row = plain_loop(data, finder, trained, config.states, seed)
    stages["graph"] = _both(stages["neighbours"], stages["edges"], loop["graph"])
    stages["iteration"], agree = _iteration(data, finder, graph, trained, loop["all"], row, chosen)
    if evaluated := _evaluation(data, trained["bc"], config):
        stages["evaluation"] = evaluated
    return {
        "stages": {name: stage.summary() | _share(name, stage, stages) for name, stage in stages.items()},
        "data": {"transitions": data.transitions, "dimensions": data.obs_dim, "trajectories": len(data)},
        "graph": {"epsilon": graph.epsilon, "candidates": graph.candidates, "edges": len(graph.landing)},
        "loop": {"states": len(row), "stitches_equal": agree, "stitched": int((chosen >= 0).sum())},
        "peak_memory_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "machine": machine(),
    }


def resized(data: Dataset, transitions: int, seed: int) -> Dataset:
    """Return the first trajectories up to this many transitions; repeats get noise on their states."""
    rng = np.random.default_rng(seed)
    length = np.resize(data.length, -(-transitions // int(data.length.min())))
    many = int(np.searchsorted(np.cumsum(length), transitions)) + 1
    start = np.concatenate([[0], np.cumsum(length[:many])])
    obs = np.empty((start[-1] + many, data.obs_dim), np.float32)
    action, reward = (np.empty((start[-1], *a.shape[1:]), np.float32) for a in (data.action, data.reward))
    noise = np.float32(_NOISE) * data.obs.std(0)
    for m in range(0, many, len(data)):  # one copy of the data each, the last one cut
        part = min(len(data), many - m)
        rows, steps = data.start[part] + part, data.start[part]
        here = slice(start[m] + m, start[m] + m + rows)
        obs[here] = data.obs[:rows]
        if m:
            obs[here] += noise * rng.standard_normal((rows, data.obs_dim), np.float32)
        action[start[m] : start[m] + steps], reward[start[m] : start[m] + steps] = (
            data.action[:steps],
            data.reward[:steps],
        )
    return Dataset(obs, action, reward, start, np.resize(data.terminal, many), data.info)


# -- training --------------------------------------------------------------------------------------------------


def _training(
    data: Dataset, config: Speed, seed: int, tell: Callable[[str], Tell]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train all models for a few steps; return them and the measured stages."""
    table = step_table(data)
    cloned = {name: table[name] for name in ("obs", "action")}
    wide = jax.default_backend() != "cpu"
    jobs: dict[str, tuple[Learner, Table, int]] = {
        "dynamics": (DynamicsConfig(fit=Fit(2 * config.steps, 256, 1e-3)), change_table(data), 7),
        "inverse": (InverseConfig(width=750 if wide else 256, fit=Fit(2 * config.steps, 256, 1e-3)), table, 1),
        "reward": (RewardConfig(fit=Fit(2 * config.steps, 256, 1e-3)), table, 1),
        "value": (ValueConfig(fit=Fit(2 * config.steps, 256, 1e-3)), table, 1),
        "bc": (BC(fit=Fit(2 * config.steps, 256, 1e-3)), cloned, 5),
    }
    models, stages = {}, {}
    for name, (learner, rows, many) in jobs.items():
        progress, seeds = tell(name), range(seed, seed + many)
        training = loop.run(learner, loop.start(learner, rows, seeds), rows, seeds, config.steps)
        next(training)
        begin = time.perf_counter()
        state, _ = next(training)
        seconds = time.perf_counter() - begin
        progress(1, 1, "")
        plain = many * _plain_step(learner, rows, max(5, config.steps // 20))
        against = "one step per call, one member after another" if many > 1 else "one step per call"
        stages[name] = Timing(seconds, config.steps, "steps", 1 / plain, against, {"members": many})
        models[name] = state.model if name == "bc" else pick(state.model, 0)
        if name == "dynamics":
            models[name] = Dynamics(pick(state.model, slice(5)))
    return models, stages


def _plain_step(learner: Learner, table: Table, steps: int) -> float:
    """Measure the seconds per step of one model in a plain loop."""
    rng = np.random.default_rng(0)
    key = jax.random.key(0)
    model = learner.init(table, key)
    opt_state = learner.begin(model)
    step = jax.jit(learner.step, static_argnums=4)
    rows = len(next(iter(table.values())))
    begin = 0.0
    for t in range(steps + 1):
        index = rng.integers(rows, size=learner.fit.batch)
        batch = {name: column[index] for name, column in table.items()}
        model, opt_state, _ = step(model, opt_state, batch, key, t % learner.phases)
        if t == 0:
            _wait(model)
            begin = time.perf_counter()
    _wait(model)
    return (time.perf_counter() - begin) / steps


def _wait(model: Any) -> None:
    jax.block_until_ready(model)  # type: ignore[no-untyped-call]


# -- the graph ---------------------------------------------------------------------------------------------------


def _graph(
    data: Dataset,
    finder: EdgeFinder,
    models: Mapping[str, Any],
    config: Speed,
    seed: int,
    tell: Callable[[str], Tell],
) -> tuple[Graph, dict[str, Timing]]:
    """Build the graph, and time its two stages: neighbours and edges."""
    begin = time.perf_counter()
    near = finder.near
    seconds = time.perf_counter() - begin
    assert near is not None
    points = data.obs / finder.spread
    query = points[np.random.default_rng(seed).permutation(len(points))[: config.queries]]
    count = near.shape[1]
    tree = cKDTree(points)
    begin = time.perf_counter()
    tree.query(query, np.arange(1, count + 1), distance_upper_bound=finder.epsilon, workers=-1)
    scipy = len(query) / (time.perf_counter() - begin)
    more = {"ratio_to_scipy": len(points) / seconds / scipy}
    if importlib.util.find_spec("faiss"):
        more["ratio_to_faiss"] = len(points) / seconds / _faiss(points, query, count)
    neighbours = Timing(seconds, len(points), "states", scipy, "SciPy's cKDTree, all cores", more)

    finder.extend(finder.empty(), data.row[:4096], data.row[:4096] + 1, models["dynamics"])  # compiles first
    begin = time.perf_counter()
    graph = finder.extend(finder.empty(), data.row, data.row + 1, models["dynamics"], tell("edges"))
    seconds = time.perf_counter() - begin
    few = min(1024, data.transitions)
    plain = _plain_edges(data, finder, models["dynamics"], few)
    edges = Timing(seconds, data.transitions, "transitions", plain, "NumPy, one state at a time")
    return graph, {"neighbours": neighbours, "edges": edges}


def _faiss(points: NDArray[Any], query: NDArray[Any], count: int) -> float:
    """Measure the queries per second of FAISS's exact search."""
    import faiss

    index = faiss.IndexFlatL2(points.shape[1])
    index.add(np.ascontiguousarray(points, np.float32))
    begin = time.perf_counter()
    index.search(np.ascontiguousarray(query, np.float32), count)
    return len(query) / (time.perf_counter() - begin)


def _plain_edges(data: Dataset, finder: EdgeFinder, dynamics: Dynamics, states: int) -> float:
    """Measure the states per second where candidates are scored one state at a time."""
    member = members(dynamics)
    begin = time.perf_counter()
    for row in data.row[:states]:
        near = finder.candidates(np.array([row]), np.array([row + 1]))[0]
        plausible(data.obs, int(row), near[near >= 0], member)
    return states / (time.perf_counter() - begin)


# -- an iteration, and policies ----------------------------------------------------------------------------------


def _iteration(
    data: Dataset,
    finder: EdgeFinder,
    graph: Graph,
    models: Mapping[str, Any],
    plain: float,
    row: Int,
    chosen: Int,
) -> tuple[Timing, float]:
    """Measure one iteration; also return the share of the plain loop's states with the same stitch."""
    edges = Plausible(finder, models["dynamics"], models["inverse"], models["reward"])
    config = stitch.Improve()
    setup = Setup(data, config, edges, 0, just_make, lambda name: silent)
    current = original(data, graph)
    seconds = 0.0
    for _ in range(2):  # the first one compiles
        begin = time.perf_counter()
        stitch.iterate(setup, current, 0, models["value"])
        seconds = time.perf_counter() - begin
    place = occurrences(graph, current.pairs.reward, current.paths)
    value = stitch.state_values(data, models["value"], stitch.compared(data, graph))
    choice = choose_edges(graph, value, place, current.paths.pair)
    pair = np.searchsorted(data.row, row)
    edge = choice[pair]
    ours = np.where(edge >= 0, graph.landing[edge] if len(graph.landing) else -1, -1)
    stage = Timing(seconds, data.transitions, "transitions", plain, "NumPy, one state at a time")
    return stage, float((ours == chosen).mean())


def _both(first: Timing, second: Timing, plain: float) -> Timing:
    return Timing(
        first.seconds + second.seconds,
        second.amount,
        "transitions",
        plain,
        "NumPy and cKDTree, one state at a time",
    )


def _evaluation(data: Dataset, policy: Any, config: Speed) -> Timing | None:
    """Measure five policies in the data's environment, against one environment and one call per step."""
    env_id = str(data.info.get("env_id", ""))
    if env_id not in gymnasium.registry:
        return None
    begin = time.perf_counter()
    scores = evaluate(policy, env_id, episodes=config.episodes, info=data.info)
    seconds = time.perf_counter() - begin
    env = make_one(env_id, "gymnasium", None, {})
    one = jax.device_put(pick(policy, 0), jax.devices("cpu")[0])
    act = jax.jit(lambda obs: one.act(obs))
    obs, _ = env.reset(seed=0)
    np.asarray(act(jnp.asarray(obs, jnp.float32)))
    steps = 500
    start = time.perf_counter()
    for _ in range(steps):
        obs, _, terminal, timeout, _ = env.step(np.asarray(act(np.asarray(obs, np.float32))))
        if terminal or timeout:
            obs, _ = env.reset()
    plain = steps / (time.perf_counter() - start)
    env.close()
    return Timing(
        seconds, float(scores.length.sum()), "steps", plain, "one Gymnasium environment, one call per step"
    )


# -- the whole ---------------------------------------------------------------------------------------------------


def _share(name: str, stage: Timing, stages: Mapping[str, Timing]) -> dict[str, float]:
    """Estimate the share of an improvement's time that the stage takes, with the preset for this machine."""
    preset = PRESETS["quick" if jax.default_backend() == "cpu" else "standard"]
    whole = {"neighbours": 1.0, "edges": 1.0, "iteration": float(preset.iterations)}
    for model in ("dynamics", "inverse", "reward", "value"):
        times = preset.iterations if model == "value" else 1
        whole[model] = times * getattr(preset, model).fit.steps / stages[model].amount
    total = sum(times * stages[part].seconds for part, times in whole.items())
    if name == "graph":
        return {"share": sum(stages[part].seconds for part in ("neighbours", "edges")) / total}
    return {"share": whole[name] * stage.seconds / total} if name in whole else {}


def machine() -> dict[str, Any]:
    """Describe the machine that this was measured on."""
    model = platform.processor()
    if (info := Path("/proc/cpuinfo")).exists():
        names = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "device": jax.devices()[0].device_kind,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
    }


def table(result: Mapping[str, Any]) -> Any:
    """Return the result as a table for the terminal."""
    from rich.table import Table

    given = result["data"]
    made = Table(
        title="{transitions:,} transitions of {dimensions} dimensions on ".format(**given)
        + result["machine"]["device"],
        title_justify="left",
    )
    for name in ("stage", "seconds", "per second", "share of improve", "ratio", "to"):
        made.add_column(name, justify="left" if name in ("stage", "to") else "right")
    for name, row in result["stages"].items():
        made.add_row(
            name,
            f"{row['seconds']:.2f}",
            f"{row['per_second']:,.0f} {row['unit']}",
            f"{row['share']:.1%}" if "share" in row else "",
            f"{row['ratio']:,.1f} ×",
            row["baseline"],
        )
    return made
