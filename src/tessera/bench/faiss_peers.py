"""FAISS as a user would set it up: its plain indexes, and codes whose best candidates are scored by descriptors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tessera.bench.competitors import BLOCK_ROWS, Competitor, Float16s, Float32s, Int64s, Point

EF_SEARCH = (32, 64, 128, 256, 512)  # of every graph
CANDIDATES = (100, 200, 400, 800, 1600, 3200)
_PROBED = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of all lists
_TRAINING_ROWS = 65536
Make = Callable[[int, int], Any]  # (N, D) -> an untrained FAISS index


class FaissPeer(Competitor):
    def __init__(self, make: Make, *, graph: bool = False) -> None:
        self.make = make
        self.graph = graph
        self.index: Any = None

    def build(self, descriptors: Float16s) -> None:
        count, dim = descriptors.shape
        self.index = self.make(count, dim)
        _fill(self.index, descriptors)

    def search(self, queries: Float32s, k: int) -> Int64s:
        found: Int64s = self.index.search(queries, k)[1]
        return found

    def points(self) -> tuple[Point, ...]:
        return tuple({"efSearch": ef} for ef in EF_SEARCH) if self.graph else ({},)

    def use(self, point: Point) -> None:
        if "efSearch" in point:
            self.index.hnsw.efSearch = int(point["efSearch"])

    def add(self, ids: Int64s, descriptors: Float32s) -> bool:
        self.index.add(descriptors)
        return True

    def delete(self, row: int) -> bool:
        import faiss

        try:
            return bool(self.index.remove_ids(faiss.IDSelectorRange(row, row + 1)))
        except RuntimeError:
            return False

    def save(self, path: Path) -> None:
        import faiss

        faiss.write_index(self.index, str(path))

    def load(self, path: Path) -> None:
        import faiss

        self.index = faiss.read_index(str(path))


class RefinedPeer(Competitor):
    """Codes in memory, and fp16 descriptors on disk: IndexRefine over an index and a mapped scalar quantiser.

    Distances, not products: PCA centres the rows, and of unit vectors the nearest is also the most alike.
    """

    def __init__(self, make: Make, *, lists: bool = False) -> None:
        self.make = make
        self.lists = lists
        self.index: Any = None
        self._parts: tuple[Any, Any] = (None, None)  # IndexRefine holds bare pointers
        self._candidates = CANDIDATES[2]

    def build(self, descriptors: Float16s) -> None:
        import faiss

        count, dim = descriptors.shape
        codes, exact = self.make(count, dim), faiss.IndexScalarQuantizer(dim, faiss.ScalarQuantizer.QT_fp16)
        _fill(codes, descriptors)
        _fill(exact, descriptors)
        self._join(codes, exact)

    def _join(self, codes: Any, exact: Any) -> None:
        import faiss

        self._parts = codes, exact
        self.index = faiss.IndexRefine(codes, exact)

    def search(self, queries: Float32s, k: int) -> Int64s:
        self.index.k_factor = max(self._candidates / k, 1.0)
        found: Int64s = self.index.search(queries, k)[1]
        return found

    def points(self) -> tuple[Point, ...]:
        if not self.lists:
            return tuple({"candidates": count} for count in CANDIDATES)
        return tuple({"probed": share, "candidates": n} for share, n in itertools.product(_PROBED, CANDIDATES[::2]))

    def use(self, point: Point) -> None:
        import faiss

        self._candidates = int(point["candidates"])
        if "probed" in point:
            inner = faiss.extract_index_ivf(self._parts[0])
            inner.nprobe = max(int(np.ceil(point["probed"] * inner.nlist)), 1)

    def save(self, path: Path) -> None:
        import faiss

        path.mkdir()
        for part, name in zip(self._parts, ("codes", "exact"), strict=True):
            faiss.write_index(part, str(path / name))

    def load(self, path: Path) -> None:
        import faiss

        codes = faiss.read_index(str(path / "codes"))
        self._join(codes, faiss.read_index(str(path / "exact"), faiss.IO_FLAG_MMAP_IFC))
        self.use(self.points()[len(self.points()) // 2])

    def code_bytes(self, path: Path) -> int:
        return (path / "codes").stat().st_size


def _fill(index: Any, descriptors: Float16s) -> None:
    """Train on a sample where there is something to train, and add all rows."""
    count = len(descriptors)
    chosen = np.sort(np.random.default_rng(0).permutation(count)[:_TRAINING_ROWS])
    if not index.is_trained:
        index.train(np.asarray(descriptors[chosen], np.float32))
    for i in range(0, count, BLOCK_ROWS):
        index.add(np.asarray(descriptors[i : i + BLOCK_ROWS], np.float32))


def num_lists(count: int) -> int:
    return int(max(min(2 * np.sqrt(count), count / 39), 1))


def index_pq(count: int, dim: int) -> Any:
    import faiss

    return faiss.IndexPQ(dim, max(dim // 8, 1), 8, faiss.METRIC_INNER_PRODUCT)


def ivf_pq(count: int, dim: int) -> Any:
    import faiss

    lists = num_lists(count)
    index: Any = faiss.index_factory(dim, f"IVF{lists},PQ{max(dim // 8, 1)}x8", faiss.METRIC_INNER_PRODUCT)
    index.cp.niter = 8
    index.nprobe = max(lists // 32, 1)
    return index


def hnsw(count: int, dim: int) -> Any:
    import faiss

    index = faiss.IndexHNSWFlat(dim, 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efSearch = 200
    return index


def hnsw_of(codes: str) -> Make:
    """codes: SQ8 or SQfp16."""

    def make(count: int, dim: int) -> Any:
        import faiss

        index: Any = faiss.index_factory(dim, f"HNSW32,{codes}")
        index.hnsw.efSearch = 200
        return index

    return make


def fast_scan(axes: int, *, lists: bool = False, opq: bool = False) -> Make:
    """4-bit product codes of so many principal axes, two to a code; in inverted lists, or turned by OPQ instead."""

    def make(count: int, dim: int) -> Any:
        import faiss

        kept = min(axes, dim // 2 * 2)
        turn = f"OPQ{kept // 2}_{kept}" if opq else f"PCA{kept}"
        inner = f"IVF{num_lists(count)}," if lists else ""
        index: Any = faiss.index_factory(dim, f"{turn},{inner}PQ{kept // 2}x4fs")
        if opq:  # its own default, 50 rounds for 8 bits, takes an hour for 1024 dimensions
            transform: Any = faiss.downcast_VectorTransform(index.chain.at(0))
            transform.niter, transform.max_train_points = 8, 16384
            transform.pq = faiss.ProductQuantizer(kept, kept // 2, 4)
            transform.pq.this.disown()
        return index

    return make


def rabitq(count: int, dim: int) -> Any:
    """One bit for each of all dimensions after a random turn."""
    import faiss

    return faiss.index_factory(dim, f"RR{dim},RaBitQfs")


def ivf_rabitq(count: int, dim: int) -> Any:
    import faiss

    return faiss.index_factory(dim, f"RR{dim},IVF{num_lists(count)},RaBitQfs")
