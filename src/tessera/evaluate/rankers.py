"""Rank a gallery for queries: exactly, through a codec of the index, or refined; and the best of it anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from tessera.data.sets.benchmark import Benchmark

Descriptors = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Rescore = Callable[
    [int, IntArray], npt.NDArray[np.floating]
]  # a query's number and ids K -> scores K, higher is better

EXACT = "flat"
_QUERIES_AT_ONCE = 128
_ROWS_AT_ONCE = 1 << 16


def rank_exactly(gallery: Descriptors, queries: Descriptors) -> Iterator[IntArray]:
    """The whole ranking of each query by the dot product in float32, N; equal scores keep the order of the gallery.

    gallery: N D, in memory or mapped. The field's tool sorts without keeping that order, so its ties are arbitrary.
    """
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        chunk = queries[start : start + _QUERIES_AT_ONCE]
        scores = np.empty((len(chunk), len(gallery)), dtype=np.float32)
        for row in range(0, len(gallery), _ROWS_AT_ONCE):
            scores[:, row : row + _ROWS_AT_ONCE] = chunk @ gallery[row : row + _ROWS_AT_ONCE].T
        for of_query in scores:
            yield np.argsort(-of_query, kind="stable").astype(np.int64)


def rank_by_index(codec: str, gallery: Descriptors, queries: Descriptors, *, seed: int = 0) -> Iterator[IntArray]:
    """Rankings from an index that is fitted on the gallery; as long as the codec can make them."""
    from tessera.index.build import build_index

    index = build_index(codec, np.arange(len(gallery)), gallery, seed=seed)
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        _, ids = index.search(queries[start : start + _QUERIES_AT_ONCE], len(gallery))
        for ranking in ids:
            yield ranking[ranking >= 0]


def rank_refined(
    codec: str,
    benchmark: Benchmark,
    gallery: Descriptors,
    queries: Descriptors,
    *,
    expand: str | None = None,
    augment: bool = False,
    rerank: str | None = None,
    seed: int = 0,
) -> Iterator[IntArray]:
    """Rankings by an index with expansion, augmentation and re-ranking by descriptors, as `tessera search` makes them.

    A query that is itself in the gallery must not be expanded by its own picture, so it is left out of its search; as
    it is junk for itself, no figure misses it.
    """
    from tessera.index.build import build_index
    from tessera.index.refinement import AugmentedDescriptors, search_refined

    ids = np.arange(len(gallery), dtype=np.int64)
    index = build_index(codec, ids, gallery, seed=seed)

    def fetch(rows: IntArray) -> Descriptors:
        return np.asarray(gallery[rows], dtype=np.float32)

    augmented = AugmentedDescriptors(index, fetch) if augment else False  # one for all queries: each row once

    def search(chosen: Descriptors, allowed: IntArray | None) -> Iterator[IntArray]:
        _, found = search_refined(
            index, chosen, len(gallery), fetch=fetch, expand=expand, augment=augmented, rerank=rerank, allowed=allowed
        )
        return (row[row >= 0] for row in found)

    if (benchmark.own_ids < 0).all():
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            yield from search(queries[start : start + _QUERIES_AT_ONCE], None)
        return
    for query, own in enumerate(benchmark.own_ids):
        yield from search(queries[query : query + 1], np.delete(ids, own) if own >= 0 else None)


def rerank_heads(rankings: Iterator[IntArray], rescore: Rescore, depth: int) -> Iterator[IntArray]:
    """Put the best `depth` of each ranking in the order of new scores; equal scores and the rest stay as they were."""
    for query, ranking in enumerate(rankings):
        head = ranking[:depth]
        scores = np.asarray(rescore(query, head), dtype=np.float64)
        order = np.argsort(-scores, kind="stable")
        yield np.concatenate([head[order], ranking[depth:]])
