"""The second look: what the short codes of a row missed, in 64 bytes, for the rows that the first look put forward.

A product quantiser with 256 words a subspace codes the difference between the coordinates and their first code. Added
to the first estimate it lets far fewer descriptors be read: those lie scattered over gigabytes, these over megabytes.
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from tessera.index.codecs.codec import Arrays, Float32s, Int64s
from tessera.index.codecs.projection import allot

Bytes = npt.NDArray[np.uint8]

_WORDS = 256
_ITERATIONS = 12
_CACHED_ROWS = 512  # their places in the table still fit in a core's own cache


class ResidualCodes:
    """Codes N B of differences N C, and the words that they stand for."""

    def __init__(self, order: Int64s, words: Float32s, codes: Bytes) -> None:
        """order: C, coordinates subspace by subspace. words: B 256 (C / B)."""
        self.order = order
        self.codes = codes
        self._pq: Any = faiss.ProductQuantizer(len(order), len(words), 8)
        faiss.copy_array_to_vector(np.ascontiguousarray(words).reshape(-1), self._pq.centroids)
        self.words = words
        self._scorer = _with_scores(words)
        self._first = np.arange(0, _WORDS * len(words), _WORDS, dtype=np.int32)

    @classmethod
    def fit(cls, differences: Float32s, width: int, seed: int) -> ResidualCodes:
        """width: B, bytes a row; it divides C."""
        order = allot(differences.var(axis=0), width)
        pq: Any = faiss.ProductQuantizer(len(order), width, 8)
        pq.cp.seed, pq.cp.niter, pq.cp.min_points_per_centroid = seed + 1, _ITERATIONS, 1
        pq.train(np.ascontiguousarray(differences[:, order]))
        words = faiss.vector_to_array(pq.centroids).reshape(width, _WORDS, -1)
        return cls(order, words, np.empty((0, width), np.uint8))

    def encode(self, differences: Float32s) -> Bytes:
        codes: Bytes = self._pq.compute_codes(np.ascontiguousarray(differences[:, self.order]))
        return codes

    def decode(self, codes: Bytes) -> Float32s:
        out = np.empty((len(codes), len(self.order)), np.float32)
        out[:, self.order] = self._pq.decode(codes)
        return out

    def table(self, query: Float32s) -> Float32s:
        """The product of a query's coordinates C with every word: B * 256."""
        parts = query[self.order].reshape(len(self.words), -1, 1)
        products: Float32s = np.matmul(self.words, parts).reshape(-1)
        return products

    def score(self, table: Float32s, rows: Int64s) -> Float32s:
        """What the differences of some rows add to a query's scores."""
        scores = np.empty(len(rows), np.float32)
        for i in range(0, len(rows), _CACHED_ROWS):
            places = np.take(self.codes, rows[i : i + _CACHED_ROWS], axis=0) + self._first
            np.sum(np.take(table, places), axis=1, out=scores[i : i + _CACHED_ROWS])
        return scores

    def best(self, query: Float32s, rows: Int64s, scores: Float32s, count: int) -> Int64s:
        """Those rows, `count` of them, whose first scores and differences together are highest for a query's C.

        FAISS looks codes up three times faster than numpy can. So that it adds the first scores, too, they are two
        bytes more of each code, whose words are the steps of a staircase.
        """
        width, room = len(self.words), self.words.shape[2]
        low, high = float(scores.min()), float(scores.max())
        step = max((high - low) / 65535, 1e-12)
        codes = np.empty((len(rows), width + 2), np.uint8)
        codes[:, :width] = np.take(self.codes, rows, axis=0)
        codes[:, width:] = np.rint((scores - low) / step).astype(">u2").view(np.uint8).reshape(-1, 2)
        asked = np.zeros((width + 2, room), np.float32)
        asked[:width] = query[self.order].reshape(width, room)
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
        return {"residual.order": self.order, "residual.words": self.words, "residual.codes": self.codes}

    @classmethod
    def restore(cls, arrays: Arrays) -> ResidualCodes:
        return cls(arrays["residual.order"], arrays["residual.words"], arrays["residual.codes"])

    @property
    def memory_bytes(self) -> int:
        return self.codes.nbytes + 3 * self.words.nbytes


def _with_scores(words: Float32s) -> Any:
    """A product quantiser with words B 256 d, and two subspaces more whose words are 0 .. 255."""
    width, _, room = words.shape
    stairs = np.zeros((2, _WORDS, room), np.float32)
    stairs[:, :, 0] = np.arange(_WORDS)
    pq: Any = faiss.ProductQuantizer((width + 2) * room, width + 2, 8)
    faiss.copy_array_to_vector(np.concatenate([words, stairs]).reshape(-1), pq.centroids)
    return pq
