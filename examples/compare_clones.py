"""BC, 10%BC and TS+BC on the data inside the package, scored in the simulator, in one table.

python examples/compare_clones.py
"""

import argparse

import trajstitch as ts


def main() -> None:
    """Improve, clone three times, score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6_000, help="gradient steps per clone")
    parser.add_argument("--seeds", type=int, default=3, help="clones of each kind")
    parser.add_argument("--episodes", type=int, default=10, help="evaluation episodes per clone")
    parser.add_argument("--seed", type=int, default=0, help="random seed of everything")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; only to see that it runs")
    args = parser.parse_args()

    data, config = ts.load("demo"), ts.PRESETS["quick"]
    if args.quick:
        data, args.steps, args.seeds, args.episodes = data[:20], 200, 2, 2
        config = ts.Improve(
            iterations=1,
            dynamics=ts.DynamicsConfig(members=2, elites=2, width=32, fit=ts.Fit(steps=20)),
            inverse=ts.InverseConfig(width=32, fit=ts.Fit(steps=20)),
            reward=ts.RewardConfig(width=32, fit=ts.Fit(steps=20)),
            value=ts.ValueConfig(width=32, fit=ts.Fit(steps=20)),
        )
    improved = ts.improve(data, config, seed=args.seed).dataset
    print(f"mean return of the data: {data.returns.mean():.0f} → {improved.returns.mean():.0f}")
    print(f"{'':6} {'normalised':>10}   95% interval")
    for name, method, source in (
        ("BC", "bc", data),
        ("10%BC", "percent-bc", data),
        ("TS+BC", "bc", improved),
    ):
        clones = ts.train(method, source, seed=args.seed, seeds=args.seeds, steps=args.steps)
        scores = ts.evaluate(clones, str(data.info["env_id"]), episodes=args.episodes, seed=10_000)
        low, high = scores.summary()["normalised"]["interval95"]
        print(f"{name:6} {scores.normalised:10.1f}   {low:.1f} to {high:.1f}")


if __name__ == "__main__":
    main()
