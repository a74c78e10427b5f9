"""From a descriptor to hits: filters, the engine, expansion and re-ranking, and the rows of the catalogue."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import GalleryError, UsageError, unknown_name
from tessera.gallery.catalog.filters import AnyCondition
from tessera.gallery.catalog.paths import printable
from tessera.gallery.catalog.snapshot import Ids, Record
from tessera.gallery.engines.engine import Engine
from tessera.gallery.results import Hit
from tessera.gallery.store import Store

Scores = npt.NDArray[np.float32]

RERANKINGS = ("global",)
_FILTERS_KEPT = 8
_TRIES = 8  # a search that is met by a writer every time, however quick it is, answers in the end


class Searcher:
    """Searches one store, from as many threads as there are."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._filtered: dict[tuple[int, tuple[AnyCondition, ...]], Ids] = {}
        self._dim = (-1, 0)  # at which generation the gallery's descriptors had how many numbers

    def search(
        self,
        queries: Scores,
        k: int,
        conditions: tuple[AnyCondition, ...] = (),
        *,
        expand: str | None = None,
        augment: bool = False,
        rerank: str | None = None,
    ) -> list[list[Hit]]:
        """The hits of each of Q D queries, best first, of one moment of the catalogue.

        The index is searched first and the catalogue read after it. Where a writer came in between, an image that it
        changed has another id by then and would be missing from the answer: the search is made again.
        """
        check_k(k)
        if rerank is not None and rerank not in RERANKINGS:
            raise UsageError(unknown_name("re-ranking", rerank, (*RERANKINGS, "sp", "dsm", "lightglue")))
        tries = 1 if self._store.answers_at_once else _TRIES
        while True:
            tries -= 1
            engine, shown = self._store.refresh()
            self._check_dim(queries, shown)
            allowed = self.allowed_ids(conditions)
            refined = expand is not None or augment or rerank is not None
            refinement = {"expand": expand, "augment": augment, "rerank": rerank == "global"} if refined else None
            scores, ids = self._ask(engine, queries, k, allowed, refinement)
            found = np.unique(ids[ids >= 0]).tolist()
            with self._store.catalog.read() as snapshot:
                records = snapshot.records(found)
                fits = not conditions or snapshot.generation == shown  # the filter is of the index's own moment
            if (fits and len(records) == len(found)) or tries == 0:
                return [_hits(row_scores, row_ids, records) for row_scores, row_ids in zip(scores, ids, strict=True)]

    def _ask(
        self, engine: Engine, queries: Scores, k: int, allowed: Ids | None, refinement: dict[str, Any] | None
    ) -> tuple[Scores, Ids]:
        """Scores Q K and ids Q K, best first; fewer columns where there are fewer images than k.

        refinement: what `search_refined` is to do; None is the plain search.
        """
        while True:
            size = engine.size
            columns = min(k, size if allowed is None else min(size, len(allowed)))
            if columns == 0:
                return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
            if refinement is None:
                answer = engine.search(queries, columns, allowed=allowed)
            else:
                from tessera.index.refinement import search_refined

                answer = search_refined(engine, queries, columns, fetch=self._fetch, allowed=allowed, **refinement)
            if k <= size or engine.size <= size:
                return answer  # else more came in than were asked for, and the last of them would be missing

    def _fetch(self, ids: Ids) -> Scores:
        """Stored descriptors K D; zeros for an image that was removed a moment ago."""
        with self._store.catalog.read() as snapshot:
            found = snapshot.descriptors(ids.tolist())
            dim = int(snapshot.setting("dim"))
        rows = np.zeros((len(ids), dim), np.float32)
        for row, image_id in enumerate(ids.tolist()):
            if image_id in found:
                rows[row] = found[image_id]
        return rows

    def allowed_ids(self, conditions: tuple[AnyCondition, ...]) -> Ids | None:
        """Ids that meet the conditions; remembered, since a user who filters asks again with the same filter."""
        if not conditions:
            return None
        with self._store.catalog.read() as snapshot:
            key = (snapshot.generation, conditions)
            with self._lock:
                if key in self._filtered:
                    return self._filtered[key]
            ids = snapshot.matching_ids(conditions)
        with self._lock:
            while len(self._filtered) >= _FILTERS_KEPT:
                self._filtered.pop(next(iter(self._filtered)))
            self._filtered[key] = ids
        return ids

    def refuse_empty(self) -> None:
        with self._store.catalog.read() as snapshot:
            searchable = snapshot.searchable
            failed = 0 if searchable else snapshot.count_failed()
        if searchable == 0:
            unread = f" ({failed} pictures could not be read)" if failed else ""
            raise GalleryError(
                f"The gallery {printable(self._store.path)} is empty{unread}. "
                "Add pictures with `tessera index PHOTOS`, then search again."
            )

    def _check_dim(self, queries: Scores, generation: int) -> None:
        known_at, dim = self._dim
        if known_at != generation:
            with self._store.catalog.read() as snapshot:
                dim = int(snapshot.setting("dim"))
            self._dim = generation, dim
        if queries.shape[1] != dim:
            raise UsageError(f"The descriptor has {queries.shape[1]} numbers, the gallery's have {dim}. Use its model.")


def _hits(scores: Scores, ids: Ids, records: dict[int, Record]) -> list[Hit]:
    """Hits of one query; an image that was removed a moment ago is left out."""
    kept = [(float(score), records[i]) for score, i in zip(scores, ids.tolist(), strict=True) if i in records]
    return [
        Hit(rank, record.id, record.path, score, record.metadata, width=record.width, height=record.height)
        for rank, (score, record) in enumerate(kept)
    ]


def check_k(k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise UsageError(f"k must be a whole number of at least 1, not {k}. Ask for as many hits as you want to see.")
