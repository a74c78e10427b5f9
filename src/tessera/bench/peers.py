"""Every peer of `bench search`, by name, and those that are other libraries than FAISS."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tessera.bench import faiss_peers
from tessera.bench.competitors import Competitor, Float16s, Float32s, Int64s, NumpyPeer, OurCodec, Point
from tessera.bench.faiss_peers import CANDIDATES, EF_SEARCH, FaissPeer, RefinedPeer
from tessera.index.codecs import CODECS

_SPARE_ROWS = 2000  # hnswlib must be told how many there may become


class HnswlibPeer(Competitor):
    needs = "hnswlib"
    graph = True

    def __init__(self) -> None:
        self.index: Any = None
        self.dim = 0

    def build(self, descriptors: Float16s) -> None:
        import hnswlib

        count, self.dim = descriptors.shape
        self.index = hnswlib.Index(space="ip", dim=self.dim)
        self.index.init_index(max_elements=count + _SPARE_ROWS, M=32, ef_construction=100)
        self.index.add_items(np.asarray(descriptors, np.float32), np.arange(count))
        self.index.set_ef(200)

    def search(self, queries: Float32s, k: int) -> Int64s:
        labels, _ = self.index.knn_query(queries, k=k)
        return np.asarray(labels).astype(np.int64)

    def points(self) -> tuple[Point, ...]:
        return tuple({"ef": ef} for ef in EF_SEARCH)

    def use(self, point: Point) -> None:
        self.index.set_ef(int(point["ef"]))

    def add(self, ids: Int64s, descriptors: Float32s) -> bool:
        self.index.add_items(descriptors, ids)
        return True

    def delete(self, row: int) -> bool:
        self.index.mark_deleted(row)
        return True

    def save(self, path: Path) -> None:
        self.index.save_index(str(path))
        path.with_suffix(".dim").write_text(str(self.dim))

    def load(self, path: Path) -> None:
        import hnswlib

        self.dim = int(path.with_suffix(".dim").read_text())
        self.index = hnswlib.Index(space="ip", dim=self.dim)
        self.index.load_index(str(path))
        self.index.set_ef(200)

    def set_threads(self, threads: int) -> None:
        self.index.set_num_threads(threads)


class UsearchPeer(Competitor):
    needs = "usearch"
    graph = True

    def __init__(self, dtype: str = "f16") -> None:
        self.dtype = dtype
        self.index: Any = None
        self.threads = 0

    def build(self, descriptors: Float16s) -> None:
        from usearch.index import Index

        self.index = Index(ndim=descriptors.shape[1], metric="ip", dtype=self.dtype, expansion_search=200)
        self.index.add(np.arange(len(descriptors)), np.asarray(descriptors, np.float32))

    def search(self, queries: Float32s, k: int) -> Int64s:
        found = self.index.search(queries, k, threads=self.threads).keys
        return np.atleast_2d(np.asarray(found)).astype(np.int64)

    def points(self) -> tuple[Point, ...]:
        return tuple({"expansion_search": ef} for ef in EF_SEARCH)

    def use(self, point: Point) -> None:
        self.index.expansion_search = int(point["expansion_search"])

    def add(self, ids: Int64s, descriptors: Float32s) -> bool:
        self.index.add(ids, descriptors)
        return True

    def delete(self, row: int) -> bool:
        self.index.remove(row)
        return True

    def save(self, path: Path) -> None:
        self.index.save(str(path))

    def load(self, path: Path) -> None:
        from usearch.index import Index

        self.index = Index.restore(str(path))

    def set_threads(self, threads: int) -> None:
        self.threads = threads


class ScannPeer(Competitor):
    """Google's ScaNN: a tree, anisotropic 4-bit codes, and bfloat16 descriptors in memory for the best."""

    needs = "scann"

    def __init__(self) -> None:
        self.searcher: Any = None
        self._point: Point = {"leaves": 1 / 8, "candidates": 400}
        self._leaves = 0

    def build(self, descriptors: Float16s) -> None:
        import scann

        rows = np.asarray(descriptors, np.float32)
        leaves = faiss_peers.num_lists(len(rows))
        builder = scann.scann_ops_pybind.builder(rows, 100, "dot_product")
        builder = builder.tree(leaves, max(leaves // 8, 1), training_sample_size=min(len(rows), 65536))
        builder = builder.score_ah(2, anisotropic_quantization_threshold=0.2)
        self.searcher = builder.reorder(400, quantize=scann.ReorderType.BFLOAT16).build()
        self._leaves = leaves

    def search(self, queries: Float32s, k: int) -> Int64s:
        leaves = max(int(np.ceil(self._point["leaves"] * self._leaves)), 1)
        wanted = max(int(self._point["candidates"]), k)
        found = np.full((len(queries), k), -1, np.int64)
        for q, query in enumerate(queries):
            ids, _ = self.searcher.search(
                query, final_num_neighbors=k, pre_reorder_num_neighbors=wanted, leaves_to_search=leaves
            )
            found[q, : len(ids)] = ids
        return found

    def points(self) -> tuple[Point, ...]:
        shares, candidates = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2), CANDIDATES[::2]
        return tuple({"leaves": share, "candidates": n} for share, n in itertools.product(shares, candidates))

    def use(self, point: Point) -> None:
        self._point = point

    def save(self, path: Path) -> None:
        path.mkdir()
        self.searcher.serialize(str(path))
        (path / "leaves").write_text(str(self._leaves))

    def load(self, path: Path) -> None:
        import scann

        self.searcher = scann.scann_ops_pybind.load_searcher(str(path))
        self._leaves = int((path / "leaves").read_text())

    def set_threads(self, threads: int) -> None:
        self.searcher.set_num_threads(threads)


class SvsPeer(Competitor):
    """Intel's SVS: a Vamana graph over fp16. Its LVQ codes refuse processors of other makers."""

    needs = "svs"
    graph = True

    def __init__(self) -> None:
        self.index: Any = None

    def build(self, descriptors: Float16s) -> None:
        import svs

        wanted = svs.VamanaBuildParameters(alpha=0.95, graph_max_degree=64, window_size=128)
        rows = np.ascontiguousarray(descriptors, np.float16)
        self.index = svs.Vamana.build(wanted, rows, svs.DistanceType.MIP, num_threads=1)

    def search(self, queries: Float32s, k: int) -> Int64s:
        return np.asarray(self.index.search(queries, k)[0]).astype(np.int64)

    def points(self) -> tuple[Point, ...]:
        return tuple({"search_window_size": ef} for ef in EF_SEARCH)

    def use(self, point: Point) -> None:
        self.index.search_window_size = int(point["search_window_size"])

    def save(self, path: Path) -> None:
        path.mkdir()
        self.index.save(*(str(path / name) for name in ("config", "graph", "data")))

    def load(self, path: Path) -> None:
        import svs

        data = svs.VectorDataLoader(str(path / "data"), svs.DataType.float16)
        self.index = svs.Vamana(str(path / "config"), str(path / "graph"), data, svs.DistanceType.MIP, num_threads=1)
        self.index.search_window_size = 200

    def set_threads(self, threads: int) -> None:
        self.index.num_threads = threads


class TurbovecPeer(Competitor):
    """Turbovec's 2 or 4 bits a dimension; the best are scored again from a mapped file of fp16, in numpy."""

    needs = "turbovec"

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.index: Any = None
        self.rows: Float16s = np.empty((0, 0), np.float16)
        self._candidates = CANDIDATES[2]

    def build(self, descriptors: Float16s) -> None:
        import turbovec

        self.rows = descriptors
        self.index = turbovec.TurboQuantIndex(descriptors.shape[1], self.bits)
        self.index.add(np.asarray(descriptors, np.float32))
        self.index.prepare()

    def search(self, queries: Float32s, k: int) -> Int64s:
        candidates = np.sort(self.index.search(queries, min(max(self._candidates, k), len(self.rows)))[1], axis=1)
        found = np.empty((len(queries), k), np.int64)
        for q, mine in enumerate(candidates):
            scores = self.rows[mine].astype(np.float32) @ queries[q]
            found[q] = mine[np.argsort(-scores, kind="stable")[:k]]
        return found

    def points(self) -> tuple[Point, ...]:
        return tuple({"candidates": count} for count in CANDIDATES)

    def use(self, point: Point) -> None:
        self._candidates = int(point["candidates"])

    def save(self, path: Path) -> None:
        path.mkdir()
        self.index.write(str(path / "codes"))
        np.save(path / "rows.npy", self.rows)

    def load(self, path: Path) -> None:
        import turbovec

        self.index = turbovec.TurboQuantIndex.load(str(path / "codes"))
        self.index.prepare()
        self.rows = np.load(path / "rows.npy", mmap_mode="r")

    def code_bytes(self, path: Path) -> int:
        return (path / "codes").stat().st_size


CODEC_NAMES = tuple(CODECS)
PEERS: dict[str, Callable[[], Competitor]] = {
    "numpy": NumpyPeer,
    "faiss IndexPQ": lambda: FaissPeer(faiss_peers.index_pq),
    "faiss IVF-PQ": lambda: FaissPeer(faiss_peers.ivf_pq),
    "faiss PCA256 fast-scan refined": lambda: RefinedPeer(faiss_peers.fast_scan(256)),
    "faiss PCA128 fast-scan refined": lambda: RefinedPeer(faiss_peers.fast_scan(128)),
    "faiss OPQ fast-scan refined": lambda: RefinedPeer(faiss_peers.fast_scan(256, opq=True)),
    "faiss OPQ128 fast-scan refined": lambda: RefinedPeer(faiss_peers.fast_scan(128, opq=True)),
    "faiss IVF fast-scan refined": lambda: RefinedPeer(faiss_peers.fast_scan(256, lists=True), lists=True),
    "faiss RaBitQ refined": lambda: RefinedPeer(faiss_peers.rabitq),
    "faiss IVF-RaBitQ refined": lambda: RefinedPeer(faiss_peers.ivf_rabitq, lists=True),
    "faiss HNSW": lambda: FaissPeer(faiss_peers.hnsw, graph=True),
    "faiss HNSW SQ8": lambda: FaissPeer(faiss_peers.hnsw_of("SQ8"), graph=True),
    "faiss HNSW fp16": lambda: FaissPeer(faiss_peers.hnsw_of("SQfp16"), graph=True),
    "hnswlib": HnswlibPeer,
    "usearch": UsearchPeer,
    "usearch i8": lambda: UsearchPeer("i8"),
    "scann": ScannPeer,
    "svs": SvsPeer,
    "turbovec 2 bits": lambda: TurbovecPeer(2),
    "turbovec 4 bits": lambda: TurbovecPeer(4),
}


def make_competitor(name: str) -> Competitor:
    return OurCodec(name) if name in CODEC_NAMES else PEERS[name]()


def extra_of(competitor: Competitor) -> str:
    """The extra that brings what a competitor needs."""
    return "contest" if competitor.needs in ("scann", "svs", "turbovec") else "bench"


def is_missing(competitor: Competitor) -> bool:
    return competitor.needs is not None and importlib.util.find_spec(competitor.needs) is None
