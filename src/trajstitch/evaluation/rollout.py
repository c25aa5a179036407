"""Rollout: run policies in batched environments, episode by episode, for scores and for new data."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from trajstitch.checks import check_same_sizes
from trajstitch.data import Bool, Float, Trajectory
from trajstitch.errors import InputError
from trajstitch.evaluation.env import Env
from trajstitch.policies.planner import ActionPlanner, plan_all
from trajstitch.policies.policy import Policy, act_all, stacked

# (obs [B, S], begun [B]) -> actions [B, A]. `begun` marks environments whose episode has just begun; it tells
# planners to forget the last episode.
Act = Callable[[Float, Bool], NDArray[Any]]


def play(env: Env, act: Act, seeds: Iterable[int]) -> Iterator[tuple[int, Trajectory]]:
    """Run one episode per seed, `env.count` at a time, and yield (number, episode) as they end.

    Episode i starts from the i-th seed. An environment whose episode has ended takes the next seed; it rests when
    there is none. For an unbiased sample keep the first k numbers, not the first k to end: short ones end first.
    """
    waiting = enumerate(seeds)
    number = np.full(env.count, -1)  # the episode that each environment runs; -1: none
    clock = np.zeros(env.count, int)
    obs = np.zeros((env.count, env.obs_dim), np.float32)
    past_obs = np.zeros((env.count, env.horizon + 1, env.obs_dim), np.float32)
    past_action = np.zeros((env.count, env.horizon, len(env.action_low)), np.float32)
    past_reward = np.zeros((env.count, env.horizon), np.float32)

    def begin(free: NDArray[Any]) -> None:
        """Start the next waiting episodes in the environments `free`."""
        taken = list(zip(free, waiting, strict=False))
        number[free] = -1
        if taken:
            index = np.array([b for b, _ in taken])
            number[index] = [i for _, (i, _) in taken]
            clock[index] = 0
            obs[index] = env.reset(index, np.array([seed for _, (_, seed) in taken]))
            past_obs[index, 0] = obs[index]

    begin(np.arange(env.count))
    while (running := number >= 0).any():
        action = np.asarray(act(obs, running & (clock == 0)))
        step = env.step(action, running)
        live = np.flatnonzero(running)
        obs[live] = step.obs[live]
        past_action[live, clock[live]] = action[live]
        past_reward[live, clock[live]] = step.reward[live]
        clock[live] += 1
        past_obs[live, clock[live]] = obs[live]
        ended = live[(step.terminal | step.timeout)[live]]
        for b in ended:
            t = clock[b]
            yield (
                int(number[b]),
                Trajectory(
                    past_obs[b, : t + 1].copy(),
                    past_action[b, :t].copy(),
                    past_reward[b, :t].copy(),
                    bool(step.terminal[b]),
                ),
            )
        if ended.size:
            begin(ended)


def actor(policy: Policy | ActionPlanner, env: Env, seed: int | None = None, noise: float = 0.0) -> Act:
    """Return the function by which P policies act in the environments, each in count/P of them.

    Policies take the most likely action, or draw one if `seed` is given. Planners always draw random plans, with
    seed 0 unless given. `noise` is the std of Gaussian noise added to actions, in half-ranges of the action; the
    result is clipped to the range.
    """
    have, want = (policy.obs_dim, policy.action_dim), (env.obs_dim, len(env.action_low))
    check_same_sizes("the policy has", have, f"{env.id} has", want, "choose the environment the data came from")
    if not noise >= 0:
        raise InputError(f"noise must be 0 or more, not {noise:g}")
    each = env.count // (policy.count or 1)
    choose = _plans(policy, each, seed or 0) if isinstance(policy, ActionPlanner) else _choices(policy, seed)
    generator = np.random.default_rng([0 if seed is None else seed, 1])
    low, high = env.action_low, env.action_high

    def act(obs: Float, begun: Bool) -> NDArray[Any]:
        rows = choose(obs.reshape(-1, each, env.obs_dim), begun.reshape(-1, each))
        action = np.asarray(rows).reshape(env.count, -1)
        if noise:
            shake = noise * (high - low) / 2 * generator.standard_normal(action.shape)
            action = np.clip(action + shake, low, high).astype(np.float32)
        return action

    return act


def _choices(policy: Policy, seed: int | None) -> Act:
    """Return a function for the actions [P, B, A] of policies, which depend on the observation only."""
    cpu = jax.devices("cpu")[0]  # a few rows at a time are not worth a GPU's latency
    policy = jax.device_put(stacked(policy), cpu)
    key = None if seed is None else jax.device_put(jax.random.key(seed), cpu)
    calls = itertools.count()

    def choose(obs: Float, begun: Bool) -> NDArray[Any]:
        step_key = None if key is None else jax.random.fold_in(key, next(calls))
        return np.asarray(act_all(policy, jax.device_put(obs, cpu), step_key))

    return choose


def _plans(planner: ActionPlanner, each: int, seed: int) -> Act:
    """Return a function for the actions [P, B, A] of planners, which may remember their last plans."""
    planner = stacked(planner)
    memory, key = planner.blank(each), jax.random.key(seed)
    calls = itertools.count()

    def choose(obs: Float, begun: Bool) -> NDArray[Any]:
        nonlocal memory
        action, memory = plan_all(planner, memory, obs, begun, jax.random.fold_in(key, next(calls)))
        return np.asarray(action)

    return choose
