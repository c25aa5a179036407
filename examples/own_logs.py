"""Your own logs, as NumPy arrays, made into a data set, improved by stitching and saved.

python examples/own_logs.py --out runs/own_logs
"""

import argparse
from pathlib import Path

import numpy as np

import trajstitch as ts


def read_logs(episodes: int, steps: int) -> list[ts.Trajectory]:
    """Put your own reader here. These logs are of a cart driven to random places; near (1.5, 0) it earns most."""
    rng = np.random.default_rng(0)
    logs = []
    for _ in range(episodes):
        goal, place = rng.uniform(-2, 2, 2), rng.normal(0, 0.1, (1, 2))
        action = np.zeros((0, 2))
        for _ in range(steps):
            action = np.append(action, np.clip(goal - place[-1:] + rng.normal(0, 0.3, (1, 2)), -1, 1), axis=0)
            place = np.append(place, place[-1:] + action[-1] / 3, axis=0)  # one more place than actions
        reward = np.exp(-np.linalg.norm(place[1:] - [1.5, 0], axis=1))
        logs.append(ts.Trajectory(obs=place, action=action, reward=reward, terminal=False))  # cut, not ended
    return logs


def main() -> None:
    """Logs to data set to improved data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/own_logs"), help="folder for the results")
    parser.add_argument("--episodes", type=int, default=60, help="number of logs")
    parser.add_argument("--quick", action="store_true", help="tiny models, seconds instead of minutes")
    args = parser.parse_args()

    data = ts.from_trajectories(read_logs(args.episodes, steps=30))
    ts.save(data, args.out / "logs.hdf5", overwrite=True)
    config = ts.PRESETS["quick"]
    if args.quick:
        config = ts.Improve(
            iterations=2,
            dynamics=ts.DynamicsConfig(members=2, elites=2, width=64, depth=2, fit=ts.Fit(steps=600)),
            inverse=ts.InverseConfig(width=64, fit=ts.Fit(steps=400)),
            reward=ts.RewardConfig(width=64, fit=ts.Fit(steps=400)),
            value=ts.ValueConfig(width=64, fit=ts.Fit(steps=1000)),
        )
    result = ts.improve(data, config, seed=0, out=args.out / "improve")  # improved.hdf5 and report.html
    print("before:", data)
    print("after: ", result.dataset)
    print(f"{result.seams.stitched.mean():.1%} of the steps are stitched; see {args.out}/improve/report.html")


if __name__ == "__main__":
    main()
