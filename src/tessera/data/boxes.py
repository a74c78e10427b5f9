"""Boxes on photographs: clipping to the picture, and from rotated pixels to stored ones."""

from __future__ import annotations

import math
from typing import TypeAlias

from tessera.errors import BoxError

Box: TypeAlias = tuple[float, float, float, float]  # x0 y0 x1 y1 in pixels of the EXIF-rotated picture


def parse_box(text: str) -> Box:
    """Read `X0,Y0,X1,Y1` as the command line and the service take it."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) != 4:
        raise BoxError(f"'{text}' is not a box. Give four numbers of pixels: X0,Y0,X1,Y1.")
    return values


def clip_box(box: Box, width: int, height: int) -> tuple[int, int, int, int]:
    """The whole pixels that a box touches inside a picture; at least one, or it is an error.

    A box that reaches over the edge is clipped, because boxes drawn by hand do. One that lies wholly outside or
    inside out cannot be meant.
    """
    if len(box) != 4 or not all(math.isfinite(value) for value in box):
        raise BoxError(f"the box {_written(box)} is not four finite numbers. Give X0,Y0,X1,Y1 in pixels.")
    x0, y0, x1, y1 = box
    if x1 <= x0 or y1 <= y0:
        raise BoxError(
            f"the box {_written(box)} is inside out or empty: it needs X0 < X1 and Y0 < Y1 "
            "(left, top, right, bottom, in pixels)."
        )
    if x0 >= width or y0 >= height or x1 <= 0 or y1 <= 0:
        raise BoxError(
            f"the box {_written(box)} lies wholly outside the image, which is {width} x {height} pixels "
            "(after EXIF rotation). Give a box that overlaps it."
        )
    return max(0, math.floor(x0)), max(0, math.floor(y0)), min(width, math.ceil(x1)), min(height, math.ceil(y1))


def reaches_beyond(box: Box, width: int, height: int) -> bool:
    """Whether a part of a box lies outside the picture; a pixel more is a hand that slipped."""
    x0, y0, x1, y1 = box
    return x0 <= -1 or y0 <= -1 or x1 >= width + 1 or y1 >= height + 1


def unrotate_box(
    box: tuple[int, int, int, int], orientation: int, width: int, height: int
) -> tuple[int, int, int, int]:
    """Where a box of the rotated picture (width x height) lies in the stored one, for EXIF orientations 1 to 8."""
    x0, y0, x1, y1 = box
    left, right, top, bottom = (x0, x1), (width - x1, width - x0), (y0, y1), (height - y1, height - y0)
    # Stored x runs along one of these spans of the rotated picture, stored y along the other.
    span_x, span_y = {
        1: (left, top),
        2: (right, top),
        3: (right, bottom),
        4: (left, bottom),
        5: (top, left),
        6: (top, right),
        7: (bottom, right),
        8: (bottom, left),
    }[orientation]
    return span_x[0], span_y[0], span_x[1], span_y[1]


def _written(box: Box) -> str:
    return ",".join(f"{value:g}" for value in box)
