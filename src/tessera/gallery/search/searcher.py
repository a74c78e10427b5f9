"""The one search: describe the query, find candidates, look them up in the catalogue, re-rank the best.

Everything is read from one `View`, pinned at the start. This is the only place that searches again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tessera.errors import UsageError, unknown_name
from tessera.extract.blas import one_blas_thread
from tessera.extract.runtime import default_threads
from tessera.gallery.catalog.filters import BUILT_IN_KEYS, AnyCondition, Near
from tessera.gallery.catalog.records import Ids, Record
from tessera.gallery.engines.engine import Allowed
from tessera.gallery.results import Hit, SearchResult
from tessera.gallery.search.by_parts import Judged
from tessera.gallery.search.local_feature_index import LocalFeatureIndex
from tessera.gallery.search.parts_searcher import PartsSearcher
from tessera.gallery.search.query import QueryPicture
from tessera.gallery.search.search_options import SearchOptions
from tessera.gallery.store import Store
from tessera.gallery.view import View
from tessera.local.calibration import VERIFIED_INLIERS, VERIFIED_PROBABILITY

Scores = npt.NDArray[np.float32]

_FILTERS_KEPT = 8
_TRIES = 8  # a search that is met by a writer every time, however quick it is, answers in the end


@dataclass(frozen=True)
class Candidates:
    """What the view had to say. records: of every image that was found. source: whose local features to compare."""

    scores: Scores  # Q K, best first
    ids: Ids  # Q K
    records: dict[int, Record]
    source: str
    described_s: float
    judged: tuple[Judged, ...] = ()  # Q, where local features took part
    notes: tuple[str, ...] = ()


class Searcher:
    """Searches one store, from as many threads as there are."""

    def __init__(self, store: Store, local: LocalFeatureIndex) -> None:
        self._store = store
        self._local = local
        self._parts = PartsSearcher(store)
        self._lock = threading.Lock()
        self._filtered: dict[tuple[int, tuple[AnyCondition, ...]], Ids] = {}

    def search(self, queries: Sequence[QueryPicture], options: SearchOptions) -> list[SearchResult]:
        """The answer to each query, all of one moment of the gallery."""
        started = time.perf_counter()
        if options.local_reranker is not None and not all(query.is_picture for query in queries):
            raise UsageError(f"--rerank {options.rerank} needs a picture: a descriptor has no local features.")
        with one_blas_thread():
            found = self._find_consistently(queries, options)
        timing = {"embed": found.described_s, "search": time.perf_counter() - started - found.described_s}
        results = []
        if found.judged:
            milliseconds = _milliseconds({**timing, "total": sum(timing.values())})
            return [
                self._answer(judged, query, found, options, milliseconds)
                for judged, query in zip(found.judged, queries, strict=True)
            ]
        for query, scores, ids in zip(queries, found.scores, found.ids, strict=True):
            hits = _hits(scores, ids, found.records)
            notes = [*query.notes, *found.notes]
            reranking = time.perf_counter()
            if options.local_reranker is not None:
                hits, said = self._local.rerank(
                    options.local_reranker, query, hits, found.records, found.source, options.timeout_s
                )
                notes += said
            finished = time.perf_counter()
            spent = {**timing, "total": found.described_s + timing["search"] + finished - reranking}
            if options.local_reranker is not None:
                spent["rerank"] = finished - reranking
            results.append(SearchResult(hits[: options.k], _milliseconds(spent), notes))
        return results

    def _answer(
        self,
        judged: Judged,
        query: QueryPicture,
        found: Candidates,
        options: SearchOptions,
        milliseconds: dict[str, float],
    ) -> SearchResult:
        hits = _judged_hits(judged, found.records, options)
        certain = bool(len(judged.ids)) and float(judged.probabilities[0]) >= self._parts.calibration.certain
        notes = [*query.notes, *found.notes]
        if not certain:
            notes.append("Nothing certain: no image of the collection surely shows this. These are the nearest.")
        if judged.degrees:
            notes.append(f"Found by the query turned by {judged.degrees} degrees.")
        return SearchResult(hits, milliseconds, notes, certain=certain, degrees=judged.degrees)

    def _find_consistently(self, queries: Sequence[QueryPicture], options: SearchOptions) -> Candidates:
        """Candidates that show one moment.

        The snapshot cannot change, but the index may run ahead of it: FAISS when another thread brings it up to a later
        moment, Milvus when another process writes. Then the search is made again on a new view.
        """
        for _ in range(_TRIES):
            with self._store.pin() as view:
                found = self._find(queries, options, view)
                if not view.is_current or _fits(found, options, view):
                    break
        return found

    def _find(self, queries: Sequence[QueryPicture], options: SearchOptions, view: View) -> Candidates:
        """Describe, find candidates, and look them up."""
        started = time.perf_counter()
        notes: tuple[str, ...] = ()
        if options.uses_parts and (notes := self._parts.reasons_against(queries, view, options)) == ():
            for query in queries:
                query.locate(view.snapshot)
            with ThreadPoolExecutor(default_threads()) as beside:  # the network, which is opened for the first query
                extracting = beside.map(self._parts.describe, queries)
                descriptors = self._describe(queries, view)
                features = list(extracting)
            described_s = time.perf_counter() - started
            allowed = self._allowed(options.conditions, view)
            judged = tuple(
                self._parts.search(view, descriptor, found, options, allowed, query.exclude)
                for descriptor, found, query in zip(descriptors, features, queries, strict=True)
            )
            ids = np.unique(np.concatenate([one.ids[: options.k] for one in judged]))
            records = view.snapshot.records(ids.tolist())
            remarks = self._parts.remarks(view)
            return Candidates(np.empty((0, 0), np.float32), ids[None], records, "", described_s, judged, remarks)
        descriptors = self._describe(queries, view)
        described_s = time.perf_counter() - started
        scores, ids = self._choose(descriptors, options, view)
        records = view.snapshot.records(np.unique(ids[ids >= 0]).tolist())
        source = ""
        if options.local_reranker is not None:
            source = self._local.source_of(options.local_reranker.name, view.snapshot)
            for query in queries:
                query.locate(view.snapshot)
        return Candidates(scores, ids, records, source, described_s, notes=notes)

    def _describe(self, queries: Sequence[QueryPicture], view: View) -> Scores:
        """Descriptors Q D, by the model of the view."""
        descriptors = [
            query.describe(view.snapshot, lambda: self._store.open_extractor(view.snapshot)) for query in queries
        ]
        for descriptor in descriptors:
            if len(descriptor) != view.dim:
                raise UsageError(
                    f"The descriptor has {len(descriptor)} numbers, the gallery's have {view.dim}. Use its model."
                )
        return np.stack(descriptors)

    def _choose(self, descriptors: Scores, options: SearchOptions, view: View) -> tuple[Scores, Ids]:
        """Scores Q K and ids Q K of the candidates, expanded and re-ranked by descriptors where that was asked for.

        Fewer columns where there are fewer images.
        """
        from tessera.index.refinement import search_refined

        allowed = self._allowed(options.conditions, view)
        size = view.index.size
        if allowed is not None and (options.has_refiner or not view.shown.can_filter(options.conditions)):
            size = min(size, len(allowed))
        columns = min(options.num_candidates, size)
        if columns == 0:
            return np.empty((len(descriptors), 0), np.float32), np.empty((len(descriptors), 0), np.int64)
        scores, ids = search_refined(
            view.index,
            descriptors,
            columns,
            fetch=view.descriptors,
            expand=options.expand,
            augment=options.augment,
            rerank=None if options.local_reranker is not None else options.rerank,
            allowed=allowed,
        )
        if allowed is not None and not (ids >= 0).any():
            len(allowed)  # a key that no image has was mistyped
        return scores, ids

    def _allowed(self, conditions: tuple[AnyCondition, ...], view: View) -> Allowed | None:
        return Allowed(conditions, lambda: self._matching_ids(conditions, view)) if conditions else None

    def _matching_ids(self, conditions: tuple[AnyCondition, ...], view: View) -> Ids:
        """Ids that meet the conditions; remembered, since a user who filters asks again with the same filter."""
        key = (view.snapshot.generation, conditions)
        with self._lock:
            if key in self._filtered:
                return self._filtered[key]
        ids = view.snapshot.matching_ids(conditions)
        if not len(ids):
            _refuse_unknown_keys(conditions, view.snapshot.metadata_keys())
        with self._lock:
            while len(self._filtered) >= _FILTERS_KEPT:
                self._filtered.pop(next(iter(self._filtered)))
            self._filtered[key] = ids
        return ids


def _refuse_unknown_keys(conditions: Sequence[AnyCondition], keys: Sequence[str]) -> None:
    """A filter that nothing meets because no image has its key was mistyped, rather than meant."""
    for condition in conditions:
        if isinstance(condition, Near):
            if not {"latitude", "longitude"} <= set(keys):
                raise UsageError("No image of the gallery says where it was taken, so none is near any place.")
        elif condition.key not in (*keys, *BUILT_IN_KEYS):
            raise UsageError(unknown_name("metadata key", condition.key, [*keys, *BUILT_IN_KEYS]))


def _fits(found: Candidates, options: SearchOptions, view: View) -> bool:
    """Whether the index kept nothing back that the snapshot has.

    An image that was changed has a new id. Where the index ran ahead, it answers with that one, which the snapshot does
    not know; behind a filter, which admits ids of the snapshot only, it answers with neither.
    """
    if options.conditions and view.shown.has_moved():
        return False
    return len(found.records) == len(np.unique(found.ids[found.ids >= 0]))


def _hits(scores: Scores, ids: Ids, records: dict[int, Record]) -> list[Hit]:
    """Hits of one query; an image that was removed a moment ago is left out."""
    kept = [(float(score), records[i]) for score, i in zip(scores, ids.tolist(), strict=True) if i in records]
    return [
        Hit(rank, record.id, record.path, min(score, 1.0), record.metadata, width=record.width, height=record.height)
        for rank, (score, record) in enumerate(kept)
    ]


def _judged_hits(judged: Judged, records: dict[int, Record], options: SearchOptions) -> list[Hit]:
    """Hits with what was found out about each. A few places may agree by chance: the rest must speak for it, too."""
    hits: list[Hit] = []
    for row, image_id in enumerate(judged.ids[: options.k].tolist()):
        record, probability = records.get(image_id), float(judged.probabilities[row])
        if record is None or probability < options.min_probability:
            continue
        inliers = int(judged.inliers[row])
        hits.append(
            Hit(
                len(hits),
                record.id,
                record.path,
                probability,
                record.metadata,
                inliers if inliers >= 0 else None,
                record.width,
                record.height,
                probability,
                inliers >= VERIFIED_INLIERS and probability >= VERIFIED_PROBABILITY,
                {"global": float(judged.cosines[row]), "local": float(judged.local_scores[row])},
            )
        )
    return hits


def _milliseconds(seconds: dict[str, float]) -> dict[str, float]:
    return {stage: round(1e3 * value, 3) for stage, value in seconds.items()}
