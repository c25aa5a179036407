"""Suites: which data sets, methods and sizes `trajstitch bench` runs. Everything that names them is in this file.

A cell of a suite's grid is one method on one data set, with one stitching seed if the method stitches; all policy
seeds of a cell are trained side by side in one program, which is several times faster than one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trajstitch.bench.datasets import DEMO, KINDS, LOCOMOTION
from trajstitch.methods import METHODS
from trajstitch.methods.weigh import WEIGH_PRESETS, Weigh
from trajstitch.models.dynamics import DynamicsConfig
from trajstitch.models.inverse import InverseConfig
from trajstitch.models.reward import RewardConfig
from trajstitch.models.value import ValueConfig
from trajstitch.stitching.improve import Improve
from trajstitch.stitching.presets import PRESETS
from trajstitch.stitching.reach import ReachConfig
from trajstitch.training.loop import Fit

# -- methods -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """A row of a table: what is done to the data, and what is trained on them."""

    title: str  # in tables
    method: str  # key of METHODS
    planner: Literal["greedy", "optimal"] | None = None  # the data are stitched first
    iterations: int | None = None  # take the data after so many iterations; None: after the last
    weigh: bool = False  # the steps are weighed before they are cloned


RECIPES: dict[str, Recipe] = {
    "bc": Recipe("BC", "bc"),
    "percent-bc": Recipe("10%BC", "percent-bc"),
    "ts-bc": Recipe("TS+BC", "bc", "greedy"),
    "optimal": Recipe("Optimal+BC", "bc", "optimal"),
    "weighted": Recipe("Weighted BC", "bc", weigh=True),
    "iql": Recipe("IQL", "iql"),
    "td3bc": Recipe("TD3+BC", "td3bc"),
    "td3tsbc": Recipe("TD3+TS+BC", "td3tsbc", "greedy"),
    "mbop": Recipe("MBOP", "mbop"),
    "tsmbop": Recipe("TS+MBOP", "tsmbop", "greedy"),
    "mopo": Recipe("MOPO", "mopo"),
    "morel": Recipe("MOReL", "morel"),
    "cql": Recipe("CQL", "cql"),
    "diffuser": Recipe("Diffuser", "diffuser"),
    # further rows of single suites
    "value-weighted-bc": Recipe("Value-weighted BC", "weighted-bc"),
    "ts-percent-bc": Recipe("TS+10%BC", "percent-bc", "greedy"),
    "ts-weighted": Recipe("TS+Weighted BC", "bc", "greedy", weigh=True),
    "optimal-percent-bc": Recipe("Optimal+10%BC", "percent-bc", "optimal"),
    "optimal-weighted": Recipe("Optimal+Weighted BC", "bc", "optimal", weigh=True),
    **{f"ts-bc-{k}": Recipe(f"TS+BC, iteration {k}", "bc", "greedy", k) for k in range(1, 6)},
}
TABLE1 = tuple(RECIPES)[:14]

# Chosen for each data set, as in the publications: the penalty of mopo, the threshold of morel.
_MOPO = {"hopper-medium": 5.0, "halfcheetah-medium": 0.5, "walker2d-medium": 1.5}
_MOREL = {"hopper-medium": 0.25, "halfcheetah-medium": 0.05, "walker2d-medium": 0.3}


def chosen_settings(method: str, name: str) -> dict[str, Any]:
    """Return the settings of a method that were chosen for one data set."""
    if method in ("td3tsbc", "mbop", "tsmbop") and paper_name(name) in LOCOMOTION:
        return {"rule": paper_name(name)}
    if method == "mopo":
        return {"terminate": "env", "penalty": _MOPO.get(name, 1.0)}  # as published, like the next
    if method == "morel":
        return {"terminate": "env", "threshold": _MOREL.get(name)}
    return {}


def paper_name(name: str) -> str:
    """Return the paper's name of a data set."""
    env, _, kind = name.partition("-")
    return f"{env}-medium-replay" if kind == "replay" else name


# -- sizes -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Preset:
    """Sizes of what is learned before the policies, and settings of methods that differ from their own."""

    improve: Improve
    weigh: Weigh
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by method


_FEW = Fit(20, 16, 1e-3)
_SMALL = {"width": 8, "depth": 1}
_WORLD = {
    **_SMALL,
    "world_depth": 1,
    "rollout_steps": 2,
    "rollouts": 8,
    "rollout_interval": 10,
    "world_steps": 20,
    "world_width": 8,
}
_PLANNED = {**_SMALL, "members": 2, "plan_horizon": 2, "samples": 4}
_DIFFUSED = {
    "plan_horizon": 4,
    "diffusion_steps": 2,
    "samples": 2,
    "width": 8,
    "depth": 2,
    "blocks": 1,
    "guide_stop": 1,
}
PRESET: dict[str, Preset] = {
    # Says only that everything runs: most of the time is compiling.
    "tiny": Preset(
        Improve(
            iterations=2,
            dynamics=DynamicsConfig(members=2, elites=2, width=8, fit=_FEW),
            inverse=InverseConfig(width=8, fit=_FEW),
            reward=RewardConfig(width=8, fit=_FEW),
            value=ValueConfig(width=8, fit=_FEW),
            world=DynamicsConfig(members=2, elites=2, width=8, fit=_FEW),
            reach=ReachConfig(nearest=8),
        ),
        Weigh(members=2, width=8, depth=1, fit=_FEW),
        {
            **{name: _SMALL for name in ("bc", "percent-bc", "iql", "td3bc", "td3tsbc", "cql")},
            "weighted-bc": {**_SMALL, "value_steps": 20},
            "mopo": _WORLD,
            "morel": _WORLD,
            "mbop": _PLANNED,
            "tsmbop": _PLANNED,
            "diffuser": _DIFFUSED,
        },
    ),
    "quick": Preset(PRESETS["quick"], WEIGH_PRESETS["quick"]),
    "standard": Preset(PRESETS["standard"], WEIGH_PRESETS["standard"]),
    "paper": Preset(
        PRESETS["paper"], WEIGH_PRESETS["standard"], {name: entry.paper for name, entry in METHODS.items()}
    ),
}

# -- suites ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Suite:
    """A grid of cells with its sizes; options of the command replace or narrow them."""

    summary: str  # one sentence for --help and the report
    data: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: int = 5  # policies per cell
    stitch_seeds: int = 3  # cells per method that stitches
    steps: int | None = None  # gradient steps of every policy; None: each method's own
    transitions: int = 1_000_000  # to record, where data are recorded
    episodes: int = 10  # per policy and checkpoint
    checkpoints: int = 20  # policies that are scored on the way, the last one included
    preset: str = "standard"


_HOPPER = tuple(f"hopper-{kind}" for kind in KINDS[:3])
SUITES: dict[str, Suite] = {
    "table1": Suite("Every method on twelve data sets, beside the paper's Table 1.", LOCOMOTION, TABLE1),
    "iterations": Suite(
        "Score and return of the data after each stitching iteration.",
        LOCOMOTION[:9],
        ("bc", *(f"ts-bc-{k}" for k in range(1, 6))),
    ),
    "weighted-bc": Suite(
        "Cloning weighted by state values, which the paper compares with stitching.",
        _HOPPER[:2],
        ("bc", "value-weighted-bc", "ts-bc"),
    ),
    "weigh": Suite(
        "Cloning by weights, of recorded and of stitched data, beside the best tenth and IQL.",
        LOCOMOTION[:9],
        (
            *("bc", "percent-bc", "iql", "weighted", "ts-bc", "ts-percent-bc", "ts-weighted"),
            *("optimal", "optimal-percent-bc", "optimal-weighted"),
        ),
    ),
    "smoke": Suite(
        "Every method, tiny: says that everything runs, and nothing else.",
        (DEMO,),
        (*TABLE1, "value-weighted-bc", "ts-percent-bc", "ts-bc-1"),
        seeds=2,
        stitch_seeds=1,
        steps=20,
        transitions=2_000,
        episodes=1,
        checkpoints=2,
        preset="tiny",
    ),
}


def improve_settings(recipe: Recipe, preset: str) -> Improve:
    """Return how the data of a recipe are stitched, all iterations."""
    assert recipe.planner is not None
    return replace(PRESET[preset].improve, planner=recipe.planner)


def train_settings(recipe: Recipe, name: str, preset: str, steps: int | None) -> dict[str, Any]:
    """Return the settings of a recipe's method for one data set."""
    settings = {**chosen_settings(recipe.method, name), **PRESET[preset].settings.get(recipe.method, {})}
    return settings | ({} if steps is None else {"steps": steps})
