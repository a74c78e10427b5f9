"""The local features of a gallery's images: stored beside the descriptors if asked for, else made on demand.

They live in a file of their own, keyed by content, and can be made again: the catalogue stays small, and nothing of it
depends on them. Re-ranking by them never fails a search that the global descriptor can answer; what it could not do is
said in the notes.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tessera.errors import ImageError, StorageError
from tessera.extract.runtime import default_threads
from tessera.gallery.catalog.paths import to_blob
from tessera.gallery.catalog.records import Record
from tessera.gallery.catalog.snapshot import Snapshot
from tessera.gallery.gallery_folder import LOCAL_NAME
from tessera.gallery.ingest.indexing import ProgressCallback
from tessera.gallery.ingest.reading import load_indexed
from tessera.gallery.results import Hit, IndexProgress
from tessera.gallery.search.query import QueryPicture
from tessera.gallery.store import Store
from tessera.local.extractors import EXTRACTORS
from tessera.local.feature_cache import FeatureCache, as_stored
from tessera.local.features import LocalExtractor, LocalFeatures
from tessera.local.spatial_reranking import DEFAULT_EXTRACTOR, SIZE, Reranker, open_reranker, order_candidates
from tessera.refiners import Refiner

_KEPT = 512  # images whose features, made on demand, are remembered
_PAGE = 256


class LocalFeatureIndex:
    """Features by image for one store, from as many threads as there are."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._opened: dict[tuple[str, str], Future[Reranker]] = {}
        self._features: FeatureCache | None = None
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
        features = self._open_cache(create=True)
        assert features is not None
        known, wanted = features.known(extractor.fingerprint), self._contents()
        asked = (
            wanted if not roots else {content: record for content, record in wanted.items() if _lies_in(record, roots)}
        )
        lacking = {content: record for content, record in asked.items() if content not in known}
        failures: dict[str, str] = {}
        for done, (content, record) in enumerate(lacking.items(), start=1):
            try:
                features.put(extractor.fingerprint, content, extractor.extract(load_indexed(record, SIZE)))
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

    def source_of(self, kind: str, snapshot: Snapshot) -> str:
        """Whose features a re-ranker compares: an extractor's for `sp`, else the gallery's own model's."""
        if kind == "sp":
            return str(snapshot.setting("local") or DEFAULT_EXTRACTOR)
        return self._store.model_of(snapshot)

    def rerank(
        self,
        refiner: Refiner,
        query: QueryPicture,
        hits: Sequence[Hit],
        records: Mapping[int, Record],
        source: str,
        timeout_s: float = math.inf,
    ) -> tuple[list[Hit], list[str]]:
        """The best hits in their new order, each with its inliers; the others after them; what there is to say of it.

        records: of the hits. source: as `source_of` gave it. timeout_s: compare no further hit after so many seconds;
        those that were not compared have no inliers.
        """
        deadline = time.monotonic() + timeout_s
        kind, head, rest = refiner.name, hits[: refiner.depth], hits[refiner.depth :]
        reranker = self._reranker(kind, source, timeout_s)
        if reranker is None:
            return list(hits), [f"{kind}: it is still being opened, so the global scores decide. Ask again."]
        asked = self._query_features(query, reranker)
        if not len(asked):
            return list(hits), [f"{kind}: no local features were found in the query, so the global scores decide."]
        threads = default_threads()
        at_once = max(1, len(head)) if deadline == math.inf else threads
        tally: Counter[str] = Counter()
        counts: list[int] = []
        for start in range(0, len(head), at_once):
            if deadline < math.inf and time.monotonic() >= deadline:
                break
            found = self._candidates([records[hit.id] for hit in head[start : start + at_once]], reranker, tally)
            counts += reranker.count_inliers(asked, found, threads=threads).tolist()
        if tally["kept"] and (cache := self._open_cache(create=False)) is not None:
            cache.flush()
        inliers = np.array(counts + [0] * (len(head) - len(counts)), np.int64)
        order = order_candidates(inliers, [hit.score for hit in head])
        notes = _notes(kind, reranker, tally)
        if len(counts) < len(head):
            notes.append(f"{kind}: the time was enough to compare {len(counts)} of the {len(head)} best hits.")
        if not inliers.any():
            notes.append(f"{kind}: no hit agrees with the query geometrically, so the global scores decide.")
        reordered = [
            replace(head[i], rank=rank, inliers=int(inliers[i]) if i < len(counts) else None)
            for rank, i in enumerate(order)
        ]
        return [*reordered, *rest], notes

    def _candidates(
        self, records: Sequence[Record], reranker: Reranker, tally: Counter[str]
    ) -> list[LocalFeatures | None]:
        """The images' features, stored or made now; counts in `tally` what was made, lost or empty."""
        fingerprint = reranker.extractor.fingerprint
        cache = self._open_cache(create=False)
        contents = [record.content_hash for record in records if record.content_hash]
        stored = {} if cache is None else cache.get_many(fingerprint, contents)
        found: list[LocalFeatures | None] = []
        for record in records:
            content = record.content_hash or ""
            features = stored.get(content, self._made.get((fingerprint, content)))
            if features is None and content:
                try:
                    features = as_stored(reranker.extractor.extract(load_indexed(record, SIZE)))
                    self._remember(fingerprint, content, features)
                    tally["kept"] += self._keep(fingerprint, content, features)
                    tally["made"] += 1
                except ImageError:
                    tally["lost"] += 1
            if features is not None and not len(features):
                tally["empty"] += 1
            found.append(features)
        return found

    def _query_features(self, query: QueryPicture, reranker: Reranker) -> LocalFeatures:
        cache, content = self._open_cache(create=False), query.content_hash
        if cache is not None and content is not None:
            stored = cache.get_many(reranker.extractor.fingerprint, [content])
            if content in stored:
                return stored[content]
        return as_stored(reranker.extractor.extract(query.pixels(SIZE)))

    def _reranker(self, kind: str, source: str, timeout_s: float) -> Reranker | None:
        """Opened once, beside the request that first asks for it; none where its time is over before."""
        key = (kind, source)

        def open_it(opening: Future[Reranker]) -> None:
            try:
                given = {"extractor": self._extractor(source)} if kind == "sp" else {"model": source}
                opening.set_result(open_reranker(kind, **given))
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
            return opening.result(min(max(timeout_s, 0.0), threading.TIMEOUT_MAX))
        except TimeoutError:
            return None

    def _extractor(self, name: str) -> LocalExtractor:
        if name == "dsm":
            return open_reranker("dsm", model=self._store.describer.model).extractor
        from tessera.local.system import open_extractor_of

        return open_extractor_of(_absolute(name))

    def _open_cache(self, *, create: bool) -> FeatureCache | None:
        with self._lock:
            if self._features is None and (create or self.path.is_file()):
                self._features = FeatureCache(self.path)
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

    def _keep(self, fingerprint: str, content: str, features: LocalFeatures) -> bool:
        """Store features that a search has made: the next one need not. False where nothing may be written."""
        try:
            cache = self._open_cache(create=True)
            assert cache is not None
            cache.put(fingerprint, content, features)
        except StorageError:
            return False
        return True

    def close(self) -> None:
        with self._lock:
            if self._features is not None:
                self._features.close()
                self._features = None


def _notes(kind: str, reranker: Reranker, tally: Counter[str]) -> list[str]:
    notes = []
    if tally["made"]:
        name = "dsm" if kind == "dsm" else reranker.extractor.name
        kept = "and kept for the next" if tally["kept"] else "and could not be kept"
        notes.append(
            f"{kind}: the local features of {tally['made']} images were made for this search {kept}; "
            f"`tessera index --local {name}` makes them for all."
        )
    if tally["lost"]:
        notes.append(f"{kind}: {tally['lost']} images could not be read again and keep their global scores.")
    if tally["empty"]:
        notes.append(f"{kind}: {tally['empty']} images have no local features and keep their global scores.")
    return notes


def _lies_in(record: Record, roots: Sequence[bytes]) -> bool:
    path = to_blob(record.path)
    return any(path == root or path.startswith(root.rstrip(b"/") + b"/") for root in roots)


def _absolute(name: str) -> str:
    """A folder's or a file's full path, since commands run from anywhere; an extractor's name as it is."""
    path = Path(name)
    return str(path.absolute()) if name not in EXTRACTORS and path.exists() else name
