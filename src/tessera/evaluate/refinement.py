"""Rankings after query expansion, database augmentation or re-ranking, as `tessera search` does them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tessera.data.benchmark import Benchmark, IntArray
from tessera.errors import UsageError, unknown_name

Descriptors = npt.NDArray[np.float32]
Rescore = Callable[
    [int, IntArray], npt.NDArray[np.floating]
]  # a query's number and ids K -> scores K, higher is better

EXPANSIONS = ("aqe", "diffusion")
GLOBAL = "global"
LOCAL = ("sp", "dsm", "lightglue")
_QUERIES_AT_ONCE = 128


@dataclass(frozen=True)
class Refinement:
    """What happens after, or instead of, the plain search.

    expand: `aqe` or `diffusion`. rerank: `global`, or a way of the local features. augment: each gallery descriptor is
    first joined with its neighbours.
    """

    expand: str | None = None
    rerank: str | None = None
    augment: bool = False

    def __post_init__(self) -> None:
        if self.expand is not None and self.expand not in EXPANSIONS:
            raise UsageError(unknown_name("expansion", self.expand, EXPANSIONS))
        if self.rerank is not None and self.rerank not in (GLOBAL, *LOCAL):
            raise UsageError(unknown_name("re-ranking", self.rerank, (GLOBAL, *LOCAL)))

    @property
    def is_plain(self) -> bool:
        """Whether the descriptors alone decide, by one search."""
        return self.expand is None and self.rerank != GLOBAL and not self.augment


def rank_refined(
    refinement: Refinement,
    codec: str,
    benchmark: Benchmark,
    gallery: Descriptors,
    queries: Descriptors,
    *,
    seed: int = 0,
) -> Iterator[IntArray]:
    """Rankings by an index with expansion, augmentation and global re-ranking.

    A query that is itself in the gallery must not be expanded by its own picture, so it is left out of its search; as
    it is junk for itself, no figure misses it.
    """
    from tessera.index.build import build_index
    from tessera.index.refinement import augment_gallery, search_refined

    ids = np.arange(len(gallery), dtype=np.int64)
    index = build_index(codec, ids, gallery, seed=seed)
    if refinement.augment:
        gallery = augment_gallery(index, gallery, ids)
        index = build_index(codec, ids, gallery, seed=seed)

    def search(chosen: Descriptors, allowed: IntArray | None) -> Iterator[IntArray]:
        _, found = search_refined(
            index,
            chosen,
            len(gallery),
            fetch=lambda rows: np.asarray(gallery[rows], dtype=np.float32),
            expand=refinement.expand,
            rerank=GLOBAL if refinement.rerank == GLOBAL else None,
            allowed=allowed,
        )
        return (row[row >= 0] for row in found)

    if (benchmark.own_ids < 0).all():
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            yield from search(queries[start : start + _QUERIES_AT_ONCE], None)
        return
    for query, own in enumerate(benchmark.own_ids):
        yield from search(queries[query : query + 1], np.delete(ids, own) if own >= 0 else None)


def rerank_heads(rankings: Iterator[IntArray], rescore: Rescore, depth: int = 100) -> Iterator[IntArray]:
    """Put the best `depth` of each ranking in the order of new scores; equal scores and the rest stay as they were."""
    for query, ranking in enumerate(rankings):
        head = ranking[:depth]
        scores = np.asarray(rescore(query, head), dtype=np.float64)
        order = np.argsort(-scores, kind="stable")
        yield np.concatenate([head[order], ranking[depth:]])
