from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera.errors import UsageError
from tessera.extract.scales import parse_scales, rescale, scaled_size

GOLDEN = {
    "sqrt2": math.sqrt(2),
    "isqrt2": 1 / math.sqrt(2),
    "0.353": 0.353,
    "1.414": 1.414,
    "2": 2,
    "0.5": 0.5,
    "0.25": 0.25,
}


@pytest.mark.parametrize("name", GOLDEN)
def test_rescale_equals_torch_as_the_field_calls_it(name: str, golden_dir: Path) -> None:
    golden = np.load(golden_dir / "extract" / "interpolate.npz")
    np.testing.assert_allclose(rescale(golden["x"], GOLDEN[name]), golden[f"given_{name}"], rtol=0, atol=5e-7)


def test_rescale_is_not_the_recomputed_one(golden_dir: Path) -> None:
    golden = np.load(golden_dir / "extract" / "interpolate.npz")
    difference = np.abs(rescale(golden["x"], math.sqrt(2)) - golden["recomputed_sqrt2"]).max()
    assert difference > 1e-3


@settings(max_examples=30)
@given(height=st.integers(3, 90), width=st.integers(3, 90), scale=st.floats(0.4, 2.5), seed=st.integers(0, 9))
def test_rescale_equals_torch_at_any_size(height: int, width: int, scale: float, seed: int) -> None:
    torch = pytest.importorskip("torch")
    images = np.random.default_rng(seed).standard_normal((2, 3, height, width)).astype(np.float32)
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(images), scale_factor=scale, mode="bilinear", align_corners=False
    )
    # Positions are rounded to float32, so that a step of one ulp at 225 moves a value by 3e-5 of its contrast.
    np.testing.assert_allclose(rescale(images, scale), expected.numpy(), rtol=0, atol=1e-4)


def test_a_side_whose_length_stays_is_copied() -> None:
    images = np.arange(9, dtype=np.float32).reshape(1, 1, 3, 3)
    np.testing.assert_array_equal(rescale(images, 1.25), images)


def test_rescale_leaves_its_input_alone_and_scale_one_untouched() -> None:
    images = np.random.default_rng(0).standard_normal((1, 3, 9, 7)).astype(np.float32)
    before = images.copy()
    rescale(images, 1.3)
    np.testing.assert_array_equal(images, before)
    assert rescale(images, 1.0) is images


def test_sizes_are_floored_and_never_zero() -> None:
    assert scaled_size(193, 256, math.sqrt(2)) == (272, 362)
    assert scaled_size(1, 3, 0.5) == (1, 1)
    assert rescale(np.ones((1, 3, 1, 3), np.float32), 0.5).shape == (1, 3, 1, 1)


def test_scale_words_are_exact() -> None:
    assert parse_scales("1/sqrt2,1,sqrt2") == (1 / math.sqrt(2), 1.0, math.sqrt(2))
    assert parse_scales(" 1/sqrt(2) , 0.5,1/2, 2/3,sqrt(3)/2,1e-1") == (
        1 / math.sqrt(2), 0.5, 0.5, 2 / 3, math.sqrt(3) / 2, 0.1,
    )  # fmt: skip


@pytest.mark.parametrize("text", ["", "a", "1,,2", "0", "-1", "1/0", "1/2/3", "17", "inf", "nan", "sqrt", "__import__"])
def test_words_that_are_no_scale_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_scales(text)
