"""Renewed: the edges that the *current* data allow, from the second iteration on (paper, Algorithm 1, line 7).

A candidate of a pair (s, s') is a state of the current data that lies near s', or that follows, in the current
data, a state near s. So where trajectories were replaced,

    an edge goes     whose landing occurs no more, or is far from s' and follows no state near s any more,
    an edge comes    to where a seam from a state near s lands, if that is plausible.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trajstitch.data import Int
from trajstitch.stitching.graph import DynamicsModel, EdgeFinder, Graph
from trajstitch.stitching.incoming import places


def renewed(finder: EdgeFinder, graph: Graph, pair: Int, dynamics: DynamicsModel) -> Graph:
    """Return the graph with the edges of the current data.

    These are its pairs [P], each once; all other pairs have no edges.
    """
    rows = len(finder.data.obs)
    owner, edge = _still_there(finder, graph, pair)
    added, scored = _by_seams(finder, graph, pair, dynamics)
    new = ~np.isin(added[0] * rows + added[1], owner * rows + graph.landing[edge])
    kept = owner, graph.landing[edge], graph.margin[edge], graph.spread[edge]
    columns = [np.concatenate([old, more[new]]) for old, more in zip(kept, added, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    landing, margin, spread = (column[order] for column in columns[1:])
    begin = np.concatenate([[0], np.cumsum(np.bincount(columns[0], minlength=len(graph.source)))])
    return replace(
        graph,
        begin=begin,
        landing=landing,
        margin=margin,
        spread=spread,
        candidates=graph.candidates + scored,
    )


def _still_there(finder: EdgeFinder, graph: Graph, pair: Int) -> tuple[Int, Int]:
    """Return the edges of these pairs whose landings are still candidates, as owner and edge."""
    source, target = graph.source[pair], graph.target[pair]
    present = np.zeros(len(finder.data.obs), bool)
    present[source] = present[target] = True
    edge = places(graph.begin, pair)
    owner = np.repeat(pair, np.diff(graph.begin)[pair])
    here = present[graph.landing[edge]]
    owner, edge = owner[here], edge[here]
    landing = graph.landing[edge]
    allowed = finder.sees(graph.target[owner], landing)
    far = np.flatnonzero(~allowed)
    follows = _by_row(target, len(present))
    before = source[follows.entry[places(follows.begin, landing[far])]]
    asked = np.repeat(far, np.diff(follows.begin)[landing[far]])
    allowed[asked[finder.sees(graph.source[owner[asked]], before)]] = True
    return owner[allowed], edge[allowed]


def _by_seams(
    finder: EdgeFinder, graph: Graph, pair: Int, dynamics: DynamicsModel
) -> tuple[list[NDArray[Any]], int]:
    """Return the plausible edges of these pairs to where seams land that leave near their sources."""
    source, target = graph.source[pair], graph.target[pair]
    seam = np.flatnonzero(target != source + 1)
    leaves = _by_row(source[seam], len(finder.data.obs) + 1)  # one row more, for the padding
    near = np.flatnonzero(finder.seers(source[seam])[source])
    goal = target[near]

    def candidates(part: slice) -> NDArray[np.int32]:
        around = finder.neighbours(source[near[part]]).astype(np.int64)
        many = np.diff(leaves.begin)[around]
        line, column = np.nonzero(many)
        landing = target[seam[leaves.entry[places(leaves.begin, around[line, column])]]]
        line = np.repeat(line, many[line, column])
        other = landing != goal[part][line]
        return _packed(line[other], landing[other], len(around))

    found, scored = finder.score(source[near], goal, candidates, dynamics)
    none = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32), np.zeros(0, np.float32))
    number, *columns = (np.concatenate(column) for column in zip(none, *found, strict=True))
    return [pair[near[number]], *columns], scored


class ByRow(NamedTuple):
    """Entries by a row number of theirs: those of row r are entry[begin[r]] … entry[begin[r+1]-1]."""

    begin: Int  # [rows + 1]
    entry: Int


def _by_row(row: Int, rows: int) -> ByRow:
    begin = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))])
    return ByRow(begin, np.argsort(row, kind="stable"))


def _packed(line: Int, row: Int, lines: int) -> NDArray[np.int32]:
    """Return the rows of each line [lines, K], each once, padded with -1."""
    order = np.lexsort((row, line))
    line, row = line[order], row[order]
    first = np.ones(len(line), bool)
    first[1:] = (np.diff(line) > 0) | (np.diff(row) > 0)
    line, row = line[first], row[first]
    count = np.bincount(line, minlength=lines)
    packed = np.full((lines, max(1, int(count.max(initial=0)))), -1, np.int32)
    packed[line, np.arange(len(line)) - np.repeat(np.cumsum(count) - count, count)] = row
    return packed
