"""ASMK's aggregation: one vector, or one row of bits, for each visual word of an image (Tolias et al., 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import IndexingError
from tessera.local.codebook import Codebook
from tessera.local.features import Vectors, Words

Bits = npt.NDArray[np.uint64]
Values = npt.NDArray[Any]  # Vectors of unit length, or Bits
_EPS = 1e-6
_BLOCK = 2048  # residuals summed at once


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
    codebook: Codebook,
    features: Vectors,
    image_ids: npt.NDArray[np.int64],
    *,
    nearest: int,
    binary: bool,
    nprobe: int = 0,
) -> Aggregate:
    """Sum the residuals of each image's features word by word, then keep their direction (or its signs).

    A feature that is assigned to several words enters each of them, unweighted.

    features: N D; image_ids: N, any order. nprobe: of the assignment, see `Codebook.assign`.
    """
    words = codebook.assign(features, nearest, nprobe=nprobe)
    return aggregate_words(codebook, features, words, image_ids, binary=binary)


def aggregate_words(
    codebook: Codebook, features: Vectors, words: Words, image_ids: npt.NDArray[np.int64], *, binary: bool
) -> Aggregate:
    """The same for features whose words, N M, are known already."""
    if len(image_ids) != len(features):
        raise IndexingError(f"each local feature belongs to one image: {len(features)} features, {len(image_ids)} ids.")
    assignments = words.shape[1]
    flat = words.ravel()
    images, owners = np.unique(image_ids, return_inverse=True)  # an id may be any number, a hash too
    # One key sorts by image and then by word; features of a word keep their order, which decides the sum's rounding.
    keys = np.repeat(owners, assignments) * codebook.size + flat
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1)) if len(keys) else np.zeros(0, np.int64)
    ends = np.append(first[1:], len(keys))
    parts = []
    begin = 0
    while begin < len(first):
        # A few thousand residuals at a time stay in the cache; a whole gallery's would go through memory four times.
        end = max(begin + 1, int(np.searchsorted(ends, first[begin] + _BLOCK, side="right")))
        rows = order[first[begin] : ends[end - 1]]
        residuals = np.asarray(features[rows // assignments], dtype=np.float32)
        residuals -= codebook.centroids[flat[rows]]
        parts.append(normalise_sums(_sum_runs(residuals, first[begin:end] - first[begin]), binary))
        begin = end
    values = np.concatenate(parts) if parts else normalise_sums(np.zeros((0, codebook.dim), np.float32), binary)
    image_of, word_of = np.divmod(keys[first], codebook.size)
    return Aggregate(images[image_of].astype(np.int64), word_of.astype(np.int32), values)


def _sum_runs(rows: Vectors, starts: npt.NDArray[np.int64]) -> Vectors:
    """The sum of each run of rows; most runs are a single row, which `reduceat` would take ten times as long for."""
    lengths = np.diff(starts, append=len(rows))
    sums = rows[starts]
    longer = np.flatnonzero(lengths > 1)
    if len(longer):
        within = np.repeat(lengths > 1, lengths)
        ends = np.cumsum(lengths[longer])
        sums[longer] = np.add.reduceat(rows[within], ends - lengths[longer], axis=0)
    return sums


def normalise_sums(sums: npt.NDArray[np.floating], binary: bool) -> Values:
    """The direction of each word's sum, or its signs."""
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
