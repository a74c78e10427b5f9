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
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from tessera.errors import StorageError
from tessera.local.features import LocalFeatures
from tessera.storage import open_database

_HEADER = struct.Struct("<IIIccII")  # checksum, features, columns, kind of number, has shapes, width, height
_KINDS = {b"f": "<f4", b"h": "<f2", b"u": "u1", b"s": "<i2"}
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
    rows, columns = descriptors.shape
    return _HEADER.pack(zlib.crc32(body), rows, columns, kind, has_shapes, *features.image_size) + body


def decode_features(blob: bytes) -> LocalFeatures | None:
    """The entry, or None where it is damaged."""
    if len(blob) < _HEADER.size:
        return None
    checksum, count, columns, kind, has_shapes, width, height = _HEADER.unpack_from(blob)
    body = blob[_HEADER.size :]
    if zlib.crc32(body) != checksum or kind not in _KINDS:
        return None
    dtype = np.dtype(_KINDS[kind])
    split = count * columns * dtype.itemsize
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


class FeatureStore:
    """Features by content and extractor, in one SQLite file. May be used from several threads.

    exact: keep descriptors in single precision, so that what is read back is what was made. Entries wait in memory
    until some can be written at once: a transaction that is open while features are made would lock out other
    processes.
    """

    def __init__(self, path: Path, *, exact: bool = False) -> None:
        self.path, self.exact = path, exact
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, str], bytes] = {}
        self._database = open_database(
            path,
            "CREATE TABLE IF NOT EXISTS features "
            "(extractor TEXT, content TEXT, entry BLOB NOT NULL, PRIMARY KEY (extractor, content))",
        )

    def get_many(self, extractor: str, contents: Sequence[str]) -> dict[str, LocalFeatures]:
        """Those of the features that are there and whole."""
        found: dict[str, LocalFeatures] = {}
        with self._lock:
            for start in range(0, len(contents), _IN_ONE_QUERY):
                part = contents[start : start + _IN_ONE_QUERY]
                marks = ",".join("?" * len(part))
                rows = self._database.execute(
                    f"SELECT content, entry FROM features WHERE extractor = ? AND content IN ({marks})",
                    (extractor, *part),
                )
                entries = dict(rows) | {
                    key: self._waiting[extractor, key] for key in part if (extractor, key) in self._waiting
                }
                for content, entry in entries.items():
                    features = decode_features(entry)
                    if features is not None:
                        found[content] = features
        return found

    def known(self, extractor: str) -> set[str]:
        """The contents that have features of this extractor."""
        with self._lock:
            rows = self._database.execute("SELECT content FROM features WHERE extractor = ?", (extractor,))
            return {row[0] for row in rows} | {content for name, content in self._waiting if name == extractor}

    def put(self, extractor: str, content: str, features: LocalFeatures) -> None:
        with self._lock, self._translated():
            self._waiting[extractor, content] = encode_features(features, exact=self.exact)
            if len(self._waiting) >= _WRITE_AT_ONCE:
                self._write()

    def keep_only(self, contents: Iterable[str]) -> int:
        """Drop the features of contents that are no longer wanted; returns how many entries went."""
        wanted = set(contents)
        with self._lock, self._translated():
            self._write()
            rows = self._database.execute("SELECT DISTINCT content FROM features").fetchall()
            gone = [(row[0],) for row in rows if row[0] not in wanted]
            with self._database:
                cursor = self._database.executemany("DELETE FROM features WHERE content = ?", gone)
            return max(cursor.rowcount, 0)

    def describe(self) -> dict[str, dict[str, int]]:
        """For each extractor how many images have features, and their bytes."""
        with self._lock:
            rows = self._database.execute("SELECT extractor, count(*), sum(length(entry)) FROM features GROUP BY 1")
            return {extractor: {"images": count, "bytes": size} for extractor, count, size in rows}

    def flush(self) -> None:
        with self._lock, self._translated():
            self._write()

    def close(self) -> None:
        with contextlib.suppress(StorageError):
            self.flush()
        self._database.close()

    def _write(self) -> None:
        entries = [(*key, entry) for key, entry in self._waiting.items()]
        with self._database:
            self._database.executemany("INSERT OR REPLACE INTO features VALUES (?, ?, ?)", entries)
        self._waiting.clear()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StorageError(
                f"{self.path} cannot be written ({error}). Free some space or check its permissions; what was stored "
                "is not lost."
            ) from error
