"""The descriptors themselves in half precision, read in place, and the one arithmetic that scores them.

Every score that an index calls exact comes from `inner_products`: each row is summed on its own and in a fixed order,
so that a score depends neither on the codec, nor on the batch, nor on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tessera.errors import IndexingError

Float32s = npt.NDArray[np.float32]
Float16s = npt.NDArray[np.float16]
Int64s = npt.NDArray[np.int64]

BLOCK_ROWS = 16384
_CACHED_ROWS = 128  # widened, they still fit in a core's own cache
_FP16_BITS = np.uint32(0x8FFFE000).view(np.int32)  # sign, exponent and fraction, shifted by 13
ROUNDING = 2e-6  # two ways of summing the products of unit vectors differ by less


class DescriptorStore:
    """N D descriptors in fp16, in segments: the first usually a mapped file, later ones what was merged since."""

    def __init__(self, dim: int, segments: list[Float16s] | None = None) -> None:
        self.dim = dim
        self.segments: list[Float16s] = list(segments or [])
        self._starts = self._count()

    def _count(self) -> Int64s:
        return np.cumsum([0, *(len(segment) for segment in self.segments)]).astype(np.int64)

    def __len__(self) -> int:
        return int(self._starts[-1])

    @classmethod
    def of(cls, descriptors: npt.ArrayLike) -> DescriptorStore:
        """Hold an array of descriptors; one that is fp16 already is used in place, mapped or not."""
        array = descriptors if isinstance(descriptors, np.ndarray) else np.asarray(descriptors)
        if array.ndim != 2:
            raise IndexingError(f"Descriptors must be an array N D, not one of shape {array.shape}.")
        if array.dtype != np.float16:
            array = array.astype(np.float16)
        return cls(array.shape[1], [array])

    def append(self, descriptors: Float16s) -> None:
        self.segments = [*self.segments, descriptors]
        self._starts = self._count()

    def take(self, rows: Int64s) -> Float16s:
        """The descriptors of some rows, len(rows) D."""
        if len(self.segments) == 1:
            return np.asarray(self.segments[0])[rows]
        out = np.empty((len(rows), self.dim), dtype=np.float16)
        owner = np.searchsorted(self._starts, rows, side="right") - 1
        for i in np.unique(owner):
            mine = owner == i
            out[mine] = self.segments[i][rows[mine] - self._starts[i]]
        return out

    def halves(self, rows: int) -> Iterator[tuple[int, Float16s]]:
        """Go through everything in order, as it is: (first row, block)."""
        for start, segment in zip(self._starts[:-1], self.segments, strict=True):
            for i in range(0, len(segment), rows):
                yield int(start) + i, np.asarray(segment[i : i + rows])

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[tuple[int, Float32s]]:
        """Go through everything in order: (first row, block in fp32)."""
        for start, block in self.halves(rows):
            yield start, widen(block)


def inner_products(query: Float32s, descriptors: Float16s | Float32s) -> Float32s:
    """The exact score of each row: descriptors N D against one query D, in fp32."""
    scores = np.empty(len(descriptors), dtype=np.float32)
    narrow = descriptors.dtype == np.float16
    for i in range(0, len(descriptors), _CACHED_ROWS):
        part = descriptors[i : i + _CACHED_ROWS]
        rows: Float32s = widen(part.view(np.float16)) if narrow else np.ascontiguousarray(part, np.float32)
        np.vecdot(rows, query, out=scores[i : i + _CACHED_ROWS])  # a row at a time, whatever its company
    return scores


def score_rows(query: Float32s, rows: Int64s, store: DescriptorStore) -> Float32s:
    """The exact scores of some rows of a store, read a cacheful at a time."""
    parts = [rows[i : i + _CACHED_ROWS] for i in range(0, len(rows), _CACHED_ROWS)]
    return np.concatenate([np.empty(0, np.float32), *(inner_products(query, store.take(part)) for part in parts)])


def widen(descriptors: Float16s, out: Float32s | None = None) -> Float32s:
    """fp16 to fp32, five times faster than astype: the bits are moved into place and the exponent is put right.

    Exact for every finite number, the smallest included.
    """
    wide = np.empty(descriptors.shape, np.float32) if out is None else out
    bits = wide.view(np.int32)
    np.copyto(bits, np.ascontiguousarray(descriptors).view(np.int16))
    np.left_shift(bits, 13, out=bits)
    np.bitwise_and(bits, _FP16_BITS, out=bits)
    wide *= np.float32(2.0**112)
    return wide


def candidates_for_best(rough: Float32s, k: int) -> Int64s:
    """The positions among N rough scores that may be among the k best by exact ones, ties with the k-th included."""
    if len(rough) <= k:
        return np.arange(len(rough))
    threshold = np.partition(rough, len(rough) - k)[len(rough) - k]
    return np.flatnonzero(rough >= threshold - ROUNDING)


def best(scores: Float32s, ids: Int64s, k: int) -> tuple[Float32s, Int64s]:
    """The k best of one query, best first; equal scores in the order of their ids."""
    if len(scores) > 4 * k:
        threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
        chosen = scores >= threshold
        scores, ids = scores[chosen], ids[chosen]
    order = np.lexsort((ids, -scores))[:k]
    return scores[order], ids[order]
