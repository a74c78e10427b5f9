"""`pq8`: 256 k-means centroids in each 8-dimensional subspace, a byte a subspace, as the paper has it.

FAISS's product quantiser is called on codes that live in an array of ours: its index would refuse filters, and a
one-list inverted file would add eight bytes an image for ids. A filtered search goes through copies of the admitted
codes.

Rows are ordered by the product with their centroids. The distance to them punishes rows whose centroids are long. With
the descriptors of the first bundles, most of whose energy was a common mean, that was two points of mAP better; with
those of `lite` it is three worse.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt

from tessera.index.codecs.block_scan import BLOCK_ROWS, LEAST_BATCH, scan_blocks
from tessera.index.codecs.codec import Arrays, Codec, Float32s, Int64s
from tessera.index.codecs.sampling import training_rows
from tessera.index.descriptor_file import DescriptorStore
from tessera.index.rows import RowFilter

Bytes = npt.NDArray[np.uint8]

SUBSPACE = 8
_TRAINING_ROWS = 32768
_CHUNK_ROWS = 65536


class Pq8Codec(Codec):
    """Scores are products of the query as it is with the centroids of a row. What 8 does not divide is padded."""

    name = "pq8"
    exact = False

    def __init__(self, dim: int, centroids: Float32s | None = None, codes: Bytes | None = None) -> None:
        self._dim = dim
        self._width = -(-dim // SUBSPACE)
        self._pq: Any = faiss.ProductQuantizer(self._width * SUBSPACE, self._width, 8)
        if centroids is not None:
            faiss.copy_array_to_vector(centroids.reshape(-1), self._pq.centroids)
        self._codes: Bytes = np.empty((0, self._width), np.uint8) if codes is None else codes

    @classmethod
    def fit(cls, store: DescriptorStore, *, seed: int, target_recall: float) -> Pq8Codec:
        codec = cls(store.dim)
        if len(store) == 0:
            return codec
        sample = codec._pad(store.take(training_rows(len(store), _TRAINING_ROWS, seed)).astype(np.float32))
        if len(sample) < 256:  # as many centroids as samples at most: k-means then repeats some
            sample = np.resize(sample, (256, sample.shape[1]))
        codec._pq.cp.seed = seed + 1
        codec._pq.cp.min_points_per_centroid = 1
        codec._pq.train(sample)
        codec._codes = np.empty((len(store), codec._width), np.uint8)
        for start, block in store.blocks():
            codec._codes[start : start + len(block)] = codec._pq.compute_codes(codec._pad(block))
        return codec

    def _pad(self, descriptors: Float32s) -> Float32s:
        missing = self._width * SUBSPACE - self._dim
        return np.pad(descriptors, ((0, 0), (0, missing))) if missing else descriptors

    def append(self, descriptors: Float32s) -> None:
        self._codes = np.concatenate([self._codes, self._pq.compute_codes(self._pad(descriptors))])

    def search(
        self, queries: Float32s, k: int, row_filter: RowFilter | None, store: DescriptorStore
    ) -> tuple[Float32s, Int64s]:
        possible = len(self._codes) if row_filter is None else len(row_filter)
        found = min(k, possible)
        padded = self._pad(queries)
        if len(queries) >= LEAST_BATCH:
            return scan_blocks(padded, self._blocks(), found, row_filter)
        heap = _Heap(len(queries), found)
        if row_filter is None:
            heap.scan(self._pq, padded, self._codes)
            return heap.finish()
        for i in range(0, possible, _CHUNK_ROWS):
            rows = row_filter.rows[i : i + _CHUNK_ROWS]
            heap.scan(self._pq, padded, self._codes[rows], names=rows)
        return heap.finish()

    def _blocks(self) -> Iterator[tuple[int, Float32s]]:
        # A centroid is 32 bytes: taken as one item each, they decode three times faster than by FAISS.
        centroids = faiss.vector_to_array(self._pq.centroids).view(np.dtype((np.void, 4 * SUBSPACE)))
        first = np.arange(0, 256 * self._width, 256, dtype=np.int32)
        for i in range(0, len(self._codes), BLOCK_ROWS):
            codes = self._codes[i : i + BLOCK_ROWS]
            yield i, np.take(centroids, codes + first).view(np.float32).reshape(len(codes), -1)

    def select(self, rows: Int64s) -> None:
        self._codes = self._codes[rows]

    def state(self) -> tuple[dict[str, Any], Arrays]:
        centroids = faiss.vector_to_array(self._pq.centroids).reshape(self._width, 256, SUBSPACE)
        return {}, {"centroids": centroids, "codes": self._codes}

    @classmethod
    def restore(cls, values: dict[str, Any], arrays: Arrays, store: DescriptorStore) -> Pq8Codec:
        return cls(store.dim, arrays["centroids"], arrays["codes"])

    def settings(self) -> dict[str, Any]:
        return {"code_bytes": self._width, "centroids": 256}

    def error(self, descriptors: Float32s) -> float:
        if len(descriptors) == 0:
            return 0.0
        padded = self._pad(descriptors)
        decoded: Float32s = self._pq.decode(self._pq.compute_codes(padded))
        return float(np.square(decoded - padded).sum() / np.square(padded).sum())

    @property
    def memory_bytes(self) -> int:
        return int(self._codes.nbytes + 4 * self._pq.centroids.size())


class _Heap:
    """The best rows of Q queries over several scans of `ProductQuantizer.search_ip`."""

    def __init__(self, queries: int, k: int) -> None:
        self.scores = np.empty((queries, 0), np.float32)
        self.rows = np.empty((queries, 0), np.int64)
        self.k = k

    def scan(self, pq: Any, queries: Float32s, codes: Bytes, names: Int64s | None = None) -> None:
        k = min(self.k, len(codes))
        scores = np.empty((len(queries), k), np.float32)
        positions = np.empty((len(queries), k), np.int64)
        heap = faiss.float_minheap_array_t()
        heap.nh, heap.k = len(queries), k
        heap.val, heap.ids = faiss.swig_ptr(scores), faiss.swig_ptr(positions)
        pq.search_ip(faiss.swig_ptr(queries), len(queries), faiss.swig_ptr(codes), len(codes), heap)
        self.scores = np.concatenate([self.scores, scores], axis=1)
        self.rows = np.concatenate([self.rows, positions if names is None else names[positions]], axis=1)

    def finish(self) -> tuple[Float32s, Int64s]:
        return self.scores, self.rows
