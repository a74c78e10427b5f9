"""Search with query expansion, database-side augmentation and re-ranking by descriptors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tessera.errors import UsageError
from tessera.index.expansion import ALPHA, augment, diffuse, expand_query
from tessera.index.global_reranking import rerank_scores
from tessera.refiners import AUGMENTED_DEPTH, EXPANSIONS, find_expansion, find_reranker

Float32s = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]

Fetch = Callable[[Int64s], Float32s]
Rescore = Callable[[Float32s, Float32s], Float32s]  # a query D and the descriptors of its best hits K D -> scores K

# What an entry of `tessera.refiners` that compares descriptors does with the best hits, by its name.
RESCORERS: dict[str, Rescore] = {"diffusion": diffuse, "global": rerank_scores}


class Searchable(Protocol):
    """A `SearchIndex`, or anything that answers like one."""

    def search(
        self, queries: npt.ArrayLike, k: int, *, allowed: npt.ArrayLike | None = None
    ) -> tuple[Float32s, Int64s]: ...


def search_refined(
    index: Searchable,
    queries: Float32s,
    k: int,
    *,
    fetch: Fetch,
    expand: str | None = None,
    augment: bool | AugmentedDescriptors = False,
    rerank: str | None = None,
    allowed: npt.ArrayLike | None = None,
) -> tuple[Float32s, Int64s]:
    """Scores Q K and ids Q K after expansion, augmentation, re-ranking or all, in this order; padded as `search` pads.

    fetch: ids K -> descriptors K D. expand, rerank: names of `tessera.refiners`, of those that compare descriptors.
    augment: score the best by their augmented descriptors; what was augmented before may be given. Only the best are
    reordered; answers beyond them follow in their old order, with scores that are not comparable to those before them.
    """
    expansion, reranker = find_expansion(expand), find_reranker(rerank)
    if reranker is not None and reranker.compares != "descriptors":
        raise UsageError(f"the re-ranking '{rerank}' compares local features, and an index has none.")
    asked = np.atleast_2d(np.asarray(queries, dtype=np.float32))
    if expansion is EXPANSIONS["aqe"]:
        asked, expansion = expand_queries(index, asked, fetch=fetch, allowed=allowed), None
    depths = [refiner.depth for refiner in (expansion, reranker) if refiner is not None]
    if augment is not False:
        depths.append(AUGMENTED_DEPTH)
    scores, ids = index.search(asked, max(k, *depths, 0), allowed=allowed)
    if augment is not False:
        fetch = augment if isinstance(augment, AugmentedDescriptors) else AugmentedDescriptors(index, fetch)
        _reorder(asked, scores, ids, AUGMENTED_DEPTH, fetch, lambda query, descriptors: descriptors @ query)
    if expansion is not None:
        _reorder(asked, scores, ids, expansion.depth, fetch, RESCORERS[expansion.name])
    if reranker is not None:
        _reorder(asked, scores, ids, reranker.depth, fetch, RESCORERS[reranker.name])
    return scores[:, :k], ids[:, :k]


def expand_queries(
    index: Searchable,
    queries: Float32s,
    *,
    fetch: Fetch,
    count: int = EXPANSIONS["aqe"].depth,
    alpha: float = ALPHA,
    allowed: npt.ArrayLike | None = None,
) -> Float32s:
    """Alpha query expansion of Q D queries by their best `count` answers."""
    _, ids = index.search(queries, count, allowed=allowed)
    return np.stack(
        [expand_query(query, fetch(mine[mine >= 0]), alpha) for query, mine in zip(queries, ids, strict=True)]
    )


class AugmentedDescriptors:
    """Database-side augmentation on demand: ids K -> descriptors K D, each joined with its neighbours in the gallery.

    Neighbours are those of the whole gallery, filter or not, and each is augmented once: one search for each.
    """

    def __init__(self, index: Searchable, fetch: Fetch, *, count: int = EXPANSIONS["aqe"].depth) -> None:
        self._index, self._fetch, self._count = index, fetch, count
        self._made: dict[int, Float32s] = {}

    def __call__(self, ids: Int64s) -> Float32s:
        lacking = np.array([i for i in np.unique(ids).tolist() if i not in self._made], np.int64)
        if len(lacking):
            plain = self._fetch(lacking)
            _, found = self._index.search(plain, self._count + 1)
            for own, descriptor, mine in zip(lacking.tolist(), plain, found, strict=True):
                others = mine[(mine >= 0) & (mine != own)]
                self._made[own] = expand_query(descriptor, self._fetch(others)) if len(others) else descriptor
        return np.stack([self._made[i] for i in ids.tolist()])


def augment_gallery(
    index: Searchable, descriptors: Float32s, ids: Int64s, *, count: int = EXPANSIONS["aqe"].depth, alpha: float = ALPHA
) -> Float32s:
    """Database augmentation of a whole gallery: descriptors N D of ascending ids N, each joined with its neighbours.

    The result is what to index instead. One search an image, in batches.
    """
    neighbours = np.full((len(ids), count + 1), -1, dtype=np.int64)
    for i in range(0, len(ids), 256):
        _, found = index.search(descriptors[i : i + 256], count + 1)
        rows = np.searchsorted(ids, found)
        known = (found >= 0) & (ids[np.minimum(rows, len(ids) - 1)] == found)
        neighbours[i : i + 256] = np.where(known, rows, -1)
    return augment(descriptors, neighbours, alpha)


def _reorder(
    queries: Float32s,
    scores: Float32s,
    ids: Int64s,
    depth: int,
    fetch: Fetch,
    rescore: Callable[[Float32s, Float32s], Float32s],
) -> None:
    """Give the head of each row new scores and the order that they ask for, in place."""
    for q, query in enumerate(queries):
        head = ids[q][ids[q] >= 0][:depth]
        if len(head) == 0:
            continue
        fresh = rescore(query, fetch(head))
        order = np.lexsort((head, -fresh))
        scores[q, : len(head)], ids[q, : len(head)] = fresh[order], head[order]
