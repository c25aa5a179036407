"""Reference loop: stitching one state at a time in NumPy, like the published code; the baseline of `bench speed`.

For each state it queries a KD-tree twice, runs the ensemble members one after another, computes the values of
plausible states, and the action and reward of a stitch. Nothing is compiled or dispatched to a device, so it is
fast for such a loop; and it chooses the same stitches.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.special import logsumexp

from trajstitch.data import Dataset, Float, Int
from trajstitch.models.dynamics import Dynamics
from trajstitch.models.inverse import Regression
from trajstitch.models.reward import Mean
from trajstitch.models.value import Value
from trajstitch.stitching.graph import EdgeFinder
from trajstitch.training.networks import MLP, pick


def plain_loop(
    data: Dataset, search: EdgeFinder, models: Mapping[str, Any], states: int, seed: int
) -> tuple[dict[str, float], Int, Int]:
    """Run the plain loop over whole trajectories; return states per second, of its graph part and of all of it.

    Also return the row that each state was stitched to [n], -1: none, and the states' rows [n].
    """
    assert search.near is not None
    points = data.obs / search.spread
    tree, count = cKDTree(points), search.near.shape[1]
    row = _whole_trajectories(data, states, seed)
    member, value = members(models["dynamics"]), models["value"]
    ends = set(data.last_row[data.terminal].tolist())
    ranks = np.arange(1, count + 1)
    chosen = np.full(len(row), -1)
    in_graph = 0.0
    begin = time.perf_counter()
    for n, s in enumerate(row):
        start = time.perf_counter()
        balls = [tree.query(points[q], ranks, distance_upper_bound=search.epsilon)[1] for q in (s, s + 1)]
        near_source, near_target = (ball[ball < len(points)] for ball in balls)
        after = search.successor[near_source]
        near = np.setdiff1d(np.concatenate([after[after >= 0], near_target]), [s + 1])
        good = near[plausible(data.obs, s, near, member)]
        in_graph += time.perf_counter() - start
        if len(good):
            values = _value(value, data.obs[np.append(good, s + 1)])
            values[[row in ends for row in (*good.tolist(), s + 1)]] = 0
            if values[:-1].max() > values[-1]:
                chosen[n] = good[values[:-1].argmax()]
                _make_step(models["inverse"], models["reward"], data.obs[s], data.obs[chosen[n]])
    seconds = time.perf_counter() - begin
    return {"all": len(row) / seconds, "graph": len(row) / in_graph}, chosen, row


def _whole_trajectories(data: Dataset, states: int, seed: int) -> Int:
    """Return rows of the transitions of random trajectories, about `states` of them."""
    order = np.random.default_rng(seed).permutation(len(data))
    taken = order[: int(np.searchsorted(np.cumsum(data.length[order]), states)) + 1]
    return np.concatenate([data.row[data.start[m] : data.start[m + 1]] for m in taken])[: 2 * states]


def members(dynamics: Dynamics) -> list[Any]:
    """Return each ensemble member, with NumPy arrays."""
    many = len(dynamics.member.scale.mean)
    host = jax.tree.map(np.asarray, dynamics.member)
    return [pick(host, e) for e in range(many)]


def plausible(obs: Float, s: int, near: Int, members: list[Any]) -> NDArray[np.bool_]:
    """Return which of the rows `near` may follow state s instead of the next one."""
    goal = obs[np.append(near, s + 1)]
    density = []
    for one in members:
        mean, log_std = np.split(_forward(one.net, (obs[s] - one.scale.mean) / one.scale.std), 2)
        std = one.change.std * np.exp(np.clip(log_std, -10, 2))
        z = (goal - (obs[s] + one.change.mean + one.change.std * mean)) / std
        density.append(-0.5 * np.sum(z**2, -1) - np.log(std).sum())
    usual = logsumexp([each[-1] for each in density]) - np.log(len(members))
    return np.min(density, 0)[:-1] > usual


def _value(value: Value, obs: Float) -> Float:
    model = jax.tree.map(np.asarray, value)
    x = (obs - model.scale.mean) / model.scale.std
    twins = [_forward(pick(model.twins, k), x)[:, 0] for k in range(2)]
    return model.unit * np.minimum(*twins)


def _make_step(inverse: Regression, reward: Mean, obs: Float, landing: Float) -> tuple[Float, Float]:
    """Compute action and reward of one stitch."""
    i, r = (jax.tree.map(np.asarray, model) for model in (inverse, reward))
    squashed = np.tanh(_forward(i.net, _scaled((obs, i.reach.scale), (landing - obs, i.reach.change))))
    action = i.range.low + (i.range.high - i.range.low) * (squashed + 1) / 2
    inputs = _scaled((obs, r.given.scale), (action, r.given.action), (landing - obs, r.given.change))
    return action, r.given.reward.mean + r.given.reward.std * _forward(r.net, inputs)


def _scaled(*parts: tuple[Float, Any]) -> Float:
    return np.concatenate([(x - scale.mean) / scale.std for x, scale in parts])


def _forward(net: MLP, x: Float) -> Float:
    for layer in net.layers[:-1]:
        x = np.maximum(x @ layer.weight.T + layer.bias, 0)
    return x @ net.layers[-1].weight.T + net.layers[-1].bias
