"""What pairs of contents scored: written down in passing, so that the gallery is not locked while they are compared."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from tessera.errors import GalleryLockedError

if TYPE_CHECKING:
    from tessera.gallery.store import Store

log = logging.getLogger(__name__)

_BETWEEN_TRIES_S = 0.2
T = TypeVar("T")


def when_nobody_writes(act: Callable[[], T]) -> T:
    """What `act` gives, tried until no other process writes: an hour of comparing must not end at its last step."""
    is_said = False
    while True:
        try:
            return act()
        except GalleryLockedError as error:
            if not is_said:
                log.warning("%s What was compared is written down then.", error)
            is_said = True
            time.sleep(_BETWEEN_TRIES_S)


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
