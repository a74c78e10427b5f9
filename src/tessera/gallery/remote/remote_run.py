"""An index run into a remote catalogue: find the files, describe what the collection does not have, write shards.

Here an image is its content: a copy is the image that is there already, under the path it was first seen at. A killed
run goes on by finding most paths unchanged in the collection.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import chain, islice
from typing import TypeVar

import numpy as np

from tessera.data.photos.decoding import DEFAULT_LIMITS
from tessera.extract.pipeline import Extraction
from tessera.gallery.catalog.paths import from_blob
from tessera.gallery.ingest.reading import ReadFile, loader_source, read_ahead
from tessera.gallery.ingest.sources import FoundFile, Source, find_files, look_at, refuse_missing
from tessera.gallery.remote.remote_collection import Stored
from tessera.gallery.remote.remote_store import RemoteStore
from tessera.gallery.remote.remote_writer import RemoteWriter, send_shards
from tessera.gallery.remote.shards import FAILED, REMOVED, RemoteImage, key_of
from tessera.gallery.results import IndexProgress, IndexReport

_LOOKUP_FILES = 256
_READ_FILES = 32  # whose contents are asked for at once: a question waits for what others have just written
T = TypeVar("T")


class RemoteRun:
    """One writer's run; others run at the same time."""

    def __init__(self, store: RemoteStore, *, progress: Callable[[IndexProgress], None] | None = None) -> None:
        self.report = IndexReport()
        self._store, self._collection = store, store.collection
        self._writer = RemoteWriter(store.shards, store.collection, store.settings)
        self._progress = progress
        self._describing: dict[int, Future[bytes]] = {}  # local features of what is with the network
        self._replaced: dict[bytes, Stored] = {}  # by path: the image that was there before
        self._moved: set[int] = set()
        self._failed: dict[int, tuple[str, dict[str, object]]] = {}
        self._ignored: set[int] = set()
        self._named: set[bytes] = set()
        self._done = self._found = 0

    def run(self, sources: Sequence[Source], *, metadata: str | None = None, prune: bool = False) -> IndexReport:
        for source in sources:
            refuse_missing(source)
        self.begin({source.path for source in sources if source.kind == "file"})
        try:
            planned = self.plan(find_files(sources, self.pass_over), metadata)
            self.describe(read_ahead(planned, max_bytes=DEFAULT_LIMITS.max_bytes))
        finally:
            self.finish()  # also when interrupted: what was done is kept
        self.look_for_vanished(sources, prune=prune)
        return self.report

    def begin(self, named: Collection[bytes] = ()) -> None:
        """Send what killed writers have left, and learn what failed and what was removed before, unless it is named."""
        self._store.refuse_empty_storage()  # first: the next makes folders
        self._store.shards.refuse_unwritable()
        send_shards(self._store.shards, self._collection, self._store.shards.unsent())
        self._failed = self._store.shards.read_rows(FAILED)
        removed = self._store.shards.read_rows(REMOVED)
        self._ignored = {image_id for image_id, (_, row) in removed.items() if row["ignore"]}
        self._named = set(named)

    def finish(self) -> None:
        """What was taken is acknowledged from now on."""
        self._writer.flush()

    def plan(self, files: Iterable[FoundFile], metadata: str | None) -> Iterator[FoundFile]:
        """The files that must be read: the collection does not have them as they are now."""
        for chunk in _batched(files, _LOOKUP_FILES):
            known = self._collection.find_paths([file.path for file in chunk])
            self._found += len(chunk)
            for file in chunk:
                given = metadata if file.metadata is None else file.metadata
                stored = known.get(file.path)
                if stored is not None and file.error is not None:
                    self.report.vanished += file.gone
                    self.report.unchanged += not file.gone
                    continue
                if stored is not None and _is_same(file, stored):
                    if given is not None and given != stored.metadata:
                        self._restate(stored, file, given)
                    self.report.metadata_given += given not in (None, "{}")
                    self.report.unchanged += 1
                    continue
                if stored is None and self._failed_before(file):
                    self.report.failed_before += 1
                    continue
                if stored is not None:
                    self._replaced[file.path] = stored
                yield FoundFile(file.path, file.size, file.mtime_ns, file.error, given, file.sidecar_ns)
            self._tell(len(chunk))

    def describe(self, reads: Iterable[ReadFile]) -> None:
        """Take these pictures: those whose content the collection does not have go through the network."""
        sent: deque[ReadFile] = deque()

        def to_describe() -> Iterator[bytes | str]:
            for batch in _batched(reads, _READ_FILES):
                known = self._collection.get([key_of(read.content_hash) for read in batch if read.content_hash])
                for read in batch:
                    if not self._settle(read, known):
                        if read.content_hash is not None:
                            features = self._store.local_describer.submit(loader_source(read), DEFAULT_LIMITS)
                            self._describing[key_of(read.content_hash)] = features
                        sent.append(read)
                        yield loader_source(read)

        sources = to_describe()
        first = next(sources, None)
        if first is None:
            return
        for extraction in self._store.describer.extractor.extract(chain([first], sources), limits=DEFAULT_LIMITS):
            self._accept(sent.popleft(), extraction)

    def _settle(self, read: ReadFile, known: dict[int, Stored]) -> bool:
        """Whether a file needs no network: it could not be read, was removed before, or its content is known."""
        if read.error is not None:
            self.fail(read, read.error)
            return True
        if read.content_hash is None:
            return False
        image_id = key_of(read.content_hash)
        if image_id in self._ignored and read.found.path not in self._named:
            self.report.ignored += 1
            return True
        stored = known.get(image_id)
        if stored is None:
            if is_copy := image_id in self._describing or self._writer.holds(image_id):
                self._count_copy(read)
            return is_copy
        old_path = os.fsencode(stored.record.path)
        given = stored.metadata if read.found.metadata is None else read.found.metadata
        if old_path == read.found.path or not _is_there(old_path, stored):
            self._restate(stored, read.found, given, read.facts, size=read.size, mtime_ns=read.mtime_ns)
            if old_path == read.found.path:
                self.report.unchanged += 1  # only its time had changed
                self._replaced.pop(read.found.path, None)
                return True
            self._moved.add(image_id)
            self.report.moved += 1
            self._replace(read)
            return True
        self._count_copy(read)
        return True

    def _count_copy(self, read: ReadFile) -> None:
        self._replace(read)
        self.report.unchanged += 1
        self.report.reused += 1

    def _accept(self, read: ReadFile, extraction: Extraction) -> None:
        if extraction.error is not None or extraction.descriptor is None or read.content_hash is None:
            features = self._describing.pop(key_of(read.content_hash or b""), None)
            if features is not None:
                features.cancel()
            self.fail(read, str(extraction.error))
            return
        found = read.found
        image = RemoteImage(
            read.content_hash, found.path, read.size, read.mtime_ns, found.sidecar_ns, extraction.width,
            extraction.height, found.metadata or "{}", read.facts or "{}", extraction.descriptor.astype(np.float16),
            self._describing[key_of(read.content_hash)].result(),
        )  # fmt: skip
        if self._failed.get(key_of(found.path), ("", {}))[1].get("error"):
            self._writer.fail(found.path, read.size, read.mtime_ns, "")
        was_there = self._replace(read)
        self._writer.put(image)
        del self._describing[image.id]
        self.report.changed += was_there
        self.report.added += not was_there
        self.report.metadata_read += read.facts not in (None, "{}")
        self.report.metadata_given += found.metadata not in (None, "{}")
        for remark in read.remarks:
            self.report.add_remark(from_blob(found.path), remark)
        self._tell()

    def _replace(self, read: ReadFile) -> bool:
        """Take out the image that a path showed before, if there was one and no other path shows it now."""
        old = self._replaced.pop(read.found.path, None)
        if old is not None and old.record.id not in self._moved:
            self._writer.remove(old.record.id, read.found.path, ignore=False)
        return old is not None

    def _restate(
        self, stored: Stored, found: FoundFile, metadata: str, facts: str | None = None,
        *, size: int | None = None, mtime_ns: int | None = None,
    ) -> None:  # fmt: skip
        """Store an image again with what is new about its file; descriptor and features as they are."""
        record = stored.record
        descriptor = self._collection.descriptors([record.id])[record.id].astype(np.float16)
        (features,) = self._store.shards.read_spans([stored.span])
        self._writer.put(
            RemoteImage(
                bytes.fromhex(record.content_hash or ""), found.path, found.size if size is None else size,
                found.mtime_ns if mtime_ns is None else mtime_ns, found.sidecar_ns, record.width or 0,
                record.height or 0, metadata, facts or stored.facts, descriptor, features,
            )
        )  # fmt: skip

    def fail(self, read: ReadFile, error: str) -> None:
        """Write down why a picture could not be taken."""
        if read.found.path in self._replaced:
            del self._replaced[read.found.path]  # what was indexed stays: a disk that comes and goes loses nothing
        else:
            self._writer.fail(read.found.path, read.size, read.mtime_ns, error)
        self.report.failed += 1
        self.report.add_problem(from_blob(read.found.path), error)

    def _failed_before(self, file: FoundFile) -> bool:
        row = self._failed.get(key_of(file.path), ("", {}))[1]
        return bool(row.get("error")) and (row["size"], row["mtime_ns"]) == (file.size, file.mtime_ns)

    def look_for_vanished(self, sources: Sequence[Source], *, prune: bool) -> None:
        for source in sources:
            for stored in self._collection.stream_under(source.root) if source.kind != "list" else ():
                path = os.fsencode(stored.record.path)
                if look_at(path).gone:
                    self.report.vanished += 1
                    if prune:
                        self._writer.remove(stored.record.id, path, ignore=False)
                        self.report.pruned += 1
        self._writer.flush()

    def pass_over(self, path: bytes, reason: str) -> None:
        self.report.passed_over += 1
        self.report.add_problem(from_blob(path), reason)

    def _tell(self, done: int = 0) -> None:
        self._done += done
        if self._progress is not None:
            self._progress(IndexProgress(self._done, self._found, self.report.failed))


def _is_same(file: FoundFile, stored: Stored) -> bool:
    """Whether a file is as it was when it was stored. What lies behind a URL is known by its name, and by its size."""
    record = stored.record
    if b"://" in file.path:
        return file.size in (-1, record.size)
    return (file.size, file.mtime_ns, file.sidecar_ns) == (record.size, record.mtime_ns, stored.sidecar_ns)


def _is_there(path: bytes, stored: Stored) -> bool:
    """Whether a path still shows what was stored of it; nobody goes and asks for what lies behind a URL."""
    if b"://" in path:
        return True
    file = look_at(path)
    # A file that was younger than a tick of the clock when it was read has no time there.
    return file.size == stored.record.size and stored.record.mtime_ns in (-1, file.mtime_ns)


def _batched(items: Iterable[T], count: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, count)):
        yield batch
