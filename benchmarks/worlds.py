"""What the shape of a world's networks and their rate are worth: one member each, the same steps, held-out data.

    python benchmarks/worlds.py halfcheetah-medium.traj relu,3,200,3e-4 silu,4,200,1e-3 --json results/worlds.json

A network is activation,layers,width,rate. Its loss is -log p of the change of state and reward, in units of their
std and without the constant; its error the distance between predicted and real change, raw units.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from trajstitch.dynamics import DynamicsConfig
from trajstitch.files import write_json
from trajstitch.fit import Fit
from trajstitch.formats import load
from trajstitch.world import split_steps, train_members


def main() -> None:
    """Train and judge each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("networks", nargs="+")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    data = load(asked.data)
    _, rows = split_steps(data, seed=0)
    results: list[dict[str, Any]] = []
    for words in asked.networks:
        activation, depth, width, rate = words.split(",")
        config = DynamicsConfig(
            1,
            1,
            int(width),
            int(depth),
            activation,
            Fit(asked.steps, 256, float(rate)),  # type: ignore[arg-type]
        )
        begin = time.monotonic()
        member, history = train_members(data, config, seed=0)
        seconds = time.monotonic() - begin
        mean, _ = jax.jit(jax.vmap(jax.tree.map(lambda leaf: leaf[0], member)))(rows["given"])
        error = np.linalg.norm(np.asarray(mean) - rows["change"], axis=1)
        results.append(
            {
                "network": words,
                "held_out_loss": [round(losses[0], 2) for losses in history.held_out],
                "error_mean": round(float(error.mean()), 3),
                "error_median": round(float(np.median(error)), 3),
                "seconds": round(seconds, 1),
            }
        )
        last = results[-1]
        print(
            words, last["held_out_loss"][-1], last["error_mean"], last["error_median"], last["seconds"], flush=True
        )
    if asked.json:
        about = {"data": Path(asked.data).name, "fingerprint": data.fingerprint, "steps": asked.steps}
        write_json(asked.json, {**about, "networks": results})


if __name__ == "__main__":
    main()
