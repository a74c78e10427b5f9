"""What the assignment to words costs, beside a flat search, and what an approximate one finds: SIFT features of photos.

    OMP_NUM_THREADS=1 python scripts/local/measure_assignment.py PHOTOS

PHOTOS is laid out as GLDv2 with roles.csv. Features of photos of train landmarks are the words, others are assigned.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import faiss
import numpy as np
from compare_tokens import choose_photos

from tessera.data.images import load_photo
from tessera.local.codebook import INT8_MIN_FEATURES, Codebook
from tessera.local.extractors import open_local_extractor


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("photos", type=Path)
    parser.add_argument("--words", type=int, default=65536)
    parser.add_argument("--features", type=int, default=1000, help="to be assigned")
    parser.add_argument("--nprobes", default="24,32,48")
    given = parser.parse_args()
    features = collect(given.photos, given.words + given.features)
    codebook, asked = Codebook(features[: given.words]), features[given.words :]
    codebook.assign(asked[:1], nprobe=1)  # groups the words
    codebook.assign(features[:INT8_MIN_FEATURES])  # from so many on, bounds are used
    flat = faiss.IndexFlatL2(features.shape[1])
    flat.add(codebook.centroids)
    print("| way | words | microseconds a feature | nearest found | all found |\n|---|---|---|---|---|")
    for nearest in (1, 5):
        began = time.process_time()
        expected = flat.search(asked, nearest)[1]
        print(f"| flat | {nearest} | {1e6 * (time.process_time() - began) / len(asked):.0f} | | |", flush=True)
        for nprobe in (0, *(int(word) for word in given.nprobes.split(","))):
            near, spent = assign(codebook, asked, nearest, nprobe)
            first = (near[:, 0] == expected[:, 0]).mean()
            every = np.mean([len(np.intersect1d(a, b)) / nearest for a, b in zip(near, expected, strict=True)])
            print(f"| nprobe {nprobe} | {nearest} | {spent:.0f} | {first:.2%} | {every:.2%} |", flush=True)


def collect(photos: Path, wanted: int) -> np.ndarray:
    """That many features, from photos of train landmarks, in an order that is always the same."""
    extractor = open_local_extractor("sift", count=800)
    chosen = choose_photos(photos, {"train": 12})
    order = np.random.default_rng(0).permutation(len(chosen))
    found: list[np.ndarray] = []
    for i in order:
        name = chosen[i][2]
        path = photos / "train" / name[0] / name[1] / name[2] / f"{name}.jpg"
        found.append(extractor.extract(load_photo(path, size=1024)).descriptors)
        if sum(map(len, found)) >= 2 * wanted:
            break
    features = np.concatenate(found).astype(np.float32)
    return features[np.random.default_rng(1).permutation(len(features))[:wanted]]


def assign(codebook: Codebook, features: np.ndarray, nearest: int, nprobe: int) -> tuple[np.ndarray, float]:
    began = time.process_time()
    words = codebook.assign(features, nearest, nprobe=nprobe)
    return words, 1e6 * (time.process_time() - began) / len(features)


if __name__ == "__main__":
    main()
