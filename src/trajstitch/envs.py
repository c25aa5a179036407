"""Envs: many Gymnasium environments stepped together, to measure policies (paper, experiments)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import gymnasium
import mujoco
import mujoco.rollout
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from numpy.typing import ArrayLike, NDArray

from trajstitch.errors import InputError
from trajstitch.physics import quiet, restore_d4rl

Float = NDArray[np.float64]
Bool = NDArray[np.bool_]

# The classes whose step `Rules` describes, by name so that a subclass is not taken for one of them.
_NATIVE = {
    f"gymnasium.envs.mujoco.{module}_{version}.{name}"
    for module, name in (
        ("hopper", "HopperEnv"),
        ("half_cheetah", "HalfCheetahEnv"),
        ("walker2d", "Walker2dEnv"),
    )
    for version in ("v4", "v5")
}

# The families D4RL recorded, and how its environments differ from Gymnasium's -v4 as made: its Ant observed
# contact forces, and its MuJoCo left them at zero.
_D4RL: dict[str, dict[str, Any]] = {
    "Hopper": {},
    "HalfCheetah": {},
    "Walker2d": {},
    "Ant": {"use_contact_forces": True, "contact_force_range": (0.0, 0.0)},
}


class Step(NamedTuple):
    """What one step gave; a row that was not running has its last observation, no reward and no end."""

    obs: Float  # [B, S]
    reward: Float  # [B]
    terminal: Bool  # [B], the episode really ended
    timeout: Bool  # [B], the horizon is reached; like Gymnasium's, it may come together with `terminal`


class Env(Protocol):
    """B environments side by side, in raw units; nobody resets or clips but the caller."""

    id: str  # of the environment that is really simulated: Hopper-v4 for Hopper-v5 with physics="d4rl"
    count: int  # B
    obs_dim: int  # S
    action_low: Float  # [A]
    action_high: Float  # [A]
    horizon: int  # steps until the time limit

    def reset(self, index: ArrayLike, seed: Sequence[int] | NDArray[Any]) -> Float:
        """Start new episodes in the environments `index`, one seed each; gives obs[len(index), S]."""

    def step(self, action: NDArray[Any], running: NDArray[Any] | None = None) -> Step:
        """One step, by action[B, A], of the environments where running[B] is true; of all if not given."""

    def close(self) -> None:
        """Give back threads and windows."""


def make(
    env_id: str,
    count: int,
    *,
    physics: str = "gymnasium",
    horizon: int | None = None,
    threads: int | None = None,
    **kwargs: Any,
) -> Env:
    """`count` environments of any Gymnasium id with Box spaces; `kwargs` go to `gymnasium.make`.

    Hopper, HalfCheetah and Walker2d (-v4, -v5) run in one native call on `threads` threads (default: one for
    each usable processor), everything else in a loop. physics="d4rl" takes the -v4 model of the family,
    whichever version is named, with the masses of the MuJoCo that recorded D4RL.
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
    first = make_one(env_id, physics, horizon, kwargs)
    if _is_native(first):
        return NativeEnv(first, count, threads)
    return LoopEnv([first, *(make_one(env_id, physics, horizon, kwargs) for _ in range(count - 1))])


def make_one(env_id: str, physics: str, horizon: int | None, kwargs: dict[str, Any]) -> gymnasium.Env:
    """One of Gymnasium's own, with a time limit and without its warnings."""
    # A registered id goes by its spec: Gymnasium then has no occasion to warn about -v4.
    spec = gymnasium.registry.get(env_id, env_id)
    try:
        with quiet:
            env = gymnasium.make(spec, max_episode_steps=horizon, disable_env_checker=True, **kwargs)
    except Exception as error:  # an environment may be anybody's code
        why = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"{env_id}: Gymnasium cannot make it ({why}); check the id, such as Hopper-v5") from error
    _check_box(env_id, "observation", env.observation_space)
    _check_box(env_id, "action", env.action_space)
    if env.spec is None or env.spec.max_episode_steps is None:
        raise InputError(f"{env_id}: it has no time limit; give one with horizon=STEPS (--env-horizon STEPS).")
    if physics == "d4rl":
        simulator = env.unwrapped
        with quiet:
            restore_d4rl(simulator.model, simulator.data, simulator.fullpath)
    return env


def _check_box(env_id: str, name: str, space: gymnasium.Space) -> None:
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        raise InputError(
            f"{env_id}: its {name} space is {space}, but only a Box with one axis will do; "
            "register the environment with a wrapper that makes it one."
        )


def _is_native(env: gymnasium.Env) -> bool:
    inner = env
    while isinstance(inner, gymnasium.Wrapper):
        if type(inner) not in (TimeLimit, OrderEnforcing):
            return False
        inner = inner.env
    kind = type(inner)
    if f"{kind.__module__}.{kind.__qualname__}" not in _NATIVE:
        return False
    # A model of the caller's own may have more state than positions and velocities.
    model = inner.model
    size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_FULLPHYSICS)
    return bool(size == 1 + model.nq + model.nv)


@dataclass(frozen=True)
class Rules:
    """Observation, reward and end of a runner, from its states [B, nq + nv]: x, z, angle come first."""

    hidden: int  # leading positions that are not observed
    speeds: int  # nv
    speed_limit: float  # observed velocities are clipped to it
    dt: float
    forward_weight: float
    control_weight: float
    healthy_reward: float
    fallen_reward: float  # of the step that ends unhealthy; -v4 and -v5 differ
    limits: tuple[tuple[slice, float, float], ...]  # healthy: each part of the state strictly between
    ends_when_fallen: bool

    def observe(self, state: Float) -> Float:
        """Observations, [B, S]."""
        obs = state[:, self.hidden :].copy()
        speed = obs[:, -self.speeds :]
        np.clip(speed, -self.speed_limit, self.speed_limit, out=speed)
        return obs

    def judge(self, before: Float, action: NDArray[Any], after: Float) -> tuple[Float, Bool]:
        """Reward and terminal, [B] each."""
        healthy = np.ones(len(after), dtype=bool)
        for part, low, high in self.limits:
            value = after[:, part]
            healthy &= ((low < value) & (value < high)).all(axis=1)
        forward = self.forward_weight * ((after[:, 0] - before[:, 0]) / self.dt)
        control = self.control_weight * np.square(action).sum(axis=1)
        reward = forward + np.where(healthy, self.healthy_reward, self.fallen_reward) - control
        return reward, ~healthy & self.ends_when_fallen


def read_rules(env: Any) -> Rules:
    """The rules of a Gymnasium Hopper, HalfCheetah or Walker2d, all of its numbers read from the instance."""
    ranges = {
        "_healthy_z_range": slice(1, 2),
        "_healthy_angle_range": slice(2, 3),
        "_healthy_state_range": slice(2, None),
    }
    # What has no attribute is read from an impossible state: nan is never healthy, inf shows the clip.
    env.data.qpos[:], env.data.qvel[:] = np.nan, np.inf
    fallen_reward, speed_limit = getattr(env, "healthy_reward", 0.0), env._get_obs()[-1]
    mujoco.mj_resetData(env.model, env.data)
    return Rules(
        hidden=int(env._exclude_current_positions_from_observation),
        speeds=env.model.nv,
        speed_limit=float(speed_limit),
        dt=float(env.dt),
        forward_weight=env._forward_reward_weight,
        control_weight=env._ctrl_cost_weight,
        healthy_reward=getattr(env, "_healthy_reward", 0.0),
        fallen_reward=float(fallen_reward),
        limits=tuple((part, *getattr(env, name)) for name, part in ranges.items() if hasattr(env, name)),
        ends_when_fallen=bool(getattr(env, "_terminate_when_unhealthy", False)),
    )


class NativeEnv:
    """Hopper, HalfCheetah or Walker2d: all environments advance in one call of MuJoCo's rollout.

    One Gymnasium environment, the template, gives the model, the rules, the starts of episodes, and the steps
    in which a simulation diverges. A step is a function of position, velocity and action alone: the solver
    starts cold each time, so results depend neither on history nor on the number of threads.
    """

    def __init__(self, env: gymnasium.Env, count: int, threads: int | None = None) -> None:
        assert env.spec is not None
        assert env.spec.max_episode_steps is not None
        self.id = env.spec.id
        self.count = count
        self.obs_dim = env.observation_space.shape[0]
        self.action_low = env.action_space.low.astype(np.float64)
        self.action_high = env.action_space.high.astype(np.float64)
        self.horizon = env.spec.max_episode_steps
        self._template: Any = env.unwrapped
        model, skip = self._template.model, self._template.frame_skip
        self._positions, self._skip = model.nq, skip
        self._state = np.zeros((count, model.nq + model.nv))
        self._clock = np.zeros(count, dtype=np.int64)

        threads = min(count, threads or _processors())
        self._rollout = mujoco.rollout.Rollout(nthread=threads if threads > 1 else 0)
        self._data = [mujoco.MjData(model) for _ in range(threads)]
        self._models = [model] * count
        # rollout's arrays; a state there is time, positions, velocities, and every step starts at time 0.
        self._start = np.zeros((count, 1 + model.nq + model.nv))
        self._control = np.zeros((count, skip, model.nu))
        self._path = np.zeros((count, skip, 1 + model.nq + model.nv))
        self._rules = self._read_and_try_rules()

    def reset(self, index: ArrayLike, seed: Sequence[int] | NDArray[Any]) -> Float:
        """As `Env.reset`; the template draws the start, so a seed gives what it gives in Gymnasium."""
        index = np.asarray(index, dtype=np.int64)
        for i, one in zip(index, seed, strict=True):
            self._template.reset(seed=int(one))
            self._state[i] = self._template.state_vector()
        self._clock[index] = 0
        return self._rules.observe(self._state[index])

    def step(self, action: NDArray[Any], running: NDArray[Any] | None = None) -> Step:
        """As `Env.step`; rows not running cost nothing."""
        action = _checked(action, (self.count, len(self.action_low)))
        index = np.arange(self.count) if running is None else np.flatnonzero(running)
        reward, terminal, timeout = np.zeros(self.count), *np.zeros((2, self.count), dtype=bool)
        if len(index):
            before, action = self._state[index], action[index]
            after = self._advance(before, action)
            reward[index], terminal[index] = self._rules.judge(before, action, after)
            self._state[index] = after
            self._clock[index] += 1
            timeout[index] = self._clock[index] >= self.horizon
        return Step(self._rules.observe(self._state), reward, terminal, timeout)

    def state(self) -> tuple[Float, Float]:
        """Positions [B, nq] and velocities [B, nv]."""
        qpos, qvel = np.split(self._state.copy(), [self._positions], axis=1)
        return qpos, qvel

    def set_state(self, index: ArrayLike, qpos: ArrayLike, qvel: ArrayLike) -> Float:
        """Put the environments `index` there, their clocks at zero; gives obs[len(index), S]."""
        index = np.asarray(index, dtype=np.int64)
        self._state[index] = np.concatenate([qpos, qvel], axis=1)
        self._clock[index] = 0
        return self._rules.observe(self._state[index])

    def state_of(self, obs: NDArray[Any]) -> tuple[Float, Float]:
        """Positions and velocities behind obs[B, S]: x, if not observed, is 0; a clipped speed stays so."""
        state = np.zeros((len(obs), self._state.shape[1]))
        state[:, self._rules.hidden :] = obs
        qpos, qvel = np.split(state, [self._positions], axis=1)
        return qpos, qvel

    def healthy_range(self) -> tuple[Float, Float]:
        """Low and high [S]: an episode ends where an observation is not strictly between."""
        low, high = np.full(self._state.shape[1], -np.inf), np.full(self._state.shape[1], np.inf)
        for part, least, most in self._rules.limits if self._rules.ends_when_fallen else ():
            low[part], high[part] = np.maximum(low[part], least), np.minimum(high[part], most)
        return low[self._rules.hidden :], high[self._rules.hidden :]

    def close(self) -> None:
        """As `Env.close`."""
        self._rollout.close()
        self._template.close()

    def _advance(self, before: Float, action: NDArray[Any]) -> Float:
        n = len(before)
        start, control, path = self._start[:n], self._control[:n], self._path[:n]
        start[:, 1:] = before
        control[:] = action[:, None]
        with quiet:
            self._rollout.rollout(
                self._models[:n], self._data, start, control, nstep=self._skip, state=path, skip_checks=True
            )
        after = path[:, -1, 1:].copy()
        # rollout stops at a MuJoCo warning (nan or huge numbers), and MuJoCo then starts its clock anew;
        # Gymnasium goes on, so those rows are left to it.
        late = np.abs(path[:, -1, 0] - self._template.dt) > self._template.model.opt.timestep / 2
        for i in np.flatnonzero(late):
            after[i] = self._advance_alone(before[i], action[i])
        return after

    def _advance_alone(self, before: Float, action: NDArray[Any]) -> Float:
        template = self._template
        with quiet:
            mujoco.mj_resetData(template.model, template.data)
            template.set_state(before[: self._positions], before[self._positions :])
            template.do_simulation(action, template.frame_skip)
        return np.asarray(template.state_vector())

    def _read_and_try_rules(self) -> Rules:
        """The template's rules, tried against its own step, so that new ones in Gymnasium can't go unseen."""
        template, rng = self._template, np.random.default_rng(0)
        try:
            rules = read_rules(template)
            for _ in range(16):
                template.reset(seed=0)
                # From standing to hopeless, some with too large actions, so that each rule has its say.
                spread = rng.choice([0.0, 0.1, 0.5])
                state = template.state_vector()
                state += spread * rng.normal(size=state.shape)
                action = rng.uniform(2 * self.action_low, 2 * self.action_high)
                template.set_state(state[: self._positions], state[self._positions :])
                with quiet:
                    obs, reward, terminal, _, _ = template.step(action)
                after = self._advance(state[None], action[None])
                ours = (rules.observe(after)[0], *rules.judge(state[None], action[None], after))
                np.testing.assert_allclose(ours[0], obs, rtol=1e-5, atol=1e-5)
                np.testing.assert_allclose(ours[1][0], reward, rtol=1e-5, atol=1e-5)
                np.testing.assert_equal(ours[2][0], terminal)
        except (AttributeError, AssertionError) as error:
            raise InputError(
                f"{self.id}: Gymnasium {gymnasium.__version__} has other rules for it than trajstitch knows; "
                "install the versions in constraints.txt."
            ) from error
        return rules


class LoopEnv:
    """Any other Gymnasium environment, one after the other.

    Not Gymnasium's vector environments: those step finished environments too, or refuse to step at all.
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
        """As `Env.reset`."""
        index = np.asarray(index, dtype=np.int64)
        with quiet:
            for i, one in zip(index, seed, strict=True):
                self._obs[i], _ = self._envs[i].reset(seed=int(one))
        obs: Float = self._obs[index]
        return obs

    def step(self, action: NDArray[Any], running: NDArray[Any] | None = None) -> Step:
        """As `Env.step`; rows not running cost nothing."""
        action = _checked(action, (self.count, len(self.action_low)))
        action = action.astype(self._action_type)
        reward, terminal, timeout = np.zeros(self.count), *np.zeros((2, self.count), dtype=bool)
        with quiet:
            for i in range(self.count) if running is None else np.flatnonzero(running):
                self._obs[i], reward[i], terminal[i], timeout[i], _ = self._envs[i].step(action[i])
        return Step(self._obs.copy(), reward, terminal, timeout)

    def close(self) -> None:
        """As `Env.close`."""
        for env in self._envs:
            env.close()


def _checked(action: NDArray[Any], shape: tuple[int, int]) -> NDArray[Any]:
    """On the host, and not of a shape that would spread to the right one without a word."""
    action = np.asarray(action)
    if action.shape != shape:
        raise ValueError(f"action has shape {action.shape}, not {shape}")
    return action


def _processors() -> int:
    """How many this process may use, which in a container is fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
