"""The first look at every row: short 4-bit codes that SIMD goes through in registers.

32 to 64 bytes of a product quantiser with 16 words a subspace, in FAISS's fast-scan layout as an inverted file: that
form takes filters. It has one list, or many of which a search looks into some (see `lists`). The rows that it puts
first are looked at again by whoever asked.
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np

from tessera.index.codecs.calibration import ROW_NS, Probe, allowed_misses, expected_depth
from tessera.index.codecs.codec import Arrays, Float32s, Int64s, parameters
from tessera.index.codecs.inverted_lists import ListOrder, train_centres, training_rows_for
from tessera.index.codecs.projection import Projection, allot, principal_axes
from tessera.index.codecs.sampling import sample_rows, thinned, training_rows
from tessera.index.codecs.threshold_estimation import ScoreSample
from tessera.index.descriptor_file import DescriptorStore
from tessera.index.rows import Keep

_TRAINING_ROWS = 32768
_WORD_ROWS = 16384  # 16 words a subspace need no more
_AXES_ROWS = 16384
_LEAST_ROWS = 256  # fewer rows than this are repeated for training: words need something to stand on
LADDER = (64, 96, 128)  # subspaces of 4 bits and 4 dimensions: 32, 48 or 64 bytes
SUBSPACE = 4
BYTE_NS = 0.056  # measured on one core: going past a byte of every row
# Of what may be missed, so much by these codes; lists miss some, too, and spare nearly a third of the way.
_FIRST_MISSES, _FIRST_MISSES_OF_LISTS, _SCANNED_OF_LISTS = 0.9, 0.45, 0.7
_NEARLY_ALL = 0.9  # a filter that admits so many rows leaves their scores as they were in the sample
_FAR_OFF = 4  # so many times fewer or more rows than asked for are not what was foretold


class FirstLook:
    """A projection, and a FAISS fast-scan index over projected rows."""

    def __init__(self, projection: Projection, order: Int64s, index: Any, sample: ScoreSample) -> None:
        """order: the coordinates that are coded here, subspace by subspace. The index has the quantiser for queries."""
        self.projection = projection
        self.index = index
        self._order = order
        self._sample = sample
        self.lists = ListOrder.of_queries(index.quantizer)

    @classmethod
    def fit(
        cls,
        store: DescriptorStore,
        probe: Probe,
        *,
        coordinates: int,
        lists: int = 1,
        ladder: tuple[int, ...] = LADDER,
        seed: int,
        target_recall: float,
    ) -> tuple[FirstLook, Float32s]:
        """Learn axes, words and lists from a sample of the store; also returns that sample's coordinates, N C.

        coordinates: C, how many the projection has. ladder: numbers of subspaces to choose from.
        """
        sample = training_sample(store, max(_TRAINING_ROWS, training_rows_for(lists)), seed)
        axes = principal_axes(thinned(sample, _AXES_ROWS), min(coordinates - 1, store.dim))
        projection = Projection.fit(sample, axes, coordinates)
        projected = projection.apply(sample)
        share = _FIRST_MISSES if lists == 1 else _FIRST_MISSES_OF_LISTS
        kept = {k: 1 - share * misses for k, misses in allowed_misses(target_recall).items()}
        scanned = len(store) * (1.0 if lists == 1 else _SCANNED_OF_LISTS)
        subspaces = _choose_rung(projection, projected, probe, store, ladder, seed, kept, scanned)
        dim = min(subspaces * SUBSPACE, coordinates)
        order = allot(projected[:, :dim].var(axis=0), subspaces)
        rows = np.ascontiguousarray(projected[:, order])
        quantiser: Any = ListOrder(train_centres(rows, order, lists, seed)).queries
        index: Any = faiss.IndexIVFPQFastScan(quantiser, dim, lists, subspaces, 4, faiss.METRIC_INNER_PRODUCT)
        quantiser.this.disown()
        index.own_fields = True
        # Not residuals: a bias a list would take most of the eight bits that fast-scan gives to its tables.
        index.by_residual = False
        _prepare(index.pq, seed)
        index.train(rows)
        drawn = store.take(sample_rows(len(store), ScoreSample.size_for(len(store)), seed + 13)).astype(np.float32)
        foretold = ScoreSample.fit(index.pq, projection.apply(drawn)[:, order])
        return cls(projection, order, index, foretold), thinned(projected, _TRAINING_ROWS)

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

    def best(
        self, coordinates: Float32s, depth: int, keep: Keep | None = None, probes: int = 1
    ) -> tuple[Int64s, Float32s]:
        """The best rows for projected queries Q C, and estimates of their scores: Q depth, padded with -1 and -inf."""
        queries = np.ascontiguousarray(coordinates[:, self._order])
        scores, found = self.index.search(queries, depth, params=_parameters(keep, probes))
        scores[found < 0] = -np.inf
        blind = found[:, 0] < 0  # FAISS finds nothing where nothing parts the rows: one image, or copies only
        if blind.any():
            rows = (np.arange(len(self)) if keep is None else keep.rows)[:depth]
            found[blind, : len(rows)], scores[blind, : len(rows)] = rows, 0
        return found, scores

    def keep_about(
        self, coordinates: Float32s, depth: int, keep: Keep | None = None, probes: int = 1
    ) -> tuple[Int64s, Float32s]:
        """About `depth` of the best rows for one projected query 1 C, in no order, with estimates of their scores.

        All that pass a score foretold from a sample. Where a filter admits another kind of rows than were drawn, or far
        too few or too many pass, it is exactly the best.
        """
        query = np.ascontiguousarray(coordinates[:, self._order])
        threshold = None
        if keep is None or len(keep) >= _NEARLY_ALL * len(self):
            threshold = self._sample.score_at(query, depth / max(len(self), 1))
        if threshold is not None:
            _, scores, rows = self.index.range_search(query, threshold, params=_parameters(keep, probes))
            if depth / _FAR_OFF <= len(rows) <= depth * _FAR_OFF:
                return rows, scores
        found, estimates = self.best(coordinates, depth, keep, probes)
        there = found[0] >= 0
        return found[0, there], estimates[0, there]

    def list_ranks(self, query: Float32s, rows: Float32s) -> Int64s:
        """How many lists a query 1 D would look into before those of rows N D: N."""
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
        return arrays | {"sample": faiss.serialize_index(self._sample.index)}

    @classmethod
    def restore(cls, arrays: Arrays) -> FirstLook:
        projection = Projection(arrays["matrix"], arrays["offset"], arrays["weights"])
        sample = ScoreSample(faiss.deserialize_index(arrays["sample"]))
        return cls(projection, arrays["order"], faiss.deserialize_index(arrays["index"]), sample)

    @property
    def memory_bytes(self) -> int:
        lists = self.index.invlists
        padded = sum(-(-lists.list_size(i) // 32) * 32 for i in range(self.index.nlist))
        codes = padded * (self.code_bytes + 8) + 4 * self.index.pq.centroids.size()
        return int(codes + self.projection.memory_bytes + self.lists.memory_bytes + self._sample.memory_bytes)


def _parameters(keep: Keep | None, probes: int) -> Any:
    """FAISS search parameters: so many lists, and of their rows those that `keep` admits."""
    given: Any = faiss.SearchParametersIVF()
    given.nprobe = probes
    if (held := parameters(keep)) is not None:
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
    pq.cp.min_points_per_centroid, pq.cp.max_points_per_centroid = 1, _WORD_ROWS // 16


def _recoded(pq: Any, rows: Float32s) -> Float32s:
    decoded: Float32s = pq.decode(pq.compute_codes(np.ascontiguousarray(rows)))
    return decoded


def _choose_rung(
    projection: Projection,
    sample: Float32s,
    probe: Probe,
    store: DescriptorStore,
    ladder: tuple[int, ...],
    seed: int,
    kept: dict[int, float],
    scanned: float,
) -> int:
    """How many subspaces to code: more bytes take longer to go past, fewer keep more rows for the second look.

    Decided on a sample's coordinates, coded in each way, and on the true neighbours of some rows. kept: which share of
    the first k of them must be; scanned: how many rows are gone past.
    """
    fitting = [subspaces for subspaces in ladder if subspaces * SUBSPACE <= sample.shape[1]]
    if len(fitting) < 2 or len(probe.own) < 2:
        return fitting[0] if fitting else sample.shape[1] // 2
    queries = projection.apply_query(probe.queries)
    near = [projection.apply(store.take(rows).astype(np.float32)) for rows in probe.truth]
    costs = []
    for subspaces in fitting:
        dim = subspaces * SUBSPACE
        order = allot(sample[:, :dim].var(axis=0), subspaces)
        pq: Any = faiss.ProductQuantizer(dim, subspaces, 4)
        _prepare(pq, seed)
        pq.train(np.ascontiguousarray(sample[:, order]))
        asked = queries[:, order]
        theirs = [_recoded(pq, rows[:, order]) @ query for rows, query in zip(near, asked, strict=True)]
        scores = asked @ _recoded(pq, thinned(sample, _WORD_ROWS)[:, order]).T
        depth = expected_depth(scores, theirs, len(store), kept)
        costs.append(scanned * subspaces / 2 * BYTE_NS + depth * ROW_NS)
    return fitting[int(np.argmin(costs))]
