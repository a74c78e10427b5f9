"""Many queries at once: matrix products over blocks of descriptors, keeping the best rows of each query.

A selection over every score would cost more than the product. After the first blocks each query has a threshold that
few rows pass, so one comparison a score is all that the rest costs.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from tessera.index.descriptor_file import Float32s, Int64s
from tessera.index.rows import RowFilter

# Below this many queries a kernel that goes through the codes once a query is faster than a matrix product.
LEAST_BATCH = 8
BLOCK_ROWS = 2048


def scan_blocks(
    queries: Float32s,
    blocks: Iterable[tuple[int, Float32s]],
    k: int,
    row_filter: RowFilter | None,
) -> tuple[Float32s, Int64s]:
    """The k best rows of each of Q D queries, in no order: scores Q k, rows Q k, padded with -inf and -1.

    blocks: (first row, descriptors B D) in ascending order.
    """
    heaps = [_Best(k) for _ in queries]
    thresholds = np.full((len(queries), 1), -np.inf, dtype=np.float32)
    admitted = (
        None
        if row_filter is None
        else np.unpackbits(row_filter.bitmap, count=row_filter.total, bitorder="little").astype(bool)
    )
    for start, block in blocks:
        scores = queries @ block.T  # Q B
        if admitted is not None:
            scores[:, ~admitted[start : start + len(block)]] = -np.inf
        which, where = np.nonzero(scores > thresholds)
        ends = np.searchsorted(which, np.arange(len(queries) + 1))
        for q in np.flatnonzero(np.diff(ends)):
            positions = where[ends[q] : ends[q + 1]]
            thresholds[q] = heaps[q].add(scores[q, positions], positions + start)
    found_scores = np.full((len(queries), k), -np.inf, dtype=np.float32)
    found_rows = np.full((len(queries), k), -1, dtype=np.int64)
    for i, heap in enumerate(heaps):
        scores_q, rows_q = heap.best()
        found_scores[i, : len(rows_q)], found_rows[i, : len(rows_q)] = scores_q, rows_q
    return found_scores, found_rows


class _Best:
    """A buffer of four times k; when it is full, the best stay and the least of them is the threshold."""

    def __init__(self, k: int) -> None:
        self.k = k
        self.size = 0
        self.threshold = -np.inf
        self.scores: list[Float32s] = []
        self.rows: list[npt.NDArray[np.int64]] = []

    def add(self, scores: Float32s, rows: Int64s) -> float:
        self.scores.append(scores)
        self.rows.append(rows)
        self.size += len(rows)
        if self.size >= 4 * self.k or (np.isneginf(self.threshold) and self.size > self.k):
            best_scores, best_rows = self.best()
            self.scores, self.rows, self.size = [best_scores], [best_rows], len(best_rows)
            if self.size >= self.k:
                self.threshold = float(best_scores.min())
        return self.threshold

    def best(self) -> tuple[Float32s, Int64s]:
        if not self.scores:
            return np.empty(0, np.float32), np.empty(0, np.int64)
        scores, rows = np.concatenate(self.scores), np.concatenate(self.rows)
        if len(scores) > self.k:
            chosen = np.sort(np.argpartition(scores, len(scores) - self.k)[len(scores) - self.k :])
            scores, rows = scores[chosen], rows[chosen]
        return scores, rows
