"""What the system tells of folders: that something has happened in them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tessera.gallery.ingest.mounts import mounted_in


class FolderEvents:
    """The events of some folders, by the package watchdog. `touch` is called with the folders to look at."""

    def __init__(self, folders: Iterable[Path], touch: Callable[..., None]) -> None:
        """OSError where the system cannot watch so many; ImportError where the package is missing."""
        from watchdog.observers import Observer

        self._touch = touch
        self._observer: Any = Observer()
        self._watches: dict[Path, Any] = {}
        self._places: dict[Path, Any] = {}
        for folder in folders:
            self._schedule(folder)
        self._observer.start()

    def _schedule(self, folder: Path) -> None:
        self._places[folder] = _place(folder)
        self._watches[folder] = self._observer.schedule(self, str(folder), recursive=True)

    def follow_again(self, folder: Path) -> None:
        """Watch what lies at this path now: the old watch is on a folder that went away."""
        with contextlib.suppress(OSError, KeyError):
            self._observer.unschedule(self._watches[folder])
        with contextlib.suppress(OSError):
            self._schedule(folder)

    def is_deaf(self, folder: Path) -> bool:
        """Whether nothing is heard of a folder, or of a part: it was moved away and may be back, or a disk came."""
        watch = self._watches[folder]
        if self._places[folder] != _place(folder):
            return True
        return not any(emitter.watch == watch and emitter.is_alive() for emitter in self._observer.emitters)

    def dispatch(self, event: Any) -> None:
        """What watchdog calls with each event."""
        if event.event_type in ("opened", "closed_no_write"):  # our own reading
            return
        paths = [Path(os.fsdecode(path)) for path in (event.src_path, event.dest_path) if path]
        # A folder that moved in or out is looked at from above: it may not be there any more.
        self._touch(*(path.parent for path in paths))

    def stop(self) -> None:
        self._observer.stop()
        self._observer.join(timeout=5)


def _place(folder: Path) -> tuple[int, int, frozenset[Path]] | None:
    """Which folder lies at a path, and the disks in it: events follow the folder, not the path."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, mounted_in(folder)
