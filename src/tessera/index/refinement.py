"""Search with expansion and global re-ranking: `--expand aqe|diffusion`, `--augment` and `--rerank global`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tessera.errors import UsageError, unknown_name
from tessera.index.expansion import ALPHA, augment, diffuse, expand_query
from tessera.index.rerank import rerank_scores

Float32s = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]

EXPANSIONS = ("aqe", "diffusion")
EXPANDED_BY = 10
SHORT_LIST = 400

Fetch = Callable[[Int64s], Float32s]


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
    augment: bool = False,
    rerank: bool = False,
    allowed: npt.ArrayLike | None = None,
) -> tuple[Float32s, Int64s]:
    """Scores Q K and ids Q K after expansion, augmentation, re-ranking or all, in this order; padded as `search` pads.

    fetch: ids K -> descriptors K D. Only the short list is reordered; answers beyond it follow in their old order, with
    scores that are not comparable to those before them. augment: the short list is scored by descriptors that are
    joined with their neighbours in the gallery, as if all of it had been augmented: one search for each of the list.
    """
    if expand is not None and expand not in EXPANSIONS:
        raise UsageError(unknown_name("expansion", expand, EXPANSIONS))
    asked = np.atleast_2d(np.asarray(queries, dtype=np.float32))
    depth = max(k, SHORT_LIST) if rerank or augment or expand == "diffusion" else k
    if expand == "aqe":
        asked = expand_queries(index, asked, fetch=fetch, allowed=allowed)
    scores, ids = index.search(asked, depth, allowed=allowed)
    if augment:
        fetch = _augmented(index, ids[:, :SHORT_LIST], fetch)
        _reorder(asked, scores, ids, fetch, lambda query, descriptors: descriptors @ query)
    if expand == "diffusion":
        _reorder(asked, scores, ids, fetch, diffuse)
    if rerank:
        _reorder(asked, scores, ids, fetch, rerank_scores)
    return scores[:, :k], ids[:, :k]


def expand_queries(
    index: Searchable,
    queries: Float32s,
    *,
    fetch: Fetch,
    count: int = EXPANDED_BY,
    alpha: float = ALPHA,
    allowed: npt.ArrayLike | None = None,
) -> Float32s:
    """Alpha query expansion of Q D queries by their best `count` answers."""
    _, ids = index.search(queries, count, allowed=allowed)
    return np.stack(
        [expand_query(query, fetch(mine[mine >= 0]), alpha) for query, mine in zip(queries, ids, strict=True)]
    )


def augment_gallery(
    index: Searchable, descriptors: Float32s, ids: Int64s, *, count: int = EXPANDED_BY, alpha: float = ALPHA
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


def _augmented(index: Searchable, ids: Int64s, fetch: Fetch) -> Fetch:
    """What `fetch` gives for some ids, each joined with its neighbours: those of the whole gallery, filter or not."""
    known = np.unique(ids[ids >= 0])
    joined = np.zeros((0, 0), np.float32)
    if len(known):
        plain = fetch(known)
        _, found = index.search(plain, EXPANDED_BY + 1)
        rows = []
        for own, descriptor, mine in zip(known, plain, found, strict=True):
            others = mine[(mine >= 0) & (mine != own)]
            rows.append(expand_query(descriptor, fetch(others), ALPHA) if len(others) else descriptor)
        joined = np.stack(rows)
    return lambda wanted: joined[np.searchsorted(known, wanted)]


def _reorder(
    queries: Float32s, scores: Float32s, ids: Int64s, fetch: Fetch, rescore: Callable[[Float32s, Float32s], Float32s]
) -> None:
    """Give the head of each row new scores and the order that they ask for, in place."""
    for q, query in enumerate(queries):
        head = ids[q][ids[q] >= 0][:SHORT_LIST]
        if len(head) == 0:
            continue
        fresh = rescore(query, fetch(head))
        order = np.lexsort((head, -fresh))
        scores[q, : len(head)], ids[q, : len(head)] = fresh[order], head[order]
