"""What `bench search` compares, behind one small interface: our codecs, and numpy; other peers are in `peers`."""

from __future__ import annotations

import abc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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
BLOCK_ROWS = 16384
Point = dict[str, float]
DEPTHS = (0.15, 0.3, 0.6, 1.0, 2.0)


class Competitor(abc.ABC):
    """Something that finds the nearest of N D descriptors. Rows are named 0 .. N - 1."""

    needs: str | None = None  # a module that must be there
    graph = False  # builds a graph, which takes too long for a million: held to a smaller number

    @abc.abstractmethod
    def build(self, descriptors: Float16s) -> None: ...

    @abc.abstractmethod
    def search(self, queries: Float32s, k: int) -> Int64s: ...

    def add(self, ids: Int64s, descriptors: Float32s) -> bool:
        """Add some; False where that is not offered."""
        return False

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

    def points(self) -> tuple[Point, ...]:
        """Settings of the search over which its curve is drawn, the quickest first."""
        return ({},)

    def use(self, point: Point) -> None:  # noqa: B027 - there may be nothing to set
        """Search with these settings from now on."""

    def refinements(self) -> dict[str, Callable[[Float32s, int], Any]]:
        """Searches with expansion or re-ranking that are timed, too, by name."""
        return {}


class OurCodec(Competitor):
    def __init__(self, codec: str) -> None:
        self.codec = codec
        self.index: Any = None
        self._fitted: Any = None  # the calibration as it was built

    def build(self, descriptors: Float16s) -> None:
        from tessera.index.build import build_index

        self.index = build_index(self.codec, np.arange(len(descriptors)), descriptors)

    def search(self, queries: Float32s, k: int) -> Int64s:
        found: Int64s = self.index.search(queries, k)[1]
        return found

    def add(self, ids: Int64s, descriptors: Float32s) -> bool:
        self.index.add(ids, descriptors)
        return True

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

    def points(self) -> tuple[Point, ...]:
        """Fewer and more candidates than were found to be needed, where the codec has candidates."""
        return tuple({"depth": depth} for depth in DEPTHS) if self.codec in ("fast", "ivf") else ({},)

    def use(self, point: Point) -> None:
        if point:
            codec = self.index._codec
            self._fitted = self._fitted or codec._calibration
            codec._calibration = self._fitted.scaled(point["depth"])

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
        for i in range(0, len(descriptors), BLOCK_ROWS):
            self.rows[i : i + BLOCK_ROWS] = descriptors[i : i + BLOCK_ROWS]

    def search(self, queries: Float32s, k: int) -> Int64s:
        scores = queries @ self.rows.T
        top = np.argpartition(scores, scores.shape[1] - k, axis=1)[:, -k:]
        order = np.argsort(-np.take_along_axis(scores, top, axis=1), axis=1, kind="stable")
        return np.take_along_axis(top, order, axis=1)

    def add(self, ids: Int64s, descriptors: Float32s) -> bool:
        self.rows = np.concatenate([self.rows, descriptors])
        return True

    def save(self, path: Path) -> None:
        np.save(path.with_suffix(".npy"), self.rows)
        path.with_suffix(".npy").rename(path)

    def load(self, path: Path) -> None:
        self.rows = np.load(path)


def disk_bytes(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
