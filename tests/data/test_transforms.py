"""Augmentations: their ranges, their randomness, and that the same seed gives the same pixels."""

from __future__ import annotations

import colorsys
import dataclasses

import numpy as np
import pytest
from PIL import Image

from tessera.data.transforms import TransformConfig, augment, plain, random_of, random_region, turn_hue
from tessera.errors import ConfigError

PHOTO = np.random.default_rng(5).integers(0, 256, (90, 140, 3), dtype=np.uint8)


def test_the_same_seed_epoch_and_image_give_the_same_pixels_and_another_does_not() -> None:
    config = TransformConfig(crop=32)
    first = augment(PHOTO, config, random_of(1, 2, 3))
    assert first.shape == (32, 32, 3) and first.dtype == np.uint8
    assert np.array_equal(first, augment(PHOTO, config, random_of(1, 2, 3)))
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not np.array_equal(first, augment(PHOTO, config, random_of(*other)))


def test_regions_have_the_area_and_ratio_asked_for_and_lie_inside() -> None:
    config = TransformConfig(area=(0.2, 0.6))
    for index in range(300):
        x0, y0, x1, y1 = random_region(140, 90, config, random_of(0, 0, index))
        assert 0 <= x0 < x1 <= 140 and 0 <= y0 < y1 <= 90
        assert 0.18 <= (x1 - x0) * (y1 - y0) / (140 * 90) <= 0.62
        assert 0.72 <= (x1 - x0) / (y1 - y0) <= 1.4


@pytest.mark.parametrize("size", [(384, 27), (27, 384), (1, 1), (3, 400)])
def test_a_strip_gets_the_largest_region_that_its_shape_admits(size: tuple[int, int]) -> None:
    config = TransformConfig(area=(0.9, 1.0), crop=16)
    x0, y0, x1, y1 = random_region(*size, config, random_of(0, 0, 0))
    assert 0 <= x0 < x1 <= size[0] and 0 <= y0 < y1 <= size[1]
    assert augment(np.zeros((size[1], size[0], 3), np.uint8), config, random_of(0, 0, 0)).shape == (16, 16, 3)


def test_half_of_the_pictures_are_mirrored() -> None:
    config = TransformConfig(crop=8, area=(1.0, 1.0), ratio=(1.0, 1.0), jitter=(0.0, 0.0, 0.0, 0.0))
    ramp = np.broadcast_to(np.arange(64, dtype=np.uint8)[None, :, None] * 3, (64, 64, 3)).copy()
    left_dark = [augment(ramp, config, random_of(0, 0, i))[:, 0].mean() < 50 for i in range(400)]
    assert 0.42 < np.mean(left_dark) < 0.58


def test_without_randomness_the_crop_is_the_picture_resized() -> None:
    config = TransformConfig(crop=40, area=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, jitter=(0.0, 0.0, 0.0, 0.0))
    square = PHOTO[:, :90]
    resized = np.asarray(Image.fromarray(square).resize((40, 40), Image.Resampling.BILINEAR))
    assert np.array_equal(augment(square, config, random_of(0, 0, 0)), resized)


def test_jitter_touches_the_share_asked_for() -> None:
    config = TransformConfig(crop=8, area=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, jitter_share=0.8)
    still = dataclasses.replace(config, jitter=(0.0, 0.0, 0.0, 0.0))
    square = PHOTO[:, :90]
    plain_pixels = augment(square, still, random_of(0, 0, 0))
    changed = [not np.array_equal(augment(square, config, random_of(0, 0, i)), plain_pixels) for i in range(300)]
    assert 0.73 < np.mean(changed) < 0.87


def test_hue_turns_by_the_circle_and_keeps_value() -> None:
    red = Image.new("RGB", (2, 2), (200, 20, 20))
    turned = np.asarray(turn_hue(red, 1 / 3))[0, 0] / 255
    hue, _, value = colorsys.rgb_to_hsv(*turned)
    assert hue == pytest.approx(1 / 3, abs=0.01) and value == pytest.approx(200 / 255, abs=0.01)
    assert np.array_equal(np.asarray(turn_hue(red, 0.0)), np.asarray(red.convert("HSV").convert("RGB")))


def test_validation_takes_the_centre() -> None:
    photo = np.zeros((80, 120, 3), np.uint8)
    photo[20:60, 40:80] = 255
    middle = plain(photo, TransformConfig(crop=40, margin=2.0))
    assert middle.shape == (40, 40, 3) and middle.min() == 255
    whole = plain(photo, TransformConfig(kind="whole", crop=60))
    assert whole.shape == (40, 60, 3)


def test_whole_never_enlarges() -> None:
    assert plain(PHOTO, TransformConfig(kind="whole", crop=1000)).shape == PHOTO.shape


@pytest.mark.parametrize(
    "wrong", [{"crop": 0}, {"area": (0.0, 1.0)}, {"ratio": (2.0, 1.0)}, {"jitter": (0.1, 0.1, 0.1, 0.9)}]
)
def test_impossible_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"transform\."):
        TransformConfig(**wrong)  # type: ignore[arg-type]
