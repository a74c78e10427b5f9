"""Local features in an evaluation: systems that rank by them, and re-rankers of the best of a ranking.

Features are kept in the cache by content, box and extractor, so a second run or another kernel extracts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.config import fingerprint
from tessera.data.ground_truth import Box
from tessera.data.images import load_benchmark
from tessera.data.sets.benchmark import Benchmark, IntArray
from tessera.errors import ConfigError, DataError, ImageError, UsageError
from tessera.evaluate.cache import HashCache, cache_key
from tessera.evaluate.descriptors import Descriptors
from tessera.evaluate.method import DescriptorMethod, ImagesOf, Method, Progress
from tessera.evaluate.rankers import rerank_heads
from tessera.extract.runtime import default_threads
from tessera.local.feature_cache import FeatureCache
from tessera.local.features import LocalExtractor, LocalFeatures
from tessera.local.inverted_file import InvertedFile
from tessera.local.regions import Region, aggregate_regions, join_aggregates, read_regions
from tessera.local.spatial_reranking import Reranker, open_reranker
from tessera.local.system import System
from tessera.refiners import RERANKERS

_KEPT = 4096  # images whose features stay in memory


class BenchmarkFeatures:
    """The local features of pictures, from the cache where it has them; loaded as the benchmarks' own code does."""

    def __init__(self, extractor: LocalExtractor, cache_dir: Path, size: int) -> None:
        self.extractor, self.size = extractor, size
        self._store = FeatureCache(cache_dir / "local" / "features.sqlite", exact=True)
        self._hashes = HashCache(cache_dir)
        self._key = fingerprint(extractor.fingerprint, size)
        self._memory: dict[str, LocalFeatures] = {}
        self.featureless: set[tuple[Path, Box | None]] = set()  # those asked for in which nothing was found

    def get(self, path: Path, box: Box | None = None) -> LocalFeatures:
        key = cache_key(self._hashes.hash_files([path])[0], box)
        features = self._memory.get(key)
        if features is None:
            features = self._read(key, path, box)
            while len(self._memory) >= _KEPT:
                self._memory.pop(next(iter(self._memory)))
            self._memory[key] = features
        if not len(features):
            self.featureless.add((path, box))
        return features

    def _read(self, key: str, path: Path, box: Box | None) -> LocalFeatures:
        features = self._store.get_many(self._key, [key]).get(key)
        if features is None:
            try:
                image = load_benchmark(path, size=self.size, box=box)
            except ImageError as error:
                raise DataError(f"{path} cannot be read: {error}") from error
            features = self.extractor.extract(image)
            self._store.put(self._key, key, features)
        return features

    def flush(self) -> None:
        self._store.flush()


class LocalReranking:
    """Puts the best of rankings in the order of their inliers; equal counts keep the order they had.

    features: those of a method that has them already, and speaks of them itself.
    """

    def __init__(
        self, reranker: Reranker, cache_dir: Path, *, depth: int, features: BenchmarkFeatures | None = None
    ) -> None:
        self.name, self.depth = reranker.name, depth
        self._reranker = reranker
        self._features = features or BenchmarkFeatures(reranker.extractor, cache_dir, reranker.size)
        self._speaks = features is None

    @classmethod
    def open(cls, name: str, cache_dir: Path, *, extractor: str | None, model: str) -> LocalReranking:
        return cls(open_reranker(name, extractor=extractor, model=model), cache_dir, depth=RERANKERS[name].depth)

    def rerank(
        self, rankings: Iterator[IntArray], benchmark: Benchmark, boxes: Sequence[Box | None]
    ) -> Iterator[IntArray]:
        def rescore(query: int, ids: IntArray) -> npt.NDArray[np.floating]:
            asked = self._features.get(benchmark.queries[query], boxes[query])
            candidates = [self._features.get(benchmark.gallery[i]) for i in ids]
            return self._reranker.count_inliers(asked, candidates, threads=default_threads()).astype(np.float64)

        yield from rerank_heads(rankings, rescore, self.depth)
        self._features.flush()

    @property
    def notes(self) -> tuple[str, ...]:
        count = len(self._features.featureless) if self._speaks else 0
        return say_featureless(count, "re-ranking left them where they were")


def open_system(
    path: str, cache_dir: Path, *, rerank: str | None, refined: bool = False
) -> tuple[Method, LocalReranking | None]:
    """The method of a system of local features, and its re-ranking by them, as asked for or as the system says.

    refined: whether something was asked for that needs descriptors.
    """
    system = System.open(path)
    if rerank not in (None, "sp") or refined:
        raise UsageError(f"{system.name} is a system of local features: --rerank sp is all that goes with it.")
    kind = rerank or system.config.rerank or None
    reranker = None if kind is None else open_reranker(kind, extractor=system.extractor)
    if system.config.kind in ("vlad", "tokens"):
        method: Method = AggregatedMethod(system, cache_dir, rerank=kind)
        features = None
    else:
        method = InvertedFileMethod(system, cache_dir, rerank=kind)
        features = method.features
    if reranker is None:
        return method, None
    depth = RERANKERS[reranker.name].depth if features is None else system.config.depth
    return method, LocalReranking(reranker, cache_dir, depth=depth, features=features)


def say_featureless(count: int, consequence: str) -> tuple[str, ...]:
    """The note on pictures without local features; none where each has some."""
    return (f"{count} pictures have no local features: {consequence}.",) if count else ()


class InvertedFileMethod:
    """ASMK* or R-ASMK* over a benchmark."""

    def __init__(self, system: System, cache_dir: Path, *, rerank: str | None = None) -> None:
        self.system = system
        self.features = BenchmarkFeatures(system.extractor, cache_dir, system.config.size)
        self.index = InvertedFile(system.codebook, system.config.kernel)
        self._rerank = rerank
        self._progress: Progress = lambda *_: None
        self._regions = 0

    @property
    def name(self) -> str:
        return self.system.name

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.system.fingerprint, self._rerank or "")

    @property
    def details(self) -> dict[str, Any]:
        bytes_an_image = round(self.index.num_bytes / max(len(self.index), 1))
        return {**_details(self.system, self._rerank), "bytes_an_image": bytes_an_image}

    def describe(self, images: ImagesOf, hashes: Sequence[str], cache_dir: Path, progress: Progress) -> dict[int, str]:
        del hashes, cache_dir  # the features have a cache of their own
        self._progress = progress
        failures = {}
        for row, (path, box) in enumerate(zip(images.paths, images.boxes, strict=True)):
            progress("extracting features", row + 1, len(images.paths))
            try:
                self.features.get(path, box)
            except DataError as error:
                failures[row] = str(error)
        self.features.flush()
        return failures

    def rank(
        self, benchmark: Benchmark, boxes: Sequence[Box | None], kept: Sequence[int], *, codec: str, seed: int
    ) -> Iterator[IntArray]:
        del kept, codec, seed  # an inverted file has codes of its own
        self._fill(benchmark)
        # What has no feature cannot be compared: it comes last, and `notes` says so.
        empty = np.setdiff1d(np.arange(len(benchmark.gallery)), self.index.search_ids())
        for query, path in enumerate(benchmark.queries):
            ids, _ = self.index.search(self.features.get(path, boxes[query]).descriptors)
            yield np.concatenate([ids, empty]).astype(np.int64)
        self.features.flush()

    def _fill(self, benchmark: Benchmark) -> None:
        config = self.system.config
        find_regions = open_regions(self.system) if config.kind == "rasmk" else None
        batch: list[Any] = []
        for image, path in enumerate(benchmark.gallery):
            self._progress("indexing features", image + 1, len(benchmark.gallery))
            features = self.features.get(path)
            if not len(features):
                continue
            if find_regions is None:
                batch.append((np.full(len(features), image, np.int64), features.descriptors))
            else:
                regions = find_regions(path)
                self._regions += len(regions)
                batch.append(
                    aggregate_regions(
                        self.system.codebook,
                        features.descriptors,
                        features.positions / np.maximum(features.image_size, 1),
                        regions,
                        image_id=image,
                        nearest=config.kernel.db_assignment,
                        binary=config.kernel.binary,
                        nprobe=config.kernel.nprobe,
                    )
                )
        if not batch:
            raise DataError(f"no image of {benchmark.name} has a local feature: there is nothing to rank.")
        if find_regions is None:
            self.index.add(np.concatenate([ids for ids, _ in batch]), np.concatenate([rows for _, rows in batch]))
        else:
            self.index.add_aggregate(join_aggregates(batch))

    @property
    def notes(self) -> tuple[str, ...]:
        consequence = "images come last in every ranking, and queries find nothing but chance"
        notes = say_featureless(len(self.features.featureless), consequence)
        if self.system.config.kind == "rasmk" and not self._regions:
            notes += (f"{self.system.config.regions} names no region of any picture: the ranking is that of ASMK*.",)
        return notes


def open_regions(system: System) -> Callable[[Path], Sequence[Region]]:
    """Regions of a picture: from a file of boxes, or the attention of a global model's tokens."""
    name = system.config.regions
    beside = system.folder / name
    if name.endswith(".json"):
        return read_regions(beside)
    if not name:
        raise ConfigError(f"the system {system.name} is of kind rasmk and names no regions: a .json, or a model.")
    from tessera.explain.explanation import explain_image
    from tessera.extract.extractor import Extractor

    extractor = Extractor(str(beside) if beside.is_dir() else name)

    def find_regions(path: Path) -> Sequence[Region]:
        explained = explain_image(extractor, load_benchmark(path, size=extractor.size))
        return explained.boxes

    return find_regions


class DescribingSystem:
    """VLAD or tokens: one descriptor an image from its local features; stands where an `Extractor` does."""

    def __init__(self, system: System, cache_dir: Path) -> None:
        from tessera.local.describe import open_aggregator

        self.system = system
        self._describe, self.dim = open_aggregator(system)
        self._features = BenchmarkFeatures(system.extractor, cache_dir, system.config.size)

    @property
    def fingerprint(self) -> str:
        return self.system.fingerprint

    def extract(
        self, sources: Iterable[Any], *, boxes: Iterable[Box | None] | None = None, loader: str = "benchmark"
    ) -> Iterator[Any]:
        from tessera.extract.pipeline import Extraction

        assert loader == "benchmark"
        given = list(sources)
        cuts = list(boxes) if boxes is not None else [None] * len(given)
        for path, box in zip(given, cuts, strict=True):
            try:
                features = self._features.get(Path(path), box)
                yield Extraction(path, self._describe(features), None, *features.image_size)
            except DataError as error:
                yield Extraction(path, None, error, 0, 0)
        self._features.flush()


class AggregatedMethod(DescriptorMethod):
    """VLAD or tokens: ranked by descriptors, of which those of pictures without features are zeros."""

    def __init__(self, system: System, cache_dir: Path, *, rerank: str | None = None) -> None:
        super().__init__(DescribingSystem(system, cache_dir), system.name, details=_details(system, rerank))

    def look_at(self, benchmark: Benchmark, gallery: Descriptors, queries: Descriptors) -> tuple[str, ...]:
        apart = queries[benchmark.own_ids < 0]  # the others are pictures of the gallery
        nothing = sum(int((~rows.any(axis=1)).sum()) for rows in (gallery, apart))
        return say_featureless(nothing, "their descriptors are zeros, which resemble nothing")


def _details(system: System, rerank: str | None) -> dict[str, Any]:
    return {"size": system.config.size, "system": system.config.kind, "rerank": rerank}
