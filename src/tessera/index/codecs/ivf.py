"""`ivf`: the codes of `fast` in inverted lists, of which a search scans `nprobe`; for millions of images."""

from __future__ import annotations

import numpy as np

from tessera.index.codecs.coarse_scan import BYTE_NS
from tessera.index.codecs.fast import FastCodec
from tessera.index.codecs.recall_calibration import (
    EXACT_NS,
    RESCORE_NS,
    CalibrationSet,
    RecallCalibration,
    allowed_misses,
    count_reaching,
)
from tessera.index.descriptor_file import DescriptorStore
from tessera.index.rows import RowFilter

_MOST_LISTS = 16384
_SHARES = (0.35, 0.5, 0.65, 0.8)  # of what may be missed, so many by scanning too few lists: tried in turn
_LIST_NS = 2000.0  # measured on one core: opening a list


class IvfCodec(FastCodec):
    """Inverted lists around k-means centroids of the projected rows; nprobe is measured, too."""

    name = "ivf"

    @staticmethod
    def _lists(total: int) -> int:
        # A power of two near sqrt(N) / 8: more lists hold neighbours together better, but each costs its opening.
        wanted = min(np.sqrt(max(total, 1)) / 8, total / 39, _MOST_LISTS)
        return int(2 ** np.rint(np.log2(max(wanted, 1))))

    def _nprobe_ladder(self, calibration_set: CalibrationSet, store: DescriptorStore, target: float) -> tuple[int, ...]:
        """Numbers of lists that hold enough of the true neighbours; the last is all of them."""
        lists = len(self._coarse.lists)
        if len(calibration_set) < 2:
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
        share = calibration.nprobe / len(self._coarse.lists)
        scan = share * len(self._coarse) * self._coarse.code_bytes * BYTE_NS + calibration.nprobe * _LIST_NS
        return scan + calibration.num_candidates_100 * RESCORE_NS + calibration.num_rescored_100 * EXACT_NS

    def _nprobe(self, k: int, row_filter: RowFilter | None) -> int:
        """More lists for a narrow filter, so that as many admitted rows are scanned, and for k beyond 100."""
        lists, nprobe = len(self._coarse.lists), self._calibration.nprobe
        share = 1.0 if row_filter is None else max(len(row_filter), 1) / max(len(self._coarse), 1)
        return int(min(lists, np.ceil(nprobe / share * max(1.0, k / 100))))
