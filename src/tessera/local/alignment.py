"""Is one picture a copy of the other? Lay them over each other and compare their pixels, block by block.

Local features agree on any two photos of one facade. A copy agrees everywhere: the same leaves, the same people, the
same clouds, whatever was done to its size, its quality, its colours or its edges. And everything lies in its place to
some hundredths of a pixel (`local.registration`), which no second shot does, be it of a burst.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.data.images import Pixels
from tessera.local.registration import compare_blocks, refine, warp

Transformation = npt.NDArray[np.float64]  # 3 3, from the first picture to the second, both as the unit square

SIZE = 384  # longer side of the pictures that are compared; never enlarged
_SIDE = 192  # longer side of the frame in which they are laid over each other
_BLOCK = 8
_MIN_BLOCKS = 8
_MIN_CONTRAST = 3.0  # of 255: a block with less has no structure to compare
_NOISE = 1.0  # variance that compression adds to what both show
_MIN_OVERLAP = 0.6
# Twelve kinds of copies reach 0.968 and 0.931, or 0.984 alone; two shots of one facade a second apart 0.966 and 0.904.
_MIN_CORRELATION, _MIN_LOWER, _SAME = 0.955, 0.92, 0.98
_WORTH_REFINING = 0.6
# Half of the blocks of a copy lie in their places to so many pixels of the frame. Compression moves some further; then
# the axes must be parallel, as tools keep them and a hand does not.
_MOST_DRIFT, _MOST_LEVEL_DRIFT = 0.04, 0.1
_LEVEL_PX = 0.15
_MIN_CORNERS = 4  # blocks with corners, below which nothing can be out of place


@dataclass(frozen=True)
class Agreement:
    """correlation: the median over the blocks with most structure; lower: what four fifths of them reach.

    overlap: how much of the picture that shows less is compared; blocks: how many blocks had structure.
    drift: how many pixels half of the blocks lie from their places; slant: how many a side is out of parallel.
    """

    correlation: float
    lower: float
    overlap: float
    blocks: int
    drift: float = 0.0
    slant: float = 0.0

    @property
    def is_copy(self) -> bool:
        """Nearly all blocks agree; or more than half of them to a hair, and the rest is covered by writing.

        And they lie in their places.
        """
        in_place = self.drift <= (_MOST_LEVEL_DRIFT if self.slant <= _LEVEL_PX else _MOST_DRIFT)
        alike = self.correlation >= _MIN_CORRELATION and self.lower >= _MIN_LOWER
        covered = self.correlation >= _SAME
        return self.blocks >= _MIN_BLOCKS and self.overlap >= _MIN_OVERLAP and in_place and (alike or covered)


NOTHING = Agreement(0.0, 0.0, 0.0, 0)


def to_unit_squares(
    transformation: Transformation, first_size: tuple[int, int], second_size: tuple[int, int]
) -> Transformation:
    """A transformation between pixels (width, height) as one between unit squares."""
    into, out = np.diag([*first_size, 1.0]), np.diag([1 / second_size[0], 1 / second_size[1], 1.0])
    return np.asarray(out @ transformation @ into, np.float64)


def symmetry_transformation(number: int) -> Transformation:
    """Where `signature.symmetry` takes a point of the unit square."""
    turn = np.array([[0.0, 1, 0], [-1, 0, 1], [0, 0, 1]])  # counter-clockwise, y downwards: x, y to y, 1 - x
    mirror = np.array([[-1.0, 0, 1], [0, 1, 0], [0, 0, 1]]) if number >= 4 else np.eye(3)
    return np.asarray(np.linalg.matrix_power(turn, number % 4) @ mirror, np.float64)


def compare_aligned(first: Pixels, second: Pixels, transformation: Transformation) -> Agreement:
    """How far two pictures agree where they overlap. The frame is that of the picture that shows less."""
    if not np.isfinite(transformation).all() or abs(np.linalg.det(transformation)) < 1e-6:
        return NOTHING
    inverse = np.asarray(np.linalg.inv(transformation), np.float64)
    if _covered(transformation) >= _covered(inverse):
        return _compare(first, second, transformation)
    return _compare(second, first, inverse)


def _covered(transformation: Transformation) -> float:
    """How much of the first picture's square lies in the second's, by a grid of points."""
    steps = (np.arange(16) + 0.5) / 16
    points = np.stack([*(axis.ravel() for axis in np.meshgrid(steps, steps)), np.ones(256)])  # 3 256
    mapped = transformation @ points
    with np.errstate(divide="ignore", invalid="ignore"):
        mapped = mapped[:2] / mapped[2]
    return float(((mapped >= 0) & (mapped <= 1)).all(axis=0).mean())


def _compare(frame: Pixels, other: Pixels, transformation: Transformation) -> Agreement:
    """In the frame's square, at the resolution of the coarser of the two: what one of them lost proves nothing."""

    height, width = frame.shape[:2]
    spans = _spans(transformation, (other.shape[1], other.shape[0]))  # what the frame's sides measure in the other
    scale = min(1.0, _SIDE / max(height, width), spans[0] / width, spans[1] / height)
    width, height = max(1, round(width * scale)), max(1, round(height * scale))
    # The other picture at this resolution first: warping alone would skip its pixels.
    small = max(1, round(other.shape[1] * width / spans[0])), max(1, round(other.shape[0] * height / spans[1]))
    if abs(transformation[0, 0]) < abs(transformation[0, 1]):  # on its side
        small = max(1, round(other.shape[1] * height / spans[1])), max(1, round(other.shape[0] * width / spans[0]))
    to_other = np.diag([*small, 1.0]) @ transformation @ np.diag([1 / width, 1 / height, 1.0])
    half = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]])  # pixels lie at their centres
    base, moving = _grey(frame, (width, height)), _grey(other, small)
    matrix = np.linalg.inv(half) @ to_other @ half
    plain = matrix[:2] / matrix[2, 2]
    agreement = _agree(base, moving, plain)
    if agreement.is_copy or agreement.correlation < _WORTH_REFINING:
        return agreement
    return _agree(base, moving, refine(base, moving, plain))


def _agree(base: Any, moving: Any, matrix: npt.NDArray[np.float64]) -> Agreement:
    warped, inside = warp(base, moving, matrix)
    drifts = compare_blocks(base, warped, inside).drifts()
    drift = float(np.median(drifts)) if len(drifts) >= _MIN_CORNERS else 0.0
    directions = matrix[:, :2] / np.linalg.norm(matrix[:, :2], axis=0)
    slant = float(np.abs(directions).min(axis=0).max()) * max(base.shape) / 2
    return replace(_correlate_blocks(base, warped, inside), drift=drift, slant=slant)


def _spans(transformation: Transformation, size: tuple[int, int]) -> tuple[float, float]:
    """How many pixels of a picture of `size` the sides of the unit square are long, at its middle."""
    ends = transformation @ np.array([[0.25, 0.75, 0.5, 0.5], [0.5, 0.5, 0.25, 0.75], [1, 1, 1, 1]])
    ends = ends[:2] / ends[2] * np.array(size)[:, None]
    across, down = ends[:, 1] - ends[:, 0], ends[:, 3] - ends[:, 2]
    return max(2 * float(np.hypot(*across)), 1.0), max(2 * float(np.hypot(*down)), 1.0)


def _correlate_blocks(first: Any, second: Any, inside: Any) -> Agreement:
    rows, columns = first.shape[0] // _BLOCK, first.shape[1] // _BLOCK
    if rows == 0 or columns == 0:
        return NOTHING

    def blocks(image: Any) -> Any:
        cut = image[: rows * _BLOCK, : columns * _BLOCK].reshape(rows, _BLOCK, columns, _BLOCK)
        return cut.swapaxes(1, 2).reshape(rows * columns, _BLOCK * _BLOCK)

    compared = blocks(inside).all(axis=1)
    a, b = (blocks(image)[compared].astype(np.float64) for image in (first, second))
    a, b = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
    deviations = np.sqrt((a * a).mean(axis=1)), np.sqrt((b * b).mean(axis=1))
    contrast = np.maximum(*deviations)
    # Compression is noise of some levels, which drowns what has little structure: the better half of the blocks counts.
    structured = contrast >= max(_MIN_CONTRAST, float(np.median(contrast)) if len(contrast) else 0.0)
    correlation = (a * b).mean(axis=1) / np.maximum(deviations[0] * deviations[1] - _NOISE, _NOISE)
    count = int(structured.sum())
    if not count:
        return NOTHING
    lower, median = np.percentile(correlation[structured], (20, 50))
    return Agreement(min(1.0, float(median)), min(1.0, float(lower)), float(compared.mean()), count)


def _grey(image: Pixels, size: tuple[int, int]) -> Any:
    import cv2

    return cv2.resize(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), size, interpolation=cv2.INTER_AREA).astype(np.float32)
