"""Steps per second of our batched environments, compared with Gymnasium's SyncVectorEnv in the same run.

    python -m benchmarks.simulator_speed --count 64 --steps 100 --rounds 5

Actions are random, and episodes restart when they end. The two simulators take turns, so that other work on the
machine slows both; only their ratio can be compared between machines. The last line is the table as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from trajstitch.evaluation import envs
from trajstitch.evaluation.d4rl_physics import quiet

ENVS = ("Hopper-v5", "Walker2d-v5", "HalfCheetah-v5")


def ours(env_id: str, count: int) -> Callable[[np.ndarray], None]:
    """A function that steps our environments once and restarts those that ended."""
    env = envs.make(env_id, count)
    env.reset(range(count), range(count))

    def step(action: np.ndarray) -> None:
        _, _, terminal, timeout = env.step(action)
        over = np.flatnonzero(terminal | timeout)
        if len(over):
            env.reset(over, over)

    return step


def theirs(env_id: str, count: int) -> Callable[[np.ndarray], None]:
    """The same for Gymnasium's SyncVectorEnv."""

    def make_one() -> gymnasium.Env:
        with quiet:
            return gymnasium.make(gymnasium.spec(env_id), disable_env_checker=True)

    vector = SyncVectorEnv([make_one] * count, autoreset_mode=AutoresetMode.DISABLED)
    seeds = list(range(count))
    vector.reset(seed=seeds)

    def step(action: np.ndarray) -> None:
        _, _, terminal, timeout, _ = vector.step(action)
        over = terminal | timeout
        if over.any():
            vector.reset(seed=seeds, options={"reset_mask": over})

    return step


def compare(env_id: str, count: int, steps: int, rounds: int) -> dict[str, Any]:
    """Environment steps per second of both, and the median of their ratio over the rounds."""
    runners = {"ours": ours(env_id, count), "gymnasium": theirs(env_id, count)}
    with quiet:
        space = gymnasium.spec(env_id).make(disable_env_checker=True).action_space
    action = np.random.default_rng(0).uniform(space.low, space.high, (steps, count, *space.shape))
    action = action.astype(np.float32)
    rate: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, step in runners.items():
            begin = time.perf_counter()
            for row in action:
                step(row)
            rate[name].append(steps * count / (time.perf_counter() - begin))
    ratio = np.array(rate["ours"]) / np.array(rate["gymnasium"])
    best = {name: round(max(values)) for name, values in rate.items()}
    return {"env": env_id, **best, "ratio": round(float(np.median(ratio)), 2)}


def compare_episodes(env_id: str, count: int) -> dict[str, Any]:
    """Seconds to play one episode per environment.

    Ours does not step environments whose episode has ended; SyncVectorEnv has to.
    """
    with quiet:
        space = gymnasium.spec(env_id).make(disable_env_checker=True).action_space
    seconds = {}
    for name in ("ours", "gymnasium"):
        rng = np.random.default_rng(0)
        env = envs.make(env_id, count)
        vector = SyncVectorEnv(
            [lambda: gymnasium.make(env_id, disable_env_checker=True)] * count,
            autoreset_mode=AutoresetMode.DISABLED,
        )
        env.reset(range(count), range(count))
        vector.reset(seed=list(range(count)))
        running = np.ones(count, bool)
        begin = time.perf_counter()
        while running.any():
            action = rng.uniform(space.low, space.high, (count, *space.shape)).astype(np.float32)
            if name == "ours":
                _, _, terminal, timeout = env.step(action, running)
                running &= ~(terminal | timeout)
            else:
                _, _, terminal, timeout, _ = vector.step(action)
                over = terminal | timeout
                running &= ~over
                if over.any():
                    vector.reset(options={"reset_mask": over})
        seconds[name] = time.perf_counter() - begin
    return {"env": env_id, "count": count, **seconds, "ratio": seconds["gymnasium"] / seconds["ours"]}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=64, help="Environments side by side.")
    parser.add_argument("--steps", type=int, default=100, help="Steps per environment and round.")
    parser.add_argument("--rounds", type=int, default=5, help="Rounds; the median ratio counts.")
    args = parser.parse_args()
    with quiet:
        rows = [compare(env_id, args.count, args.steps, args.rounds) for env_id in ENVS]
    print(f"{'environment':16}{'ours':>10}{'gymnasium':>12}{'ratio':>8}   best steps/s; median ratio")
    for row in rows:
        print(f"{row['env']:16}{row['ours']:>10}{row['gymnasium']:>12}{row['ratio']:>8}")
    print(json.dumps({"mujoco": mujoco.__version__, "count": args.count, "rows": rows}))


if __name__ == "__main__":
    main()
