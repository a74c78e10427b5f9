"""Rank a gallery for queries: exactly, or through one of the index's codecs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Descriptors = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

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
