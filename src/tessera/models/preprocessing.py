"""How a picture becomes a network's input. Loads no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tessera.errors import UsageError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
DEFAULT_SCALES = (1 / math.sqrt(2), 1.0, math.sqrt(2))


@dataclass(frozen=True)
class Preprocessing:
    """Longer side at most `size`, values in 0..1 minus mean over std, described at each of `scales`."""

    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    size: int = 1024
    scales: tuple[float, ...] = DEFAULT_SCALES

    @cached_property
    def _normalised(self) -> npt.NDArray[np.float32]:
        """The network's input for each of the 256 values of each channel, 256 3, rounded from double precision."""
        values = np.arange(256, dtype=np.float64)[:, None] / 255
        table: npt.NDArray[np.float64] = (values - np.asarray(self.mean)) / np.asarray(self.std)
        return table.astype(np.float32)

    def normalise(self, images: Sequence[npt.NDArray[np.uint8]]) -> npt.NDArray[np.float32]:
        """Images of equal shape, H W 3 uint8, as the network's input B 3 H W."""
        height, width = images[0].shape[:2]
        batch = np.empty((len(images), 3, height, width), dtype=np.float32)
        for b, image in enumerate(images):
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                raise UsageError(f"an image must be H x W x 3 of uint8, not {image.shape} of {image.dtype}.")
            for c in range(3):
                np.take(self._normalised[:, c], image[:, :, c], out=batch[b, c])
        return batch
