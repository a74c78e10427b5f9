"""Image scales, exactly as the field's code makes them, with no torch.

torch's `interpolate(scale_factor=s, bilinear, align_corners=False)` samples with the step 1/s rounded to float32, not
with in/out; the difference moves a descriptor by 3e-3. ONNX's Resize is off by up to 6e-5. So it is written here.
"""

from __future__ import annotations

import math
import re

import numpy as np
import numpy.typing as npt

from tessera.errors import UsageError

_NUMBER = r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+"
_CHUNK_VALUES = 1 << 15
_FACTOR = re.compile(rf"(?:(?P<root>sqrt)\(?)?(?P<number>{_NUMBER})\)?")


def parse_scales(text: str) -> tuple[float, ...]:
    """Read `1/sqrt2,1,sqrt2`: numbers, sqrt of numbers, and one such over another, in double precision."""
    words = [word.strip() for word in text.split(",")]
    scales = tuple(_parse_word(word, text) for word in words)
    if not all(math.isfinite(scale) and 0 < scale <= 16 for scale in scales):
        raise UsageError(f"scales must be above 0 and at most 16, not '{text}'.")
    return scales


def _parse_word(word: str, text: str) -> float:
    factors = []
    for part in word.split("/"):
        match = _FACTOR.fullmatch(part.strip())
        if match is None:
            raise UsageError(f"'{word}' in '{text}' is not a scale. Write scales such as: 1/sqrt2,1,sqrt2")
        number = float(match["number"])
        factors.append(math.sqrt(number) if match["root"] else number)
    if len(factors) > 2 or (len(factors) == 2 and factors[1] == 0):
        raise UsageError(f"'{word}' in '{text}' is not a scale. Write scales such as: 1/sqrt2,1,sqrt2")
    return factors[0] if len(factors) == 1 else factors[0] / factors[1]


def scaled_size(height: int, width: int, scale: float) -> tuple[int, int]:
    """The size of a scaled map: the floor, and at least one pixel, where torch would refuse."""
    return max(1, math.floor(height * scale)), max(1, math.floor(width * scale))


def rescale(images: npt.NDArray[np.float32], scale: float, *, recompute: bool = False) -> npt.NDArray[np.float32]:
    """Scale images by bilinear interpolation without antialiasing; equal to torch within float32 rounding.

    recompute: sample with the step in/out instead of 1/scale, torch's `recompute_scale_factor=True`, as HOW does.

    images: B C H W. Returns B C floor(H*scale) floor(W*scale). A scale of 1 returns the very same array.
    """
    if scale == 1:
        return images
    height, width = images.shape[-2:]
    out_height, out_width = scaled_size(height, width, scale)
    above, below, down = _taps(height, out_height, None if recompute else scale)
    left, right, across = _taps(width, out_width, None if recompute else scale)
    scaled = np.empty((*images.shape[:-2], out_height, out_width), dtype=np.float32)
    planes, targets = images.reshape(-1, height, width), scaled.reshape(-1, out_height, out_width)
    # A few rows at a time: what is between stays in the cache, and no page is touched that must be given back.
    step = max(1, _CHUNK_VALUES // max(width, out_width))
    for plane, target in zip(planes, targets, strict=True):
        for start in range(0, out_height, step):
            part = slice(start, start + step)
            rows = _blend(plane.take(above[part], axis=0), plane.take(below[part], axis=0), down[part, None])
            first = np.take(rows, left, axis=1, out=target[part], mode="clip")
            _blend(first, rows.take(right, axis=1), across)
    return scaled


def _taps(
    length: int, out_length: int, scale: float | None
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    """For each output position its two inputs and the weight of the second."""
    if out_length == length:  # torch copies a side whose length stays, whatever the step
        same = np.arange(length)
        return same, same, np.zeros(length, dtype=np.float32)
    step = np.float64(np.float32(length / out_length if scale is None else 1 / scale))
    position = (step * (np.arange(out_length) + 0.5) - 0.5).astype(np.float32)
    np.maximum(position, 0, out=position)
    first = np.minimum(position.astype(np.intp), length - 1)
    return first, np.minimum(first + 1, length - 1), position - first.astype(np.float32)


def _blend(
    first: npt.NDArray[np.float32], second: npt.NDArray[np.float32], weight: npt.NDArray[np.float32]
) -> npt.NDArray[np.float32]:
    """first + weight * (second - first), written into `first`; `second` is used up."""
    second -= first
    second *= weight
    first += second
    return first
