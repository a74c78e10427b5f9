"""How far the catalogue has been committed, written beside it: what tells that its log was lost.

SQLite cannot tell a write-ahead log that lost its end, or all of it, from one that was never longer: what a killed
process had committed would be gone without a word, and an index of it would be believed later on. So each commit is
followed by a mark. It is not synced, since it may be late but never early: a catalogue that is behind its mark has lost
something.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from tessera.errors import GalleryDamagedError
from tessera.gallery.catalog.checksums import row_checksum
from tessera.storage import atomic_path

_SUFFIX = ".committed"
_KEPT_LOG = "-wal.kept"
_MAX_BYTES = 200


@dataclass(frozen=True)
class CommitMark:
    """The generation that was last committed, and of which catalogue."""

    uuid: str
    generation: int


def put_mark(catalog_path: Path, mark: CommitMark) -> None:
    """Written in place, by one call. A full disk stops nobody: without the mark, damage is only seen less well."""
    line = f"{mark.uuid} {mark.generation:019d} {row_checksum(mark.uuid, mark.generation):010d}\n"
    with contextlib.suppress(OSError):
        handle = os.open(_mark_path(catalog_path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(handle, line.encode("utf-8", "replace"), 0)
        finally:
            os.close(handle)


def read_mark(catalog_path: Path) -> CommitMark | None:
    """The mark, if there is one that has its checksum. To be read before the catalogue, which may move on meanwhile."""
    with contextlib.suppress(OSError, ValueError), _mark_path(catalog_path).open("rb") as file:
        line = file.read(_MAX_BYTES).decode().partition("\n")[0]
        uuid, generation, checksum = line.rsplit(" ", 2)
        mark = CommitMark(uuid, int(generation))
        return mark if row_checksum(uuid, mark.generation) == int(checksum) else None
    return None


def refuse_lost_commits(catalog_path: Path, mark: CommitMark | None, connection: sqlite3.Connection) -> None:
    """Raise where the catalogue is behind its mark; what is left of its log is kept first, for SQLite will delete it.

    mark: read before `connection` was opened.
    """
    if mark is None:
        return
    found = {}
    with contextlib.suppress(sqlite3.OperationalError):  # versions before the third have no checksums
        rows = connection.execute("SELECT key, value, checksum FROM settings WHERE key IN ('uuid', 'generation')")
        found = {key: value for key, value, checksum in rows if checksum == row_checksum(key, value)}
    generation = found.get("generation")
    if found.get("uuid") != mark.uuid or not isinstance(generation, int) or generation >= mark.generation:
        return
    _keep_log(catalog_path)
    raise GalleryDamagedError(
        f"The catalogue {catalog_path} has lost what was stored last: it is at generation {generation}, and "
        f"{mark.generation} was committed. Its log ({catalog_path.name}-wal) was damaged or deleted, or an older copy "
        "was put here. `tessera check --repair` saves what can still be read and goes on from there."
    )


def bring_back_log(catalog_path: Path) -> bool:
    """Put the log that was kept in its place again, for a repair, which reads it past its damage; whether there is one.

    The caller holds the writer's lock.
    """
    kept = _log_path(catalog_path, _KEPT_LOG)
    if not kept.is_file():
        return False
    _log_path(catalog_path, "-shm").unlink(missing_ok=True)
    kept.replace(_log_path(catalog_path, "-wal"))
    return True


def _keep_log(catalog_path: Path) -> None:
    log, kept = _log_path(catalog_path, "-wal"), _log_path(catalog_path, _KEPT_LOG)
    with contextlib.suppress(OSError):
        if log.stat().st_size > 0 and not kept.exists():
            with atomic_path(kept) as temporary:
                shutil.copyfile(log, temporary)


def _mark_path(catalog_path: Path) -> Path:
    return catalog_path.with_name(f"{catalog_path.name}{_SUFFIX}")


def _log_path(catalog_path: Path, suffix: str) -> Path:
    return catalog_path.with_name(f"{catalog_path.name}{suffix}")
