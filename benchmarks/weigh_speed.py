"""How fast critics are trained for weights, beside nothing but the matrix products of the same step.

    python -m benchmarks.weigh_speed --json results/weigh_speed.json

A step of one member has these products, of a batch of 256 rows: twin critics forward and backward, twin targets
forward, the value forward and backward for the state, and forward for the next state. Gradients with respect to
the data are not needed. The floor does just these, with arrays of the same shapes, for all members at once; a step
also draws rows, computes losses and does Adam's update. Both are timed in turns in one run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.command import command
from trajstitch.bench.speed import machine
from trajstitch.formats import load
from trajstitch.methods.iql import scaled_steps
from trajstitch.methods.weigh import WEIGH_PRESETS, Weigh, start_critics, train_critics
from trajstitch.storage.atomic import write_json
from trajstitch.training.loop import Fit


def products(config: Weigh, obs: int, action: int) -> list[tuple[int, int, int, int]]:
    """Return (networks, batch, inputs, outputs) of all products of one step of one member."""
    found: list[tuple[int, int, int, int]] = []

    def network(many: int, inputs: int, backward: bool) -> None:
        sizes = [inputs, *[config.width] * config.depth, 1]
        for layer, (a, b) in enumerate(itertools.pairwise(sizes)):
            # Forward; the gradient of the weights; that of the inputs, but for the data.
            found.extend([(many, config.fit.batch, a, b)] * (1 + backward + (backward and layer > 0)))

    network(2, obs + action, backward=True)
    network(2, obs + action, backward=False)
    network(1, obs, backward=True)
    network(1, obs, backward=False)
    return found


def floor(config: Weigh, obs: int, action: int, steps: int) -> float:
    """Return the steps per second of the products alone."""
    shapes = products(config, obs, action)
    key = jax.random.key(0)
    left = [jax.random.normal(key, (config.members * n, batch, a)) for n, batch, a, _ in shapes]
    right = [jax.random.normal(key, (config.members * n, a, b)) for n, _, a, b in shapes]

    @jax.jit
    def run(left: list[Array], right: list[Array]) -> Array:
        def step(small: Array, _: None) -> tuple[Array, None]:
            # Each product depends on the last step, so that none is computed only once.
            parts = [jnp.matmul(x, y + small)[:, 0, 0].sum() for x, y in zip(left, right, strict=True)]
            return 1e-9 * jnp.sum(jnp.stack(parts)), None

        return jax.lax.scan(step, jnp.float32(0), None, length=steps)[0]

    run(left, right).block_until_ready()
    begin = time.perf_counter()
    run(left, right).block_until_ready()
    return steps / (time.perf_counter() - begin)


def trained(config: Weigh, data: Any, steps: int) -> float:
    """Return the steps per second of training."""
    table = scaled_steps(data)
    config = replace(config, fit=Fit(2 * steps, config.fit.batch, config.fit.rate))
    times = [time.perf_counter()]
    for state, _ in train_critics(table, config, start_critics(table, config, 0), 0, steps):
        jax.block_until_ready(state.model)  # type: ignore[no-untyped-call]
        times.append(time.perf_counter())
    return steps / (times[2] - times[1])  # the first part compiles


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="demo", help="Data set.")
    parser.add_argument("--steps", type=int, default=500, help="Steps per measurement.")
    parser.add_argument("--turns", type=int, default=5, help="Measurements of each; the median counts.")
    parser.add_argument("--json", type=Path, help="Where to write the result.")
    args = parser.parse_args()
    data = load(args.data)
    report: dict[str, Any] = {"command": command("weigh_speed"), "machine": machine()}
    for name, config in WEIGH_PRESETS.items():
        turns = [
            (trained(config, data, args.steps), floor(config, data.obs_dim, data.action_dim, args.steps))
            for _ in range(args.turns)
        ]
        ours, least = np.median(turns, 0)
        share = float(np.median([a / b for a, b in turns]))
        report[name] = {"steps_per_second": float(ours), "products_alone": float(least), "share": share}
        print(
            f"{name}: {ours:.0f} steps/s, products alone {least:.0f}, {share:.0%} of the floor's speed", flush=True
        )
    if args.json:
        write_json(args.json, report)
    print(json.dumps(report["machine"]))


if __name__ == "__main__":
    main()
