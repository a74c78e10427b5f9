"""Do two pictures that agree in shape agree in colour, too?

Local features see no colour. Labels and packages of one brand share their lettering and ornaments down to the pixel,
and differ in what they are coloured; so does a thing from its drawing. Light changes all colours together: the shift
that most blocks share is taken off first, as far as light reaches. It goes from blue to yellow much further than from
green to red; a label that is red instead of blue is another label.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.data.images import Pixels
from tessera.local.alignment import Transformation

_SIDE = 256
_BLOCK = 8
_MIN_BLOCKS = 6
_APART = 20.0  # of the distance in the plane of a and b of CIELAB
_OF_SATURATION = 0.5
_LIGHT = (8.0, 20.0)  # the most that light shifts a and b: 98 in 100 pairs of one thing stay below 6 and 15
_MARGIN = 0.06  # of the longer side: how far beyond the inliers colours are compared


def colour_difference(
    first: Pixels, second: Pixels, transformation: Transformation, points: npt.NDArray[np.float64]
) -> float:
    """The share of blocks, among and around the inliers, whose colours differ; 0 where there is nothing to compare.

    transformation: from the first picture to the second; points: the inliers, M 2, in the first; as unit squares.
    """
    import cv2

    height, width = first.shape[:2]
    scale = min(1.0, _SIDE / max(height, width))
    width, height = max(1, round(width * scale)), max(1, round(height * scale))
    linear = transformation[:2, :2] / transformation[2, 2]
    zoom = max(abs(float(np.linalg.det(linear))) ** 0.5, 1e-3)
    small = tuple(
        min(side, max(1, round(extent / zoom)))
        for side, extent in zip(second.shape[1::-1], (width, height), strict=True)
    )
    matrix = np.diag([*small, 1.0]) @ transformation @ np.diag([1 / width, 1 / height, 1.0])
    backwards = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    base, moving = _chroma(first, (width, height)), _chroma(second, small)
    warped = cv2.warpPerspective(moving, matrix, (width, height), flags=backwards)
    inside = cv2.warpPerspective(np.ones(moving.shape[:2], np.float32), matrix, (width, height), flags=backwards)
    region = np.zeros((height, width), np.uint8)
    hull = cv2.convexHull((points * (width, height)).astype(np.float32).reshape(-1, 1, 2))
    cv2.fillConvexPoly(region, hull.astype(np.int32), 1)
    reach = 2 * round(_MARGIN * max(width, height)) + 1
    region = cv2.dilate(region, np.ones((reach, reach), np.uint8))
    return _share_apart(base, warped, (region > 0) & (inside > 0.99))


def _share_apart(first: Any, second: Any, where: Any) -> float:
    rows, columns = first.shape[0] // _BLOCK, first.shape[1] // _BLOCK
    if rows * columns < _MIN_BLOCKS:
        return 0.0

    def means(values: Any) -> Any:
        cut = values[: rows * _BLOCK, : columns * _BLOCK]
        return cut.reshape(rows, _BLOCK, columns, _BLOCK, -1).mean(axis=(1, 3)).reshape(rows * columns, -1)

    kept = means(where.astype(np.float32))[:, 0] > 0.8
    if kept.sum() < _MIN_BLOCKS:
        return 0.0
    a, b = means(first)[kept], means(second)[kept]
    light = np.clip(np.median(b - a, axis=0), np.negative(_LIGHT), _LIGHT)
    distances = np.linalg.norm(b - a - light, axis=1)
    saturation = np.maximum(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1))  # light changes these most
    return float((distances > np.maximum(_APART, _OF_SATURATION * saturation)).mean())


def _chroma(image: Pixels, size: tuple[int, ...]) -> Any:
    """H W 2: a and b of CIELAB."""
    import cv2

    small = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
    return cv2.cvtColor(small.astype(np.float32) / 255, cv2.COLOR_RGB2LAB)[:, :, 1:]
