"""How long a plan takes beside its matrix products alone, in one run: a line of JSON.

python benchmarks/planning.py
python benchmarks/planning.py --episodes 50 --samples 100 --horizon 4
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

from trajstitch.mbop import MBOP
from trajstitch.mppi import MPPI, ActionModel, ReturnModel, noise_shape
from trajstitch.planner import plan_all
from trajstitch.policy import stack


def fresh(asked: argparse.Namespace) -> MPPI:
    """An untrained planner of the default sizes: what it says does not change how long it takes."""
    rng = np.random.default_rng(0)
    config = MBOP(samples=asked.samples, plan_horizon=asked.horizon, width=asked.width)
    obs, action = rng.normal(size=(64, asked.obs)), rng.uniform(-1, 1, (64, asked.actions))
    table = {"obs": obs, "action": action, "last": action, "next_obs": obs[::-1], "reward": obs[:, 0]}
    model: MPPI = config.init(table | {"total": obs[:, 0]}, jax.random.key(0))
    return stack([model])


def products(planner: MPPI, episodes: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Shapes of every matrix product of a plan, one for each layer of each head that is asked."""
    horizon, heads, _, each, _ = noise_shape(planner, episodes)
    rows = episodes * each

    def layers(net: Any, rows: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
        return [((rows, w.shape[-1]), (w.shape[-1], w.shape[-2])) for w in (layer.weight for layer in net.layers)]

    assert isinstance(planner.prior, ActionModel)
    assert isinstance(planner.end, ReturnModel)
    shapes = heads * layers(planner.prior.net, episodes)  # the first step's: one row an episode
    shapes += horizon * heads * layers(planner.prior.net, rows)  # the later ones' and the end's
    shapes += horizon * heads * layers(planner.step.net, heads * rows)
    return shapes + heads * layers(planner.end.net, heads * rows)


def seconds(run: Callable[[], Any], repeats: int) -> list[float]:
    """Of each of `repeats` runs after one that is not counted."""
    np.asarray(run())
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        np.asarray(run())
        times.append(time.perf_counter() - begin)
    return times


def main() -> None:
    """Measure both in turn, so that a busy machine slows both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"episodes": 50, "samples": 100, "horizon": 4, "width": 500, "repeats": 7}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--obs", type=int, default=11, help="numbers of an observation; Hopper's unless given")
    parser.add_argument("--actions", type=int, default=3)
    asked = parser.parse_args()

    planner = fresh(asked)
    obs, begun = jnp.zeros((1, asked.episodes, asked.obs)), jnp.zeros((1, asked.episodes), bool)
    key = jax.random.key(0)

    def plan() -> Any:
        return plan_all(planner, planner.blank(asked.episodes), obs, begun, key)[0]

    shapes = products(planner, asked.episodes)
    dot = jax.jit(jnp.dot)
    arrays = {shape: jnp.ones(shape) for pair in shapes for shape in pair}

    def alone() -> Any:
        for a, b in shapes:  # earlier results may go: memory is not what is measured
            out = dot(arrays[a], arrays[b])
        return out

    times = [(seconds(plan, 1)[0], seconds(alone, 1)[0]) for _ in range(asked.repeats)]
    whole, bare = (float(np.median(column)) for column in zip(*times, strict=True))
    flops = sum(2 * a * b * c for (a, b), (_, c) in shapes)
    print(
        json.dumps(
            {
                "device": str(jax.devices()[0]),
                **{name: getattr(asked, name) for name in ("episodes", "samples", "horizon", "width")},
                "plan_seconds": round(whole, 4),
                "products_seconds": round(bare, 4),
                "ratio": round(whole / bare, 3),
                "products_gflop": round(flops / 1e9, 2),
            }
        )
    )


if __name__ == "__main__":
    main()
