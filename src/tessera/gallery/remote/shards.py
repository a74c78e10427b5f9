"""Parquet shards on a file system of fsspec: the truth of a gallery that lies on no single machine.

    images/   a row an image: record, descriptor (fp16), local features
    failed/   pictures that could not be read, by path, and those that could later
    removed/  what was taken out
    sent/     an empty file for each shard of images that the collection has
    trials/   notes of workers on units that they are at
    damaged/  shards that a repair has set aside

A shard is written whole under a name of its own and never changed, so any number of writers need no lock. Names begin
with the time: of two rows on one image, the later counts. They end with the content's hash, which it is held against.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import GalleryDamagedError, MissingExtraError, StorageError, UsageError
from tessera.storage import parse_json, write_atomically

LAYOUT = 1
IMAGES, FAILED, REMOVED, SENT, TRIALS, DAMAGED = "images", "failed", "removed", "sent", "trials", "damaged"
_SAYS = b"tessera"
_SUFFIX = ".parquet"
_DIGEST = 64
_RECORD = ("path", "size", "mtime_ns", "sidecar_ns", "width", "height", "metadata", "facts")


def key_of(content: bytes) -> int:
    """A primary key, the same on every machine: 63 bits of a hash."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") >> 1


@dataclass(frozen=True)
class Span:
    """Where an image's local features lie: bytes of a shard. checksum: -1 for those of earlier versions."""

    shard: str
    start: int = 0
    length: int = 0
    checksum: int = -1


@dataclass(frozen=True)
class RemoteImage:
    """One image: its content, and the path under which it was seen. metadata, facts: JSON, as a catalogue keeps it."""

    content_hash: bytes
    path: bytes
    size: int
    mtime_ns: int
    sidecar_ns: int
    width: int
    height: int
    metadata: str
    facts: str
    descriptor: npt.NDArray[np.float16]
    features: bytes

    @property
    def id(self) -> int:
        return key_of(self.content_hash)


class Shards:
    """url: a folder, or whatever fsspec has a file system for: s3://, gs://, memory://."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
            import pyarrow.parquet  # noqa: F401
        except ImportError as error:
            raise MissingExtraError("--catalog remote", "remote") from error
        if "://" not in url:
            url = str(Path(url).absolute())
        self.url = url.rstrip("/")
        try:
            self._files, root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            raise UsageError(f"The storage {self.url} cannot be opened: {reason}.") from error
        self._root = str(root).rstrip("/")
        protocols = self._files.protocol
        self._is_local = "file" in ((protocols,) if isinstance(protocols, str) else protocols)

    def write_images(self, images: Sequence[RemoteImage], model: dict[str, Any]) -> tuple[str, list[Span]]:
        """The name of the shard that holds these from now on, and where each image's features lie in it."""
        import pyarrow as pa

        columns: dict[str, Any] = {
            "id": pa.array([image.id for image in images], pa.int64()),
            "content_hash": pa.array([image.content_hash for image in images], pa.binary()),
        }
        for name in _RECORD:
            columns[name] = pa.array([getattr(image, name) for image in images])
        columns["descriptor"] = pa.array([image.descriptor.astype("<f2").tobytes() for image in images], pa.binary())
        columns["features"] = pa.array([image.features for image in images], pa.binary())
        content = _encode(columns, {"layout": LAYOUT, **model})
        name = self._write(IMAGES, content)
        return name, _find_spans(name, content, images)

    def find_spans(self, name: str, images: Sequence[RemoteImage]) -> list[Span]:
        """Where the features of some of a shard's images lie, in the order of its rows."""
        with self._translated("read"), self._damage(name):
            return _find_spans(name, self._files.cat_file(self._path(IMAGES, name)), images)

    def write_rows(self, kind: str, rows: Sequence[dict[str, Any]]) -> None:
        """`failed`: id, path, size, mtime_ns, error ("" for one that can be read now). `removed`: id, path, ignore."""
        if rows:
            self._write(kind, _encode({name: [row[name] for row in rows] for name in rows[0]}, {"layout": LAYOUT}))

    def read_images(self, name: str) -> tuple[list[RemoteImage], dict[str, Any]]:
        """The rows of a shard, and the model that made them; every page is held against its checksum."""
        table = self._read(IMAGES, name)
        try:
            said = json.loads(table.schema.metadata[_SAYS])
            rows = table.to_pylist()
            for row in rows:
                row["descriptor"] = np.frombuffer(row["descriptor"], "<f2").astype(np.float16)
                del row["id"]
            return [RemoteImage(**row) for row in rows], said
        except (KeyError, TypeError, ValueError) as error:
            raise self._damaged(name, str(error)) from error

    def read_rows(
        self, kind: str, damaged: Callable[[str], None] | None = None
    ) -> dict[int, tuple[str, dict[str, Any]]]:
        """Of each id its last row, with the name of the shard: of `failed` or `removed`, which are few.

        damaged: called with the names of shards that cannot be read; without it, one is an error.
        """
        found: dict[int, tuple[str, dict[str, Any]]] = {}
        for name in self.names(kind):
            try:
                found.update((row["id"], (name, row)) for row in self._read(kind, name).to_pylist())
            except GalleryDamagedError:
                if damaged is None:
                    raise
                damaged(name)
        return found

    def read_ids(self, name: str) -> list[int]:
        """The ids of a shard of images, without fetching its other columns."""
        import pyarrow as pa
        from pyarrow import parquet

        with self._translated("read"), self._damage(name), self._files.open(self._path(IMAGES, name), "rb") as file:
            try:
                table = parquet.read_table(file, columns=["id"], page_checksum_verification=True)
            except (pa.ArrowException, ValueError, OSError):  # or the storage failed: reading all of it tells
                table = self._read(IMAGES, name)
        return [int(image_id) for image_id in table["id"].to_pylist()]

    def _read(self, kind: str, name: str) -> Any:
        """A shard as a table, its content held against its name and every page against its checksum."""
        import pyarrow as pa
        from pyarrow import parquet

        with self._translated("read"), self._damage(name):
            content = self._files.cat_file(self._path(kind, name))
        digest = name.rpartition("-")[2]
        if (
            len(digest) == _DIGEST and hashlib.sha256(content).hexdigest() != digest
        ):  # earlier versions had shorter ones
            raise self._damaged(name, "its content is not what was written")
        try:
            return parquet.read_table(io.BytesIO(content), page_checksum_verification=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._damaged(name, str(error)) from error

    def read_spans(self, spans: Sequence[Span]) -> list[bytes]:
        """The bytes at these spans, many at once where the storage can."""
        paths = [self._path(IMAGES, span.shard) for span in spans]
        starts = [span.start for span in spans]
        ends = [span.start + span.length for span in spans]
        with self._translated("read"), self._damage(", ".join(sorted({span.shard for span in spans})[:3])):
            found: list[bytes] = self._files.cat_ranges(paths, starts, ends, on_error="raise")
        for span, content in zip(spans, found, strict=True):
            if span.checksum not in (-1, zlib.crc32(content)):
                raise self._damaged(span.shard, "local features are not what was written")
        return found

    def names(self, kind: str) -> list[str]:
        """The names of the shards of a kind, oldest first."""
        with self._translated("read"):
            self._files.invalidate_cache()
            try:
                paths = self._files.ls(f"{self._root}/{kind}", detail=False)
            except FileNotFoundError:
                return []
        names = [str(path).rstrip("/").rpartition("/")[2] for path in paths]
        return sorted(name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX) and not name.startswith("."))

    def size(self, kind: str = IMAGES) -> int:
        """Bytes of the shards of a kind."""
        with self._translated("read"):
            self._files.invalidate_cache()
            try:
                return sum(entry["size"] or 0 for entry in self._files.ls(f"{self._root}/{kind}", detail=True))
            except FileNotFoundError:
                return 0

    def unsent(self) -> list[str]:
        """Shards of images that nobody has said to be in the collection."""
        sent = set(self.names(SENT))
        return [name for name in self.names(IMAGES) if name not in sent]

    def mark_sent(self, name: str) -> None:
        self._put(SENT, name, b"")

    def delete(self, name: str) -> None:
        """Of a shard of images; the mark first, so that one without a shard never stays."""
        for kind in (SENT, IMAGES):
            with self._translated("write"):
                self._remove(kind, name)

    def set_aside(self, kind: str, name: str) -> None:
        """Keep a damaged shard where nobody reads it."""
        aside = f"{kind}-{name}"
        with self._translated("write"), contextlib.suppress(FileNotFoundError):
            self._put(DAMAGED, aside, self._files.cat_file(self._path(kind, name)))
        with self._translated("write"):
            for there in (SENT, IMAGES) if kind == IMAGES else (kind,):
                self._remove(there, name)

    def _remove(self, kind: str, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):  # another has done it
            self._files.rm_file(self._path(kind, name))

    def read_note(self, name: str) -> dict[str, Any] | None:
        """What a worker has left about its unit, if it did not come to its end."""
        with self._translated("read"):
            try:
                note = parse_json(self._files.cat_file(self._path(TRIALS, name)))
            except (FileNotFoundError, ValueError):
                return None
        return note if isinstance(note, dict) else None

    def write_note(self, name: str, note: dict[str, Any]) -> None:
        self._put(TRIALS, name, json.dumps(note).encode())

    def delete_note(self, name: str) -> None:
        with self._translated("write"):
            self._remove(TRIALS, name)

    def refuse_unwritable(self) -> None:
        """Say at once, not after an hour of describing, that nothing can be written."""
        name = f"{uuid.uuid4().hex}.probe"
        self._put(SENT, name, b"")
        with self._translated("write"):
            self._remove(SENT, name)

    def _write(self, kind: str, content: bytes) -> str:
        name = f"{time.time_ns():020d}-{hashlib.sha256(content).hexdigest()}"
        self._put(kind, name, content)
        return name

    def _put(self, kind: str, name: str, content: bytes) -> None:
        """All of it or nothing: by a rename on a disk; a put to an object store is whole by itself."""
        path = self._path(kind, name)
        if self._is_local:
            write_atomically(Path(path), content)
            return
        with self._translated("write"):
            self._files.makedirs(f"{self._root}/{kind}", exist_ok=True)
            self._files.pipe_file(path, content)

    def _path(self, kind: str, name: str) -> str:
        return f"{self._root}/{kind}/{name}{_SUFFIX}"

    @contextlib.contextmanager
    def _damage(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise GalleryDamagedError(
                f"The shard {name} of {self.url} is gone. `tessera check --repair` takes its images out; `tessera "
                "index` describes them again."
            ) from error

    def _damaged(self, name: str, reason: str) -> GalleryDamagedError:
        return GalleryDamagedError(
            f"The shard {name} of {self.url} is damaged: {reason.rstrip('.')}. `tessera check --deep --repair` sets it "
            "aside; `tessera index` describes its images again."
        )

    @contextlib.contextmanager
    def _translated(self, act: str) -> Iterator[None]:
        """Every storage has errors of its own kind; all are OSErrors, or come from its client."""
        try:
            yield
        except FileNotFoundError as error:
            if act == "read":
                raise
            raise StorageError(f"The storage {self.url} is not there: {error}. Check its address.") from error
        except PermissionError as error:
            raise StorageError(
                f"The storage {self.url} may not be {'written' if act == 'write' else 'read'}: "
                f"{error.strerror or error}. Check its permissions and the credentials."
            ) from error
        except OSError as error:
            raise StorageError(f"The storage {self.url} cannot be used: {error.strerror or error}.") from error
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("botocore", "aiohttp", "gcsfs", "google", "azure"):
                raise StorageError(f"The storage {self.url} cannot be used: {error}.") from error
            raise


def _find_spans(name: str, content: bytes, images: Sequence[RemoteImage]) -> list[Span]:
    """Features are stored as they are, one image's after the other's."""
    spans, end = [], 0
    for image in images:
        start = content.index(image.features, end)
        end = start + len(image.features)
        spans.append(Span(name, start, len(image.features), zlib.crc32(image.features)))
    return spans


def _encode(columns: dict[str, Any], said: dict[str, Any]) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    table = pa.table(columns).replace_schema_metadata({_SAYS: json.dumps(said).encode()})
    buffer = io.BytesIO()
    compression = {name: "NONE" if name == "features" else "ZSTD" for name in table.column_names}
    # Features are not compressed, so that one image's are read by their span: signs are noise to any compressor.
    parquet.write_table(table, buffer, compression=compression, use_dictionary=False, write_page_checksum=True)
    return buffer.getvalue()
