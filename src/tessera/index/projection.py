"""A rotation to fewer dimensions whose result is the same bits on any number of threads.

A matrix product sums in an order that depends on the threads, and a code may flip with the last bit. Here descriptors
and matrix are rounded to whole numbers so small that every sum of products is a whole number below 2^24, which single
precision holds exactly: then no order of summation can change anything.
"""

from __future__ import annotations

import faiss
import numpy as np
import numpy.typing as npt

from tessera.index.codec import Float32s, use_threads

# |x| <= 1 and |row| <= 1, so by Cauchy-Schwarz no partial sum passes 2^(11 + 12), rounding included.
_STEPS = np.float32(2**11)
_MATRIX_STEPS = np.float32(2**12)


def principal_axes(sample: Float32s, count: int) -> Float32s:
    """The leading directions of a sample N D, count D. On one thread: eigenvectors, too, depend on the threads."""
    dim = sample.shape[1]
    with use_threads(1):
        pca = faiss.PCAMatrix(dim, min(count, dim), 0, False)
        # Too few rows have no spectrum of their own: repeat them, as FAISS wants more rows than dimensions.
        pca.train(sample if len(sample) > dim else np.resize(sample, (dim + 1, dim)))
        axes: Float32s = faiss.vector_to_array(pca.A).reshape(-1, dim)[: pca.d_out]
    return np.nan_to_num(axes)


class Projection:
    """Centre, rotate by PCA to the leading dimensions, and mix those by a random rotation.

    PCA keeps what tells descriptors apart in few dimensions; the mixing shares it out evenly, without which the first
    subspaces of a product quantiser would have all of the error.
    """

    def __init__(self, matrix: npt.NDArray[np.int16], offset: npt.NDArray[np.int32]) -> None:
        """matrix: d D, in steps of 2^-12. offset: d, the projected mean in steps of 2^-23."""
        self.matrix = matrix
        self.offset = offset
        self._transposed = np.ascontiguousarray(matrix.T, dtype=np.float32)
        self._shift = offset.astype(np.float32)

    @classmethod
    def fit(cls, sample: Float32s, axes: Float32s, seed: int) -> Projection:
        """Mix the given axes d D (the first of `principal_axes`), and centre on the mean of the sample N D."""
        mean = sample.mean(axis=0, dtype=np.float64)
        with use_threads(1):
            mixing = faiss.RandomRotationMatrix(len(axes), len(axes))
            mixing.init(seed + 1)
            matrix = mixing.apply(np.ascontiguousarray(axes.T)).T
        rounded = np.rint(matrix * _MATRIX_STEPS).astype(np.int16)
        centre = np.rint(mean * _STEPS)
        offset = np.rint((rounded.astype(np.float64) * centre).sum(axis=1)).astype(np.int32)
        return cls(rounded, offset)

    @property
    def dim(self) -> int:
        return len(self.matrix)

    def apply(self, descriptors: Float32s) -> Float32s:
        """Rows to code: N D to N d."""
        products: Float32s = np.rint(descriptors * _STEPS) @ self._transposed
        products -= self._shift
        products /= _STEPS * _MATRIX_STEPS
        return products

    def apply_query(self, queries: Float32s) -> Float32s:
        """Queries Q D to Q d. The mean is not taken off: it moves every score of a query by the same amount."""
        return np.ascontiguousarray(queries @ self._transposed / _MATRIX_STEPS)

    @property
    def memory_bytes(self) -> int:
        return self.matrix.nbytes + self._transposed.nbytes + 2 * self.offset.nbytes
