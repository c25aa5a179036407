"""The tree and boxes against all distances by definition; the way of a GPU, which works on a CPU too, likewise."""

from unittest.mock import patch

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trajstitch.blocks import in_process
from trajstitch.stitching.neighbours import gpu_tiles as tiles
from trajstitch.stitching.neighbours import kdtree as neighbours
from trajstitch.stitching.neighbours.gpu_tiles import make_tiles, search_tiles
from trajstitch.stitching.neighbours.kdtree import Tree, all_nearest, nearest_to


def plain(points, count, radius, others=None):
    """Rows nearest to each point (or to each of the others) and within the radius, nearest first."""
    others = points if others is None else others
    distance = np.sqrt(((others[:, None] - points[None]) ** 2).sum(-1))
    order = np.argsort(distance, axis=1, kind="stable")[:, :count]
    return np.where(np.take_along_axis(distance, order, 1) <= radius, order, -1)


def by_tree(points, count, radius, others=None):
    if others is None:
        return all_nearest(Tree(points), count, radius)
    return nearest_to(Tree(points), others, count, radius)


def by_distances(points, count, radius, others=None):
    """As on a GPU, in tiles so small that there are several."""
    with (
        patch.object(jax, "default_backend", lambda: "gpu"),
        patch.object(neighbours, "_DENSE", range(1, 10**6)),
        patch.object(tiles, "TILE", 128),
        patch.object(tiles, "ROWS", 32),
    ):
        return by_tree(points, count, radius, others)


def by_boxes(points, count, radius, others=None):
    """As on a CPU where neighbours are far apart, asked for in several parts."""
    with (
        patch.object(jax, "default_backend", lambda: "cpu"),
        patch.object(neighbours, "_MANY", 1),
        patch.object(neighbours, "_WIDE", -1),
        patch.object(neighbours, "_QUERIES", 256),
        patch.object(Tree, "nearest", lambda *_: pytest.fail("the tree was asked")),
    ):
        return by_tree(points, count, radius, others)


@st.composite
def clouds(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**20)))
    rows, dims = draw(st.integers(3, 300)), draw(st.integers(1, 6))
    points = rng.normal(size=(rows, dims)) * draw(st.sampled_from([0.01, 1, 100])) + draw(st.sampled_from([0, 50]))
    count = draw(st.integers(1, min(rows, 20)))
    return points, count, float(points.std() * draw(st.floats(0.3, 3)))


@settings(max_examples=60, deadline=None)
@given(clouds())
def test_all_ways_find_the_nearest(cloud):
    points, count, radius = cloud
    expected = plain(points, count, radius)
    np.testing.assert_array_equal(all_nearest(Tree(points), count, radius), expected)
    np.testing.assert_array_equal(by_boxes(points, count, radius), expected)
    found = by_distances(points, count, radius)
    for mine, theirs in zip(found, expected, strict=True):  # equal but where distances are equal in float32
        differing = set(mine) ^ set(theirs)
        assert len(differing) <= 2
        assert (mine[:1] == theirs[:1]).all()


@settings(max_examples=20, deadline=None)
@given(clouds(), st.integers(1, 300), st.sampled_from([1.0, np.inf]), st.integers(0, 2**20))
def test_all_ways_find_the_nearest_to_other_points(cloud, many, wider, seed):
    """Fewer or more of them than the tree's own; also without a radius."""
    points, count, radius = cloud
    rng = np.random.default_rng(seed)
    others = points[rng.integers(0, len(points), many)] + 0.1 * radius * rng.uniform(
        -1, 1, (many, points.shape[1])
    )
    expected = plain(points, count, wider * radius, others)
    np.testing.assert_array_equal(by_tree(points, count, wider * radius, others), expected)
    np.testing.assert_array_equal(by_boxes(points, count, wider * radius, others), expected)
    found = by_distances(points, count, wider * radius, others)
    assert found.shape == expected.shape
    for mine, theirs in zip(found, expected, strict=True):  # equal but where distances are equal in float32
        assert len(set(mine) ^ set(theirs)) <= 2
        assert (mine[:1] == theirs[:1]).all()


@pytest.mark.parametrize(
    "search",
    [
        by_tree,
        by_distances,
        by_boxes,
    ],
)
def test_far_from_everything_nothing_is_found(search):
    points = np.random.default_rng(0).normal(size=(200, 3))
    assert (search(points, 4, 1.0, points[:50] + 30) == -1).all()
    both = np.concatenate([points[:150], points + 30])
    np.testing.assert_array_equal(search(points, 4, 1.0, both), plain(points, 4, 1.0, both))


@pytest.mark.parametrize("dims", [11, 17])
def test_many_points_in_many_dimensions(dims):
    """Coordinates of very different spread, as states have; the same sets, hardly ever in uncertainty."""
    points = np.random.default_rng(dims).normal(size=(3000, dims)) * np.geomspace(3, 0.2, dims)
    radius = 0.27 * dims
    tree = all_nearest(Tree(points), 49, radius)
    assert 0.2 < (tree >= 0).mean() < 1  # some have all 49 within the radius, some have not
    np.testing.assert_array_equal(by_boxes(points, 49, radius), tree)
    found = by_distances(points, 49, radius)
    assert np.mean(np.sort(tree, 1) == np.sort(found, 1)) > 0.9999


def test_boxes_are_for_points_whose_neighbours_are_far_apart():
    """In one dimension a tree leaves nearly everything out, in twenty nearly nothing."""
    rng = np.random.default_rng(0)
    asked = []
    with (
        patch.object(jax, "default_backend", lambda: "cpu"),
        patch.object(neighbours, "_MANY", 20_000),
        patch.object(neighbours, "by_boxes", lambda *_, **__: asked.append(True) or 7),
    ):
        all_nearest(Tree(rng.normal(size=(20_000, 1))), 5, 1.0)
        assert not asked
        all_nearest(Tree(rng.normal(size=(20_000, 20))), 5, 10.0)
        assert asked


def test_what_rounding_leaves_in_doubt_is_asked_of_the_tree():
    """The points of a sphere are equally far from its centre, too many for all their groups to be looked into."""
    points = np.random.default_rng(0).normal(size=(2000, 12))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    points[0] = 0
    tree = Tree(points)
    with patch.object(tiles, "TILE", 128):
        query = np.float32(tree.points[tree.place[:2]])
        _, certain = search_tiles(make_tiles(tree.points), query, 5, 10.0)
    assert not certain[0]
    assert certain[1]
    asked = []

    def nearest(self, query, *rest):
        asked.extend(int(np.abs(tree.points - one).sum(1).argmin()) for one in query)
        return np.full((len(query), 5), 7)

    with patch.object(Tree, "nearest", nearest):
        found = by_distances(points, 5, 10.0)
    asked = tree.order[asked]
    assert 0 in asked
    assert len(asked) < 200
    assert (found[asked] == 7).all()


def test_a_ball_is_everything_within_the_radius():
    points = np.random.default_rng(1).normal(size=(200, 3))
    balls = Tree(points).within(np.arange(200), 0.8)
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    for row, ball in enumerate(balls):
        assert ball[ball >= 0].tolist() == np.flatnonzero(distance[row] <= 0.8).tolist()


@pytest.mark.parametrize(("backend", "here"), [("cpu", True), ("gpu", True), ("cpu", False), ("gpu", False)])
def test_tasks_elsewhere_are_handed_a_finished_tree_and_use_no_gpu(backend, here, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(neighbours, "_DENSE", range(1000))
    handed = []

    def mapper(work, shared, rows, block):
        find, _ = shared
        handed.append(find.func.__name__)
        assert here or "_tree" in vars(find.func.__self__)
        return in_process(work, shared, rows, block)

    if here:
        monkeypatch.setattr(neighbours, "in_process", mapper)
    points = np.random.default_rng(0).normal(size=(100, 3))
    found = all_nearest(Tree(points), 3, 10.0, mapper=mapper)
    assert (found[:, 0] == np.arange(100)).all()
    assert handed == ["by_distances" if here and backend == "gpu" else "nearest"]
