from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tessera.data.boxes import clip_box, parse_box, unrotate_box
from tessera.data.images import _TRANSPOSE
from tessera.errors import BoxError

sides = st.integers(1, 500)
coordinates = st.floats(-1000, 1000)


@given(box=st.tuples(coordinates, coordinates, coordinates, coordinates), width=sides, height=sides)
def test_a_box_is_clipped_to_the_pixels_it_touches_or_refused(box: tuple, width: int, height: int) -> None:
    x0, y0, x1, y1 = box
    overlaps = x0 < x1 and y0 < y1 and x0 < width and y0 < height and x1 > 0 and y1 > 0
    try:
        left, top, right, bottom = clip_box(box, width, height)
    except BoxError:
        assert not overlaps
        return
    assert overlaps
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height
    # Every whole pixel that the box covers is in, and no pixel that it does not touch.
    assert left <= max(0, x0) < left + 1 or left == 0
    assert right - 1 < min(width, x1) <= right
    assert bottom - 1 < min(height, y1) <= bottom


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused(value: float) -> None:
    with pytest.raises(BoxError, match="finite"):
        clip_box((0, 0, value, 10), 100, 100)


@given(
    orientation=st.integers(1, 8),
    width=st.integers(2, 9),
    height=st.integers(2, 9),
    corners=st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(1, 8), st.integers(1, 8)),
)
def test_a_cut_before_rotation_equals_one_after(orientation: int, width: int, height: int, corners: tuple) -> None:
    stored = np.arange(width * height, dtype=np.uint8).reshape(height, width)
    image = Image.fromarray(stored)
    rotated = image.transpose(_TRANSPOSE[orientation]) if orientation > 1 else image
    x0, y0 = min(corners[0], rotated.width - 1), min(corners[1], rotated.height - 1)
    box = (x0, y0, min(x0 + corners[2], rotated.width), min(y0 + corners[3], rotated.height))
    inside = image.crop(unrotate_box(box, orientation, *rotated.size))
    turned = inside.transpose(_TRANSPOSE[orientation]) if orientation > 1 else inside
    np.testing.assert_array_equal(np.asarray(turned), np.asarray(rotated.crop(box)))


def test_a_box_is_read_from_the_command_line() -> None:
    assert parse_box("1,2.5,-3,4e1") == (1.0, 2.5, -3.0, 40.0)
    for text in ("1,2,3", "a,b,c,d", "", "1,2,3,4,5"):
        with pytest.raises(BoxError, match="four numbers"):
            parse_box(text)
