"""`ivf`: the codes of `fast` sorted into lists, of which a search looks into some; for millions of images."""

from __future__ import annotations

import numpy as np

from tessera.index.codecs.calibration import EXACT_NS, ROW_NS, Calibration, Probe, allowed_misses, depth_of
from tessera.index.codecs.coarse_scan import BYTE_NS
from tessera.index.codecs.fast import FastCodec
from tessera.index.descriptor_file import DescriptorStore
from tessera.index.rows import Keep

_MOST_LISTS = 16384
_SHARES = (0.35, 0.5, 0.65, 0.8)  # of what may be missed, so much by looking into too few lists: tried in turn
_LIST_NS = 2000.0  # measured on one core: opening a list


class IvfCodec(FastCodec):
    """Lists around k-means centres of the projected rows; how many of them to look into is measured, too."""

    name = "ivf"

    @staticmethod
    def _lists(total: int) -> int:
        # A power of two near sqrt(N) / 8: more lists hold neighbours together better, but each costs its opening.
        wanted = min(np.sqrt(max(total, 1)) / 8, total / 39, _MOST_LISTS)
        return int(2 ** np.rint(np.log2(max(wanted, 1))))

    def _probe_ladder(self, probe: Probe, store: DescriptorStore, target: float) -> tuple[int, ...]:
        """Numbers of lists that hold enough of the true neighbours; the last is all of them."""
        lists = len(self._first.lists)
        if len(probe.own) < 2:
            return (lists,)
        ranks = np.stack(
            [
                self._first.list_ranks(query[None], store.take(rows).astype(np.float32))
                for query, rows in zip(probe.queries, probe.truth, strict=True)
            ]
        )
        wanted = [
            max(depth_of(ranks[:, :k], 1 - share * misses) for k, misses in allowed_misses(target).items())
            for share in _SHARES
        ]
        return tuple(sorted({min(count, lists) for count in (*wanted, lists)}))

    def cost_ns(self, calibration: Calibration) -> float:
        share = calibration.probes / len(self._first.lists)
        scan = share * len(self._first) * self._first.code_bytes * BYTE_NS + calibration.probes * _LIST_NS
        return scan + calibration.depth_100 * ROW_NS + calibration.exact_100 * EXACT_NS

    def _probes(self, k: int, keep: Keep | None) -> int:
        """More lists for a narrow filter, so that as many admitted rows are looked at, and for k beyond 100."""
        lists, probes = len(self._first.lists), self._calibration.probes
        share = 1.0 if keep is None else max(len(keep), 1) / max(len(self._first), 1)
        return int(min(lists, np.ceil(probes / share * max(1.0, k / 100))))
