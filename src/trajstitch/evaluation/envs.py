"""Envs: many Gymnasium environments stepped together, to evaluate policies (paper, experiments)."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import ArrayLike, NDArray

from trajstitch.checks import check_same_sizes
from trajstitch.data import Dataset, Info, info_horizon
from trajstitch.errors import InputError
from trajstitch.evaluation import mazes
from trajstitch.evaluation.d4rl_physics import quiet, restore_d4rl
from trajstitch.evaluation.env import Env, Float, Step, checked_action
from trajstitch.evaluation.mujoco_batch import NativeEnv, is_native

# The environments D4RL recorded, and their arguments beside Gymnasium's -v4 defaults: its Ant observed contact
# forces, and its MuJoCo left them at zero.
_D4RL: dict[str, dict[str, Any]] = {
    "Hopper": {},
    "HalfCheetah": {},
    "Walker2d": {},
    "Ant": {"use_contact_forces": True, "contact_force_range": (0.0, 0.0)},
}


def make(
    env_id: str,
    count: int,
    *,
    physics: str = "gymnasium",
    horizon: int | None = None,
    threads: int | None = None,
    **kwargs: Any,
) -> Env:
    """Create `count` environments of any Gymnasium id with Box spaces, or mazes; `kwargs` go to `gymnasium.make`.

    Hopper, HalfCheetah and Walker2d (-v4, -v5) and the mazes of `mazes.IDS` run in one native call on `threads`
    threads (default: one per usable processor), all others in a loop. physics="d4rl" uses the -v4 model, whatever
    version the id names, with the masses of the MuJoCo that recorded D4RL.
    """
    if count < 1:
        raise InputError(f"{env_id}: count is {count}, but there must be at least one environment.")
    if physics not in ("gymnasium", "d4rl"):
        raise InputError(f"{env_id}: physics is {physics!r}; choose 'gymnasium' or 'd4rl'.")
    if horizon is not None and horizon < 1:
        raise InputError(f"{env_id}: horizon is {horizon}, but an episode has at least one step.")
    if physics == "d4rl":
        family = env_id.rpartition("-v")[0]
        if family not in _D4RL:
            known = ", ".join(f"{name}-v5" for name in _D4RL)
            raise InputError(f"{env_id}: D4RL's physics is known for {known}; use physics='gymnasium'.")
        env_id, kwargs = f"{family}-v4", _D4RL[family] | kwargs
    if env_id in mazes.IDS:
        if kwargs:
            raise InputError(f"{env_id}: mazes take no arguments, but {', '.join(kwargs)} was given.")
        return mazes.make_maze(env_id, count, horizon=horizon, threads=threads)
    first = make_one(env_id, physics, horizon, kwargs)
    if is_native(first):
        return NativeEnv(first, count, threads)
    return LoopEnv([first, *(make_one(env_id, physics, horizon, kwargs) for _ in range(count - 1))])


def make_one(env_id: str, physics: str, horizon: int | None, kwargs: dict[str, Any]) -> gymnasium.Env:
    """Create one Gymnasium environment, without its warnings, and check its spaces and time limit."""
    # A registered id is passed as its spec, because Gymnasium would warn about -v4 in an id.
    spec = gymnasium.registry.get(env_id, env_id)
    try:
        with quiet:
            env = gymnasium.make(spec, max_episode_steps=horizon, disable_env_checker=True, **kwargs)
    except Exception as error:  # an environment can be anyone's code and raise anything
        why = " ".join(str(error).split()).rstrip(".")
        remedy = "check the id, such as Hopper-v5"
        if isinstance(error, ModuleNotFoundError):
            remedy = "install it, or call `python -m trajstitch`, which finds modules in the current folder too"
        raise InputError(f"{env_id}: Gymnasium cannot make it ({why}); {remedy}") from error
    _check_box(env_id, "observation", env.observation_space)
    _check_box(env_id, "action", env.action_space)
    if env.spec is None or env.spec.max_episode_steps is None:
        raise InputError(f"{env_id}: it has no time limit; give one with --env-horizon (env_horizon in Python).")
    if physics == "d4rl":
        simulator = env.unwrapped
        with quiet:
            restore_d4rl(simulator.model, simulator.data, simulator.fullpath)
    return env


def _check_box(env_id: str, name: str, space: gymnasium.Space) -> None:
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        raise InputError(
            f"{env_id}: its {name} space is {space}, but it must be a Box with one axis; "
            "register the environment with a wrapper that makes it one."
        )


class LoopEnv:
    """Any other Gymnasium environments, stepped one after the other.

    Gymnasium's vector environments are not used: they step finished environments too, or refuse to step at all.
    """

    def __init__(self, envs: Sequence[gymnasium.Env]) -> None:
        first = envs[0]
        assert first.spec is not None
        assert first.spec.max_episode_steps is not None
        self.id = first.spec.id
        self.count = len(envs)
        self.obs_dim = first.observation_space.shape[0]
        self.action_low = first.action_space.low.astype(np.float64)
        self.action_high = first.action_space.high.astype(np.float64)
        self.horizon = first.spec.max_episode_steps
        self._envs = list(envs)
        self._action_type = first.action_space.dtype
        self._obs = np.zeros((self.count, self.obs_dim))

    def reset(self, index: ArrayLike, seed: Sequence[int] | NDArray[Any]) -> Float:
        """See `Env.reset`."""
        index = np.asarray(index, dtype=np.int64)
        with quiet:
            for i, one in zip(index, seed, strict=True):
                self._obs[i], _ = self._envs[i].reset(seed=int(one))
        obs: Float = self._obs[index]
        return obs

    def step(self, action: NDArray[Any], running: NDArray[Any] | None = None) -> Step:
        """See `Env.step`; rows that are not running cost no time."""
        action = checked_action(action, (self.count, len(self.action_low)))
        action = action.astype(self._action_type)
        reward, terminal, timeout = np.zeros(self.count), *np.zeros((2, self.count), dtype=bool)
        with quiet:
            for i in range(self.count) if running is None else np.flatnonzero(running):
                self._obs[i], reward[i], terminal[i], timeout[i], _ = self._envs[i].step(action[i])
        return Step(self._obs.copy(), reward, terminal, timeout)

    def close(self) -> None:
        """See `Env.close`."""
        for env in self._envs:
            env.close()


def env_bounds(data: Dataset) -> tuple[Any, Any]:
    """Return low and high [S]: an episode of the data's environment ends when its state is not between them."""
    env_id = env_named_in(data.info)
    if not env_id:
        raise InputError("the data name no environment whose rule could end a rollout; use terminate never")
    physics = str(data.info.get("physics", "gymnasium"))
    env = make(env_id, 1, physics=physics, **env_options(env_id, data.info))
    try:
        if not isinstance(env, NativeEnv):
            raise InputError(f"the rule that ends an episode of {env_id} is not known; use terminate never")
        low, high = env.healthy_range()
    finally:
        env.close()
    rule = f"{env_id}, whose rule should end rollouts, has"
    check_same_sizes("the data have", (data.obs_dim,), rule, (len(low),), "use terminate never")
    return low, high


def env_options(env_id: str, info: Info | None, env_horizon: int | None = None) -> dict[str, Any]:
    """Return the arguments and time limit of the data's environment, if `info` has them for this id."""
    info = info or {}
    options: dict[str, Any] = {"horizon": env_horizon}
    if info.get("env_id") != env_id:
        return options
    if "env_spec" in info:
        options = {**_spec_kwargs(spec := _spec(info)), "horizon": env_horizon or spec.get("max_episode_steps")}
    if (recorded := info_horizon(info)) is not None:
        options["horizon"] = env_horizon or recorded
    return options


def _spec(info: Info) -> dict[str, Any]:
    """Return the description of the environment in a file's `info`, as Gymnasium writes it."""
    try:
        spec = dict(json.loads(str(info["env_spec"])))
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(
            "env_spec in the file's info is not what Gymnasium writes; correct it or leave it out"
        ) from error
    limit = spec.get("max_episode_steps")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InputError(f"env_spec in the file's info has the time limit {limit!r}; it must be a number of steps")
    return spec


def _spec_kwargs(spec: dict[str, Any]) -> dict[str, Any]:
    kwargs = spec.get("kwargs") or {}
    if not isinstance(kwargs, dict) or kwargs.keys() & inspect.signature(make).parameters.keys():
        raise InputError(
            "the arguments (kwargs) of env_spec in the file's info fit no environment; leave them out"
        )
    return kwargs


def env_named_in(info: Info) -> str | None:
    """Return the environment id in a file's `info`, or None.

    Gymnasium imports the module of an id such as module:Name, so an id from a file must be registered already,
    or be one of the mazes.
    """
    env_id = str(info.get("env_id") or "")
    if env_id and env_id not in mazes.IDS and env_id not in gymnasium.registry:
        raise InputError(
            f"the file names the environment {env_id!r}, which is not registered here; if you trust it, name it "
            "with --env (MODULE:ID imports the module first)"
        )
    return env_id or None
