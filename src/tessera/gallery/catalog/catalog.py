"""The catalogue: the SQLite file that is the truth of a gallery."""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from tessera.errors import GalleryError
from tessera.gallery.catalog.batch import Batch
from tessera.gallery.catalog.filters import distance_m, number
from tessera.gallery.catalog.schema import (
    FrozenConnection,
    check_identity,
    connect,
    latest_version,
    prepare,
    translated_errors,
)
from tessera.gallery.catalog.snapshot import Snapshot

CATALOG_NAME = "catalog.sqlite"


class Catalog:
    """Connections to one catalogue: a reader of its own for each thread that reads at once, and one writer.

    The write-ahead log lets readers go on while a writer commits; who may write is decided by `writer_lock`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._idle: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._write_lock = threading.RLock()
        self._writer: sqlite3.Connection | None = None
        self._checked = False

    def needs_preparing(self) -> bool:
        """Whether the catalogue is yet to be made or of an older version."""
        if not self.path.is_file():
            return True
        with translated_errors(self.path), contextlib.closing(connect(self.path, read_only=True)) as connection:
            return check_identity(connection, self.path) < latest_version()

    def prepare(self) -> None:
        """Make the catalogue or bring it up to date; the caller holds the writer's lock."""
        with translated_errors(self.path):
            connection = connect(self.path)
            try:
                prepare(connection, self.path)
            finally:
                connection.close()

    @contextlib.contextmanager
    def read(self) -> Iterator[Snapshot]:
        """One consistent view; do not keep it open longer than needed, the log cannot shrink meanwhile."""
        with translated_errors(self.path):
            connection = self._borrow()
            try:
                connection.execute("BEGIN")
                yield Snapshot(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if isinstance(connection, FrozenConnection):
                    connection.close()
                else:
                    self._idle.put(connection)

    @contextlib.contextmanager
    def write(self) -> Iterator[Batch]:
        """One transaction: stored, synced to disk, when the block ends; undone when it raises."""
        with self._write_lock, translated_errors(self.path):
            # Kept open: closing the last connection folds the log into the file, too much to do for every batch.
            connection = self._writer = self._writer or self._open(read_only=False)
            try:
                connection.execute("BEGIN IMMEDIATE")
                batch = Batch(connection)
                yield batch
                batch.finish()
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def generation(self) -> int:
        with self.read() as snapshot:
            return snapshot.generation

    def close(self) -> None:
        with self._write_lock:
            if self._writer is not None:
                self._writer.close()
                self._writer = None
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return

    def _borrow(self) -> sqlite3.Connection:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            return self._open(read_only=True)

    def _open(self, *, read_only: bool) -> sqlite3.Connection:
        if not self.path.is_file():
            raise GalleryError(f"There is no gallery at {self.path.parent}. Make one with `tessera index PHOTOS`.")
        connection = connect(self.path, read_only=read_only)
        try:
            if not self._checked:
                self._check_version(connection)
                self._checked = True
            connection.create_function("tessera_number", 1, number, deterministic=True)
            connection.create_function("tessera_distance", 4, distance_m, deterministic=True)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_version(self, connection: sqlite3.Connection) -> None:
        version = check_identity(connection, self.path)
        if version == 0:
            raise GalleryError(f"The catalogue {self.path} is empty. Run `tessera index` to fill it.")
        if version < latest_version():
            raise GalleryError(
                f"The catalogue {self.path} is of an older version ({version}; now {latest_version()}). "
                "Run `tessera check --repair` once to bring it up to date; nothing is lost."
            )
