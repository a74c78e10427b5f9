"""Threshold estimation: the score that about n rows pass, from a sample of the rows.

FAISS's fast-scan spends as long on keeping the best few thousand of a million as on scanning them. Above a threshold
that is known before, it only writes them down.
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np

from tessera.index.codecs.codec import Float32s

MOST_ROWS = 32768
_OF_ALL = 16  # one row of so many is in the sample, as long as it is not too large
_LEAST_RANK = 32  # with fewer sampled rows above the threshold the estimate is too rough


class ThresholdEstimator:
    """The coarse codes of a random sample of the rows that the codec was fitted on."""

    def __init__(self, index: Any) -> None:
        self.index = index

    @classmethod
    def fit(cls, pq: Any, rows: Float32s) -> ThresholdEstimator:
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

    def threshold_for(self, query: Float32s, share: float) -> float | None:
        """The score that this share of all rows reaches for a query 1 d; None where the sample cannot tell."""
        rank = int(share * self.index.ntotal)
        if rank < _LEAST_RANK or rank >= self.index.ntotal:
            return None
        score = float(self.index.search(query, rank)[0][0, -1])
        return score if np.isfinite(score) else None

    @property
    def memory_bytes(self) -> int:
        return int(self.index.ntotal * self.index.pq.M // 2 + 4 * self.index.pq.centroids.size())
