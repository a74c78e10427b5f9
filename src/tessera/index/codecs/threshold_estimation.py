"""The score that so many rows will pass, foretold from some rows: keeping all above it is cheaper than the best n.

FAISS's fast-scan spends as long on keeping the best few thousand of a million as on going past them. Above a score
that is known before, it only writes them down.
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np

from tessera.index.codecs.codec import Float32s

MOST_ROWS = 32768
_OF_ALL = 16  # one row of so many is in the sample, as long as it is not too large
_LEAST_RANK = 32  # fewer rows than this above the score say too little of where it lies


class ScoreSample:
    """The first codes of some rows, drawn at random: those that were there when the codec was fitted."""

    def __init__(self, index: Any) -> None:
        self.index = index

    @classmethod
    def fit(cls, pq: Any, rows: Float32s) -> ScoreSample:
        """Code rows N d with a trained product quantiser."""
        index: Any = faiss.IndexPQFastScan(pq.d, pq.M, 4, faiss.METRIC_INNER_PRODUCT)
        index.pq = pq
        index.is_trained = True
        if len(rows):
            index.add(np.ascontiguousarray(rows))
        return cls(index)

    @staticmethod
    def size_for(total: int) -> int:
        return min(total // _OF_ALL, MOST_ROWS)

    def score_at(self, query: Float32s, share: float) -> float | None:
        """The score that this share of all rows has or passes, for a query 1 d; None where it can't be told."""
        rank = int(share * self.index.ntotal)
        if rank < _LEAST_RANK or rank >= self.index.ntotal:
            return None
        score = float(self.index.search(query, rank)[0][0, -1])
        return score if np.isfinite(score) else None

    @property
    def memory_bytes(self) -> int:
        return int(self.index.ntotal * self.index.pq.M // 2 + 4 * self.index.pq.centroids.size())
