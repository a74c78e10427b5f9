"""Residual rescoring: what the coarse codes of a row missed, in some 64 bytes, added to the scores of the candidates.

A product quantiser with 256 centroids a subspace codes the difference between the coordinates and their coarse code.
With it far fewer descriptors need be read: those lie scattered over gigabytes, these over megabytes.
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from tessera.index.codecs.codec import Arrays, Float32s, Int64s
from tessera.index.codecs.projection import allocate_dimensions

Bytes = npt.NDArray[np.uint8]

_CENTROIDS = 256
_ITERATIONS = 12
_CACHED_ROWS = 512  # their entries of the table still fit in a core's own cache


class ResidualCodes:
    """Codes N B of differences N C, and the centroids that they stand for."""

    def __init__(self, order: Int64s, centroids: Float32s, codes: Bytes) -> None:
        """order: C, coordinates subspace by subspace. centroids: B 256 (C / B)."""
        self.order = order
        self.codes = codes
        self._pq: Any = faiss.ProductQuantizer(len(order), len(centroids), 8)
        faiss.copy_array_to_vector(np.ascontiguousarray(centroids).reshape(-1), self._pq.centroids)
        self.centroids = centroids
        self._scorer = _with_scores(centroids)
        self._offsets = np.arange(0, _CENTROIDS * len(centroids), _CENTROIDS, dtype=np.int32)

    @classmethod
    def fit(cls, differences: Float32s, width: int, seed: int) -> ResidualCodes:
        """width: B, bytes a row; it divides C."""
        order = allocate_dimensions(differences.var(axis=0), width)
        pq: Any = faiss.ProductQuantizer(len(order), width, 8)
        pq.cp.seed, pq.cp.niter, pq.cp.min_points_per_centroid = seed + 1, _ITERATIONS, 1
        pq.train(np.ascontiguousarray(differences[:, order]))
        centroids = faiss.vector_to_array(pq.centroids).reshape(width, _CENTROIDS, -1)
        return cls(order, centroids, np.empty((0, width), np.uint8))

    def encode(self, differences: Float32s) -> Bytes:
        codes: Bytes = self._pq.compute_codes(np.ascontiguousarray(differences[:, self.order]))
        return codes

    def decode(self, codes: Bytes) -> Float32s:
        out = np.empty((len(codes), len(self.order)), np.float32)
        out[:, self.order] = self._pq.decode(codes)
        return out

    def table(self, query: Float32s) -> Float32s:
        """The product of a query's coordinates C with every centroid: B * 256."""
        parts = query[self.order].reshape(len(self.centroids), -1, 1)
        products: Float32s = np.matmul(self.centroids, parts).reshape(-1)
        return products

    def score(self, table: Float32s, rows: Int64s) -> Float32s:
        """What the differences of some rows add to a query's scores."""
        scores = np.empty(len(rows), np.float32)
        for i in range(0, len(rows), _CACHED_ROWS):
            entries = np.take(self.codes, rows[i : i + _CACHED_ROWS], axis=0) + self._offsets
            np.sum(np.take(table, entries), axis=1, out=scores[i : i + _CACHED_ROWS])
        return scores

    def best(self, query: Float32s, rows: Int64s, scores: Float32s, count: int) -> Int64s:
        """The `count` rows whose coarse scores and residuals together are highest for a query's coordinates C.

        FAISS looks codes up three times faster than numpy can. So that it adds the coarse scores, too, they are two
        bytes more of each code, whose centroids are the steps of a staircase.
        """
        width, sub_dim = len(self.centroids), self.centroids.shape[2]
        low, high = float(scores.min()), float(scores.max())
        step = max((high - low) / 65535, 1e-12)
        codes = np.empty((len(rows), width + 2), np.uint8)
        codes[:, :width] = np.take(self.codes, rows, axis=0)
        codes[:, width:] = np.rint((scores - low) / step).astype(">u2").view(np.uint8).reshape(-1, 2)
        asked = np.zeros((width + 2, sub_dim), np.float32)
        asked[:width] = query[self.order].reshape(width, sub_dim)
        asked[width:, 0] = 256 * step, step
        found, values = np.empty(count, np.int64), np.empty(count, np.float32)
        heap: Any = faiss.float_minheap_array_t()
        heap.nh, heap.k, heap.ids, heap.val = 1, count, faiss.swig_ptr(found), faiss.swig_ptr(values)
        self._scorer.search_ip(faiss.swig_ptr(asked), 1, faiss.swig_ptr(codes), len(rows), heap)
        chosen: Int64s = rows[found]
        return chosen

    def append(self, codes: Bytes) -> None:
        self.codes = np.concatenate([self.codes, codes])

    def state(self) -> Arrays:
        return {"residual.order": self.order, "residual.centroids": self.centroids, "residual.codes": self.codes}

    @classmethod
    def restore(cls, arrays: Arrays) -> ResidualCodes:
        return cls(arrays["residual.order"], arrays["residual.centroids"], arrays["residual.codes"])

    @property
    def memory_bytes(self) -> int:
        return self.codes.nbytes + 3 * self.centroids.nbytes


def _with_scores(centroids: Float32s) -> Any:
    """A product quantiser with centroids B 256 d, and two subspaces more whose centroids are 0 .. 255."""
    width, _, sub_dim = centroids.shape
    stairs = np.zeros((2, _CENTROIDS, sub_dim), np.float32)
    stairs[:, :, 0] = np.arange(_CENTROIDS)
    pq: Any = faiss.ProductQuantizer((width + 2) * sub_dim, width + 2, 8)
    faiss.copy_array_to_vector(np.concatenate([centroids, stairs]).reshape(-1), pq.centroids)
    return pq
