"""The one arithmetic of every score that an index calls exact: inner products with the stored fp16 descriptors.

FAISS's scalar quantiser reads half precision with the processor's own instructions. Each row is summed on its own and
in a fixed order, so that a score depends neither on the codec, nor on the batch, nor on the number of threads.
"""

from __future__ import annotations

import threading
from typing import Any

import faiss
import numpy as np

from tessera.index.descriptor_file import DescriptorStore, Float16s, Float32s, Int64s

_BLOCK_ROWS = 1024  # taken and scored at a time: two megabytes of 1024 numbers a row
_TIES = 28  # more of the best than were asked for: where all of them tie, the ids must decide among yet more


class _Scanners(threading.local):
    """FAISS's scanners of half precision, by dimension. One holds its query, so each thread has its own."""

    def __init__(self) -> None:
        self.by_dim: dict[int, tuple[Any, Any]] = {}  # with the index that one comes from


_held = _Scanners()


def _scanner(dim: int) -> Any:
    scanners = _held.by_dim
    if dim not in scanners:
        half = faiss.ScalarQuantizer.QT_fp16
        index: Any = faiss.IndexIVFScalarQuantizer(
            faiss.IndexFlatIP(dim), dim, 1, half, faiss.METRIC_INNER_PRODUCT, False
        )
        scanners[dim] = index.get_InvertedListScanner(False, None, None), index
    return scanners[dim][0]


class _Best:
    """The best `count` of the rows that it is shown for one query, in no order, as a heap of FAISS."""

    def __init__(self, query: Float32s, count: int) -> None:
        self.scores = np.empty(count, np.float32)
        self.scores.fill(-np.inf)
        self.rows = np.empty(count, np.int64)
        self.rows.fill(-1)
        self._query = np.ascontiguousarray(query, np.float32)
        self._scanner = _scanner(len(query))
        self._scanner.set_query(faiss.swig_ptr(self._query))
        self._heap = faiss.swig_ptr(self.scores), faiss.swig_ptr(self.rows), count

    def show(self, rows: Int64s, descriptors: Float16s) -> None:
        codes = np.ascontiguousarray(descriptors).view(np.uint8)  # named: FAISS gets bare pointers
        self._scanner.scan_codes(len(rows), faiss.swig_ptr(codes), faiss.swig_ptr(rows), *self._heap)


def inner_products(query: Float32s, descriptors: Float16s) -> Float32s:
    """The exact score of each row: descriptors N D, half precision, against one query D."""
    count = len(descriptors)
    scores = np.empty(count, np.float32)
    for i in range(0, count, _BLOCK_ROWS):
        part = descriptors[i : i + _BLOCK_ROWS]
        best = _Best(query, len(part))
        best.show(np.arange(len(part)), part)
        scores[i + best.rows] = best.scores
    return scores


def best_rows(query: Float32s, rows: Int64s, store: DescriptorStore, k: int) -> tuple[Float32s, Int64s]:
    """The k best of some rows of a store and a few more, whatever ties with the k-th included: scores, rows."""
    count = min(len(rows), k + _TIES)
    if count == 0:
        return np.empty(0, np.float32), rows
    while True:
        best = _Best(query, count)
        for i in range(0, len(rows), _BLOCK_ROWS):
            part = rows[i : i + _BLOCK_ROWS]
            best.show(part, store.take(part))
        # FAISS keeps the least at the root of its heap.
        if count == len(rows) or np.count_nonzero(best.scores > best.scores[0]) >= k:
            return best.scores, best.rows
        count = len(rows)


def joined(found: list[tuple[Float32s, Int64s]]) -> tuple[Float32s, Int64s]:
    """What was found for each of Q queries, padded with -inf and -1 where one has fewer: Q K and Q K."""
    if len(found) == 1:
        return found[0][0][None], found[0][1][None]
    wide = max((len(rows) for _, rows in found), default=0)
    scores = np.full((len(found), wide), -np.inf, dtype=np.float32)
    rows = np.full((len(found), wide), -1, dtype=np.int64)
    for q, (mine, theirs) in enumerate(found):
        scores[q, : len(mine)], rows[q, : len(mine)] = mine, theirs
    return scores, rows
