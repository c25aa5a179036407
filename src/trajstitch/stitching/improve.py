"""Improve a data set by trajectory stitching, from training models to recording seams (paper, Algorithm 1)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Dataset, Float, Int, Seams, count_revisits, step_table
from trajstitch.errors import InputError
from trajstitch.models.dynamics import DynamicsConfig, train_dynamics
from trajstitch.models.inverse import InverseConfig, train_inverse
from trajstitch.models.reward import RewardConfig, train_reward
from trajstitch.models.value import Value, ValueConfig, train_value
from trajstitch.progress import Tell, silent
from trajstitch.stitching.graph import DynamicsModel, EdgeFinder, Graph, GraphConfig
from trajstitch.stitching.greedy import PLANNERS, Paths, Proposal
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
from trajstitch.training.loop import History


@dataclass(frozen=True)
class Improve:
    """All settings of an improvement."""

    iterations: int = 5  # Iterations of stitching; each trains the value function again.
    planner: Literal["greedy"] = "greedy"  # How edges are chosen; greedy is the paper's Algorithm 1.
    accept: float = 0.1  # A new return must be above old + accept * |old|.
    max_length: int | None = None  # Steps of the longest new trajectory; unless given the longest in the data.
    max_changes: int | None = None  # Accept only trajectories with at most this many stitched steps.
    # Do not stitch to a state that the trajectory has visited more often than this; None: no limit.
    max_repeats: int | None = 0
    graph: GraphConfig = GraphConfig()  # Which states are candidates for a step.
    dynamics: DynamicsConfig = DynamicsConfig()  # The ensemble that tests whether a step is plausible.
    inverse: InverseConfig = InverseConfig()  # The model that generates the actions of stitched steps.
    reward: RewardConfig = RewardConfig()  # The model that predicts the rewards of stitched steps.
    value: ValueConfig = ValueConfig()  # The value function that compares states.

    def __post_init__(self) -> None:
        if self.planner not in PLANNERS:
            raise InputError(f"there is no planner {self.planner!r}; known are {', '.join(PLANNERS)}")
        if self.iterations < 1 or not self.accept >= 0:
            raise InputError("iterations must be at least 1 and accept not below 0")
        for name in ("max_length", "max_changes"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise InputError(f"{name} must be at least 1, not {number}")
        if self.max_repeats is not None and self.max_repeats < 0:
            raise InputError(f"max_repeats must not be below 0, not {self.max_repeats}")


@dataclass(frozen=True)
class Models:
    """The caller's own models; those left out are trained. A given value model is used in all iterations."""

    dynamics: DynamicsModel | None = None
    inverse: InverseModel | None = None
    reward: RewardModel | None = None
    value: ValueModel | None = None


class TrainedModels(NamedTuple):
    """The models that an iteration uses besides the value."""

    dynamics: DynamicsModel
    inverse: InverseModel
    reward: RewardModel


@dataclass(frozen=True, eq=False)
class Pairs:
    """The transitions of the graph's pairs; the original ones first, then the stitched ones."""

    action: Float  # [Q, A]
    reward: Float  # [Q]
    margin: Float  # [Q] of the edge; 0 for original pairs, like the next two
    spread: Float  # [Q] of the edge
    gain: Float  # [Q] value of the new target minus that of the old one

    def extended(self, more: Pairs) -> Pairs:
        """Return these pairs followed by `more`."""
        names = [item.name for item in dataclasses.fields(self)]
        return Pairs(*(np.concatenate([getattr(self, name), getattr(more, name)]) for name in names))


@dataclass(frozen=True, eq=False)
class Result:
    """An improved data set, and how it was made."""

    dataset: Dataset
    history: list[dict[str, Any]]  # one entry per iteration
    training: dict[str, History] = field(default_factory=dict)  # losses of each trained model
    errors: dict[str, float] = field(default_factory=dict)  # held-out errors of the models
    graph: dict[str, float] = field(default_factory=dict)  # sizes of the graph

    @property
    def seams(self) -> Seams:
        """The origin of each step."""
        assert self.dataset.seams is not None
        return self.dataset.seams


@dataclass(frozen=True, eq=False)
class Current:
    """The current data between two iterations."""

    graph: Graph
    pairs: Pairs
    paths: Paths


Stage = Callable[[str, Any, Callable[[], Any]], Any]  # (name, settings, make) -> result of make(), perhaps stored


def just_make(name: str, key: Any, make: Callable[[], Any]) -> Any:
    """Run a stage without storing its result."""
    return make()


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything that stays the same in all iterations."""

    data: Dataset
    config: Improve
    models: TrainedModels
    finder: EdgeFinder
    seed: int
    stage: Stage
    tell: Callable[[str], Tell]


def improve(
    data: Dataset,
    config: Improve | None = None,
    *,
    seed: int = 0,
    models: Models | None = None,
    finder: EdgeFinder | None = None,
    stage: Stage = just_make,
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
        tell: returns the progress callback of the stage of this name.
    """
    config, models = config or Improve(), models or Models()
    check_data(data)
    trained, training, errors = _train_models(data, config, models, seed, stage, tell)
    finder = finder or EdgeFinder(data, config.graph, tell("neighbours"))
    setup = Setup(data, config, trained, finder, seed, stage, tell)

    def build() -> Graph:
        return finder.extend(finder.empty(), data.row, data.row + 1, trained.dynamics, tell("graph"))

    current = original(data, stage("graph", config.graph, build))
    sizes = _sizes(current.graph)
    history: list[dict[str, Any]] = []
    value = models.value
    for k in range(config.iterations):
        if not len(current.graph.landing):
            break
        begin = time.monotonic()
        if models.value is None:
            value, training[f"value {k + 1}"] = _fit_value(setup, current, k, value)
        current, entry = iterate(setup, current, k, value)
        history.append({"iteration": k + 1, **entry, "seconds": time.monotonic() - begin})
        if not entry["accepted"]:
            break
    return Result(_dataset(data, current), history, training, errors, sizes)


def _sizes(graph: Graph) -> dict[str, float]:
    """Return the sizes of the graph."""
    return {
        "epsilon": graph.epsilon,
        "candidates": graph.candidates,
        "edges": len(graph.landing),
        "share_of_states_with_an_edge": float((np.diff(graph.begin) > 0).mean()),
    }


# -- models ----------------------------------------------------------------------------------------------------


def check_data(data: Dataset) -> None:
    """Raise InputError where stitching is impossible on these data."""
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
    data: Dataset, config: Improve, own: Models, seed: int, stage: Stage, tell: Callable[[str], Tell]
) -> tuple[TrainedModels, dict[str, History], dict[str, float]]:
    """Return all models but the value, trained or the caller's own, with their losses and held-out errors."""
    training: dict[str, History] = {}
    halves = {fraction: data.split(fraction, seed) for fraction in (0.8, 0.95)}
    makers: dict[str, tuple[Callable[..., Any], float, int]] = {
        "dynamics": (train_dynamics, 0.8, 1),
        "inverse": (train_inverse, 0.95, 2),
        "reward": (train_reward, 0.95, 3),
    }
    found: dict[str, Any] = {}
    for name, (train, fraction, offset) in makers.items():
        found[name] = getattr(own, name)
        if found[name] is None:
            settings = getattr(config, name)
            make = partial(train, *halves[fraction], settings, 1000 * seed + 10 * offset, tell(name))
            found[name], training[name] = stage(name, settings, make)
    models = TrainedModels(**found)
    return models, training, _errors(halves[0.95][1], models)


def _errors(held_out: Dataset, models: TrainedModels) -> dict[str, float]:
    """Compute the errors of the models on held-out transitions, in units of their outputs."""
    table = {name: column[:_BLOCK] for name, column in step_table(held_out).items()}
    key = jax.random.key(0)
    action = actions_of(models.inverse, table["obs"], table["next_obs"], held_out.action_dim, key)
    reward = rewards_of(models.reward, table["obs"], table["action"], table["next_obs"], key)
    error = float(np.sqrt(np.mean((reward - table["reward"]) ** 2)))
    return {
        "inverse_mean_absolute_action": float(np.abs(action - table["action"]).mean()),
        "reward_root_mean_square": error,
        "reward_root_mean_square_of_std": error / max(float(table["reward"].std()), 1e-12),
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
    config, name = setup.config.value, f"value {iteration + 1}"
    seed = 1000 * setup.seed + 100 * (iteration + 1)
    warm = previous if config.warm else None
    trained: tuple[Value, History] = setup.stage(
        name, (setup.config, seed), lambda: train_value(table, config, seed, setup.tell(name), warm)
    )
    return trained


# -- one iteration -----------------------------------------------------------------------------------------------


def state_values(data: Dataset, graph: Graph, model: Any) -> NDArray[np.float64]:
    """Compute values [rows] of the states that edges compare; a state that really ended an episode has value 0."""
    compared = np.zeros(len(data.obs), bool)
    compared[graph.landing] = True
    compared[graph.target[np.diff(graph.begin) > 0]] = True
    rows = np.flatnonzero(compared)
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
    value = state_values(data, current.graph, model)
    longest = config.max_length or int(data.length.max())
    proposal = PLANNERS[config.planner](
        current.graph, value, current.pairs.reward, current.paths, longest, config.max_repeats
    )
    key = jax.random.key(1000 * setup.seed + 500 + iteration)
    return apply(setup, current, proposal, value, key)


def apply(
    setup: Setup, current: Current, proposal: Proposal, value: NDArray[np.float64], key: Any
) -> tuple[Current, dict[str, Any]]:
    """Add the proposal's new steps as pairs, and accept the trajectories that are better."""
    data, config, graph, paths = setup.data, setup.config, current.graph, current.paths
    stitched = np.flatnonzero(proposal.edge >= 0)
    owner, edge = proposal.pair[stitched], proposal.edge[stitched]
    # A step may be an edge of several pairs, or already a stitched pair, but it is added only once.
    step = _step_number(data, graph.source[owner], graph.landing[edge])
    existing = _step_number(data, graph.source[data.transitions :], graph.target[data.transitions :])
    unique, first = np.unique(step, return_index=True)
    first = first[~np.isin(unique, existing)]
    made = _make_pairs(data, graph, edge[first], owner[first], value, setup.models, key)
    grown = setup.finder.extend(
        graph, graph.source[owner[first]], graph.landing[edge[first]], setup.models.dynamics
    )
    pairs = current.pairs.extended(made)
    existing = np.concatenate([existing, step[first]])
    order = np.argsort(existing)
    pair = proposal.pair.copy()
    pair[stitched] = data.transitions + order[np.searchsorted(existing, step, sorter=order)]

    new = Paths(pair, proposal.start, proposal.terminal)
    old_return, new_return = paths.sums(pairs.reward), new.sums(pairs.reward)
    accepted = new_return > old_return + config.accept * np.abs(old_return)
    if config.max_changes is not None:
        accepted &= new.sums(np.arange(len(pairs.reward)) >= data.transitions) <= config.max_changes
    merged = Current(grown, pairs, _merge(paths, new, accepted))
    return merged, _entry(setup, merged, int(accepted.sum()))


def _entry(setup: Setup, current: Current, accepted: int) -> dict[str, Any]:
    """Return the history's entry for an iteration."""
    paths, data = current.paths, setup.data
    returns = paths.sums(current.pairs.reward)
    stitched = paths.pair[paths.pair >= data.transitions]
    return {
        "accepted": accepted,
        "return_mean": float(returns.mean()),
        "return_std": float(returns.std()),
        "steps": len(paths.pair),
        "stitched_steps": len(stitched),
        "seams": len(np.unique(stitched)),
        "repeated_states": count_revisits(current.graph.source[paths.pair], paths.start),
        "at_max_length": int((np.diff(paths.start) >= (setup.config.max_length or data.length.max())).sum()),
    }


def _step_number(data: Dataset, source: Int, target: Int) -> Int:
    """Return a unique number for each step between two rows."""
    return source * len(data.obs) + target


def _make_pairs(
    data: Dataset, graph: Graph, edge: Int, owner: Int, value: NDArray[np.float64], models: TrainedModels, key: Any
) -> Pairs:
    """Compute actions and rewards of new steps, with margin, spread and gain of their edges."""
    source, landing = graph.source[owner], graph.landing[edge]
    obs, next_obs = data.obs[source], data.obs[landing]
    action_key, reward_key = jax.random.split(key)
    action = actions_of(models.inverse, obs, next_obs, data.action_dim, action_key)
    reward = rewards_of(models.reward, obs, action, next_obs, reward_key)
    gain = (value[landing] - value[graph.target[owner]]).astype(np.float32)
    return Pairs(action, reward, graph.margin[edge], graph.spread[edge], gain)


def _merge(old: Paths, new: Paths, accepted: NDArray[np.bool_]) -> Paths:
    """Replace the old trajectories by the accepted new ones."""
    chosen = [new if yes else old for yes in accepted]
    chunks = [paths.pair[paths.start[m] : paths.start[m + 1]] for m, paths in enumerate(chosen)]
    start = np.concatenate([[0], np.cumsum([len(chunk) for chunk in chunks])])
    return Paths(np.concatenate(chunks), start, np.where(accepted, new.terminal, old.terminal))


def original(data: Dataset, graph: Graph) -> Current:
    """Return the original data as the current data."""
    none = np.zeros(data.transitions, np.float32)
    pairs = Pairs(data.action, data.reward, none, none, none)
    return Current(graph, pairs, Paths(np.arange(data.transitions), data.start, data.terminal))


def _dataset(data: Dataset, current: Current) -> Dataset:
    """Return the current paths as a data set with its seams."""
    graph, pairs, paths = current.graph, current.pairs, current.paths
    last = graph.target[paths.pair[paths.start[1:] - 1]]
    row = np.insert(graph.source[paths.pair], paths.start[1:], last)
    stitched = paths.pair >= data.transitions
    return Dataset(
        obs=data.obs[row],
        action=pairs.action[paths.pair],
        reward=pairs.reward[paths.pair],
        start=paths.start,
        terminal=paths.terminal,
        info={**data.info, "improved_from": data.fingerprint},
        seams=Seams(
            source=graph.source[paths.pair],
            target=graph.target[paths.pair],
            stitched=stitched,
            margin=pairs.margin[paths.pair],
            spread=pairs.spread[paths.pair],
            value_gain=pairs.gain[paths.pair],
            return_before=data.returns,
        ),
    )
