"""Fit the codebooks and the projections that `tessera` ships for its default search, one run a kind of local features.

    python scripts/local/fit_parts.py PHOTOS.txt -o src/tessera/systems/parts
    python scripts/local/fit_parts.py PHOTOS.txt --extractor xfeat --scales 1 0.5 --count 300 \
        -o src/tessera/systems/parts-xfeat

PHOTOS.txt: a path a line; the packaged ones were fitted on every photo of the train role of `instances` and every
fourth of gldv2-50's. k-means in two stages (groups of features, then words within each), then Lloyd's steps over all
words with the approximate assignment that a search uses.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.data.images import load_photo
from tessera.local.compact import CODE_BITS
from tessera.local.extractors import open_local_extractor
from tessera.local.features import LocalExtractor
from tessera.local.parts import GROUPS_NAME, PROJECTION_NAME
from tessera.storage import write_atomically

Vectors = npt.NDArray[np.float32]
SIZE = 1024
MOST = 2000  # features of a photo
GROUPS = 128
NPROBE = 24
STEPS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="a text file with the path of a photo a line")
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--extractor", choices=("hesaff-rsift", "xfeat"), default="hesaff-rsift")
    parser.add_argument("--scales", type=float, nargs="+", default=[], help="of the picture, for xfeat")
    parser.add_argument("--words", type=int, default=16384)
    parser.add_argument("--count", type=int, default=740, help="features an image in the system that is written")
    parser.add_argument("--features", type=int, default=600_000, help="features that k-means sees")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    paths = [line for line in given.photos.read_text().splitlines() if line.strip()]
    options = {"scales": given.scales} if given.scales else {}
    extractor = open_local_extractor(given.extractor, count=MOST, **options)
    features = sample_features(paths, extractor, given.features, given.seed)
    centroids = fit_words(features, given.words, given.seed).astype(np.float16).astype(np.float32)
    given.output.mkdir(parents=True, exist_ok=True)
    np.save(given.output / "codebook.npy", centroids.astype(np.float16))
    np.save(given.output / GROUPS_NAME, fit_groups(centroids))
    np.save(given.output / PROJECTION_NAME, fit_projection(features[:50_000], centroids, given.seed))
    system = {
        "name": given.output.name,
        "extractor": given.extractor,
        "kind": "asmk",
        "count": given.count,
        "size": SIZE,
        **options,
        "words": given.words,
        "codebook": "codebook.npy",
        "provenance": {"photos": len(paths), "features": len(features), "seed": given.seed},
    }
    write_atomically(given.output / "system.json", json.dumps(system, indent=2).encode() + b"\n")


def sample_features(paths: Iterable[str], extractor: LocalExtractor, count: int, seed: int) -> Vectors:
    """Descriptors of the photos, of each up to 2,000, of all `count` drawn at random."""
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda path: extractor.extract(load_photo(path, size=SIZE)).descriptors, paths))
    features = np.concatenate(found)
    chosen = np.random.default_rng(seed).choice(len(features), min(count, len(features)), replace=False)
    return np.asarray(features[chosen], np.float32)


def fit_words(features: Vectors, words: int, seed: int) -> Vectors:
    num_groups = int(1.5 * words**0.5)
    coarse = _kmeans(features, num_groups, 8, seed)
    group_of = assign(coarse, features, exact=True)
    counts = np.bincount(group_of, minlength=num_groups)
    shares = np.maximum(1, np.round(counts / counts.sum() * words)).astype(int)
    while (missing := words - shares.sum()) != 0:
        shares[np.argmax(counts / shares if missing > 0 else shares)] += np.sign(missing)
    parts = [_kmeans(features[group_of == group], int(share), 6, seed) for group, share in enumerate(shares)]
    centroids = np.concatenate(parts)
    for _ in range(STEPS):
        word_of = assign(centroids, features)
        order = np.argsort(word_of, kind="stable")
        filled, starts = np.unique(word_of[order], return_index=True)
        sums = np.add.reduceat(features[order], starts, axis=0)
        centroids[filled] = sums / np.diff(starts, append=len(order))[:, None]
    return np.asarray(centroids, np.float32)


def _kmeans(features: Vectors, count: int, iterations: int, seed: int) -> Vectors:
    import faiss

    if len(features) <= count:
        return np.resize(features, (count, features.shape[1]))
    kmeans = faiss.Kmeans(features.shape[1], count, niter=iterations, seed=seed + 1)
    kmeans.cp.min_points_per_centroid, kmeans.cp.max_points_per_centroid = 1, 300
    kmeans.train(np.ascontiguousarray(features))
    return np.asarray(kmeans.centroids)


def assign(centroids: Vectors, features: Vectors, *, exact: bool = False) -> npt.NDArray[np.int64]:
    import faiss

    index: Any = faiss.IndexFlatL2(centroids.shape[1])
    if not exact:
        index = faiss.IndexIVFFlat(index, centroids.shape[1], GROUPS)
        index.cp.niter, index.cp.min_points_per_centroid = 5, 1
        index.train(centroids)
        index.nprobe = NPROBE
    index.add(centroids)
    return np.asarray(index.search(features, 1)[1][:, 0])


def fit_groups(centroids: Vectors) -> Vectors:
    return _kmeans(centroids, min(GROUPS, len(centroids)), 10, 0)


def fit_projection(features: Vectors, centroids: Vectors, seed: int) -> Vectors:
    """The principal half of the residuals' space, or all of it, turned at random so that every sign carries as much."""
    residuals = features - centroids[assign(centroids, features)]
    _, axes = np.linalg.eigh(residuals.T.astype(np.float64) @ residuals)
    turn, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((CODE_BITS, CODE_BITS)))
    return np.asarray(axes[:, ::-1][:, :CODE_BITS] @ turn, np.float32)


if __name__ == "__main__":
    main()
