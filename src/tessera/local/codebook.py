"""Visual words: k-means on local features, and the assignment of features to their nearest centroids."""

from __future__ import annotations

import io
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import IndexingError
from tessera.local.features import Vectors, Words
from tessera.local.int8_assignment import Int8Assignment, has_fast_int8
from tessera.storage import atomic_path

ITERATIONS = 10
_BLOCK = 65536  # features assigned at once: limits memory, changes no result
NUM_LISTS = 256  # inverted lists of centroids, for an assignment with an nprobe
_NUM_RESCORED = 32  # centroids whose distance such an assignment computes exactly
_INT8_MIN_WORDS = 8192  # from so many centroids on, and so many features assigned, it saves more time than it takes
INT8_MIN_FEATURES = 20_000


class Codebook:
    """K centroids of dimension D, K D. Nearest is by Euclidean distance, found exactly unless an nprobe is given."""

    def __init__(self, centroids: npt.NDArray[np.floating]) -> None:
        if centroids.ndim != 2 or not len(centroids):
            raise IndexingError(f"A codebook is a matrix of centroids, not an array of shape {centroids.shape}.")
        self.centroids: Vectors = np.ascontiguousarray(centroids, dtype=np.float32)
        if not np.isfinite(self.centroids).all():
            raise IndexingError("a codebook has centroids with numbers that are not finite. Train it again.")
        self._num_assigned = 0
        self._int8: Int8Assignment | None = None

    @property
    def size(self) -> int:
        return len(self.centroids)

    @property
    def dim(self) -> int:
        return int(self.centroids.shape[1])

    @classmethod
    def train(
        cls, features: npt.NDArray[np.floating], size: int, *, seed: int = 0, iterations: int = ITERATIONS
    ) -> Codebook:
        """k-means with FAISS: `size` words from features, N D. The same seed gives the same words."""
        import faiss

        if len(features) < size:
            raise IndexingError(
                f"A codebook of {size} words needs at least that many local features; there are {len(features)}. "
                "Ask for fewer words or give more images."
            )
        kmeans = faiss.Kmeans(features.shape[1], size, niter=iterations, seed=seed + 1, verbose=False)
        # FAISS warns below 39 features a word; small collections are meant here, and it still converges.
        kmeans.cp.min_points_per_centroid = 1
        kmeans.train(np.ascontiguousarray(features, dtype=np.float32))
        return cls(np.asarray(kmeans.centroids).reshape(size, -1))

    def assign(self, features: npt.NDArray[np.floating], nearest: int = 1, *, nprobe: int = 0) -> Words:
        """The `nearest` words of each feature, nearest first, N M.

        nprobe: 0 finds the nearest of all centroids. Otherwise so many of NUM_LISTS inverted lists of centroids are
        scanned by 4-bit codes, and the best 32 rescored exactly: with 65,536 centroids several times faster, and a few
        features get a near centroid instead of the nearest. Small codebooks are scanned in full, which is as fast.
        """
        if features.ndim != 2 or features.shape[1] != self.dim:
            raise IndexingError(
                f"The codebook has centroids of dimension {self.dim}, the local features are {features.shape}: "
                "they were made by another extractor. Train a codebook on these features."
            )
        if not np.isfinite(features).all():
            raise IndexingError("local features with numbers that are not finite have no nearest word.")
        nearest = min(nearest, self.size)
        self._num_assigned += len(features)
        int8 = None if nprobe else self._open_int8()
        words = None if int8 is None else int8.assign(features, nearest)
        if words is not None:
            return words
        ivf = self._ivf if nprobe and self.size >= NUM_LISTS * _NUM_RESCORED and self.dim % 2 == 0 else None
        index = self._flat if ivf is None else ivf[0]
        if ivf is not None:
            ivf[1].nprobe = min(nprobe, NUM_LISTS)
            index.k_factor = max(1.0, _NUM_RESCORED / nearest)
        words = np.empty((len(features), nearest), dtype=np.int32)
        for start in range(0, len(features), _BLOCK):
            block = np.ascontiguousarray(features[start : start + _BLOCK], dtype=np.float32)
            words[start : start + _BLOCK] = index.search(block, nearest)[1]
        return words

    def _open_int8(self) -> Int8Assignment | None:
        """The fast way to the same words, where there is much to do and the processor has it."""
        if self._num_assigned < INT8_MIN_FEATURES or self.size < _INT8_MIN_WORDS or not has_fast_int8():
            return None
        if self._int8 is None:
            self._int8 = Int8Assignment(self.centroids)
        return self._int8

    @cached_property
    def _flat(self) -> Any:
        import faiss

        index = faiss.IndexFlatL2(self.dim)
        index.add(self.centroids)
        return index

    @cached_property
    def _ivf(self) -> tuple[Any, Any]:
        """Inverted lists of centroids with 4 bits for each two dimensions, rescored exactly by the index around it."""
        import faiss

        # FAISS fits both to the centroids themselves, with its own fixed seed.
        lists = faiss.IndexIVFPQFastScan(faiss.IndexFlatL2(self.dim), self.dim, NUM_LISTS, self.dim // 2, 4)
        lists.by_residual = False
        lists.cp.min_points_per_centroid = 1
        lists.train(self.centroids)
        lists.add(self.centroids)
        return faiss.IndexRefineFlat(lists, faiss.swig_ptr(self.centroids)), lists

    def save(self, path: Path) -> None:
        buffer = io.BytesIO()
        np.save(buffer, self.centroids)
        with atomic_path(path) as temporary:
            temporary.write_bytes(buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Codebook:
        try:
            return cls(np.load(path, allow_pickle=False))
        except (OSError, EOFError, ValueError, AttributeError) as error:  # an .npz has no shape
            raise IndexingError(f"{path} is not a codebook: {error}. Train it again.") from error
