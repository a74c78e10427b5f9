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
from dataclasses import dataclass

from tessera.data import xmp
from tessera.data.photo_metadata import read_metadata
from tessera.gallery.catalog.metadata import encode_metadata
from tessera.gallery.catalog.paths import from_blob
from tessera.gallery.ingest.sources import FoundFile, explain, sidecar_paths

# A file written again within one tick of the file system's clock keeps its time. A time this fresh proves nothing.
_TICK_NS = 20_000_000
_READERS = 2
_WINDOW = 8


@dataclass(frozen=True)
class ReadFile:
    """A file as it was at one moment: its content and hash, or the reason why there is none.

    content None with a hash None and no error: more bytes than the limit, which the loader shall refuse by itself.
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
    except OSError as error:
        return ReadFile(found, found.size, found.mtime_ns, error=explain(error))
    facts, remarks = read_metadata(content, _read_sidecar(found))
    return ReadFile(
        found,
        size,
        mtime_ns,
        content,
        hashlib.sha256(content).digest(),
        facts=encode_metadata(facts),
        remarks=tuple(remarks),
    )


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
    """What the loader shall decode: the bytes that were hashed, so that both speak of the same content."""
    return read.content if read.content is not None else from_blob(read.found.path)
