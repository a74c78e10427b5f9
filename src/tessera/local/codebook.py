"""Visual words: k-means on local features, and the assignment of features to their nearest words."""

from __future__ import annotations

import io
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tessera.errors import IndexingError
from tessera.storage import atomic_path

if TYPE_CHECKING:
    from tessera.local.bounded import BoundedSearch

Vectors = npt.NDArray[np.float32]
Words = npt.NDArray[np.int32]

ITERATIONS = 10
_BLOCK = 65536  # features assigned at once: bounds memory, changes no result
GROUPS = 256  # of words, for an assignment with an effort
_COMPARED = 32  # words whose distance such an assignment works out exactly
_BOUNDED_WORDS = 8192  # from so many words on, and so many features asked for, bounds save more time than they take
BOUNDED_FEATURES = 20_000


class Codebook:
    """K centroids of dimension D, K D. Nearest is by Euclidean distance, found exactly unless an effort is named."""

    def __init__(self, centroids: npt.NDArray[np.floating]) -> None:
        if centroids.ndim != 2 or not len(centroids):
            raise IndexingError(f"A codebook is a matrix of words, not an array of shape {centroids.shape}.")
        self.centroids: Vectors = np.ascontiguousarray(centroids, dtype=np.float32)
        if not np.isfinite(self.centroids).all():
            raise IndexingError("a codebook has words with numbers that are not finite. Train it again.")
        self._asked = 0
        self._made: BoundedSearch | None = None

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

    def assign(self, features: npt.NDArray[np.floating], nearest: int = 1, *, effort: int = 0) -> Words:
        """The `nearest` words of each feature, nearest first, N M.

        effort: 0 finds the nearest of all words. Otherwise short codes are compared in so many of GROUPS groups of
        words, and the best 32 words exactly: with 65,536 words several times faster, and a few features get a near word
        instead of the nearest. Small codebooks are compared in full, which is as fast.
        """
        if features.ndim != 2 or features.shape[1] != self.dim:
            raise IndexingError(
                f"The codebook has words of dimension {self.dim}, the local features are {features.shape}: "
                "they were made by another extractor. Train a codebook on these features."
            )
        if not np.isfinite(features).all():
            raise IndexingError("local features with numbers that are not finite have no nearest word.")
        nearest = min(nearest, self.size)
        self._asked += len(features)
        bounded = None if effort else self._bounded
        words = None if bounded is None else bounded.search(features, nearest)
        if words is not None:
            return words
        grouped = self._grouped if effort and self.size >= GROUPS * _COMPARED and self.dim % 2 == 0 else None
        index = self._flat if grouped is None else grouped[0]
        if grouped is not None:
            grouped[1].nprobe = min(effort, GROUPS)
            index.k_factor = max(1.0, _COMPARED / nearest)
        words = np.empty((len(features), nearest), dtype=np.int32)
        for start in range(0, len(features), _BLOCK):
            block = np.ascontiguousarray(features[start : start + _BLOCK], dtype=np.float32)
            words[start : start + _BLOCK] = index.search(block, nearest)[1]
        return words

    @property
    def _bounded(self) -> BoundedSearch | None:
        """Where there is much to do and the processor can, the quick way to the same words."""
        from tessera.local.bounded import BoundedSearch, is_quick

        if self._asked < BOUNDED_FEATURES or self.size < _BOUNDED_WORDS or not is_quick():
            return None
        if self._made is None:
            self._made = BoundedSearch(self.centroids)
        return self._made

    @cached_property
    def _flat(self) -> Any:
        import faiss

        index = faiss.IndexFlatL2(self.dim)
        index.add(self.centroids)
        return index

    @cached_property
    def _grouped(self) -> tuple[Any, Any]:
        """The words in groups, with codes of half a byte for each two dimensions; the exact one reads the other."""
        import faiss

        # FAISS fits both to the words themselves, with its own fixed seed.
        groups = faiss.IndexIVFPQFastScan(faiss.IndexFlatL2(self.dim), self.dim, GROUPS, self.dim // 2, 4)
        groups.by_residual = False
        groups.cp.min_points_per_centroid = 1
        groups.train(self.centroids)
        groups.add(self.centroids)
        return faiss.IndexRefineFlat(groups, faiss.swig_ptr(self.centroids)), groups

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
