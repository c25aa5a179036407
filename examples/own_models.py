"""Stitching with models of your own: here everything about a cart is known, so nothing is trained.

python examples/own_models.py
"""

import argparse

import numpy as np

import trajstitch as ts


class Cart:
    """All four models in one object; each needs one method. All numbers are in the units of the data."""

    def moments(self, obs):
        """Dynamics: mean and std [E, B, S] of the next state; here of two members, who agree."""
        return np.stack([obs, obs]), np.full((2, *obs.shape), 0.2)

    def actions(self, obs, next_obs, key):
        """Inverse: the action [B, A] from one state to the next."""
        return np.clip(3 * (next_obs - obs), -1, 1)

    def rewards(self, obs, action, next_obs, key):
        """Reward [B] of a step: the further right it lands, the more."""
        return np.exp(next_obs[:, 0])

    def value(self, obs):
        """Value [B] of a state; only its order matters."""
        return obs[:, 0]


def main() -> None:
    """Random walks, improved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=400, help="random walks to start from")
    parser.add_argument("--quick", action="store_true", help="40 walks only")
    args = parser.parse_args()

    cart, rng, many = Cart(), np.random.default_rng(0), 40 if args.quick else args.episodes
    action = rng.uniform(-1, 1, (many, 20, 2))
    place = np.cumsum(np.concatenate([rng.normal(0, 0.1, (many, 1, 2)), action / 3], axis=1), axis=1)
    data = ts.from_trajectories(
        ts.Trajectory(obs=o, action=a, reward=np.exp(o[1:, 0]), terminal=False)
        for o, a in zip(place, action, strict=True)
    )
    models = ts.Models(dynamics=cart, inverse=cart, reward=cart, value=cart)
    result = ts.improve(data, models=models)
    print(f"mean return {data.returns.mean():.1f} → {result.dataset.returns.mean():.1f}")
    print(f"{result.seams.stitched.mean():.1%} of the steps are stitched, in {len(result.history)} iterations")


if __name__ == "__main__":
    main()
