"""`flat`: every descriptor in fp32 in memory, compared with every query."""

from __future__ import annotations

import threading
from typing import Any

import faiss
import numpy as np

from tessera.index.codecs.block_scan import BLOCK_ROWS, LEAST_BATCH, scan_blocks
from tessera.index.codecs.codec import Arrays, Codec, Float32s, Int64s, for_each, parameters
from tessera.index.descriptor_file import ROUNDING, DescriptorStore, widen
from tessera.index.exact_scores import inner_products
from tessera.index.rows import RowFilter

_SLACK = 16
_FILL_ROWS = 1024


class FlatCodec(Codec):
    """A FAISS flat index; its winners are scored once more by `inner_products`, the arithmetic of every exact score."""

    name = "flat"
    exact = True
    lossless = True

    def __init__(self, dim: int) -> None:
        self._filled = faiss.IndexFlatIP(dim)
        self._source: DescriptorStore | None = None
        self._filling = threading.Lock()

    @classmethod
    def fit(cls, store: DescriptorStore, *, seed: int, target_recall: float) -> FlatCodec:
        codec = cls(store.dim)
        # As it is now: the store of an index grows, and what it gains comes by `append`.
        codec._source = DescriptorStore(store.dim, store.segments)
        return codec

    @property
    def _index(self) -> Any:
        """The index in fp32, filled on first use: what is only built and saved never takes that memory."""
        with self._filling:
            if self._source is not None:
                # Room for all at once: growing would copy everything again and again.
                self._filled.codes.resize(len(self._source) * self._filled.d * 4)
                self._filled.ntotal = len(self._source)
                view, blocks = self._view(), list(self._source.halves(_FILL_ROWS))

                def fill(i: int) -> None:
                    start, block = blocks[i]
                    widen(block, out=view[start : start + len(block)])

                for_each(fill, len(blocks))
                self._source = None
            return self._filled

    def _view(self) -> Float32s:
        if self._filled.ntotal == 0:
            return np.empty((0, self._filled.d), dtype=np.float32)
        flat: Float32s = faiss.rev_swig_ptr(self._filled.get_xb(), self._filled.ntotal * self._filled.d)
        return flat.reshape(self._filled.ntotal, self._filled.d)

    def search(
        self, queries: Float32s, k: int, row_filter: RowFilter | None, store: DescriptorStore
    ) -> tuple[Float32s, Int64s]:
        filled = self._index
        possible = filled.ntotal if row_filter is None else len(row_filter)
        count = min(k + _SLACK, possible)
        if count == 0:
            return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
        rough, rows = self._scan(queries, count, row_filter)
        # Copies of one photo tie: take more until whatever ties with the k-th has been seen, so that ids decide.
        while count < possible and bool(np.any(rough[:, -1] >= rough[:, min(k, count) - 1] - ROUNDING)):
            count = min(4 * count, possible)
            rough, rows = self._scan(queries, count, row_filter)
        scores = np.stack([inner_products(query, store.take(mine)) for query, mine in zip(queries, rows, strict=True)])
        return scores, rows

    def _scan(self, queries: Float32s, count: int, row_filter: RowFilter | None) -> tuple[Float32s, Int64s]:
        if len(queries) >= LEAST_BATCH:
            # FAISS 1.15 takes matrix products only from 128,000 queries on; they pay from a handful.
            view = self._view()
            blocks = ((i, view[i : i + BLOCK_ROWS]) for i in range(0, len(view), BLOCK_ROWS))
            scores, rows = scan_blocks(queries, blocks, count, row_filter)
            order = np.argsort(-scores, axis=1, kind="stable")
            return np.take_along_axis(scores, order, axis=1), np.take_along_axis(rows, order, axis=1)
        scores, rows = self._index.search(queries, count, params=parameters(row_filter))
        return scores, rows

    def append(self, descriptors: Float32s) -> None:
        self._index.add(descriptors)

    def select(self, rows: Int64s) -> None:
        index = self._index
        kept = np.ascontiguousarray(self._view()[rows])
        index.reset()
        index.add(kept)

    def state(self) -> tuple[dict[str, Any], Arrays]:
        return {}, {}

    @classmethod
    def restore(cls, values: dict[str, Any], arrays: Arrays, store: DescriptorStore) -> FlatCodec:
        return cls.fit(store, seed=0, target_recall=1.0)

    @property
    def memory_bytes(self) -> int:
        waiting = 0 if self._source is None else len(self._source)
        return int((self._filled.ntotal + waiting) * self._filled.d * 4)
