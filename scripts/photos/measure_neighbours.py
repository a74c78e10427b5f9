"""What `tessera duplicates` does with 100,000 descriptors and signatures before it looks at any picture: candidates.

Drawn descriptors with a falling spectrum, one in twenty a near copy (cosine about 0.86); and signatures in four ways.

Usage: python scripts/photos/measure_neighbours.py -o results/photos/neighbours.json [--count 100000]
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path

import numpy as np

from tessera.data.signature import SIDE
from tessera.gallery.organise.duplicates import _turned_pairs
from tessera.index.neighbours import neighbour_pairs

DIM, RANK, BLOCK = 1024, 128, 10_000


def draw(count: int) -> tuple[np.ndarray, set[tuple[int, int]]]:
    random = np.random.default_rng(0)
    basis = random.normal(size=(RANK, DIM)).astype(np.float32)
    vectors = np.empty((count, DIM), np.float16)
    for start in range(0, count, BLOCK):
        size = min(BLOCK, count - start)
        strong = random.normal(size=(size, RANK)).astype(np.float32) * np.arange(1, RANK + 1) ** -0.5
        rows = strong @ basis + 2.0 * random.normal(size=(size, DIM))
        vectors[start : start + size] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    half, copies = count // 2, count // 20
    sources = random.choice(half, copies, replace=False)
    targets = half + random.choice(half, copies, replace=False)
    noise = random.normal(size=(copies, DIM))
    rows = vectors[sources].astype(np.float32) + 0.6 * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    vectors[targets] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return vectors, set(zip(sources.tolist(), targets.tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--count", type=int, default=100_000)
    options = parser.parse_args()
    vectors, copies = draw(options.count)
    answer: dict[str, object] = {
        "command": "python scripts/photos/measure_neighbours.py -o OUT",
        "count": options.count,
    }
    wall, cpu = time.perf_counter(), time.process_time()
    found = neighbour_pairs(vectors, 8, 0.6)
    answer["descriptors_seconds"] = round(time.perf_counter() - wall, 1)
    answer["descriptors_cpu_seconds"] = round(time.process_time() - cpu, 1)
    pairs = set(zip(found.queries.tolist(), found.rows.tolist(), strict=True))
    answer["copies_found"] = round(len(copies & pairs) / len(copies), 4)
    answer["pairs"] = len(pairs)
    coarse = np.random.default_rng(1).normal(size=(options.count, SIDE // 2, SIDE // 2)).astype(np.float32)
    squares = coarse.repeat(2, axis=1).repeat(2, axis=2)  # photos are smooth
    squares[options.count // 2 :] = np.rot90(squares[: options.count - options.count // 2], 1, axes=(1, 2))
    squares += 0.3 * np.random.default_rng(2).normal(size=squares.shape).astype(np.float32)
    squares /= np.linalg.norm(squares, axis=(1, 2), keepdims=True)
    wall, cpu = time.perf_counter(), time.process_time()
    turned = _turned_pairs(squares)
    answer["signatures_seconds"] = round(time.perf_counter() - wall, 1)
    answer["signatures_cpu_seconds"] = round(time.process_time() - cpu, 1)
    answer["turned_found"] = round(len(turned) / (options.count // 2), 4)
    answer["peak_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(answer, indent=1) + "\n")
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
