"""ASMK's aggregation: one vector, or one row of bits, for each visual word of an image (Tolias et al., 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.local.codebook import Codebook, Vectors, Words

Bits = npt.NDArray[np.uint64]
Values = npt.NDArray[Any]  # Vectors of unit length, or Bits
_EPS = 1e-6


@dataclass(frozen=True)
class Aggregate:
    """The words of several images, ordered by image and then by word, each with what its features sum to."""

    image_ids: npt.NDArray[np.int64]  # E, ascending
    words: Words  # E
    values: Values  # E D of unit length, or E ceil(D / 64) rows of bits

    def __len__(self) -> int:
        return len(self.words)

    @property
    def num_bytes(self) -> int:
        return self.words.nbytes + self.values.nbytes


def aggregate(
    codebook: Codebook, features: Vectors, image_ids: npt.NDArray[np.int64], *, nearest: int, binary: bool
) -> Aggregate:
    """Sum the residuals of each image's features word by word, then keep their direction (or its signs).

    A feature that is assigned to several words enters each of them, unweighted.

    features: N D; image_ids: N, any order.
    """
    words = codebook.assign(features, nearest)  # N M
    owners = np.repeat(image_ids.astype(np.int64), words.shape[1])
    rows = np.repeat(np.arange(len(features)), words.shape[1])
    flat = words.ravel()
    order = np.lexsort((flat, owners))
    owners, rows, flat = owners[order], rows[order], flat[order]
    if not len(flat):
        return Aggregate(owners, flat, _finish(np.zeros((0, codebook.dim), np.float32), binary))
    first = np.flatnonzero(np.r_[True, (owners[1:] != owners[:-1]) | (flat[1:] != flat[:-1])])
    residuals = np.asarray(features, dtype=np.float32)[rows] - codebook.centroids[flat]
    sums = np.add.reduceat(residuals, first, axis=0)
    return Aggregate(owners[first], flat[first], _finish(sums, binary))


def _finish(sums: Vectors, binary: bool) -> Values:
    if binary:
        return pack_signs(sums)
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    return np.asarray(sums / (norms + _EPS), dtype=np.float32)


def pack_signs(values: npt.NDArray[np.floating]) -> Bits:
    """One bit a dimension, set where the value is above zero, filled with zeros to a multiple of 64: N ceil(D/64)."""
    bits = np.packbits(values > 0, axis=1)
    padding = -bits.shape[1] % 8
    return np.ascontiguousarray(np.pad(bits, ((0, 0), (0, padding)))).view(np.uint64)


def padded_length(dim: int) -> int:
    """The length that similarities of signs are normalised by: the published kernel packs 32 at a time."""
    return -(-dim // 32) * 32
