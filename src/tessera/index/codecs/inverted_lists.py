"""The inverted lists: their centroids, and the order in which a query scans them."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np

from tessera.index.codecs.codec import Float32s, Int64s

_ROWS_A_LIST = 32  # to train on
_ITERATIONS = 10
_COARSE = 128  # leading coordinates that say which list
# Rows are assigned to the nearest centroid. Which list holds the best *products* with a query is something between the
# centroid's distance and its product. By the distance to a centroid that is shrunk by a factor b, the order is that of
# the product less b / 2 of the centroid's energy; b = 1/2 does best, and is exact to undo.
_SHRUNK = np.float32(0.5)


def training_rows_for(lists: int) -> int:
    return _ROWS_A_LIST * lists


def train_list_centroids(rows: Float32s, order: Int64s, lists: int, seed: int) -> Float32s:
    """Centroids of rows N d: k-means in the leading coordinates, zero elsewhere, so the others do not count.

    order: which coordinate each of the d is. Not in coordinate 0 (that of the mean), either: its weight is for scores,
    not for distances.
    """
    centroids = np.zeros((lists, rows.shape[1]), np.float32)
    if lists > 1:
        columns = np.flatnonzero((order > 0) & (order <= _COARSE))
        clustering: Any = faiss.Clustering(len(columns), lists)
        clustering.seed, clustering.niter = seed + 1, _ITERATIONS
        clustering.min_points_per_centroid, clustering.max_points_per_centroid = 1, _ROWS_A_LIST
        clustering.train(np.ascontiguousarray(rows[:, columns]), faiss.IndexFlatL2(len(columns)))
        centroids[:, columns] = faiss.vector_to_array(clustering.centroids).reshape(lists, -1)
    return centroids


class InvertedLists:
    """Two FAISS quantisers of the same lists: one assigns rows, one orders the lists for a query."""

    def __init__(self, centroids: Float32s) -> None:
        self.rows: Any = faiss.IndexFlatL2(centroids.shape[1])
        self.rows.add(centroids)
        self.queries: Any = faiss.IndexFlatL2(centroids.shape[1])
        self.queries.add(centroids * _SHRUNK)

    @classmethod
    def of_queries(cls, quantiser: Any) -> InvertedLists:
        """Both of them, from the one for queries."""
        return cls(quantiser.reconstruct_n(0, quantiser.ntotal) / _SHRUNK)

    def __len__(self) -> int:
        return int(self.rows.ntotal)

    def ranks(self, query: Float32s, rows: Float32s) -> Int64s:
        """How many lists a query 1 d scans before those of rows N d: N."""
        ranks = np.empty(len(self), np.int64)
        ranks[self.queries.search(query, len(self))[1][0]] = np.arange(len(self))
        theirs: Int64s = ranks[self.rows.assign(rows, 1)[:, 0]]
        return theirs

    @property
    def memory_bytes(self) -> int:
        return 2 * 4 * len(self) * int(self.rows.d)
