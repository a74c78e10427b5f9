"""`ivf`: the codes of `fast` sorted into lists, of which a search looks into a few; for tens of millions of images."""

from __future__ import annotations

import numpy as np

from tessera.index.codec import Float32s, Int64s
from tessera.index.fast import FastCodec
from tessera.index.rows import Keep

_MOST_LISTS = 16384


class IvfCodec(FastCodec):
    """Lists around k-means centres of the projected rows; how many of them to look into is measured, too."""

    name = "ivf"
    _centres: Float32s | None = None
    _energies: Float32s

    @staticmethod
    def _lists(total: int) -> int:
        # A power of two, of the order of 2 sqrt(N): coarse search and lists then cost about the same.
        wanted = min(2 * np.sqrt(max(total, 1)), total / 39, _MOST_LISTS)
        return int(2 ** np.floor(np.log2(max(wanted, 1))))

    def _coarse(self, queries: Float32s, probes: int) -> Int64s:
        """The lists whose centres are nearest.

        Not by FAISS's own coarse search: lists are near to or far from the centred query, while scores are products
        with the query as it is.
        """
        if self._centres is None:
            self._centres = self._index.quantizer.reconstruct_n(0, self._index.nlist)
            self._energies = np.einsum("nd,nd->n", self._centres, self._centres) / 2
        nearness = self._projection.apply(queries) @ self._centres.T - self._energies  # Q lists
        if probes < len(self._centres):
            lists = np.argpartition(-nearness, probes - 1, axis=1)[:, :probes]
        else:
            lists = np.broadcast_to(np.arange(len(self._centres)), nearness.shape)
        return np.ascontiguousarray(lists, np.int64)

    def _probe_ladder(self) -> tuple[int, ...]:
        lists = int(self._index.nlist)
        return tuple(2**i for i in range(2, int(np.log2(lists)) + 1)) if lists >= 4 else (lists,)

    def _probes(self, k: int, keep: Keep | None) -> int:
        """More lists for a narrow filter, so that as many admitted rows are looked at, and for k beyond 100."""
        lists, probes = int(self._index.nlist), self._calibration.probes
        share = 1.0 if keep is None else max(len(keep), 1) / max(int(self._index.ntotal), 1)
        return int(min(lists, np.ceil(probes / share * max(1.0, k / 100))))
