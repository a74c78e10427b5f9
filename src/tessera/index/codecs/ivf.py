"""`ivf`: inverted lists, of which a search scans `nprobe`, and residual re-scoring; for millions of images.

Coarse scan: codes of 32 to 64 bytes in lists around k-means centroids (see `coarse_scan`). Residual re-scoring: what
those codes missed, in the rest of 128 bytes, for some thousand candidates (see `residual_rescoring`): the descriptors
of so many images do not fit in memory, so few of them should be read. Exact re-scoring as in `fast`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.index.codecs.coarse_scan import CoarseScan
from tessera.index.codecs.code_length import SUBSPACE, scan_ns
from tessera.index.codecs.codec import Arrays, Float32s, Int64s, for_each
from tessera.index.codecs.fast import FastCodec, error_share
from tessera.index.codecs.recall_calibration import (
    COARSE_SHARES,
    EXACT_NS,
    RESCORE_NS,
    CalibrationSet,
    RecallCalibration,
    allowed_misses,
    calibrate,
    count_reaching,
)
from tessera.index.codecs.residual_rescoring import ResidualCodes
from tessera.index.descriptor_file import DescriptorStore
from tessera.index.rows import RowFilter

LADDER = (64, 96, 128)
_CODE_BYTES = 128
_MOST_A_BYTE = 8  # coordinates to a byte of the residual: with more, 256 centroids say little of each
_MOST_LISTS = 16384
_SHARES = (0.35, 0.5, 0.65, 0.8)  # of what may be missed, so many by scanning too few lists: tried in turn
_LIST_NS = 2000.0  # measured on one core: opening a list
_BLOCK_ROWS = 4096


class IvfCodec(FastCodec):
    """The coarse codes in lists, the residual codes, and how many lists and rows each stage passes on."""

    name = "ivf"

    def __init__(self, coarse: CoarseScan, residual: ResidualCodes, calibration: RecallCalibration) -> None:
        super().__init__(coarse, calibration)
        self._residual = residual

    @classmethod
    def fit(cls, store: DescriptorStore, *, seed: int, target_recall: float) -> IvfCodec:
        calibration_set = CalibrationSet.draw(store, seed)
        coarse, sample = CoarseScan.fit(
            store,
            calibration_set,
            coordinates=_coordinates(store.dim),
            lists=_num_lists(len(store)),
            ladder=LADDER,
            seed=seed,
            target_recall=target_recall,
        )
        missed = sample - coarse.decoded(sample)
        width = min(_CODE_BYTES - coarse.code_bytes, missed.shape[1] // SUBSPACE)
        coded = width * min(missed.shape[1] // width, _MOST_A_BYTE)
        residual = ResidualCodes.fit(missed[:, :coded], width, seed)
        coarse.projection = coarse.projection.leading(coded)
        codec = cls(coarse, residual, RecallCalibration.cautious())
        codes = np.empty((len(store), width), np.uint8)
        for start, block in store.blocks(_BLOCK_ROWS):
            codes[start : start + len(block)] = codec._code(block)
        residual.codes = codes
        codec._calibration = calibrate(
            codec.search_candidates,
            calibration_set,
            len(store),
            nprobe=codec._nprobe_ladder(calibration_set, store, target_recall),
            coarse_shares=COARSE_SHARES,
            target=target_recall,
            cost=codec.cost_ns,
        )
        return codec

    def _nprobe_ladder(self, calibration_set: CalibrationSet, store: DescriptorStore, target: float) -> tuple[int, ...]:
        """Numbers of lists that hold enough of the true neighbours; the last is all of them."""
        lists = self._coarse.num_lists
        if len(calibration_set) < 2 or lists == 1:
            return (lists,)
        ranks = np.stack(
            [
                self._coarse.list_ranks(query[None], store.take(rows).astype(np.float32))
                for query, rows in zip(calibration_set.queries, calibration_set.neighbours, strict=True)
            ]
        )
        wanted = [
            max(count_reaching(ranks[:, :k], 1 - share * misses) for k, misses in allowed_misses(target).items())
            for share in _SHARES
        ]
        return tuple(sorted({min(count, lists) for count in (*wanted, lists)}))

    def cost_ns(self, calibration: RecallCalibration) -> float:
        """What a query for a hundred would cost."""
        share = calibration.nprobe / self._coarse.num_lists
        scan = scan_ns(share * len(self._coarse) * self._coarse.code_bytes) + calibration.nprobe * _LIST_NS
        return scan + calibration.num_candidates_100 * RESCORE_NS + calibration.num_rescored_100 * EXACT_NS

    def _code(self, descriptors: Float32s) -> npt.NDArray[np.uint8]:
        """Put rows into their lists; their residual codes."""
        coordinates = self._coarse.projection.apply(descriptors)
        self._coarse.append(coordinates)
        return self._residual.encode(coordinates - self._coarse.decoded(coordinates))

    def append(self, descriptors: Float32s) -> None:
        self._residual.append(self._code(descriptors))

    def search_candidates(self, queries: Float32s, count: int, nprobe: int) -> tuple[Int64s, Float32s]:
        """The rows that the coarse scan puts first, and their re-scored scores: Q count, padded with -1 and -inf."""
        coordinates = self._coarse.project_queries(queries)
        rows, scores = self._coarse.search(coordinates, count, None, nprobe)

        def rescore(q: int) -> None:
            scores[q] += self._residual.score(self._residual.table(coordinates[q]), rows[q])

        for_each(rescore, len(queries))
        return rows, scores

    def _shortlist(self, coordinates: Float32s, k: int, num_rescored: int, row_filter: RowFilter | None) -> Int64s:
        num_candidates = max(self._calibration.num_candidates_for(k, len(self._coarse)), num_rescored)
        if row_filter is not None:
            num_candidates = min(num_candidates, len(row_filter))
        rows, scores = self._coarse.shortlist(
            coordinates, min(num_candidates, len(self._coarse)), row_filter, self._nprobe(k, row_filter)
        )
        if len(rows) > num_rescored:
            rows = self._residual.best(coordinates[0], rows, scores, num_rescored)
        return np.sort(rows)

    def _nprobe(self, k: int, row_filter: RowFilter | None) -> int:
        """More lists for a narrow filter, so that as many admitted rows are scanned, and for k beyond 100."""
        lists, nprobe = self._coarse.num_lists, self._calibration.nprobe
        share = 1.0 if row_filter is None else max(len(row_filter), 1) / max(len(self._coarse), 1)
        return int(min(lists, np.ceil(nprobe / share * max(1.0, k / 100))))

    def select(self, rows: Int64s) -> None:
        self._coarse.select(rows)
        self._residual.codes = self._residual.codes[rows]

    def state(self) -> tuple[dict[str, Any], Arrays]:
        return self._calibration.to_values(), self._coarse.state() | self._residual.state()

    @classmethod
    def restore(cls, values: dict[str, Any], arrays: Arrays, store: DescriptorStore) -> IvfCodec:
        return cls(CoarseScan.restore(arrays), ResidualCodes.restore(arrays), RecallCalibration.from_values(values))

    def settings(self) -> dict[str, Any]:
        coarse, residual = self._coarse.code_bytes, len(self._residual.centroids)
        chosen = {"code_bytes": coarse + residual, "coarse_bytes": coarse, "lists": self._coarse.num_lists}
        return chosen | self._calibration.to_values()

    def error(self, descriptors: Float32s) -> float:
        if len(descriptors) == 0:
            return 0.0
        coordinates = self._coarse.projection.apply(descriptors)
        missed = coordinates - self._coarse.decoded(coordinates)
        return error_share(coordinates, missed - self._residual.decode(self._residual.encode(missed)))

    @property
    def memory_bytes(self) -> int:
        return self._coarse.memory_bytes + self._residual.memory_bytes


def _num_lists(total: int) -> int:
    # A power of two near sqrt(N) / 8: more lists hold neighbours together better, but each costs its opening.
    wanted = min(np.sqrt(max(total, 1)) / 8, total / 39, _MOST_LISTS)
    return int(2 ** np.rint(np.log2(max(wanted, 1))))


def _coordinates(dim: int) -> int:
    """How many coordinates of a descriptor may be coded: all of them, if it is short."""
    step = 64 if dim >= 256 else SUBSPACE
    return min(-(-(dim + 1) // step) * step, _MOST_A_BYTE * (_CODE_BYTES - LADDER[0] // 2))
