"""Normalisation and the fingerprint of descriptors, which stand once: on the bundle."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.errors import UsageError
from tessera.models.bundle import Bundle
from tessera.models.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing


def test_pixels_are_normalised_channel_by_channel() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), dtype=np.uint8)
    expected = (images / 255 - np.array(IMAGENET_MEAN)) / np.array(IMAGENET_STD)
    normalised = Preprocessing().normalise(list(images))
    assert normalised.dtype == np.float32
    assert np.array_equal(normalised, expected.transpose(0, 3, 1, 2).astype(np.float32))
    other = Preprocessing(mean=(0.0, 0.0, 0.0), std=(1 / 255, 1 / 255, 1 / 255)).normalise(list(images))
    assert np.allclose(other, images.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("image", [np.zeros((4, 4, 3), np.float32), np.zeros((4, 4), np.uint8)])
def test_what_is_no_picture_is_refused(image: np.ndarray) -> None:
    with pytest.raises(UsageError, match="H x W x 3"):
        Preprocessing().normalise([image])


def test_the_fingerprint_is_of_all_that_decides_a_descriptor() -> None:
    bundle = Bundle.open("lite")
    own = bundle.card.preprocessing
    assert bundle.fingerprint_at() == bundle.fingerprint_at(own.size, own.scales)
    assert bundle.fingerprint_at() == bundle.fingerprint_at(scales=list(own.scales))
    different = {bundle.fingerprint_at(), bundle.fingerprint_at(own.size + 1), bundle.fingerprint_at(scales=(1.0,))}
    assert len(different) == 3
