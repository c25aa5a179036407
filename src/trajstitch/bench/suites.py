"""Suites: which data sets, methods and sizes `trajstitch bench` runs. Everything that names them is in this file.

A cell of a suite's grid is one method on one data set, with one stitching seed if the method stitches; all policy
seeds of a cell are trained side by side in one program, which is several times faster than one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from trajstitch.bench.datasets import DEMO, ENVS, FRACTIONS, KINDS, LOCOMOTION, MAZES, is_maze
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
    method: str | None  # key of METHODS; None: no policy is trained, only a reward model
    planner: Literal["greedy", "optimal"] | None = None  # the data are stitched first
    iterations: int | None = None  # take the data after so many iterations; None: after the last
    weigh: bool = False  # the steps are weighed before they are cloned
    teacher: str | None = None  # a row; what its policies do in every recorded state is cloned
    guide: bool = False  # the teacher's policies are distilled into weights of the recorded steps instead
    plan: bool = True  # of the planner optimal: clone every state's best step rather than composed trajectories
    reward: Literal["wgan", "vae", "mlp", "gaussian"] | None = None  # the reward model; None: the preset's


RECIPES: dict[str, Recipe] = {
    "bc": Recipe("BC", "bc"),
    "percent-bc": Recipe("10%BC", "percent-bc"),
    "ts-bc": Recipe("TS+BC", "bc", "greedy"),
    "composed": Recipe("Composed+BC", "bc", "optimal", plan=False),
    "weighted": Recipe("Weighted BC", "bc", weigh=True),
    "iql": Recipe("IQL", "iql"),
    "td3bc": Recipe("TD3+BC", "td3bc"),
    "rebrac": Recipe("ReBRAC", "rebrac"),
    "distilled": Recipe("Distilled", "bc", teacher="rebrac"),
    "guided": Recipe("Guided BC", "bc", teacher="rebrac", guide=True),
    "guided-weighted": Recipe("Guided weighted BC", "bc", teacher="rebrac", guide=True, weigh=True),
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
    "optimal": Recipe("Plan+BC", "bc", "optimal"),
    "composed-percent-bc": Recipe("Composed+10%BC", "percent-bc", "optimal"),
    "composed-weighted": Recipe("Composed+Weighted BC", "bc", "optimal", weigh=True),
    **{f"ts-bc-{k}": Recipe(f"TS+BC, iteration {k}", "bc", "greedy", k) for k in range(1, 6)},
    "gaussian-bc": Recipe("Gaussian BC", "gaussian-bc"),
    "ts-gaussian-bc": Recipe("TS+Gaussian BC", "gaussian-bc", "greedy"),
    "ts-wgan-bc": Recipe("TS(WGAN)+BC", "bc", "greedy", reward="wgan"),
    "ts-mlp-bc": Recipe("TS(MLP)+BC", "bc", "greedy", reward="mlp"),
    "reward-wgan": Recipe("WGAN", None, reward="wgan"),
    "reward-vae": Recipe("VAE", None, reward="vae"),
    "reward-mlp": Recipe("MLP", None, reward="mlp"),
    "reward-gaussian": Recipe("Gaussian", None, reward="gaussian"),
}
REWARD_MODELS = tuple(name for name, recipe in RECIPES.items() if recipe.method is None)
# Reward models are compared on these data, and then on others of the same environment.
REWARD_DATA: dict[str, tuple[str, ...]] = {
    **{f"{env}-medium": tuple(f"{env}-{kind}" for kind in ("random", "expert", "medium-replay")) for env in ENVS},
    DEMO: (f"{DEMO}-random",),
}
TABLE1 = tuple(RECIPES)[:18]

# Chosen for each data set, as in the publications: the penalty of mopo, the threshold of morel, and the penalties
# of rebrac, as CORL has them.
_MOPO = {"hopper-medium": 5.0, "halfcheetah-medium": 0.5, "walker2d-medium": 1.5}
_MOREL = {"hopper-medium": 0.25, "halfcheetah-medium": 0.05, "walker2d-medium": 0.3}
_REBRAC = {
    "hopper-medium": (0.01, 0.01),
    "hopper-medium-expert": (0.1, 0.01),
    "hopper-medium-replay": (0.05, 0.5),
    "hopper-expert": (0.1, 0.1),
    "halfcheetah-medium": (0.001, 0.01),
    "halfcheetah-medium-expert": (0.01, 0.1),
    "halfcheetah-medium-replay": (0.01, 0.001),
    "halfcheetah-expert": (0.01, 0.01),
    "walker2d-medium": (0.05, 0.1),
    "walker2d-medium-expert": (0.01, 0.01),
    "walker2d-medium-replay": (0.05, 0.01),
    "walker2d-expert": (0.01, 0.5),
}


def chosen_settings(method: str, name: str) -> dict[str, Any]:
    """Return the settings of a method that were chosen for one data set."""
    if method in ("td3tsbc", "mbop", "tsmbop") and paper_name(name) in LOCOMOTION:
        return {"rule": paper_name(name)}
    if method == "mopo":
        return {"terminate": "env", "penalty": _MOPO.get(name, 1.0)}  # as published, like the next
    if method == "morel":
        return {"terminate": "env", "threshold": _MOREL.get(name)}
    if method == "rebrac" and paper_name(name) in _REBRAC:
        return dict(zip(("actor_penalty", "critic_penalty"), _REBRAC[paper_name(name)], strict=True))
    return _in_maze(method) if is_maze(name) else {}


def _in_maze(method: str) -> dict[str, Any]:
    """Return the settings of a method in mazes; the discount and the expectile of IQL are OGBench's."""
    if method in ("bc", "percent-bc", "gaussian-bc", "weighted-bc"):
        return {"steps": 20_000}
    discount = {"discount": 0.995} if method in ("iql", "td3bc", "cql") else {}
    return {"steps": 100_000, **discount, **({"expectile": 0.9} if method == "iql" else {})}


def runs_on(method: str, name: str) -> bool:
    """Whether a method is run on a data set: reward models are compared on some alone."""
    return RECIPES[method].method is not None or name in REWARD_DATA


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
    reward: RewardConfig  # reward models that are compared
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by method


_REWARD = RewardConfig(fit=Fit(500_000, 256, 1e-4), patience=0)  # the paper's, but for the WGAN's penalty
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
        RewardConfig(width=8, fit=_FEW, patience=0),
        {
            **{
                name: _SMALL
                for name in ("bc", "percent-bc", "gaussian-bc", "iql", "td3bc", "rebrac", "td3tsbc", "cql")
            },
            "weighted-bc": {**_SMALL, "value_steps": 20},
            "mopo": _WORLD,
            "morel": _WORLD,
            "mbop": _PLANNED,
            "tsmbop": _PLANNED,
            "diffuser": _DIFFUSED,
        },
    ),
    "quick": Preset(PRESETS["quick"], WEIGH_PRESETS["quick"], replace(_REWARD, fit=Fit(20_000, 256, 1e-3))),
    "standard": Preset(PRESETS["standard"], WEIGH_PRESETS["standard"], _REWARD),
    # Fewer steps than published where a whole table spends most of its time; the critics that weigh are not cut.
    "short": Preset(
        PRESETS["quick"],
        WEIGH_PRESETS["standard"],
        replace(_REWARD, fit=Fit(50_000, 256, 3e-4)),
        {
            "iql": {"steps": 250_000},
            "td3bc": {"steps": 250_000},
            "td3tsbc": {"steps": 250_000},
            "rebrac": {"steps": 360_000, "batch": 256, "rate": 5e-4, "schedule": "late"},
            "cql": {"steps": 150_000},
            "mopo": {"steps": 200_000, "world_steps": 50_000},
            "morel": {"steps": 200_000, "world_steps": 50_000},
            "diffuser": {"steps": 30_000},
        },
    ),
    "paper": Preset(
        PRESETS["paper"],
        WEIGH_PRESETS["standard"],
        replace(_REWARD, penalty=0.0),
        {name: entry.paper for name, entry in METHODS.items()},
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
            *("composed", "composed-percent-bc", "composed-weighted"),
        ),
    ),
    "expert-fraction": Suite(
        "Noisy expert data with a share of expert episodes: returns, and the distance of clones from the expert.",
        FRACTIONS,
        ("gaussian-bc", "ts-gaussian-bc", "bc", "percent-bc"),
        transitions=300_000,  # of the episodes with noise
    ),
    "reward-models": Suite(
        "Four reward models: their errors in training and on other data, and stitching with two of them.",
        LOCOMOTION,
        (*REWARD_MODELS, "bc", "ts-wgan-bc", "ts-mlp-bc"),
    ),
    "mazes": Suite(
        "Mazes that no recorded walk solves: success of composed data and of other methods.",
        MAZES,
        ("bc", "percent-bc", "iql", "td3bc", "cql", "diffuser", "ts-bc", "composed", "optimal"),
        stitch_seeds=1,
        checkpoints=1,
        preset="quick",
    ),
    "smoke": Suite(
        "Every method, tiny: says that everything runs, and nothing else.",
        (DEMO,),
        (*TABLE1, "value-weighted-bc", "ts-percent-bc", "ts-bc-1", "ts-gaussian-bc", "optimal", *REWARD_MODELS),
        seeds=2,
        stitch_seeds=1,
        steps=20,
        transitions=2_000,
        episodes=1,
        checkpoints=2,
        preset="tiny",
    ),
}


def improve_settings(recipe: Recipe, name: str, preset: str) -> Improve:
    """Return how a data set is stitched for a recipe, all iterations, or how its teacher is distilled."""
    config = replace(PRESET[preset].improve, planner=recipe.planner or "policy")
    if recipe.reward is not None:
        config = replace(config, reward=replace(config.reward, kind=recipe.reward))
    if name in FRACTIONS and name.startswith("walker2d"):  # the paper's rule, there and nowhere else
        config = replace(config, max_changes=10)
    return config


def train_settings(recipe: Recipe, name: str, preset: str, steps: int | None) -> dict[str, Any]:
    """Return the settings of a recipe's method for one data set."""
    assert recipe.method is not None
    settings = {**chosen_settings(recipe.method, name), **PRESET[preset].settings.get(recipe.method, {})}
    return settings | ({} if steps is None else {"steps": steps})


def reward_settings(recipe: Recipe, preset: str, steps: int | None) -> RewardConfig:
    """Return the settings of a reward model that is compared with others."""
    assert recipe.reward is not None
    config = replace(PRESET[preset].reward, kind=recipe.reward)
    return config if steps is None else replace(config, fit=replace(config.fit, steps=steps))
