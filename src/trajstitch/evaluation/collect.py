"""Collect: policies rolled out into a data set of whole episodes; the same seed gives the same data."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trajstitch.data import Bool, Dataset, Float, Trajectory, concatenate, from_trajectories
from trajstitch.errors import InputError
from trajstitch.evaluation import envs, mazes
from trajstitch.evaluation.env import Env
from trajstitch.evaluation.rollout import Act, actor, play
from trajstitch.evaluation.walker import NOISE, WALK_LENGTH, WALKER, walk
from trajstitch.policies.planner import ActionPlanner
from trajstitch.policies.policy import Policy
from trajstitch.policies.policy_files import load_policy
from trajstitch.progress import Tell, silent

RANDOM = "random"  # the policy that draws actions uniformly from the action space


def collect(
    policy: Policy | ActionPlanner | str | Path,
    env_id: str,
    steps: int | None = None,
    *,
    episodes: int | None = None,
    physics: str = "gymnasium",
    deterministic: bool = False,
    noise: float | None = None,
    walk_length: int = WALK_LENGTH,
    seed: int = 0,
    env_horizon: int | None = None,
    together: int = 64,
    tell: Tell = silent,
) -> Dataset:
    """Roll a policy out and return the first whole episodes: `episodes` of them, or at least `steps` steps.

    Episodes are counted in the order they began, not in the order they ended, so long ones are as likely to be
    kept as short ones.

    Arguments:
        policy: a policy or planner, its file, a run directory of train, "random" for uniform actions, or "walker"
            for short walks in a maze (see `walk`).
        env_id: the Gymnasium id, such as Hopper-v5.
        steps: at least this many steps; either this or `episodes` is given.
        episodes: exactly this many episodes.
        physics: gymnasium, or d4rl for the masses of the simulator that recorded D4RL's data.
        deterministic: take the most likely action instead of drawing one.
        noise: std of Gaussian noise added to actions, in half-ranges of the action; unless given, 0 or, for
            the walker, 0.5. "random" takes none.
        walk_length: steps per walk of the walker in a point maze.
        seed: the random seed.
        env_horizon: the time limit, where the environment has none of its own.
        together: environments stepped at once. More use more cores, but throw more steps away at the end; a
            stochastic policy draws other random numbers when this changes.
        tell: a callback for progress.
    """
    asked = _asked(steps, episodes)
    _check_noise(policy, noise)
    if together < 1:
        raise InputError(f"together must be at least 1, not {together}")
    if str(policy) == WALKER:
        _check_maze(env_id)
        if steps is None:
            raise InputError("walks are recorded by steps; give steps instead of episodes")
        options: dict[str, Any] = {"walk_length": walk_length, "seed": seed, "env_horizon": env_horizon}
        return walk(env_id, steps, noise=NOISE if noise is None else noise, tell=tell, **options)
    if isinstance(policy, str | Path) and Path(policy).is_dir():
        policy = Path(policy) / "policy.npz"  # the policy of a run
    one = load_policy(policy) if isinstance(policy, str | Path) and str(policy) != RANDOM else policy
    many = 1 if isinstance(one, str | Path) else one.count or 1  # stacked policies take turns
    start, act_seed = (int(word) for word in np.random.SeedSequence(seed).generate_state(2))
    env = envs.make(env_id, -(-min(together, asked) // many) * many, physics=physics, horizon=env_horizon)
    try:
        if isinstance(one, str | Path):
            act = _uniform(env, act_seed)
        else:
            act = actor(one, env, None if deterministic else act_seed, noise or 0.0)
        kept = _first_episodes(play(env, act, itertools.count(start)), asked, episodes is not None, tell)
    finally:
        env.close()
    name = str(policy) if isinstance(policy, str | Path) else "policy"
    info: dict[str, Any] = {"env_id": env_id, "physics": physics, "policy": Path(name).name, "seed": seed}
    return from_trajectories(kept, info | ({"env_horizon": env_horizon} if env_horizon else {}))


class Share(NamedTuple):
    """A part of a mixture."""

    policy: str  # its file
    share: float  # of the steps, or of the episodes
    noise: float | None = None  # of this part alone; None: that of the whole mixture


def collect_mixture(
    shares: Sequence[tuple[str, float] | Share],
    env_id: str,
    steps: int | None = None,
    *,
    episodes: int | None = None,
    noise: float | None = None,
    seed: int = 0,
    **options: Any,
) -> Dataset:
    """Collect from several policies, each with its share of the steps or episodes, one policy after another.

    Arguments:
        shares: policy files with their shares, and noise of their own if wanted; the shares add up to 1.
        env_id: the Gymnasium id, such as Hopper-v5.
        steps: at least this many steps in total; either this or `episodes` is given.
        episodes: exactly this many episodes in total, at least one of each part.
        noise: the noise of parts that have none of their own, but "random".
        seed: the random seed.
        options: further arguments of `collect`.
    """
    parts = [Share(*part) for part in shares]
    total = sum(part.share for part in parts)
    if not parts or any(not part.share > 0 for part in parts) or abs(total - 1) > 1e-6:
        given = ", ".join(f"{part.policy}:{part.share:g}" for part in parts)
        raise InputError(f"the shares of a mixture must be above 0 and add up to 1, not {given}")
    asked, unit = _asked(steps, episodes), "steps" if episodes is None else "episodes"
    noises = [noise if one.noise is None and one.policy != RANDOM else one.noise for one in parts]
    for part, own in zip(parts, noises, strict=True):
        _check_noise(part.policy, own)
    made = []
    for i, (part, own, count) in enumerate(zip(parts, noises, _split(asked, parts), strict=True)):
        its: dict[str, Any] = {unit: count, "noise": own, "seed": seed + 1000 * i}
        made.append(collect(part.policy, env_id, **its, **options))
    data = concatenate(made)
    return replace(data, info={**data.info, "policy": " ".join(map(_named, parts)), "seed": seed})


def _named(part: Share) -> str:
    noise = "" if part.noise is None else f":{part.noise:g}"
    return f"{Path(part.policy).name}:{part.share:g}{noise}"


def _split(asked: int, parts: Sequence[Share]) -> list[int]:
    """Return how much of each part, at least 1, adds up to what is asked for: the method of largest remainders."""
    if asked < len(parts):
        raise InputError(f"{len(parts)} policies cannot share {asked}; ask for at least {len(parts)}")
    share = np.array([part.share for part in parts])
    exact = asked * share / share.sum()
    count = np.floor(exact).astype(int)
    count[np.argsort(count - exact, kind="stable")[: asked - count.sum()]] += 1
    while not count.all():
        count[count.argmax()] -= 1
        count[count.argmin()] = 1
    return count.tolist()


def _check_noise(policy: Policy | ActionPlanner | str | Path, noise: float | None) -> None:
    if noise is not None and not noise >= 0:
        raise InputError(f"noise must be 0 or more, not {noise:g}")
    if noise and str(policy) == RANDOM:
        raise InputError("the policy random takes no noise; leave it out, or give another policy")


def _asked(steps: int | None, episodes: int | None) -> int:
    """Return how much is to be collected, of whichever is given."""
    if (steps is None) == (episodes is None):
        raise InputError("give either steps or episodes")
    name, number = ("episodes", episodes) if steps is None else ("steps", steps)
    assert number is not None
    if number < 1:
        raise InputError(f"{name} must be at least 1, not {number}")
    return number


def _check_maze(env_id: str) -> None:
    if env_id not in mazes.IDS:
        raise InputError(f"{env_id}: the walker needs a maze, such as {mazes.OWN}; choose one, or another policy")


def _first_episodes(played: Any, asked: int, by_episodes: bool, tell: Tell) -> list[Trajectory]:
    """Return episodes 0, 1, 2, … up to the one that completes what is asked for: steps, or episodes."""
    finished: dict[int, Trajectory] = {}
    kept: list[Trajectory] = []
    have = 0
    for number, episode in played:
        finished[number] = episode
        while have < asked and len(kept) in finished:
            kept.append(finished.pop(len(kept)))
            have += 1 if by_episodes else len(kept[-1])
        waiting = len(finished) if by_episodes else sum(map(len, finished.values()))
        tell(min(asked, have + waiting), asked, "episodes" if by_episodes else "steps")
        if have >= asked:
            return kept
    raise AssertionError("seeds never run out")


def _uniform(env: Env, seed: int) -> Act:
    generator = np.random.default_rng(seed)

    def act(obs: Float, begun: Bool) -> Float:
        return generator.uniform(env.action_low, env.action_high, (env.count, len(env.action_low))).astype(
            np.float32
        )

    return act
