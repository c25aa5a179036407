"""Incoming: the steps of a graph by the row that they lead to, for planners that follow changes upstream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from trajstitch.data import Int
from trajstitch.stitching.graph import Graph


@dataclass(frozen=True, eq=False)
class Incoming:
    """Steps that lead to row r: edges begin[r] … begin[r+1]-1 of the lists, and recorded ones likewise."""

    begin: NDArray[Any]  # [rows + 1]
    pair: NDArray[Any]  # [X] the pair whose edge it is
    edge: NDArray[Any]  # [X]
    recorded_begin: NDArray[Any]  # [rows + 1]
    recorded_pair: NDArray[Any]  # [Q]

    def edges(self, row: Int) -> tuple[Int, Int]:
        """Return pair and edge of all edges that lead to one of these rows."""
        place = places(self.begin, row)
        return self.pair[place].astype(np.int64), self.edge[place].astype(np.int64)

    def recorded(self, row: Int) -> Int:
        """Return the pairs whose recorded step leads to one of these rows."""
        return self.recorded_pair[places(self.recorded_begin, row)].astype(np.int64)


def incoming_of(graph: Graph, rows: int) -> Incoming:
    """Return the steps of the graph by where they lead."""
    edge = _by_column(graph.begin, graph.landing, rows)
    recorded = _by_column(np.arange(len(graph.source) + 1), graph.target, rows)
    return Incoming(edge.indptr, edge.indices, edge.data, recorded.indptr, recorded.indices)


def _by_column(begin: Int, column: NDArray[Any], columns: int) -> Any:
    """Sort the entries of a sparse matrix by column, by counting; its values are their places before."""
    small = max(len(column), columns) < np.iinfo(np.int32).max
    dtype = np.int32 if small else np.int64
    place = np.arange(len(column), dtype=dtype)
    matrix = csr_array(
        (place, column.astype(dtype, copy=False), begin.astype(dtype)), shape=(len(begin) - 1, columns)
    )
    return matrix.tocsc()


def places(begin: NDArray[Any], row: Int) -> Int:
    """Return begin[r] … begin[r+1]-1 of all these rows, one after the other."""
    first = begin[row].astype(np.int64)
    count = begin[row + 1] - first
    before = np.cumsum(count) - count
    return np.repeat(first - before, count) + np.arange(count.sum())
