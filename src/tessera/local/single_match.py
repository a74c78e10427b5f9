"""Spatial verification from single matches: every match proposes a transformation, the best proposals are fitted anew.

A match of two upright regions fixes a shift and a change of scale, so all proposals can be tried, and a few true
matches among many false ones are found where samples of four would hardly ever be all true (Philbin et al., 2007). The
matches near a proposal then fit an affinity, in steps that ask for more and more (Chum et al., 2003), and a homography
where there are enough of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.local.verification import (
    Pairs,
    Verification,
    VerificationConfig,
    fit_transformation,
    keep_one_each,
    number_cells,
)

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class SingleMatchConfig:
    """Pixels are of pictures whose longer side is about a thousand. Chosen on validation photos (results/parts.md).

    A match supports a proposal if it lands within `near_px` and `slope` of its distance from the proposing match, at
    most `far_px`, and its scale changes alike within `octaves`: what an affine distortion may do to a pure zoom.
    """

    num_proposing: int = 128  # the most similar matches
    num_fitted: int = 4  # proposals that are fitted
    near_px: float = 12.0
    slope: float = 0.25
    far_px: float = 80.0
    octaves: float = 1.0
    steps_px: tuple[float, ...] = (30.0, 20.0, 12.0)
    threshold_px: float = 10.0
    grid_px: float = 3.0
    least: int = 4  # matches that a transformation needs
    max_zoom: float = 8.0
    max_stretch: float = 4.0
    homography_least: int = 6
    homography_px: float = 40.0  # matches so near the affinity may be the homography's


_HOMOGRAPHY = VerificationConfig(threshold_px=6.0, max_iterations=300, confidence=0.99, grid_px=3.0)


def verify_single_matches(
    source: npt.NDArray[np.floating],
    source_scales: npt.NDArray[np.floating],
    target: npt.NDArray[np.floating],
    target_scales: npt.NDArray[np.floating],
    matches: Pairs,
    config: SingleMatchConfig | None = None,
) -> Verification:
    """The transformation that most matches agree on. source, target: positions M 2, the most similar match first."""
    config = config or SingleMatchConfig()
    best = Verification(matches, np.zeros(len(matches), bool), None)
    if len(matches) < config.least:
        return best
    first, second = source.astype(np.float64), target.astype(np.float64)
    for support in _proposals(first, source_scales, second, target_scales, config):
        affinity = _fit_in_steps(first, second, support, config)
        if affinity is None:
            continue
        inliers = _distinct(first, second, _distances(first, second, affinity) < config.threshold_px, config)
        if inliers.sum() > best.num_inliers:
            best = Verification(matches, inliers, np.vstack([affinity, [0.0, 0.0, 1.0]]))
    if best.num_inliers < config.least:
        return Verification(matches, np.zeros(len(matches), bool), None)
    if best.num_inliers < config.homography_least:
        return best
    return _bend(first, second, best, config)


def _bend(first: Array, second: Array, affine: Verification, config: SingleMatchConfig) -> Verification:
    """The same by a homography, where it agrees with more matches than the affinity, as closely as it was fitted."""
    assert affine.transformation is not None
    distances = _distances(first, second, affine.transformation)
    near = np.flatnonzero(distances < config.homography_px)
    bent = fit_transformation(
        first[near].astype(np.float32), second[near].astype(np.float32), affine.matches[near], _HOMOGRAPHY
    )
    if bent.transformation is None:
        return affine
    bent_distances = _distances(first, second, bent.transformation)
    if (bent_distances < _HOMOGRAPHY.threshold_px).sum() <= (distances < _HOMOGRAPHY.threshold_px).sum():
        return affine
    inliers = _distinct(first, second, bent_distances < config.threshold_px, config)
    if inliers.sum() < affine.num_inliers:
        return affine
    return Verification(affine.matches, inliers, bent.transformation)


def _proposals(first: Array, first_scales: Any, second: Array, second_scales: Any, config: SingleMatchConfig) -> Any:
    """The supporters, a mask over the proposing matches, of the best proposals that do not support one another."""
    count = min(len(first), config.num_proposing)
    zoom = (second_scales[:count] / first_scales[:count]).astype(np.float64)
    octaves = np.log2(zoom)
    moved = zoom[:, None, None] * (first[None, :count] - first[:count, None])  # P P 2
    errors = np.square(moved - (second[None, :count] - second[:count, None])).sum(axis=-1)
    allowed = np.minimum(config.near_px + config.slope * np.sqrt(np.square(moved).sum(axis=-1)), config.far_px)
    supports = (errors < np.square(allowed)) & (np.abs(octaves[None] - octaves[:, None]) < config.octaves)
    votes = supports.sum(axis=1)
    used = np.zeros(count, bool)
    chosen: list[Mask] = []
    for row in np.argsort(-votes, kind="stable"):
        if votes[row] < config.least or len(chosen) == config.num_fitted:
            break
        if not used[row]:
            chosen.append(supports[row])
            used |= supports[row]
    return chosen


def _fit_in_steps(first: Array, second: Array, support: Mask, config: SingleMatchConfig) -> Array | None:
    """The affinity, 2 3, of the matches near a proposal; none where it does what no camera does."""
    chosen = np.zeros(len(first), bool)
    chosen[: len(support)] = support
    fitted = None
    for step_px in config.steps_px:
        affinity = _fit_affinity(first[chosen], second[chosen], config)
        if affinity is None:
            break
        fitted, chosen = affinity, _distances(first, second, affinity) < step_px
    return fitted if fitted is None else _fit_affinity(first[chosen], second[chosen], config)


def _fit_affinity(first: Array, second: Array, config: SingleMatchConfig) -> Array | None:
    if len(first) < 3:
        return None
    design = np.column_stack([first, np.ones(len(first))])
    solution, _, rank, _ = np.linalg.lstsq(design, second, rcond=None)
    if rank < 3:
        return None
    affinity = np.asarray(solution.T, np.float64)
    area = np.linalg.det(affinity[:, :2])
    if not config.max_zoom**-2 < area < config.max_zoom**2:
        return None
    widths = np.linalg.svd(affinity[:, :2], compute_uv=False)
    return affinity if widths[0] < config.max_stretch * widths[1] else None


def _distances(first: Array, second: Array, transformation: Array) -> Array:
    """Between mapped and matched positions, M. transformation: 2 3, or 3 3."""
    mapped = np.column_stack([first, np.ones(len(first))]) @ transformation.T
    if len(transformation) == 3:
        with np.errstate(divide="ignore", invalid="ignore"):
            mapped = np.nan_to_num(mapped[:, :2] / mapped[:, 2:], nan=np.inf)
    return np.asarray(np.linalg.norm(mapped - second, axis=1))


def _distinct(first: Array, second: Array, inliers: Mask, config: SingleMatchConfig) -> Mask:
    cells = [number_cells(points.astype(np.float32), config.grid_px) for points in (first, second)]
    return keep_one_each(cells[0], cells[1], inliers)
