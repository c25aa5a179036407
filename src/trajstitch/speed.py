"""Speed: every stage timed beside a plain baseline in the same run (`trajstitch bench speed`).

The baseline of stitching is plain.py. That of training calls one compiled step at a time, one member after
another, on a batch gathered by NumPy.
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

from trajstitch import fit, stitch
from trajstitch.bc import BC
from trajstitch.data import Dataset, Int
from trajstitch.dynamics import Dynamics, DynamicsConfig, change_table, step_table
from trajstitch.envs import make_one
from trajstitch.errors import InputError
from trajstitch.fit import Fit, Learner, Table
from trajstitch.graph import Graph, GraphConfig, Search
from trajstitch.inverse import InverseConfig
from trajstitch.plain import members, plain_loop, plausible
from trajstitch.plan import choose_edges, greedy, occurrences
from trajstitch.progress import Tell, silent
from trajstitch.reward import RewardConfig
from trajstitch.scores import evaluate
from trajstitch.value import ValueConfig

_NOISE = 0.02  # of repeated trajectories, in std of the states


@dataclass(frozen=True)
class Speed:
    """How much is measured."""

    transitions: int = 100_000  # the data are cut or repeated to about so many
    steps: int = 300  # training steps timed, after as many to warm up
    states: int = 500  # for the plain loop
    queries: int = 2000  # for other searches for neighbours
    episodes: int = 10  # of each of five policies
    graph: GraphConfig = GraphConfig()

    def __post_init__(self) -> None:
        fit.check_sizes(self, "transitions", "steps", "states", "queries", "episodes")
        if self.graph.nearest == 0:
            raise InputError("nearest must be at least 1 here; the plain loop has no other way of asking")


@dataclass(frozen=True)
class Stage:
    """What was measured of one stage."""

    seconds: float
    amount: float  # of states, transitions or steps done in that time
    unit: str
    baseline: float  # amount a second
    against: str  # what the baseline is
    more: Mapping[str, float] = field(default_factory=dict)

    @property
    def per_second(self) -> float:
        """Amount a second."""
        return self.amount / self.seconds

    def summary(self) -> dict[str, Any]:
        """As plain numbers."""
        return {
            "seconds": self.seconds,
            "per_second": self.per_second,
            "unit": self.unit,
            "ratio": self.per_second / self.baseline,
            "baseline": self.against,
            **self.more,
        }


def measure(data: Dataset, config: Speed, seed: int = 0, tell: Callable[[str], Tell] = lambda name: silent) -> Any:
    """All stages; a dictionary of `stages`, `machine` and what the data were."""
    data = resized(data, config.transitions, seed)
    trained, stages = _training(data, config, seed, tell)
    search = Search(data, config.graph, tell("neighbours"))
    stages |= _graph(data, search, trained, config, seed, tell)
    graph = stages.pop("_graph")
    loop, chosen, row = plain_loop(data, search, trained, config.states, seed)
    stages["graph"] = _both(stages["neighbours"], stages["edges"], loop["graph"])
    stages["iteration"], agree = _iteration(data, search, graph, trained, loop["all"], row, chosen)
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
    """The first ones with so many transitions; after the last they come again, with noise on their states."""
    rng = np.random.default_rng(seed)
    length = np.resize(data.length, -(-transitions // int(data.length.min())))
    many = int(np.searchsorted(np.cumsum(length), transitions)) + 1
    start = np.concatenate([[0], np.cumsum(length[:many])])
    obs = np.empty((start[-1] + many, data.obs_dim), np.float32)
    action, reward = (np.empty((start[-1], *a.shape[1:]), np.float32) for a in (data.action, data.reward))
    noise = np.float32(_NOISE) * data.obs.std(0)
    for m in range(0, many, len(data)):  # whole copies, the last one cut
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
    """All models, trained for a moment, and how long that took."""
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
        training = fit.run(learner, fit.start(learner, rows, seeds), rows, seeds, config.steps)
        next(training)
        begin = time.perf_counter()
        state, _ = next(training)
        seconds = time.perf_counter() - begin
        progress(1, 1, "")
        plain = many * _plain_step(learner, rows, max(5, config.steps // 20))
        against = "one step a call, one member after another" if many > 1 else "one step a call"
        stages[name] = Stage(seconds, config.steps, "steps", 1 / plain, against, {"members": many})
        models[name] = state.model if name == "bc" else jax.tree.map(lambda leaf: leaf[0], state.model)
        if name == "dynamics":
            models[name] = Dynamics(jax.tree.map(lambda leaf: leaf[:5], state.model))
    return models, stages


def _plain_step(learner: Learner, table: Table, steps: int) -> float:
    """Seconds of a step of one model in a plain loop."""
    rng = np.random.default_rng(0)
    key = jax.random.key(0)
    model = learner.init(table, key)
    memory = learner.begin(model)
    step = jax.jit(learner.step, static_argnums=4)
    rows = len(next(iter(table.values())))
    begin = 0.0
    for t in range(steps + 1):
        index = rng.integers(rows, size=learner.schedule.batch)
        batch = {name: column[index] for name, column in table.items()}
        model, memory, _ = step(model, memory, batch, key, t % learner.turn)
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
    search: Search,
    models: Mapping[str, Any],
    config: Speed,
    seed: int,
    tell: Callable[[str], Tell],
) -> dict[str, Any]:
    """Neighbours and edges, with the graph itself under `_graph`."""
    begin = time.perf_counter()
    near = search.near
    seconds = time.perf_counter() - begin
    assert near is not None
    points = data.obs / search.spread
    ask = points[np.random.default_rng(seed).permutation(len(points))[: config.queries]]
    count = near.shape[1]
    tree = cKDTree(points)
    begin = time.perf_counter()
    tree.query(ask, np.arange(1, count + 1), distance_upper_bound=search.epsilon, workers=-1)
    scipy = len(ask) / (time.perf_counter() - begin)
    more = {"ratio_to_scipy": len(points) / seconds / scipy}
    if importlib.util.find_spec("faiss"):
        more["ratio_to_faiss"] = len(points) / seconds / _faiss(points, ask, count)
    neighbours = Stage(seconds, len(points), "states", scipy, "SciPy's cKDTree, all cores", more)

    search.extend(search.empty(), data.row[:4096], data.row[:4096] + 1, models["dynamics"])  # compiles
    begin = time.perf_counter()
    graph = search.extend(search.empty(), data.row, data.row + 1, models["dynamics"], tell("edges"))
    seconds = time.perf_counter() - begin
    few = min(1024, data.transitions)
    plain = _plain_edges(data, search, models["dynamics"], few)
    edges = Stage(seconds, data.transitions, "transitions", plain, "NumPy, a state at a time")
    return {"neighbours": neighbours, "edges": edges, "_graph": graph}


def _faiss(points: NDArray[Any], ask: NDArray[Any], count: int) -> float:
    """Queries a second of FAISS's exact search."""
    import faiss

    index = faiss.IndexFlatL2(points.shape[1])
    index.add(np.ascontiguousarray(points, np.float32))
    begin = time.perf_counter()
    index.search(np.ascontiguousarray(ask, np.float32), count)
    return len(ask) / (time.perf_counter() - begin)


def _plain_edges(data: Dataset, search: Search, dynamics: Dynamics, states: int) -> float:
    """States a second whose candidates are scored one state at a time."""
    member = members(dynamics)
    begin = time.perf_counter()
    for row in data.row[:states]:
        near = search.candidates(np.array([row]), np.array([row + 1]))[0]
        plausible(data.obs, int(row), near[near >= 0], member)
    return states / (time.perf_counter() - begin)


# -- an iteration, and policies ----------------------------------------------------------------------------------


def _iteration(
    data: Dataset,
    search: Search,
    graph: Graph,
    models: Mapping[str, Any],
    plain: float,
    row: Int,
    chosen: Int,
) -> tuple[Stage, float]:
    """One iteration, and the share of the plain loop's states whose stitch is the same."""
    ready = stitch.Ready(models["dynamics"], models["inverse"], models["reward"])
    pairs, tours = stitch.original(data)
    horizon = int(data.length.max())
    seconds = 0.0
    for _ in range(2):  # the first one compiles
        begin = time.perf_counter()
        worth = stitch.worth_of_states(data, graph, models["value"])
        proposal = greedy(graph, worth, pairs.reward, tours, horizon, 0)
        stitch.apply(
            data, search, graph, pairs, tours, proposal, worth, ready, stitch.Improve(), jax.random.key(0)
        )
        seconds = time.perf_counter() - begin
    place = occurrences(graph, pairs.reward, tours)
    choice = choose_edges(graph, worth, place, tours.pair)
    pair = np.searchsorted(data.row, row)
    edge = choice[pair]
    ours = np.where(edge >= 0, graph.landing[edge] if len(graph.landing) else -1, -1)
    stage = Stage(seconds, data.transitions, "transitions", plain, "NumPy, a state at a time")
    return stage, float((ours == chosen).mean())


def _both(first: Stage, second: Stage, plain: float) -> Stage:
    return Stage(
        first.seconds + second.seconds, second.amount, "transitions", plain, "NumPy and cKDTree, a state at a time"
    )


def _evaluation(data: Dataset, policy: Any, config: Speed) -> Stage | None:
    """Five policies in the data's own environment, against one Gymnasium environment and a call for each step."""
    env_id = str(data.info.get("env_id", ""))
    if env_id not in gymnasium.registry:
        return None
    begin = time.perf_counter()
    scores = evaluate(policy, env_id, episodes=config.episodes, info=data.info)
    seconds = time.perf_counter() - begin
    env = make_one(env_id, "gymnasium", None, {})
    one = jax.device_put(jax.tree.map(lambda leaf: leaf[0], policy), jax.devices("cpu")[0])
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
    return Stage(seconds, float(scores.length.sum()), "steps", plain, "one Gymnasium environment, a call a step")


# -- the whole ---------------------------------------------------------------------------------------------------


def _share(name: str, stage: Stage, stages: Mapping[str, Stage]) -> dict[str, float]:
    """What part of an improvement's time the stage takes, with the preset for this machine."""
    preset = stitch.PRESETS["quick" if jax.default_backend() == "cpu" else "standard"]
    whole = {"neighbours": 1.0, "edges": 1.0, "iteration": float(preset.iterations)}
    for model in ("dynamics", "inverse", "reward", "value"):
        times = preset.iterations if model == "value" else 1
        whole[model] = times * getattr(preset, model).fit.steps / stages[model].amount
    total = sum(times * stages[part].seconds for part, times in whole.items())
    if name == "graph":
        return {"share": sum(stages[part].seconds for part in ("neighbours", "edges")) / total}
    return {"share": whole[name] * stage.seconds / total} if name in whole else {}


def machine() -> dict[str, Any]:
    """What this was measured on."""
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
    """For a person."""
    from rich.table import Table

    given = result["data"]
    made = Table(
        title="{transitions:,} transitions of {dimensions} dimensions on ".format(**given)
        + result["machine"]["device"],
        title_justify="left",
    )
    for name in ("stage", "seconds", "a second", "share of improve", "ratio", "to"):
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
