"""`pq1`: 256 k-means centroids in each dimension, a byte a dimension, as the paper has it.

Looking every byte up in its table costs several times a flat search: the tables make a megabyte, which no near cache
holds. So a coarse scan over 32 bytes more a row gives candidates (see `coarse_scan`), and only those are scored by
their centroids. Most candidates are settled more cheaply still. The centroids of a dimension are sorted, so a centroid
is nearly an affine function of its code. Going down the affine order, it soon is clear that no row below can come in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.index.codecs.coarse_scan import CoarseScan
from tessera.index.codecs.code_length import SUBSPACE
from tessera.index.codecs.codec import Arrays, Codec, Float32s, Int64s, for_each
from tessera.index.codecs.recall_calibration import CalibrationSet, RecallCalibration, calibrate
from tessera.index.codecs.sampling import training_rows
from tessera.index.descriptor_file import BLOCK_ROWS, DescriptorStore
from tessera.index.rows import RowFilter

Bytes = npt.NDArray[np.uint8]

CENTROIDS = 256
_TRAINING_ROWS = 32768
_ITERATIONS = 30
_SUBSPACES = 64  # of the coarse scan: 32 bytes
_STEP_ROWS = 128
_CACHED_ROWS = 256  # as floats, they still fit in a core's own cache
_SUBSPACES = 64  # of the coarse scan: 32 bytes
_MARGIN = 4.0  # standard deviations of the affine score around the score by the centroids


class Pq1Codec(Codec):
    """Codes N D and the centroids that they stand for, behind a coarse scan."""

    name = "pq1"
    exact = False

    def __init__(
        self, centroids: Float32s, affine: Float32s, codes: Bytes, coarse: CoarseScan, calibration: RecallCalibration
    ) -> None:
        """centroids: D 256, ascending in each row. affine: 2 D, the fitted centroid of code 0 and step to code 255."""
        self._centroids = centroids
        self._affine = affine
        self._codes = codes
        self._coarse = coarse
        self._calibration = calibration
        self._middles = (centroids[:, 1:] + centroids[:, :-1]) / 2

    @classmethod
    def fit(cls, store: DescriptorStore, *, seed: int, target_recall: float) -> Pq1Codec:
        calibration_set = CalibrationSet.draw(store, seed)
        coordinates = min(-(-(store.dim + 1) // SUBSPACE) * SUBSPACE, _SUBSPACES * SUBSPACE)
        coarse, _ = CoarseScan.fit(
            store,
            calibration_set,
            coordinates=coordinates,
            ladder=(_SUBSPACES,),
            seed=seed,
            target_recall=target_recall,
        )
        sample = store.take(training_rows(len(store), _TRAINING_ROWS, seed)).astype(np.float32)
        codes = np.empty((len(store), store.dim), np.uint8)
        codec = cls(*train_scalar_centroids(sample), codes, coarse, RecallCalibration.cautious())
        for start, block in store.blocks(BLOCK_ROWS):
            codes[start : start + len(block)] = codec.encode(block)
            coarse.append(coarse.projection.apply(block))
        codec._calibration = calibrate(
            codec._search_candidates, calibration_set, len(store), nprobe=(1,), target=target_recall
        )
        return codec

    def encode(self, descriptors: Float32s) -> Bytes:
        """The nearest centroid of each value: N D."""
        codes = np.empty(descriptors.shape, dtype=np.uint8)
        columns = np.ascontiguousarray(descriptors.T)

        def code(d: int) -> None:
            codes[:, d] = np.searchsorted(self._middles[d], columns[d], side="left")

        for_each(code, len(self._centroids))
        return codes

    def append(self, descriptors: Float32s) -> None:
        self._codes = np.concatenate([self._codes, self.encode(descriptors)])
        self._coarse.append(self._coarse.projection.apply(descriptors))

    def decode(self, codes: Bytes) -> Float32s:
        """The centroids of codes N D."""
        entries = codes.astype(np.int32)
        entries += np.arange(0, CENTROIDS * len(self._centroids), CENTROIDS, dtype=np.int32)
        return np.take(self._centroids.reshape(-1), entries)

    def search(
        self, queries: Float32s, k: int, row_filter: RowFilter | None, store: DescriptorStore
    ) -> tuple[Float32s, Int64s]:
        possible = len(self._codes) if row_filter is None else len(row_filter)
        wanted, num_candidates = min(k, possible), self._calibration.num_candidates_for(k, len(self._codes))
        every = None
        if possible <= num_candidates:
            every = np.arange(possible) if row_filter is None else row_filter.rows
        coordinates = self._coarse.project_queries(queries)
        scores = np.full((len(queries), wanted), -np.inf, dtype=np.float32)
        rows = np.full((len(queries), wanted), -1, dtype=np.int64)

        def settle(q: int) -> None:
            mine = every
            if mine is None:
                mine, _ = self._coarse.shortlist(coordinates[q : q + 1], num_candidates, row_filter)
            top_scores, top_rows = self._settle(queries[q], self._affine_scores(queries[q], mine), mine, wanted)
            scores[q, : len(top_rows)], rows[q, : len(top_rows)] = top_scores, top_rows

        for_each(settle, len(queries))
        return scores, rows

    def _search_candidates(self, queries: Float32s, count: int, nprobe: int) -> tuple[Int64s, Float32s]:
        rows, scores = self._coarse.search(self._coarse.project_queries(queries), count)

        def rescore(q: int) -> None:
            scores[q] = self._affine_scores(queries[q], rows[q])

        for_each(rescore, len(queries))
        scores[rows < 0] = -np.inf
        return rows, scores

    def _affine_scores(self, query: Float32s, rows: Int64s) -> Float32s:
        """The scores of some rows by affine centroids. Those are put into the query, so bytes need only be widened."""
        first, scale = self._affine
        scaled = query * (scale / np.float32(CENTROIDS - 1))
        parts = [rows[i : i + _CACHED_ROWS] for i in range(0, len(rows), _CACHED_ROWS)]
        scores = [self._codes[part].astype(np.float32) @ scaled for part in parts]
        together: Float32s = np.concatenate([np.empty(0, np.float32), *scores])
        together += query @ first
        return together

    def _settle(self, query: Float32s, rough: Float32s, found: Int64s, k: int) -> tuple[Float32s, Int64s]:
        """Score rows by their centroids from the top of the affine order on, until no row further down can come in."""
        order = np.argsort(-rough, kind="stable")
        rough, found = rough[order], found[order]
        scores = np.empty(len(found), dtype=np.float32)
        done, sure = 0, False
        while done < len(found) and not sure:
            end = min(max(done + _STEP_ROWS, k), len(found))
            np.vecdot(self.decode(self._codes[found[done:end]]), query, out=scores[done:end])  # each row on its own
            done = end
            differences = scores[:done] - rough[:done]
            reach = rough[done - 1] + differences.mean() + _MARGIN * differences.std()
            sure = done >= k and reach < np.partition(scores[:done], done - k)[done - k]
        chosen = np.lexsort((found[:done], -scores[:done]))[:k]
        return scores[chosen], found[chosen]

    def select(self, rows: Int64s) -> None:
        self._codes = self._codes[rows]
        self._coarse.select(rows)

    def state(self) -> tuple[dict[str, Any], Arrays]:
        arrays: Arrays = {"centroids": self._centroids, "affine": self._affine, "codes": self._codes}
        return self._calibration.to_values(), arrays | self._coarse.state()

    @classmethod
    def restore(cls, values: dict[str, Any], arrays: Arrays, store: DescriptorStore) -> Pq1Codec:
        coarse, calibration = CoarseScan.restore(arrays), RecallCalibration.from_values(values)
        return cls(arrays["centroids"], arrays["affine"], arrays["codes"], coarse, calibration)

    def settings(self) -> dict[str, Any]:
        chosen = {"code_bytes": len(self._centroids), "centroids": CENTROIDS, "coarse_bytes": self._coarse.code_bytes}
        return chosen | {
            "num_candidates_10": self._calibration.num_candidates_10,
            "num_candidates_100": self._calibration.num_candidates_100,
        }

    def error(self, descriptors: Float32s) -> float:
        return float(
            np.square(self.decode(self.encode(descriptors)) - descriptors).sum() / np.square(descriptors).sum()
        )

    @property
    def memory_bytes(self) -> int:
        return self._codes.nbytes + 2 * self._centroids.nbytes + self._affine.nbytes + self._coarse.memory_bytes


def initial_centroids(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Where the centroids of sorted values begin: as dense as the cube root of the values' own density.

    That is where the best centroids of a smooth density lie; from quantiles Lloyd's iteration takes hundreds of rounds.
    """
    low, high = values[0], values[-1]
    if low == high:
        return np.full(CENTROIDS, low)
    counts, edges = np.histogram(values, bins=CENTROIDS, range=(low, high))
    smooth = np.convolve(np.pad(counts.astype(np.float64), 2, mode="edge"), np.full(5, 0.2), mode="valid")
    mass = np.concatenate([[0.0], np.cumsum(np.cbrt(smooth))])
    centroids: npt.NDArray[np.float64] = np.interp((np.arange(CENTROIDS) + 0.5) / CENTROIDS * mass[-1], mass, edges)
    return centroids


def train_scalar_centroids(sample: Float32s) -> tuple[Float32s, Float32s]:
    """Lloyd's k-means in each of D dimensions of a sample N D: centroids D 256 ascending, and their affine fit 2 D.

    In one dimension a cell is an interval of the sorted values, so an iteration is 255 binary searches and differences
    of running sums: exact, without a random start, and the same on any number of threads.
    """
    dim = sample.shape[1]
    centroids = np.empty((dim, CENTROIDS), dtype=np.float32)
    affine = np.zeros((2, dim), dtype=np.float32)
    codes = np.arange(CENTROIDS)
    for d in range(dim):
        values = np.sort(sample[:, d].astype(np.float64))
        if len(values) == 0:
            centroids[d] = 0
            continue
        sums = np.concatenate([[0.0], np.cumsum(values)])
        means = initial_centroids(values)
        for _ in range(_ITERATIONS):
            edges = np.searchsorted(values, (means[1:] + means[:-1]) / 2)
            edges = np.concatenate([[0], edges, [len(values)]])
            counts = np.diff(edges)
            fresh = np.diff(sums[edges]) / np.maximum(counts, 1)
            # Where rounding of the running sums or an empty cell would break the order, the old centroid stays.
            means = np.maximum.accumulate(np.where(counts > 0, fresh, means))
        centroids[d] = means
        mean_code = (counts * codes).sum() / len(values)
        mean_value = (counts * means).sum() / len(values)
        spread = (counts * (codes - mean_code) ** 2).sum()
        slope = (counts * (codes - mean_code) * (means - mean_value)).sum() / spread if spread > 0 else 0.0
        affine[:, d] = mean_value - slope * mean_code, slope * 255
    return centroids, affine
