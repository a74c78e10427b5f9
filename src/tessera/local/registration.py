"""Bring two pictures that nearly lie over each other together, and measure what is still out of place.

Features place a picture to half a pixel. From there Gauss-Newton steps follow the grey values (Lucas and Kanade, 1981),
by blocks: blocks that another picture covers, a caption or a frame, lose their say. A copy is the same picture moved by
one affine map, so every block then lies where it belongs, to some hundredths of a pixel. A second shot never does: near
and far things shift apart, lenses bend, leaves and water move.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

BLOCK = 16
_STEPS = 6
_ENOUGH_PX = 0.01  # a step that moves no block further is the last
_MIN_CONTRAST = 3.0  # of 255, of a block that has something to follow
_MIN_CORRELATION = 0.2  # of blocks that a step follows
_MIN_BLOCKS = 4
_CORNER = (
    1.0  # least gradient, in its weakest direction, of a block that cannot slip along an edge: grey values a pixel
)
_BLUR = 0.8  # of both pictures, in pixels: compression and resampling differ at the finest


@dataclass(frozen=True)
class Blocks:
    """What the blocks of two pictures laid over each other say of where the second lies.

    centres: N 2. correlations: N. normals: N 3, the sums of x², xy and y² of the gradients; rights: N 2, of the
    gradients times what differs. Solving the two gives a block's own shift. contrasts: N, the variance of the first.
    """

    centres: Array
    correlations: Array
    normals: Array
    rights: Array
    contrasts: Array

    def drifts(self) -> Array:
        """How far each block that has corners lies from its place, in pixels."""
        xx, xy, yy = self.normals.T
        determinant = xx * yy - xy * xy
        weakest = (xx + yy) / 2 - np.sqrt(np.maximum(np.square(xx - yy) / 4 + xy * xy, 0))
        cornered = weakest > _CORNER * BLOCK * BLOCK
        x, y = self.rights.T
        shifts = np.stack([yy * x - xy * y, xx * y - xy * x], axis=1)[cornered]
        return np.asarray(np.linalg.norm(shifts, axis=1) / determinant[cornered])


def warp(base: Any, moving: Any, matrix: Array) -> tuple[Any, Any]:
    """The second picture as it lies over the first, and where it does. matrix: 2 3, from the first to the second."""
    import cv2

    size, backwards = base.shape[::-1], cv2.WARP_INVERSE_MAP
    warped = cv2.warpAffine(moving, matrix, size, flags=cv2.INTER_CUBIC | backwards, borderMode=cv2.BORDER_REPLICATE)
    inside = cv2.warpAffine(np.ones_like(moving), matrix, size, flags=cv2.INTER_LINEAR | backwards)
    return warped, inside > 0.99


def refine(base: Any, moving: Any, matrix: Array) -> Array:
    """The affine map, 2 3, from the first picture to the second, both grey, that brings most blocks into place."""
    found = np.vstack([matrix, [0.0, 0.0, 1.0]]).astype(np.float64)
    for _ in range(_STEPS):
        blocks = compare_blocks(base, *warp(base, moving, found[:2]))
        step = _step(blocks)
        if step is None:
            break
        found = found @ step
        corners = np.array([[0, base.shape[1], 0], [0, 0, base.shape[0]], [1, 1, 1]], np.float64)
        if np.abs(((step - np.eye(3)) @ corners)[:2]).max() < _ENOUGH_PX:
            break
    return np.asarray(found[:2])


def compare_blocks(base: Any, warped: Any, inside: Any) -> Blocks:
    """Of the blocks that both pictures fill, and that have contrast. Light and contrast of each block may differ."""
    import cv2

    rows, columns = base.shape[0] // BLOCK, base.shape[1] // BLOCK

    def cut(image: Any) -> Any:
        part = image[: rows * BLOCK, : columns * BLOCK].reshape(rows, BLOCK, columns, BLOCK)
        return part.swapaxes(1, 2).reshape(rows * columns, BLOCK * BLOCK)

    first, second = (cv2.GaussianBlur(image, (0, 0), _BLUR) for image in (base, warped))
    kept = cut(inside).all(axis=1)
    a, b = (cut(image)[kept] for image in (first, second))
    a, b = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
    aa, bb, ab = (np.einsum("np,np->n", *pair) / BLOCK**2 for pair in ((a, a), (b, b), (a, b)))
    strong = (np.minimum(aa, bb) > 1e-3) & (np.maximum(aa, bb) > _MIN_CONTRAST**2)
    a, b, aa, bb, ab = (values[strong] for values in (a, b, aa, bb, ab))
    gains = ab / bb
    both = (first + second) / 2
    x, y = (cut(cv2.Sobel(both, cv2.CV_32F, *way, ksize=3, scale=1 / 8))[kept][strong] for way in ((1, 0), (0, 1)))
    rest = a - b * gains[:, None]
    products = [np.einsum("np,np->n", *pair) for pair in ((x, x), (x, y), (y, y), (x, rest), (y, rest))]
    down, across = np.divmod(np.flatnonzero(kept)[strong], max(columns, 1))
    centres = (np.stack([across, down], axis=1) + 0.5) * BLOCK
    sums = np.stack(products, axis=1).astype(np.float64)
    return Blocks(centres, ab / np.sqrt(aa * bb), sums[:, :3], sums[:, 3:], aa)


def _step(blocks: Blocks) -> Array | None:
    """The affine map, 3 3, of the first picture's frame, by which the blocks agree better; none where too few do."""
    chosen = blocks.correlations > _MIN_CORRELATION
    if chosen.sum() < _MIN_BLOCKS:
        return None
    unlike = 1 - blocks.correlations[chosen]
    weights = (1 + np.square(unlike / (2 * np.median(unlike) + 1e-4))) ** -2.0 / blocks.contrasts[chosen]
    xx, xy, yy = blocks.normals[chosen].T * weights
    right = blocks.rights[chosen] * weights[:, None]
    middle, size = blocks.centres.mean(axis=0), max(float(np.ptp(blocks.centres, axis=0).max()), 1.0)
    places = np.column_stack([np.ones(chosen.sum()), (blocks.centres[chosen] - middle) / size])  # N 3
    parts = [np.einsum("ni,nj,n->ij", places, places, weight) for weight in (xx, xy, yy)]
    normal = np.block([[parts[0], parts[1]], [parts[1], parts[2]]])
    normal += 1e-6 * np.trace(normal) * np.eye(6)
    x, y = np.linalg.solve(normal, (places.T @ right).T.ravel()).reshape(2, 3)
    linear = np.stack([x[1:], y[1:]]) / size
    step = np.eye(3)
    step[:2, :2] += linear
    step[:2, 2] = np.array([x[0], y[0]]) - linear @ middle
    return step
