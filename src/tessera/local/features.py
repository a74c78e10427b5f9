"""A set of local features, and what gives one: the interface of every extractor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tessera.data.images import Pixels

Vectors = npt.NDArray[np.float32]
Words = npt.NDArray[np.int32]  # numbers of centroids: the visual words of features
_BLANK_LEVELS = 2  # of 255


@dataclass(frozen=True)
class LocalFeatures:
    """The local features of one image, strongest first. Positions are in pixels of the image that was given."""

    descriptors: npt.NDArray[Any]  # N D, float32; or N B uint8, packed signs, where they were binarised
    positions: Vectors  # N 2: x, y
    scales: Vectors  # N: radius in pixels
    strengths: Vectors  # N
    shapes: Vectors | None = None  # N 2 2: the affine frame's linear part, for affine-covariant detectors
    image_size: tuple[int, int] = (0, 0)  # width, height

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def is_binary(self) -> bool:
        return bool(self.descriptors.dtype == np.uint8)

    @property
    def num_bytes(self) -> int:
        shapes = 0 if self.shapes is None else self.shapes.nbytes
        return self.descriptors.nbytes + self.positions.nbytes + self.scales.nbytes + self.strengths.nbytes + shapes

    def strongest(self, count: int) -> LocalFeatures:
        """The `count` strongest; equal strengths keep their order."""
        return self.take(np.argsort(-self.strengths, kind="stable")[:count])

    def take(self, rows: npt.NDArray[np.int64]) -> LocalFeatures:
        """Some of them, by their numbers."""
        return LocalFeatures(
            self.descriptors[rows],
            self.positions[rows],
            self.scales[rows],
            self.strengths[rows],
            None if self.shapes is None else self.shapes[rows],
            self.image_size,
        )

    def binarised(self) -> LocalFeatures:
        """Signs instead of numbers: D / 8 bytes a feature (the SP* of the paper's Table 2)."""
        if self.is_binary:
            return self
        bits = np.packbits(self.descriptors > 0, axis=1)
        return LocalFeatures(bits, self.positions, self.scales, self.strengths, self.shapes, self.image_size)

    @classmethod
    def empty(cls, dim: int, image_size: tuple[int, int] = (0, 0)) -> LocalFeatures:
        zeros = np.zeros(0, np.float32)
        return cls(np.zeros((0, dim), np.float32), np.zeros((0, 2), np.float32), zeros, zeros, None, image_size)


def is_blank(image: Pixels) -> bool:
    """Nothing to see: one colour but for the level or two that JPEG leaves. Networks would describe their padding."""
    # One axis after the other: both at once is many times as slow.
    spread = image.max(axis=0).max(axis=0).astype(int) - image.min(axis=0).min(axis=0)
    return bool(spread.max() <= _BLANK_LEVELS)


class LocalExtractor(Protocol):
    """Gives the local features of an image, H W 3 uint8."""

    name: str
    dim: int

    @property
    def fingerprint(self) -> str: ...

    def extract(self, image: Pixels) -> LocalFeatures: ...
