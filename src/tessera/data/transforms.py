"""What a photo goes through before training: a random crop, a flip, colour jitter; and the plain crop for validation.

The field's augmentations (a crop of random area and ratio, brightness, contrast, saturation and hue in random order)
with Pillow alone. Everything random comes from the generator that is handed in, so the same seed, epoch and image give
the same pixels in any worker. Loads no torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageEnhance

from tessera.errors import ConfigError

Pixels = npt.NDArray[np.uint8]
PixelBox = tuple[float, float, float, float]

_CROP_ATTEMPTS = 10


@dataclass(frozen=True)
class TransformConfig:
    """kind `crop`: crop x crop pixels from a random region; `whole`: the picture, longer side at most `crop`.

    area: share of the picture that the region covers. ratio: its width over height. jitter: brightness, contrast,
    saturation and hue, applied to a share `jitter_share` of the pictures. margin: validation resizes the shorter side
    to crop * margin before the centre crop (8/7 in the released code).
    """

    kind: Literal["crop", "whole"] = "crop"
    crop: int = 512
    area: tuple[float, float] = (0.2, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.4, 0.4, 0.2, 0.1)
    jitter_share: float = 0.8
    margin: float = 8 / 7

    def __post_init__(self) -> None:
        if self.crop < 1:
            raise ConfigError(f"transform.crop must be positive, not {self.crop}.")
        if not 0 < self.area[0] <= self.area[1] <= 1:
            raise ConfigError(f"transform.area must be two shares in (0, 1], the smaller first, not {self.area}.")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ConfigError(f"transform.ratio must be two positive numbers, the smaller first, not {self.ratio}.")
        if min(self.jitter) < 0 or self.jitter[3] > 0.5:
            raise ConfigError(f"transform.jitter must not be negative, and hue at most 0.5, not {self.jitter}.")


def random_of(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The generator of one image in one epoch: the same whichever worker asks, and whenever."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence((seed, epoch, index))))


def augment(photo: Pixels, config: TransformConfig, random: np.random.Generator) -> Pixels:
    """photo: H W 3. Returns crop crop 3, or H W 3 with the longer side at most `crop` for `whole`."""
    image = Image.fromarray(photo)
    if config.kind == "whole":
        image = _shrink(image, config.crop)
    else:
        box = random_region(image.width, image.height, config, random)
        image = image.resize((config.crop, config.crop), Image.Resampling.BILINEAR, box=box)
    if random.random() < config.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if any(config.jitter) and random.random() < config.jitter_share:
        image = jitter_colours(image, config.jitter, random)
    return np.asarray(image)


def plain(photo: Pixels, config: TransformConfig) -> Pixels:
    """The picture as validation sees it: the centre crop, or the whole of it."""
    image = Image.fromarray(photo)
    if config.kind == "whole":
        return np.asarray(_shrink(image, config.crop))
    side = min(image.size) / config.margin
    left, top = (image.width - side) / 2, (image.height - side) / 2
    box = (left, top, left + side, top + side)
    return np.asarray(image.resize((config.crop, config.crop), Image.Resampling.BICUBIC, box=box))


def random_region(width: int, height: int, config: TransformConfig, random: np.random.Generator) -> PixelBox:
    """A region of random area and ratio inside the picture; the largest allowed centre region if none fits."""
    low, high = math.log(config.ratio[0]), math.log(config.ratio[1])
    for _ in range(_CROP_ATTEMPTS):
        area = width * height * random.uniform(*config.area)
        ratio = math.exp(random.uniform(low, high))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(random.integers(0, width - w + 1)), int(random.integers(0, height - h + 1))
            return (left, top, left + w, top + h)
    w, h = width, height
    if width / height < config.ratio[0]:
        h = max(1, round(width / config.ratio[0]))
    elif width / height > config.ratio[1]:
        w = max(1, round(height * config.ratio[1]))
    left, top = (width - w) // 2, (height - h) // 2
    return (left, top, left + w, top + h)


def jitter_colours(
    image: Image.Image, strengths: tuple[float, float, float, float], random: np.random.Generator
) -> Image.Image:
    """Brightness, contrast, saturation and hue by random factors, in random order."""
    factors = [random.uniform(max(0.0, 1 - s), 1 + s) for s in strengths[:3]]
    turn = random.uniform(-strengths[3], strengths[3])
    for which in random.permutation(4):
        if which == 3:
            image = turn_hue(image, turn) if strengths[3] else image
        elif strengths[which]:
            enhance = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[which]
            image = enhance(image).enhance(factors[which])
    return image


def turn_hue(image: Image.Image, turn: float) -> Image.Image:
    """Turn every hue by `turn` of the circle; saturation and value stay."""
    hue, saturation, value = image.convert("HSV").split()
    table = [(level + round(turn * 255)) % 256 for level in range(256)]
    return Image.merge("HSV", (hue.point(table), saturation, value)).convert("RGB")


def _shrink(image: Image.Image, side: int) -> Image.Image:
    if max(image.size) <= side:
        return image
    scale = side / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    return image.resize(size, Image.Resampling.BICUBIC, reducing_gap=2.0)
