"""Saving what can be read of a damaged catalogue into a new one."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tessera.errors import GalleryDamagedError
from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.catalog.schema import connect, prepare, translated_errors
from tessera.storage import sync_folder

_TABLES = ("settings", "contents", "images", "ignored")
_WITHOUT_ROWID = ("settings", "ignored")
_STEP = 256
_SIDE_FILES = ("-wal", "-shm", "-journal")


def salvage_catalog(catalog: Catalog) -> str:
    """Copy every row that can be read into a new catalogue and put the damaged one aside; a sentence on the outcome.

    The caller holds the writer's lock.
    """
    catalog.close()
    path = catalog.path
    fresh = path.with_name(f"{path.name}.salvaged")
    for left in (fresh, *(fresh.with_name(fresh.name + suffix) for suffix in _SIDE_FILES)):
        left.unlink(missing_ok=True)
    with translated_errors(fresh), contextlib.closing(connect(fresh)) as target:
        prepare(target, fresh)
        counts = {table: _copy_table(path, target, table) for table in _TABLES}
        _make_consistent(target)
        images = int(target.execute("SELECT count(*) FROM images").fetchone()[0])
        target.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if counts["settings"] == 0:
        fresh.unlink(missing_ok=True)
        raise GalleryDamagedError(
            f"Nothing could be read of the catalogue {path}. Move it away, then index the pictures again."
        )
    aside = _put_aside(path)
    fresh.replace(path)
    sync_folder(path.parent)
    return f"{images} images were saved; the damaged file is kept as {aside.name}. Run `tessera index` for the rest."


def _copy_table(damaged: Path, target: sqlite3.Connection, table: str) -> int:
    target.execute("BEGIN")
    copied = 0
    names = [row[1] for row in target.execute(f"PRAGMA table_info({table})")]
    for row in _readable_rows(damaged, table):
        # A catalogue of an older version has fewer columns: each version adds its own at the end.
        columns, marks = ",".join(names[: len(row)]), ",".join("?" * len(row))
        copied += target.execute(f"INSERT OR REPLACE INTO {table} ({columns}) VALUES ({marks})", row).rowcount
    target.execute("COMMIT")
    return copied


def _readable_rows(damaged: Path, table: str) -> Iterator[tuple[Any, ...]]:
    """Rows in pieces by rowid; a piece that cannot be read is halved until the bad rows are alone."""
    try:
        connection = connect(damaged, read_only=True)
    except sqlite3.Error:
        return
    with contextlib.closing(connection):
        if table in _WITHOUT_ROWID:
            yield from _all_or_nothing(connection, f"SELECT * FROM {table}")
            return
        last = _last_rowid(connection, table)
        pending = [(start, min(start + _STEP, last + 1)) for start in range(1, last + 1, _STEP)]
        pending.reverse()
        while pending:
            low, high = pending.pop()
            try:
                yield from connection.execute(
                    f"SELECT * FROM {table} WHERE rowid >= ? AND rowid < ?", (low, high)
                ).fetchall()
            except sqlite3.Error:
                if high - low > 1:
                    middle = (low + high) // 2
                    pending += [(middle, high), (low, middle)]


def _last_rowid(connection: sqlite3.Connection, table: str) -> int:
    """How far rowids go; where that page is unreadable, as far as the sequence says, or a generous guess."""
    for query in (f"SELECT max(rowid) FROM {table}", "SELECT max(seq) FROM sqlite_sequence"):
        rows = _all_or_nothing(connection, query)
        if rows and rows[0][0] is not None:
            return int(rows[0][0])
    return 0


def _all_or_nothing(connection: sqlite3.Connection, query: str) -> list[tuple[Any, ...]]:
    try:
        return connection.execute(query).fetchall()
    except sqlite3.Error:
        return []


def _make_consistent(target: sqlite3.Connection) -> None:
    """Images whose content was lost go: the next `index` describes them again. Indexes start over."""
    target.execute("BEGIN")
    target.execute("DELETE FROM images WHERE content_id IS NOT NULL AND content_id NOT IN (SELECT id FROM contents)")
    target.execute("DELETE FROM removals")
    target.execute("UPDATE settings SET value = (SELECT count(content_id) FROM images) WHERE key = 'searchable'")
    target.execute("UPDATE settings SET value = value + 1 WHERE key = 'generation'")
    target.execute(
        "UPDATE settings SET value = (SELECT value FROM settings WHERE key = 'generation') WHERE key = 'removals_since'"
    )
    target.execute("COMMIT")


def _put_aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    for suffix in _SIDE_FILES:
        side = path.with_name(path.name + suffix)
        if side.exists():
            side.replace(aside.with_name(aside.name + suffix))
    path.replace(aside)
    return aside
