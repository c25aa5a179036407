"""Weights for another learner: scikit-learn clones the data inside the package as they are, and by their weights.

pip install scikit-learn
python examples/clone_elsewhere.py
"""

import argparse

import gymnasium
import numpy as np

import trajstitch as ts

try:
    from sklearn.neural_network import MLPRegressor
except ImportError:
    raise SystemExit("this example needs scikit-learn; run pip install scikit-learn") from None


def clone(data: ts.Dataset, weight: np.ndarray, rounds: int, seed: int):
    """Fit a network of scikit-learn to rows that are drawn by weight, anew in each round."""
    rng, chance = np.random.default_rng(seed), weight / weight.sum()
    obs = data.obs[data.row]  # the state of each step; data.obs also has the last states, without an action
    mean, std = obs.mean(0), obs.std(0)
    network = MLPRegressor(hidden_layer_sizes=(128, 128), random_state=seed)
    for _ in range(rounds):
        rows = rng.choice(len(chance), len(chance), p=chance)
        network.partial_fit((obs[rows] - mean) / std, data.action[rows])
    return lambda seen: network.predict((seen[None] - mean) / std)[0]


def mean_return(policy, env_id: str, episodes: int) -> float:
    """Play episodes in Gymnasium's simulator."""
    env, total = gymnasium.make(env_id), 0.0
    for episode in range(episodes):
        (obs, _), over = env.reset(seed=10_000 + episode), False
        while not over:
            obs, reward, ended, cut, _ = env.step(np.clip(policy(obs), -1, 1))
            total, over = total + float(reward), ended or cut
    return total / episodes


def main() -> None:
    """Weigh, clone twice, score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="clones of each kind")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; only to see that it runs")
    args = parser.parse_args()

    data, config, rounds, episodes = ts.load("demo"), ts.WEIGH_PRESETS["quick"], 30, 10
    if args.quick:
        data, rounds, episodes, args.seeds = data[:20], 1, 1, 1
        config = ts.Weigh(members=2, width=8, depth=1, fit=ts.Fit(steps=20, batch=32))
    # Minutes on two cores; a second run with the same settings finds the critics in this folder.
    weight = ts.weigh(data, config, out="runs/clone_elsewhere", overwrite=True).weight
    print(f"the weights are worth {1 / np.mean(weight**2):.0%} of the steps")
    for name, chosen in (("all steps alike", np.ones(len(weight))), ("by weight", weight)):
        clones = [clone(data, chosen, rounds, seed) for seed in range(args.seeds)]
        returns = [mean_return(policy, str(data.info["env_id"]), episodes) for policy in clones]
        print(f"{name:16} mean return {np.mean(returns):5.0f}; of each clone:", *np.round(returns).astype(int))


if __name__ == "__main__":
    main()
