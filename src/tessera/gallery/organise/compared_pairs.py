"""What pairs of contents scored: written down in passing, so that the gallery is not locked while they are compared."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tessera.errors import GalleryLockedError

if TYPE_CHECKING:
    from tessera.gallery.store import Store


class ComparedPairs:
    """Scores of one kind, by the hashes of two contents in order. They hold whatever becomes of the files meanwhile."""

    def __init__(self, store: Store, kind: str) -> None:
        self._store = store
        self._kind = kind
        self._waiting: dict[tuple[str, str], float] = {}
        with store.catalog.read() as snapshot:
            self.known = snapshot.compared_pairs(kind)

    def lacks(self, first: str, second: str) -> bool:
        return (min(first, second), max(first, second)) not in self.known

    def add(self, scores: Mapping[tuple[str, str], float]) -> None:
        """Write these down now, or, where another process is writing, with the next ones."""
        self._waiting.update(scores)
        with contextlib.suppress(GalleryLockedError):
            self.save()

    def save(self) -> None:
        """Write down what waits."""
        if not self._waiting:
            return
        with self._store.write(), self._store.catalog.write() as batch:
            batch.add_compared_pairs(self._kind, self._waiting)
        self._waiting.clear()
