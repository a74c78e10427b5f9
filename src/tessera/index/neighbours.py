"""The nearest neighbours of every descriptor among all: the candidate pairs of duplicates and groups.

Up to some thousands all products are computed. Beyond, descriptors are reduced by PCA and put into inverted lists, of
which the nearest are scanned; the pairs found are rescored by the whole descriptors. At 100,000 that is a hundredth of
the work, and what is as near as a copy lies in the same list or the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]
Vectors = npt.NDArray[Any]

_EXACT_ROWS = 8_000
_REDUCED_DIM = 96
_TRAINING_ROWS = 20_000
_BLOCK_ROWS = 8_192
_NPROBE = 12


@dataclass(frozen=True)
class Neighbours:
    """Pairs M of a query's row and a row among all, and their inner products."""

    queries: Rows
    rows: Rows
    scores: Scores


class NeighbourSearch:
    """Over unit vectors, N D, single or half precision; half of it is turned to single in blocks."""

    def __init__(self, vectors: Vectors, *, exact_rows: int = _EXACT_ROWS) -> None:
        import faiss

        self._vectors = vectors
        self._reduction: Any = None
        count, dim = vectors.shape
        if count <= exact_rows:
            self._index: Any = faiss.IndexFlatIP(dim)
        else:
            sample = _single(vectors[np.random.default_rng(0).choice(count, min(count, _TRAINING_ROWS), replace=False)])
            if dim > _REDUCED_DIM:
                self._reduction = faiss.PCAMatrix(dim, _REDUCED_DIM)
                self._reduction.train(sample)
                sample = self._reduction.apply(sample)
            num_lists = int(2 * count**0.5)
            self._index = faiss.index_factory(sample.shape[1], f"IVF{num_lists},Flat", faiss.METRIC_INNER_PRODUCT)
            self._index.cp.niter = 8
            self._index.cp.min_points_per_centroid = 1
            self._index.train(sample)
            self._index.nprobe = min(_NPROBE, num_lists)
        for start in range(0, count, _BLOCK_ROWS):
            self._index.add(self._reduced(vectors[start : start + _BLOCK_ROWS]))

    def search(self, queries: Vectors, k: int, min_score: float) -> Neighbours:
        """For each query, Q D, at most k rows with an inner product of `min_score` and more."""
        found: list[tuple[Rows, Rows, Scores]] = []
        k = min(k, len(self._vectors))
        for start in range(0, len(queries), _BLOCK_ROWS):
            block = _single(queries[start : start + _BLOCK_ROWS])
            scores, rows = self._index.search(self._reduced(block), k)
            query_rows, columns = np.nonzero(rows >= 0)
            candidates = rows[query_rows, columns].astype(np.int64)
            exact = (
                scores[query_rows, columns] if self._reduction is None else self._score(block, query_rows, candidates)
            )
            kept = exact >= min_score
            found.append((query_rows[kept] + start, candidates[kept], exact[kept]))
        parts = [np.concatenate([part[i] for part in found]) if found else np.empty(0) for i in range(3)]
        return Neighbours(parts[0].astype(np.int64), parts[1].astype(np.int64), parts[2].astype(np.float32))

    def _reduced(self, block: Vectors) -> Any:
        single = _single(block)
        return single if self._reduction is None else self._reduction.apply(single)

    def _score(self, block: Scores, query_rows: Rows, candidates: Rows) -> Scores:
        scores = np.empty(len(query_rows), np.float32)
        for start in range(0, len(query_rows), _BLOCK_ROWS):
            part = slice(start, start + _BLOCK_ROWS)
            scores[part] = np.einsum("nd,nd->n", block[query_rows[part]], _single(self._vectors[candidates[part]]))
        return scores


def neighbour_pairs(vectors: Vectors, k: int, min_score: float, *, exact_rows: int = _EXACT_ROWS) -> Neighbours:
    """Each pair of rows once, the smaller first, of which one is among the other's k neighbours."""
    found = NeighbourSearch(vectors, exact_rows=exact_rows).search(vectors, k + 1, min_score)
    return unordered(found, len(vectors))


def unordered(found: Neighbours, count: int) -> Neighbours:
    """Each pair once, the smaller row first, none with itself."""
    first, second = np.minimum(found.queries, found.rows), np.maximum(found.queries, found.rows)
    apart = np.flatnonzero(first != second)
    unique = apart[np.unique(first[apart] * count + second[apart], return_index=True)[1]]
    return Neighbours(first[unique], second[unique], found.scores[unique])


def _single(vectors: Vectors) -> Scores:
    return np.ascontiguousarray(vectors, dtype=np.float32)
