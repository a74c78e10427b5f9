"""Visual words: k-means on local features, and the assignment of features to their nearest words."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tessera.errors import IndexingError
from tessera.storage import atomic_path

Vectors = npt.NDArray[np.float32]
Words = npt.NDArray[np.int32]

ITERATIONS = 10
_BLOCK = 65536  # features assigned at once: bounds memory, changes no result


class Codebook:
    """K centroids of dimension D, K D. Nearest is by Euclidean distance, found exactly."""

    def __init__(self, centroids: npt.NDArray[np.floating]) -> None:
        if centroids.ndim != 2 or not len(centroids):
            raise IndexingError(f"A codebook is a matrix of words, not an array of shape {centroids.shape}.")
        self.centroids: Vectors = np.ascontiguousarray(centroids, dtype=np.float32)

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

    def assign(self, features: npt.NDArray[np.floating], nearest: int = 1) -> Words:
        """The `nearest` words of each feature, nearest first, N M."""
        import faiss

        if features.ndim != 2 or features.shape[1] != self.dim:
            raise IndexingError(
                f"The codebook has words of dimension {self.dim}, the local features are {features.shape}: "
                "they were made by another extractor. Train a codebook on these features."
            )
        nearest = min(nearest, self.size)
        index = faiss.IndexFlatL2(self.dim)
        index.add(self.centroids)
        words = np.empty((len(features), nearest), dtype=np.int32)
        for start in range(0, len(features), _BLOCK):
            block = np.ascontiguousarray(features[start : start + _BLOCK], dtype=np.float32)
            words[start : start + _BLOCK] = index.search(block, nearest)[1]
        return words

    def save(self, path: Path) -> None:
        buffer = io.BytesIO()
        np.save(buffer, self.centroids)
        with atomic_path(path) as temporary:
            temporary.write_bytes(buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Codebook:
        try:
            return cls(np.load(path, allow_pickle=False))
        except (OSError, ValueError) as error:
            raise IndexingError(f"{path} is not a codebook: {error}. Train it again.") from error
