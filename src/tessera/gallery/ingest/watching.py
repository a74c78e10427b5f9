"""Following folders: what is new, changed, moved or deleted in them goes into the gallery, in batches.

Events only say where to look; what has happened there is found by an index run over those folders, as it would be by
hand. A lost event therefore costs time and nothing else: now and then everything is looked at, and polling is the same
thing with a clock for the events.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tessera.errors import GalleryLockedError, TesseraError, UsageError, printable
from tessera.gallery.ingest.folder_events import FolderEvents
from tessera.gallery.ingest.mounts import mounted_in
from tessera.gallery.results import IndexReport

if TYPE_CHECKING:
    from tessera.gallery.gallery import Gallery

Say = Callable[[str], None]


@dataclass(frozen=True)
class WatchConfig:
    """quiet_s: a batch begins when nothing has happened for so long, since copying a picture takes a while.

    most_s: but no later than this after the first event. poll_s: how often to look where there are no events.
    all_s: how often to look everywhere where there are: the system may lose some. retry_s: when to try again what could
    not be done, because another process was writing, say.
    """

    quiet_s: float = 0.5
    most_s: float = 10.0
    poll_s: float = 5.0
    all_s: float = 600.0
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
        self._events: FolderEvents | None = None
        self._lost: set[Path] = set()
        self._disks: dict[Path, frozenset[Path]] = {folder: frozenset() for folder in self.folders}
        self._lost_disks: set[Path] = set()
        self._looked_at = 0.0  # when everything was
        self._touched: set[Path] = set()
        self._first = self._last = 0.0
        self._lock = threading.Lock()
        self._woken = threading.Event()

    def run(self) -> None:
        """Index the folders once, then follow them."""
        with self._listening():
            self._touch(*self.folders)
            pending: set[Path] = set()
            while not self.stop.is_set():
                pending |= self._wait()
                if not pending or self.stop.is_set():
                    continue
                if self._follow(pending):
                    pending = set()
                else:
                    self.stop.wait(self._config.retry_s)

    def _wait(self) -> set[Path]:
        """The folders where something has happened, once it has been quiet there; without events, all of them."""
        woken = self._woken.wait(self._config.poll_s)
        if not woken:
            return {folder for folder in self.folders if self._must_look(folder)}
        while not self.stop.wait(self._config.quiet_s / 4):
            with self._lock:
                now = time.monotonic()
                if now - self._last >= self._config.quiet_s or now - self._first >= self._config.most_s:
                    touched, self._touched = self._touched, set()
                    self._woken.clear()
                    return touched
        return set()

    def _must_look(self, folder: Path) -> bool:
        """Whether to look into a folder of which nothing was heard. One that was moved away tells nothing."""
        if self._events is None or folder in self._lost or time.monotonic() - self._looked_at > self._config.all_s:
            return True
        if self._events.is_deaf(folder):
            self._events.follow_again(folder)
            return True
        return False

    def _follow(self, touched: set[Path]) -> bool:
        """Index what was touched; False if it must be tried again."""
        if touched.issuperset(self.folders):
            self._looked_at = time.monotonic()
        try:
            present = [folder for folder in self.folders if self._is_there(folder)]
            roots = {root for path in touched if (root := _root_of(path, present)) is not None}
            whole = {folder for folder in present if not self._disks[folder] & self._lost_disks}
            for prune in (True, False):  # where a disk is missing, its pictures stay
                chosen = [root for root in roots if prune == any(_lies_in(root, folder) for folder in whole)]
                if chosen:
                    self._tell(self._gallery.follow(*_outermost(chosen), links_within=self.folders, prune=prune))
        except GalleryLockedError:
            return False
        except (TesseraError, OSError) as error:  # a disk that fails in the midst of it
            self._say(f"{error}")
            return False
        return True

    def _tell(self, report: IndexReport) -> None:
        if report.added or report.changed or report.moved or report.pruned or report.failed:
            self._told(report)

    def _is_there(self, folder: Path) -> bool:
        """A watched folder that vanishes may be a disk that was taken out: its pictures stay until it is back.

        So does one that is suddenly empty: the place where a disk is mounted stays when the disk goes.
        """
        try:
            is_there = folder.is_dir() and (any(folder.iterdir()) or not self._gallery.holds(folder))
        except OSError:  # a disk that does not answer any more
            is_there = False
        if not is_there and folder not in self._lost:
            self._lost.add(folder)
            self._say(f"{printable(folder)} is gone. Its pictures stay in the gallery; it is watched when it is back.")
        elif is_there and folder in self._lost:
            self._lost.discard(folder)
            self._say(f"{printable(folder)} is back")
            if self._events is not None:
                self._events.follow_again(folder)
        if is_there:
            self._note_disks(folder)
        return is_there

    def _note_disks(self, folder: Path) -> None:
        """Remember which disks are mounted in a folder, and say once that one is gone."""
        mounted = mounted_in(folder)
        self._lost_disks -= mounted
        for place in sorted(self._disks[folder] - mounted - self._lost_disks):
            self._lost_disks.add(place)
            self._say(f"The disk at {printable(place)} is gone. Its pictures stay in the gallery.")
        self._disks[folder] |= mounted

    def _touch(self, *paths: Path) -> None:
        with self._lock:
            self._last = time.monotonic()
            if not self._touched:
                self._first = self._last
            self._touched.update(paths)
            self._woken.set()

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Let the system tell of changes, where the package for it is installed and the system can."""
        if self._config.events:
            try:
                self._events = FolderEvents(self.folders, self._touch)
            except ImportError:
                pass
            except OSError as error:  # more folders than the system watches for one user, say
                self._say(f"the system cannot watch ({error.strerror})")
        if self._events is None:
            self._say(f"looking for changes every {self._config.poll_s:g} s")
        try:
            yield
        finally:
            if self._events is not None:
                self._events.stop()


def _root_of(path: Path, folders: Sequence[Path]) -> Path | None:
    """The nearest folder at or above a path that is still there, if it lies in one of the watched folders."""
    for folder in folders:
        if _lies_in(path, folder):
            while not path.is_dir() and path != folder:
                path = path.parent
            return path
    return None


def _lies_in(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents


def _outermost(folders: Sequence[Path]) -> list[Path]:
    """Without those that lie in others of them."""
    unique = set(folders)
    return sorted(folder for folder in unique if not unique.intersection(folder.parents))
