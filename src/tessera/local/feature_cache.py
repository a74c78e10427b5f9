"""Local features kept on disk by image content and extractor: computed once, read back in a millisecond.

A cache beside the descriptors: a file that is damaged is set aside and an entry that does not read is as good as none,
since features can always be made again. Writes go through SQLite's log, so a crash leaves whole entries or none.
"""

from __future__ import annotations

import contextlib
import sqlite3
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tessera.errors import StorageError
from tessera.local.features import LocalFeatures
from tessera.storage import is_damage, open_database, set_aside

T = TypeVar("T")

_HEADER = struct.Struct("<IIIccII")  # checksum, features, columns, kind of number, has shapes, width, height
_KINDS = {b"f": "<f4", b"h": "<f2", b"u": "u1", b"s": "<i2"}
_TABLE = (
    "CREATE TABLE IF NOT EXISTS features "
    "(extractor TEXT, content TEXT, entry BLOB NOT NULL, PRIMARY KEY (extractor, content))"
)
_WRITE_AT_ONCE = 32
_IN_ONE_QUERY = 400


def encode_features(features: LocalFeatures, *, exact: bool = False) -> bytes:
    """One entry. Numbers go to half precision unless `exact`, which published figures want; positions never do."""
    descriptors = features.descriptors
    real = b"f" if exact else b"h"
    kind = b"u" if features.is_binary else b"s" if descriptors.dtype.kind == "i" else real
    parts = [np.ascontiguousarray(descriptors, _KINDS[kind]).tobytes()]
    arrays = (features.positions, features.scales, features.strengths, features.shapes)
    parts += [np.ascontiguousarray(array, "<f4").tobytes() for array in arrays if array is not None]
    body = b"".join(parts)
    has_shapes = b"y" if features.shapes is not None else b"n"
    head = _HEADER.pack(0, *descriptors.shape, kind, has_shapes, *features.image_size)
    return struct.pack("<I", zlib.crc32(body, zlib.crc32(head[4:]))) + head[4:] + body


def decode_features(blob: bytes) -> LocalFeatures | None:
    """The entry, or None where it is damaged."""
    if len(blob) < _HEADER.size:
        return None
    checksum, count, columns, kind, has_shapes, width, height = _HEADER.unpack_from(blob)
    body = blob[_HEADER.size :]
    whole = zlib.crc32(body, zlib.crc32(blob[4 : _HEADER.size]))
    if checksum not in (whole, zlib.crc32(body)) or kind not in _KINDS:  # the second is how 0.1 wrote them
        return None
    dtype = np.dtype(_KINDS[kind])
    split = count * columns * dtype.itemsize
    if len(body) != split + 4 * count * (8 if has_shapes == b"y" else 4):
        return None
    descriptors = np.frombuffer(body[:split], dtype).reshape(count, columns)
    numbers = np.frombuffer(body[split:], "<f4")
    positions, scales, strengths, shapes = np.split(numbers, [2 * count, 3 * count, 4 * count])
    return LocalFeatures(
        descriptors.astype(np.float32) if kind in (b"h", b"f") else descriptors,
        positions.reshape(count, 2),
        scales,
        strengths,
        shapes.reshape(count, 2, 2) if has_shapes == b"y" else None,
        (width, height),
    )


def as_stored(features: LocalFeatures) -> LocalFeatures:
    """The features as a store gives them back, so that a search answers the same before and after storing."""
    stored = decode_features(encode_features(features))
    assert stored is not None
    return stored


class FeatureCache:
    """Features by content and extractor, in one SQLite file. May be used from several threads.

    exact: keep descriptors in single precision, so that what is read back is what was made. Entries wait in memory
    until some can be written at once: a transaction that is open while features are made would lock out other
    processes.
    """

    def __init__(self, path: Path, *, exact: bool = False) -> None:
        self.path, self.exact = path, exact
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, str], bytes] = {}
        self._database = open_database(path, _TABLE)

    def get_many(self, extractor: str, contents: Sequence[str]) -> dict[str, LocalFeatures]:
        """Those of the features that are there and whole."""
        found: dict[str, LocalFeatures] = {}
        for start in range(0, len(contents), _IN_ONE_QUERY):
            part = contents[start : start + _IN_ONE_QUERY]
            marks = ",".join("?" * len(part))
            query = f"SELECT content, entry FROM features WHERE extractor = ? AND content IN ({marks})"
            entries = dict(self._rows(query, extractor, *part))
            with self._lock:
                waiting = {key: self._waiting.get((extractor, key)) for key in part}
            for content, entry in (entries | {key: entry for key, entry in waiting.items() if entry}).items():
                features = decode_features(entry)
                if features is not None:
                    found[content] = features
        return found

    def known(self, extractor: str) -> set[str]:
        """The contents that have features of this extractor."""
        rows = self._rows("SELECT content FROM features WHERE extractor = ?", extractor)
        with self._lock:
            return {row[0] for row in rows} | {content for name, content in self._waiting if name == extractor}

    def put(self, extractor: str, content: str, features: LocalFeatures) -> None:
        entry = encode_features(features, exact=self.exact)

        def wait_or_write() -> None:
            self._waiting[extractor, content] = entry
            if len(self._waiting) >= _WRITE_AT_ONCE:
                self._write()

        self._run(wait_or_write)

    def keep_only(self, contents: Iterable[str]) -> int:
        """Drop the features of contents that are no longer wanted; returns how many entries went."""
        wanted = set(contents)
        self.flush()
        rows = self._rows("SELECT DISTINCT content FROM features")
        return self._delete("content = ?", [(row[0],) for row in rows if row[0] not in wanted])

    def drop_damaged(self) -> int:
        """Drop the entries that do not read; returns how many there were."""
        one = "SELECT entry FROM features WHERE extractor = ? AND content = ?"
        keys = self._rows("SELECT extractor, content FROM features")
        bad = [key for key in keys if any(decode_features(row[0]) is None for row in self._rows(one, *key))]
        return self._delete("extractor = ? AND content = ?", bad)

    def describe(self) -> dict[str, dict[str, int]]:
        """For each extractor how many images have features, and their bytes."""
        rows = self._rows("SELECT extractor, count(*), sum(length(entry)) FROM features GROUP BY 1")
        return {extractor: {"images": count, "bytes": size} for extractor, count, size in rows}

    def flush(self) -> None:
        self._run(self._write)

    def close(self) -> None:
        with contextlib.suppress(StorageError):
            self.flush()
        self._database.close()

    def _write(self) -> None:
        entries = [(*key, entry) for key, entry in self._waiting.items()]
        with self._database:
            self._database.executemany("INSERT OR REPLACE INTO features VALUES (?, ?, ?)", entries)
        self._waiting.clear()

    def _delete(self, where: str, keys: Sequence[tuple[str, ...]]) -> int:
        def delete() -> int:
            with self._database:
                cursor = self._database.executemany(f"DELETE FROM features WHERE {where}", keys)
            return max(cursor.rowcount, 0)

        return self._run(delete)

    def _rows(self, query: str, *parameters: str) -> list[tuple[Any, ...]]:
        return self._run(lambda: self._database.execute(query, parameters).fetchall())

    def _run(self, action: Callable[[], T]) -> T:
        """Use the database by one thread at a time. A damaged file is set aside, and an empty one takes its place."""
        with self._lock:
            try:
                try:
                    return action()
                except sqlite3.DatabaseError as error:
                    if not is_damage(error):
                        raise
                self._database.close()
                set_aside(self.path)
                self._database = open_database(self.path, _TABLE)
                return action()
            except sqlite3.Error as error:
                raise StorageError(
                    f"{self.path} cannot be used ({error}). Free some space or check its permissions; what was stored "
                    "is not lost."
                ) from error


def find_damage(path: Path) -> str | None:
    """What is wrong with a file of features, in words; None for one that is whole or not there."""
    if not path.is_file():
        return None
    try:
        with contextlib.closing(sqlite3.connect(path)) as database:
            (said,) = database.execute("PRAGMA integrity_check(1)").fetchone()
            if said != "ok":
                return f"The local features in {path} are damaged: {said.splitlines()[0]}."
            rows = database.execute("SELECT entry FROM features")
            bad = sum(decode_features(entry) is None for (entry,) in rows)
    except sqlite3.Error as error:
        return f"The local features in {path} are damaged: {error}."
    return f"{bad} entries of the local features in {path} are damaged." if bad else None
