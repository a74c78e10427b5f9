"""Following folders: what is new, changed, moved or deleted in them goes into the gallery, in batches.

Events only say where to look; what has happened there is found by an index run over those folders, as it would be by
hand. A lost event therefore costs time and nothing else, and polling is the same thing with a clock for the events.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.errors import GalleryLockedError, TesseraError, UsageError, printable
from tessera.gallery.results import IndexReport

if TYPE_CHECKING:
    from tessera.gallery.gallery import Gallery

Say = Callable[[str], None]


@dataclass(frozen=True)
class WatchConfig:
    """quiet_s: a batch begins when nothing has happened for so long, since copying a picture takes a while.

    most_s: but no later than this after the first event. poll_s: how often to look where there are no events.
    retry_s: when to try again what could not be done, because another process was writing, say.
    """

    quiet_s: float = 0.5
    most_s: float = 10.0
    poll_s: float = 5.0
    retry_s: float = 2.0
    events: bool = True


class Watcher:
    """Keeps a gallery in step with folders. `run` returns when `stop` is set."""

    def __init__(
        self,
        gallery: Gallery,
        folders: Sequence[str | os.PathLike[str]],
        *,
        say: Say = lambda _: None,
        told: Callable[[IndexReport], None] = lambda _: None,
        config: WatchConfig | None = None,
    ) -> None:
        self._gallery, self._say, self._told = gallery, say, told
        self._config = config or WatchConfig()
        self.folders = [Path(os.path.abspath(folder)) for folder in folders]  # noqa: PTH100 - links stay
        for folder in self.folders:
            if not folder.is_dir():
                raise UsageError(f"{printable(folder)} is no folder. Name folders to watch.")
        self.stop = threading.Event()
        self._lost: set[Path] = set()
        self._touched: set[Path] = set()
        self._first = self._last = 0.0
        self._lock = threading.Lock()
        self._woken = threading.Event()

    def run(self) -> None:
        """Index the folders once, then follow them."""
        with self._events() as has_events:
            self._touch(*self.folders)
            pending: set[Path] = set()
            while not self.stop.is_set():
                pending |= self._wait(has_events)
                if not pending or self.stop.is_set():
                    continue
                if self._follow(pending):
                    pending = set()
                else:
                    self.stop.wait(self._config.retry_s)

    def _wait(self, has_events: bool) -> set[Path]:
        """The folders where something has happened, once it has been quiet there; without events, all of them."""
        woken = self._woken.wait(self._config.poll_s)
        if not woken:
            # A folder that was moved away tells nothing, nor does one that comes back.
            return {folder for folder in self.folders if not has_events or folder in self._lost or not folder.is_dir()}
        while not self.stop.wait(self._config.quiet_s / 4):
            with self._lock:
                now = time.monotonic()
                if now - self._last >= self._config.quiet_s or now - self._first >= self._config.most_s:
                    touched, self._touched = self._touched, set()
                    self._woken.clear()
                    return touched
        return set()

    def _follow(self, touched: set[Path]) -> bool:
        """Index what was touched; False if it must be tried again."""
        present = [folder for folder in self.folders if self._is_there(folder)]
        roots = [root for root in (_root_of(path, present) for path in sorted(touched)) if root is not None]
        if not roots:
            return True
        try:
            report = self._gallery.index(*_outermost(roots), prune=True)
        except GalleryLockedError:
            return False
        except TesseraError as error:
            self._say(f"{error}")
            return False
        if report.added or report.changed or report.moved or report.pruned or report.failed:
            self._told(report)
        return True

    def _is_there(self, folder: Path) -> bool:
        """A watched folder that vanishes may be a disk that was taken out: its pictures stay until it is back.

        So does one that is suddenly empty: the place where a disk is mounted stays when the disk goes.
        """
        is_there = folder.is_dir() and (any(folder.iterdir()) or not self._gallery.holds(folder))
        if not is_there and folder not in self._lost:
            self._lost.add(folder)
            self._say(f"{printable(folder)} is gone. Its pictures stay in the gallery; it is watched when it is back.")
        elif is_there and folder in self._lost:
            self._lost.discard(folder)
            self._say(f"{printable(folder)} is back")
            self._rewatch(folder)
        return is_there

    def _touch(self, *paths: Path) -> None:
        with self._lock:
            self._last = time.monotonic()
            if not self._touched:
                self._first = self._last
            self._touched.update(paths)
            self._woken.set()

    @contextlib.contextmanager
    def _events(self) -> Iterator[bool]:
        """Let the system tell of changes, where the package for it is installed and the system can."""
        self._rewatch: Callable[[Path], None] = lambda _: None
        observer = _open_observer() if self._config.events else None
        if observer is None:
            self._say(f"looking for changes every {self._config.poll_s:g} s")
            yield False
            return
        handler = _Handler(self._touch)
        watches: dict[Path, Any] = {}

        def watch_again(folder: Path) -> None:
            with contextlib.suppress(OSError, KeyError):  # the old watch is on the folder that went away
                observer.unschedule(watches[folder])
                watches[folder] = observer.schedule(handler, str(folder), recursive=True)

        try:
            for folder in self.folders:
                watches[folder] = observer.schedule(handler, str(folder), recursive=True)
            observer.start()
        except OSError as error:  # more folders than the system watches for one user, say
            self._say(f"the system cannot watch ({error.strerror}); looking every {self._config.poll_s:g} s instead")
            yield False
            return
        self._rewatch = watch_again
        try:
            yield True
        finally:
            observer.stop()
            observer.join(timeout=5)


class _Handler:
    """What watchdog calls with each event."""

    def __init__(self, touch: Callable[..., None]) -> None:
        self._touch = touch

    def dispatch(self, event: Any) -> None:
        if event.event_type in ("opened", "closed_no_write"):  # our own reading
            return
        paths = [Path(os.fsdecode(path)) for path in (event.src_path, event.dest_path) if path]
        # A folder that moved in or out is looked at from above: it may not be there any more.
        self._touch(*(path.parent for path in paths))


def _open_observer() -> Any:
    try:
        from watchdog.observers import Observer
    except ImportError:
        return None
    return Observer()


def _root_of(path: Path, folders: Sequence[Path]) -> Path | None:
    """The nearest folder at or above a path that is still there, if it lies in one of the watched folders."""
    for folder in folders:
        if path == folder or folder in path.parents:
            while not path.is_dir() and path != folder:
                path = path.parent
            return path
    return None


def _outermost(folders: Sequence[Path]) -> list[Path]:
    """Without those that lie in others of them."""
    unique = set(folders)
    return sorted(folder for folder in unique if not unique.intersection(folder.parents))
