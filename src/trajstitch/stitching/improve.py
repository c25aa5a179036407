"""Improve a data set by trajectory stitching, from training models to recording seams (paper, Algorithm 1).

    planner    edges        models                       what happens
    greedy     plausible    dynamics, inverse, reward    stitch and accept, in iterations with a new value each
    optimal    reachable    world                        one plan: the best step from every state
    held       none         world                        one plan, with actions held for some steps in the model
    policy     none         world, policy                a given policy, followed in the model

Either of the first two can use either kind of edges.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import jax
import numpy as np
from numpy.typing import NDArray

from trajstitch.blocks import Mapper, in_process
from trajstitch.checks import check_settings
from trajstitch.data import Dataset, Int, Seams, check_dataset, info_horizon, normalised_weight, step_table
from trajstitch.errors import InputError
from trajstitch.models.dynamics import DynamicsConfig, train_dynamics
from trajstitch.models.inverse import InverseConfig, train_inverse
from trajstitch.models.reward import RewardConfig, train_reward
from trajstitch.models.value import Value, ValueConfig, train_value
from trajstitch.models.world_model import train_action_dynamics
from trajstitch.progress import Tell, silent
from trajstitch.stitching.current import (
    Accepted,
    Current,
    Setup,
    Stage,
    accept,
    ends_of,
    just_make,
    original,
    pairs_of,
    step_number,
    to_dataset,
)
from trajstitch.stitching.edges import Edges, Plausible, Reachable, Steps, Trials
from trajstitch.stitching.followed import ActAll, FollowConfig, every_state, follow_policy
from trajstitch.stitching.graph import DynamicsModel, EdgeFinder, Graph, GraphConfig
from trajstitch.stitching.greedy import Paths, Proposal, greedy
from trajstitch.stitching.held import HeldConfig, HeldPlanner
from trajstitch.stitching.imagined import imagined_data
from trajstitch.stitching.invariants import check_result
from trajstitch.stitching.model_calls import (
    _BLOCK,
    InverseModel,
    RewardModel,
    ValueModel,
    actions_of,
    blocks,
    model_output,
    padded,
    rewards_of,
)
from trajstitch.stitching.optimal import OptimalConfig, Plan, Problem, Walks, cover, follow, recorded_values, solve
from trajstitch.stitching.reach import ReachConfig, ReachFinder, WorldModel
from trajstitch.training.loop import Fit, History

PLANNERS = ("greedy", "optimal", "held", "policy")
EDGES = ("plausible", "reachable")


# SiLU networks at a higher rate are far likelier on held-out steps (results/world_model_sizes.json).
WORLD = DynamicsConfig(depth=4, activation="silu", fit=Fit(50_000, 256, 1e-3))


@dataclass(frozen=True)
class Improve:
    """All settings of an improvement."""

    iterations: int = 5  # Iterations of stitching; each trains the value function again.
    # How edges are chosen: greedy, the paper's Algorithm 1, or optimal, the best step from every state. Two make
    # new states in a world model: held, for states with velocities, and policy, which follows a given one.
    planner: Literal["greedy", "optimal", "held", "policy"] = "greedy"
    # Which steps are possible: plausible (the paper's density test) or reachable (a known action leads there);
    # unless given, greedy uses plausible ones and optimal reachable ones. The others need none.
    edges: Literal["plausible", "reachable"] | None = None
    accept: float = 0.1  # A new return must be above old + accept * |old|.
    value_cut_ends: bool = True  # A cut trajectory also counts what its end is worth; without it as in the paper.
    # Steps of the longest new trajectory; unless given the time limit that the data name, else their longest one.
    max_length: int | None = None
    max_changes: int | None = None  # Accept only trajectories with at most this many stitched steps.
    # For greedy: how often a new trajectory may return to a state, also by recorded steps. 0: no loops; None: no
    # limit, as in the paper. A stitch that would lead to more gives way to the next best one.
    max_repeats: int | None = 0
    graph: GraphConfig = GraphConfig()  # Which states are candidates for a plausible step.
    reach: ReachConfig = ReachConfig()  # Which states are reachable.
    optimal: OptimalConfig = OptimalConfig()  # The planner optimal.
    held: HeldConfig = HeldConfig()  # The planner held.
    follow: FollowConfig = FollowConfig()  # The planner policy.
    dynamics: DynamicsConfig = DynamicsConfig()  # The ensemble that tests whether a step is plausible.
    inverse: InverseConfig = InverseConfig()  # The model that generates the actions of stitched steps.
    reward: RewardConfig = RewardConfig()  # The model that predicts the rewards of stitched steps.
    value: ValueConfig = ValueConfig()  # The value function that compares states.
    world: DynamicsConfig = WORLD  # The ensemble that knows what an action does, for reachable steps.

    def __post_init__(self) -> None:
        if self.planner not in PLANNERS:
            raise InputError(f"there is no planner {self.planner!r}; known are {', '.join(PLANNERS)}")
        if self.edges not in (None, *EDGES):
            raise InputError(f"there are no edges {self.edges!r}; known are {', '.join(EDGES)}")
        if self.planner in ("held", "policy") and self.edges is not None:
            raise InputError(f"the planner {self.planner} has no edges, so leave edges out")
        if self.iterations < 1 or not self.accept >= 0:
            raise InputError("iterations must be at least 1 and accept not below 0")
        for name in ("max_length", "max_changes"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise InputError(f"{name} must be at least 1, not {number}")
        if self.max_repeats is not None and self.max_repeats < 0:
            raise InputError(f"max_repeats must not be below 0, not {self.max_repeats}")

    @property
    def edges_used(self) -> str:
        """The kind of edges that the planner uses; held and policy ask the world model of reachable ones."""
        return self.edges or ("plausible" if self.planner == "greedy" else "reachable")

    @property
    def discount(self) -> float:
        """The discount of the values that are learned."""
        return self.optimal.discount if self.planner == "optimal" else self.value.discount

    def horizon(self, data: Dataset) -> int:
        """Return the steps of the longest new trajectory."""
        return self.max_length or time_limit(data) or int(data.length.max())


def time_limit(data: Dataset) -> int | None:
    """Return the time limit of episodes that the data name, or None."""
    if (horizon := info_horizon(data.info)) is not None:
        return horizon
    try:
        limit = json.loads(str(data.info.get("env_spec") or "{}")).get("max_episode_steps")
    except (ValueError, AttributeError, RecursionError):
        return None  # a description that someone else wrote
    return limit if isinstance(limit, int) and limit > 0 else None


@dataclass(frozen=True)
class Models:
    """The caller's own models; those left out are trained. A given value model is used in all iterations."""

    dynamics: DynamicsModel | None = None
    inverse: InverseModel | None = None
    reward: RewardModel | None = None
    value: ValueModel | None = None
    world: WorldModel | None = None
    policy: ActAll | None = None  # what the planner policy follows: states [B, S] -> actions [B, A]


@dataclass(frozen=True, eq=False)
class Result:
    """An improved data set, and how it was made."""

    dataset: Dataset
    history: list[dict[str, Any]]  # one entry per iteration
    training: dict[str, History] = field(default_factory=dict)  # losses of each trained model
    errors: dict[str, float] = field(default_factory=dict)  # held-out errors of the models
    graph: dict[str, float] = field(default_factory=dict)  # sizes of the graph
    # Of the planner optimal: the best step from every state, as pieces of trajectories, with weights by how often
    # planned walks from the starts make it. Of the planner policy: its step from every recorded state.
    plan: Dataset | None = None
    accepted: tuple[Accepted, ...] = ()  # which trajectories each iteration replaced, and what was compared
    seconds: list[float] = field(default_factory=list)  # that each iteration took

    @property
    def seams(self) -> Seams:
        """The origin of each step."""
        assert self.dataset.seams is not None
        return self.dataset.seams


def improve(
    data: Dataset,
    config: Improve | None = None,
    *,
    seed: int = 0,
    models: Models | None = None,
    finder: EdgeFinder | None = None,
    stage: Stage = just_make,
    mapper: Mapper = in_process,
    tell: Callable[[str], Tell] = lambda name: silent,
) -> Result:
    """Improve a data set.

    Arguments:
        data: the data set.
        config: the settings; by default those of `Improve`.
        seed: the random seed.
        models: the caller's own models; those left out are trained.
        finder: the neighbours of the data set, where several improvements share it.
        stage: runs each stage, and may store its result (see jobs/improve.py).
        mapper: where blocks of neighbours and edges are computed; here, or on a cluster (see blocks.py).
        tell: returns the progress callback of the stage of this name.
    """
    config, models = config or Improve(), models or Models()
    check_data(data, config)
    if (config.planner == "policy") != (models.policy is not None):
        raise InputError("the planner policy needs a policy (--policy FILE), and the others take none")
    data = dataclasses.replace(data, weight=None)  # all steps are candidates alike
    edges, training, errors = _train_models(data, config, models, seed, stage, tell, finder, mapper)
    setup = Setup(data, config, edges, seed, stage, tell)
    planner = {
        "greedy": _improve_greedily,
        "optimal": _improve_optimally,
        "held": _improve_held,
        "policy": _improve_by_policy,
    }[config.planner]
    result = planner(setup, models, training, errors)
    check_result(data, result, config, own_actions=bool(models.inverse or models.world))
    return result


def _improve_greedily(
    setup: Setup, models: Models, training: dict[str, History], errors: dict[str, float]
) -> Result:
    """Stitch and accept, iteration by iteration."""
    data, config, edges = setup.data, setup.config, setup.edges
    settings = config.graph if config.edges_used == "plausible" else config.reach
    graph = setup.stage(
        "graph", settings, lambda: edges.extend(edges.empty(), data.row, data.row + 1, setup.tell("graph"))
    )
    current = original(data, graph)
    history: list[dict[str, Any]] = []
    seconds: list[float] = []
    value = models.value
    for k in range(config.iterations):
        if not len(current.graph.landing):
            break
        begin = time.monotonic()
        if models.value is None:
            value, training[f"value {k + 1}"] = _fit_value(setup, current, k, value)
        current, entry = iterate(setup, current, k, value)
        history.append({"iteration": k + 1, **entry})
        seconds.append(time.monotonic() - begin)
        if not entry["accepted"]:
            break
    improved, sizes = to_dataset(data, current), _sizes(graph)
    return Result(improved, history, training, errors, sizes, None, current.accepted, seconds)


def _improve_optimally(
    setup: Setup, models: Models, training: dict[str, History], errors: dict[str, float]
) -> Result:
    """Plan once, follow the plan from every start, and accept what is better."""
    data, config, edges = setup.data, setup.config, setup.edges
    begin = time.monotonic()
    find: Callable[..., Graph] = edges.extend
    settings: Any = config.graph
    if isinstance(edges, Reachable):
        find, settings = edges.promise, (config.reach, "promised")
    graph = setup.stage(
        "graph", settings, lambda: find(edges.empty(), data.row, data.row + 1, setup.tell("graph"))
    )
    current = original(data, graph)
    value_model: Any = models.value
    if value_model is None:
        value_model, training["value 1"] = _fit_value(setup, current, 0, None)
    learned = state_values(data, value_model, data.last_row)
    end = learned
    if isinstance(edges, Reachable):
        cut = data.last_row[~data.terminal]  # from here no step was recorded, but one may be known
        end = _ends_worth(setup, edges.extend(edges.empty(), cut, np.full(len(cut), -1)), learned)
    problem = _problem(setup, graph, end)
    if isinstance(edges, Reachable):
        trials = Trials(edges.finder, graph)
        plan = solve(problem, config.optimal, edges.neighbourhood, setup.tell("plan"), trials.attempt)
        make = trials.make
    else:
        plan = solve(problem, config.optimal, None, setup.tell("plan"))
        make = partial(edges.make, key=jax.random.key(1000 * setup.seed + 500))
    recorded = recorded_values(problem, config.optimal)
    composed, entry, best = _compose(setup, current, plan, make, end)
    seconds = [time.monotonic() - begin]
    sizes = _sizes(graph) | {
        "rounds": plan.rounds,
        "residual": plan.residual,
        "recorded_value": float(recorded[data.row[data.start[:-1]]].mean()),
        "planned_value": float(plan.value[data.row[data.start[:-1]]].mean()),
    }
    if plan.tried:
        sizes["tried"] = plan.tried
    history, improved = [{"iteration": 1, **entry}], to_dataset(data, composed)
    return Result(improved, history, training, errors, sizes, best, composed.accepted, seconds)


def _improve_held(setup: Setup, models: Models, training: dict[str, History], errors: dict[str, float]) -> Result:
    """Plan once with held actions, and follow the plan in the world model from recorded states."""
    data, config, edges = setup.data, setup.config.held, setup.edges
    assert isinstance(edges, Reachable)
    begin = time.monotonic()
    planner = HeldPlanner(data, edges.finder.model, edges.finder.unit, config, setup.tell("plan"))
    _ = planner.value
    where = planner.net[~planner.ended]
    first = np.random.default_rng(setup.seed).choice(where, config.walks)
    made = imagined_data(data, planner.follow(first))
    recorded, planned = planner.start_values()
    sizes = {
        "net": len(planner.net),
        "actions": len(planner.actions),
        "sweeps": planner.sweeps,
        "recorded_value": recorded,
        "planned_value": planned,
    }
    seconds = [time.monotonic() - begin]
    return Result(made, [_imagined_entry(made)], training, errors, sizes, seconds=seconds)


def _improve_by_policy(
    setup: Setup, models: Models, training: dict[str, History], errors: dict[str, float]
) -> Result:
    """Follow the given policy in the world model."""
    assert isinstance(setup.edges, Reachable)
    assert models.policy is not None  # `improve` has checked it
    begin = time.monotonic()
    finder, tell = setup.edges.finder, setup.tell("follow")
    made = imagined_data(setup.data, follow_policy(finder, models.policy, setup.config.follow, setup.seed, tell))
    plan = imagined_data(setup.data, every_state(finder, models.policy, setup.tell("plan")))
    seconds = [time.monotonic() - begin]
    return Result(made, [_imagined_entry(made)], training, errors, plan=plan, seconds=seconds)


def _imagined_entry(made: Dataset) -> dict[str, Any]:
    """Return the history's entry for imagined data."""
    return {
        "iteration": 1,
        "accepted": len(made),
        "return_mean": float(made.returns.mean()),
        "return_std": float(made.returns.std()),
        "steps": made.transitions,
        "imagined_steps": made.transitions,
    }


def _sizes(graph: Graph) -> dict[str, float]:
    """Return the sizes of the graph."""
    return {
        "epsilon": graph.epsilon,
        "candidates": graph.candidates,
        "edges": len(graph.landing),
        "share_of_states_with_an_edge": float((np.diff(graph.begin) > 0).mean()),
    }


# -- models ----------------------------------------------------------------------------------------------------


def check_data(data: Dataset, config: Improve) -> None:
    """Raise InputError where stitching is impossible on these data, or with these settings."""
    check_dataset("data", data)
    check_settings(config, Improve, "PRESETS")
    if config.edges_used == "plausible":
        config.graph.given_epsilon(data)
    if len(data) < 2:
        raise InputError("stitching needs at least two trajectories; this data set has one")
    if data.length.max() < 2:
        raise InputError("every trajectory has one step, so nothing can follow a stitch; give longer trajectories")
    one = data.reward[0]
    if (data.reward == one).all() and (one == 0 or (data.length == data.length[0]).all()):
        raise InputError(
            f"all rewards are {one:g}, so no trajectory is better than another; give data with rewards"
        )


def _train_models(
    data: Dataset,
    config: Improve,
    own: Models,
    seed: int,
    stage: Stage,
    tell: Callable[[str], Tell],
    finder: EdgeFinder | None,
    mapper: Mapper,
) -> tuple[Edges, dict[str, History], dict[str, float]]:
    """Return the edges by models that are trained or the caller's own, with their losses and held-out errors."""
    training: dict[str, History] = {}
    halves = {fraction: data.split(fraction, seed) for fraction in (0.8, 0.95)}
    makers: dict[str, tuple[Callable[..., Any], float, int]] = {
        "dynamics": (train_dynamics, 0.8, 1),
        "inverse": (train_inverse, 0.95, 2),
        "reward": (train_reward, 0.95, 3),
    }
    if config.edges_used == "reachable":
        makers = {"world": (train_action_dynamics, 0.95, 4)}
    found: dict[str, Any] = {}
    for name, (train, fraction, offset) in makers.items():
        found[name] = getattr(own, name)
        if found[name] is None:
            settings = getattr(config, name)
            make = partial(train, *halves[fraction], settings, 1000 * seed + 10 * offset, tell(name))
            found[name], training[name] = stage(name, settings, make)
    edges: Edges
    if "world" in found:
        edges = Reachable(ReachFinder(data, found["world"], config.reach, tell("neighbours"), mapper))
        return edges, training, {"usual_landing_error": edges.finder.usual}
    edges = Plausible(finder or EdgeFinder(data, config.graph, tell("neighbours"), mapper=mapper), **found)
    return edges, training, _errors(halves[0.95][1], edges)


def _errors(held_out: Dataset, models: Plausible) -> dict[str, float]:
    """Compute the errors of the models on held-out transitions, in units of their outputs."""
    table = {name: column[:_BLOCK] for name, column in step_table(held_out).items()}
    key = jax.random.key(0)
    action = actions_of(models.inverse, table["obs"], table["next_obs"], held_out.action_dim, key)
    reward = rewards_of(models.reward, table["obs"], table["action"], table["next_obs"], key)
    error = float(np.sqrt(np.mean((reward - table["reward"].astype(np.float64)) ** 2)))
    return {
        "inverse_mean_absolute_action": float(np.abs(action - table["action"]).mean()),
        "reward_root_mean_square": error,
        "reward_root_mean_square_of_std": error / (float(table["reward"].std(dtype=np.float64)) or 1.0),
    }


def _fit_value(setup: Setup, current: Current, iteration: int, previous: Any) -> tuple[Value, History]:
    """Train the value function on the current data."""
    data, graph, paths = setup.data, current.graph, current.paths
    done = np.zeros(len(paths.pair), np.float32)
    done[paths.start[1:] - 1] = paths.terminal
    table = {
        "obs": data.obs[graph.source[paths.pair]],
        "reward": current.pairs.reward[paths.pair],
        "next_obs": data.obs[graph.target[paths.pair]],
        "done": done,
    }
    config, name = (
        dataclasses.replace(setup.config.value, discount=setup.config.discount),
        f"value {iteration + 1}",
    )
    seed = 1000 * setup.seed + 100 * (iteration + 1)
    warm = previous if config.warm else None
    trained: tuple[Value, History] = setup.stage(
        name,
        (setup.config, seed, "current candidates"),  # how data before it were made, for stages of older versions
        lambda: train_value(table, config, seed, setup.tell(name), warm),
    )
    return trained


# -- one iteration -----------------------------------------------------------------------------------------------


def compared(data: Dataset, graph: Graph) -> Int:
    """Return the rows whose values are compared: of edges, and last ones."""
    yes = np.zeros(len(data.obs), bool)
    yes[graph.landing] = True
    yes[graph.target[np.diff(graph.begin) > 0]] = True
    yes[data.last_row] = True
    return np.flatnonzero(yes)


def state_values(data: Dataset, model: Any, rows: Int) -> NDArray[np.float64]:
    """Compute the values of these rows, 0 elsewhere [rows of obs]; a state that really ended an episode has 0."""
    value = np.zeros(len(data.obs))
    for part in blocks(len(rows)):
        value[rows[part]] = model_output(
            "value", "value", model.value(padded(data.obs[rows[part]])), part.stop - part.start, ()
        )
    value[data.last_row[data.terminal]] = 0
    return value


def iterate(setup: Setup, current: Current, iteration: int, model: Any) -> tuple[Current, dict[str, Any]]:
    """Do one iteration: propose new trajectories by this value model, and accept those that are better."""
    data, config = setup.data, setup.config
    graph = candidates_now(setup, current)
    value = state_values(data, model, compared(data, graph))
    proposal = greedy(
        graph,
        value,
        current.pairs.reward,
        current.paths,
        config.horizon(data),
        config.max_repeats,
        ends_of(setup, value),
    )
    key = jax.random.key(1000 * setup.seed + 500 + iteration)
    return apply(setup, current, graph, proposal, value, key)


def candidates_now(setup: Setup, current: Current) -> Graph:
    """Return the graph with the edges that the current data allow; in the original data these are all."""
    pair = np.unique(current.paths.pair)
    as_recorded = len(pair) == setup.data.transitions and pair[-1] < setup.data.transitions
    return current.graph if as_recorded else setup.edges.renew(current.graph, pair)


def apply(
    setup: Setup, current: Current, graph: Graph, proposal: Proposal, value: NDArray[np.float64], key: Any
) -> tuple[Current, dict[str, Any]]:
    """Add the proposal's new steps, edges of this graph, as pairs, and accept the trajectories that are better."""
    data = setup.data
    stitched = np.flatnonzero(proposal.edge >= 0)
    owner, edge = proposal.pair[stitched], proposal.edge[stitched]
    # A step may be an edge of several pairs, or already a stitched pair, but it is added only once.
    step = step_number(data, graph.source[owner], graph.landing[edge])
    existing = step_number(data, graph.source[data.transitions :], graph.target[data.transitions :])
    unique, first = np.unique(step, return_index=True)
    first = first[~np.isin(unique, existing)]
    made = setup.edges.make(graph, owner[first], edge[first], key)
    stitches = pairs_of(graph, made, owner[first], edge[first], value)
    larger = setup.edges.extend(
        current.graph, graph.source[owner[first]], graph.landing[edge[first]].astype(np.int64)
    )
    existing = np.concatenate([existing, step[first]])
    order = np.argsort(existing)
    pair = proposal.pair.copy()
    pair[stitched] = data.transitions + order[np.searchsorted(existing, step, sorter=order)]
    new = Paths(pair, proposal.start, proposal.terminal)
    grown = dataclasses.replace(current, graph=larger, pairs=current.pairs.extended(stitches))
    return accept(setup, grown, new, value)


# -- the planner optimal -----------------------------------------------------------------------------------------


def _ends_worth(setup: Setup, graph: Graph, learned: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what the last states are worth [rows]; a cut end at most what it would earn as others did after it.

    The learned value may be wrong where few trajectories end. So a cut end that has an edge, in this graph, takes
    the truest one, and goes on along the recorded steps from there; it is worth the smaller of the two.
    """
    data = setup.data
    row = graph.source[np.diff(graph.begin) > 0]
    truest = np.array([a + graph.margin[a:b].argmax() for a, b in pairwise(graph.begin) if a < b], np.int64)
    assert graph.reward is not None
    joined = dataclasses.replace(
        graph,
        source=np.concatenate([data.row, row]),
        target=np.concatenate([data.row + 1, graph.landing[truest]]),
    )
    reward = np.concatenate([data.reward, graph.reward[truest]])
    onward = recorded_values(Problem(joined, reward, graph.reward, graph.margin, learned), setup.config.optimal)
    end = learned.copy()
    end[row] = np.minimum(learned[row], onward[row])
    return end


def _problem(setup: Setup, graph: Graph, end: NDArray[np.float64]) -> Problem:
    """Return what the planner is to solve."""
    data = setup.data
    if graph.reward is not None:
        return Problem(graph, data.reward, graph.reward, graph.epsilon - graph.margin, end)
    owner = np.repeat(np.arange(len(graph.source)), np.diff(graph.begin))
    steps = setup.edges.make(graph, owner, np.arange(len(owner)), jax.random.key(1000 * setup.seed + 400))
    return Problem(graph, data.reward, steps.reward, np.zeros(len(owner), np.float32), end)


def _compose(
    setup: Setup, current: Current, plan: Plan, make: Callable[[Graph, Int, Int], Steps], end: NDArray[np.float64]
) -> tuple[Current, dict[str, Any], Dataset]:
    """Follow the plan from every start, and accept what is better; also return the best step of every state."""
    data, graph = setup.data, current.graph
    taken = np.flatnonzero(plan.choice >= 0)
    edge = plan.choice[taken]
    made = pairs_of(graph, make(graph, taken, edge), taken, edge, plan.value)
    number = np.arange(len(graph.source))  # of the pair that each pair's source takes
    number[taken] = data.transitions + np.arange(len(taken))
    steps = dataclasses.replace(
        graph,
        source=np.concatenate([data.row, graph.source[taken]]),
        target=np.concatenate([data.row + 1, graph.landing[edge]]),
    )
    planned = Current(steps, current.pairs.extended(made), current.paths)
    ended = np.zeros(len(data.obs), bool)
    ended[data.last_row[data.terminal]] = True

    def paths(walks: Walks) -> Paths:
        return Paths(number[walks.pair], walks.start, ended[walks.last])

    first = data.row[data.start[:-1]]
    walks = paths(follow(graph, plan, len(data.obs), first, setup.config.horizon(data)))
    accepted, entry = accept(setup, planned, walks, end)
    everywhere = paths(cover(graph, plan, len(data.obs)))
    begun = (
        np.searchsorted(
            data.start + np.arange(len(data) + 1),
            steps.source[everywhere.pair[everywhere.start[:-1]]],
            side="right",
        )
        - 1
    )
    pieces = to_dataset(data, dataclasses.replace(planned, paths=everywhere), data.returns[begun])
    # A clone should know every state, and best those on the way: a step counts once, and once per walk through it.
    visits = np.bincount(walks.pair, minlength=len(steps.source))
    weight = normalised_weight(1 + visits[everywhere.pair])
    return accepted, entry, dataclasses.replace(pieces, weight=weight)
