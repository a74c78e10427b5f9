"""The lists of an inverted file: their centres, and which of them a query should look into."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np

from tessera.index.codec import Float32s, Int64s

_ROWS_A_LIST = 32  # to train on
_ITERATIONS = 10
_COARSE = 128  # leading coordinates that say which list
# Rows lie nearest to their centre by distance. Which list holds the best *products* with a query is something between
# the centre's distance (1/2 of its energy is taken off) and its product (nothing is): this does best.
_ENERGY = 0.25


class Lists:
    """Centres of the projected rows, compared in their leading coordinates."""

    def __init__(self, centres: Float32s, order: Int64s) -> None:
        """centres: lists d, as the first look sees rows; order: which coordinate each of the d is."""
        self._columns = _leading(order)
        self._centres = np.ascontiguousarray(centres[:, self._columns])
        self._bias = _ENERGY * np.einsum("nd,nd->n", self._centres, self._centres)

    def __len__(self) -> int:
        return len(self._centres)

    @staticmethod
    def training_rows(lists: int) -> int:
        return _ROWS_A_LIST * lists

    @staticmethod
    def train(rows: Float32s, order: Int64s, lists: int, seed: int) -> Float32s:
        """Centres of rows N d: k-means in the leading coordinates, zero elsewhere, so the others do not count.

        Not in coordinate 0 (that of the mean), either: its weight is for scores, not for distances.
        """
        centres = np.zeros((lists, rows.shape[1]), np.float32)
        if lists > 1:
            columns = _leading(order)
            clustering: Any = faiss.Clustering(len(columns), lists)
            clustering.seed, clustering.niter = seed + 1, _ITERATIONS
            clustering.min_points_per_centroid, clustering.max_points_per_centroid = 1, _ROWS_A_LIST
            clustering.train(np.ascontiguousarray(rows[:, columns]), faiss.IndexFlatL2(len(columns)))
            centres[:, columns] = faiss.vector_to_array(clustering.centroids).reshape(lists, -1)
        return centres

    def promise(self, queries: Float32s) -> Float32s:
        """How much each list promises to queries Q d: Q lists."""
        promised: Float32s = queries[:, self._columns] @ self._centres.T - self._bias
        return promised

    def choose(self, queries: Float32s, probes: int) -> Int64s:
        """The lists to look into for queries Q d, Q probes: in no order."""
        if probes >= len(self):
            return np.repeat(np.arange(len(self))[None], len(queries), axis=0)
        lists = np.argpartition(-self.promise(queries), probes - 1, axis=1)[:, :probes]
        return np.ascontiguousarray(lists, np.int64)

    @property
    def memory_bytes(self) -> int:
        return int(self._centres.nbytes + self._bias.nbytes)


def _leading(order: Int64s) -> Int64s:
    """The columns that hold the leading coordinates, that of the mean not among them."""
    return np.flatnonzero((order > 0) & (order <= _COARSE))
