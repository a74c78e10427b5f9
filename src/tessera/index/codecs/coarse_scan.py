"""The coarse scan: short 4-bit codes of every row, compared by SIMD in registers.

A product quantiser with 16 centroids a subspace gives 32 to 64 bytes a row. FAISS's fast-scan layout is used in its
inverted-file form, because that one takes filters. It has one list, or many of which a search scans `nprobe` (see
`inverted_lists`). The best rows are candidates: the codec rescores them.
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np

from tessera.index.codecs.codec import Arrays, Float32s, Int64s, parameters
from tessera.index.codecs.inverted_lists import InvertedLists, train_list_centroids, training_rows_for
from tessera.index.codecs.projection import Projection, allocate_dimensions, principal_axes
from tessera.index.codecs.recall_calibration import RESCORE_NS, CalibrationSet, allowed_misses, estimate_num_candidates
from tessera.index.codecs.sampling import sample_rows, thinned, training_rows
from tessera.index.codecs.threshold_estimation import ThresholdEstimator
from tessera.index.descriptor_file import DescriptorStore
from tessera.index.rows import RowFilter

_TRAINING_ROWS = 32768
_CENTROID_ROWS = 16384  # 16 centroids a subspace need no more
_AXES_ROWS = 16384
_LEAST_ROWS = 256  # fewer rows than this are repeated for training: centroids need something to stand on
LADDER = (64, 96, 128)  # subspaces of 4 bits and 4 dimensions: 32, 48 or 64 bytes
SUBSPACE = 4
BYTE_NS = 0.056  # measured on one core: scanning one byte of a row
# Of the allowed misses, so many by these codes; inverted lists miss some, too, and spare nearly a third of the scan.
_COARSE_MISSES, _COARSE_MISSES_OF_LISTS, _SCANNED_OF_LISTS = 0.9, 0.45, 0.7
_NEARLY_ALL = 0.9  # a filter that admits so many rows leaves their scores as they were in the sample
_FAR_OFF = 4  # with so many times fewer or more rows than asked for, the estimated threshold was wrong


class CoarseScan:
    """A projection, and a FAISS fast-scan index over projected rows."""

    def __init__(self, projection: Projection, order: Int64s, index: Any, estimator: ThresholdEstimator) -> None:
        """order: the coordinates that are coded here, subspace by subspace. The index has the quantiser for queries."""
        self.projection = projection
        self.index = index
        self._order = order
        self._estimator = estimator
        self.lists = InvertedLists.of_queries(index.quantizer)

    @classmethod
    def fit(
        cls,
        store: DescriptorStore,
        calibration_set: CalibrationSet,
        *,
        coordinates: int,
        lists: int = 1,
        ladder: tuple[int, ...] = LADDER,
        seed: int,
        target_recall: float,
    ) -> tuple[CoarseScan, Float32s]:
        """Learn axes, centroids and lists from a sample of the store; also returns that sample's coordinates, N C.

        coordinates: C, how many the projection has. ladder: numbers of subspaces to choose from.
        """
        sample = training_sample(store, max(_TRAINING_ROWS, training_rows_for(lists)), seed)
        axes = principal_axes(thinned(sample, _AXES_ROWS), min(coordinates - 1, store.dim))
        projection = Projection.fit(sample, axes, coordinates)
        projected = projection.apply(sample)
        share = _COARSE_MISSES if lists == 1 else _COARSE_MISSES_OF_LISTS
        kept = {k: 1 - share * misses for k, misses in allowed_misses(target_recall).items()}
        scanned = len(store) * (1.0 if lists == 1 else _SCANNED_OF_LISTS)
        subspaces = _choose_subspaces(projection, projected, calibration_set, store, ladder, seed, kept, scanned)
        dim = min(subspaces * SUBSPACE, coordinates)
        order = allocate_dimensions(projected[:, :dim].var(axis=0), subspaces)
        rows = np.ascontiguousarray(projected[:, order])
        quantiser: Any = InvertedLists(train_list_centroids(rows, order, lists, seed)).queries
        index: Any = faiss.IndexIVFPQFastScan(quantiser, dim, lists, subspaces, 4, faiss.METRIC_INNER_PRODUCT)
        quantiser.this.disown()
        index.own_fields = True
        # Not residuals: a bias a list would take most of the eight bits that fast-scan gives to its tables.
        index.by_residual = False
        _prepare(index.pq, seed)
        index.train(rows)
        drawn = sample_rows(len(store), ThresholdEstimator.size_for(len(store)), seed + 13)
        coded = projection.apply(store.take(drawn).astype(np.float32))[:, order]
        estimator = ThresholdEstimator.fit(index.pq, coded)
        return cls(projection, order, index, estimator), thinned(projected, _TRAINING_ROWS)

    def __len__(self) -> int:
        return int(self.index.ntotal)

    @property
    def code_bytes(self) -> int:
        return int(self.index.pq.M) // 2

    def append(self, coordinates: Float32s) -> None:
        """Code more rows N C, after those that are there. No search may run meanwhile."""
        mine = self.index.quantizer
        self.index.quantizer = self.lists.rows
        try:
            self.index.add(np.ascontiguousarray(coordinates[:, self._order]))
        finally:
            self.index.quantizer = mine

    def decoded(self, coordinates: Float32s) -> Float32s:
        """What the codes of rows N C would know of them; zero where they have no code."""
        out = np.zeros(coordinates.shape, np.float32)
        out[:, self._order] = _recoded(self.index.pq, coordinates[:, self._order])
        return out

    def search(
        self, coordinates: Float32s, count: int, row_filter: RowFilter | None = None, nprobe: int = 1
    ) -> tuple[Int64s, Float32s]:
        """The best rows for projected queries Q C, and estimates of their scores: Q count, padded with -1 and -inf."""
        queries = np.ascontiguousarray(coordinates[:, self._order])
        scores, found = self.index.search(queries, count, params=_parameters(row_filter, nprobe))
        scores[found < 0] = -np.inf
        blind = found[:, 0] < 0  # FAISS finds nothing where nothing parts the rows: one image, or copies only
        if blind.any():
            rows = (np.arange(len(self)) if row_filter is None else row_filter.rows)[:count]
            found[blind, : len(rows)], scores[blind, : len(rows)] = rows, 0
        return found, scores

    def scan_above_threshold(
        self, coordinates: Float32s, count: int, row_filter: RowFilter | None = None, nprobe: int = 1
    ) -> tuple[Int64s, Float32s]:
        """About `count` of the best rows for one projected query 1 C, in no order, with estimates of their scores.

        All rows above a threshold that is estimated from a sample. Exactly the best `count` where a filter admits other
        rows than were sampled, or where far too few or too many pass.
        """
        query = np.ascontiguousarray(coordinates[:, self._order])
        threshold = None
        if row_filter is None or len(row_filter) >= _NEARLY_ALL * len(self):
            threshold = self._estimator.threshold_for(query, count / max(len(self), 1))
        if threshold is not None:
            _, scores, rows = self.index.range_search(query, threshold, params=_parameters(row_filter, nprobe))
            if count / _FAR_OFF <= len(rows) <= count * _FAR_OFF:
                return rows, scores
        found, estimates = self.search(coordinates, count, row_filter, nprobe)
        there = found[0] >= 0
        return found[0, there], estimates[0, there]

    def list_ranks(self, query: Float32s, rows: Float32s) -> Int64s:
        """How many lists a query 1 D scans before those of rows N D: N."""
        asked, theirs = self.projection.apply_query(query), self.projection.apply(rows)
        return self.lists.ranks(*(np.ascontiguousarray(part[:, self._order]) for part in (asked, theirs)))

    def select(self, rows: Int64s) -> None:
        """Keep only these rows (ascending), renumbered from zero."""
        total = len(self)
        dropped = np.ones(total, dtype=np.uint8)
        dropped[rows] = 0
        bitmap = np.packbits(dropped, bitorder="little")
        self.index.remove_ids(faiss.IDSelectorBitmap(total, faiss.swig_ptr(bitmap)))
        renumbered = np.cumsum(dropped == 0) - 1
        lists = self.index.invlists
        for i in range(self.index.nlist):
            if size := lists.list_size(i):
                ids = faiss.rev_swig_ptr(lists.get_ids(i), size)
                ids[:] = renumbered[ids]

    def state(self) -> Arrays:
        projection = self.projection
        arrays: Arrays = {"matrix": projection.matrix, "offset": projection.offset, "weights": projection.weights}
        arrays |= {"order": self._order, "index": faiss.serialize_index(self.index)}
        return arrays | {"threshold_sample": faiss.serialize_index(self._estimator.index)}

    @classmethod
    def restore(cls, arrays: Arrays) -> CoarseScan:
        projection = Projection(arrays["matrix"], arrays["offset"], arrays["weights"])
        estimator = ThresholdEstimator(faiss.deserialize_index(arrays["threshold_sample"]))
        return cls(projection, arrays["order"], faiss.deserialize_index(arrays["index"]), estimator)

    @property
    def memory_bytes(self) -> int:
        lists = self.index.invlists
        padded = sum(-(-lists.list_size(i) // 32) * 32 for i in range(self.index.nlist))
        codes = padded * (self.code_bytes + 8) + 4 * self.index.pq.centroids.size()
        return int(codes + self.projection.memory_bytes + self.lists.memory_bytes + self._estimator.memory_bytes)


def _parameters(row_filter: RowFilter | None, nprobe: int) -> Any:
    """FAISS search parameters: so many lists, and of their rows those that `row_filter` admits."""
    given: Any = faiss.SearchParametersIVF()
    given.nprobe = nprobe
    if (held := parameters(row_filter)) is not None:
        given.sel = held.sel
        given.held = held  # FAISS keeps a bare pointer
    return given


def training_sample(store: DescriptorStore, count: int, seed: int) -> Float32s:
    """Rows to fit on, in fp32; a handful is repeated, nothing becomes zeros."""
    sample = store.take(training_rows(len(store), count, seed)).astype(np.float32)
    if len(sample) == 0:
        return np.zeros((_LEAST_ROWS, store.dim), np.float32)
    return np.resize(sample, (_LEAST_ROWS, store.dim)) if len(sample) < _LEAST_ROWS else sample


def _prepare(pq: Any, seed: int) -> None:
    pq.cp.seed, pq.cp.niter = seed + 1, 12
    pq.cp.min_points_per_centroid, pq.cp.max_points_per_centroid = 1, _CENTROID_ROWS // 16


def _recoded(pq: Any, rows: Float32s) -> Float32s:
    decoded: Float32s = pq.decode(pq.compute_codes(np.ascontiguousarray(rows)))
    return decoded


def _choose_subspaces(
    projection: Projection,
    sample: Float32s,
    calibration_set: CalibrationSet,
    store: DescriptorStore,
    ladder: tuple[int, ...],
    seed: int,
    kept: dict[int, float],
    scanned: float,
) -> int:
    """How many subspaces to code: more bytes take longer to scan, fewer need more candidates.

    Each number is tried on a sample's coordinates and on the true neighbours of the calibration set.
    kept: the recall@k that the candidates must have; scanned: how many rows a search scans.
    """
    fitting = [subspaces for subspaces in ladder if subspaces * SUBSPACE <= sample.shape[1]]
    if len(fitting) < 2 or len(calibration_set) < 2:
        return fitting[0] if fitting else sample.shape[1] // 2
    queries = projection.apply_query(calibration_set.queries)
    near = [projection.apply(store.take(rows).astype(np.float32)) for rows in calibration_set.neighbours]
    costs = []
    for subspaces in fitting:
        dim = subspaces * SUBSPACE
        order = allocate_dimensions(sample[:, :dim].var(axis=0), subspaces)
        pq: Any = faiss.ProductQuantizer(dim, subspaces, 4)
        _prepare(pq, seed)
        pq.train(np.ascontiguousarray(sample[:, order]))
        asked = queries[:, order]
        theirs = [_recoded(pq, rows[:, order]) @ query for rows, query in zip(near, asked, strict=True)]
        scores = asked @ _recoded(pq, thinned(sample, _CENTROID_ROWS)[:, order]).T
        num_candidates = estimate_num_candidates(scores, theirs, len(store), kept)
        costs.append(scanned * subspaces / 2 * BYTE_NS + num_candidates * RESCORE_NS)
    return fitting[int(np.argmin(costs))]
