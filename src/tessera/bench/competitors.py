"""What `bench search` compares: our codecs, and what a user would pick instead, behind one small interface."""

from __future__ import annotations

import abc
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.index.codecs import CODECS

Float32s = npt.NDArray[np.float32]
Float16s = npt.NDArray[np.float16]
Int64s = npt.NDArray[np.int64]

REFINEMENTS: dict[str, dict[str, Any]] = {
    "alpha query expansion": {"expand": "aqe"},
    "diffusion": {"expand": "diffusion"},
    "global re-ranking": {"rerank": "global"},
    "expansion and re-ranking": {"expand": "aqe", "rerank": "global"},
    "augmentation": {"augment": True},
}
_BLOCK_ROWS = 16384


class Competitor(abc.ABC):
    """Something that finds the nearest of N D descriptors. Rows are named 0 .. N - 1."""

    needs: str | None = None  # a module that must be there
    graph = False  # builds a graph, which takes too long for a million: held to a smaller number

    @abc.abstractmethod
    def build(self, descriptors: Float16s) -> None: ...

    @abc.abstractmethod
    def search(self, queries: Float32s, k: int) -> Int64s: ...

    @abc.abstractmethod
    def add(self, ids: Int64s, descriptors: Float32s) -> None: ...

    def delete(self, row: int) -> bool:
        """Remove one; False where that is not offered."""
        return False

    @abc.abstractmethod
    def save(self, path: Path) -> None: ...

    @abc.abstractmethod
    def load(self, path: Path) -> None: ...

    def set_threads(self, threads: int) -> None:
        import faiss

        faiss.omp_set_num_threads(threads)

    def code_bytes(self, path: Path) -> int:
        """What of the saved files is codes: all of it, unless descriptors are stored beside them."""
        return disk_bytes(path)

    def settings(self) -> dict[str, Any]:
        return {}

    def refinements(self) -> dict[str, Callable[[Float32s, int], Any]]:
        """Searches with expansion or re-ranking that are timed, too, by name."""
        return {}


class OurCodec(Competitor):
    def __init__(self, codec: str) -> None:
        self.codec = codec
        self.index: Any = None

    def build(self, descriptors: Float16s) -> None:
        from tessera.index.build import build_index

        self.index = build_index(self.codec, np.arange(len(descriptors)), descriptors)

    def search(self, queries: Float32s, k: int) -> Int64s:
        found: Int64s = self.index.search(queries, k)[1]
        return found

    def add(self, ids: Int64s, descriptors: Float32s) -> None:
        self.index.add(ids, descriptors)

    def delete(self, row: int) -> bool:
        return bool(self.index.remove([row]))

    def save(self, path: Path) -> None:
        self.index.save(path)

    def load(self, path: Path) -> None:
        from tessera.index.build import load_index

        self.index = load_index(path)

    def code_bytes(self, path: Path) -> int:
        return sum(file.stat().st_size for file in path.glob("codec.*"))

    def settings(self) -> dict[str, Any]:
        told: dict[str, Any] = self.index.describe()["settings"]
        return told

    def refinements(self) -> dict[str, Callable[[Float32s, int], Any]]:
        if self.codec not in ("fast", "ivf"):  # the large gallery's codecs; by others hundreds of searches take minutes
            return {}
        from tessera.index.refinement import search_refined

        def refined(options: dict[str, Any]) -> Callable[[Float32s, int], Any]:
            return lambda query, k: search_refined(self.index, query, k, fetch=self.index.descriptors, **options)

        return {name: refined(options) for name, options in REFINEMENTS.items()}


class NumpyPeer(Competitor):
    """One matrix product over fp32 descriptors and a partial sort: what one writes oneself."""

    def __init__(self) -> None:
        self.rows: Float32s = np.empty((0, 0), np.float32)

    def build(self, descriptors: Float16s) -> None:
        self.rows = np.empty(descriptors.shape, np.float32)
        for i in range(0, len(descriptors), _BLOCK_ROWS):
            self.rows[i : i + _BLOCK_ROWS] = descriptors[i : i + _BLOCK_ROWS]

    def search(self, queries: Float32s, k: int) -> Int64s:
        scores = queries @ self.rows.T
        top = np.argpartition(scores, scores.shape[1] - k, axis=1)[:, -k:]
        order = np.argsort(-np.take_along_axis(scores, top, axis=1), axis=1, kind="stable")
        return np.take_along_axis(top, order, axis=1)

    def add(self, ids: Int64s, descriptors: Float32s) -> None:
        self.rows = np.concatenate([self.rows, descriptors])

    def save(self, path: Path) -> None:
        np.save(path.with_suffix(".npy"), self.rows)
        path.with_suffix(".npy").rename(path)

    def load(self, path: Path) -> None:
        self.rows = np.load(path)


class FaissPeer(Competitor):
    def __init__(self, make: Callable[[int, int], Any], *, graph: bool = False) -> None:
        """make: (N, D) -> an untrained FAISS index."""
        self.make = make
        self.graph = graph
        self.index: Any = None

    def build(self, descriptors: Float16s) -> None:
        count, dim = descriptors.shape
        self.index = self.make(count, dim)
        chosen = np.sort(np.random.default_rng(0).permutation(count)[:65536])
        if not self.index.is_trained:
            self.index.train(np.asarray(descriptors[chosen], np.float32))
        for i in range(0, count, _BLOCK_ROWS):
            self.index.add(np.asarray(descriptors[i : i + _BLOCK_ROWS], np.float32))

    def search(self, queries: Float32s, k: int) -> Int64s:
        found: Int64s = self.index.search(queries, k)[1]
        return found

    def add(self, ids: Int64s, descriptors: Float32s) -> None:
        self.index.add(descriptors)

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
        self.index.init_index(max_elements=count + 2000, M=32, ef_construction=100)
        self.index.add_items(np.asarray(descriptors, np.float32), np.arange(count))
        self.index.set_ef(200)

    def search(self, queries: Float32s, k: int) -> Int64s:
        labels, _ = self.index.knn_query(queries, k=k)
        return np.asarray(labels).astype(np.int64)

    def add(self, ids: Int64s, descriptors: Float32s) -> None:
        self.index.add_items(descriptors, ids)

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

    def __init__(self) -> None:
        self.index: Any = None
        self.threads = 0

    def build(self, descriptors: Float16s) -> None:
        from usearch.index import Index

        self.index = Index(ndim=descriptors.shape[1], metric="ip", dtype="f16", expansion_search=200)
        self.index.add(np.arange(len(descriptors)), np.asarray(descriptors, np.float32))

    def search(self, queries: Float32s, k: int) -> Int64s:
        found = self.index.search(queries, k, threads=self.threads).keys
        return np.atleast_2d(np.asarray(found)).astype(np.int64)

    def add(self, ids: Int64s, descriptors: Float32s) -> None:
        self.index.add(ids, descriptors)

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


def _index_pq(count: int, dim: int) -> Any:
    import faiss

    return faiss.IndexPQ(dim, max(dim // 8, 1), 8, faiss.METRIC_INNER_PRODUCT)


def _ivf_pq(count: int, dim: int) -> Any:
    import faiss

    lists = int(max(min(2 * np.sqrt(count), count / 39), 1))
    index: Any = faiss.index_factory(dim, f"IVF{lists},PQ{max(dim // 8, 1)}x8", faiss.METRIC_INNER_PRODUCT)
    index.cp.niter = 8
    index.nprobe = max(lists // 32, 1)
    return index


def _hnsw(count: int, dim: int) -> Any:
    import faiss

    index = faiss.IndexHNSWFlat(dim, 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efSearch = 200
    return index


CODEC_NAMES = tuple(CODECS)
PEERS: dict[str, Callable[[], Competitor]] = {
    "numpy": NumpyPeer,
    "faiss IndexPQ": lambda: FaissPeer(_index_pq),
    "faiss IVF-PQ": lambda: FaissPeer(_ivf_pq),
    "faiss HNSW": lambda: FaissPeer(_hnsw, graph=True),
    "hnswlib": HnswlibPeer,
    "usearch": UsearchPeer,
}


def make_competitor(name: str) -> Competitor:
    return OurCodec(name) if name in CODEC_NAMES else PEERS[name]()


def is_missing(competitor: Competitor) -> bool:
    return competitor.needs is not None and importlib.util.find_spec(competitor.needs) is None


def disk_bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
