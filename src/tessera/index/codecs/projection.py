"""A rotation to fewer dimensions whose result is the same bits on any number of threads.

A matrix product sums in an order that depends on the threads, and a code may flip with the last bit. Here descriptors
and matrix are rounded to whole numbers so small that every sum of products is a whole number below 2^24, which single
precision holds exactly: then no order of summation can change anything.
"""

from __future__ import annotations

import faiss
import numpy as np
import numpy.typing as npt

from tessera.index.codecs.codec import Float32s, Int64s, use_threads
from tessera.index.codecs.sampling import thinned

# |x| <= 1 and |row| <= 1, so by Cauchy-Schwarz no partial sum passes 2^(11 + 12), rounding included.
_STEPS = np.float32(2**11)
_MATRIX_STEPS = np.float32(2**12)
# For rows that are strangers to the query the square root of the energy would be right; its true neighbours agree with
# it in the small axes, too, so that half of that does best.
_EXPONENT = 0.25
_LEAST_ENERGY = 1e-4  # of the greatest: axes of nothing get no weight of zero
_ENERGY_ROWS = 8192
_CACHED_ROWS = 256  # as floats, they still fit in a core's own cache


def principal_axes(sample: Float32s, count: int) -> Float32s:
    """The leading directions of a sample N D, count D. On one thread: eigenvectors, too, depend on the threads."""
    dim = sample.shape[1]
    with use_threads(1):
        pca = faiss.PCAMatrix(dim, min(count, dim), 0, False)
        # Too few rows have no spectrum of their own: repeat them, as FAISS wants more rows than dimensions.
        pca.train(sample if len(sample) > dim else np.resize(sample, (dim + 1, dim)))
        axes: Float32s = faiss.vector_to_array(pca.A).reshape(-1, dim)[: pca.d_out]
    return np.nan_to_num(axes)


def allocate_dimensions(variances: Float32s, groups: int) -> Int64s:
    """Eigenvalue allocation: coordinates in groups of one size whose products of variances are alike.

    Returns the coordinates group by group. A quantiser with as many centroids in each group then spends its bits where
    the energy is; a random rotation, with equal variances in all groups, would not let it do so. Ge et al., "Optimized
    product quantization", section 3.2.
    """
    size = len(variances) // groups
    logs = np.log(np.maximum(variances, 1e-12).astype(np.float64))
    logs += 1e-3 - logs.min()
    members: list[list[int]] = [[] for _ in range(groups)]
    totals = np.zeros(groups)
    for coordinate in np.argsort(-logs, kind="stable"):
        group = int(np.argmin(totals))
        members[group].append(int(coordinate))
        totals[group] = totals[group] + logs[coordinate] if len(members[group]) < size else np.inf
    return np.concatenate([np.asarray(group, dtype=np.int64) for group in members])


def mean_first(order: Int64s, groups: int) -> Int64s:
    """The same groups of coordinates, turned so that coordinate 0 comes first."""
    by_group = order.reshape(groups, -1)
    group, place = np.argwhere(by_group == 0)[0]
    turned: Int64s = np.roll(by_group, -group, axis=0)
    turned[0] = np.roll(turned[0], -place)
    return turned.reshape(-1)


class Projection:
    """Centre, and turn to the direction of the mean (coordinate 0) and the leading principal axes (the others).

    With m the mean, a score is <q, x> = <q - m, x - m> + <m, x - m> and what is the same for all rows. The first term
    lives in the principal axes. The second is a number of the row alone, as large as a leading axis' share, and gets a
    coordinate of its own: in the axes, the coding error would be multiplied by the whole length of m.

    Rows are multiplied by weights and queries divided by them, so that codes err less where queries have more energy.
    """

    def __init__(self, matrix: npt.NDArray[np.int16], offset: npt.NDArray[np.int32], weights: Float32s) -> None:
        """matrix: C D, in steps of 2^-12. offset: C, the projected mean in steps of 2^-23.

        weights: C + 1, what each coordinate of a row is multiplied by, and then what coordinate 0 is in every query.
        """
        self.matrix = matrix
        self.offset = offset
        self.weights = weights
        self._transposed = np.ascontiguousarray(matrix.T, dtype=np.float32)
        self._shift = offset.astype(np.float32)
        unit = _STEPS * _MATRIX_STEPS
        self._scale = (weights[:-1] / unit).astype(np.float32)
        self._query_scale = (1 / (weights[:-1] * unit)).astype(np.float32)
        self._raw_mean = float(weights[-1] * weights[0] * unit)

    @classmethod
    def fit(cls, sample: Float32s, axes: Float32s, coordinates: int, *, weighted: bool = True) -> Projection:
        """axes: `principal_axes` of the sample N D; coordinates beyond them are zero.

        weighted: else only the mean's coordinate has a weight.
        """
        mean = sample.mean(axis=0, dtype=np.float64)
        length = float(np.sqrt(mean @ mean))
        matrix = np.zeros((coordinates, sample.shape[1]))
        matrix[0] = mean / max(length, 1e-12)
        matrix[1 : len(axes) + 1] = axes[: coordinates - 1]
        rounded = np.rint(matrix * _MATRIX_STEPS).astype(np.int16)
        offset = np.rint((rounded.astype(np.float64) * np.rint(mean * _STEPS)).sum(axis=1)).astype(np.int32)
        plain = cls(rounded, offset, np.ones(coordinates + 1, np.float32))
        energies = np.square(plain.apply(thinned(sample, _ENERGY_ROWS))[:, 1:]).mean(axis=0, dtype=np.float64)
        weights = np.ones(coordinates + 1)
        if weighted:
            weights[1:-1] = np.maximum(energies / max(energies.max(initial=0), 1e-12), _LEAST_ENERGY) ** _EXPONENT
        # Coded errors count alike in all coordinates where queries have the same energy in them.
        weights[0] = 2.0 ** np.rint(np.log2(max(length, 1e-3) / np.sqrt(max(energies.mean(), 1e-12))))
        weights[-1] = length / weights[0]
        return cls(rounded, offset, weights.astype(np.float32))

    def leading(self, coordinates: int) -> Projection:
        """The same with fewer coordinates."""
        weights = np.append(self.weights[:coordinates], self.weights[-1])
        return Projection(np.ascontiguousarray(self.matrix[:coordinates]), self.offset[:coordinates], weights)

    def arranged(self, order: Int64s) -> Projection:
        """The same with its leading coordinates in another order; 0 stays where it is."""
        places = np.append(order, np.arange(len(order), len(self.offset)))
        weights = np.append(self.weights[places], self.weights[-1])
        return Projection(np.ascontiguousarray(self.matrix[places]), self.offset[places], weights)

    def apply(self, descriptors: Float32s) -> Float32s:
        """Rows to code: N D to N C."""
        coordinates = np.empty((len(descriptors), len(self.offset)), np.float32)
        for i in range(0, len(descriptors), _CACHED_ROWS):
            part = coordinates[i : i + _CACHED_ROWS]
            part[:] = self._turned(descriptors[i : i + _CACHED_ROWS])
            part *= self._scale
        return coordinates

    def apply_query(self, queries: Float32s) -> Float32s:
        """Queries Q D to Q C: their products with rows estimate scores, but for a number that is a query's own."""
        coordinates: Float32s = self._turned(queries) * self._query_scale
        coordinates[:, 0] = self.weights[-1]
        return coordinates

    def apply_raw(self, queries: Float32s) -> Float32s:
        """Queries Q D to Q C as whole numbers, not centred: for distances to what `raw` makes of rows' centroids."""
        whole = queries * _STEPS
        products: Float32s = np.rint(whole, out=whole) @ self._transposed
        products[:, 0] = self._raw_mean
        return products

    def raw(self, rows: Float32s, share: float) -> Float32s:
        """A share of coordinates N C as rows have them, in the numbers of `apply_raw`."""
        scaled: Float32s = rows * np.float32(share) / self._scale
        scaled[:, 1:] += self._shift[1:]
        return scaled

    def _turned(self, descriptors: Float32s) -> Float32s:
        """Whole numbers N C, exact on any number of threads."""
        whole = descriptors * _STEPS
        products: Float32s = np.rint(whole, out=whole) @ self._transposed
        products -= self._shift
        return products

    @property
    def memory_bytes(self) -> int:
        return self.matrix.nbytes + self._transposed.nbytes + 2 * self.offset.nbytes + 3 * self.weights.nbytes
