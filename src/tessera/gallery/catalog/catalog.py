"""The catalogue: the SQLite file that is the truth of a gallery."""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tessera.errors import GalleryDamagedError, GalleryError
from tessera.gallery.catalog.batch import Batch
from tessera.gallery.catalog.commit_mark import CommitMark, put_mark, read_mark, refuse_lost_commits
from tessera.gallery.catalog.filters import contains, distance_m, file_name, number
from tessera.gallery.catalog.schema import (
    FrozenConnection,
    check_identity,
    connect,
    latest_version,
    prepare,
    translated_errors,
)
from tessera.gallery.catalog.snapshot import Snapshot
from tessera.storage import sync_folder

CATALOG_NAME = "catalog.sqlite"


@dataclass(frozen=True)
class _Opened:
    """A connection, the file that it was opened to, and the process that opened it."""

    connection: sqlite3.Connection
    file: tuple[int, int]  # device and inode
    pid: int

    @property
    def is_inherited(self) -> bool:
        """Whether it came over with a fork: it then believes in locks that this process does not hold."""
        return self.pid != os.getpid()


_INHERITED: list[_Opened] = []  # kept and never used: closing one could take the file from under its owner


def _file_at(path: Path) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_dev, status.st_ino
    return None


class Catalog:
    """Connections to one catalogue: a reader of its own for each thread that reads at once, and one writer.

    The write-ahead log lets readers go on while a writer commits; who may write is decided by `writer_lock`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: queue.LifoQueue[_Opened] = queue.LifoQueue()
        self._write_lock = threading.RLock()
        self._writer: _Opened | None = None
        self._uuid: str | None = None  # of the gallery that was opened first

    def needs_preparing(self) -> bool:
        """Whether the catalogue is yet to be made or of an older version."""
        if not self.path.is_file():
            return True
        mark = read_mark(self.path)
        with translated_errors(self.path), contextlib.closing(connect(self.path, read_only=True)) as connection:
            version = check_identity(connection, self.path)
            if version > 0:
                refuse_lost_commits(self.path, mark, connection)
        if version == 0:
            self.refuse_emptied()
        return version < latest_version()

    def refuse_emptied(self) -> None:
        """An empty file is a catalogue that is yet to be made, unless there is an index of what it held."""
        if any((self.path.parent / name).is_dir() for name in ("index", "postings")):
            raise GalleryDamagedError(
                f"The catalogue {self.path} is damaged: it is empty, but there is an index of what it held. Bring it "
                "back from a copy; or move this gallery away, then index the pictures again."
            )

    def prepare(self) -> None:
        """Make the catalogue or bring it up to date; the caller holds the writer's lock."""
        with translated_errors(self.path):
            connection = connect(self.path)
            try:
                prepare(connection, self.path)
            finally:
                connection.close()
        sync_folder(self.path.parent)  # SQLite syncs the names of its logs only

    @contextlib.contextmanager
    def read(self) -> Iterator[Snapshot]:
        """One consistent view; do not keep it open longer than needed, the log cannot shrink meanwhile."""
        with translated_errors(self.path):
            opened = self._borrow()
            connection = opened.connection
            try:
                connection.execute("BEGIN")
                yield Snapshot(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if isinstance(connection, FrozenConnection):
                    connection.close()
                else:
                    self._idle.put(opened)

    @contextlib.contextmanager
    def write(self) -> Iterator[Batch]:
        """One transaction: stored, synced to disk, when the block ends; undone when it raises."""
        with self._write_lock, translated_errors(self.path):
            # Kept open: closing the last connection folds the log into the file, too much to do for every batch.
            connection = self._open_writer()
            try:
                connection.execute("BEGIN IMMEDIATE")
                batch = Batch(connection)
                yield batch
                batch.finish()
                mark = CommitMark(str(self._uuid), batch.generation)
                connection.execute("COMMIT")
                if batch.changed:
                    put_mark(self.path, mark)
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def generation(self) -> int:
        with self.read() as snapshot:
            return snapshot.generation

    def close(self) -> None:
        with self._write_lock:
            self._forget_inherited()
            if self._writer is not None:
                self._writer.connection.close()
                self._writer = None
        while (idle := self._take_idle()) is not None:
            idle.connection.close()

    def _borrow(self) -> _Opened:
        """A reader's connection: an idle one, unless a repair has put the file that it reads aside."""
        current = _file_at(self.path)
        idle = self._take_idle()
        if idle is None:
            return self._open(read_only=True)
        if current in (idle.file, None):
            return idle
        try:
            fresh = self._open(read_only=True)
        except GalleryError:  # another gallery was made in its place: what was opened can still be read
            return idle
        idle.connection.close()
        return fresh

    def _take_idle(self) -> _Opened | None:
        """A free connection of this process."""
        while True:
            try:
                idle = self._idle.get_nowait()
            except queue.Empty:
                return None
            if not idle.is_inherited:
                return idle
            _INHERITED.append(idle)

    def _forget_inherited(self) -> None:
        if self._writer is not None and self._writer.is_inherited:
            _INHERITED.append(self._writer)
            self._writer = None

    def _open_writer(self) -> sqlite3.Connection:
        """The writer's connection, to the file that is there now: what went into one put aside would be lost."""
        self._forget_inherited()
        if self._writer is not None and self._writer.file != _file_at(self.path):
            self._writer.connection.close()
            self._writer = None
        self._writer = self._writer or self._open(read_only=False)
        return self._writer.connection

    def _open(self, *, read_only: bool) -> _Opened:
        while True:
            file = _file_at(self.path)
            if file is None:
                raise GalleryError(f"There is no gallery at {self.path.parent}. Make one with `tessera index PHOTOS`.")
            mark = read_mark(self.path)
            connection = connect(self.path, read_only=read_only)
            try:
                self._check_version(connection)
                refuse_lost_commits(self.path, mark, connection)
                self._check_uuid(connection)
                connection.create_function("tessera_number", 1, number, deterministic=True)
                connection.create_function("tessera_distance", 4, distance_m, deterministic=True)
                connection.create_function("tessera_name", 1, file_name, deterministic=True)
                connection.create_function("tessera_contains", 2, contains, deterministic=True)
            except BaseException:
                connection.close()
                raise
            if file == _file_at(self.path):
                return _Opened(connection, file, os.getpid())
            connection.close()  # it was replaced at the same moment

    def _check_uuid(self, connection: sqlite3.Connection) -> None:
        row = connection.execute("SELECT value FROM settings WHERE key = 'uuid'").fetchone()
        found = None if row is None else str(row[0])
        if self._uuid not in (found, None):
            raise GalleryError(f"The gallery at {self.path.parent} was deleted and made anew meanwhile. Open it again.")
        self._uuid = found

    def _check_version(self, connection: sqlite3.Connection) -> None:
        version = check_identity(connection, self.path)
        if version == 0:
            raise GalleryError(f"The catalogue {self.path} is empty. Run `tessera index` to fill it.")
        if version < latest_version():
            raise GalleryError(
                f"The catalogue {self.path} is of an older version ({version}; now {latest_version()}). "
                "Run `tessera check --repair` once to bring it up to date; nothing is lost."
            )
