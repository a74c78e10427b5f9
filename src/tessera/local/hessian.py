"""Hessian-affine regions with RootSIFT on numpy and OpenCV: the hand-made local features of Table 1, without torch.

Blobs and saddles by the determinant of the Hessian over scales, made affine by the second moments of the gradient
(Mikolajczyk and Schmid, 2004), described upright: photos of places stand upright, and an orientation only adds
confusion there (Perdoch, Chum and Matas, 2009).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.config import fingerprint
from tessera.data.images import Pixels
from tessera.local.features import LocalFeatures, is_blank
from tessera.local.patches import Shapes, Vectors, build_pyramid, sample_patches
from tessera.local.sift import root_sift
from tessera.local.turning import turn_matrix, turn_positions

_LEVELS = 3  # an octave
_SIGMA = 1.6
_CAMERA_SIGMA = 0.5
_LEAST_SIDE = 32
_BORDER = 5
_LEAST_RESPONSE = 1.0  # of grey values 0..255, squared, normalised by scale
_AROUND = np.ones((3, 3), np.uint8)
_NEIGHBOURS = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1))  # down, right
_SPARE = 1.25  # more points than asked for are detected: some have no affine shape
_MOMENT_SIDE, _MOMENT_RADIUS, _ITERATIONS = 19, 3.0, 6
_ROUND = 0.95  # a second moment matrix this isotropic has converged
_MAX_STRETCH = 6.0
_REGION = 5.2  # radius that is described, in scales
_PATCH, _MARGIN = 32, 5  # pixels across the region, and beyond it for the outermost bins
_MOSAIC_COLUMNS = 64


class HessianAffineExtractor:
    """At most `count` strongest regions, 128 numbers each; `shapes` are the regions' affine frames."""

    name = "hesaff-rsift"
    dim = 128

    def __init__(self, count: int = 1000) -> None:
        import cv2

        self.count = count
        self._sift: Any = cv2.SIFT.create()

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.name, 2, self.count)

    def extract(self, image: Pixels) -> LocalFeatures:
        import cv2

        height, width = image.shape[:2]
        empty = LocalFeatures.empty(self.dim, (width, height))
        if min(height, width) < _LEAST_SIDE or is_blank(image):
            return empty
        grey = cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2GRAY).astype(np.float32)
        points = detect_blobs(grey, int(self.count * _SPARE))
        if not len(points):
            return empty
        levels = build_pyramid(grey)
        centers, scales = np.ascontiguousarray(points[:, :2]), points[:, 2].astype(np.float64)
        shapes, found = adapt_shapes(levels, centers, scales)
        kept = np.flatnonzero(found)[: self.count]
        if not len(kept):
            return empty
        frames = make_upright(shapes[kept]) * scales[kept, None, None]
        return LocalFeatures(
            root_sift(self._describe(levels, centers[kept], frames)),
            centers[kept],
            scales[kept].astype(np.float32),
            points[kept, 3],
            frames.astype(np.float32),
            (width, height),
        )

    def describe_turned(self, image: Pixels, features: LocalFeatures, degrees: float) -> LocalFeatures:
        """The same regions as they stand in the picture turned by so much, counter-clockwise."""
        import cv2

        positions, size = turn_positions(features.positions, features.image_size, degrees)
        if features.shapes is None or not len(features):
            return LocalFeatures.empty(self.dim, size)
        grey = cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_RGB2GRAY).astype(np.float32)
        turn = turn_matrix(features.image_size, degrees)[0][:, :2]
        upright = make_upright(turn @ features.shapes.astype(np.float64))  # in the turned picture
        descriptors = self._describe(build_pyramid(grey), features.positions, turn.T @ upright)
        return LocalFeatures(
            root_sift(descriptors), positions, features.scales, features.strengths, upright.astype(np.float32), size
        )

    def _describe(self, levels: list[Vectors], centers: Vectors, frames: Shapes) -> Vectors:
        """SIFT, N 128, of the regions: they are laid out as one mosaic, which OpenCV describes at once."""
        import cv2

        side = _PATCH + _MARGIN
        patches = sample_patches(levels, centers, frames, side, _REGION * (side - 1) / _PATCH)
        rows = -(-len(patches) // _MOSAIC_COLUMNS)
        tiles = np.zeros((rows * _MOSAIC_COLUMNS, side, side), np.uint8)
        tiles[: len(patches)] = np.clip(patches, 0, 255)
        mosaic = tiles.reshape(rows, _MOSAIC_COLUMNS, side, side).transpose(0, 2, 1, 3).reshape(rows * side, -1)
        size = 2 * _PATCH / 12  # SIFT's window is twelve of its scales across, and a keypoint's size is two
        keypoints = [
            cv2.KeyPoint(
                i % _MOSAIC_COLUMNS * side + (side - 1) / 2, i // _MOSAIC_COLUMNS * side + (side - 1) / 2, size, 0.0
            )
            for i in range(len(patches))
        ]
        return np.asarray(self._sift.compute(np.ascontiguousarray(mosaic), keypoints)[1], np.float32)


def detect_blobs(grey: Vectors, count: int) -> Vectors:
    """The strongest extrema of the Hessian's determinant over place and scale, N 4: x, y, scale, response."""
    import cv2

    base = cv2.GaussianBlur(grey, (0, 0), np.sqrt(_SIGMA**2 - _CAMERA_SIGMA**2))
    found = [np.empty((0, 4), np.float32)]
    octave = 0
    while min(base.shape) >= _LEAST_SIDE:
        blurred, sigmas = [base], [_SIGMA]
        for level in range(1, _LEVELS + 2):
            sigmas.append(_SIGMA * 2 ** (level / _LEVELS))
            blurred.append(cv2.GaussianBlur(blurred[-1], (0, 0), np.sqrt(sigmas[-1] ** 2 - sigmas[-2] ** 2)))
        responses = [_hessian_response(image, sigma) for image, sigma in zip(blurred, sigmas, strict=True)]
        for sign in (1, -1):  # blobs, then saddles
            found += [_refine_extrema(responses, sign, level, octave) for level in range(1, _LEVELS + 1)]
        base = np.ascontiguousarray(blurred[_LEVELS][::2, ::2])
        octave += 1
    points = np.concatenate(found)
    return points[np.argsort(-points[:, 3], kind="stable")[:count]]


def _hessian_response(image: Vectors, sigma: float) -> Vectors:
    import cv2

    xx: Any = cv2.filter2D(image, -1, np.array([[1, -2, 1]], np.float32))
    yy: Any = cv2.filter2D(image, -1, np.array([[1], [-2], [1]], np.float32))
    xy: Any = cv2.filter2D(image, -1, np.array([[0.25, 0, -0.25], [0, 0, 0], [-0.25, 0, 0.25]], np.float32))
    xx *= yy
    xy *= xy
    xx -= xy
    xx *= np.float32(sigma**4)
    return np.asarray(xx)


def _refine_extrema(responses: list[Vectors], sign: int, level: int, octave: int) -> Vectors:
    """Points of one level that exceed their 26 neighbours, moved to the top of a parabola along each axis.

    sign: -1 for points that are below their neighbours; all is then told as if they were above.
    """
    import cv2

    below, here, above = responses[level - 1 : level + 2]
    if sign > 0:
        is_peak = (here == cv2.dilate(here, _AROUND)) & (here > _LEAST_RESPONSE)
    else:
        is_peak = (here == cv2.erode(here, _AROUND)) & (here < -_LEAST_RESPONSE)
    is_peak[:_BORDER] = is_peak[-_BORDER:] = is_peak[:, :_BORDER] = is_peak[:, -_BORDER:] = False
    places: Any = cv2.findNonZero(is_peak.view(np.uint8))  # several times as fast as numpy's; None where there is none
    x, y = (np.empty(0) if places is None else places).reshape(-1, 2).T.astype(np.intp)
    value = sign * here[y, x]
    for down, right in _NEIGHBOURS:  # few points are left after the first
        exceeds = (value > sign * below[y + down, x + right]) & (value > sign * above[y + down, x + right])
        x, y, value = x[exceeds], y[exceeds], value[exceeds]
    pairs = (here[y, x - 1], here[y, x + 1]), (here[y - 1, x], here[y + 1, x]), (below[y, x], above[y, x])
    signed = [(sign * before, sign * after) for before, after in pairs]
    slopes = [(after - before) / 2 for before, after in signed]
    bends = [np.minimum(before + after - 2 * value, -1e-9) for before, after in signed]
    moves = [np.clip(-slope / bend, -0.6, 0.6) for slope, bend in zip(slopes, bends, strict=True)]
    peak = value + sum(slope * move for slope, move in zip(slopes, moves, strict=True)) / 2
    scale = _SIGMA * 2 ** ((level + moves[2]) / _LEVELS + octave)
    return np.stack([(x + moves[0]) * 2**octave, (y + moves[1]) * 2**octave, scale, peak], axis=1).astype(np.float32)


def adapt_shapes(
    levels: list[Vectors], centers: Vectors, scales: npt.NDArray[np.float64]
) -> tuple[Shapes, npt.NDArray[np.bool_]]:
    """Matrices N 2 2 of determinant one in whose frames the gradient is alike in every direction; where one was found.

    A region that would have to be stretched more than six times has none.
    """
    shapes = np.tile(np.eye(2), (len(centers), 1, 1))
    found = np.ones(len(centers), bool)
    ticks = np.linspace(-1, 1, _MOMENT_SIDE)
    window = np.exp(-2 * (ticks[:, None] ** 2 + ticks[None] ** 2)).astype(np.float32)
    open_rows = np.arange(len(centers))
    for _ in range(_ITERATIONS):
        if not len(open_rows):
            break
        frames = shapes[open_rows] * scales[open_rows, None, None]
        patches = sample_patches(levels, centers[open_rows], frames, _MOMENT_SIDE, _MOMENT_RADIUS)
        values, vectors = np.linalg.eigh(_second_moments(patches, window))
        values = np.maximum(values, 1e-9)
        whitening = vectors @ (values[:, :, None] ** -0.5 * vectors.transpose(0, 2, 1))
        whitening /= np.sqrt(np.linalg.det(whitening))[:, None, None]
        adapted = shapes[open_rows] @ whitening
        widths = np.linalg.svd(adapted, compute_uv=False)
        wild = widths[:, 0] > _MAX_STRETCH * np.maximum(widths[:, 1], 1e-9)
        found[open_rows[wild]] = False
        shapes[open_rows[~wild]] = adapted[~wild]
        open_rows = open_rows[~wild & (np.sqrt(values[:, 0] / values[:, 1]) < _ROUND)]
    return shapes, found


def _second_moments(patches: Vectors, window: Vectors) -> Shapes:
    """Of the gradient, N 2 2, of trace one."""
    dx, dy = np.zeros_like(patches), np.zeros_like(patches)
    dx[:, :, 1:-1] = patches[:, :, 2:] - patches[:, :, :-2]
    dy[:, 1:-1] = patches[:, 2:] - patches[:, :-2]
    xx, xy, yy = (np.einsum("nij,nij->n", a * window, b).astype(np.float64) for a, b in ((dx, dx), (dx, dy), (dy, dy)))
    moments = np.stack([np.stack([xx, xy], -1), np.stack([xy, yy], -1)], -2)
    return np.asarray(moments / np.maximum(xx + yy, 1e-9)[:, None, None] + 1e-6 * np.eye(2))


def make_upright(shapes: Shapes) -> Shapes:
    """The same regions, N 2 2, turned so that what points down in the frame points down in the picture."""
    a, b = shapes[:, 0, 0], shapes[:, 0, 1]
    length = np.hypot(a, b)
    cos, sin = a / length, b / length
    turns = np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)
    return np.asarray(shapes @ turns)
