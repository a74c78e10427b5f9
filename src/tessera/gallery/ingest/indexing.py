"""An index run: find the files, describe the new and the changed, store them in small batches.

What a batch has stored is acknowledged and stays, whatever happens after; a killed run starts again by finding most
files unchanged. Content is known by its hash: a copy or a renamed file costs a read, but no network.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TypeAlias

from tessera.data.photos.decoding import DEFAULT_LIMITS, Limits
from tessera.extract.pipeline import Extraction
from tessera.gallery.catalog.batch import Batch
from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.catalog.paths import from_blob, printable
from tessera.gallery.catalog.records import CatalogEntry
from tessera.gallery.describing.describer import Describer
from tessera.gallery.describing.local_describer import LocalDescriber
from tessera.gallery.ingest.mounts import mounted_in
from tessera.gallery.ingest.planning.ignoring import IgnoreList
from tessera.gallery.ingest.planning.moves import follow_moves
from tessera.gallery.ingest.planning.plan import Plan, make_plan
from tessera.gallery.ingest.reading import ReadFile, loader_source, read_ahead
from tessera.gallery.ingest.sources import FoundFile, Source, find_files, look_at, refuse_missing
from tessera.gallery.results import IndexProgress, IndexReport

BATCH_FILES = 64
BATCH_SECONDS = 2.0
_PRUNE_BATCH = 1000

ProgressCallback = Callable[[IndexProgress], None]
_Identity: TypeAlias = tuple[tuple[int, int], frozenset[Path]]


@dataclass(frozen=True)
class _Outcome:
    """What became of a file: a descriptor, the content that it shares, or the error."""

    read: ReadFile
    extraction: Extraction | None = None
    content_id: int | None = None
    error: str | None = None
    is_copy: bool = False


class IndexRun:
    """One run over some sources, by the holder of the writer's lock. `fingerprint`: of the model that describes."""

    def __init__(
        self,
        catalog: Catalog,
        describer: Describer,
        local: LocalDescriber,
        *,
        progress: ProgressCallback | None = None,
        limits: Limits = DEFAULT_LIMITS,
        ray: str | None = None,
    ) -> None:
        self.report = IndexReport()
        self._catalog = catalog
        self._describer = describer
        self._local = local
        self._progress = progress
        self._limits = limits
        self._ray = ray
        self._outcomes: list[_Outcome] = []
        self._fresh: dict[bytes, Extraction] = {}  # described, not yet stored
        self._ignored: IgnoreList | None = None
        self._features: dict[bytes, Future[bytes]] = {}  # local features of these, by hash
        self._stored_at = time.monotonic()
        self._done = self._total = 0
        self._folders: dict[bytes, _Identity | None] = {}  # those of the sources, as the run began

    def run(
        self,
        sources: Sequence[Source],
        *,
        metadata: str | None = None,
        prune: bool = False,
        extra: Iterable[FoundFile] = (),
        retry: bool = False,
    ) -> IndexReport:
        self._refuse_missing(sources, prune=prune)
        self._folders = {source.root: _identity(source) for source in sources}
        self._ignored = IgnoreList(self._catalog, sources)
        plan = Plan()
        try:
            files = chain(find_files(sources, self._pass_over, self.report.others), extra)
            make_plan(
                self._catalog,
                files,
                plan,
                self.report,
                metadata=metadata,
                may_prune=lambda: prune and not any(map(self._left_meanwhile, sources)),
                retry=retry,
                ignored=self._ignored.holds,
            )
            self._done, self._total = 0, len(plan)
            self._tell()
            self._describe(plan)
        finally:
            plan.close()
        self.look_for_vanished(sources, prune=prune)
        return self.report

    def describe_contents(self, files: Iterable[tuple[FoundFile, bytes]], total: int, differing: Plan) -> None:
        """Store descriptors for contents that images have by another model; the images themselves are not touched.

        files: each with the hash that the catalogue has; those found otherwise go to `differing`. Readers go on with
        the old model until all images are switched at once.
        """
        self._total = total
        expected: dict[bytes, bytes] = {}

        def remembered() -> Iterator[FoundFile]:
            for file, content_hash in files:
                expected[file.path] = content_hash
                yield file

        def accept(outcome: _Outcome) -> None:
            read = outcome.read
            known_hash = expected.pop(read.found.path)
            if outcome.error is not None or read.content_hash != known_hash:
                differing.add([read.found])
            self._outcomes.append(outcome)
            self._store_if_due(self._store_contents)

        self._process(remembered(), accept)
        self._store_contents()

    def _describe(self, files: Iterable[FoundFile]) -> None:
        def accept(outcome: _Outcome) -> None:
            self._outcomes.append(outcome)
            self._store_if_due(self._store_images)

        try:
            self._process(files, accept)
        finally:
            self._store_images()  # also when interrupted: what was done is kept

    def _process(self, files: Iterable[FoundFile], accept: Callable[[_Outcome], None]) -> None:
        """Give every file's outcome to `accept`, nearly in order: what needs no network overtakes what does."""
        sent: deque[ReadFile] = deque()
        copies: dict[bytes, list[ReadFile]] = {}  # by hash, of what is with the network now

        def to_describe() -> Iterator[bytes | str]:
            for read in read_ahead(files, max_bytes=self._limits.max_bytes):
                if self._is_ignored(read):
                    self.report.ignored += 1
                    self._done += 1
                    continue
                settled = self._settle(read)
                if settled is not None:
                    accept(settled)
                elif read.content_hash in copies:
                    copies[read.content_hash].append(read)
                else:
                    if read.content_hash is not None:
                        copies[read.content_hash] = []
                        self._features[read.content_hash] = self._local.submit(loader_source(read), self._limits)
                    sent.append(read)
                    yield loader_source(read)

        sources = to_describe()
        first = next(sources, None)
        if first is None:
            return
        extractor = self._describer.open_bulk(self._ray)
        for extraction in extractor.extract(chain([first], sources), limits=self._limits):
            read = sent.popleft()
            same = copies.pop(read.content_hash, []) if read.content_hash is not None else []
            if extraction.error is None and read.content_hash is not None:
                self._fresh[read.content_hash] = extraction
            for member in (read, *same):
                if extraction.error is not None:
                    accept(_Outcome(member, error=str(extraction.error)))
                else:
                    accept(_Outcome(member, extraction, is_copy=member is not read))

    def _is_ignored(self, read: ReadFile) -> bool:
        return (
            self._ignored is not None
            and read.content_hash is not None
            and self._ignored.follows(read.found.path, read.content_hash)
        )

    def _settle(self, read: ReadFile) -> _Outcome | None:
        """The outcome of a file that needs no network: it could not be read, or its content is known."""
        if read.error is not None:
            return _Outcome(read, error=read.error)
        if read.content_hash is None:
            return None
        fresh = self._fresh.get(read.content_hash)
        if fresh is not None:
            return _Outcome(read, fresh, is_copy=True)
        with self._catalog.read() as snapshot:
            content_id = snapshot.find_content(read.content_hash, self._describer.fingerprint)
        return None if content_id is None else _Outcome(read, content_id=content_id, is_copy=True)

    def _store_if_due(self, store: Callable[[], None]) -> None:
        if len(self._outcomes) >= BATCH_FILES or time.monotonic() - self._stored_at > BATCH_SECONDS:
            store()

    def _store_images(self) -> None:
        outcomes, self._outcomes = self._outcomes, []
        if outcomes:
            features = self._finished_features(outcomes)
            with self._catalog.write() as batch:
                self._store_features(batch, features)
                known = batch.lookup([outcome.read.found.path for outcome in outcomes])
                contents = {outcome.read.found.path: self._content_of(batch, outcome) for outcome in outcomes}
                arrivals = {path: content_id for path, content_id in contents.items() if content_id is not None}
                moved, overwritten = follow_moves(batch, arrivals, known)
                for outcome in outcomes:
                    read = outcome.read
                    entry = known.get(read.found.path)
                    if read.error is not None and entry is not None and entry.state == "ok":
                        continue  # out of reach: what was indexed stays
                    batch.put_image(
                        read.found.path,
                        size=read.size,
                        mtime_ns=read.mtime_ns,
                        content_id=contents[read.found.path],
                        error=outcome.error,
                        metadata=read.found.metadata,
                        facts=read.facts,
                        sidecar_ns=read.found.sidecar_ns,
                    )
            for outcome in outcomes:
                self._count(outcome, known.get(outcome.read.found.path), moved)
            for path in overwritten:
                old_path = printable(from_blob(moved[path]))
                self.report.add_remark(from_blob(path), f"{old_path} was moved onto it, and the picture it was is gone")
        self._stored(len(outcomes))

    def _store_contents(self) -> None:
        outcomes, self._outcomes = self._outcomes, []
        if outcomes:
            features = self._finished_features(outcomes)
            with self._catalog.write() as batch:
                self._store_features(batch, features)
                for outcome in outcomes:
                    self._content_of(batch, outcome)
        self._stored(len(outcomes))

    def _finished_features(self, outcomes: Sequence[_Outcome]) -> dict[bytes, bytes]:
        """The local features of what was described, waited for before the catalogue is locked."""
        finished: dict[bytes, bytes] = {}
        for outcome in outcomes:
            making = self._features.pop(outcome.read.content_hash or b"", None)
            if making is not None and outcome.extraction is not None and outcome.read.content_hash is not None:
                finished[outcome.read.content_hash] = making.result()
            elif making is not None:
                making.cancel()
        return finished

    def _store_features(self, batch: Batch, features: dict[bytes, bytes]) -> None:
        for content_hash, made in features.items():
            batch.add_local_features(content_hash, self._local.model.fingerprint, made)

    def _content_of(self, batch: Batch, outcome: _Outcome) -> int | None:
        extraction = outcome.extraction
        if extraction is None:
            return outcome.content_id
        assert extraction.descriptor is not None
        assert outcome.read.content_hash is not None
        return batch.add_content(
            outcome.read.content_hash,
            self._describer.fingerprint,
            extraction.width,
            extraction.height,
            extraction.descriptor,
            extraction.signature,
        )

    def _stored(self, count: int) -> None:
        self._fresh.clear()
        self._stored_at = time.monotonic()
        self._done += count
        self._tell()

    def _count(self, outcome: _Outcome, known: CatalogEntry | None, moved: Mapping[bytes, bytes]) -> None:
        read = outcome.read
        path = from_blob(read.found.path)
        for remark in read.remarks:
            self.report.add_remark(path, remark)
        if outcome.error is None:
            self.report.metadata_read += read.facts not in (None, "{}")
            self.report.metadata_given += read.found.metadata not in (None, "{}")
        if outcome.error is not None:
            self.report.failed += 1
            self.report.add_problem(path, outcome.error)
        elif read.found.path in moved:
            self.report.moved += 1
        elif known is None or known.state == "failed":
            self.report.added += 1
            self.report.reused += outcome.is_copy
        elif known.content_id == outcome.content_id:
            self.report.unchanged += 1  # only its time had changed
        else:
            self.report.changed += 1
            self.report.reused += outcome.is_copy

    def look_for_vanished(self, sources: Sequence[Source], *, prune: bool) -> None:
        """Count the images under the sources whose files are gone, and with `prune` take them out."""
        for source in sources:
            if source.kind == "list":
                continue  # its rows were each looked at
            gone: list[int] = []
            with self._catalog.read() as snapshot:
                # Without prune only images are counted: a file that never could be read is no loss.
                for image_id, path in snapshot.stream_under(source.root, searchable=not prune):
                    if look_at(path).gone:
                        gone.append(image_id)
            self.report.vanished += len(gone)
            if self._left_meanwhile(source):
                self._pass_over(source.path, "the folder went away meanwhile; its pictures stay in the gallery")
                continue
            for start in range(0, len(gone) if prune else 0, _PRUNE_BATCH):
                with self._catalog.write() as batch:
                    self.report.pruned += batch.remove(gone[start : start + _PRUNE_BATCH])

    def _refuse_missing(self, sources: Sequence[Source], *, prune: bool) -> None:
        for source in sources:
            if source.kind != "missing":
                continue
            with self._catalog.read() as snapshot:
                was_there = next(snapshot.stream_under(source.root), None) is not None
            if not (prune and was_there):
                hint = " Its pictures stay in the gallery; --prune takes them out." if was_there else ""
                refuse_missing(source, hint)

    def _left_meanwhile(self, source: Source) -> bool:
        """Whether a folder that was there when the run began is not any more, or another is in its place."""
        if source.kind != "folder":
            return False
        found = _identity(source)
        before = self._folders.get(source.root, found)
        return found is None or before is None or found[0] != before[0] or not found[1] >= before[1]

    def _pass_over(self, path: bytes, reason: str) -> None:
        self.report.passed_over += 1
        self.report.add_problem(from_blob(path), reason)

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(IndexProgress(self._done, self._total, self.report.failed))


def _identity(source: Source) -> _Identity | None:
    """Which folder lies at a source's path, and the disks in it: others, where a disk was taken out meanwhile."""
    try:
        found = os.stat(source.root)  # noqa: PTH116 -- bytes
    except OSError:
        return None
    return ((found.st_dev, found.st_ino), mounted_in(source.root)) if stat.S_ISDIR(found.st_mode) else None
