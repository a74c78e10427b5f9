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
        self._share = _Share(self)

    def shared(self) -> _Share:
        return self._share

    def enter(self) -> None:
        with self._condition:
            while self._writing or self._waiting:
                self._condition.wait()
            self._readers += 1

    def leave(self) -> None:
        with self._condition:
            self._readers -= 1
            if self._waiting and not self._readers:
                self._condition.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        with self._condition:
            self._waiting += 1
            try:
                self._condition.wait_for(lambda: not self._writing and self._readers == 0)
            finally:  # one that is interrupted must not keep readers waiting
                self._waiting -= 1
                self._condition.notify_all()
            self._writing = True
        try:
            yield
        finally:
            with self._condition:
                self._writing = False
                self._condition.notify_all()


class _Share:
    """A reader's part of the lock, as a `with` block takes it: every search does, and a generator costs it more."""

    def __init__(self, lock: SharedLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.enter()

    def __exit__(self, *_: object) -> None:
        self._lock.leave()
