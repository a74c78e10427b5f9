"""Visual words: k-means on local features, and the assignment of features to their nearest words."""

from __future__ import annotations

import io
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import IndexingError
from tessera.storage import atomic_path

Vectors = npt.NDArray[np.float32]
Words = npt.NDArray[np.int32]

ITERATIONS = 10
_BLOCK = 65536  # features assigned at once: bounds memory, changes no result
_NEIGHBOURS, _BUILD_EFFORT = 12, 60  # of a word in the graph of words


class Codebook:
    """K centroids of dimension D, K D. Nearest is by Euclidean distance, found exactly unless an effort is named."""

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

    def assign(self, features: npt.NDArray[np.floating], nearest: int = 1, *, effort: int = 0) -> Words:
        """The `nearest` words of each feature, nearest first, N M.

        effort: 0 compares with every word. Otherwise the way through a graph of the words keeps so many in sight: with
        65,536 words several times faster, and some features get a near word instead of the nearest.
        """
        if features.ndim != 2 or features.shape[1] != self.dim:
            raise IndexingError(
                f"The codebook has words of dimension {self.dim}, the local features are {features.shape}: "
                "they were made by another extractor. Train a codebook on these features."
            )
        nearest = min(nearest, self.size)
        index = self._graph if effort else self._flat
        if effort:
            index.hnsw.efSearch = max(effort, nearest)
        words = np.empty((len(features), nearest), dtype=np.int32)
        for start in range(0, len(features), _BLOCK):
            block = np.ascontiguousarray(features[start : start + _BLOCK], dtype=np.float32)
            words[start : start + _BLOCK] = index.search(block, nearest)[1]
        return words

    @cached_property
    def _flat(self) -> Any:
        import faiss

        index = faiss.IndexFlatL2(self.dim)
        index.add(self.centroids)
        return index

    @cached_property
    def _graph(self) -> Any:
        import faiss

        index = faiss.IndexHNSWFlat(self.dim, _NEIGHBOURS)
        index.hnsw.efConstruction = _BUILD_EFFORT
        index.add(self.centroids)
        return index

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
