"""The coarse scan: short 4-bit codes of every row, compared by SIMD in registers.

A product quantiser with 16 centroids a subspace gives 16 to 64 bytes a row, in FAISS's fast-scan layout: all in one
piece, or in inverted lists of which a search scans `nprobe` (see `inverted_lists`). The best rows are candidates: the
codec rescores them. Only lists take filters, and they are slower; so what is in one piece is copied into one list by
the first search that needs it.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import faiss
import numpy as np

from tessera.index.codecs.code_length import choose_subspaces, num_coded, prepare_training, recoded, scan_ns
from tessera.index.codecs.codec import Arrays, Float32s, Int64s, parameters
from tessera.index.codecs.inverted_lists import InvertedLists, train_list_centroids, training_rows_for
from tessera.index.codecs.projection import Projection, allocate_dimensions, mean_first, principal_axes
from tessera.index.codecs.recall_calibration import (
    EXACT_NS,
    RESCORE_NS,
    CalibrationSet,
    allowed_misses,
)
from tessera.index.codecs.sampling import thinned, training_rows
from tessera.index.descriptor_file import DescriptorStore, widen
from tessera.index.rows import RowFilter

_TRAINING_ROWS = 32768
_AXES_ROWS = 16384
_LEAST_ROWS = 256  # fewer rows than this are repeated for training: centroids need something to stand on
# What codes leave out of a row agrees with what they leave out of a query that is near it. So <q, x> is more than
# <q, code> by a share of the energy that the code lacks, here a sixth, and the order is that of the distance between
# the query and a third of the code: |q - code / 3|^2 = |q|^2 - 2 / 3 (<q, code> - |code|^2 / 6). The share is what two
# sets of descriptors, real and synthetic, are best searched with; residual codes know what is left out.
_SHARE = 1 / 6
# Of the allowed misses, so many by these codes, where others follow; inverted lists miss some, too, and spare nearly a
# third of the scan.
_COARSE_MISSES, _COARSE_MISSES_OF_LISTS, _SCANNED_OF_LISTS = 0.9, 0.45, 0.7


class CoarseScan:
    """A projection, and a FAISS fast-scan index over projected rows."""

    def __init__(self, projection: Projection, index: Any, encoder: Any = None) -> None:
        """The projection's leading coordinates are coded, group by group. Lists come with the queries' quantiser.

        encoder: the quantiser of rows, where the index compares queries by distance; else the index has it.
        """
        self.projection = projection
        self.index = index
        self.dim = int(index.d)  # how many of the coordinates are coded
        self._encoder = encoder
        if encoder is not None:
            index.pq = _for_distances(encoder, projection)
        self.lists = InvertedLists.of_queries(index.quantizer) if isinstance(index, faiss.IndexIVF) else None
        self._listed: Any = None  # all rows in one list, for filters
        self._listing = threading.Lock()

    @classmethod
    def fit(
        cls,
        store: DescriptorStore,
        calibration_set: CalibrationSet,
        *,
        coordinates: int,
        lists: int = 1,
        ladder: tuple[int, ...],
        last: bool = False,
        seed: int,
        target_recall: float,
    ) -> tuple[CoarseScan, Float32s]:
        """Learn axes, centroids and lists from a sample of the store; also returns that sample's coordinates, N C.

        coordinates: C, how many the projection has. ladder: numbers of subspaces to choose from. last: every candidate
        is scored by its descriptor next; else by another code, and not all of the allowed misses may be of this one.
        """
        sample = training_sample(store, max(_TRAINING_ROWS, training_rows_for(lists)), seed)
        axes = principal_axes(thinned(sample, _AXES_ROWS), min(coordinates - 1, store.dim))
        projection = Projection.fit(sample, axes, coordinates, weighted=not last)
        projected = projection.apply(sample)
        share = 1.0 if last else _COARSE_MISSES if lists == 1 else _COARSE_MISSES_OF_LISTS
        kept = {k: 1 - share * misses for k, misses in allowed_misses(target_recall).items()}
        scanned = len(store) * (1.0 if lists == 1 else _SCANNED_OF_LISTS)

        def cost(subspaces: int, num_candidates: list[int]) -> float:
            """The time for ten neighbours, times that for a hundred: neither counts more for being longer."""
            projecting = scan_ns(4 * store.dim * num_coded(subspaces, coordinates))
            scan = projecting + scan_ns(scanned * subspaces / 2)
            return float(np.prod([scan + count * (EXACT_NS if last else RESCORE_NS) for count in num_candidates]))

        share_of_energy = _SHARE if last else 0.0
        subspaces = choose_subspaces(
            projection, projected, calibration_set, store, ladder, seed, kept, cost, share_of_energy
        )
        dim = num_coded(subspaces, coordinates)
        order = mean_first(allocate_dimensions(projected[:, :dim].var(axis=0), subspaces), subspaces)
        projection = projection.arranged(order)
        projected[:, :dim] = rows = np.take(projected, order, axis=1)
        if lists == 1:
            metric = faiss.METRIC_L2 if last else faiss.METRIC_INNER_PRODUCT
            index: Any = faiss.IndexPQFastScan(dim, subspaces, 4, metric)
        else:
            index = _in_lists(train_list_centroids(rows, order, lists, seed), subspaces)
        prepare_training(index.pq, seed)
        index.train(rows)
        if last:
            return cls(projection.leading(dim), index, _with_centroids(index.pq, _centroids(index.pq))), rows
        return cls(projection, index), thinned(projected, _TRAINING_ROWS)

    def __len__(self) -> int:
        return int(self.index.ntotal)

    @property
    def num_lists(self) -> int:
        return 1 if self.lists is None else len(self.lists)

    @property
    def code_bytes(self) -> int:
        return int(self.index.pq.M) // 2

    def append(self, coordinates: Float32s) -> None:
        """Code more rows N C, after those that are there. No search may run meanwhile."""
        self._listed = None
        rows = np.ascontiguousarray(coordinates[:, : self.dim])
        if self.lists is None:
            if self._encoder is not None:
                self.index.pq = self._encoder
            self.index.add(rows)
            if self._encoder is not None:
                self.index.pq = _for_distances(self._encoder, self.projection)
            return
        mine = self.index.quantizer
        self.index.quantizer = self.lists.rows
        try:
            self.index.add(rows)
        finally:
            self.index.quantizer = mine

    def project_queries(self, queries: Float32s) -> Float32s:
        """Queries Q D to the coordinates Q C that are searched with."""
        if self._encoder is None:
            return self.projection.apply_query(queries)
        return self.projection.apply_raw(queries)

    def decoded(self, coordinates: Float32s) -> Float32s:
        """What the codes of rows N C would know of them; zero where they have no code."""
        out = np.zeros(coordinates.shape, np.float32)
        out[:, : self.dim] = recoded(self._encoder or self.index.pq, coordinates[:, : self.dim])
        return out

    def search(
        self, coordinates: Float32s, count: int, row_filter: RowFilter | None = None, nprobe: int = 1
    ) -> tuple[Int64s, Float32s]:
        """The best rows for projected queries Q C, and estimates of their scores: Q count, padded with -1 and -inf."""
        found, scores = self._scan(coordinates, count, row_filter, nprobe)
        if self._encoder is not None:
            np.negative(scores, out=scores)
        if found[:, -1].min() >= 0:
            return found, scores
        scores[found < 0] = -np.inf
        blind = found[:, 0] < 0  # FAISS finds nothing where nothing parts the rows: one image, or copies only
        if blind.any():
            rows = (np.arange(len(self)) if row_filter is None else row_filter.rows)[:count]
            found[blind, : len(rows)], scores[blind, : len(rows)] = rows, 0
        return found, scores

    def _scan(
        self, coordinates: Float32s, count: int, row_filter: RowFilter | None, nprobe: int
    ) -> tuple[Int64s, Float32s]:
        """As FAISS finds them: fewer rows end in -1 with any score, and scores may be distances."""
        queries = np.ascontiguousarray(coordinates[:, : self.dim])
        if self.lists is not None:
            scores, found = self.index.search(queries, count, params=_parameters(row_filter, nprobe))
        elif row_filter is None:
            scores, found = self.index.search(queries, count)
        else:
            scores, found = self._in_a_list().search(queries, count, params=_parameters(row_filter, 1))
        return found, scores

    def shortlist(
        self, coordinates: Float32s, count: int, row_filter: RowFilter | None = None, nprobe: int = 1
    ) -> tuple[Int64s, Float32s]:
        """The same for one projected query 1 C, not padded: at most `count` rows, and their scores or distances."""
        gone = 0 if row_filter is None else len(self) - len(row_filter)
        if row_filter is not None and self.lists is None and gone <= count:
            # Only some are deleted: among so many more are the best of the others, and no list is needed.
            found, scores = self.search(coordinates, count + gone)
            there = np.flatnonzero(row_filter.admits(found[0]))[:count]
        else:
            found, scores = self._scan(coordinates, count, row_filter, nprobe)
            if found[0, -1] >= 0:
                return found[0], scores[0]
            found, scores = self.search(coordinates, count, row_filter, nprobe)
            there = np.flatnonzero(found[0] >= 0)
        return found[0, there], scores[0, there]

    def _in_a_list(self) -> Any:
        """The same codes in one inverted list, which FAISS searches under a filter."""
        with self._listing:
            if self._listed is None:
                listed: Any = _in_lists(np.zeros((1, self.dim), np.float32), self.index.pq.M, self.index.metric_type)
                listed.pq, listed.is_trained, listed.ntotal = self.index.pq, True, len(self)
                lists: Any = faiss.downcast_InvertedLists(listed.invlists)
                lists.resize(0, len(self))
                faiss.memcpy(lists.get_codes(0), self.index.codes.get(), self.index.codes.nbytes())
                faiss.rev_swig_ptr(lists.get_ids(0), len(self))[:] = np.arange(len(self))
                self._listed = listed
            return self._listed

    def list_ranks(self, query: Float32s, rows: Float32s) -> Int64s:
        """How many lists a query 1 D scans before those of rows N D: N."""
        assert self.lists is not None
        asked, theirs = self.projection.apply_query(query), self.projection.apply(rows)
        return self.lists.ranks(*(np.ascontiguousarray(part[:, : self.dim]) for part in (asked, theirs)))

    def select(self, rows: Int64s) -> None:
        """Keep only these rows (ascending), renumbered from zero."""
        self._listed = None
        total = len(self)
        dropped = np.ones(total, dtype=np.uint8)
        dropped[rows] = 0
        bitmap = np.packbits(dropped, bitorder="little")
        self.index.remove_ids(faiss.IDSelectorBitmap(total, faiss.swig_ptr(bitmap)))
        if self.lists is None:
            return
        renumbered = np.cumsum(dropped == 0) - 1
        lists = self.index.invlists
        for i in range(self.index.nlist):
            if size := lists.list_size(i):
                ids = faiss.rev_swig_ptr(lists.get_ids(i), size)
                ids[:] = renumbered[ids]

    def state(self) -> Arrays:
        projection = self.projection
        arrays: Arrays = {"matrix": projection.matrix, "offset": projection.offset, "weights": projection.weights}
        if self._encoder is not None:
            arrays["coarse_centroids"] = _centroids(self._encoder)
        return arrays | {"index": faiss.serialize_index(self.index)}

    @classmethod
    def restore(cls, arrays: Arrays) -> CoarseScan:
        projection = Projection(arrays["matrix"], arrays["offset"], arrays["weights"])
        index: Any = faiss.deserialize_index(arrays["index"])
        encoder = _with_centroids(index.pq, arrays["coarse_centroids"]) if "coarse_centroids" in arrays else None
        return cls(projection, index, encoder)

    @property
    def memory_bytes(self) -> int:
        tables = self.projection.memory_bytes + 4 * int(self.index.pq.centroids.size())
        if self.lists is None:
            listed = 0 if self._listed is None else int(self.index.codes.nbytes()) + 8 * len(self)
            return int(self.index.codes.nbytes()) + listed + tables
        sizes = [self.index.invlists.list_size(i) for i in range(self.index.nlist)]
        padded = sum(-(-size // 32) * 32 for size in sizes)
        return int(padded * self.code_bytes + 8 * len(self) + self.lists.memory_bytes + tables)


def _in_lists(centroids: Float32s, subspaces: int, metric: int = faiss.METRIC_INNER_PRODUCT) -> Any:
    """Lists around centroids L d, which `inverted_lists` has for rows and turns into those for queries."""
    quantiser: Any = InvertedLists(centroids).queries
    index: Any = faiss.IndexIVFPQFastScan(quantiser, centroids.shape[1], len(centroids), subspaces, 4, metric)
    quantiser.this.disown()
    index.own_fields = True
    # Not residuals: a bias a list would take most of the eight bits that fast-scan gives to its tables.
    index.by_residual = False
    return index


@functools.lru_cache(maxsize=256)
def _lists_only(nprobe: int) -> Any:
    given: Any = faiss.SearchParametersIVF()
    given.nprobe = nprobe
    return given


def _parameters(row_filter: RowFilter | None, nprobe: int) -> Any:
    """FAISS search parameters: so many lists, and of their rows those that `row_filter` admits."""
    if row_filter is None:
        return _lists_only(nprobe)
    given: Any = faiss.SearchParametersIVF()
    given.nprobe = nprobe
    if (held := parameters(row_filter)) is not None:
        given.sel = held.sel
        given.held = held  # FAISS keeps a bare pointer
    return given


def training_sample(store: DescriptorStore, count: int, seed: int) -> Float32s:
    """Rows to fit on, in fp32; a handful is repeated, nothing becomes zeros."""
    sample = widen(store.take(training_rows(len(store), count, seed)))
    if len(sample) == 0:
        return np.zeros((_LEAST_ROWS, store.dim), np.float32)
    return np.resize(sample, (_LEAST_ROWS, store.dim)) if len(sample) < _LEAST_ROWS else sample


def _centroids(pq: Any) -> Float32s:
    """M 16 (d / M)."""
    copied: Float32s = faiss.vector_to_array(pq.centroids).reshape(pq.M, pq.ksub, pq.dsub)
    return copied


def _with_centroids(pq: Any, centroids: Float32s) -> Any:
    made: Any = faiss.ProductQuantizer(pq.d, pq.M, pq.nbits)
    faiss.copy_array_to_vector(np.ascontiguousarray(centroids).reshape(-1), made.centroids)
    return made


def _for_distances(encoder: Any, projection: Projection) -> Any:
    """The quantiser whose distances to raw queries order the rows."""
    by_centroid = _centroids(encoder).transpose(1, 0, 2)
    raw = projection.raw(by_centroid.reshape(len(by_centroid), -1), 2 * _SHARE)
    return _with_centroids(encoder, raw.reshape(by_centroid.shape).transpose(1, 0, 2))
