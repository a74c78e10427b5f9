"""Spatial verification: do the features of two images agree on one transformation?

Matches first (mutual nearest neighbours, or the ratio test), then a robust fit with OpenCV's USAC family. USAC draws
its samples from a generator that starts at a fixed state, so the same features give the same answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tessera.errors import MissingExtraError, UsageError
from tessera.local.features import LocalFeatures

Pairs = npt.NDArray[np.int64]  # M 2: index in the first set, in the second
MIN_MATCHES = 4


@dataclass(frozen=True)
class VerificationConfig:
    """Defaults found on planar pairs with known homographies and on landmark photos.

    max_zoom, max_stretch: how far a homography may enlarge, and stretch one direction against the other, at an inlier.
    A homography bent far enough brings strange matches together in a spot or on a line.

    grid_px: of the inliers in one cell of a grid of so many pixels one is counted; None for half the threshold.

    margin: features closer to the picture's edge than so many of their own diameters are not matched. A network's cells
    there see its padding, in every picture alike, and agree with a stranger's on the identity.
    """

    matches: Literal["mutual", "ratio"] = "mutual"
    ratio: float = 0.85
    min_similarity: float = -1.0  # cosine below which a mutual match is rejected
    model: Literal["homography", "affinity", "fundamental"] = "homography"
    threshold_px: float = 4.0
    confidence: float = 0.999
    max_iterations: int = 2000
    min_inliers: int = 8
    max_zoom: float = 8.0
    max_stretch: float = 8.0
    grid_px: float | None = None
    margin: float = 0.0


@dataclass(frozen=True)
class Verification:
    """The outcome for one pair: matches, which of them agree, and the transformation from first to second."""

    matches: Pairs
    inliers: npt.NDArray[np.bool_]  # M
    transformation: npt.NDArray[np.float64] | None  # 3 3

    @property
    def num_inliers(self) -> int:
        return int(self.inliers.sum())


def match_features(first: LocalFeatures, second: LocalFeatures, config: VerificationConfig) -> Pairs:
    """Pairs of features that choose each other (`mutual`), or whose second best is clearly worse (`ratio`)."""
    kept, others = (np.flatnonzero(_within(features, config.margin)) for features in (first, second))
    if not len(kept) or not len(others):
        return np.zeros((0, 2), np.int64)
    similarity = _similarity(first, second)[np.ix_(kept, others)] if config.margin else _similarity(first, second)
    best = similarity.argmax(axis=1)
    rows = np.arange(len(kept))
    if config.matches == "mutual":
        keep = (similarity.argmax(axis=0)[best] == rows) & (similarity[rows, best] >= config.min_similarity)
    else:
        if len(others) < 2:
            return np.zeros((0, 2), np.int64)
        top = np.partition(similarity, -2, axis=1)[:, -2:]
        # For unit vectors |a - b|^2 = 2 - 2 a.b, and the ratio test compares distances.
        keep = 1 - top[:, 1] < config.ratio**2 * np.maximum(1 - top[:, 0], 1e-12)
    return np.stack([kept[keep], others[best[keep]]], axis=1).astype(np.int64)


def _within(features: LocalFeatures, margin: float) -> npt.NDArray[np.bool_]:
    """Which features are far enough from the picture's edge, N."""
    if not margin:
        return np.ones(len(features), bool)
    apart = 2 * margin * features.scales[:, None]
    limits = np.asarray(features.image_size, np.float32)
    return np.asarray(((features.positions >= apart) & (features.positions <= limits - apart)).all(axis=1))


def _similarity(first: LocalFeatures, second: LocalFeatures) -> npt.NDArray[np.float32]:
    """Cosines N M; for signs 1 - 2 hamming / D, their cosine."""
    if first.is_binary != second.is_binary:
        raise UsageError("Binarised local features match binarised ones only: index and query must be made alike.")
    if first.is_binary:
        a, b = (_as_signs(features.descriptors) for features in (first, second))
    else:
        a, b = (_unit(features.descriptors) for features in (first, second))
    return np.asarray(a @ b.T, dtype=np.float32)


def _as_signs(bits: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Packed bits as vectors of +-1 / sqrt(D): one matrix product is faster than counting bits pair by pair."""
    signs = np.unpackbits(bits, axis=1).astype(np.float32) * 2 - 1
    return np.asarray(signs / np.sqrt(signs.shape[1]), dtype=np.float32)


def _unit(vectors: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    values = np.asarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return np.asarray(values / np.maximum(lengths, 1e-12), dtype=np.float32)


def verify(first: LocalFeatures, second: LocalFeatures, config: VerificationConfig | None = None) -> Verification:
    """Match two images' features and fit one transformation to the matches."""
    config = config or VerificationConfig()
    matches = match_features(first, second, config)
    return fit_transformation(first.positions[matches[:, 0]], second.positions[matches[:, 1]], matches, config)


def fit_transformation(
    source: npt.NDArray[np.float32], target: npt.NDArray[np.float32], matches: Pairs, config: VerificationConfig
) -> Verification:
    """The transformation that most matches agree on. source, target: M 2."""
    nothing = Verification(matches, np.zeros(len(matches), bool), None)
    least = 8 if config.model == "fundamental" else MIN_MATCHES
    if len(matches) < least:
        return nothing
    transformation, mask = _robust_fit(source, target, config)
    if transformation is None or mask is None or not np.isfinite(transformation).all():
        return nothing
    inliers = mask.ravel().astype(bool)
    if config.model != "fundamental":
        inliers[inliers] = _plausible(transformation, source[inliers], config)
    grid_px = config.threshold_px / 2 if config.grid_px is None else config.grid_px
    first, second = (number_cells(points, grid_px) for points in (source, target))
    inliers = keep_one_each(first, second, inliers)
    if not inliers.any():
        return nothing
    return Verification(matches, inliers, np.asarray(transformation, dtype=np.float64))


def number_cells(points: npt.NDArray[np.float32], side_px: float) -> npt.NDArray[np.int64]:
    """The same number for points of the same cell of a grid, M: detectors find one point several times."""
    cells = np.floor(points / side_px).astype(np.int64)
    return np.asarray(cells[:, 0] * (1 << 32) + cells[:, 1], dtype=np.int64)


def keep_one_each(
    first: npt.NDArray[np.int64], second: npt.NDArray[np.int64], inliers: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Let everything count once on either side: of inliers with one number, in `first` or in `second`, one is kept."""
    chosen = np.flatnonzero(inliers)
    for numbers in (first, second):
        chosen = chosen[np.unique(numbers[chosen], return_index=True)[1]]
    kept = np.zeros(len(inliers), bool)
    kept[chosen] = True
    return kept


def _robust_fit(source: Any, target: Any, config: VerificationConfig) -> tuple[Any, Any]:
    try:
        import cv2
    except ImportError as error:
        raise MissingExtraError("Spatial verification", "local") from error
    points = np.ascontiguousarray(source, np.float32), np.ascontiguousarray(target, np.float32)
    limits = (config.threshold_px, config.confidence, config.max_iterations)
    try:
        if config.model == "homography":
            return cv2.findHomography(*points, cv2.USAC_MAGSAC, limits[0], maxIters=limits[2], confidence=limits[1])
        if config.model == "fundamental":
            return cv2.findFundamentalMat(*points, cv2.USAC_MAGSAC, *limits)
        affinity, mask = cv2.estimateAffine2D(
            *points, method=cv2.USAC_MAGSAC, ransacReprojThreshold=limits[0], maxIters=limits[2], confidence=limits[1]
        )
    except cv2.error:
        return None, None  # degenerate: all points on a line, or one and the same
    return (None, None) if affinity is None else (np.vstack([affinity, [0, 0, 1]]), mask)


def _plausible(homography: Any, points: npt.NDArray[np.float32], config: VerificationConfig) -> npt.NDArray[np.bool_]:
    """At which points, M, it does what cameras do to façades: no mirror, no fold, no wild zoom, nothing flattened."""
    homogeneous = np.column_stack([points, np.ones(len(points))])
    depth = homogeneous @ homography[2]
    if not len(points) or depth.min() * depth.max() <= 0:
        return np.zeros(len(points), bool)
    mapped = homogeneous @ homography[:2].T / depth[:, None]
    # The Jacobian of the projection at each point: its determinant is the change of area there.
    jacobians = (homography[:2, :2] - mapped[:, :, None] * homography[2, :2]) / depth[:, None, None]  # M 2 2
    area = np.linalg.det(jacobians)
    most = config.max_stretch + 1 / config.max_stretch  # for s >= 1 the larger s + 1/s, the larger s
    stretched = np.square(jacobians).sum(axis=(1, 2)) > most * np.abs(area)
    return np.asarray((area > config.max_zoom**-2) & (area < config.max_zoom**2) & ~stretched)
