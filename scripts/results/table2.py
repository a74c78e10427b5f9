"""Table 2: extraction time, retrieval time on one thread, and memory at a million, next to the paper's columns.

    OMP_NUM_THREADS=1 python scripts/results/table2.py extract        the paper's networks, one picture of 1024 x 768
    OMP_NUM_THREADS=1 python scripts/results/table2.py search         each kind of descriptor, 10,000 and 100,000 images

Networks have random weights, which cost the same. Times are the processor's, so a busy machine does not change them
much. What does not fit is measured at 10,000 and 100,000 and extrapolated in proportion: such cells are marked.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from run import REPOSITORY, append_csv, commit, read_csv

from tessera.extract.scales import rescale
from tessera.index.build import build_index
from tessera.local.bundle_extractor import HOW_SCALES
from tessera.local.codebook import Codebook
from tessera.local.inverted_file import InvertedFile, KernelConfig
from tessera.models.model_registry import build_model
from tessera.models.preprocessing import DEFAULT_SCALES

EXTRACT = ("row", "scales", "width", "height", "cpu_ms", "repeats", "commit")
SEARCH = ("row", "images", "dim", "codec", "top100_cpu_ms", "full_cpu_ms", "bytes_an_image", "commit")
NETWORKS = {
    "R101-Token": ("token-r101", DEFAULT_SCALES),
    "R101-DELG": ("delg-r101", DEFAULT_SCALES),
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
_QUERIES = 8
_FEATURES = 1000  # of an image of ASMK*
_WORDS = 65536


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
            for name in given.only or DESCRIPTORS:
                measure_search(name, images)
            if not given.only or "R101-HOW-ASMK*" in given.only:
                measure_asmk(images)


@torch.no_grad()
def measure_extraction(name: str, side: int, repeats: int = 2) -> None:
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


def measure_asmk(images: int) -> None:
    """ASMK* over drawn features: a thousand an image, words as common as in photos; the query's words are found too."""
    path, name = REPOSITORY / "results" / "table2-search.csv", "R101-HOW-ASMK*"
    if _is_there(path, name, images) or images > 10_000:
        return
    random = np.random.default_rng(0)
    words = random.standard_normal((_WORDS, 128)).astype(np.float32)
    weights = 1 / (np.arange(_WORDS) + _WORDS / 20) ** 0.7
    weights /= weights.sum()
    index = InvertedFile(Codebook(words), KernelConfig(nprobe=32))
    for start in range(0, images, 500):
        drawn = random.choice(_WORDS, 500 * _FEATURES, p=weights)
        features = words[drawn] + np.float32(0.5) * random.standard_normal((len(drawn), 128), dtype=np.float32)
        index.add(np.repeat(np.arange(start, start + 500), _FEATURES), features)
    index.compact()
    queries = np.stack(
        [words[random.choice(_WORDS, _FEATURES, p=weights)] + np.float32(0.5) for _ in range(_QUERIES)]
    ).astype(np.float32)
    found = {"row": name, "images": images, "dim": 128, "codec": "asmk"}
    times = {
        "top100_cpu_ms": _a_query(lambda query: index.search(query, 100), queries),
        "full_cpu_ms": _a_query(index.search, queries),
        "bytes_an_image": round(index.num_bytes / images),
    }
    append_csv(path, SEARCH, {**found, **times, "commit": commit()})


def _is_there(path: Path, name: str, images: int) -> bool:
    return any(found["row"] == name and found["images"] == str(images) for found in read_csv(path))


def _a_query(search: Callable[[Any], Any], queries: np.ndarray) -> float:
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
