"""Descriptors kept on disk by image and model, so that an interrupted evaluation goes on and a second one is quick.

The key is the image's content, its box and the extractor's fingerprint, never a path or a preset's name: a file that
was replaced is described anew. Content hashes are kept too, by path, size and time of change, because hashing a million
images takes longer than searching them.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tessera.data.ground_truth import Box
from tessera.errors import DataError, StorageError
from tessera.storage import hash_file, open_database

_IN_ONE_QUERY = 500
_DESCRIPTORS_AT_ONCE = 32  # what a killed run may lose
_HASHES_AT_ONCE = 1024


def default_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/tessera`, else `~/.cache/tessera`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tessera"


def cache_key(content_hash: str, box: Box | None, loader: str = "benchmark") -> str:
    """What decides a descriptor besides the extractor."""
    cut = "" if box is None else ",".join(repr(float(side)) for side in box)
    return f"{loader}:{content_hash}:{cut}"


class _Table:
    """One key-value table in a SQLite file; a damaged file is set aside, for a cache can be made again.

    Entries wait in memory until `commit` writes them at once: a transaction that is open while an image is described
    would lock out every other evaluation on this cache.
    """

    def __init__(self, path: Path, *, commit_every: int) -> None:
        self._path, self.commit_every = path, commit_every
        self._waiting: dict[str, bytes] = {}
        self._database = open_database(
            path, "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
        )

    def get_many(self, keys: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        for start in range(0, len(keys), _IN_ONE_QUERY):
            part = keys[start : start + _IN_ONE_QUERY]
            marks = ",".join("?" * len(part))
            yield from self._database.execute(f"SELECT key, value FROM entries WHERE key IN ({marks})", part)

    def put(self, key: str, value: bytes) -> None:
        self._waiting[key] = value
        if len(self._waiting) >= self.commit_every:
            self.commit()

    def commit(self) -> None:
        try:
            with self._database:
                self._database.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?)", self._waiting.items())
            self._waiting.clear()
        except sqlite3.OperationalError as error:
            raise StorageError(f"the cache {self._path} cannot be written: {error}. Give another --cache.") from error

    def close(self) -> None:
        with contextlib.suppress(StorageError):
            self.commit()
        self._database.close()


class DescriptorCache:
    """Descriptors of one extractor, D float32."""

    def __init__(self, folder: Path, fingerprint: str, dim: int) -> None:
        path = folder / "descriptors" / f"{fingerprint}.sqlite"
        self._table = _Table(path, commit_every=_DESCRIPTORS_AT_ONCE)
        self._bytes = 4 * dim

    def get_many(self, keys: Sequence[str]) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Those of the descriptors that are there; one of another length is passed over."""
        for key, value in self._table.get_many(keys):
            if len(value) == self._bytes:
                yield key, np.frombuffer(value, dtype="<f4").astype(np.float32)

    def put(self, key: str, descriptor: npt.NDArray[np.float32]) -> None:
        self._table.put(key, np.asarray(descriptor, dtype="<f4").tobytes())

    def close(self) -> None:
        self._table.close()


class HashCache:
    """The SHA-256 of files, remembered while their size and time of change stay the same."""

    def __init__(self, folder: Path) -> None:
        self._table = _Table(folder / "hashes.sqlite", commit_every=_HASHES_AT_ONCE)

    def hash_files(self, paths: Sequence[Path]) -> list[str]:
        """One hash a path, in order."""
        keys = [_file_key(path) for path in paths]
        known = {key: value.decode() for key, value in self._table.get_many(list(dict.fromkeys(keys)))}
        for key, path in zip(keys, paths, strict=True):
            if key not in known:
                try:
                    known[key] = hash_file(path)
                except OSError as error:
                    raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
                self._table.put(key, known[key].encode())
        self._table.commit()
        return [known[key] for key in keys]

    def close(self) -> None:
        self._table.close()


def _file_key(path: Path) -> str:
    try:
        status = path.stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    return f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
