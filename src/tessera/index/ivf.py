"""`ivf`: the codes of `fast` sorted into lists, of which a search looks into a few; for tens of millions of images."""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np

from tessera.index.calibration import Probe, allowed_misses, depth_of
from tessera.index.codec import Float32s, Int64s
from tessera.index.fast import FastCodec
from tessera.index.rows import Keep
from tessera.index.store import DescriptorStore

_MOST_LISTS = 16384
_ROWS_A_LIST = 64  # to train on
_COARSE = 128  # leading coordinates that say which list
_COARSE_SHARE = 0.6  # of what may be missed, so much by looking into too few lists


class IvfCodec(FastCodec):
    """Lists around k-means centres of the projected rows; how many of them to look into is measured, too."""

    name = "ivf"
    _centres: Float32s | None = None
    _energies: Float32s
    _columns: Int64s

    @staticmethod
    def _lists(total: int) -> int:
        # A power of two, of the order of 2 sqrt(N): coarse search and lists then cost about the same.
        wanted = min(2 * np.sqrt(max(total, 1)), total / 39, _MOST_LISTS)
        return int(2 ** np.rint(np.log2(max(wanted, 1))))

    @classmethod
    def _training_rows(cls, total: int) -> int:
        return max(super()._training_rows(total), _ROWS_A_LIST * cls._lists(total))

    @classmethod
    def _centres_of(cls, rows: Float32s, order: Int64s, lists: int, seed: int) -> Float32s:
        """Centres in the leading coordinates, zero elsewhere: so the others do not say which is the nearest.

        Not in coordinate 0 (that of the mean), either: its weight is for scores, not for distances.
        """
        columns = _leading(order)
        clustering: Any = faiss.Clustering(len(columns), lists)
        clustering.seed, clustering.niter, clustering.min_points_per_centroid = seed + 1, 10, 1
        clustering.train(np.ascontiguousarray(rows[:, columns]), faiss.IndexFlatL2(len(columns)))
        centres = np.zeros((lists, rows.shape[1]), np.float32)
        centres[:, columns] = faiss.vector_to_array(clustering.centroids).reshape(lists, -1)
        return centres

    def _nearness(self, queries: Float32s) -> Float32s:
        """How near the centres are to queries Q d, Q lists."""
        if self._centres is None:
            centres = self._index.quantizer.reconstruct_n(0, self._index.nlist)
            self._columns = _leading(self._order)
            self._energies = np.einsum("nd,nd->n", centres, centres) / 2
            self._centres = np.ascontiguousarray(centres[:, self._columns])
        nearness: Float32s = queries[:, self._columns] @ self._centres.T - self._energies
        return nearness

    def _coarse(self, queries: Float32s, probes: int) -> Int64s:
        nearness = self._nearness(queries)
        if probes < nearness.shape[1]:
            lists = np.argpartition(-nearness, probes - 1, axis=1)[:, :probes]
        else:
            lists = np.broadcast_to(np.arange(nearness.shape[1]), nearness.shape)
        return np.ascontiguousarray(lists, np.int64)

    def _probe_ladder(self, probe: Probe, store: DescriptorStore, target: float) -> tuple[int, ...]:
        """As many lists as hold the true neighbours that must be found; more, should that not be enough."""
        lists = int(self._index.nlist)
        if len(probe.own) < 2:
            return (lists,)
        order = np.argsort(-self._nearness(self._project(probe.queries)), axis=1, kind="stable")
        ranks = np.argsort(order, axis=1)  # Q lists
        places = np.empty(probe.truth.shape, np.int64)
        for q, rows in enumerate(probe.truth):
            home = self._nearness(self._project(store.take(rows).astype(np.float32))).argmax(axis=1)
            places[q] = ranks[q, home]
        wanted = max(
            depth_of(places[:, :k], 1 - _COARSE_SHARE * misses) for k, misses in allowed_misses(target).items()
        )
        return tuple(sorted({min(wanted, lists), min(2 * wanted, lists), lists}))

    def _probes(self, k: int, keep: Keep | None) -> int:
        """More lists for a narrow filter, so that as many admitted rows are looked at, and for k beyond 100."""
        lists, probes = int(self._index.nlist), self._calibration.probes
        share = 1.0 if keep is None else max(len(keep), 1) / max(int(self._index.ntotal), 1)
        return int(min(lists, np.ceil(probes / share * max(1.0, k / 100))))


def _leading(order: Int64s) -> Int64s:
    """The columns that hold the leading coordinates, that of the mean not among them."""
    return np.flatnonzero((order > 0) & (order <= _COARSE))
