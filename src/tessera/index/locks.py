"""Many searches at a time, or one change of the coded rows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class SharedLock:
    """Readers share it, a writer has it alone; a waiting writer goes before new readers, so it is not starved."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers = 0
        self._writing = False
        self._waiting = 0

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._writing and not self._waiting)
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                self._condition.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with self._condition:
            self._waiting += 1
            self._condition.wait_for(lambda: not self._writing and self._readers == 0)
            self._waiting -= 1
            self._writing = True
        try:
            yield
        finally:
            with self._condition:
                self._writing = False
                self._condition.notify_all()
