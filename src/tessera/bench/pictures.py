"""Pictures to measure on: made here, so that a benchmark needs no data, with the entropy that photographs have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

SMALL = (384, 288)  # width, height
LARGE = (4000, 3000)  # 12 megapixels
_QUALITY = 88  # gives about 3.5 MB for 12 megapixels of this grain, as a phone's camera does


def make_pictures(folder: Path, count: int, size: tuple[int, int], *, seed: int = 0) -> list[Path]:
    """Write `count` JPEGs, each another picture. Soft shapes and grain: a flat picture would decode too fast."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    width, height = size
    grain = generator.integers(-12, 13, (height, width, 1), dtype=np.int16)
    paths = []
    for i in range(count):
        coarse = generator.integers(0, 256, (max(2, height // 48), max(2, width // 48), 3), dtype=np.uint8)
        soft = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), dtype=np.int16)
        pixels = np.clip(soft + np.roll(grain, i + 1, axis=1), 0, 255).astype(np.uint8)
        path = folder / f"{i:06d}.jpg"
        Image.fromarray(pixels).save(path, "JPEG", quality=_QUALITY)
        paths.append(path)
    return paths
