"""What finds by parts: an extractor, a codebook and a projection, packaged together, that make compact features.

A feature's code holds the signs of its residual to its word, projected from 128 to 64 dimensions (the principal ones,
turned so that each sign says as much): half the bytes of ASMK*'s signs for nearly the same ranking.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.config import fingerprint
from tessera.data.images import Pixels
from tessera.errors import ModelError
from tessera.local.compact import CODE_BITS, Codes, CompactFeatures, pack_bits
from tessera.local.features import LocalFeatures, Vectors
from tessera.local.system import System, system_file
from tessera.storage import hash_file

PACKAGED = "parts"
PROJECTION_NAME, GROUPS_NAME = "projection.npy", "groups.npy"
QUERY_ASSIGNMENT = 8  # words of a query feature that its matches may lie in
ASMK_ASSIGNMENT = 5  # and of these, those that the ranking uses
_NPROBE, _STORED_NPROBE = 24, 12  # of the 128 groups of centroids: 99.7 and 97.5 % get their nearest word
TURNS = (0, 1, 2, 3)  # quarter turns, counter-clockwise


@dataclass(frozen=True)
class QueryFeatures:
    """A query's features, each in its several nearest words. codes: N M, one for each of its words."""

    words: npt.NDArray[np.int64]  # N M
    codes: Codes  # N M
    positions: Vectors  # N 2
    scales: Vectors  # N
    image_size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.words)


class PartsModel:
    """Opened once a process; extracting may run in several threads."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.size = system.config.size
        self.num_words = system.codebook.size
        self._centroids = system.codebook.centroids
        self._projection = _load(system.folder / PROJECTION_NAME, (system.codebook.dim, CODE_BITS))
        self._projected = self._centroids @ self._projection  # K 64

    @classmethod
    def open(cls, name: str = PACKAGED) -> PartsModel:
        file = system_file(name)
        if file is None:
            raise ModelError(f"'{name}' is not a system of local features: give its folder, or '{PACKAGED}'.")
        return cls(System.open(file))

    @cached_property
    def fingerprint(self) -> str:
        files = [self.system.folder / name for name in (PROJECTION_NAME, GROUPS_NAME)]
        return fingerprint(self.system.fingerprint, [hash_file(file) for file in files])

    def extract(self, image: Pixels) -> LocalFeatures:
        return self.system.extractor.extract(image)

    def encode(self, features: LocalFeatures) -> CompactFeatures:
        """What a gallery stores of an image."""
        words = self._assign(features.descriptors, 1, _STORED_NPROBE)
        return CompactFeatures(
            words[:, 0].astype(np.uint16),
            self._codes(features.descriptors, words)[:, 0],
            features.positions,
            features.scales,
            features.image_size,
        )

    def encode_query(self, features: LocalFeatures) -> QueryFeatures:
        """What a search compares with it: each feature in its several nearest words."""
        words = self._assign(features.descriptors, QUERY_ASSIGNMENT, _NPROBE)
        codes = self._codes(features.descriptors, words)
        return QueryFeatures(words, codes, features.positions, features.scales, features.image_size)

    def _codes(self, descriptors: Vectors, words: npt.NDArray[np.int64]) -> Codes:
        projected = descriptors @ self._projection
        residuals = projected[:, None] - self._projected[words]
        return pack_bits((residuals > 0).reshape(-1, CODE_BITS)).reshape(words.shape)

    def _assign(self, descriptors: Vectors, nearest: int, nprobe: int) -> npt.NDArray[np.int64]:
        """The nearest words, N M, looked for in the nearest groups of centroids."""
        import faiss

        if not len(descriptors):
            return np.zeros((0, nearest), np.int64)
        probes: Any = faiss.SearchParametersIVF()
        probes.nprobe = nprobe
        asked = np.ascontiguousarray(descriptors, np.float32)
        return np.asarray(self._quantiser.search(asked, nearest, params=probes)[1])

    @cached_property
    def _quantiser(self) -> Any:
        import faiss

        groups = _load(self.system.folder / GROUPS_NAME, (None, self.system.codebook.dim))
        coarse = faiss.IndexFlatL2(groups.shape[1])
        coarse.add(groups)
        index = faiss.IndexIVFFlat(coarse, groups.shape[1], len(groups))
        # FAISS would find the nearest group of each centroid, too, in ten times the time.
        nearest = (np.square(groups).sum(axis=1) - 2 * (self._centroids @ groups.T)).argmin(axis=1)
        index.add_core(len(nearest), faiss.swig_ptr(self._centroids), None, faiss.swig_ptr(nearest))
        self._coarse = coarse  # FAISS keeps no reference of its own
        return index


def turn_features(features: LocalFeatures, turns: int) -> LocalFeatures:
    """The features that the picture would have if it were turned by quarter turns, counter-clockwise.

    An upright region's SIFT turns with it: its 4 x 4 cells change places and its 8 orientations move on. Regions that
    are far from round would get a slightly different frame, which is let pass.
    """
    positions, (width, height) = features.positions, features.image_size
    grid = features.descriptors.reshape(-1, 4, 4, 8)  # row, column, orientation
    for _ in range(turns % 4):
        positions = np.stack([positions[:, 1], width - 1 - positions[:, 0]], axis=1)
        width, height = height, width
        # OpenCV counts orientations counter-clockwise: a quarter turn is two of eight bins.
        grid = np.roll(np.rot90(grid, 1, axes=(1, 2)), 2, axis=3)
    descriptors = np.ascontiguousarray(grid).reshape(-1, 128)
    return LocalFeatures(descriptors, positions, features.scales, features.strengths, None, (int(width), int(height)))


def _load(path: Path, shape: tuple[int | None, int]) -> Vectors:
    try:
        loaded = np.asarray(np.load(path, allow_pickle=False), np.float32)
    except (OSError, EOFError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}. Install the package again.") from error
    if loaded.ndim != 2 or loaded.shape[1] != shape[1] or shape[0] not in (None, len(loaded)):
        raise ModelError(f"{path} has the shape {loaded.shape} and does not fit its codebook. Install it again.")
    return loaded
