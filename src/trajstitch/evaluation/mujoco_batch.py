"""MuJoCo batch: simulations of one model advanced in one native call; Hopper, HalfCheetah and Walker2d by it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import mujoco
import mujoco.rollout
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit
from numpy.typing import ArrayLike, NDArray

from trajstitch.errors import InputError
from trajstitch.evaluation.d4rl_physics import quiet
from trajstitch.evaluation.env import Bool, Float, Step, checked_action

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


class ModelBatch:
    """Many simulations of one MuJoCo model, advanced in one call of MuJoCo's rollout.

    The result is a function of position, velocity and control alone: the solver starts cold each time, so it
    depends neither on history nor on the number of threads.
    """

    def __init__(self, model: mujoco.MjModel, count: int, skip: int, threads: int | None = None) -> None:
        self._model, self._skip = model, skip
        threads = min(count, threads or _processors())
        self._rollout = mujoco.rollout.Rollout(nthread=threads if threads > 1 else 0)
        self._data = [mujoco.MjData(model) for _ in range(threads)]
        self._models = [model] * count
        # rollout's arrays; a state there is time, positions, velocities, and every call starts at time 0.
        self._start = np.zeros((count, 1 + model.nq + model.nv))
        self._control = np.zeros((count, skip, model.nu))
        self._path = np.zeros((count, skip, 1 + model.nq + model.nv))

    def advance(self, before: Float, control: NDArray[Any]) -> Float:
        """Return the states [B, nq + nv] after `skip` MuJoCo steps from `before` with control[B, nu]."""
        n = len(before)
        start, path = self._start[:n], self._path[:n]
        start[:, 1:] = before
        self._control[:n] = control[:, None]
        with quiet:
            self._rollout.rollout(
                self._models[:n],
                self._data,
                start,
                self._control[:n],
                nstep=self._skip,
                state=path,
                skip_checks=True,
            )
        after = path[:, -1, 1:].copy()
        # rollout stops at a MuJoCo warning (nan or huge numbers), and MuJoCo then resets its clock. Gymnasium
        # continues, so those rows are stepped as it does.
        timestep = self._model.opt.timestep
        for i in np.flatnonzero(np.abs(path[:, -1, 0] - self._skip * timestep) > timestep / 2):
            after[i] = self._advance_alone(before[i], control[i])
        return after

    def _advance_alone(self, before: Float, control: NDArray[Any]) -> Float:
        data, positions = self._data[0], self._model.nq
        with quiet:
            mujoco.mj_resetData(self._model, data)
            data.qpos[:], data.qvel[:] = before[:positions], before[positions:]
            mujoco.mj_forward(self._model, data)
            data.ctrl[:] = control
            mujoco.mj_step(self._model, data, nstep=self._skip)
        return np.concatenate([data.qpos, data.qvel])

    def close(self) -> None:
        """Release the threads."""
        self._rollout.close()


def is_native(env: gymnasium.Env) -> bool:
    """Whether `NativeEnv` can step this environment."""
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
    """How observation, reward and end follow from states [B, nq + nv], which begin with x, z, angle."""

    hidden: int  # leading positions that are not observed
    speeds: int  # nv
    speed_limit: float  # observed velocities are clipped to it
    dt: float
    forward_weight: float
    control_weight: float
    healthy_reward: float
    fallen_reward: float  # of a step that ends unhealthy; -v4 and -v5 differ
    limits: tuple[tuple[slice, float, float], ...]  # healthy: each part of the state strictly between these
    ends_when_fallen: bool

    def observe(self, state: Float) -> Float:
        """Return observations [B, S]."""
        obs = state[:, self.hidden :].copy()
        speed = obs[:, -self.speeds :]
        np.clip(speed, -self.speed_limit, self.speed_limit, out=speed)
        return obs

    def outcome(self, before: Float, action: NDArray[Any], after: Float) -> tuple[Float, Bool]:
        """Return reward and terminal, [B] each."""
        healthy = np.ones(len(after), dtype=bool)
        for part, low, high in self.limits:
            value = after[:, part]
            healthy &= ((low < value) & (value < high)).all(axis=1)
        forward = self.forward_weight * ((after[:, 0] - before[:, 0]) / self.dt)
        control = self.control_weight * np.square(action).sum(axis=1)
        reward = forward + np.where(healthy, self.healthy_reward, self.fallen_reward) - control
        return reward, ~healthy & self.ends_when_fallen


def read_rules(env: Any) -> Rules:
    """Read the rules of a Gymnasium Hopper, HalfCheetah or Walker2d; all numbers come from the instance."""
    ranges = {
        "_healthy_z_range": slice(1, 2),
        "_healthy_angle_range": slice(2, 3),
        "_healthy_state_range": slice(2, None),
    }
    # Two numbers have no attribute; an impossible state shows them: nan is never healthy, inf is clipped.
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

    One Gymnasium environment, the template, gives the model, the rules and the first states of episodes.
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
        model = self._template.model
        self._positions = model.nq
        self._state = np.zeros((count, model.nq + model.nv))
        self._clock = np.zeros(count, dtype=np.int64)
        self._batch = ModelBatch(model, count, self._template.frame_skip, threads)
        self._rules = self._read_and_try_rules()

    def reset(self, index: ArrayLike, seed: Sequence[int] | NDArray[Any]) -> Float:
        """See `Env.reset`; the template draws the first state, so a seed gives the same one as in Gymnasium."""
        index = np.asarray(index, dtype=np.int64)
        for i, one in zip(index, seed, strict=True):
            self._template.reset(seed=int(one))
            self._state[i] = self._template.state_vector()
        self._clock[index] = 0
        return self._rules.observe(self._state[index])

    def step(self, action: NDArray[Any], running: NDArray[Any] | None = None) -> Step:
        """See `Env.step`; rows that are not running cost no time."""
        action = checked_action(action, (self.count, len(self.action_low)))
        index = np.arange(self.count) if running is None else np.flatnonzero(running)
        reward, terminal, timeout = np.zeros(self.count), *np.zeros((2, self.count), dtype=bool)
        if len(index):
            before, action = self._state[index], action[index]
            after = self._batch.advance(before, action)
            reward[index], terminal[index] = self._rules.outcome(before, action, after)
            self._state[index] = after
            self._clock[index] += 1
            timeout[index] = self._clock[index] >= self.horizon
        return Step(self._rules.observe(self._state), reward, terminal, timeout)

    def state(self) -> tuple[Float, Float]:
        """Return positions [B, nq] and velocities [B, nv]."""
        qpos, qvel = np.split(self._state.copy(), [self._positions], axis=1)
        return qpos, qvel

    def set_state(self, index: ArrayLike, qpos: ArrayLike, qvel: ArrayLike) -> Float:
        """Set the state of the environments `index` and their clocks to 0; return obs[len(index), S]."""
        index = np.asarray(index, dtype=np.int64)
        self._state[index] = np.concatenate([qpos, qvel], axis=1)
        self._clock[index] = 0
        return self._rules.observe(self._state[index])

    def state_of(self, obs: NDArray[Any]) -> tuple[Float, Float]:
        """Return positions and velocities of obs[B, S]; x is 0 if not observed, a clipped speed stays clipped."""
        state = np.zeros((len(obs), self._state.shape[1]))
        state[:, self._rules.hidden :] = obs
        qpos, qvel = np.split(state, [self._positions], axis=1)
        return qpos, qvel

    def healthy_range(self) -> tuple[Float, Float]:
        """Return low and high [S]: an episode ends when an observation is not strictly between them."""
        low, high = np.full(self._state.shape[1], -np.inf), np.full(self._state.shape[1], np.inf)
        for part, least, most in self._rules.limits if self._rules.ends_when_fallen else ():
            low[part], high[part] = np.maximum(low[part], least), np.minimum(high[part], most)
        return low[self._rules.hidden :], high[self._rules.hidden :]

    def close(self) -> None:
        """See `Env.close`."""
        self._batch.close()
        self._template.close()

    def _read_and_try_rules(self) -> Rules:
        """Read the template's rules and compare them with its own steps, so that changes in Gymnasium show."""
        template, rng = self._template, np.random.default_rng(0)
        try:
            rules = read_rules(template)
            for _ in range(16):
                template.reset(seed=0)
                # From standing to fallen, some with too large actions, so that every rule is tested.
                spread = rng.choice([0.0, 0.1, 0.5])
                state = template.state_vector()
                state += spread * rng.normal(size=state.shape)
                action = rng.uniform(2 * self.action_low, 2 * self.action_high)
                template.set_state(state[: self._positions], state[self._positions :])
                with quiet:
                    obs, reward, terminal, _, _ = template.step(action)
                after = self._batch.advance(state[None], action[None])
                ours = (rules.observe(after)[0], *rules.outcome(state[None], action[None], after))
                np.testing.assert_allclose(ours[0], obs, rtol=1e-5, atol=1e-5)
                np.testing.assert_allclose(ours[1][0], reward, rtol=1e-5, atol=1e-5)
                np.testing.assert_equal(ours[2][0], terminal)
        except (AttributeError, AssertionError) as error:
            raise InputError(
                f"{self.id}: Gymnasium {gymnasium.__version__} has other rules for it than trajstitch knows; "
                "install the versions in constraints.txt."
            ) from error
        return rules


def _processors() -> int:
    """Return how many processors this process may use; in a container, fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
