"""Table 2: extraction time, retrieval time on one thread, and memory at a million, next to the paper's columns.

    OMP_NUM_THREADS=1 python scripts/results/table2.py extract        the paper's networks, one picture of 1024 x 768
    OMP_NUM_THREADS=1 python scripts/results/table2.py search         each kind of descriptor, 10,000 and 100,000 images

Networks have random weights, which cost the same. Times are the processor's, so a busy machine does not change them
much. What does not fit is measured at 10,000 and 100,000, inverted files at 1,000 and 4,000, and the larger
extrapolated in proportion: such cells are marked. Local systems have 1,000 features of 128 numbers an image, drawn
around the words, so that their words are known.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from local_rows import NamedFeatures
from run import REPOSITORY, append_csv, commit, read_csv

from tessera.extract.scales import rescale
from tessera.index.build import build_index
from tessera.local.aggregation import Aggregate, aggregate, aggregate_words
from tessera.local.bundle_extractor import HOW_SCALES
from tessera.local.codebook import Codebook
from tessera.local.features import LocalFeatures, Vectors, Words
from tessera.local.inverted_file import InvertedFile, KernelConfig
from tessera.local.regions import aggregate_regions, join_aggregates
from tessera.local.spatial_reranking import open_reranker
from tessera.models.model_registry import build_model
from tessera.models.preprocessing import DEFAULT_SCALES

EXTRACT = ("row", "scales", "width", "height", "cpu_ms", "repeats", "commit")
SEARCH = ("row", "images", "dim", "codec", "top100_cpu_ms", "full_cpu_ms", "query_cpu_ms", "bytes_an_image", "commit")
NETWORKS = {
    "R101-Token": ("token-r101", DEFAULT_SCALES),
    "R101-DELG": ("delg-r101", DEFAULT_SCALES),
    "R101-DELG+SP": ("delg-r101", HOW_SCALES),
    "R101-HOW": ("how-r101", HOW_SCALES),
    "R50-DELF": ("delf-r50", HOW_SCALES),
}
DESCRIPTORS = {
    "R101-Token": (1024, "flat"),
    "R101-Token PQ1": (1024, "pq1"),
    "R101-Token PQ8": (1024, "pq8"),
    "R101-DELG": (2048, "flat"),
    "R101-HOW-VLAD": (2048, "flat"),
}
INVERTED = {"R101-HOW-ASMK*": 0, "R50-DELF-RASMK*": 4}  # regions beside the whole image
VERIFIED = ("R101-DELG+SP", "R101-DELG+SP*")
_INVERTED_SIZES = (1_000, 4_000)  # a hundred thousand would take hours to draw and sort
_QUERIES = 8
_FEATURES = 1000  # of an image of a local system
_WORDS = 65536
_SHARED = 200  # features of two views of one thing
_SIDE_PX = 1024
_SHORTLIST = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["extract", "search"])
    parser.add_argument("--only", nargs="*", help="names of rows")
    parser.add_argument("--images", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--side", type=int, default=1024)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "extract":
        for name in given.only or NETWORKS:
            measure_extraction(name, given.side)
    else:
        for images in given.images:
            for name in given.only or (*DESCRIPTORS, *VERIFIED, *INVERTED):
                if name in DESCRIPTORS:
                    measure_search(name, images)
                elif name in INVERTED:
                    for size in _INVERTED_SIZES:
                        measure_inverted(name, size)
                elif name in VERIFIED:
                    measure_verification(name)


@torch.no_grad()
def measure_extraction(name: str, side: int, repeats: int = 1) -> None:
    path = REPOSITORY / "results" / "table2-extract.csv"
    if any(found["row"] == name and found["width"] == str(side) for found in read_csv(path)):
        return
    model, scales = NETWORKS[name]
    network = build_model(model).eval()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    picture = np.random.default_rng(0).standard_normal((1, 3, side * 3 // 4, side)).astype(np.float32)
    spent = []
    for _ in range(repeats):
        started = time.process_time()
        for scale in scales:
            network(torch.from_numpy(rescale(picture, scale)).contiguous(memory_format=torch.channels_last))
        spent.append(time.process_time() - started)
    found = {"row": name, "scales": len(scales), "width": side, "height": side * 3 // 4, "repeats": repeats}
    append_csv(path, EXTRACT, {**found, "cpu_ms": round(1e3 * min(spent)), "commit": commit()})


def measure_search(name: str, images: int) -> None:
    path = REPOSITORY / "results" / "table2-search.csv"
    if _is_there(path, name, images):
        return
    dim, codec = DESCRIPTORS[name]
    random = np.random.default_rng(0)
    gallery = _unit(random.standard_normal((images, dim), dtype=np.float32))
    queries = _unit(random.standard_normal((_QUERIES, dim), dtype=np.float32))
    index = build_index(codec, np.arange(images), gallery)
    sizes = {"flat": 4 * dim, "pq1": dim, "pq8": dim // 8}
    found = {"row": name, "images": images, "dim": dim, "codec": codec, "bytes_an_image": sizes[codec]}
    times = {
        "top100_cpu_ms": _a_query(lambda query: index.search(query[None], 100), queries),
        "full_cpu_ms": _a_query(lambda query: index.search(query[None], images), queries),
    }
    append_csv(path, SEARCH, {**found, **times, "commit": commit()})


def measure_inverted(name: str, images: int) -> None:
    """ASMK* over drawn features; the query's words are looked up, the gallery's are those it was drawn around.

    query_cpu_ms: finding the query's words, which no gallery makes longer; the other times are of the lists alone.
    """
    path = REPOSITORY / "results" / "table2-search.csv"
    if _is_there(path, name, images):
        return
    draw = _Features()
    index = InvertedFile(draw.codebook, KernelConfig(nprobe=32))
    at_once = 500
    for start in range(0, images, at_once):
        parts = [draw.entries(image, INVERTED[name]) for image in range(start, min(images, start + at_once))]
        index.add_aggregate(join_aggregates(parts))
    index.compact()
    features = [draw.image() for _ in range(_QUERIES)]
    config, ids = index.config, np.zeros(_FEATURES, np.int64)

    def find_words(query: Vectors) -> Aggregate:
        return aggregate(
            draw.codebook, query, ids, nearest=config.query_assignment, binary=config.binary, nprobe=config.nprobe
        )

    queries = [find_words(one) for one in features]
    found = {"row": name, "images": images, "dim": 128, "codec": "rasmk" if INVERTED[name] else "asmk"}
    times = {
        "top100_cpu_ms": _a_query(lambda query: index.rank_aggregate(query, _SHORTLIST), queries),
        "full_cpu_ms": _a_query(index.rank_aggregate, queries),
        "query_cpu_ms": _a_query(find_words, features),
        "bytes_an_image": round(index.num_bytes / images),
    }
    append_csv(path, SEARCH, {**found, **times, "commit": commit()})


def measure_verification(name: str) -> None:
    """Re-ranking a hundred candidates by their local features, and the memory of these; `*`: as signs.

    All images are views of one thing: a fifth of their features are the same, elsewhere and at another size.
    """
    path = REPOSITORY / "results" / "table2-search.csv"
    if _is_there(path, name, _SHORTLIST):
        return
    draw = _Features()
    drawn = [draw.view() for _ in range(_SHORTLIST + _QUERIES)]
    if name.endswith("*"):
        drawn = [features.binarised() for features in drawn]
    reranker = open_reranker("sp", extractor=NamedFeatures("delg-local"))
    candidates = drawn[:_SHORTLIST]
    spent = _a_query(lambda query: reranker.count_inliers(query, candidates), drawn[_SHORTLIST:])
    found = {"row": name, "images": _SHORTLIST, "dim": 128, "codec": "sp*" if name.endswith("*") else "sp"}
    # Positions, scales and strengths of the features are in it.
    values = {"top100_cpu_ms": spent, "full_cpu_ms": spent, "bytes_an_image": drawn[0].num_bytes}
    append_csv(path, SEARCH, {**found, **values, "commit": commit()})


class _Features:
    """Draws images of local features: some words are common, as in photos, and a feature lies near its word."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self.codebook = Codebook(self._random.standard_normal((_WORDS, 128)).astype(np.float32))
        weights = 1 / (np.arange(_WORDS) + _WORDS / 20) ** 0.7
        self._steps = np.cumsum(weights / weights.sum())
        self._shared = self._draw()[1][:_SHARED]
        self._places = self._random.random((_SHARED, 2)) * _SIDE_PX / 2

    def _draw(self) -> tuple[Words, Vectors]:
        words = np.searchsorted(self._steps, self._random.random(_FEATURES)).clip(max=_WORDS - 1).astype(np.int32)
        noise = self._random.standard_normal((_FEATURES, 128), dtype=np.float32)
        return words, self.codebook.centroids[words] + np.float32(0.5) * noise

    def image(self) -> Vectors:
        return self._draw()[1]

    def view(self) -> LocalFeatures:
        _, descriptors = self._draw()
        positions = self._random.random((_FEATURES, 2)) * _SIDE_PX
        zoom, shift = 0.5 + self._random.random() / 2, self._random.random(2) * _SIDE_PX / 4
        descriptors[:_SHARED] = self._shared + np.float32(0.1) * self._random.standard_normal(self._shared.shape)
        positions[:_SHARED] = self._places * zoom + shift
        unit = descriptors / np.linalg.norm(descriptors, axis=1, keepdims=True)
        same = np.full(_FEATURES, 16, np.float32)
        return LocalFeatures(unit, positions.astype(np.float32), same, same, None, (_SIDE_PX, _SIDE_PX))

    def entries(self, image: int, regions: int) -> Aggregate:
        words, descriptors = self._draw()
        if not regions:
            ids = np.full(_FEATURES, image, np.int64)
            return aggregate_words(self.codebook, descriptors, words[:, None], ids, binary=True)
        corners = self._random.random((regions, 2)) / 2  # boxes of a quarter of the picture
        boxes = [(x, y, x + 0.5, y + 0.5) for x, y in corners]
        known, places = _KnownWords(self.codebook, words[:, None]), self._random.random((_FEATURES, 2))
        return aggregate_regions(known, descriptors, places, boxes, image_id=image)


class _KnownWords(Codebook):
    """Knows the words of the features that it is asked for."""

    def __init__(self, codebook: Codebook, words: Words) -> None:
        super().__init__(codebook.centroids)
        self._words = words

    def assign(self, features: Any, nearest: int = 1, *, nprobe: int = 0) -> Words:
        return self._words


def _is_there(path: Path, name: str, images: int) -> bool:
    return any(found["row"] == name and found["images"] == str(images) for found in read_csv(path))


def _a_query(search: Callable[[Any], Any], queries: Any) -> float:
    """Milliseconds of processor time a query, the median."""
    search(queries[0])
    spent = []
    for query in queries:
        started = time.process_time()
        search(query)
        spent.append(time.process_time() - started)
    return round(1e3 * float(np.median(spent)), 2)


def _unit(rows: np.ndarray) -> np.ndarray:
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


if __name__ == "__main__":
    main()
