"""Which photos show the same thing, without labels: near in descriptor, and verified by geometry."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tessera.data.images import Pixels
from tessera.errors import MissingExtraError
from tessera.local.sift import SiftExtractor
from tessera.local.verification import VerificationConfig, verify

NEIGHBOURS = 3
MIN_INLIERS = 20  # a stranger's chance inliers stay below: a wrong pair teaches the head to forget
_FEATURES = 500


def verified_pairs(photos: Sequence[Pixels], descriptors: NDArray[np.float32]) -> list[tuple[int, int]]:
    """Pairs of a photo and one of its nearest neighbours that a homography explains; none where OpenCV is missing.

    descriptors: N D, of unit norm.
    """
    try:
        sift = SiftExtractor(_FEATURES)
    except MissingExtraError:
        return []
    similarities = descriptors @ descriptors.T
    np.fill_diagonal(similarities, -np.inf)
    nearest = np.argsort(-similarities, axis=1)[:, :NEIGHBOURS]
    candidates = sorted(
        {(min(row, int(other)), max(row, int(other))) for row in range(len(photos)) for other in nearest[row]}
    )
    features = [sift.extract(photo) for photo in photos]
    config = VerificationConfig(matches="ratio", ratio=0.8)
    return [
        pair for pair in candidates if verify(features[pair[0]], features[pair[1]], config).num_inliers >= MIN_INLIERS
    ]


def join_pairs(count: int, pairs: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """The number of each photo's group, photos that pairs connect in one; count."""
    groups = np.arange(count)
    for first, second in pairs:
        old, new = sorted((groups[first], groups[second]), reverse=True)
        groups[groups == old] = new
    return groups.astype(np.int64)
