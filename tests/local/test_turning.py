"""Pictures, positions and features turned by any number of degrees."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.local.features import LocalFeatures
from tessera.local.turning import (
    DIRECTIONS,
    SLANTED,
    degrees_of,
    keep_inside,
    split_degrees,
    turn_picture,
    turn_positions,
)

SIZE = (90, 60)


def test_directions_go_round_in_equal_steps():
    assert sorted(degrees_of(*direction) for direction in DIRECTIONS) == [*range(30, 360, 30)]
    assert set(SLANTED) < set(DIRECTIONS)
    for direction in DIRECTIONS:
        assert split_degrees(degrees_of(*direction)) == direction


@pytest.mark.parametrize("degrees", [0, 30, 90, 150, 180, 200, 270, 330])
def test_a_spot_is_where_its_position_says(degrees):
    picture = np.full((SIZE[1], SIZE[0], 3), 127, np.uint8)
    picture[18:23, 68:73] = 255
    turned = turn_picture(picture, degrees)
    position, size = turn_positions(np.array([[70.0, 20.0]], np.float32), SIZE, degrees)
    assert (turned.shape[1], turned.shape[0]) == pytest.approx(size, abs=1)
    weights = turned[:, :, 0].astype(float) - 127
    middle = [(weights * axis).sum() / weights.sum() for axis in np.meshgrid(*map(np.arange, turned.shape[1::-1]))]
    assert middle == pytest.approx(position[0].tolist(), abs=1)


def test_a_quarter_turn_keeps_every_pixel():
    picture = np.random.default_rng(0).integers(0, 256, (SIZE[1], SIZE[0], 3), dtype=np.uint8)
    for quarters in range(4):
        assert np.array_equal(turn_picture(picture, 90 * quarters), np.rot90(picture, quarters))


def test_what_lies_in_the_grey_corners_is_left_out():
    inside, size = turn_positions(np.array([[45.0, 30.0], [10.0, 10.0]], np.float32), SIZE, 30)
    positions = np.concatenate([inside, np.array([[1.0, 1.0], [size[0] - 2.0, size[1] - 2.0]], np.float32)])
    ones = np.ones(4, np.float32)
    features = LocalFeatures(np.zeros((4, 2), np.float32), positions, ones, ones, None, size)
    assert np.array_equal(keep_inside(features, SIZE, 30).positions, inside)
    assert keep_inside(features, SIZE, 90) is features
