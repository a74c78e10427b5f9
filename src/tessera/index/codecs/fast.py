"""`fast`: a coarse scan of short codes, residual rescoring of its candidates, exact re-ranking of the best.

Coarse scan: 32 to 64 bytes a row, read with SIMD (see `coarse_scan`). Residual rescoring: what those codes missed, in
the rest of 128 bytes, for a thousand candidates or so (see `residual_rescoring`). Exact re-ranking: the fp16
descriptors of some hundred, read in place; they decide order and scores. How many rows each stage passes on is measured
when the index is built (see `calibration`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.index.codecs.coarse_scan import LADDER, SUBSPACE, CoarseScan
from tessera.index.codecs.codec import Arrays, Codec, Float32s, Int64s, for_each
from tessera.index.codecs.recall_calibration import CalibrationSet, RecallCalibration, calibrate
from tessera.index.codecs.residual_rescoring import ResidualCodes
from tessera.index.descriptor_file import BLOCK_ROWS, DescriptorStore, score_rows
from tessera.index.rows import RowFilter

_CODE_BYTES = 128
_MOST_A_BYTE = 8  # coordinates to a byte of the residual: with more, 256 centroids say little of each


class FastCodec(Codec):
    """The coarse codes, the residual codes, and how many rows each stage passes on."""

    name = "fast"
    exact = True
    target_recall = 0.985

    def __init__(self, coarse: CoarseScan, residual: ResidualCodes, calibration: RecallCalibration) -> None:
        self._coarse = coarse
        self._residual = residual
        self._calibration = calibration

    @classmethod
    def fit(cls, store: DescriptorStore, *, seed: int, target_recall: float) -> FastCodec:
        calibration_set = CalibrationSet.draw(store, seed)
        coarse, sample = CoarseScan.fit(
            store,
            calibration_set,
            coordinates=_coordinates(store.dim),
            lists=cls._lists(len(store)),
            seed=seed,
            target_recall=target_recall,
        )
        missed = sample - coarse.decoded(sample)
        width = min(_CODE_BYTES - coarse.code_bytes, missed.shape[1] // SUBSPACE)
        coded = width * min(missed.shape[1] // width, _MOST_A_BYTE)
        residual = ResidualCodes.fit(missed[:, :coded], width, seed)
        coarse.projection = coarse.projection.leading(coded)
        codec = cls(coarse, residual, RecallCalibration.cautious())
        for _, block in store.blocks(BLOCK_ROWS):
            codec.append(block)
        ladder = codec._nprobe_ladder(calibration_set, store, target_recall)
        codec._calibration = calibrate(
            codec.search_candidates,
            calibration_set,
            len(store),
            nprobe=ladder,
            target=target_recall,
            cost=codec.cost_ns,
        )
        return codec

    @staticmethod
    def _lists(total: int) -> int:
        return 1

    def _nprobe_ladder(self, calibration_set: CalibrationSet, store: DescriptorStore, target: float) -> tuple[int, ...]:
        return (1,)

    def cost_ns(self, calibration: RecallCalibration) -> float:
        """What a query would cost: only where there is something to choose does it matter."""
        return 0.0

    def append(self, descriptors: Float32s) -> None:
        coordinates = self._coarse.projection.apply(descriptors)
        self._coarse.append(coordinates)
        self._residual.append(self._residual.encode(coordinates - self._coarse.decoded(coordinates)))

    def search_candidates(self, queries: Float32s, count: int, nprobe: int) -> tuple[Int64s, Float32s]:
        """The rows that the coarse scan puts first, and their rescored scores: Q count, padded with -1 and -inf."""
        coordinates = self._coarse.projection.apply_query(queries)
        rows, scores = self._coarse.search(coordinates, count, None, nprobe)

        def rescore(q: int) -> None:
            scores[q] += self._residual.score(self._residual.table(coordinates[q]), rows[q])

        for_each(rescore, len(queries))
        return rows, scores

    def search(
        self, queries: Float32s, k: int, row_filter: RowFilter | None, store: DescriptorStore
    ) -> tuple[Float32s, Int64s]:
        possible = len(self._coarse) if row_filter is None else len(row_filter)
        calibration, total = self._calibration, len(self._coarse)
        num_rescored = min(calibration.num_rescored_for(k, total), possible)
        num_candidates = max(min(calibration.num_candidates_for(k, total), possible), num_rescored)
        few = row_filter.rows if row_filter is not None and possible <= 2 * num_rescored else None
        coordinates, nprobe = self._coarse.projection.apply_query(queries), self._nprobe(k, row_filter)
        wide = num_rescored if few is None else possible
        rows = np.full((len(queries), wide), -1, dtype=np.int64)
        scores = np.full((len(queries), wide), -np.inf, dtype=np.float32)

        def answer(q: int) -> None:
            mine = few
            if mine is None:
                mine = self._shortlist(coordinates[q : q + 1], num_candidates, num_rescored, row_filter, nprobe)
            rows[q, : len(mine)] = mine
            scores[q, : len(mine)] = score_rows(queries[q], mine, store)

        for_each(answer, len(queries))
        return scores, rows

    def _shortlist(
        self, coordinates: Float32s, num_candidates: int, num_rescored: int, row_filter: RowFilter | None, nprobe: int
    ) -> Int64s:
        """The rows whose descriptors are read for a projected query 1 C, ascending, as they lie in the file."""
        rows, scores = self._coarse.scan_above_threshold(coordinates, num_candidates, row_filter, nprobe)
        if len(rows) > num_rescored:
            rows = self._residual.best(coordinates[0], rows, scores, num_rescored)
        return np.sort(rows)

    def _nprobe(self, k: int, row_filter: RowFilter | None) -> int:
        return 1

    def select(self, rows: Int64s) -> None:
        self._coarse.select(rows)
        self._residual.codes = self._residual.codes[rows]

    def state(self) -> tuple[dict[str, Any], Arrays]:
        return self._calibration.to_values(), self._coarse.state() | self._residual.state()

    @classmethod
    def restore(cls, values: dict[str, Any], arrays: Arrays, store: DescriptorStore) -> FastCodec:
        return cls(CoarseScan.restore(arrays), ResidualCodes.restore(arrays), RecallCalibration.from_values(values))

    def settings(self) -> dict[str, Any]:
        coarse, residual = self._coarse.code_bytes, len(self._residual.centroids)
        chosen = {"code_bytes": coarse + residual, "coarse_bytes": coarse, "lists": len(self._coarse.lists)}
        return chosen | self._calibration.to_values()

    def error(self, descriptors: Float32s) -> float:
        if len(descriptors) == 0:
            return 0.0
        coordinates = self._coarse.projection.apply(descriptors)
        missed = coordinates - self._coarse.decoded(coordinates)
        missed -= self._residual.decode(self._residual.encode(missed))
        # Without coordinate 0: its weight would outshout the others.
        return float(np.square(missed[:, 1:]).sum() / max(np.square(coordinates[:, 1:]).sum(), 1e-12))

    @property
    def memory_bytes(self) -> int:
        return self._coarse.memory_bytes + self._residual.memory_bytes


def _coordinates(dim: int) -> int:
    """How many coordinates of a descriptor may be coded: all of them, if it is short."""
    step = 64 if dim >= 256 else SUBSPACE
    return min(-(-(dim + 1) // step) * step, _MOST_A_BYTE * (_CODE_BYTES - LADDER[0] // 2))
