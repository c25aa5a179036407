"""Which edges the current data allow, against Algorithm 1's candidates as a plain loop over random data."""

from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm

from trajstitch.data import Trajectory, from_trajectories
from trajstitch.stitching import graph as graphs
from trajstitch.stitching.edges import Plausible
from trajstitch.stitching.graph import EdgeFinder, GraphConfig, build
from trajstitch.stitching.renewed import renewed
from worlds import random_dataset

small_blocks = patch.multiple(graphs, _BLOCK=8, TOGETHER=16)  # so that small data have several


class Drift:
    """Two members that expect a step to the right, and are not sure of it."""

    def moments(self, obs):
        mean = np.asarray(obs, np.float32) + np.float32([0.3, 0])
        return np.stack([mean, mean + np.float32(0.1)]), np.full((2, *mean.shape), 0.9, np.float32)


def margin(obs, source, target, landing):
    mean, std = (np.asarray(part, np.float64)[:, 0] for part in Drift().moments(obs[[source]]))
    new, old = (norm.logpdf(obs[row], mean, std).sum(-1) for row in (landing, target))
    return new.min() - (logsumexp(old) - np.log(len(old)))


def plain_edges(data, near, steps):
    """{step: {row landed on}} of these steps (source, target), of which the current data consist."""
    here = {row for step in steps for row in step}
    edges = {}
    for source, target in steps:
        after = {y for x, y in steps if x in near[source]}
        candidates = (after | (near[target] & here)) - {target}
        edges[source, target] = {row for row in candidates if margin(data.obs, source, target, row) > 0}
    return edges


def random_case(seed, config):
    """Data, a graph with stitched pairs, and the pairs that a later iteration's trajectories consist of."""
    rng = np.random.default_rng(seed)
    data = random_dataset(seed, rng.integers(1, 7, 5), obs_dim=2)
    finder = EdgeFinder(data, config)
    graph = build(data, Drift(), config)
    stitched = rng.choice(data.row, 12), rng.integers(len(data.obs), size=12)
    new = (stitched[1] != stitched[0] + 1) | (rng.random(12) < 0.2)  # a recorded step may be made again
    graph = finder.extend(graph, stitched[0][new], stitched[1][new], Drift())
    pair = np.flatnonzero(rng.random(len(graph.source)) < rng.choice([0.4, 0.8, 1.0]))
    return data, finder, graph, pair


@small_blocks
@pytest.mark.parametrize(("metric", "nearest"), [("raw", 0), ("scaled", 3), ("raw", 100)])
def test_edges_of_the_current_data_are_those_of_the_plain_loop(metric, nearest):
    happened = Counter()
    for seed in range(8):
        data, finder, graph, pair = random_case(seed, GraphConfig(metric, 1.0, nearest))
        near = [{int(row) for row in line if row >= 0} for line in finder.neighbours(np.arange(len(data.obs)))]
        steps = [(int(graph.source[q]), int(graph.target[q])) for q in pair]
        expected = plain_edges(data, near, steps)
        now = renewed(finder, graph, pair, Drift())
        for q in range(len(graph.source)):
            part, before = (slice(g.begin[q], g.begin[q + 1]) for g in (now, graph))
            found = now.landing[part].tolist()
            step = int(graph.source[q]), int(graph.target[q])
            assert len(found) == len(set(found))
            assert set(found) == (expected[step] if q in pair else set())
            for row, by in zip(found, now.margin[part], strict=True):
                assert by == pytest.approx(margin(data.obs, *step, row), abs=1e-4)
            if q in pair:
                happened["gone"] += bool(set(graph.landing[before].tolist()) - set(found))
                happened["come"] += bool(set(found) - set(graph.landing[before].tolist()))
                happened["stays"] += bool(found)
    assert min(happened[name] for name in ("gone", "come", "stays")) >= 5


class Right(Drift):
    """Expects (7, 2) after the origin."""

    def moments(self, obs):
        mean = np.asarray(obs, np.float32) + np.float32([7, 2])
        return mean[None], np.full((1, *mean.shape), 5, np.float32)


def test_where_a_seam_lands_follows_its_source():
    """Three trajectories of three states from about the origin: rows 0 1 2, 3 4 5 and 6 7 8."""
    states = ([[0, 0], [5, 0], [9, 0]], [[0.1, 0], [3, -2], [9, -5]], [[0.2, 0], [7, 2], [9, 3]])
    data = from_trajectories(Trajectory(np.float32(s), np.zeros((2, 1)), np.zeros(2), False) for s in states)
    edges = Plausible(EdgeFinder(data, GraphConfig("raw", 0.5)), Right(), None, None)
    graph = edges.extend(edges.empty(), np.append(data.row, 3), np.append(data.row + 1, 8))

    def from_first(graph):
        return sorted(graph.landing[: graph.begin[1]].tolist())

    assert from_first(graph) == [7]  # after 6, and likelier than 1; 8 is too, but after nothing near 0
    assert from_first(edges.renew(graph, np.array([0, 1, 4, 5, 6]))) == [7, 8]  # the second is now 3 → 8
    assert from_first(edges.renew(graph, np.array([0, 1, 5, 6]))) == [8]  # 7 is there, but after 6 no more
    assert from_first(edges.renew(graph, np.array([0, 1, 2, 3]))) == []


@small_blocks
def test_many_candidates_are_scored_in_pieces():
    """The same graph, edge by edge, whether a line of candidates is broken or not."""
    data = random_dataset(0, [9, 12, 7, 15], obs_dim=2)
    config = GraphConfig("raw", 1.5, nearest=0)
    whole = build(data, Drift(), config)
    with patch.object(graphs, "_WIDE", 3):
        pieces = build(data, Drift(), config)
    assert whole.candidates == pieces.candidates > 10 * data.transitions
    assert len(whole.landing) > data.transitions
    for name in ("begin", "landing", "margin", "spread"):
        np.testing.assert_array_equal(getattr(pieces, name), getattr(whole, name))
