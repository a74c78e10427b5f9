"""`fast`: a coarse scan of short codes, exact re-scoring of the best rows by their descriptors.

Coarse scan: 24 to 48 bytes a row, read with SIMD (see `coarse_scan`). Exact re-scoring: the fp16 descriptors of some
hundred rows, read in place; they decide order and scores. How many rows are read is measured when the index is built
(see `recall_calibration`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tessera.index.codecs.coarse_scan import CoarseScan
from tessera.index.codecs.code_length import SUBSPACE
from tessera.index.codecs.codec import Arrays, Codec, Float32s, Int64s, for_each
from tessera.index.codecs.recall_calibration import CalibrationSet, RecallCalibration, calibrate
from tessera.index.descriptor_file import DescriptorStore
from tessera.index.exact_scores import best_rows, joined
from tessera.index.rows import RowFilter

LADDER = (48, 56, 64, 80, 96)  # subspaces: 24 to 48 bytes
_COORDINATES = 288  # 4 or 3 to a subspace; 384 in 48 bytes need as many candidates, and longer to project
_BLOCK_ROWS = 4096


class FastCodec(Codec):
    """The coarse codes, and how many of the rows that they put first are scored by their descriptors."""

    name = "fast"
    exact = True
    target_recall = 0.985

    def __init__(self, coarse: CoarseScan, calibration: RecallCalibration) -> None:
        self._coarse = coarse
        self._calibration = calibration

    @classmethod
    def fit(cls, store: DescriptorStore, *, seed: int, target_recall: float) -> FastCodec:
        calibration_set = CalibrationSet.draw(store, seed)
        coarse, _ = CoarseScan.fit(
            store,
            calibration_set,
            coordinates=min(-(-(store.dim + 1) // SUBSPACE) * SUBSPACE, _COORDINATES),
            ladder=LADDER,
            last=True,
            seed=seed,
            target_recall=target_recall,
        )
        codec = cls(coarse, RecallCalibration.cautious())
        for _, block in store.blocks(_BLOCK_ROWS):
            codec.append(block)
        codec._calibration = calibrate(
            codec.search_candidates, calibration_set, len(store), coarse_shares=(1.0,), target=target_recall
        )
        return codec

    def append(self, descriptors: Float32s) -> None:
        self._coarse.append(self._coarse.projection.apply(descriptors))

    def search_candidates(self, queries: Float32s, count: int, nprobe: int) -> tuple[Int64s, Float32s]:
        """The rows that the coarse scan puts first, and their estimated scores: Q count, padded with -1 and -inf."""
        return self._coarse.search(self._coarse.project_queries(queries), count, None, nprobe)

    def search(
        self, queries: Float32s, k: int, row_filter: RowFilter | None, store: DescriptorStore
    ) -> tuple[Float32s, Int64s]:
        total = len(self._coarse)
        possible = total if row_filter is None else len(row_filter)
        num_rescored = min(self._calibration.num_rescored_for(k, total), possible)
        few = row_filter.rows if row_filter is not None and possible <= 2 * num_rescored else None
        coordinates = self._coarse.project_queries(queries)

        def answer(q: int) -> tuple[Float32s, Int64s]:
            mine = few
            if mine is None:
                mine = self._shortlist(coordinates[q : q + 1], k, num_rescored, row_filter)
            return best_rows(queries[q], mine, store, k)

        return joined(for_each(answer, len(queries)))

    def _shortlist(self, coordinates: Float32s, k: int, num_rescored: int, row_filter: RowFilter | None) -> Int64s:
        """The rows whose descriptors are read for a projected query 1 C."""
        return self._coarse.shortlist(coordinates, num_rescored, row_filter)[0]

    def select(self, rows: Int64s) -> None:
        self._coarse.select(rows)

    def state(self) -> tuple[dict[str, Any], Arrays]:
        return self._calibration.to_values(), self._coarse.state()

    @classmethod
    def restore(cls, values: dict[str, Any], arrays: Arrays, store: DescriptorStore) -> FastCodec:
        return cls(CoarseScan.restore(arrays), RecallCalibration.from_values(values))

    def settings(self) -> dict[str, Any]:
        return {"code_bytes": self._coarse.code_bytes} | self._calibration.to_values()

    def error(self, descriptors: Float32s) -> float:
        if len(descriptors) == 0:
            return 0.0
        coordinates = self._coarse.projection.apply(descriptors)
        return error_share(coordinates, coordinates - self._coarse.decoded(coordinates))

    @property
    def memory_bytes(self) -> int:
        return self._coarse.memory_bytes


def error_share(coordinates: Float32s, missed: Float32s) -> float:
    """The energy that codes missed, as a share of all; without coordinate 0, whose weight would outshout the others."""
    return float(np.square(missed[:, 1:]).sum() / max(np.square(coordinates[:, 1:]).sum(), 1e-12))
