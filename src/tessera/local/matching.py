"""Match a query with images by compact features, many at once, and verify by geometry what matches.

Only features in a common word are compared, so a pair of images costs microseconds; each feature then has one match,
its most similar. A transformation that enough places agree on verifies an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tessera.local.calibration import VERIFIED_INLIERS
from tessera.local.compact import CompactFeatures, concatenate
from tessera.local.features import LocalFeatures
from tessera.local.parts import TURNS, PartsModel, QueryFeatures, turn_features
from tessera.local.single_match import verify_single_matches
from tessera.local.spatial_reranking import Reranker
from tessera.local.verification import Verification

MAX_DISTANCE = 22  # of 64 signs, for a match; chosen on val
_LEAST_MATCHES = 5
_MOST_MATCHES = 400  # the most similar ones; more only cost time

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Verified:
    """What one image and the query agree on. matches: pairs of features, query's and image's, that are inliers."""

    num_inliers: int
    num_matches: int  # before geometry
    matches: Indices  # M 2
    transformation: npt.NDArray[np.float64] | None  # 3 3, from the query's pixels to the image's


NOTHING = Verified(0, 0, np.zeros((0, 2), np.int64), None)


def match_many(
    query: QueryFeatures, stored: Sequence[CompactFeatures], num_words: int
) -> tuple[Indices, Indices, Indices, npt.NDArray[np.int64]]:
    """Matches of a query with several images: of each the image, the query's feature, the image's, the distance.

    Ordered by image, then by distance. One match a feature, on either side.
    """
    features, owners = concatenate(stored)
    assigned = query.words.shape[1]
    entry_words = query.words.ravel()
    by_word = np.argsort(entry_words, kind="stable")
    by_word = by_word[entry_words[by_word] >= 0]
    counts = np.bincount(entry_words[by_word], minlength=num_words)
    starts = np.cumsum(counts) - counts
    words = features.words.astype(np.int64)
    lengths = counts[words]
    rows = np.repeat(np.arange(len(words)), lengths)  # of `features`
    within = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    entries = by_word[np.repeat(starts[words], lengths) + within]
    distances = np.bitwise_count(query.codes.ravel()[entries] ^ features.codes[rows]).astype(np.int64)
    near = np.flatnonzero(distances <= MAX_DISTANCE)
    rows, of_query, distances = rows[near], entries[near] // assigned, distances[near]
    images = owners[rows]
    for side in ("query", "image"):  # the best match of each feature of the query, then of each of the image
        keys = images * max(len(query), 1) + of_query if side == "query" else rows
        order = np.lexsort((distances, keys))
        kept = order[np.flatnonzero(np.diff(keys[order], prepend=-1))]
        images, of_query, rows, distances = images[kept], of_query[kept], rows[kept], distances[kept]
    order = np.lexsort((distances, images))
    first_rows = np.concatenate([[0], np.cumsum([len(item) for item in stored])])
    images, of_query, rows, distances = images[order], of_query[order], rows[order], distances[order]
    return images, of_query, rows - first_rows[images], distances


def verify_many(
    query: QueryFeatures, stored: Sequence[CompactFeatures], num_words: int, *, threads: int = 1
) -> list[Verified]:
    """Verify several images by geometry; one that has too few matches has no inliers."""
    if not len(query) or not stored:
        return [NOTHING] * len(stored)
    images, of_query, of_image, _ = match_many(query, stored, num_words)
    bounds = np.searchsorted(images, np.arange(len(stored) + 1))

    def verify(number: int) -> Verified:
        part = slice(bounds[number], min(bounds[number + 1], bounds[number] + _MOST_MATCHES))
        pairs = np.stack([of_query[part], of_image[part]], axis=1)
        if len(pairs) < _LEAST_MATCHES:
            return Verified(0, len(pairs), pairs[:0], None)
        mine, theirs = pairs.T
        outcome = verify_single_matches(
            query.positions[mine],
            query.scales[mine],
            stored[number].positions[theirs],
            stored[number].scales[theirs],
            pairs,
        )
        return Verified(outcome.num_inliers, len(pairs), pairs[outcome.inliers], outcome.transformation)

    if threads == 1:
        return [verify(number) for number in range(len(stored))]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(verify, range(len(stored))))


def open_parts_reranker(model: PartsModel | None = None) -> Reranker:
    """Two pictures compared as the default search compares a query with an image, turned pictures included."""
    opened = model or PartsModel.open()

    def compare(query: LocalFeatures, candidate: LocalFeatures) -> Verification:
        stored = [opened.encode(candidate)]
        found = NOTHING
        for turns in TURNS:
            if found.num_inliers < VERIFIED_INLIERS:
                asked = opened.encode_query(turn_features(query, turns))
                found = max(found, verify_many(asked, stored, opened.num_words)[0], key=lambda one: one.num_inliers)
        return Verification(found.matches, np.ones(len(found.matches), bool), None)

    return Reranker("parts", opened.system.extractor, compare, VERIFIED_INLIERS, size=opened.size)
