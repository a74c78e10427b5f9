"""From a descriptor to hits: filters, the engine, expansion and re-ranking, and the rows of the catalogue."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from tessera.errors import GalleryError, UsageError, unknown_name
from tessera.gallery.filters import Condition
from tessera.gallery.paths import printable
from tessera.gallery.results import Hit
from tessera.gallery.snapshot import Ids
from tessera.gallery.store import Store

Scores = npt.NDArray[np.float32]

RERANKINGS = ("global",)
_FILTERS_KEPT = 8


class Searcher:
    """Searches one store, from as many threads as there are."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._filtered: dict[tuple[int, tuple[Condition, ...]], Ids] = {}

    def search(
        self,
        queries: Scores,
        k: int,
        conditions: tuple[Condition, ...] = (),
        *,
        expand: str | None = None,
        rerank: str | None = None,
    ) -> tuple[Scores, Ids]:
        """Scores Q K and ids Q K, best first; fewer columns where the gallery holds fewer images than k."""
        self._check(queries, k)
        if rerank is not None and rerank not in RERANKINGS:
            raise UsageError(unknown_name("re-ranking", rerank, (*RERANKINGS, "sp", "dsm", "lightglue")))
        self._store.refresh()
        engine = self._store.engine
        allowed = self.allowed_ids(conditions)
        reachable = engine.size if allowed is None else min(engine.size, len(allowed))
        if reachable == 0:
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        k = min(k, reachable)
        if expand is None and rerank is None:
            return engine.search(queries, k, allowed=allowed)
        from tessera.index.refinement import search_refined

        return search_refined(
            engine, queries, k, fetch=self._fetch, expand=expand, rerank=rerank == "global", allowed=allowed
        )

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

    def allowed_ids(self, conditions: tuple[Condition, ...]) -> Ids | None:
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

    def hits(self, scores: Scores, ids: Ids) -> list[Hit]:
        """Hits of one query; an image that was removed a moment ago is left out."""
        found = [(float(score), int(image_id)) for score, image_id in zip(scores, ids, strict=True) if image_id >= 0]
        with self._store.catalog.read() as snapshot:
            records = snapshot.records([image_id for _, image_id in found])
        kept = [(score, records[image_id]) for score, image_id in found if image_id in records]
        return [Hit(rank, record.id, record.path, score, record.metadata) for rank, (score, record) in enumerate(kept)]

    def refuse_empty(self) -> None:
        with self._store.catalog.read() as snapshot:
            searchable, failed = snapshot.searchable, snapshot.count_failed()
        if searchable == 0:
            unread = f" ({failed} pictures could not be read)" if failed else ""
            raise GalleryError(
                f"The gallery {printable(self._store.path)} is empty{unread}. "
                "Add pictures with `tessera index PHOTOS`, then search again."
            )

    def _check(self, queries: Scores, k: int) -> None:
        check_k(k)
        with self._store.catalog.read() as snapshot:
            dim = int(snapshot.setting("dim"))
        if queries.shape[1] != dim:
            raise UsageError(f"The descriptor has {queries.shape[1]} numbers, the gallery's have {dim}. Use its model.")


def check_k(k: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise UsageError(f"k must be a whole number of at least 1, not {k}. Ask for as many hits as you want to see.")
