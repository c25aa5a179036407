"""Held-out error of world models with different activations, depths, widths and learning rates.

    python -m benchmarks.world_model_sizes halfcheetah-medium.traj relu,3,200,3e-4 silu,4,200,1e-3 \\
        --json results/world_model_sizes.json

A network is given as activation,layers,width,rate. One member of each is trained for the same number of steps. Its
loss is -log p of the change of state and the reward, both divided by their std, without the constant. Its error is
the distance between predicted and real change, in raw units.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from trajstitch.formats import load
from trajstitch.models.dynamics import DynamicsConfig
from trajstitch.models.world_model import split_steps, train_members
from trajstitch.storage.atomic import write_json
from trajstitch.training.loop import Fit
from trajstitch.training.networks import pick


def main() -> None:
    """Train and measure each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="Data set to train on.")
    parser.add_argument("networks", nargs="+", help="Networks as activation,layers,width,rate.")
    parser.add_argument("--steps", type=int, default=20_000, help="Gradient steps per network.")
    parser.add_argument("--json", type=Path, help="File to write the results to.")
    args = parser.parse_args()
    data = load(args.data)
    _, held_out = split_steps(data, seed=0)
    results: list[dict[str, Any]] = []
    for network in args.networks:
        activation, depth, width, rate = network.split(",")
        config = DynamicsConfig(
            members=1,
            elites=1,
            width=int(width),
            depth=int(depth),
            activation=activation,
            fit=Fit(args.steps, 256, float(rate)),
        )
        begin = time.monotonic()
        member, history = train_members(data, config, seed=0)
        seconds = time.monotonic() - begin
        mean, _ = jax.jit(jax.vmap(pick(member, 0)))(held_out["given"])
        error = np.linalg.norm(np.asarray(mean) - held_out["change"], axis=1)
        results.append(
            {
                "network": network,
                "held_out_loss": [round(losses[0], 2) for losses in history.held_out],
                "error_mean": round(float(error.mean()), 3),
                "error_median": round(float(np.median(error)), 3),
                "seconds": round(seconds, 1),
            }
        )
        last = results[-1]
        print(
            network,
            last["held_out_loss"][-1],
            last["error_mean"],
            last["error_median"],
            last["seconds"],
            flush=True,
        )
    if args.json:
        about = {"data": Path(args.data).name, "fingerprint": data.fingerprint, "steps": args.steps}
        write_json(args.json, {**about, "networks": results})


if __name__ == "__main__":
    main()
