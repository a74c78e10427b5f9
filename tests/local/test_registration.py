"""Pictures brought together to a few hundredths of a pixel, and what does not lie in its place."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageDraw

from tessera.bench import planar_scenes as planar
from tessera.local.alignment import compare_aligned, to_unit_squares
from tessera.local.registration import compare_blocks, refine, warp

SIZE = (320, 240)
SCENE = planar.paint_scene(0, SIZE)
GREY = cv2.cvtColor(SCENE, cv2.COLOR_RGB2GRAY).astype(np.float32)
MOVED = np.array([[1.01, 0.004, -1.3], [-0.006, 0.992, 1.1]])


def drifts(first: npt.NDArray[np.float32], second: npt.NDArray[np.float32], matrix: object) -> npt.NDArray[np.float64]:
    return compare_blocks(first, *warp(first, second, np.asarray(matrix))).drifts()


def test_a_moved_picture_is_found_to_some_hundredths_of_a_pixel() -> None:
    second = cv2.warpAffine(GREY, MOVED, SIZE, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT)
    found = refine(GREY, second, np.eye(3)[:2])
    corners = np.array([[0, SIZE[0], 0, SIZE[0]], [0, 0, SIZE[1], SIZE[1]], [1, 1, 1, 1]])
    assert np.abs((found - MOVED) @ corners).max() < 0.1
    assert np.median(drifts(GREY, second, found)) < 0.03
    assert np.median(drifts(GREY, second, np.eye(3)[:2])) > 0.5


def test_light_and_a_caption_move_nothing() -> None:
    picture = Image.fromarray(SCENE)
    ImageDraw.Draw(picture).rectangle((0, 180, 320, 240), fill="black")
    covered = cv2.cvtColor(np.asarray(picture), cv2.COLOR_RGB2GRAY).astype(np.float32) * 0.7 + 30
    found = refine(GREY, covered, np.array([[1, 0, 0.6], [0, 1, -0.4]]))
    assert np.abs(found - np.eye(3)[:2]).max() < 0.05


def test_a_shift_is_measured_in_pixels() -> None:
    second = cv2.warpAffine(GREY, np.array([[1, 0, 0.3], [0, 1, 0.0]]), SIZE, flags=cv2.INTER_CUBIC)
    assert np.median(drifts(GREY, second, np.eye(3)[:2])) == pytest.approx(0.3, abs=0.06)


def test_near_and_far_things_that_shift_apart_are_no_copy() -> None:
    """A second shot from a step aside: the lower half lies nearer. It agrees nearly everywhere, but out of place."""
    down, across = np.mgrid[0 : SIZE[1], 0 : SIZE[0]].astype(np.float32)
    aside = across + 0.8 * np.sin(down / 40) + 0.5 * np.cos(across / 50)
    other = np.asarray(cv2.remap(SCENE, aside, down, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT))
    found = compare_aligned(SCENE, other, np.eye(3))
    assert found.drift > 0.1
    assert not found.is_copy


def test_a_slight_turn_is_seen() -> None:
    """A straightened copy lies in place; beyond what compression moves, a hand that turned the camera is seen."""
    turned = cv2.getRotationMatrix2D((160, 120), 2.0, 1.1)
    other = np.asarray(cv2.warpAffine(SCENE, turned, SIZE, flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REFLECT))
    found = compare_aligned(SCENE, other, to_unit_squares(np.vstack([turned, [0, 0, 1]]), SIZE, SIZE))
    assert found.slant > 2
    assert found.drift < 0.04
    assert found.is_copy


def test_nothing_to_follow_moves_nothing() -> None:
    blank = np.full((240, 320), 127, np.float32)
    start = np.array([[1.0, 0, 2], [0, 1, 3]])
    for other in (blank, GREY):
        np.testing.assert_array_equal(refine(blank, other, start), start)
    speck = np.zeros((9, 5), np.float32)
    np.testing.assert_array_equal(refine(speck, speck, start), start)
    assert len(drifts(speck, speck, np.eye(3)[:2])) == 0
