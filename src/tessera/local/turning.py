"""Pictures and upright features turned, counter-clockwise, by quarter turns and by angles in between.

Upright features are not found again in a picture that is turned by more than some twenty degrees. So a query that
nothing verifies is tried in every direction; the quarter turns of its regions' descriptors cost nothing.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tessera.data.images import Pixels
from tessera.local.features import LocalFeatures, Vectors

Direction = tuple[int, int]  # a slant, and quarter turns

STEP = 30  # degrees; halfway between two directions most features are still found
SLANTS = (0, STEP, -STEP)  # what is no quarter turn
SLANTED = tuple((slant, 0) for slant in SLANTS if slant)
DIRECTIONS = tuple((slant, quarters) for slant in SLANTS for quarters in range(4) if slant or quarters)
_GREY = (127, 127, 127)  # around a slanted picture


def degrees_of(slant: int, quarters: int) -> int:
    return (slant + 90 * quarters) % 360


def split_degrees(degrees: int) -> tuple[int, int]:
    """The slant, from -45 to 44, and the quarter turns."""
    slant = (degrees + 45) % 90 - 45
    return slant, (degrees - slant) // 90 % 4


def turn_picture(image: Pixels, degrees: int) -> Pixels:
    """The whole picture, turned; grey in the corners where it is slanted."""
    import cv2

    slant, quarters = split_degrees(degrees)
    turned = np.ascontiguousarray(np.rot90(image, quarters))
    if not slant:
        return turned
    matrix, size = turn_matrix((turned.shape[1], turned.shape[0]), slant)
    return np.asarray(cv2.warpAffine(turned, matrix, size, flags=cv2.INTER_AREA, borderValue=_GREY), np.uint8)


def turn_matrix(size: tuple[int, int], degrees: float) -> tuple[npt.NDArray[np.float64], tuple[int, int]]:
    """From the pixels of a picture of this width and height to those of the turned one, 2 3, and its size."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    width, height = size
    turned = (math.ceil(width * abs(cos) + height * abs(sin)), math.ceil(width * abs(sin) + height * abs(cos)))
    linear = np.array([[cos, sin], [-sin, cos]])
    middle, target = (np.array([w - 1, h - 1]) / 2 for w, h in (size, turned))
    return np.column_stack([linear, target - linear @ middle]), turned


def keep_inside(features: LocalFeatures, size: tuple[int, int], degrees: int) -> LocalFeatures:
    """Of a turned picture's features those that lie in the picture: its own edges are seen in no other.

    size: of the picture before it was turned.
    """
    slant, quarters = split_degrees(degrees)
    if not slant:
        return features
    width, height = size if quarters % 2 == 0 else size[::-1]
    matrix, _ = turn_matrix((width, height), slant)
    upright = (features.positions - matrix[:, 2]) @ matrix[:, :2]  # its inverse is its transpose
    margin = 2 * features.scales[:, None]
    is_inside = (upright >= margin) & (upright <= np.array([width - 1, height - 1]) - margin)
    return features.take(np.flatnonzero(is_inside.all(axis=1)))


def turn_positions(positions: Vectors, size: tuple[int, int], degrees: float) -> tuple[Vectors, tuple[int, int]]:
    """Positions N 2 in the turned picture, and its width and height."""
    matrix, turned = turn_matrix(size, degrees)
    return (positions @ matrix[:, :2].T + matrix[:, 2]).astype(np.float32), turned


def turn_sift(features: LocalFeatures, quarters: int) -> LocalFeatures:
    """The features that the picture would have if it were turned by quarter turns.

    An upright region's SIFT turns with it: its 4 x 4 cells change places and its 8 orientations move on. Regions that
    are far from round would get a slightly different frame, which is let pass.
    """
    positions, (width, height) = features.positions, features.image_size
    grid = features.descriptors.reshape(-1, 4, 4, 8)  # row, column, orientation
    for _ in range(quarters % 4):
        positions = np.stack([positions[:, 1], width - 1 - positions[:, 0]], axis=1)
        width, height = height, width
        # OpenCV counts orientations counter-clockwise: a quarter turn is two of eight bins.
        grid = np.roll(np.rot90(grid, 1, axes=(1, 2)), 2, axis=3)
    descriptors = np.ascontiguousarray(grid).reshape(-1, 128)
    return LocalFeatures(descriptors, positions, features.scales, features.strengths, None, (int(width), int(height)))
