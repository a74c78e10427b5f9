"""The exact tail: descriptors added since the last merge, searched by a plain matrix product."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32s = npt.NDArray[np.float32]
Float16s = npt.NDArray[np.float16]
Int64s = npt.NDArray[np.int64]

_FIRST_CAPACITY = 4096  # rows: pages of it cost nothing until they are written, and copying would


class Tail:
    """Ids and descriptors (in fp16, and widened for a matrix product) in arrays that are seldom outgrown, then double.

    Removal moves the last row into the gap: a tail has no order of its own, as ties are broken by id.
    """

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.size = 0
        self._ids: Int64s = np.empty(0, dtype=np.int64)
        self._halves: Float16s = np.empty((0, dim), dtype=np.float16)
        self._descriptors: Float32s = np.empty((0, dim), dtype=np.float32)
        self._positions: dict[int, int] = {}

    @property
    def ids(self) -> Int64s:
        return self._ids[: self.size]

    @property
    def descriptors(self) -> Float32s:
        return self._descriptors[: self.size]

    @property
    def halves(self) -> Float16s:
        return self._halves[: self.size]

    def __contains__(self, identity: int) -> bool:
        return identity in self._positions

    def find(self, ids: Int64s) -> Int64s:
        return np.fromiter((self._positions.get(int(i), -1) for i in ids), dtype=np.int64, count=len(ids))

    def add(self, ids: Int64s, descriptors: Float16s) -> None:
        needed = self.size + len(ids)
        if needed > len(self._ids):
            capacity = max(needed, 2 * len(self._ids), _FIRST_CAPACITY)
            grown_ids = np.empty(capacity, dtype=np.int64)
            grown = np.empty((capacity, self.dim), dtype=np.float32)
            grown_halves = np.empty((capacity, self.dim), dtype=np.float16)
            grown_ids[: self.size], grown[: self.size], grown_halves[: self.size] = (
                self.ids,
                self.descriptors,
                self.halves,
            )
            self._ids, self._descriptors, self._halves = grown_ids, grown, grown_halves
        self._ids[self.size : needed] = ids
        self._descriptors[self.size : needed] = self._halves[self.size : needed] = descriptors
        for position, identity in enumerate(ids.tolist(), start=self.size):
            self._positions[identity] = position
        self.size = needed

    def remove(self, identity: int) -> bool:
        """Take one id out; False where it is not here."""
        position = self._positions.pop(identity, None)
        if position is None:
            return False
        last = self.size - 1
        if position != last:
            moved = int(self._ids[last])
            self._ids[position], self._descriptors[position] = moved, self._descriptors[last]
            self._halves[position] = self._halves[last]
            self._positions[moved] = position
        self.size = last
        return True

    @property
    def memory_bytes(self) -> int:
        return self.ids.nbytes + self.descriptors.nbytes + self.halves.nbytes
