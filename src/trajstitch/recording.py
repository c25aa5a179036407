"""Recording: policies rolled out into a data set of whole episodes, the same one for the same seed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trajstitch import envs
from trajstitch.data import Bool, Dataset, Float, Trajectory, concatenate, from_trajectories
from trajstitch.errors import InputError
from trajstitch.planner import Planner
from trajstitch.play import Act, actor, play
from trajstitch.policy import Policy, load_policy
from trajstitch.progress import Tell, silent

RANDOM = "random"  # the policy that draws actions uniformly from the action space


def collect(
    policy: Policy | Planner | str | Path,
    env_id: str,
    steps: int,
    *,
    physics: str = "gymnasium",
    deterministic: bool = False,
    noise: float = 0.0,
    seed: int = 0,
    horizon: int | None = None,
    together: int = 64,
    tell: Tell = silent,
) -> Dataset:
    """The fewest whole episodes that have `steps` steps together, in the order they began.

    Episodes are kept by when they began, not by when they ended, so long ones are as likely to be kept as short
    ones. `together` environments are stepped at once: more fill more cores, but more steps are thrown away at the
    end, and the random numbers of a stochastic policy fall differently.
    """
    for name, number in (("steps", steps), ("together", together)):
        if number < 1:
            raise InputError(f"{name} must be at least 1, not {number}")
    if isinstance(policy, str | Path) and Path(policy).is_dir():
        policy = Path(policy) / "policy.npz"  # of a run
    one = load_policy(policy) if isinstance(policy, str | Path) and str(policy) != RANDOM else policy
    many = 1 if isinstance(one, str | Path) else one.count or 1  # stacked policies take turns
    start, act_seed = (int(word) for word in np.random.SeedSequence(seed).generate_state(2))
    env = envs.make(env_id, -(-min(together, steps) // many) * many, physics=physics, horizon=horizon)
    try:
        if isinstance(one, str | Path):
            act = _uniform(env, act_seed)
        else:
            act = actor(one, env, None if deterministic else act_seed, noise)
        episodes = _first_episodes(play(env, act, itertools.count(start)), steps, tell)
    finally:
        env.close()
    name = str(policy) if isinstance(policy, str | Path) else "policy"
    info: dict[str, Any] = {"env_id": env_id, "physics": physics, "policy": Path(name).name, "seed": seed}
    return from_trajectories(episodes, info | ({"env_horizon": horizon} if horizon else {}))


def collect_mixture(
    shares: Sequence[tuple[str, float]], env_id: str, steps: int, *, seed: int = 0, **options: Any
) -> Dataset:
    """`steps` steps from several policies by their shares of them, one policy's episodes after another's."""
    total = sum(share for _, share in shares)
    if not shares or any(not share > 0 for _, share in shares) or abs(total - 1) > 1e-6:
        given = ", ".join(f"{name}:{share:g}" for name, share in shares)
        raise InputError(f"the shares of a mixture must be above 0 and add up to 1, not {given}")
    parts = [
        collect(name, env_id, max(1, round(steps * share)), seed=seed + 1000 * i, **options)
        for i, (name, share) in enumerate(shares)
    ]
    mixture = " ".join(f"{Path(name).name}:{share:g}" for name, share in shares)
    data = concatenate(parts)
    return Dataset(
        data.obs,
        data.action,
        data.reward,
        data.start,
        data.terminal,
        {**data.info, "policy": mixture, "seed": seed},
    )


def _first_episodes(played: Any, steps: int, tell: Tell) -> list[Trajectory]:
    """Episodes 0, 1, 2, … up to the one that completes `steps` steps."""
    finished: dict[int, Trajectory] = {}
    kept: list[Trajectory] = []
    have = 0
    for number, episode in played:
        finished[number] = episode
        while have < steps and len(kept) in finished:
            kept.append(finished.pop(len(kept)))
            have += len(kept[-1])
        tell(min(steps, have + sum(map(len, finished.values()))), steps, "steps")
        if have >= steps:
            return kept
    raise AssertionError("seeds never run out")


def _uniform(env: envs.Env, seed: int) -> Act:
    generator = np.random.default_rng(seed)

    def act(obs: Float, begun: Bool) -> Float:
        return generator.uniform(env.action_low, env.action_high, (env.count, len(env.action_low))).astype(
            np.float32
        )

    return act
