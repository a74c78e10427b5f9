"""The descriptors themselves in half precision, read in place."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any

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
        self._count()

    def _count(self) -> None:
        self._starts = np.cumsum([0, *(len(segment) for segment in self.segments)]).astype(np.int64)
        self._plain = [np.asarray(segment) for segment in self.segments]  # a memmap takes rows three times slower
        self._firsts = [segment[:, 0] for segment in self._plain]

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
        self._count()

    def take(self, rows: Int64s) -> Float16s:
        """The descriptors of some rows, len(rows) D."""
        if len(self._plain) == 1:
            # One number of each first, a third of the time less: the processor waits for many rows at once.
            _ = self._firsts[0][rows]
            taken: Float16s = self._plain[0].take(rows, axis=0)
            return taken
        out = np.empty((len(rows), self.dim), dtype=np.float16)
        owner = np.searchsorted(self._starts, rows, side="right") - 1
        for i in np.unique(owner):
            mine = owner == i
            out[mine] = self._plain[i][rows[mine] - self._starts[i]]
        return out

    def halves(self, rows: int) -> Iterator[tuple[int, Float16s]]:
        """Go through everything in order, as it is: (first row, block). Pages of a mapped file are let go of."""
        for start, segment in zip(self._starts[:-1], self.segments, strict=True):
            for i in range(0, len(segment), rows):
                yield int(start) + i, np.asarray(segment[i : i + rows])
                release_pages(segment)

    def blocks(self, rows: int = BLOCK_ROWS) -> Iterator[tuple[int, Float32s]]:
        """Go through everything in order: (first row, block in fp32)."""
        for start, block in self.halves(rows):
            yield start, widen(block)


def release_pages(array: npt.NDArray[Any]) -> None:
    """Of a mapped file, let go of the pages that were read, or in the end all of it would be resident."""
    if isinstance(array, np.memmap):
        array._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


def widen(descriptors: Float16s, out: Float32s | None = None) -> Float32s:
    """fp16 to fp32, five times faster than astype: the bits are moved into place and the exponent is put right.

    Exact for every finite number, the smallest included.
    """
    wide = np.empty(descriptors.shape, np.float32) if out is None else out
    for i in range(0, len(descriptors), _CACHED_ROWS):
        part = wide[i : i + _CACHED_ROWS]
        bits = part.view(np.int32)
        np.copyto(bits, np.ascontiguousarray(descriptors[i : i + _CACHED_ROWS]).view(np.int16))
        np.left_shift(bits, 13, out=bits)
        np.bitwise_and(bits, _FP16_BITS, out=bits)
        part *= np.float32(2.0**112)
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
