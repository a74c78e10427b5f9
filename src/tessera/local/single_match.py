"""Spatial verification from single matches: every match proposes a transformation, the best proposals are fitted anew.

A match of two upright regions fixes a shift and a change of scale, so all proposals can be tried, and a few true
matches among many false ones are found where samples of four would hardly ever be all true (Philbin et al., 2007). The
matches near a proposal then fit an affinity, in steps that ask for more and more (Chum et al., 2003), and a homography
where there are enough of them.

A search verifies hundreds of images, so all of them go through each step together: arrays padded to the image with the
most matches. What comes out for an image does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
class Matched:
    """The matches of one pair of pictures, the most similar first. Positions M 2, scales M, pairs M 2."""

    source: npt.NDArray[np.floating]
    source_scales: npt.NDArray[np.floating]
    target: npt.NDArray[np.floating]
    target_scales: npt.NDArray[np.floating]
    pairs: Pairs

    def __len__(self) -> int:
        return len(self.pairs)


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


_RANK = 1e-13  # below, the points lie on one line, as far as numbers tell
_PADDED = (16, 32, 64, 128)  # proposing matches; images are proposed for together with others of about as many
_AT_ONCE = 1 << 18  # numbers of an array that stays in the cache


def verify_single_matches(matched: Sequence[Matched], config: SingleMatchConfig | None = None) -> list[Verification]:
    """Of each pair of pictures the transformation that most of its matches agree on."""
    config = config or SingleMatchConfig()
    best = [Verification(one.pairs, np.zeros(len(one), bool), None) for one in matched]
    proposed = [(number, support) for number, supports in _propose(matched, config) for support in supports]
    for number, affinity in _fit_in_steps(matched, proposed, config):
        one = matched[number]
        first, second = one.source.astype(np.float64), one.target.astype(np.float64)
        inliers = _distances(first, second, affinity) < config.threshold_px
        if inliers.sum() > best[number].num_inliers:
            inliers = _distinct(first, second, inliers, config)
        if inliers.sum() > best[number].num_inliers:
            best[number] = Verification(one.pairs, inliers, np.vstack([affinity, [0.0, 0.0, 1.0]]))
    for number, found in enumerate(best):
        if found.num_inliers < config.least:
            best[number] = Verification(found.matches, np.zeros(len(found.matches), bool), None)
        elif found.num_inliers >= config.homography_least:
            best[number] = _bend(matched[number], found, config)
    return best


def _bend(one: Matched, affine: Verification, config: SingleMatchConfig) -> Verification:
    """The same by a homography, where it agrees with more matches than the affinity, as closely as it was fitted."""
    assert affine.transformation is not None
    first, second = one.source.astype(np.float64), one.target.astype(np.float64)
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


def _propose(matched: Sequence[Matched], config: SingleMatchConfig) -> Iterator[tuple[int, list[Mask]]]:
    """For each pair of pictures the supporters, masks over its proposing matches, of the best proposals that do not
    support one another."""
    counts = np.array([min(len(one), config.num_proposing) for one in matched], np.int64)
    sizes = np.array([*(size for size in _PADDED if size < config.num_proposing), config.num_proposing])
    padded = sizes[np.searchsorted(sizes, counts)]
    for size in np.unique(padded):
        together = np.flatnonzero((padded == size) & (counts >= config.least))
        at_once = max(1, _AT_ONCE // int(size) ** 2)
        for start in range(0, len(together), at_once):
            part = together[start : start + at_once]
            supports = _support([matched[number] for number in part], int(size), config)  # B P P
            votes = supports.sum(axis=2)
            for row in np.flatnonzero(votes.max(axis=1) >= config.least):
                count = counts[part[row]]
                yield int(part[row]), _choose(supports[row, :count, :count], votes[row, :count], config)


def _support(matched: Sequence[Matched], size: int, config: SingleMatchConfig) -> Mask:
    """Which match supports which proposal, B P P: first the proposals. Padding supports nothing."""
    first, second = np.zeros((len(matched), size, 2)), np.zeros((len(matched), size, 2))
    zoom, is_there = np.ones((len(matched), size)), np.zeros((len(matched), size), bool)
    for row, one in enumerate(matched):
        count = min(len(one), size)
        first[row, :count], second[row, :count] = one.source[:count], one.target[:count]
        zoom[row, :count] = one.target_scales[:count] / one.source_scales[:count]
        is_there[row, :count] = True
    octaves = np.log2(zoom)
    squares = np.zeros((len(matched), size, size))
    errors = np.zeros_like(squares)
    for axis in (0, 1):
        moved = zoom[:, :, None] * (first[:, None, :, axis] - first[:, :, None, axis])
        squares += np.square(moved)
        errors += np.square(moved - (second[:, None, :, axis] - second[:, :, None, axis]))
    allowed = np.minimum(config.near_px + config.slope * np.sqrt(squares), config.far_px)
    supports = (errors < np.square(allowed)) & (np.abs(octaves[:, None] - octaves[:, :, None]) < config.octaves)
    return np.asarray(supports & is_there[:, None] & is_there[:, :, None])


def _choose(supports: Mask, votes: npt.NDArray[np.int64], config: SingleMatchConfig) -> list[Mask]:
    used = np.zeros(len(votes), bool)
    chosen: list[Mask] = []
    for row in np.argsort(-votes, kind="stable"):
        if votes[row] < config.least or len(chosen) == config.num_fitted:
            break
        if not used[row]:
            chosen.append(supports[row])
            used |= supports[row]
    return chosen


def _fit_in_steps(
    matched: Sequence[Matched], proposed: Sequence[tuple[int, Mask]], config: SingleMatchConfig
) -> Iterator[tuple[int, Array]]:
    """The affinity, 2 3, of the matches near each proposal; none where it does what no camera does."""
    longest = max((len(matched[number]) for number, _ in proposed), default=0)
    at_once = max(1, _AT_ONCE // max(longest, 1))
    for start in range(0, len(proposed), at_once):
        part = proposed[start : start + at_once]
        first, second = (
            np.zeros((len(part), longest, 2)),
            np.full((len(part), longest, 2), np.inf),
        )  # padding is far off
        chosen = np.zeros((len(part), longest), bool)
        for row, (number, support) in enumerate(part):
            one = matched[number]
            first[row, : len(one)], second[row, : len(one)] = one.source, one.target
            chosen[row, : len(support)] = support
        is_fitted = np.ones(len(part), bool)
        for step_px in config.steps_px:
            affinities, is_plausible = _fit_affinities(first, second, chosen, config)
            is_fitted &= is_plausible
            mapped = first @ affinities[:, :, :2].transpose(0, 2, 1) + affinities[:, None, :, 2]
            chosen = np.linalg.norm(mapped - second, axis=2) < step_px
        affinities, is_plausible = _fit_affinities(first, second, chosen, config)
        for (number, _), affinity, is_good in zip(part, affinities, is_fitted & is_plausible, strict=True):
            if is_good:
                yield number, affinity


def _fit_affinities(first: Array, second: Array, chosen: Mask, config: SingleMatchConfig) -> tuple[Array, Mask]:
    """The least-squares affinities, B 2 3, of the chosen matches, B M, and which of them a camera may have made."""
    weights = chosen.astype(np.float64)
    counts = np.maximum(weights.sum(axis=1), 1)[:, None]
    known = np.where(chosen[..., None], second, 0.0)
    middle_first = (weights[..., None] * first).sum(axis=1) / counts  # B 2
    middle_second = known.sum(axis=1) / counts
    centred = np.where(chosen[..., None], first - middle_first[:, None], 0.0)
    scatter = centred.transpose(0, 2, 1) @ centred  # B 2 2
    mixed = (known - middle_second[:, None]).transpose(0, 2, 1) @ centred
    determinant = scatter[:, 0, 0] * scatter[:, 1, 1] - scatter[:, 0, 1] ** 2
    trace = scatter[:, 0, 0] + scatter[:, 1, 1]
    has_rank = (weights.sum(axis=1) >= 3) & (determinant > _RANK * trace**2)
    adjugate = np.empty_like(scatter)
    adjugate[:, 0, 0], adjugate[:, 1, 1] = scatter[:, 1, 1], scatter[:, 0, 0]
    adjugate[:, 0, 1] = adjugate[:, 1, 0] = -scatter[:, 0, 1]
    linear = mixed @ adjugate / np.where(has_rank, determinant, 1.0)[:, None, None]
    shift = middle_second - (linear @ middle_first[:, :, None])[:, :, 0]
    area = linear[:, 0, 0] * linear[:, 1, 1] - linear[:, 0, 1] * linear[:, 1, 0]
    most = config.max_stretch + 1 / config.max_stretch  # for s >= 1 the larger s + 1/s, the larger s
    stretched = np.square(linear).sum(axis=(1, 2)) >= most * np.abs(area)
    is_plausible = has_rank & (area > config.max_zoom**-2) & (area < config.max_zoom**2) & ~stretched
    affinities = np.concatenate([linear, shift[:, :, None]], axis=2)
    return np.where(is_plausible[:, None, None], affinities, 0.0), is_plausible


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
