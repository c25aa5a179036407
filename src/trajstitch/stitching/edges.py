"""Edges: the two kinds of steps that planners choose from, and the models that make steps of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Float, Int
from trajstitch.progress import Tell, silent
from trajstitch.stitching.graph import DynamicsModel, EdgeFinder, Graph
from trajstitch.stitching.model_calls import InverseModel, RewardModel, actions_of, rewards_of
from trajstitch.stitching.optimal import Neighbourhood
from trajstitch.stitching.reach import Aim, ReachFinder
from trajstitch.stitching.renewed import renewed


class Steps(NamedTuple):
    """New steps, made of edges."""

    action: Float  # [X, A]
    reward: Float  # [X]
    error: Float  # [X] landing errors, nan where no model was asked
    margin: Float  # [X] of the edge, as what follows
    spread: Float  # [X]


class Edges(Protocol):
    """Finds edges, and makes steps of them."""

    def empty(self) -> Graph:
        """Return a graph without pairs."""

    def extend(self, graph: Graph, source: Int, target: Int, tell: Tell = silent) -> Graph:
        """Return the graph with these pairs appended."""

    def renew(self, graph: Graph, pair: Int) -> Graph:
        """Return the graph with the edges that the current data allow, whose pairs are these, each once."""

    def make(self, graph: Graph, pair: Int, edge: Int, key: Any) -> Steps:
        """Make the steps of these edges, given the pair of each."""


@dataclass(frozen=True, eq=False)
class Plausible:
    """Edges by the paper's density test; an inverse and a reward model make their steps."""

    finder: EdgeFinder
    dynamics: DynamicsModel
    inverse: InverseModel
    reward: RewardModel

    def empty(self) -> Graph:
        """See `Edges.empty`."""
        return self.finder.empty()

    def extend(self, graph: Graph, source: Int, target: Int, tell: Tell = silent) -> Graph:
        """See `Edges.extend`."""
        return self.finder.extend(graph, source, target, self.dynamics, tell)

    def renew(self, graph: Graph, pair: Int) -> Graph:
        """See `Edges.renew`."""
        return renewed(self.finder, graph, pair, self.dynamics)

    def make(self, graph: Graph, pair: Int, edge: Int, key: Any) -> Steps:
        """See `Edges.make`."""
        data = self.finder.data
        obs, next_obs = data.obs[graph.source[pair]], data.obs[graph.landing[edge]]
        action_key, reward_key = jax.random.split(key)
        action = actions_of(self.inverse, obs, next_obs, data.action_dim, action_key)
        reward = rewards_of(self.reward, obs, action, next_obs, reward_key)
        unknown = np.full(len(reward), np.nan, np.float32)
        return Steps(action, reward, unknown, graph.margin[edge], graph.spread[edge])


@dataclass(frozen=True, eq=False)
class Reachable:
    """Edges by reachability; the world model that finds them also makes their steps."""

    finder: ReachFinder

    def empty(self) -> Graph:
        """See `Edges.empty`."""
        return self.finder.empty()

    def extend(self, graph: Graph, source: Int, target: Int, tell: Tell = silent) -> Graph:
        """See `Edges.extend`."""
        return self.finder.extend(graph, source, target, tell)

    def promise(self, graph: Graph, source: Int, target: Int, tell: Tell = silent) -> Graph:
        """Return the graph with these pairs appended, and all edges that are promised; none is tried."""
        return self.finder.extend(graph, source, target, tell, tried=False)

    def renew(self, graph: Graph, pair: Int) -> Graph:
        """See `Edges.renew`; which states are reachable does not hang on what follows what."""
        return graph

    def make(self, graph: Graph, pair: Int, edge: Int, key: Any) -> Steps:
        """See `Edges.make`."""
        aim = self.finder.aim(graph.source[pair], graph.landing[edge])
        return Steps(aim.action, aim.reward, aim.error, graph.margin[edge], graph.spread[edge])

    @property
    def neighbourhood(self) -> Neighbourhood:
        """What the optimal planner asks of the space around states."""
        return Neighbourhood(self.slopes, self.means)

    def means(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the mean of the values of the nine landing states nearest to each state [rows]."""
        near = self.finder.near[:, :9]
        known = near >= 0
        total: NDArray[np.float64] = np.where(known, value[near], 0).sum(1)
        return np.where(known.any(1), total / np.maximum(known.sum(1), 1), value)

    def slopes(self, value: NDArray[np.float64]) -> NDArray[np.float32]:
        """Return the steepest change of values per typical step around each landing state, 0 elsewhere [rows].

        Eight neighbours need not lie where the value falls. So a rise counts like a fall, which lies opposite, and
        no slope is below the median.
        """
        near, distance = self.finder.around
        change = np.abs(value[self.finder.net][:, None] - value[near]) / np.maximum(distance, 1e-3)
        steepest = change.max(1, initial=0)
        slope = np.zeros(len(value), np.float32)
        slope[self.finder.net] = np.maximum(steepest, np.median(steepest))
        return slope


class Trials:
    """What the ensemble says of a graph's promised edges, those that were tried."""

    def __init__(self, finder: ReachFinder, graph: Graph) -> None:
        self.finder, self.graph = finder, graph
        none = np.zeros(0, np.int64)
        self._edges, self._aims = [none], [finder.aim(none, none)]

    def attempt(self, pair: Int, edge: Int) -> tuple[Float, Float]:
        """Try these edges; see `optimal.Attempt`."""
        aim = self.finder.aim(self.graph.source[pair], self.graph.landing[edge])
        self._edges.append(edge)
        self._aims.append(aim)
        good = aim.error < self.finder.tolerance
        return np.where(good, aim.reward, -np.inf), np.where(good, aim.error, 0)

    def make(self, graph: Graph, pair: Int, edge: Int) -> Steps:
        """Make the steps of edges that were tried; see `Edges.make`."""
        tried = np.concatenate(self._edges)
        order = np.argsort(tried)
        place = order[np.searchsorted(tried, edge, sorter=order)]
        aim = Aim(*(np.concatenate(column)[place] for column in zip(*self._aims, strict=True)))
        return Steps(aim.action, aim.reward, aim.error, self.finder.tolerance - aim.error, aim.spread)
