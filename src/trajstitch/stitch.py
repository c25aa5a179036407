"""Stitch: a data set improved by trajectory stitching, from models to seams (paper, Algorithm 1 whole)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Dataset, Float, Int, Seams
from trajstitch.dynamics import DynamicsConfig, step_table, train_dynamics
from trajstitch.errors import InputError
from trajstitch.fit import Fit, History
from trajstitch.graph import DynamicsModel, Graph, GraphConfig, Search
from trajstitch.inverse import InverseConfig, train_inverse
from trajstitch.plan import PLANNERS, Proposal, Tours
from trajstitch.progress import Tell, silent
from trajstitch.reward import RewardConfig, train_reward
from trajstitch.value import Value, ValueConfig, train_value

_BLOCK = 4096  # states or pairs given to a model together


@dataclass(frozen=True)
class Improve:
    """Everything that can be set of an improvement."""

    iterations: int = 5
    planner: Literal["greedy"] = "greedy"
    accept: float = 0.1  # a new return must exceed old + accept · |old|
    horizon: int | None = None  # longest new trajectory; the data's longest unless given
    max_changes: int | None = None  # accept only trajectories with at most this many stitched steps
    max_repeats: int | None = 0  # do not stitch to a state visited more often than this in the trajectory
    graph: GraphConfig = GraphConfig()
    dynamics: DynamicsConfig = DynamicsConfig()
    inverse: InverseConfig = InverseConfig()
    reward: RewardConfig = RewardConfig()
    value: ValueConfig = ValueConfig()

    def __post_init__(self) -> None:
        if self.planner not in PLANNERS:
            raise InputError(f"there is no planner {self.planner!r}; known are {', '.join(PLANNERS)}")
        if self.iterations < 1 or not self.accept >= 0:
            raise InputError("iterations must be at least 1 and accept not below 0")
        for name in ("horizon", "max_changes"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise InputError(f"{name} must be at least 1, not {number}")
        if self.max_repeats is not None and self.max_repeats < 0:
            raise InputError(f"max_repeats must not be below 0, not {self.max_repeats}")


class ValueModel(Protocol):
    """State values."""

    def value(self, obs: Any) -> Any:
        """[B] of obs [B, S]."""


class InverseModel(Protocol):
    """Actions between states."""

    def actions(self, obs: Any, next_obs: Any, key: Any) -> Any:
        """[B, A] of obs and next_obs [B, S]."""


class RewardOf(Protocol):
    """Rewards of transitions."""

    def rewards(self, obs: Any, action: Any, next_obs: Any, key: Any) -> Any:
        """[B]."""


@dataclass(frozen=True)
class Models:
    """The caller's own models; those left out are trained. A given value model is kept for all iterations."""

    dynamics: DynamicsModel | None = None
    inverse: InverseModel | None = None
    reward: RewardOf | None = None
    value: ValueModel | None = None


class Ready(NamedTuple):
    """The models an iteration uses besides the value."""

    dynamics: DynamicsModel
    inverse: InverseModel
    reward: RewardOf


@dataclass(frozen=True, eq=False)
class Pairs:
    """What each pair of the graph is as a transition; the original ones first, then the stitched."""

    action: Float  # [Q, A]
    reward: Float  # [Q]
    margin: Float  # [Q] 0 for original pairs, as are the next two
    spread: Float  # [Q]
    gain: Float  # [Q]

    def extended(self, more: Pairs) -> Pairs:
        """These and then those."""
        names = [item.name for item in dataclasses.fields(self)]
        return Pairs(*(np.concatenate([getattr(self, name), getattr(more, name)]) for name in names))


@dataclass(frozen=True, eq=False)
class Result:
    """An improved data set and how it came about."""

    dataset: Dataset
    history: list[dict[str, Any]]  # an entry per iteration
    training: dict[str, History] = field(default_factory=dict)  # of each model that was trained
    errors: dict[str, float] = field(default_factory=dict)  # held-out errors of the models, in plain units
    graph: dict[str, float] = field(default_factory=dict)  # sizes

    @property
    def seams(self) -> Seams:
        """Where each step comes from."""
        assert self.dataset.seams is not None
        return self.dataset.seams


Stage = Callable[[str, Any, Callable[[], Any]], Any]  # (name, what it depends on, how to make it) -> it


def just_make(name: str, key: Any, make: Callable[[], Any]) -> Any:
    """A stage that keeps nothing."""
    return make()


def improve(
    data: Dataset,
    config: Improve | None = None,
    *,
    seed: int = 0,
    models: Models | None = None,
    search: Search | None = None,
    stage: Stage = just_make,
    tell: Callable[[str], Tell] = lambda name: silent,
) -> Result:
    """Improve a data set.

    `search` may be given where several improvements share a data set; `stage` may keep what each stage makes (see
    improving.py); `tell(name)` gives the progress callback of a stage.
    """
    config, models = config or Improve(), models or Models()
    check_data(data)
    trained, training, errors = _train_models(data, config, models, seed, stage, tell)
    search = search or Search(data, config.graph, tell("neighbours"))

    def build() -> Graph:
        return search.extend(search.empty(), data.row, data.row + 1, trained.dynamics, tell("graph"))

    graph: Graph = stage("graph", config.graph, build)
    pairs, tours = original(data)
    sizes = {"epsilon": graph.epsilon, "candidates": graph.candidates, "edges": len(graph.landing)}
    sizes["share_of_states_with_an_edge"] = float((np.diff(graph.begin) > 0).mean())
    history: list[dict[str, Any]] = []
    value = models.value
    for k in range(config.iterations):
        if not len(graph.landing):
            break
        begin = time.monotonic()
        if models.value is None:
            value, fitted = _fit_value(
                data, graph, pairs, tours, config, 1000 * seed + 100 * (k + 1), k, value, stage, tell
            )
            training[f"value {k + 1}"] = fitted
        worth = worth_of_states(data, graph, value)
        proposal = PLANNERS[config.planner](
            graph, worth, pairs.reward, tours, config.horizon or int(data.length.max()), config.max_repeats
        )
        key = jax.random.key(1000 * seed + 500 + k)
        graph, pairs, tours, entry = apply(
            data, search, graph, pairs, tours, proposal, worth, trained, config, key
        )
        history.append({"iteration": k + 1, **entry, "seconds": time.monotonic() - begin})
        if not entry["accepted"]:
            break
    return Result(_dataset(data, graph, pairs, tours), history, training, errors, sizes)


# -- models ----------------------------------------------------------------------------------------------------


def check_data(data: Dataset) -> None:
    """InputError where there is nothing stitching could work on."""
    if len(data) < 2:
        raise InputError("stitching needs at least two trajectories; this data set has one")
    if data.length.max() < 2:
        raise InputError("every trajectory has one step, so there is nothing to go on with after a stitch")
    one = data.reward[0]
    if (data.reward == one).all() and (one == 0 or (data.length == data.length[0]).all()):
        raise InputError(
            f"all rewards are {one:g}, so no trajectory is better than another; give data with rewards"
        )


def _train_models(
    data: Dataset, config: Improve, own: Models, seed: int, stage: Stage, tell: Callable[[str], Tell]
) -> tuple[Ready, dict[str, History], dict[str, float]]:
    """All models but the value: the caller's own or trained ones, with what is known of their errors."""
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
    models = Ready(**found)
    return models, training, _errors(halves[0.95][1], models)


def _errors(held_out: Dataset, models: Ready) -> dict[str, float]:
    """How wrong the models are on transitions they were not trained on, in units of what they predict."""
    table = {name: column[:_BLOCK] for name, column in step_table(held_out).items()}
    key = jax.random.key(0)
    action = _actions(models.inverse, table["obs"], table["next_obs"], held_out.action_dim, key)
    reward = _rewards(models.reward, table["obs"], table["action"], table["next_obs"], key)
    off = float(np.sqrt(np.mean((reward - table["reward"]) ** 2)))
    return {
        "inverse_mean_absolute_action": float(np.abs(action - table["action"]).mean()),
        "reward_root_mean_square": off,
        "reward_root_mean_square_of_std": off / max(float(table["reward"].std()), 1e-12),
    }


def _fit_value(
    data: Dataset,
    graph: Graph,
    pairs: Pairs,
    tours: Tours,
    config: Improve,
    seed: int,
    iteration: int,
    before: Any,
    stage: Stage,
    tell: Callable[[str], Tell],
) -> tuple[Value, History]:
    """V of the current data."""
    done = np.zeros(len(tours.pair), np.float32)
    done[tours.start[1:] - 1] = tours.terminal
    table = {
        "obs": data.obs[graph.source[tours.pair]],
        "reward": pairs.reward[tours.pair],
        "next_obs": data.obs[graph.target[tours.pair]],
        "done": done,
    }
    warm = before if config.value.warm else None
    name = f"value {iteration + 1}"
    made: tuple[Value, History] = stage(
        name, (config, seed), lambda: train_value(table, config.value, seed, tell(name), warm)
    )
    return made


# -- one iteration -----------------------------------------------------------------------------------------------


def worth_of_states(data: Dataset, graph: Graph, model: Any) -> NDArray[np.float64]:
    """Values [rows] of the states edges compare; a state in which an episode really ended is worth 0."""
    compared = np.zeros(len(data.obs), bool)
    compared[graph.landing] = True
    compared[graph.target[np.diff(graph.begin) > 0]] = True
    rows = np.flatnonzero(compared)
    worth = np.zeros(len(data.obs))
    for part in _blocks(len(rows)):
        worth[rows[part]] = _model_output(
            "value", "value", model.value(_padded(data.obs[rows[part]])), part.stop - part.start, ()
        )
    worth[data.last_row[data.terminal]] = 0
    return worth


def apply(
    data: Dataset,
    search: Search,
    graph: Graph,
    pairs: Pairs,
    tours: Tours,
    proposal: Proposal,
    worth: NDArray[np.float64],
    models: Ready,
    config: Improve,
    key: Any,
) -> tuple[Graph, Pairs, Tours, dict[str, Any]]:
    """Make the proposal's new steps into pairs, and accept the trajectories that are better."""
    turned = np.flatnonzero(proposal.edge >= 0)
    owner, edge = proposal.pair[turned], proposal.edge[turned]
    # The same step may be an edge of several pairs, or a stitched pair already: it is made once.
    step = _step_number(data, graph.source[owner], graph.landing[edge])
    known = _step_number(data, graph.source[data.transitions :], graph.target[data.transitions :])
    fresh, first = np.unique(step, return_index=True)
    first = first[~np.isin(fresh, known)]
    made = _make_pairs(data, graph, edge[first], owner[first], worth, models, key)
    grown = search.extend(graph, graph.source[owner[first]], graph.landing[edge[first]], models.dynamics)
    pairs = pairs.extended(made)
    known = np.concatenate([known, step[first]])
    order = np.argsort(known)
    pair = proposal.pair.copy()
    pair[turned] = data.transitions + order[np.searchsorted(known, step, sorter=order)]

    new = Tours(pair, proposal.start, proposal.terminal)
    old_return, new_return = tours.sums(pairs.reward), new.sums(pairs.reward)
    accepted = new_return > old_return + config.accept * np.abs(old_return)
    if config.max_changes is not None:
        accepted &= new.sums(np.arange(len(pairs.reward)) >= data.transitions) <= config.max_changes
    merged = _merge(tours, new, accepted)
    after = merged.sums(pairs.reward)
    stitched = merged.pair[merged.pair >= data.transitions]
    entry = {
        "accepted": int(accepted.sum()),
        "return_mean": float(after.mean()),
        "return_std": float(after.std()),
        "steps": len(merged.pair),
        "stitched_steps": len(stitched),
        "seams": len(np.unique(stitched)),
        "repeated_states": _repeats(grown, merged),
        "at_horizon": int((np.diff(merged.start) >= (config.horizon or data.length.max())).sum()),
    }
    return grown, pairs, merged, entry


def _step_number(data: Dataset, source: Int, target: Int) -> Int:
    """One number for a step between two rows."""
    return source * len(data.obs) + target


def _make_pairs(
    data: Dataset, graph: Graph, edge: Int, owner: Int, worth: NDArray[np.float64], models: Ready, key: Any
) -> Pairs:
    """Actions and rewards of new steps, and why they were taken."""
    source, landing = graph.source[owner], graph.landing[edge]
    obs, next_obs = data.obs[source], data.obs[landing]
    action_key, reward_key = jax.random.split(key)
    action = _actions(models.inverse, obs, next_obs, data.action_dim, action_key)
    reward = _rewards(models.reward, obs, action, next_obs, reward_key)
    gain = (worth[landing] - worth[graph.target[owner]]).astype(np.float32)
    return Pairs(action, reward, graph.margin[edge], graph.spread[edge], gain)


def _merge(old: Tours, new: Tours, accepted: NDArray[np.bool_]) -> Tours:
    """The accepted new trajectories among the old ones."""
    chosen = [new if yes else old for yes in accepted]
    chunks = [tours.pair[tours.start[m] : tours.start[m + 1]] for m, tours in enumerate(chosen)]
    start = np.concatenate([[0], np.cumsum([len(chunk) for chunk in chunks])])
    return Tours(np.concatenate(chunks), start, np.where(accepted, new.terminal, old.terminal))


def _repeats(graph: Graph, tours: Tours) -> int:
    """How many steps start from a state their trajectory has started from before."""
    trajectory = np.repeat(np.arange(len(tours.terminal)), np.diff(tours.start))
    visit = trajectory * (graph.source.max() + 1) + graph.source[tours.pair]
    visit.sort()  # much faster than np.unique
    return int((visit[1:] == visit[:-1]).sum())


def original(data: Dataset) -> tuple[Pairs, Tours]:
    """The data as they were given."""
    none = np.zeros(data.transitions, np.float32)
    pairs = Pairs(data.action, data.reward, none, none, none)
    return pairs, Tours(np.arange(data.transitions), data.start, data.terminal)


def _dataset(data: Dataset, graph: Graph, pairs: Pairs, tours: Tours) -> Dataset:
    """The tours as a data set with its seams."""
    last = graph.target[tours.pair[tours.start[1:] - 1]]
    row = np.insert(graph.source[tours.pair], tours.start[1:], last)
    stitched = tours.pair >= data.transitions
    return Dataset(
        obs=data.obs[row],
        action=pairs.action[tours.pair],
        reward=pairs.reward[tours.pair],
        start=tours.start,
        terminal=tours.terminal,
        info={**data.info, "improved_from": data.fingerprint},
        seams=Seams(
            source=graph.source[tours.pair],
            target=graph.target[tours.pair],
            stitched=stitched,
            margin=pairs.margin[tours.pair],
            spread=pairs.spread[tours.pair],
            value_gain=pairs.gain[tours.pair],
            return_before=data.returns,
        ),
    )


# -- calling models, ours or the caller's ------------------------------------------------------------------------


def _actions(model: Any, obs: Float, next_obs: Float, actions: int, key: Any) -> Float:
    parts = [
        _model_output(
            "inverse",
            "actions",
            model.actions(_padded(obs[part]), _padded(next_obs[part]), jax.random.fold_in(key, part.start)),
            part.stop - part.start,
            (actions,),
        )
        for part in _blocks(len(obs))
    ]
    return np.concatenate([np.zeros((0, actions), np.float32), *parts])


def _rewards(model: Any, obs: Float, action: Float, next_obs: Float, key: Any) -> Float:
    parts = [
        _model_output(
            "reward",
            "rewards",
            model.rewards(
                *(_padded(a[part]) for a in (obs, action, next_obs)), jax.random.fold_in(key, part.start)
            ),
            part.stop - part.start,
            (),
        )
        for part in _blocks(len(obs))
    ]
    return np.concatenate([np.zeros(0, np.float32), *parts])


def _blocks(rows: int) -> list[slice]:
    return [slice(a, min(a + _BLOCK, rows)) for a in range(0, rows, _BLOCK)]


def _padded(rows: Float) -> Float:
    """Always a whole block, so that one shape is compiled."""
    return np.concatenate([rows, np.repeat(rows[:1], _BLOCK - len(rows), 0)]) if len(rows) < _BLOCK else rows


def _model_output(model: str, what: str, given: Any, rows: int, shape: tuple[int, ...]) -> Float:
    array = np.asarray(given, np.float32)
    if array.shape != (_BLOCK, *shape):
        raise InputError(f"the {model} model's {what} have shape {array.shape}, not {(_BLOCK, *shape)}")
    if not np.isfinite(array[:rows]).all():
        raise InputError(f"the {model} model's {what} are not finite for some states; look at its training")
    return array[:rows]


def _sized(
    dynamics: int, inverse: int, reward: int, value: int, rate: float, width: int = 0, **more: Any
) -> Improve:
    """Our settings with these numbers of steps."""
    return Improve(
        dynamics=DynamicsConfig(fit=Fit(dynamics, 256, rate, patience=5)),
        inverse=InverseConfig(width=width, fit=Fit(inverse, 256, rate, patience=5)),
        reward=RewardConfig(fit=Fit(reward, 256, rate, patience=5)),
        value=ValueConfig(fit=Fit(value, 256, rate)),
        **more,
    )


PRESETS: dict[str, Improve] = {
    # Minutes on two cores.
    "quick": _sized(6_000, 8_000, 2_000, 5_000, 1e-3),
    # Our trade-off on one GPU.
    "standard": _sized(50_000, 50_000, 20_000, 30_000, 3e-4, width=750),
    # The paper's models and step counts.
    "paper": Improve(
        max_repeats=None,
        dynamics=DynamicsConfig(fit=Fit(1_000_000, 256, 3e-4, patience=2)),
        inverse=InverseConfig(kind="cvae", latent="sample", fit=Fit(400_000, 100, 1e-4)),
        reward=RewardConfig(kind="wgan", penalty=0.0, fit=Fit(500_000, 256, 1e-4)),
        value=ValueConfig(warm=False, fit=Fit(1_000_000, 256, 3e-4)),
    ),
}
