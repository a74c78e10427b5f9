"""Which row of an index holds which id, and which rows are live.

A row is a position in the coded part; an id is the gallery's name for an image. Removing an image only clears a bit.
An id may be written twice (an image that changed): the newest row is then the only one that can be live.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tessera.errors import IndexingError

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_BITS = np.left_shift(1, np.arange(8)).astype(np.uint8)


class RowFilter:
    """The rows that a search may return, as ascending row numbers and as a bitmap; each is made when first asked."""

    def __init__(self, total: int, *, rows: Int64s | None = None, bitmap: Bytes | None = None) -> None:
        if rows is None and bitmap is None:
            raise ValueError("rows or bitmap")
        self.total = total
        self._rows = rows
        self._bitmap = bitmap

    @property
    def rows(self) -> Int64s:
        if self._rows is None:
            assert self._bitmap is not None
            self._rows = np.flatnonzero(np.unpackbits(self._bitmap, count=self.total, bitorder="little"))
        return self._rows

    @property
    def bitmap(self) -> Bytes:
        """Bit `row % 8` of byte `row // 8`, as FAISS reads it."""
        if self._bitmap is None:
            flags = np.zeros(self.total, dtype=np.uint8)
            flags[self._rows] = 1
            self._bitmap = np.packbits(flags, bitorder="little")
        return self._bitmap

    def admits(self, rows: Int64s) -> npt.NDArray[np.bool_]:
        """Of each of some rows, whether it is in here; -1, which pads answers, is not."""
        lit: npt.NDArray[np.bool_] = (self.bitmap[rows >> 3] & _BITS[rows & 7]) != 0
        return lit & (rows >= 0)

    def __len__(self) -> int:
        return len(self._rows) if self._rows is not None else int(np.bitwise_count(self.bitmap).sum())


class Rows:
    """The ids of N rows in row order, with a bit each that says whether the row is live.

    Ids that run on from one another (start, start + 1, ...) are kept as one number, others in the narrowest type that
    holds them: with codes of 128 bytes, eight more an image would be felt.
    """

    def __init__(self, ids: npt.ArrayLike, bitmap: Bytes | None = None) -> None:
        given = np.asarray(ids, dtype=np.int64).reshape(-1)
        self.total = len(given)
        self._start: int | None = None
        self._ids: npt.NDArray[np.integer] | None = None
        self._order: npt.NDArray[np.integer] | None = None  # None: the ids ascend, so position is order
        steps = np.diff(given)
        if self.total == 0 or bool(np.all(steps == 1)):
            self._start = int(given[0]) if self.total else 0
        else:
            narrow = given.min() >= 0 and given.max() < 2**32
            self._ids = given.astype(np.uint32) if narrow else given
            if not np.all(steps >= 0):
                self._order = np.argsort(given, kind="stable").astype(np.uint32)
        size = (self.total + 7) // 8
        if bitmap is None:
            self.bitmap = np.packbits(np.ones(self.total, dtype=np.uint8), bitorder="little")
        elif len(bitmap) == size:
            self.bitmap = np.array(bitmap, dtype=np.uint8)
        else:
            raise IndexingError(
                f"The tombstones have {len(bitmap)} bytes where {self.total} rows need {size}. Rebuild."
            )
        self.live = int(np.bitwise_count(self.bitmap).sum())

    @property
    def deleted(self) -> int:
        return self.total - self.live

    def ids(self, rows: npt.NDArray[np.integer] | None = None) -> Int64s:
        """The ids of some rows (all of them by default), whether live or not."""
        if self._ids is None:
            assert self._start is not None
            chosen = np.arange(self.total) if rows is None else np.asarray(rows, dtype=np.int64)
            return chosen + self._start
        return (self._ids if rows is None else self._ids[rows]).astype(np.int64)

    def find(self, ids: Int64s) -> Int64s:
        """The live row of each id, -1 where there is none."""
        if self.total == 0 or len(ids) == 0:
            return np.full(len(ids), -1, dtype=np.int64)
        if self._ids is None:
            assert self._start is not None
            rows = ids - self._start
            inside = (rows >= 0) & (rows < self.total)
        else:
            # The last of equal ids is the newest row: earlier ones are deleted.
            if self._ids.dtype == np.uint32:
                possible = (ids >= 0) & (ids < 2**32)
                wanted: npt.NDArray[np.integer] = np.where(possible, ids, 0).astype(np.uint32)
            else:
                possible, wanted = np.ones(len(ids), dtype=bool), ids
            sorter = None if self._order is None else self._order.astype(np.intp)
            position = np.searchsorted(self._ids, wanted, side="right", sorter=sorter) - 1
            inside = possible & (position >= 0)
            rows = position if self._order is None else self._order[np.maximum(position, 0)].astype(np.int64)
            inside &= self._ids[np.maximum(rows, 0)] == wanted
        rows = np.where(inside, rows, 0)
        lit = (self.bitmap[rows >> 3] & _BITS[rows & 7]) != 0
        return np.where(inside & lit, rows, -1)

    def mark_deleted(self, rows: Int64s) -> None:
        """Give live rows a tombstone. The bitmap is replaced, not changed, so that a search under way keeps its own."""
        if len(rows) == 0:
            return
        bitmap = self.bitmap.copy()
        np.bitwise_and.at(bitmap, rows >> 3, ~_BITS[rows & 7])
        self.bitmap = bitmap
        self.live = int(np.bitwise_count(bitmap).sum())

    def extended(self, ids: Int64s) -> Rows:
        """These rows and then new ones, all live."""
        flags = np.ones(self.total + len(ids), dtype=np.uint8)
        flags[: self.total] = np.unpackbits(self.bitmap, count=self.total, bitorder="little")
        return Rows(np.concatenate([self.ids(), ids]), np.packbits(flags, bitorder="little"))

    def live_filter(self) -> RowFilter | None:
        """What a search without a filter may return; None where every row is live."""
        return None if self.live == self.total else RowFilter(self.total, bitmap=self.bitmap)

    def allowed_filter(self, ids: Int64s) -> RowFilter:
        rows = self.find(ids)
        flags = np.zeros(self.total, dtype=np.uint8)
        flags[rows[rows >= 0]] = 1
        return RowFilter(self.total, bitmap=np.packbits(flags, bitorder="little"))

    @property
    def memory_bytes(self) -> int:
        parts = (self._ids, self._order, self.bitmap)
        return sum(part.nbytes for part in parts if part is not None)
