"""Saving what can be read of a damaged catalogue into a new one, and putting that in its place in one step."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tessera.errors import GalleryDamagedError, GalleryError
from tessera.gallery.catalog.batch import FEATURES_LOST, LOST_DESCRIPTOR
from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.catalog.checksums import GUARDED, row_checksum, seal_in_sql
from tessera.gallery.catalog.commit_mark import bring_back_log, read_mark
from tessera.gallery.catalog.metadata import readable_metadata
from tessera.gallery.catalog.repair.damage import MAX_ID
from tessera.gallery.catalog.repair.pages import PageFile, Row
from tessera.gallery.catalog.schema import (
    PAGE_BYTES,
    check_identity,
    connect,
    prepare,
    put_setting,
    translated_errors,
)
from tessera.gallery.catalog.snapshot import COMMONEST_MODEL
from tessera.storage import storage_error, sync_folder

SIDE_FILES = ("-wal", "-shm", "-journal")
_TABLES = ("contents", "local_features", "images", "ignored", "pairs")
_SETTINGS_KINDS = (str, int, float, type(None))
# A content that lost both its images and its local features: `index` would take it for whole when the file is found.
_DELETE_REMNANTS = (
    "DELETE FROM contents WHERE id NOT IN (SELECT content_id FROM images WHERE content_id IS NOT NULL) "
    "AND hash NOT IN (SELECT hash FROM local_features)"
)
_LACKING_FEATURES = "SELECT 1 FROM contents WHERE hash NOT IN (SELECT hash FROM local_features) LIMIT 1"


def salvage_catalog(catalog: Catalog) -> str:
    """Copy every row that can be read into a new catalogue and put the damaged one aside; a sentence on the outcome.

    The caller holds the writer's lock.
    """
    catalog.close()
    path = catalog.path
    fresh = path.with_name(f"{path.name}.salvaged")
    try:
        _remove_with_log(fresh)
        with translated_errors(fresh), contextlib.closing(connect(fresh)) as target:
            prepare(target, fresh)
            log_is_damaged = bring_back_log(path)
            source = PageFile(path, page_bytes=PAGE_BYTES, past_damage=log_is_damaged)
            try:
                images = _copy(source, target, path, had_features=(path.parent / "postings").is_dir())
            finally:
                source.close()
            target.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if images is None:
            _remove_with_log(fresh)
            raise GalleryDamagedError(
                f"Nothing could be read of the catalogue {path}. Move it away, then index the pictures again."
            )
        _sync(fresh)
        fresh.replace(_repaired(path))  # from here on it counts: the next process to open it finishes the rest
    except OSError as error:
        raise storage_error(error, path) from error
    aside = finish_repair(path)
    back = "" if source.has_head else " Its first page is lost, so images that were removed lately may be back."
    if log_is_damaged:
        back = " A part of its log is lost: what was stored or removed last may be as it was before."
    return (
        f"{images} images were saved; the damaged file is kept as {aside.name}.{back} Run `tessera index` for the rest."
    )


def repair_is_unfinished(path: Path) -> bool:
    """Whether a repair was interrupted: between its steps, or by an older Tessera between its two renamings."""
    return _repaired(path).exists() or (not path.exists() and bool(_remains(path)))


def finish_repair(path: Path) -> Path:
    """Put the repaired catalogue in the place of the damaged one, which is kept under the name that is returned.

    Killed at any moment, it can be called again; there is a catalogue at `path` all the time. For the lock's holder.
    """
    try:
        if not path.exists():
            _bring_back(path)
        aside = _put_aside(path)
        for suffix in SIDE_FILES:  # SQLite would take the old one's log for the new one's
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        if _repaired(path).exists():
            _repaired(path).replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise storage_error(error, path) from error
    return aside


def _repaired(path: Path) -> Path:
    return path.with_name(f"{path.name}.repaired")


def _remains(path: Path) -> list[Path]:
    """What is left of a catalogue that is not there: the new one, then those that were put aside, newest first."""
    damaged = sorted(path.parent.glob(f"{path.name}.damaged-*"), key=lambda found: found.stat().st_mtime_ns)
    salvaged = path.with_name(f"{path.name}.salvaged")
    aside = [found for found in damaged if not found.name.endswith(SIDE_FILES)]
    return [*([salvaged] if _is_whole(salvaged) else []), *reversed(aside)]


def _bring_back(path: Path) -> None:
    """After an older Tessera was killed between its two renamings: the new catalogue if it is whole, else the old."""
    found = _remains(path)[0]
    for suffix in SIDE_FILES:
        with contextlib.suppress(FileNotFoundError):
            shutil.copy2(found.with_name(found.name + suffix), path.with_name(path.name + suffix))
    shutil.copy2(found, _repaired(path))
    _sync(_repaired(path))
    _repaired(path).replace(path)
    sync_folder(path.parent)


def _is_whole(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with contextlib.closing(connect(path, read_only=True)) as connection:
            rows = connection.execute("PRAGMA integrity_check(1)").fetchall()
            return check_identity(connection, path) > 0 and rows == [("ok",)]
    except (sqlite3.Error, GalleryError):
        return False


def _put_aside(path: Path) -> Path:
    """Give the damaged files a second name, under which they stay; the one they have already, if this was done."""
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        if os.path.samefile(aside, path):  # noqa: PTH121 - of two names
            return aside
        number += 1
    for suffix in (*SIDE_FILES, ""):  # the catalogue itself last: its name says that the others are there
        side = path.with_name(path.name + suffix)
        if side.exists():
            _link(side, aside.with_name(aside.name + suffix))
    sync_folder(path.parent)
    return aside


def _link(path: Path, other: Path) -> None:
    other.unlink(missing_ok=True)
    try:
        other.hardlink_to(path)
    except OSError:  # a file system without such links
        shutil.copy2(path, other)
        _sync(other)


def _sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def _remove_with_log(path: Path) -> None:
    for suffix in ("", *SIDE_FILES):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _copy(source: PageFile, target: sqlite3.Connection, path: Path, *, had_features: bool) -> int | None:
    """Fill an empty catalogue with what can be read; how many images there are, None if there was nothing at all.

    had_features: whether its images had local features, which are made again where they are lost.
    """
    roots = source.tables()
    target.execute("BEGIN")
    settings = {row[1]: row[2] for row in _walk(source, roots, "settings") if _is_setting(row)}
    sequence = max((row[2] for row in _walk(source, roots, "sqlite_sequence") if _is_sequence(row)), default=0)
    copied = 0
    for table in _TABLES:
        for row in _walk(source, roots, table):
            copied += _insert(target, table, row)
    for row in source.stray_rows():
        if _is_setting(row):
            settings.setdefault(row[1], row[2])
        for table in _TABLES:
            # Without a checksum nothing tells a row of these tables from a bit of an index.
            if table not in ("ignored", "pairs") or len(row) > 1 + len(GUARDED[f"{table}.checksum"]):
                copied += _insert(target, table, row)
    settings.pop("version", None)  # the new catalogue has its own
    for key, value in settings.items():
        put_setting(target, key, value)
    if not settings and not copied:
        target.execute("ROLLBACK")
        return None
    if had_features:
        target.execute(_DELETE_REMNANTS)
        if target.execute(_LACKING_FEATURES).fetchone() is not None:
            put_setting(target, FEATURES_LOST, 1)
    _make_consistent(target, sequence, last_committed=mark.generation if (mark := read_mark(path)) else 0)
    target.execute("COMMIT")
    return int(target.execute("SELECT count(content_id) FROM images").fetchone()[0])


def _walk(source: PageFile, roots: dict[str, int], table: str) -> Iterator[Row]:
    return source.walk(roots[table]) if table in roots else iter(())


def _is_setting(row: Row) -> bool:
    is_one = len(row) in (3, 4) and row[0] is None and isinstance(row[1], str) and isinstance(row[2], _SETTINGS_KINDS)
    return is_one and (len(row) == 3 or row[3] == row_checksum(row[1], row[2]))


def _is_sequence(row: Row) -> bool:
    return len(row) == 3 and row[1] == "images" and isinstance(row[2], int) and 0 <= row[2] <= MAX_ID


def _insert(target: sqlite3.Connection, table: str, row: Row) -> int:
    """Store a row that has the form of this table's; what SQLite refuses, for being there twice say, is left out."""
    values = _VALUES[table](row)
    if values is None:
        return 0
    guarded = GUARDED[f"{table}.checksum"]
    checksum = row_checksum(*(values[column] for column in guarded))
    place = _CHECKSUM_AT[table]
    if len(row) > place and row[place] != checksum:
        return 0
    if table == "images":  # of two rows for one path, the later one is right
        target.execute("DELETE FROM images WHERE path = ? AND id < ?", (values["path"], row[0]))
    columns = {**values, "checksum": checksum}
    with contextlib.suppress(sqlite3.IntegrityError):
        marks = ",".join("?" * len(columns))
        statement = f"INSERT INTO {table} ({','.join(columns)}) VALUES ({marks})"
        return target.execute(statement, tuple(columns.values())).rowcount
    return 0


def _content_values(row: Row) -> dict[str, Any] | None:
    """A content's columns by name, if that is what the row is (its id comes first twice: as rowid and as NULL)."""
    kinds = (int, type(None), bytes, str, int, int, bytes)
    if not _has_form(row, *kinds) or not _is_id(row[0]) or len(row[2]) != 32 or not row[6] or len(row[6]) % 2:
        return None
    values = dict(zip(GUARDED["contents.checksum"], (row[0], *row[2:7]), strict=True))
    return {**values, **_optional(row, 8, 9, (row[0],), {"signature": (bytes, type(None))})}


def _features_values(row: Row) -> dict[str, Any] | None:
    """The columns of local features by name."""
    if not _has_form(row, int, type(None), bytes, str, bytes) or not _is_id(row[0]) or len(row[2]) != 32:
        return None
    return dict(zip(GUARDED["local_features.checksum"], (row[0], *row[2:5]), strict=True))


def _image_values(row: Row) -> dict[str, Any] | None:
    """An image's columns by name. Its state is left out of account: whether it has a content says as much."""
    kinds = (int, type(None), bytes, int, int, str, (str, type(None)), (int, type(None)), str)
    if not _has_form(row, *kinds) or not _is_id(row[0]):
        return None
    names = ("id", "path", "size", "mtime_ns", "state", "error", "content_id", "metadata")
    values = dict(zip(names, (row[0], *row[2:9]), strict=True))
    is_old = len(row) == len(kinds)  # before there were checksums, metadata could be what no filter can read
    metadata = readable_metadata(values["metadata"].encode()) if is_old else values["metadata"]
    optional = {"facts": (str, type(None)), "sidecar_ns": int}
    optional |= dict.fromkeys(("group_id", "group_rank"), (int, type(None)))
    more = _optional(row, 10, 14, (row[0],), optional)
    if more.get("facts") is not None and readable_metadata(more["facts"].encode()) != more["facts"]:
        more = {}
    return {**values, "state": "failed" if values["content_id"] is None else "ok", "metadata": metadata, **more}


def _ignored_values(row: Row) -> dict[str, Any] | None:
    """What `index` passes over: a path, and of a picture its hash."""
    if len(row) not in (3, 4) or not _has_form(row, type(None), bytes, (bytes, type(None))) or row[1][:1] != b"/":
        return None
    if row[2] is not None and len(row[2]) != 32:
        return None
    return {"path": row[1], "hash": row[2]}


def _pair_values(row: Row) -> dict[str, Any] | None:
    """Two contents that were compared."""
    if len(row) not in (5, 6) or not _has_form(row, type(None), str, bytes, bytes, (int, float)):
        return None
    return {"kind": row[1], "first": row[2], "second": row[3], "score": float(row[4])}


_VALUES = {
    "contents": _content_values,
    "local_features": _features_values,
    "images": _image_values,
    "ignored": _ignored_values,
    "pairs": _pair_values,
}
_CHECKSUM_AT = {"contents": 7, "local_features": 5, "images": 9, "ignored": 3, "pairs": 5}


def _optional(row: Row, start: int, checksum_at: int, key: Row, kinds: dict[str, Any]) -> dict[str, Any]:
    """The columns from `start` on by name, if they are there, of these kinds, and what their checksum is of."""
    found = row[start:checksum_at]
    fits = len(found) == len(kinds) and _has_form(found, *kinds.values())
    if not fits or (len(row) > checksum_at and row[checksum_at] != row_checksum(*key, *found)):
        return {}
    return dict(zip(kinds, found, strict=True))


def _is_id(number: int) -> bool:
    return 0 < number <= MAX_ID


def _has_form(row: Row, *kinds: type | tuple[type, ...]) -> bool:
    return len(row) >= len(kinds) and all(isinstance(value, kind) for value, kind in zip(row, kinds, strict=False))


def _make_consistent(target: sqlite3.Connection, sequence: int, last_committed: int) -> None:
    """Images whose content was lost keep the rest: the next `index` describes them again. Indexes start over."""
    target.execute(
        "UPDATE images SET state = 'failed', content_id = NULL, mtime_ns = -1, error = ? "
        "WHERE content_id IS NOT NULL AND content_id NOT IN (SELECT id FROM contents)",
        (LOST_DESCRIPTOR,),
    )
    target.execute("DELETE FROM local_features WHERE hash NOT IN (SELECT hash FROM contents)")
    target.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'images'", (sequence,))
    known = dict(target.execute("SELECT key, value FROM settings").fetchall())
    generation = max(known["generation"] if isinstance(known.get("generation"), int) else 0, last_committed) + 1
    settings: dict[str, Any] = {
        "searchable": target.execute("SELECT count(content_id) FROM images").fetchone()[0],
        "generation": generation,
        "removals_since": generation,
    }
    commonest = target.execute(COMMONEST_MODEL).fetchone()
    if commonest is not None:  # where the settings were lost, the rows still say which model made them
        settings |= {
            key: value for key, value in zip(("fingerprint", "dim"), commonest, strict=True) if key not in known
        }
    for key, value in settings.items():
        put_setting(target, key, value)
    for guard in ("images.checksum", "images.facts_checksum", "contents.signature_checksum"):
        target.execute(seal_in_sql(guard))
