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
LEAST_MATCHES = 4


@dataclass(frozen=True)
class VerificationConfig:
    """Defaults found on planar pairs with known homographies and on landmark photos."""

    matches: Literal["mutual", "ratio"] = "mutual"
    ratio: float = 0.85
    min_similarity: float = -1.0  # cosine below which a mutual match is not believed
    model: Literal["homography", "affinity", "fundamental"] = "homography"
    threshold_px: float = 4.0
    confidence: float = 0.999
    max_iterations: int = 2000
    min_inliers: int = 10


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
    if not len(first) or not len(second):
        return np.zeros((0, 2), np.int64)
    similarity = _similarity(first, second)
    best = similarity.argmax(axis=1)
    rows = np.arange(len(first))
    if config.matches == "mutual":
        keep = (similarity.argmax(axis=0)[best] == rows) & (similarity[rows, best] >= config.min_similarity)
    else:
        if len(second) < 2:
            return np.zeros((0, 2), np.int64)
        top = np.partition(similarity, -2, axis=1)[:, -2:]
        # For unit vectors |a - b|^2 = 2 - 2 a.b, and the ratio test compares distances.
        keep = 1 - top[:, 1] < config.ratio**2 * np.maximum(1 - top[:, 0], 1e-12)
    return np.stack([rows[keep], best[keep]], axis=1).astype(np.int64)


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
    least = 8 if config.model == "fundamental" else LEAST_MATCHES
    if len(matches) < least:
        return nothing
    transformation, mask = _robust_fit(source, target, config)
    if transformation is None or mask is None or not np.isfinite(transformation).all():
        return nothing
    inliers = mask.ravel().astype(bool)
    if config.model == "homography" and not _plausible(transformation, source[inliers]):
        return nothing
    return Verification(matches, inliers, np.asarray(transformation, dtype=np.float64))


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


def _plausible(homography: Any, points: npt.NDArray[np.float32]) -> bool:
    """No mirror, no fold, no zoom beyond fifteen times: what cameras do to façades, not what chance does to matches."""
    if not len(points):
        return False
    homogeneous = np.column_stack([points, np.ones(len(points))])
    depth = homogeneous @ homography[2]
    if depth.min() * depth.max() <= 0:
        return False
    centre = homogeneous.mean(axis=0)
    mapped = homography @ centre
    # The Jacobian of the projection at the centre of the inliers: its determinant is the change of area there.
    jacobian = (homography[:2, :2] - np.outer(mapped[:2] / mapped[2], homography[2, :2])) / mapped[2]
    area = float(np.linalg.det(jacobian))
    return 1 / 225 < area < 225
