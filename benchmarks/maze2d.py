"""maze2d, D4RL's mazes with inertia: normalised scores of clones of composed data, and of other methods.

    python -m benchmarks.maze2d --sizes umaze medium large --methods composed look-ahead bc percent-bc iql
    python -m benchmarks.maze2d --table

One million steps of D4RL's walker are recorded in each maze; only their rewards know of the goal. A state has four
dimensions and an action two, so an action hardly ever leads from one recorded state to another, and the planner
`optimal` finds few edges. Here a step of the plan is an action that is *held* for some steps in a learned world
model, and it may land anywhere. What a landing is worth is a mean over the recorded states near it:

    V(s) = max_a  R(s, a) + γʰ · near(ŝ) · Σ_i w_i(ŝ) · V(s_i)        ŝ: h steps of action a after s
    near(ŝ) = γ^(caution · h · max(0, distance of ŝ from the data - cell))

The weights w are a Gaussian kernel on the nearest states of a net, one recorded state for each cell of a grid, so
value iteration converges. A distance of 1 is what h steps change: who lands beside the data is charged the time
that the way back would take. R takes rewards from the recorded states, with the same weights: a network's reward
errs for actions that the walker never took there. Then the best action is followed in the world model from
recorded states, and these trajectories are cloned (`composed`); `plan` clones the best action of recorded states,
`both` one after the other. `look-ahead` is no clone: it plays the plan in the simulator, a bound for clones.

--out is written after every method; what it holds already is not measured again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from benchmarks.command import command
from trajstitch.data import Dataset, Float, Int, Trajectory, concatenate, from_trajectories
from trajstitch.evaluation.mazes import make_maze
from trajstitch.evaluation.normalise import normalise, reference_scores
from trajstitch.evaluation.scores import evaluate
from trajstitch.evaluation.stats import interval
from trajstitch.evaluation.walker import walk
from trajstitch.methods.train import train
from trajstitch.models.world_model import ActionDynamics, train_action_dynamics
from trajstitch.stitching.presets import PRESETS
from trajstitch.storage.atomic import write_json

COMPOSED = ("composed", "plan", "both")  # clones of what the plan makes
OTHERS: dict[str, dict[str, Any]] = {"iql": {"discount": 0.995, "expectile": 0.9}, "td3bc": {"discount": 0.995}}
METHODS = (*COMPOSED, "look-ahead", "bc", "percent-bc", *OTHERS)

_BLOCK = 16384  # holds predicted per call
_LABELLED = 100_000  # recorded states of `plan`
_SWEEPS = 5000  # more than any plan has needed
_EVALUATION_SEED = 20_000  # of the first episode


@dataclass(frozen=True)
class HoldConfig:
    """Planning with held actions."""

    hold: int = 10  # Steps for which an action is held.
    levels: int = 3  # Values of each action dimension that are tried, from its least to its largest.
    cell: float = 0.5  # Of the net: one state for each cell of this size; 1 is what `hold` steps change.
    nearest: int = 6  # States that a landing's value is a mean of.
    width: float = 0.5  # Of the kernel, in cells.
    caution: float = 1.0  # Share of the way back that a landing beside the data is charged.
    discount: float = 0.99  # Discount of future rewards, per step.
    tolerance: float = 1e-5  # Sweeps end when no value changes by more than this share of the largest.


class Landing(NamedTuple):
    """Where points lie between the states of the net."""

    near: NDArray[np.int32]  # [B, K] places in the net
    weight: Float  # [B, K]; the sum is 1 near the data and falls with the distance


class HoldPlanner:
    """The value of every state of a net, and from it the best action anywhere."""

    def __init__(self, data: Dataset, model: ActionDynamics, config: HoldConfig) -> None:
        self.data, self.model, self.config = data, model, config
        low, high = data.action.min(0), data.action.max(0)
        levels = [np.linspace(a, b, config.levels, dtype=np.float32) for a, b in zip(low, high, strict=True)]
        self.actions = np.array(list(itertools.product(*levels)), np.float32)  # [K, A]
        self.unit = self._unit()
        self.net = self._thinned(config.cell)
        self._tree = cKDTree(data.obs[self.net] / self.unit)
        # The reward of a state is the one of the recorded step that led to it, above the least reward. Values
        # then cannot be negative, and charging for a distance lowers them.
        reward = np.zeros(len(data.obs), np.float32)
        reward[data.row + 1] = data.reward - data.reward.min()
        first = data.row[data.start[:-1]]
        reward[first] = reward[first + 1]
        self._reward = reward[self.net]
        self.sweeps = 0

    def _unit(self) -> Float:
        """Return how much `hold` recorded steps change each dimension of a state [S]."""
        data, hold = self.data, self.config.hold
        inside = np.flatnonzero(data.trajectory[hold:] == data.trajectory[:-hold])
        change = data.obs[data.row[inside] + hold] - data.obs[data.row[inside]]
        unit: Float = np.maximum(np.sqrt(np.square(change).mean(0)), 1e-6).astype(np.float32)
        return unit

    def _thinned(self, cell: float) -> Int:
        """Return one row for each cell of a grid, the state nearest to its middle."""
        number, inside = np.divmod(self.data.obs / (self.unit * cell), 1)
        order = np.lexsort((np.square(inside - 0.5).sum(1), *number.T))
        first = np.concatenate([[True], (np.diff(number[order], axis=0) != 0).any(1)])
        return np.sort(order[first])

    @cached_property
    def value(self) -> Float:
        """Values of the net's states, by value iteration."""
        config = self.config
        landing, reward = self._outcomes(self.data.obs[self.net])
        value = np.zeros(len(self.net), np.float32)
        for sweep in range(1, _SWEEPS + 1):
            last, value = value, self._worth(landing, reward, value).max(1)
            self.sweeps = sweep
            if np.abs(value - last).max() <= config.tolerance * value.max():
                break
        return value

    def best(self, obs: Float) -> Float:
        """Return the best of the actions in states [B, S]."""
        landing, reward = self._outcomes(obs)
        return self.actions[self._worth(landing, reward, self.value).argmax(1)]

    def follow(self, obs: Float, steps: int, replan: int) -> Dataset:
        """Follow the best actions in the world model from states [B, S]; a new action every `replan` steps."""
        states, actions = [obs], []
        for step in range(steps):
            if step % replan == 0:
                action = self.best(states[-1])
            actions.append(action)
            states.append(_predict(self.model, states[-1], action, 1))
        obs, action = np.stack(states, 1), np.stack(actions, 1)
        landing = self._landing(obs[:, 1:].reshape(-1, obs.shape[2]))
        reward = (landing.weight * self._reward[landing.near]).sum(1) + self.data.reward.min()
        reward = reward.astype(np.float32).reshape(len(obs), steps)
        made = (Trajectory(*one, terminal=False) for one in zip(obs, action, reward, strict=True))
        return from_trajectories(list(made), self.data.info)

    def label(self, obs: Float) -> Dataset:
        """Return trajectories of one step, the best one, from states [B, S]."""
        action = np.concatenate([self.best(part) for part in np.array_split(obs, -(-len(obs) // _BLOCK))])
        pair = np.stack([obs, _predict(self.model, obs, action, 1)], 1)
        none = np.zeros(1, np.float32)
        made = (Trajectory(s, a[None], none, terminal=False) for s, a in zip(pair, action, strict=True))
        return from_trajectories(list(made), self.data.info)

    def _worth(self, landing: Landing, reward: Float, value: Float) -> Float:
        """Return what each action is worth [B, K]."""
        config = self.config
        onward = np.einsum("bk,bk->b", landing.weight, value[landing.near]).reshape(reward.shape)
        worth: Float = reward + np.float32(config.discount**config.hold) * onward
        return worth

    def _outcomes(self, obs: Float) -> tuple[Landing, Float]:
        """Return where holding each of the K actions leads [B * K], and the discounted rewards [B, K]."""
        config, many = self.config, len(self.actions)
        end = _predict(self.model, np.repeat(obs, many, 0), np.tile(self.actions, (len(obs), 1)), config.hold)
        here, there = self._landing(obs), self._landing(end)
        at_start = (here.weight * self._reward[here.near]).sum(1)[:, None]
        at_end = (there.weight * self._reward[there.near]).sum(1).reshape(-1, many)
        # On the way the reward goes over from the one to the other.
        share = np.arange(1, config.hold + 1) / config.hold
        discount = config.discount ** np.arange(config.hold)
        return there, (discount @ (1 - share) * at_start + discount @ share * at_end).astype(np.float32)

    def _landing(self, obs: Float) -> Landing:
        """Return the kernel's weights of points [B, S]."""
        config = self.config
        distance, near = self._tree.query(obs / self.unit, k=config.nearest, workers=-1)
        least = distance[:, :1]
        weight = np.exp(-0.5 * (distance**2 - least**2) / (config.width * config.cell) ** 2)
        beside = np.maximum(0, least - config.cell)
        weight *= config.discount ** (config.caution * config.hold * beside) / weight.sum(1, keepdims=True)
        return Landing(near.astype(np.int32), weight.astype(np.float32))


def _predict(model: ActionDynamics, obs: Float, action: Float, hold: int) -> Float:
    """Return the states [B, S] after holding actions [B, A] for some steps, by the ensemble's mean."""
    block = min(_BLOCK, 1 << (len(obs) - 1).bit_length())  # few shapes, so that little is compiled
    end = np.empty_like(obs)
    for first in range(0, len(obs), block):
        part = slice(first, min(first + block, len(obs)))
        state, held = (np.resize(column[part], (block, column.shape[1])) for column in (obs, action))
        end[part] = np.asarray(_held(model, state, held, hold))[: part.stop - first]
    return end


@eqx.filter_jit
def _held(model: ActionDynamics, obs: Any, action: Any, hold: int) -> Array:
    def step(obs: Array, _: None) -> tuple[Array, None]:
        return model.steps(obs, action)[0].mean(0), None

    return jax.lax.scan(step, jnp.asarray(obs), None, length=hold)[0]


# -- measuring -------------------------------------------------------------------------------------------------


class Task:
    """One maze: its data, and what was made of them."""

    def __init__(self, size: str, args: argparse.Namespace) -> None:
        self.id, self.args, self.seconds = f"maze2d-{size}-v1", args, {}
        begin = time.monotonic()
        self.data = walk(self.id, args.transitions, seed=args.seed)
        self.seconds["recording"] = time.monotonic() - begin

    @cached_property
    def planner(self) -> HoldPlanner:
        """The world model and the plan."""
        args, begin = self.args, time.monotonic()
        halves = self.data.split(0.95, args.seed)
        model, _ = train_action_dynamics(*halves, PRESETS[args.preset].world, 1000 * args.seed + 40)
        self.seconds["world model"] = time.monotonic() - begin
        begin = time.monotonic()
        config = HoldConfig(args.hold, cell=args.cell, caution=args.caution, discount=args.discount)
        planner = HoldPlanner(self.data, model, config)
        _ = planner.value
        self.seconds["plan"] = time.monotonic() - begin
        return planner

    @cached_property
    def composed(self) -> Dataset:
        """Trajectories that follow the plan from states of the net."""
        planner, args, begin = self.planner, self.args, time.monotonic()
        rng = np.random.default_rng(args.seed)
        start = self.data.obs[rng.choice(planner.net, args.starts)]
        made = planner.follow(start, args.length, args.replan)
        self.seconds["composing"] = time.monotonic() - begin
        return made

    @cached_property
    def labelled(self) -> Dataset:
        """Recorded states with their best action."""
        planner, begin = self.planner, time.monotonic()
        rows = np.random.default_rng(self.args.seed).permutation(len(self.data.obs))[:_LABELLED]
        made = planner.label(self.data.obs[rows])
        self.seconds["labelling"] = time.monotonic() - begin
        return made

    def source(self, name: str) -> Dataset:
        """The data that a method is trained on."""
        if name == "composed":
            return self.composed
        if name == "plan":
            return self.labelled
        return concatenate([self.composed, self.labelled]) if name == "both" else self.data

    def measure(self, name: str) -> dict[str, Any]:
        """Train, and score the last checkpoint."""
        if name == "look-ahead":
            return self.play()
        source = self.source(name)
        begin = time.monotonic()
        options: dict[str, Any] = {"steps": self.args.steps, "schedule": "cosine"}
        if name in OTHERS:
            options = {"steps": self.args.value_steps, **OTHERS[name]}
        method = "bc" if name in COMPOSED else name
        policy = train(method, source, seed=self.args.seed, seeds=self.args.seeds, **options)
        seconds = time.monotonic() - begin
        scores = evaluate(
            policy, self.id, episodes=self.args.episodes, seed=_EVALUATION_SEED, info=self.data.info
        ).summary()
        kept = {k: scores[k] for k in ("normalised", "raw", "success", "steps_to_goal", "seeds", "episodes")}
        return {**kept, "seconds": round(seconds, 1), "steps": options["steps"], "transitions": source.transitions}

    def play(self) -> dict[str, Any]:
        """Score the plan itself: look ahead at every step, in as many episodes as one clone has."""
        planner, count, begin = self.planner, self.args.episodes, time.monotonic()
        env = make_maze(self.id, count)
        obs = env.reset(np.arange(count), _EVALUATION_SEED + np.arange(count))
        returns = np.zeros((1, count))
        for _ in range(env.horizon):
            step = env.step(planner.best(obs.astype(np.float32)))
            obs, returns = step.obs, returns + step.reward
        env.close()
        reference = reference_scores(self.id)
        assert reference is not None
        scores = normalise(returns, reference)
        return {
            "normalised": {"mean": float(scores.mean()), "interval95": interval(scores)},
            "success": {"mean": float(100 * (returns > 0).mean())},
            "seeds": 1,
            "episodes": count,
            "seconds": round(time.monotonic() - begin, 1),
        }

    def facts(self) -> dict[str, Any]:
        """The plan's own numbers."""
        planner = self.planner
        return {
            **asdict(planner.config),
            "net": len(planner.net),
            "unit": planner.unit.tolist(),
            "sweeps": planner.sweeps,
            "largest_value": float(planner.value.max()),
        }


def measure(args: argparse.Namespace) -> None:
    """All methods in all mazes."""
    report: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {"mazes": {}}
    for size in args.sizes:
        entry = report["mazes"].setdefault(size, {"methods": {}})
        missing = [name for name in args.methods if name not in entry["methods"]]
        if not missing:
            continue
        task = Task(size, args)
        entry |= {"transitions": task.data.transitions, "trajectories": len(task.data)}
        for name in missing:
            entry["methods"][name] = task.measure(name) | {"command": command("maze2d")}
            if "planner" in vars(task):
                entry["plan"] = task.facts()
            entry["seconds"] = entry.get("seconds", {}) | {k: round(v, 1) for k, v in task.seconds.items()}
            write_json(args.out, report)
            print(f"{size} {name}: {entry['methods'][name]['normalised']['mean']:.1f}", flush=True)


def print_table(out: Path) -> None:
    """Normalised scores, mean ± std over seeds; one row for each method."""
    mazes = json.loads(out.read_text())["mazes"]
    for name in METHODS:
        found = [maze["methods"].get(name) for maze in mazes.values()]
        if any(found):
            cells = [_cell(one) for one in found]
            mean = f"{np.mean([one['normalised']['mean'] for one in found]):.1f}" if all(found) else "–"
            print(f"| {name} | {' | '.join(cells)} | {mean} |")


def _cell(result: dict[str, Any] | None) -> str:
    if result is None:
        return "–"
    scores = result["normalised"]
    return f"{scores['mean']:.1f}" + (f" ± {scores['std_over_seeds']:.1f}" if result["seeds"] > 1 else "")


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = HoldConfig()
    parser.add_argument("--sizes", nargs="+", default=["umaze", "medium", "large"], help="Mazes.")
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=["composed", "look-ahead", "bc"], help="Methods."
    )
    parser.add_argument("--transitions", type=int, default=1_000_000, help="Steps of the walker to record.")
    parser.add_argument("--preset", choices=tuple(PRESETS), default="quick", help="Preset of the world model.")
    parser.add_argument("--hold", type=int, default=default.hold, help="Steps for which an action is held.")
    parser.add_argument("--cell", type=float, default=default.cell, help="Size of the net's cells.")
    parser.add_argument("--caution", type=float, default=default.caution, help="Charge for leaving the data.")
    parser.add_argument("--discount", type=float, default=default.discount, help="Discount of the plan.")
    parser.add_argument("--starts", type=int, default=500, help="Composed trajectories.")
    parser.add_argument("--length", type=int, default=300, help="Their steps.")
    parser.add_argument("--replan", type=int, default=2, help="Steps between two look-aheads of theirs.")
    parser.add_argument("--steps", type=int, default=20_000, help="Gradient steps of clones.")
    parser.add_argument("--value-steps", type=int, default=100_000, help="Gradient steps of other methods.")
    parser.add_argument("--seeds", type=int, default=5, help="Seeds trained side by side.")
    parser.add_argument("--episodes", type=int, default=10, help="Evaluation episodes per seed.")
    parser.add_argument("--seed", type=int, default=0, help="Seed of recording, planning and training.")
    parser.add_argument("--out", type=Path, default=Path("results/maze2d.json"), help="The result file.")
    parser.add_argument("--table", action="store_true", help="Print the table of the result file.")
    args = parser.parse_args()
    if not args.table:
        measure(args)
    print_table(args.out)


if __name__ == "__main__":
    main()
