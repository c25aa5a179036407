"""Plain: stitching one state at a time, in NumPy, as the published code does it; what `bench speed` compares with.

For each state two queries of a KD-tree, the members of the ensemble one after another, the values of what is
plausible, and action and reward of a stitch. Nothing is compiled and nothing dispatched, so for such a loop it is
fast; and it chooses the same stitches.
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
from trajstitch.dynamics import Dynamics
from trajstitch.graph import Search
from trajstitch.inverse import Regression
from trajstitch.nets import MLP
from trajstitch.reward import Mean
from trajstitch.value import Value


def plain_loop(
    data: Dataset, search: Search, models: Mapping[str, Any], states: int, seed: int
) -> tuple[dict[str, float], Int, Int]:
    """Rates of the plain loop over whole trajectories: of its graph part alone, and of all of it.

    Also which row [n] each of its states was stitched to, -1: none, and the states' rows.
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
        beside, around = (ball[ball < len(points)] for ball in balls)
        after = search.successor[beside]
        near = np.setdiff1d(np.concatenate([after[after >= 0], around]), [s + 1])
        good = near[plausible(data.obs, s, near, member)]
        in_graph += time.perf_counter() - start
        if len(good):
            worth = _value(value, data.obs[np.append(good, s + 1)])
            worth[[row in ends for row in (*good.tolist(), s + 1)]] = 0
            if worth[:-1].max() > worth[-1]:
                chosen[n] = good[worth[:-1].argmax()]
                _make_step(models["inverse"], models["reward"], data.obs[s], data.obs[chosen[n]])
    seconds = time.perf_counter() - begin
    return {"all": len(row) / seconds, "graph": len(row) / in_graph}, chosen, row


def _whole_trajectories(data: Dataset, states: int, seed: int) -> Int:
    """Rows of the transitions of random trajectories, about so many."""
    order = np.random.default_rng(seed).permutation(len(data))
    taken = order[: int(np.searchsorted(np.cumsum(data.length[order]), states)) + 1]
    return np.concatenate([data.row[data.start[m] : data.start[m + 1]] for m in taken])[: 2 * states]


def members(dynamics: Dynamics) -> list[Any]:
    """Each member, its arrays NumPy's."""
    many = len(dynamics.member.scale.mean)
    host = jax.tree.map(np.asarray, dynamics.member)
    return [jax.tree.map(lambda leaf, e=e: leaf[e], host) for e in range(many)]


def plausible(obs: Float, s: int, near: Int, members: list[Any]) -> NDArray[np.bool_]:
    """Which of these rows may follow state s instead of the next one."""
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
    twins = [_forward(jax.tree.map(lambda leaf, k=k: leaf[k], model.twins), x)[:, 0] for k in range(2)]
    return model.unit * np.minimum(*twins)


def _make_step(inverse: Regression, reward: Mean, obs: Float, landing: Float) -> tuple[Float, Float]:
    """Action and reward of one stitch."""
    i, r = (jax.tree.map(np.asarray, model) for model in (inverse, reward))
    squashed = np.tanh(_forward(i.net, _scaled((obs, i.reach.scale), (landing - obs, i.reach.change))))
    action = i.range.low + (i.range.high - i.range.low) * (squashed + 1) / 2
    given = _scaled((obs, r.given.scale), (action, r.given.action), (landing - obs, r.given.change))
    return action, r.given.reward.mean + r.given.reward.std * _forward(r.net, given)


def _scaled(*parts: tuple[Float, Any]) -> Float:
    return np.concatenate([(x - scale.mean) / scale.std for x, scale in parts])


def _forward(net: MLP, x: Float) -> Float:
    for layer in net.layers[:-1]:
        x = np.maximum(x @ layer.weight.T + layer.bias, 0)
    return x @ net.layers[-1].weight.T + net.layers[-1].bias
