"""Patches of an image around points, each seen through its own 2 x 2 matrix, read from a pyramid without aliasing."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Vectors = npt.NDArray[np.float32]
Shapes = npt.NDArray[np.float64]

_LEAST_SIDE = 16
_AT_ONCE = 700  # OpenCV's remap writes at most 32,767 rows
_OVERSAMPLING = 0.3  # of an octave: a sampling step a little above one pixel is still read from the finer level


def build_pyramid(grey: Vectors) -> list[Vectors]:
    """The image, H W, and its halves down to a few pixels."""
    import cv2

    levels = [grey]
    while min(levels[-1].shape) >= _LEAST_SIDE:
        levels.append(np.asarray(cv2.pyrDown(levels[-1])))
    return levels


def sample_patches(levels: list[Vectors], centers: Vectors, shapes: Shapes, side: int, radius: float) -> Vectors:
    """Patches N side side: the point u of [-radius, radius]^2 is read at center + shape u.

    centers: N 2; shapes: N 2 2. Each patch is read from the level whose pixels are as large as its sampling step.
    """
    import cv2

    ticks = np.linspace(-radius, radius, side, dtype=np.float32)
    grid = np.stack(np.meshgrid(ticks, ticks)).reshape(2, -1)
    steps = np.sqrt(np.abs(np.linalg.det(shapes))) * (2 * radius / (side - 1))
    wanted = np.ceil(np.log2(np.maximum(steps, 1e-6)) - _OVERSAMPLING)
    chosen = np.clip(wanted, 0, len(levels) - 1).astype(np.int64)
    patches = np.empty((len(centers), side, side), np.float32)
    for level in np.unique(chosen):
        rows = np.flatnonzero(chosen == level)
        for start in range(0, len(rows), _AT_ONCE):
            part = rows[start : start + _AT_ONCE]
            # pyrDown keeps the first pixel in its place
            frames, places = (of_all[part].astype(np.float32) / np.float32(2**level) for of_all in (shapes, centers))
            # No matrix product: BLAS would put every core to it, and pictures are described in threads already.
            x, y = (
                frames[:, axis, :1] * grid[0] + frames[:, axis, 1:] * grid[1] + places[:, axis, None] for axis in (0, 1)
            )
            x, y = x.reshape(-1, side), y.reshape(-1, side)
            read: Any = cv2.remap(levels[level], x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
            patches[part] = read.reshape(-1, side, side)
    return patches
