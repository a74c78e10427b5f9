"""Local features as a gallery keeps them: a visual word, 64 signs, a position and a scale, 14 bytes each."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tessera.errors import IndexingError

Codes = npt.NDArray[np.uint64]

CODE_BITS = 64
BYTES_A_FEATURE = 14
_HEADER = struct.Struct("<4sHHH")  # magic, width, height, number of features
_MAGIC = b"TLF1"
_POSITION_STEPS = 4  # a pixel
_SCALE_STEPS = 16  # an octave
_MOST = 4095  # 12 bits: positions of pictures up to 1023 pixels


@dataclass(frozen=True)
class CompactFeatures:
    """The binarised local features of one image. codes: the signs of the residual to the word's centroid, projected."""

    words: npt.NDArray[np.uint16]  # N
    codes: Codes  # N
    positions: npt.NDArray[np.float32]  # N 2: x, y in pixels of the picture that was described
    scales: npt.NDArray[np.float32]  # N
    image_size: tuple[int, int]  # width, height

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def empty(cls, image_size: tuple[int, int] = (0, 0)) -> CompactFeatures:
        zeros = np.zeros(0, np.float32)
        return cls(np.zeros(0, np.uint16), np.zeros(0, np.uint64), np.zeros((0, 2), np.float32), zeros, image_size)

    def to_bytes(self) -> bytes:
        """Positions are kept to a quarter of a pixel, scales to a sixteenth of an octave."""
        fixed = np.clip(np.rint(self.positions * _POSITION_STEPS), 0, _MOST).astype(np.uint32)
        places = fixed[:, 0] | fixed[:, 1] << 12
        octaves = np.log2(np.maximum(self.scales, 1e-3)) * _SCALE_STEPS
        header = _HEADER.pack(_MAGIC, *self.image_size, len(self))
        return b"".join(
            [
                header,
                self.codes.astype("<u8").tobytes(),
                self.words.astype("<u2").tobytes(),
                np.ascontiguousarray(places.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3]).tobytes(),
                np.clip(np.rint(octaves), 0, 255).astype(np.uint8).tobytes(),
            ]
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> CompactFeatures:
        if len(content) < _HEADER.size:
            raise IndexingError("stored local features are cut off. `tessera check --repair` makes them again.")
        magic, width, height, count = _HEADER.unpack_from(content)
        if magic != _MAGIC or len(content) != _HEADER.size + BYTES_A_FEATURE * count:
            raise IndexingError("stored local features are damaged. `tessera check --repair` makes them again.")
        codes = np.frombuffer(content, "<u8", count, _HEADER.size)
        words = np.frombuffer(content, "<u2", count, _HEADER.size + 8 * count)
        places = np.zeros((count, 4), np.uint8)
        places[:, :3] = np.frombuffer(content, np.uint8, 3 * count, _HEADER.size + 10 * count).reshape(-1, 3)
        fixed = places.view("<u4").ravel()
        octaves = np.frombuffer(content, np.uint8, count, _HEADER.size + 13 * count)
        positions = np.stack([fixed & _MOST, fixed >> 12], axis=1).astype(np.float32) / np.float32(_POSITION_STEPS)
        scales = np.exp2(octaves.astype(np.float32) / _SCALE_STEPS)
        return cls(words.astype(np.uint16), codes.astype(np.uint64), positions, scales, (width, height))

    def inside(self, polygon: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
        """Which features, N, lie inside a convex polygon, M 2, whichever way round it is given."""
        sides = np.roll(polygon, -1, axis=0) - polygon
        to_points = self.positions[:, None] - polygon[None]
        crosses = sides[None, :, 0] * to_points[..., 1] - sides[None, :, 1] * to_points[..., 0]
        return np.asarray((crosses >= 0).all(axis=1) | (crosses <= 0).all(axis=1))


def aggregate_codes(words: npt.NDArray[np.int64], codes: Codes) -> tuple[npt.NDArray[np.int64], Codes]:
    """The distinct words of an image and one code each: ASMK's aggregation on signs.

    Features of one word vote bit by bit; the first, which is the strongest, decides where they are even.
    """
    order = np.argsort(words, kind="stable")
    words, codes = words[order], codes[order]
    starts = np.flatnonzero(np.diff(words, prepend=-1))
    lengths = np.diff(starts, append=len(words))
    voted = codes[starts].copy()
    shared = np.flatnonzero(lengths > 1)
    if len(shared):
        signs = unpack_bits(codes[np.repeat(lengths > 1, lengths)]).astype(np.int16) * 4 - 2
        firsts = np.cumsum(lengths[shared]) - lengths[shared]
        signs[firsts] += np.sign(signs[firsts])
        voted[shared] = pack_bits(np.add.reduceat(signs, firsts, axis=0) > 0)
    return words[starts], voted


def concatenate(several: Sequence[CompactFeatures]) -> tuple[CompactFeatures, npt.NDArray[np.int64]]:
    """The features of several images in one, and whose each is, by its place in `several`."""
    owners = np.repeat(np.arange(len(several)), [len(features) for features in several])
    if not several:
        return CompactFeatures.empty(), owners
    return (
        CompactFeatures(
            np.concatenate([features.words for features in several]),
            np.concatenate([features.codes for features in several]),
            np.concatenate([features.positions for features in several]),
            np.concatenate([features.scales for features in several]),
            (0, 0),
        ),
        owners,
    )


def pack_bits(bits: npt.NDArray[np.bool_]) -> Codes:
    """One number for each row of 64 bits, N."""
    return np.ascontiguousarray(np.packbits(bits, axis=1)).view(np.uint64).ravel()


def unpack_bits(codes: Codes) -> npt.NDArray[np.uint8]:
    """The bits of each code, N 64."""
    return np.unpackbits(np.ascontiguousarray(codes).view(np.uint8).reshape(-1, 8), axis=1)
