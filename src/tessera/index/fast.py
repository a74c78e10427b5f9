"""`fast`: short 4-bit codes that SIMD goes through in registers, then an exact second look at the best of them.

The codes are those of a product quantiser with 16 words a subspace, after a rotation to fewer dimensions, in FAISS's
fast-scan layout as an inverted file with one list (that form takes filters). The fp16 descriptors of the best rows are
read in place and decide the order. How many to read is measured when the index is built: see `calibration`.
"""

from __future__ import annotations

from typing import Any

import faiss
import numpy as np

from tessera.index.calibration import Calibration, calibrate
from tessera.index.codec import Arrays, Codec, Float32s, Int64s, for_each, parameters
from tessera.index.projection import Projection, principal_axes
from tessera.index.rows import Keep
from tessera.index.sampling import training_rows
from tessera.index.store import BLOCK_ROWS, DescriptorStore, score_rows

_TRAINING_ROWS = 32768
_WORD_ROWS = 16384  # 16 words a subspace need no more
_AXES_ROWS = 8192
_LEAST_ROWS = 256  # fewer rows than this are repeated for training: 16 words need something to stand on
# Subspaces of 4 bits and the dimensions that they share (two each measured best): 64 or 128 bytes an image. Half the
# bytes are scanned in half the time; the wider are for descriptors where too many rows would have to be scored again.
LADDER = ((128, 256), (256, 512))
_DEEP_ROWS = 4096  # scoring so many again costs as much as the bytes saved


class FastCodec(Codec):
    """A projection, a FAISS fast-scan index over projected rows, and how deep to look again."""

    name = "fast"
    exact = True

    def __init__(self, projection: Projection, index: Any, calibration: Calibration) -> None:
        self._projection = projection
        self._index = index
        self._calibration = calibration

    @classmethod
    def fit(cls, store: DescriptorStore, *, seed: int, target_recall: float) -> FastCodec:
        sample = store.take(training_rows(len(store), _TRAINING_ROWS, seed)).astype(np.float32)
        sample = np.resize(sample, (_LEAST_ROWS, store.dim)) if 0 < len(sample) < _LEAST_ROWS else sample
        if len(sample) == 0:
            sample = np.zeros((_LEAST_ROWS, store.dim), np.float32)
        axes = principal_axes(sample[:_AXES_ROWS], LADDER[-1][1])
        for subspaces, dim in _widths(store.dim):
            codec = cls._train(sample, cls._lists(len(store)), subspaces, axes[:dim], seed)
            for _, block in store.blocks(BLOCK_ROWS):
                codec.append(block)
            probes = codec._probe_ladder()
            codec._calibration = calibrate(codec.rough, store, probes=probes, seed=seed, target=target_recall)
            if codec._calibration.depth_100 <= _DEEP_ROWS:
                break
        return codec

    @staticmethod
    def _lists(total: int) -> int:
        return 1

    def _probe_ladder(self) -> tuple[int, ...]:
        return (1,)

    @classmethod
    def _train(cls, sample: Float32s, lists: int, subspaces: int, axes: Float32s, seed: int) -> FastCodec:
        projection = Projection.fit(sample, axes, seed)
        projected = projection.apply(sample)
        quantiser: Any = faiss.IndexFlatL2(projection.dim)
        index: Any = faiss.IndexIVFPQFastScan(
            quantiser, projection.dim, lists, subspaces, 4, faiss.METRIC_INNER_PRODUCT
        )
        quantiser.this.disown()
        index.own_fields = True
        # Not residuals: a bias a list would take most of the eight bits that fast-scan gives to its tables.
        index.by_residual = False
        for parameters_ in (index.cp, index.pq.cp):
            parameters_.seed = seed + 1
            parameters_.min_points_per_centroid = 1
        index.cp.niter, index.pq.cp.niter = 8, 12
        index.pq.cp.max_points_per_centroid = _WORD_ROWS // 16
        index.train(projected)
        return cls(projection, index, Calibration.cautious())

    def append(self, descriptors: Float32s) -> None:
        self._index.add(self._projection.apply(descriptors))

    def rough(self, queries: Float32s, depth: int, probes: int, keep: Keep | None = None) -> Int64s:
        """The rows that the codes put first: Q depth, padded with -1."""
        given = faiss.SearchParametersIVF()
        given.nprobe = probes
        held = parameters(keep)
        if held is not None:
            given.sel = held.sel
        projected = self._projection.apply_query(queries)
        lists = self._coarse(queries, probes)
        biases = np.zeros(lists.shape, np.float32)
        found = np.empty((len(queries), depth), np.int64)
        scores = np.empty((len(queries), depth), np.float32)
        # The Python wrapper takes no parameters here, so the function below it is called.
        self._index.search_preassigned_c(
            len(queries),
            faiss.swig_ptr(projected),
            depth,
            faiss.swig_ptr(lists),
            faiss.swig_ptr(biases),
            faiss.swig_ptr(scores),
            faiss.swig_ptr(found),
            False,
            given,
        )
        return found

    def _coarse(self, queries: Float32s, probes: int) -> Int64s:
        """Which lists to look into, Q P."""
        return np.zeros((len(queries), 1), np.int64)

    def search(self, queries: Float32s, k: int, keep: Keep | None, store: DescriptorStore) -> tuple[Float32s, Int64s]:
        possible = int(self._index.ntotal) if keep is None else len(keep)
        depth = min(self._calibration.depth_for(k), possible)
        if keep is not None and possible <= 2 * depth:
            rows = np.repeat(keep.rows[None], len(queries), axis=0)
        else:
            rows = self.rough(queries, depth, self._probes(k, keep), keep)
        scores = np.full(rows.shape, -np.inf, dtype=np.float32)

        def score(q: int) -> None:
            found = rows[q] >= 0
            scores[q, found] = score_rows(queries[q], rows[q, found], store)

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

    def state(self) -> tuple[dict[str, Any], Arrays]:
        arrays: Arrays = {"matrix": self._projection.matrix, "offset": self._projection.offset}
        arrays["index"] = faiss.serialize_index(self._index)
        return self._calibration.to_values(), arrays

    @classmethod
    def restore(cls, values: dict[str, Any], arrays: Arrays, store: DescriptorStore) -> FastCodec:
        index: Any = faiss.deserialize_index(arrays["index"])
        return cls(Projection(arrays["matrix"], arrays["offset"]), index, Calibration.from_values(values))

    def settings(self) -> dict[str, Any]:
        chosen = {"code_bytes": self._index.pq.M // 2, "dimensions": self._projection.dim, "lists": self._index.nlist}
        return chosen | self._calibration.to_values()

    def error(self, descriptors: Float32s) -> float:
        if len(descriptors) == 0:
            return 0.0
        projected = self._projection.apply(descriptors)
        pq: Any = self._index.pq
        decoded: Float32s = pq.decode(pq.compute_codes(projected))
        return float(np.square(decoded - projected).sum() / max(np.square(projected).sum(), 1e-12))

    @property
    def memory_bytes(self) -> int:
        lists = self._index.invlists
        per_row = self._index.pq.M // 2 + 8
        padded = sum(-(-lists.list_size(i) // 32) * 32 for i in range(self._index.nlist))
        tables = 4 * (self._index.pq.centroids.size() + self._index.nlist * self._projection.dim)
        return int(padded * per_row + tables + self._projection.memory_bytes)


def _widths(dim: int) -> list[tuple[int, int]]:
    """The widths to try for descriptors of a dimension, narrow first; short descriptors have one of their own."""
    fitting = [(subspaces, width) for subspaces, width in LADDER if width <= dim]
    return fitting or [(max(dim // 2, 1), max(dim // 2, 1) * 2)]
