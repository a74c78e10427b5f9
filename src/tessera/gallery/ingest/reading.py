"""Reading files ahead of the network: content, its hash, and the size and time that belong to that content."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from tessera.data.images import DEFAULT_LIMITS, Pixels, load_photo
from tessera.data.photos import xmp
from tessera.data.photos.photo_metadata import read_metadata
from tessera.errors import ImageError, ImageLimitError, printable
from tessera.gallery.catalog.metadata import encode_metadata
from tessera.gallery.catalog.paths import from_blob
from tessera.gallery.catalog.records import Record
from tessera.gallery.ingest.sources import FoundFile, explain, sidecar_paths

# A file written again within one tick of the file system's clock keeps its time. A time this fresh proves nothing.
_TICK_NS = 20_000_000
_READERS = 2
_WINDOW = 8


@dataclass(frozen=True)
class ReadFile:
    """A file as it was at one moment: its content and hash, or the reason why there is none.

    content None with a hash None and no error: more bytes than the limit, which the loader refuses by itself.
    facts: what the file and the XMP beside it say of the picture, as the catalogue keeps it; remarks: what of that
    could not be right.
    """

    found: FoundFile
    size: int
    mtime_ns: int
    content: bytes | None = None
    content_hash: bytes | None = None
    error: str | None = None
    facts: str | None = None
    remarks: tuple[str, ...] = ()


def read_ahead(files: Iterable[FoundFile], *, max_bytes: int) -> Iterator[ReadFile]:
    """Read files in order, a few ahead in threads, whatever their number."""
    waiting: deque[Future[ReadFile]] = deque()
    with ThreadPoolExecutor(_READERS, thread_name_prefix="read") as readers:
        try:
            for found in files:
                waiting.append(readers.submit(read_file, found, max_bytes=max_bytes))
                if len(waiting) >= _WINDOW:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            readers.shutdown(wait=True, cancel_futures=True)


def read_file(found: FoundFile, *, max_bytes: int) -> ReadFile:
    if found.error is not None:
        return ReadFile(found, found.size, found.mtime_ns, error=found.error)
    try:
        with open(found.path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return ReadFile(found, found.size, found.mtime_ns, error="it is not a file")
            fresh = time.time_ns() - status.st_mtime_ns < _TICK_NS
            size, mtime_ns = status.st_size, -1 if fresh else status.st_mtime_ns
            if size > max_bytes:
                return ReadFile(found, size, mtime_ns)
            content = file.read(max_bytes + 1)
    except OSError as error:  # its disk may be back tomorrow, and the file as it was: without a time it is tried again
        return ReadFile(found, found.size, -1, error=explain(error))
    return with_facts(ReadFile(found, size, mtime_ns, content), _read_sidecar(found))


def with_facts(read: ReadFile, sidecar: bytes | None = None) -> ReadFile:
    """A file whose content has been read, with its hash and what it says of itself."""
    content = read.content or b""
    facts, remarks = read_metadata(content, sidecar)
    digest = hashlib.sha256(content).digest()
    return replace(read, content_hash=digest, facts=encode_metadata(facts), remarks=tuple(remarks))


def read_indexed(path: str, content_hash: str | None, *, max_bytes: int) -> bytes:
    """A picture's file, if it still is what was indexed: another, or a link, may have been put in its place."""
    name = printable(path)
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ImageError(f"{name} is not a file.")
            if status.st_size > max_bytes:
                raise ImageLimitError(f"{name} has {status.st_size:,} bytes, more than the limit of {max_bytes:,}.")
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise ImageError(f"{name}: {explain(error)}.") from error
    if hashlib.sha256(content).hexdigest() != content_hash:
        raise ImageError(f"{name} has changed since it was indexed. Index it again.")
    return content


def load_indexed(record: Record, size: int) -> Pixels:
    """The pixels of an image, if its file still has the content that was indexed, whatever its time says."""
    return load_photo(read_indexed(record.path, record.content_hash, max_bytes=DEFAULT_LIMITS.max_bytes), size=size)


def _read_sidecar(found: FoundFile) -> bytes | None:
    if found.sidecar_ns:
        for path in sidecar_paths(found.path):
            with contextlib.suppress(OSError), open(path, "rb", opener=_open_without_waiting) as file:
                return file.read(xmp.MAX_BYTES + 1)
    return None


def _open_without_waiting(path: str | bytes, flags: int) -> int:
    # A named pipe that took a picture's place would otherwise wait for a writer for ever.
    return os.open(path, flags | os.O_NONBLOCK)


def loader_source(read: ReadFile) -> bytes | str:
    """What the loader decodes: the bytes that were hashed, so that both are of the same content."""
    return read.content if read.content is not None else from_blob(read.found.path)
