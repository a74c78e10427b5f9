"""Match a query with images by compact features, many at once, and verify by geometry what matches.

Only features in a common word are compared, so a pair of images costs microseconds; each feature then has one match,
its most similar. A transformation that enough places agree on verifies an image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tessera.local.calibration import VERIFIED_INLIERS
from tessera.local.compact import CompactFeatures, concatenate
from tessera.local.features import LocalFeatures
from tessera.local.lighterglue import Corners, match_corners
from tessera.local.parts import PartsFeatures, PartsModel, QueryFeatures
from tessera.local.single_match import Matched, verify_single_matches
from tessera.local.spatial_reranking import Reranker
from tessera.local.verification import Verification, VerificationConfig, fit_transformation

_LEAST_MATCHES = 5
_MOST_MATCHES = 400  # the most similar ones; more only cost time

LEAST_ATTENDED = 18.0  # inliers and corners that attention matches, by its own confidence, that verify as well
_ATTENDED = VerificationConfig(threshold_px=10.0, max_iterations=500, confidence=0.99, grid_px=3.0)

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Verified:
    """What one image and the query agree on. matches: pairs of features, query's and image's, that are inliers."""

    num_inliers: int
    num_matches: int  # before geometry
    matches: Indices  # M 2
    transformation: npt.NDArray[np.float64] | None  # 3 3, from the query's pixels to the image's
    by_attention: bool = False

    @property
    def num_counted(self) -> int:
        """Inliers as evidence: attention finds more of them between strangers, so it only just verifies."""
        return min(self.num_inliers, VERIFIED_INLIERS) if self.by_attention else self.num_inliers


NOTHING = Verified(0, 0, np.zeros((0, 2), np.int64), None)


def match_many(
    query: QueryFeatures, stored: Sequence[CompactFeatures], match_distances: Indices
) -> tuple[Indices, Indices, Indices, npt.NDArray[np.int64]]:
    """Matches of a query with several images: of each the image, the query's feature, the image's, the distance.

    match_distances: of each word, how many signs of a match may differ. Distances are counted from there: 0 for the
    last that is believed, below for a nearer one. Ordered by image, then by distance. One match a feature, on either
    side.
    """
    features, owners = concatenate(stored)
    assigned = query.words.shape[1]
    entry_words = query.words.ravel()
    by_word = np.argsort(entry_words, kind="stable")
    by_word = by_word[entry_words[by_word] >= 0]
    counts = np.bincount(entry_words[by_word], minlength=len(match_distances))
    starts = np.cumsum(counts) - counts
    lengths = counts[features.words]
    shared = np.flatnonzero(lengths)  # features whose word the query has
    words, lengths = features.words[shared], lengths[shared]
    of_shared = np.repeat(np.arange(len(shared), dtype=np.int32), lengths)
    entries = by_word[(starts[words] - np.cumsum(lengths) + lengths)[of_shared] + np.arange(len(of_shared))]
    differing = np.bitwise_count(query.codes.ravel()[entries] ^ features.codes[shared][of_shared])
    near = np.flatnonzero(differing <= match_distances[words].astype(np.int16)[of_shared])
    rows, of_query = shared[of_shared[near]], entries[near] // assigned
    distances = differing[near].astype(np.int64) - match_distances[features.words[rows]]
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


def verify_many(query: QueryFeatures, stored: Sequence[CompactFeatures], match_distances: Indices) -> list[Verified]:
    """Verify several images by geometry; one that has too few matches has no inliers."""
    if not len(query) or not stored:
        return [NOTHING] * len(stored)
    images, of_query, of_image, _ = match_many(query, stored, match_distances)
    bounds = np.searchsorted(images, np.arange(len(stored) + 1))
    counts = np.minimum(np.diff(bounds), _MOST_MATCHES)
    found = [Verified(0, int(count), NOTHING.matches, None) for count in counts]
    enough = np.flatnonzero(counts >= _LEAST_MATCHES).tolist()
    matched = []
    for number in enough:
        part = slice(bounds[number], bounds[number] + counts[number])
        mine, theirs, image = of_query[part], of_image[part], stored[number]
        matched.append(
            Matched(
                query.positions[mine],
                query.scales[mine],
                image.positions[theirs],
                image.scales[theirs],
                np.stack([mine, theirs], axis=1),
            )
        )
    for number, one, outcome in zip(enough, matched, verify_single_matches(matched), strict=True):
        found[number] = Verified(outcome.num_inliers, len(one), one.pairs[outcome.inliers], outcome.transformation)
    return found


def attend(
    query: QueryFeatures, corners: Corners, stored: CompactFeatures, others: Corners, found: Verified
) -> Verified:
    """A pair that signs left in doubt, by what attention matches; `found` where the two together are too little.

    corners: the query's, others: the image's. It takes a thousand times as long as comparing signs.
    """
    pairs, confidences = match_corners(corners, others)
    expected = float(confidences.sum())
    if found.num_inliers + expected < LEAST_ATTENDED:
        return found
    mine, theirs = pairs.T
    outcome = fit_transformation(query.positions[mine], stored.positions[theirs], pairs, _ATTENDED)
    agreeing = pairs[outcome.inliers]
    if len(agreeing) < VERIFIED_INLIERS:  # not in one plane: the surest
        agreeing = pairs[: max(round(expected), VERIFIED_INLIERS)]
    # The transformation stays behind: features carried over by it do not find more.
    return Verified(len(agreeing), len(pairs), agreeing, None, by_attention=True)


def open_parts_reranker(model: PartsModel | None = None) -> Reranker:
    """Two pictures compared as the default search compares a query with an image, turned pictures included."""
    opened = model or PartsModel.open()

    def compare(query: LocalFeatures, candidate: LocalFeatures) -> Verification:
        assert isinstance(query, PartsFeatures) and isinstance(candidate, PartsFeatures)
        asked, stored = opened.encode_query(query), [opened.encode(candidate)]
        found = verify_many(asked, stored, opened.match_distances)[0]
        if found.num_inliers < VERIFIED_INLIERS:
            corners, others = opened.query_corners(query), opened.stored_corners(stored[0])
            found = attend(asked, corners, stored[0], others, found)
        for _, turned in opened.turn_regions(query):
            if found.num_inliers >= VERIFIED_INLIERS:
                break
            outcome = verify_many(opened.encode_query(turned), stored, opened.match_distances)[0]
            found = max(found, outcome, key=lambda one: one.num_inliers)
        return Verification(found.matches, np.ones(len(found.matches), bool), None)

    return Reranker("parts", opened, compare, VERIFIED_INLIERS, size=opened.size)
