"""`fast`: short 4-bit codes that SIMD goes through in registers, and two more looks at the best of them.

First look: every row by 32 to 64 bytes of a product quantiser with 16 words a subspace, in FAISS's fast-scan layout as
an inverted file with one list (that form takes filters). Second: what those codes missed, 64 bytes (see `residual`),
for a thousand rows or so. Third: the fp16 descriptors of some hundred, read in place; they decide order and scores. How
many each look passes on is measured when the index is built: see `calibration`.
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np

from tessera.index.calibration import Calibration, Probe, calibrate, expected_depth
from tessera.index.codec import Arrays, Codec, Float32s, Int64s, for_each, parameters
from tessera.index.projection import Projection, allot, principal_axes
from tessera.index.residual import ResidualCodes
from tessera.index.rows import Keep
from tessera.index.sampling import thinned, training_rows
from tessera.index.store import BLOCK_ROWS, DescriptorStore, score_rows

_TRAINING_ROWS = 32768
_WORD_ROWS = 16384  # 16 words a subspace need no more
_AXES_ROWS = 16384
_LEAST_ROWS = 256  # fewer rows than this are repeated for training: words need something to stand on
_COORDINATES = 512
LADDER = (64, 96, 128)  # subspaces of 4 bits and 4 dimensions: 32, 48 or 64 bytes for the first look
_SUBSPACE = 4
# Measured on one core: going past a byte of every row, and keeping one row more for the second look.
_BYTE_NS, _ROW_NS = 0.08, 900.0


class FastCodec(Codec):
    """A projection, a FAISS fast-scan index over projected rows, the residuals' codes, and how deep to look."""

    name = "fast"
    exact = True

    def __init__(
        self, projection: Projection, order: Int64s, index: Any, residual: ResidualCodes, calibration: Calibration
    ) -> None:
        """order: the coordinates that the first look sees, subspace by subspace."""
        self._projection = projection
        self._order = order
        self._index = index
        self._residual = residual
        self._calibration = calibration

    @classmethod
    def fit(cls, store: DescriptorStore, *, seed: int, target_recall: float) -> FastCodec:
        sample = store.take(training_rows(len(store), cls._training_rows(len(store)), seed)).astype(np.float32)
        sample = np.resize(sample, (_LEAST_ROWS, store.dim)) if 0 < len(sample) < _LEAST_ROWS else sample
        if len(sample) == 0:
            sample = np.zeros((_LEAST_ROWS, store.dim), np.float32)
        count, width = _coordinates(store.dim)
        axes = principal_axes(thinned(sample, _AXES_ROWS), min(count - 1, store.dim))
        projection = Projection.fit(sample, axes, count)
        coordinates = projection.apply(sample)
        probe = Probe.draw(store, seed)
        subspaces = _choose_rung(projection, coordinates, probe, store, seed, target_recall)
        index, order = cls._train(coordinates, cls._lists(len(store)), subspaces, seed)
        some = thinned(coordinates, _TRAINING_ROWS)
        residual = ResidualCodes.fit(some - _decoded(index, order, some), width, seed)
        codec = cls(projection, order, index, residual, Calibration.cautious())
        for _, block in store.blocks(BLOCK_ROWS):
            codec.append(block)
        ladder = codec._probe_ladder(probe, store, target_recall)
        codec._calibration = calibrate(codec.rough, probe, len(store), probes=ladder, target=target_recall)
        return codec

    @staticmethod
    def _lists(total: int) -> int:
        return 1

    @classmethod
    def _training_rows(cls, total: int) -> int:
        return _TRAINING_ROWS

    def _probe_ladder(self, probe: Probe, store: DescriptorStore, target: float) -> tuple[int, ...]:
        return (1,)

    def _project(self, queries: Float32s) -> Float32s:
        """What the first look sees of queries Q D."""
        return np.ascontiguousarray(self._projection.apply_query(queries)[:, self._order])

    @classmethod
    def _train(cls, coordinates: Float32s, lists: int, subspaces: int, seed: int) -> tuple[Any, Int64s]:
        dim = min(subspaces * _SUBSPACE, coordinates.shape[1])
        order = allot(coordinates[:, :dim].var(axis=0), subspaces)
        rows = np.ascontiguousarray(coordinates[:, order])
        quantiser: Any = faiss.IndexFlatL2(dim)
        quantiser.add(cls._centres_of(rows, order, lists, seed))
        index: Any = faiss.IndexIVFPQFastScan(quantiser, dim, lists, subspaces, 4, faiss.METRIC_INNER_PRODUCT)
        quantiser.this.disown()
        index.own_fields = True
        # Not residuals: a bias a list would take most of the eight bits that fast-scan gives to its tables.
        index.by_residual = False
        _prepare(index.pq, seed)
        index.train(rows)
        return index, order

    @classmethod
    def _centres_of(cls, rows: Float32s, order: Int64s, lists: int, seed: int) -> Float32s:
        return np.zeros((1, rows.shape[1]), np.float32)

    def append(self, descriptors: Float32s) -> None:
        coordinates = self._projection.apply(descriptors)
        self._index.add(np.ascontiguousarray(coordinates[:, self._order]))
        missed = coordinates - _decoded(self._index, self._order, coordinates)
        self._residual.append(self._residual.encode(missed))

    def rough(self, queries: Float32s, depth: int, probes: int, keep: Keep | None = None) -> tuple[Int64s, Float32s]:
        """The rows that the first look puts first, and their scores after the second: Q depth, padded with -1, -inf."""
        given = faiss.SearchParametersIVF()
        given.nprobe = probes
        held = parameters(keep)
        if held is not None:
            given.sel = held.sel
        coordinates = self._projection.apply_query(queries)
        first = np.ascontiguousarray(coordinates[:, self._order])
        lists = self._coarse(first, probes)
        biases = np.zeros(lists.shape, np.float32)
        found = np.empty((len(queries), depth), np.int64)
        scores = np.empty((len(queries), depth), np.float32)
        # The Python wrapper takes no parameters here, so the function below it is called.
        self._index.search_preassigned_c(
            len(queries),
            faiss.swig_ptr(first),
            depth,
            faiss.swig_ptr(lists),
            faiss.swig_ptr(biases),
            faiss.swig_ptr(scores),
            faiss.swig_ptr(found),
            False,
            given,
        )

        def look(q: int) -> None:
            scores[q] += self._residual.score(self._residual.table(coordinates[q]), found[q])

        for_each(look, len(queries))
        scores[found < 0] = -np.inf
        return found, scores

    def _coarse(self, queries: Float32s, probes: int) -> Int64s:
        """Which lists to look into, Q P."""
        return np.zeros((len(queries), 1), np.int64)

    def search(self, queries: Float32s, k: int, keep: Keep | None, store: DescriptorStore) -> tuple[Float32s, Int64s]:
        possible = int(self._index.ntotal) if keep is None else len(keep)
        depth, exact = (min(n, possible) for n in (self._calibration.depth_for(k), self._calibration.exact_for(k)))
        if keep is not None and possible <= 2 * exact:
            rows = np.repeat(keep.rows[None], len(queries), axis=0)
        else:
            found, estimates = self.rough(queries, max(depth, exact), self._probes(k, keep), keep)
            kept = np.argpartition(-estimates, exact - 1, axis=1)[:, :exact]
            rows = np.take_along_axis(found, kept, axis=1)
        scores = np.full(rows.shape, -np.inf, dtype=np.float32)

        def score(q: int) -> None:
            there = rows[q] >= 0
            scores[q, there] = score_rows(queries[q], rows[q, there], store)

        for_each(score, len(queries))
        return scores, rows

    def _probes(self, k: int, keep: Keep | None) -> int:
        return 1

    def select(self, rows: Int64s) -> None:
        total = int(self._index.ntotal)
        dropped = np.ones(total, dtype=np.uint8)
        dropped[rows] = 0
        bitmap = np.packbits(dropped, bitorder="little")
        self._index.remove_ids(faiss.IDSelectorBitmap(total, faiss.swig_ptr(bitmap)))
        renumbered = np.cumsum(dropped == 0) - 1
        lists = self._index.invlists
        for i in range(self._index.nlist):
            if size := lists.list_size(i):
                ids = faiss.rev_swig_ptr(lists.get_ids(i), size)
                ids[:] = renumbered[ids]
        self._residual.codes = self._residual.codes[rows]

    def state(self) -> tuple[dict[str, Any], Arrays]:
        projection = self._projection
        arrays: Arrays = {"matrix": projection.matrix, "offset": projection.offset, "mean": projection.mean}
        arrays |= {"order": self._order, "index": faiss.serialize_index(self._index)}
        return self._calibration.to_values(), arrays | self._residual.state()

    @classmethod
    def restore(cls, values: dict[str, Any], arrays: Arrays, store: DescriptorStore) -> FastCodec:
        projection = Projection(arrays["matrix"], arrays["offset"], arrays["mean"])
        index: Any = faiss.deserialize_index(arrays["index"])
        residual = ResidualCodes.restore(arrays)
        return cls(projection, arrays["order"], index, residual, Calibration.from_values(values))

    def settings(self) -> dict[str, Any]:
        first, second = self._index.pq.M // 2, len(self._residual.words)
        chosen = {"code_bytes": first + second, "first_look_bytes": first, "lists": self._index.nlist}
        return chosen | self._calibration.to_values()

    def error(self, descriptors: Float32s) -> float:
        if len(descriptors) == 0:
            return 0.0
        coordinates = self._projection.apply(descriptors)
        missed = coordinates - _decoded(self._index, self._order, coordinates)
        missed -= self._residual.decode(self._residual.encode(missed))
        # Without coordinate 0: its weight would outshout the others.
        return float(np.square(missed[:, 1:]).sum() / max(np.square(coordinates[:, 1:]).sum(), 1e-12))

    @property
    def memory_bytes(self) -> int:
        lists = self._index.invlists
        per_row = self._index.pq.M // 2 + 8
        padded = sum(-(-lists.list_size(i) // 32) * 32 for i in range(self._index.nlist))
        tables = 4 * (self._index.pq.centroids.size() + self._index.nlist * self._index.d)
        return int(padded * per_row + tables + self._projection.memory_bytes + self._residual.memory_bytes)


def _coordinates(dim: int) -> tuple[int, int]:
    """How many coordinates of a descriptor are coded, and in how many bytes the second look has them."""
    if dim >= _COORDINATES // 2:
        return min(-(-(dim + 1) // 64) * 64, _COORDINATES), 64
    count = -(-(dim + 1) // _SUBSPACE) * _SUBSPACE
    return count, count // _SUBSPACE


def _prepare(pq: Any, seed: int) -> None:
    pq.cp.seed, pq.cp.niter = seed + 1, 12
    pq.cp.min_points_per_centroid, pq.cp.max_points_per_centroid = 1, _WORD_ROWS // 16


def _decoded(index: Any, order: Int64s, coordinates: Float32s) -> Float32s:
    """What the first look knows of rows N C; zero where it has no code."""
    out = np.zeros(coordinates.shape, np.float32)
    out[:, order] = index.pq.decode(index.pq.compute_codes(np.ascontiguousarray(coordinates[:, order])))
    return out


def _choose_rung(
    projection: Projection, coordinates: Float32s, probe: Probe, store: DescriptorStore, seed: int, target: float
) -> int:
    """How many subspaces the first look has: more bytes take longer to go past, fewer keep more rows for the second.

    Decided on a sample, coded in each way, and on the true neighbours of some rows.
    """
    fitting = [subspaces for subspaces in LADDER if subspaces * _SUBSPACE <= coordinates.shape[1]]
    if len(fitting) < 2 or len(probe.own) < 2:
        return fitting[0] if fitting else coordinates.shape[1] // 2
    queries = projection.apply_query(probe.queries)
    near = [projection.apply(store.take(rows).astype(np.float32)) for rows in probe.truth]
    costs = []
    for subspaces in fitting:
        dim = subspaces * _SUBSPACE
        order = allot(coordinates[:, :dim].var(axis=0), subspaces)
        pq: Any = faiss.ProductQuantizer(dim, subspaces, 4)
        _prepare(pq, seed)
        pq.train(np.ascontiguousarray(coordinates[:, order]))

        def code(rows: Float32s, pq: Any = pq, order: Int64s = order) -> Float32s:
            decoded: Float32s = pq.decode(pq.compute_codes(np.ascontiguousarray(rows[:, order])))
            return decoded

        asked = queries[:, order]
        theirs = [code(rows) @ query for rows, query in zip(near, asked, strict=True)]
        scores = asked @ code(thinned(coordinates, _WORD_ROWS)).T
        depth = expected_depth(scores, theirs, len(store), target)
        costs.append(len(store) * subspaces / 2 * _BYTE_NS + depth * _ROW_NS)
    return fitting[int(np.argmin(costs))]
