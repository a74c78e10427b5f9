"""Pictures laid over each other: copies agree, other views of the same thing do not."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageOps

from tessera.bench import planar_scenes as planar
from tessera.data.signature import is_framed, make_signature, symmetry
from tessera.local.alignment import compare_aligned, symmetry_transformation, to_unit_squares

SCENE = planar.paint_scene(0, (320, 240))


@pytest.mark.parametrize("number", range(8))
def test_a_turned_copy_agrees_by_its_symmetry_only(number: int) -> None:
    turned = np.ascontiguousarray(np.moveaxis(symmetry(np.moveaxis(SCENE, 2, 0), number), 0, 2))
    found = compare_aligned(SCENE, turned, symmetry_transformation(number))
    assert found.is_copy
    assert found.overlap > 0.9
    assert not compare_aligned(SCENE, turned, symmetry_transformation((number + 1) % 8)).is_copy
    squares = [np.frombuffer(make_signature(image), np.uint8).reshape(16, 16) for image in (SCENE, turned)]
    np.testing.assert_allclose(symmetry(squares[0], number), squares[1], atol=2)


def test_a_crop_agrees_where_it_was_cut() -> None:
    crop = np.ascontiguousarray(SCENE[40:200, 60:260])
    cut = np.array([[1.0, 0, -60], [0, 1, -40], [0, 0, 1]])
    unit = to_unit_squares(cut, (320, 240), (200, 160))
    assert compare_aligned(SCENE, crop, unit).is_copy
    assert compare_aligned(crop, SCENE, np.linalg.inv(unit)).is_copy
    shifted = to_unit_squares(cut @ np.array([[1.0, 0, 25], [0, 1, 0], [0, 0, 1]]), (320, 240), (200, 160))
    assert not compare_aligned(SCENE, crop, shifted).is_copy


def test_small_copies_and_large_ones() -> None:
    small = np.asarray(Image.fromarray(SCENE).resize((120, 90), Image.Resampling.LANCZOS))
    assert compare_aligned(SCENE, small, np.eye(3)).is_copy
    assert compare_aligned(small, SCENE, np.eye(3)).is_copy


def test_strangers_blank_pictures_and_nonsense_are_no_copies() -> None:
    assert not compare_aligned(SCENE, planar.paint_scene(1, (320, 240)), np.eye(3)).is_copy
    blank = np.full((240, 320, 3), 127, np.uint8)
    assert not compare_aligned(blank, blank, np.eye(3)).is_copy  # nothing to see proves nothing
    assert not compare_aligned(SCENE, SCENE, np.zeros((3, 3))).is_copy
    assert not compare_aligned(SCENE, SCENE, np.full((3, 3), np.nan)).is_copy
    line = np.zeros((1, 320, 3), np.uint8)
    assert not compare_aligned(SCENE, line, np.eye(3)).is_copy


def test_a_plain_frame_is_seen_in_the_signature() -> None:
    framed = np.asarray(ImageOps.expand(Image.fromarray(SCENE), 32, "white"))
    assert is_framed(make_signature(framed))
    assert not is_framed(make_signature(SCENE))
