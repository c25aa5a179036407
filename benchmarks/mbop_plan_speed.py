"""Time of one MBOP plan, compared with the time of its matrix products alone; prints one line of JSON.

python -m benchmarks.mbop_plan_speed
python -m benchmarks.mbop_plan_speed --episodes 50 --samples 100 --horizon 4
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from trajstitch.methods.mbop import MBOP
from trajstitch.policies.mppi import MPPI, ActionModel, ReturnModel, noise_shape
from trajstitch.policies.planner import plan_all
from trajstitch.policies.policy import stack


def untrained_planner(args: argparse.Namespace) -> MPPI:
    """A planner with random weights, since the time does not depend on the weights."""
    rng = np.random.default_rng(0)
    config = MBOP(samples=args.samples, plan_horizon=args.horizon, width=args.width)
    obs, action = rng.normal(size=(64, args.obs)), rng.uniform(-1, 1, (64, args.actions))
    table = {"obs": obs, "action": action, "last": action, "next_obs": obs[::-1], "reward": obs[:, 0]}
    table |= {"total": obs[:, 0], "whole": np.ones(64)}
    model: MPPI = config.init(table, jax.random.key(0))
    return stack([model])


def products(planner: MPPI, episodes: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Shapes of every matrix product of a plan, one per layer and head."""
    horizon, heads, _, each, _ = noise_shape(planner, episodes)
    rows = episodes * each

    def layers(net: Any, rows: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        return [((rows, w.shape[-1]), (w.shape[-1], w.shape[-2])) for w in (layer.weight for layer in net.layers)]

    assert isinstance(planner.prior, ActionModel)
    assert isinstance(planner.end, ReturnModel)
    shapes = heads * layers(planner.prior.net, episodes)  # the first step: one row per episode
    shapes += horizon * heads * layers(planner.prior.net, rows)  # the later steps and the end
    shapes += horizon * heads * layers(planner.step.net, heads * rows)
    return shapes + heads * layers(planner.end.net, heads * rows)


def seconds(run: Callable[[], Any]) -> float:
    """Seconds of one run, after one run that is not counted."""
    np.asarray(run())
    begin = time.perf_counter()
    np.asarray(run())
    return time.perf_counter() - begin


def main() -> None:
    """Measure plan and products in turn, so that other work on the machine slows both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=50, help="Episodes planned for at once.")
    parser.add_argument("--samples", type=int, default=100, help="Sampled futures per episode.")
    parser.add_argument("--horizon", type=int, default=4, help="Steps of a plan.")
    parser.add_argument("--width", type=int, default=500, help="Width of the networks.")
    parser.add_argument("--repeats", type=int, default=7, help="Measurements; the median is printed.")
    parser.add_argument("--obs", type=int, default=11, help="Size of an observation; Hopper's by default.")
    parser.add_argument("--actions", type=int, default=3, help="Size of an action; Hopper's by default.")
    args = parser.parse_args()

    planner = untrained_planner(args)
    obs, begun = jnp.zeros((1, args.episodes, args.obs)), jnp.zeros((1, args.episodes), bool)
    key = jax.random.key(0)

    def plan() -> Any:
        return plan_all(planner, planner.blank(args.episodes), obs, begun, key)[0]

    shapes = products(planner, args.episodes)
    dot = jax.jit(jnp.dot)
    arrays = {shape: jnp.ones(shape) for pair in shapes for shape in pair}

    def products_alone() -> Any:
        for a, b in shapes:  # only the last result is kept: memory is not measured
            out = dot(arrays[a], arrays[b])
        return out

    times = [(seconds(plan), seconds(products_alone)) for _ in range(args.repeats)]
    plan_seconds, products_seconds = (float(np.median(column)) for column in zip(*times, strict=True))
    flops = sum(2 * a * b * c for (a, b), (_, c) in shapes)
    print(
        json.dumps(
            {
                "device": str(jax.devices()[0]),
                **{name: getattr(args, name) for name in ("episodes", "samples", "horizon", "width")},
                "plan_seconds": round(plan_seconds, 4),
                "products_seconds": round(products_seconds, 4),
                "ratio": round(plan_seconds / products_seconds, 3),
                "products_gflop": round(flops / 1e9, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
