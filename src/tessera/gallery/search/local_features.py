"""The local features of a gallery's images: stored beside the descriptors if asked for, else made on demand.

They live in a file of their own, keyed by content, and can be made again: the catalogue stays small, and nothing of it
depends on them. Re-ranking by them never fails a search that the global descriptor can answer; what it could not do is
said in the notes.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tessera.data.boxes import Box
from tessera.data.images import load_photo
from tessera.errors import ImageError, UsageError
from tessera.extract.runtime import default_threads
from tessera.gallery.catalog.paths import to_blob
from tessera.gallery.catalog.snapshot import Record
from tessera.gallery.ingest.indexing import ProgressCallback
from tessera.gallery.results import Hit, IndexProgress
from tessera.gallery.search.query import Query, unknown_id
from tessera.gallery.store import LOCAL_NAME, Store
from tessera.local.extractors import EXTRACTORS
from tessera.local.features import LocalExtractor, LocalFeatures
from tessera.local.rerank import DEFAULT_EXTRACTOR, SIZE, Reranker, open_reranker, order_candidates
from tessera.local.store import FeatureStore, as_stored

_KEPT = 512  # images whose features, made on demand, are remembered
_PAGE = 256


class LocalFeatureIndex:
    """Features by image for one store, from as many threads as there are."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._opened: dict[tuple[str, str], Future[Reranker]] = {}
        self._features: FeatureStore | None = None
        self._made: dict[tuple[str, str], LocalFeatures] = {}

    @property
    def path(self) -> Path:
        return self._store.path / LOCAL_NAME

    def index(self, name: str, progress: ProgressCallback | None = None, roots: Sequence[bytes] = ()) -> dict[str, Any]:
        """Make and store the features of every image that has none; the caller writes. Goes on where it stopped.

        roots: only of images at these paths or below them.

        name: an extractor, the folder of a local bundle, a system, or `dsm` for the maxima of the gallery's own model.
        """
        extractor = self._extractor(name)
        features = self._shelf(create=True)
        assert features is not None
        known, wanted = features.known(extractor.fingerprint), self._contents()
        asked = (
            wanted if not roots else {content: record for content, record in wanted.items() if _lies_in(record, roots)}
        )
        lacking = {content: record for content, record in asked.items() if content not in known}
        failures: dict[str, str] = {}
        for done, (content, record) in enumerate(lacking.items(), start=1):
            try:
                features.put(extractor.fingerprint, content, extractor.extract(_read(record)))
            except ImageError as error:
                failures[record.path] = str(error)
            if progress is not None:
                progress(IndexProgress(done, len(lacking), len(failures)))
        features.keep_only(wanted)
        features.flush()
        if name != "dsm":
            with self._store.catalog.write() as batch:
                batch.set("local", _absolute(name))
        size = features.describe().get(extractor.fingerprint, {"images": 0, "bytes": 0})
        made = len(lacking) - len(failures)
        return {"extractor": extractor.name, "made": made, **size, "failed": len(failures), "problems": failures}

    def rerank(
        self, kind: str, query: Query, box: Box | None, hits: Sequence[Hit], *, rerank_timeout_s: float | None = None
    ) -> tuple[list[Hit], list[str]]:
        """The hits in their new order, each with its inliers, and what there is to say of it.

        rerank_timeout_s: compare no further hit after so many seconds; those that were not compared have no inliers.
        """
        deadline = None if rerank_timeout_s is None else time.monotonic() + rerank_timeout_s
        reranker = self._reranker(kind, rerank_timeout_s)
        if reranker is None:
            return list(hits), [f"{kind}: it is still being opened, so the global scores decide. Ask again."]
        asked = self._query_features(query, box, reranker)
        if not len(asked):
            return list(hits), [f"{kind}: no local features were found in the query, so the global scores decide."]
        threads = default_threads()
        at_once = max(1, len(hits)) if deadline is None else threads
        tally: Counter[str] = Counter()
        counts: list[int] = []
        for start in range(0, len(hits), at_once):
            if deadline is not None and time.monotonic() >= deadline:
                break
            found = self._candidates(hits[start : start + at_once], reranker, tally)
            counts += reranker.count_inliers(asked, found, threads=threads).tolist()
        inliers = np.array(counts + [0] * (len(hits) - len(counts)), np.int64)
        order = order_candidates(inliers, [hit.score for hit in hits])
        notes = _notes(kind, reranker, tally)
        if len(counts) < len(hits):
            notes.append(f"{kind}: the time was enough to compare {len(counts)} of the {len(hits)} best hits.")
        if not inliers.any():
            notes.append(f"{kind}: no hit agrees with the query geometrically, so the global scores decide.")
        reordered = [
            replace(hits[i], rank=rank, inliers=int(inliers[i]) if i < len(counts) else None)
            for rank, i in enumerate(order)
        ]
        return reordered, notes

    def _candidates(self, hits: Sequence[Hit], reranker: Reranker, tally: Counter[str]) -> list[LocalFeatures | None]:
        """The hits' features, stored or made now; counts in `tally` what was made, lost or empty."""
        with self._store.catalog.read() as snapshot:
            records = snapshot.records([hit.id for hit in hits])
        fingerprint = reranker.extractor.fingerprint
        contents = {hit.id: records[hit.id].content_hash or "" for hit in hits if hit.id in records}
        shelf = self._shelf(create=False)
        stored = {} if shelf is None else shelf.get_many(fingerprint, list(contents.values()))
        found: list[LocalFeatures | None] = []
        for hit in hits:
            content = contents.get(hit.id, "")
            features = stored.get(content, self._made.get((fingerprint, content)))
            if features is None and content:
                try:
                    features = as_stored(reranker.extractor.extract(_read(records[hit.id])))
                    self._remember(fingerprint, content, features)
                    tally["made"] += 1
                except ImageError:
                    tally["lost"] += 1
            if features is not None and not len(features):
                tally["empty"] += 1
            found.append(features)
        return found

    def _query_features(self, query: Query, box: Box | None, reranker: Reranker) -> LocalFeatures:
        picture: Any = query
        if isinstance(query, int | np.integer) and not isinstance(query, bool):
            with self._store.catalog.read() as snapshot:
                record = snapshot.records([int(query)]).get(int(query))
            if record is None:
                raise unknown_id(int(query))
            shelf = self._shelf(create=False)
            if box is None and shelf is not None and record.content_hash:
                stored = shelf.get_many(reranker.extractor.fingerprint, [record.content_hash])
                if record.content_hash in stored:
                    return stored[record.content_hash]
            picture = record.path
        elif isinstance(query, np.ndarray):
            if query.ndim != 3:
                raise UsageError(f"--rerank {reranker.name} needs a picture: a descriptor has no local features.")
            picture = Image.fromarray(query)
        return as_stored(reranker.extractor.extract(load_photo(picture, size=SIZE, box=box)))

    def _reranker(self, kind: str, rerank_timeout_s: float | None) -> Reranker | None:
        """Opened once, beside the request that first asks for it; none where its patience ends before."""
        with self._store.catalog.read() as snapshot:
            name = str(snapshot.setting("local") or DEFAULT_EXTRACTOR)
        model = self._store.describer.model
        key = (kind, name if kind == "sp" else model)

        def open_it(opening: Future[Reranker]) -> None:
            try:
                extractor = self._extractor(name) if kind == "sp" else None
                opening.set_result(open_reranker(kind, extractor=extractor, model=model))
            except BaseException as error:
                with self._lock:
                    self._opened.pop(key, None)  # the next request may find what was missing
                opening.set_exception(error)

        with self._lock:
            opening = self._opened.get(key)
            if opening is None:
                opening = self._opened[key] = Future()
                threading.Thread(target=open_it, args=(opening,), daemon=True).start()
        try:
            return opening.result(rerank_timeout_s)
        except TimeoutError:
            return None

    def _extractor(self, name: str) -> LocalExtractor:
        if name == "dsm":
            return open_reranker("dsm", model=self._store.describer.model).extractor
        from tessera.local.system import open_extractor_of

        return open_extractor_of(_absolute(name))

    def _shelf(self, *, create: bool) -> FeatureStore | None:
        with self._lock:
            if self._features is None and (create or self.path.is_file()):
                self._features = FeatureStore(self.path)
            return self._features

    def _contents(self) -> dict[str, Record]:
        """One image of each content."""
        found: dict[str, Record] = {}
        last = 0
        while True:
            with self._store.catalog.read() as snapshot:
                page = snapshot.page(after_id=last, limit=_PAGE, state="ok", conditions=())
            if not page:
                return found
            last = page[-1].id
            for record in page:
                if record.content_hash:
                    found.setdefault(record.content_hash, record)

    def _remember(self, fingerprint: str, content: str, features: LocalFeatures) -> None:
        with self._lock:
            while len(self._made) >= _KEPT:
                self._made.pop(next(iter(self._made)))
            self._made[fingerprint, content] = features

    def close(self) -> None:
        with self._lock:
            if self._features is not None:
                self._features.close()
                self._features = None


def _notes(kind: str, reranker: Reranker, tally: Counter[str]) -> list[str]:
    notes = []
    if tally["made"]:
        name = "dsm" if kind == "dsm" else reranker.extractor.name
        notes.append(
            f"{kind}: the local features of {tally['made']} images were made for this search; "
            f"`tessera index --local {name}` stores them."
        )
    if tally["lost"]:
        notes.append(f"{kind}: {tally['lost']} images could not be read again and keep their global scores.")
    if tally["empty"]:
        notes.append(f"{kind}: {tally['empty']} images have no local features and keep their global scores.")
    return notes


def _read(record: Record) -> Any:
    """The pixels of an image, if its file still has the content that was indexed, whatever its time says."""
    try:
        content = Path(record.path).read_bytes()
    except OSError as error:
        raise ImageError(f"{record.path} cannot be read: {error.strerror or error}.") from error
    if hashlib.sha256(content).hexdigest() != record.content_hash:
        raise ImageError(f"{record.path} has changed since it was indexed. Index it again.")
    return load_photo(content, size=SIZE)


def _lies_in(record: Record, roots: Sequence[bytes]) -> bool:
    path = to_blob(record.path)
    return any(path == root or path.startswith(root.rstrip(b"/") + b"/") for root in roots)


def _absolute(name: str) -> str:
    """A folder's or a file's full path, since commands run from anywhere; an extractor's name as it is."""
    path = Path(name)
    return str(path.absolute()) if name not in EXTRACTORS and path.exists() else name
