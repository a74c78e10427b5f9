"""What finds by parts: two kinds of local features, each with its codebook and projection, packaged together.

Hessian-affine regions follow a thing through zoom and slant; XFeat's corners, found by a network, follow it through
light and season. Each kind has words of its own, so that only features of one kind are ever compared. A feature's code
holds the signs of its residual to its word, projected to 64 dimensions that are turned so that each sign says as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.config import fingerprint
from tessera.data.images import Pixels
from tessera.errors import ModelError
from tessera.local.compact import CODE_BITS, Codes, CompactFeatures, pack_bits, unpack_bits
from tessera.local.features import LocalFeatures, Vectors
from tessera.local.hessian import HessianAffineExtractor
from tessera.local.lighterglue import Corners
from tessera.local.system import System, system_file
from tessera.local.turning import DIRECTIONS, Direction, degrees_of, keep_inside, turn_picture, turn_sift
from tessera.storage import hash_file

PACKAGED = ("parts", "parts-xfeat")  # the first has the calibration, too
PROJECTION_NAME, GROUPS_NAME = "projection.npy", "groups.npy"
QUERY_ASSIGNMENT = 8  # words of a query feature that its matches may lie in
ASMK_ASSIGNMENT = 5  # and of these, those that the ranking uses
_NPROBE, _STORED_NPROBE = 24, 12  # of the 128 groups of centroids: 99.7 and 97.5 % of regions get their nearest word
# Of 64 signs, for a match; chosen on val. Corners have no scale that chance would have to get right: they need more.
_MATCH_DISTANCES = {"xfeat": 15}
_MATCH_DISTANCE = 22
_CORNERS = "xfeat"
_RESIDUAL = 0.058  # the mean size of a number of a corner's projected residual, of which only the sign is kept


@dataclass(frozen=True)
class PartsFeatures(LocalFeatures):
    """The features of a picture, of each kind, and the picture; as one set they have no descriptors in common."""

    kinds: tuple[LocalFeatures, ...] = ()
    image: Pixels | None = None

    @classmethod
    def of(cls, kinds: Sequence[LocalFeatures], image: Pixels | None = None) -> PartsFeatures:
        positions, scales, strengths = (
            np.concatenate([getattr(features, name) for features in kinds])
            for name in ("positions", "scales", "strengths")
        )
        nothing = np.zeros((len(positions), 0), np.float32)
        return cls(nothing, positions, scales, strengths, None, kinds[0].image_size, tuple(kinds), image)

    def with_regions(self, regions: LocalFeatures) -> PartsFeatures:
        """These regions alone, without corners."""
        return PartsFeatures.of([regions, *(kind.strongest(0) for kind in self.kinds[1:])])


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


class Vocabulary:
    """One kind of local features, its words, and what makes signs of their residuals."""

    def __init__(self, system: System, first_word: int) -> None:
        self.system, self.first_word = system, first_word
        self.num_words = system.codebook.size
        self.end_word = first_word + self.num_words
        self.match_distance = _MATCH_DISTANCES.get(system.extractor.name, _MATCH_DISTANCE)
        self._centroids = system.codebook.centroids
        self._projection = _load(system.folder / PROJECTION_NAME, (system.codebook.dim, CODE_BITS))
        self._projected = self._centroids @ self._projection  # K 64

    @property
    def fingerprint(self) -> str:
        files = [self.system.folder / name for name in (PROJECTION_NAME, GROUPS_NAME)]
        return fingerprint(self.system.fingerprint, [hash_file(file) for file in files])

    def encode(self, descriptors: Vectors, nearest: int, nprobe: int) -> tuple[npt.NDArray[np.int64], Codes]:
        """The nearest words, N M, in the numbering of the whole model, and the signs within each."""
        words = self._assign(descriptors, nearest, nprobe)
        residuals = (descriptors @ self._projection)[:, None] - self._projected[words]
        codes = pack_bits((residuals > 0).reshape(-1, CODE_BITS)).reshape(words.shape)
        return np.where(words >= 0, words + self.first_word, -1), codes

    def decode(self, words: npt.NDArray[np.integer[Any]], codes: Codes) -> Vectors:
        """About the descriptors that were encoded, N D: corners keep a cosine of 0.94 with their own."""
        signs = unpack_bits(codes).astype(np.float32) * 2 - 1
        found = self._centroids[words.astype(np.int64) - self.first_word] + signs @ (_RESIDUAL * self._projection.T)
        return np.asarray(found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9), np.float32)

    def _assign(self, descriptors: Vectors, nearest: int, nprobe: int) -> npt.NDArray[np.int64]:
        """The nearest words, looked for in the nearest groups of centroids; -1 where those have fewer."""
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


class PartsModel:
    """Opened once a process; extracting may run in several threads. It is an extractor of local features itself."""

    name, dim = "parts", 0

    def __init__(self, systems: Sequence[System]) -> None:
        import cv2

        cv2.setNumThreads(1)  # there is a caller a core, and OpenCV's threads do not survive a fork
        firsts = np.cumsum([0, *(system.codebook.size for system in systems)]).tolist()
        self.vocabularies = [Vocabulary(system, first) for system, first in zip(systems, firsts[:-1], strict=True)]
        self.num_words: int = firsts[-1]
        self.folder, self.size = systems[0].folder, systems[0].config.size
        self.match_distances = np.repeat(
            [vocabulary.match_distance for vocabulary in self.vocabularies],
            [vocabulary.num_words for vocabulary in self.vocabularies],
        )  # of each word

    @classmethod
    def open(cls, names: Sequence[str] = PACKAGED) -> PartsModel:
        systems = []
        for name in names:
            file = system_file(name)
            if file is None:
                raise ModelError(f"'{name}' is not a system of local features: give its folder.")
            systems.append(System.open(file))
        return cls(systems)

    @cached_property
    def fingerprint(self) -> str:
        return fingerprint([vocabulary.fingerprint for vocabulary in self.vocabularies])

    @property
    def most_features(self) -> int:
        """Of one image."""
        return sum(vocabulary.system.config.count for vocabulary in self.vocabularies)

    def extract(self, image: Pixels, threads: int = 1) -> PartsFeatures:
        """threads: more than one where nobody else waits for the cores, as for a query."""
        with ThreadPoolExecutor(threads) as pool:
            kinds = list(pool.map(lambda one: one.system.extractor.extract(image), self.vocabularies))
        return PartsFeatures.of(kinds, image)

    def empty(self) -> PartsFeatures:
        """The features of a picture that cannot be seen."""
        return PartsFeatures.of([LocalFeatures.empty(one.system.codebook.dim) for one in self.vocabularies])

    def encode(self, features: PartsFeatures) -> CompactFeatures:
        """What a gallery stores of an image."""
        words, codes = self._encode(features, 1, _STORED_NPROBE)
        return CompactFeatures(
            words[:, 0].astype(np.uint16), codes[:, 0], features.positions, features.scales, features.image_size
        )

    def encode_query(self, features: PartsFeatures, assignment: int = QUERY_ASSIGNMENT) -> QueryFeatures:
        """What a search compares with it: each feature in its several nearest words."""
        words, codes = self._encode(features, assignment, _NPROBE)
        return QueryFeatures(words, codes, features.positions, features.scales, features.image_size)

    def _encode(self, features: PartsFeatures, nearest: int, nprobe: int) -> tuple[npt.NDArray[np.int64], Codes]:
        encoded = [
            vocabulary.encode(kind.descriptors, nearest, nprobe)
            for vocabulary, kind in zip(self.vocabularies, features.kinds, strict=True)
        ]
        return np.concatenate([words for words, _ in encoded]), np.concatenate([codes for _, codes in encoded])

    @cached_property
    def _corners(self) -> tuple[int, Vocabulary] | None:
        """Which kind of the features are corners, that can be matched by attention."""
        for number, vocabulary in enumerate(self.vocabularies):
            if vocabulary.system.extractor.name == _CORNERS:
                return number, vocabulary
        return None

    def query_corners(self, features: PartsFeatures) -> Corners:
        """What attention needs to know of a query; nothing where the model has no corners."""
        if self._corners is None:
            return Corners.none()
        number, _ = self._corners
        kind, before = features.kinds[number], sum(map(len, features.kinds[:number]))
        return Corners.of(np.arange(before, before + len(kind)), kind.descriptors, kind.positions, kind.image_size)

    def stored_corners(self, features: CompactFeatures) -> Corners:
        """The same of an image: its corners' descriptors are about what they were."""
        if self._corners is None:
            return Corners.none()
        _, vocabulary = self._corners
        rows = np.flatnonzero((features.words >= vocabulary.first_word) & (features.words < vocabulary.end_word))
        descriptors = vocabulary.decode(features.words[rows], features.codes[rows])
        return Corners.of(rows, descriptors, features.positions[rows], features.image_size)

    def turn_regions(
        self, features: PartsFeatures, directions: Sequence[Direction] = DIRECTIONS, count: int | None = None
    ) -> Iterator[tuple[int, PartsFeatures]]:
        """The regions of the picture turned in several directions, with the degrees. Corners are left out.

        They are the same regions in the same order, the `count` strongest, described anew where they are slanted.
        """
        upright = features.kinds[0] if count is None else features.kinds[0].strongest(count)
        described = {0: upright}
        for slant, quarters in directions:
            if slant not in described:
                slants = sorted({slant for slant, _ in directions} - {0})
                with ThreadPoolExecutor(len(slants)) as pool:
                    described |= zip(slants, pool.map(partial(self._slant, features, upright), slants), strict=True)
            yield degrees_of(slant, quarters), features.with_regions(turn_sift(described[slant], quarters))

    def _slant(self, features: PartsFeatures, regions: LocalFeatures, degrees: int) -> LocalFeatures:
        extractor = self.vocabularies[0].system.extractor
        assert features.image is not None and isinstance(extractor, HessianAffineExtractor)
        return extractor.describe_turned(features.image, regions, degrees)

    def turn(self, features: PartsFeatures, degrees: int) -> PartsFeatures:
        """The features of the picture turned, counter-clockwise."""
        assert features.image is not None
        if not degrees:
            return features
        turned = self.extract(turn_picture(features.image, degrees))
        height, width = features.image.shape[:2]
        kinds = [keep_inside(kind, (width, height), degrees) for kind in turned.kinds]
        return PartsFeatures.of(kinds, turned.image)


def _load(path: Path, shape: tuple[int | None, int]) -> Vectors:
    try:
        loaded = np.asarray(np.load(path, allow_pickle=False), np.float32)
    except (OSError, EOFError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}. Install the package again.") from error
    if loaded.ndim != 2 or loaded.shape[1] != shape[1] or shape[0] not in (None, len(loaded)):
        raise ModelError(f"{path} has the shape {loaded.shape} and does not fit its codebook. Install it again.")
    return loaded
