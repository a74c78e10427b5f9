"""Which photos of a landmark show the same view: SIFT matches that a homography explains, joined into components.

    python scripts/lite/verify_landmarks.py PHOTOS -o results/lite/components.csv

PHOTOS is laid out as GLDv2 (`train.csv`, `train/a/b/c/abc….jpg`). Every pair of photos of a landmark is matched, so no
network has a say in what counts as the same view. A component is what the edges connect: chaining is accepted, since
two ends of a walk around a building are the same building.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from photos import Photo, read_photos

Array = NDArray[np.float32]

MAX_FEATURES = 600
PROBE_FEATURES = 400  # the strongest ones decide whether a pair is worth a closer look
PROBE_RATIO, PROBE_MATCHES = 0.8, 7
RATIO, MIN_SIMILARITY, MIN_MATCHES = 0.85, 0.8, 8
THRESHOLD_PX = 6.0
SURE_INLIERS = 10
LIKELY_INLIERS, LIKELY_TURN, LIKELY_SPREAD_PX = 8, 0.97, 10.0
CELL_PX = 4  # inliers in one cell count once: repeated points are no evidence


@dataclass(frozen=True)
class Features:
    """RootSIFT N 128 and its points N 3: x, y, angle in degrees."""

    descriptors: Array
    points: Array


def describe(path: Path) -> Features:
    cv2.setNumThreads(1)
    picture = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    sift = cv2.SIFT.create(nfeatures=MAX_FEATURES, contrastThreshold=0.02)
    points, raw = sift.detectAndCompute(picture, None)
    if raw is None:
        return Features(np.zeros((0, 128), np.float32), np.zeros((0, 3), np.float32))
    raw = raw[:MAX_FEATURES]
    descriptors = np.sqrt(raw / np.maximum(raw.sum(axis=1, keepdims=True), 1e-9)).astype(np.float32)
    return Features(descriptors, np.array([[*p.pt, p.angle] for p in points[:MAX_FEATURES]], np.float32))


def match(first: Array, second: Array, ratio: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Mutual nearest neighbours that beat the second nearest by `ratio` in distance."""
    similarities = first @ second.T
    forth, back = similarities.argmax(axis=1), similarities.argmax(axis=0)
    rows = np.flatnonzero(back[forth] == np.arange(len(forth)))
    rows = rows[similarities[rows, forth[rows]] > MIN_SIMILARITY]
    columns, counter = forth[rows], np.arange(len(rows))
    close = similarities[rows]
    best = close[counter, columns].copy()
    close[counter, columns] = -1
    passed = (1 - best) <= ratio**2 * (1 - close.max(axis=1, initial=-1))
    return rows[passed], columns[passed]


def same_view(first: Features, second: Features) -> bool:
    """Whether a homography explains enough matches, spread out and turned alike."""
    if min(len(first.points), len(second.points)) < MIN_MATCHES:
        return False
    probe, _ = match(first.descriptors[:PROBE_FEATURES], second.descriptors[:PROBE_FEATURES], PROBE_RATIO)
    if len(probe) < PROBE_MATCHES:
        return False
    rows, columns = match(first.descriptors, second.descriptors, RATIO)
    if len(rows) < MIN_MATCHES:
        return False
    source, target = first.points[rows], second.points[columns]
    homography, mask = cv2.findHomography(
        source[:, :2], target[:, :2], cv2.USAC_FAST, THRESHOLD_PX, confidence=0.99, maxIters=800
    )
    if homography is None or (kept := mask.ravel() > 0).sum() < 6:
        return False
    source, target = source[kept], target[kept]
    inliers = min(int(kept.sum()), _cells(source), _cells(target))
    turns = np.deg2rad(target[:, 2] - source[:, 2])
    agreement = abs(np.exp(1j * turns).mean())
    spread = min(_spread(source), _spread(target))
    likely = inliers >= LIKELY_INLIERS and agreement >= LIKELY_TURN and spread >= LIKELY_SPREAD_PX
    return inliers >= SURE_INLIERS or likely


def _cells(points: Array) -> int:
    return len(np.unique(np.round(points[:, :2] / CELL_PX), axis=0))


def _spread(points: Array) -> float:
    """The side of a square as large as the points' covariance: small for a logo, a date stamp or one window."""
    return float(np.linalg.det(np.cov(points[:, :2].T) + 1e-6 * np.eye(2)) ** 0.25)


def verify_landmark(photos: Sequence[Photo]) -> list[tuple[str, str]]:
    """The verified pairs among the photos of one landmark."""
    features = [describe(photo.path) for photo in photos]
    pairs = combinations(range(len(photos)), 2)
    return [(photos[a].id, photos[b].id) for a, b in pairs if same_view(features[a], features[b])]


def connect(pairs: Sequence[tuple[str, str]]) -> Iterator[list[str]]:
    """Connected components of two or more, each sorted, in the order of their first photo."""
    parent: dict[str, str] = {}

    def find(item: str) -> str:
        parent.setdefault(item, item)
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    for first, second in pairs:
        parent[find(first)] = find(second)
    groups: dict[str, list[str]] = {}
    for item in sorted(parent):
        groups.setdefault(find(item), []).append(item)
    yield from groups.values()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--landmarks", type=int, nargs="*", help="only these")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    photos = read_photos(options.photos)
    wanted = sorted(options.landmarks or {photo.landmark for photo in photos})
    groups = [[photo for photo in photos if photo.landmark == landmark] for landmark in wanted]
    with ProcessPoolExecutor(options.workers) as pool, options.output.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["landmark_id", "images"])
        for landmark, pairs in zip(wanted, pool.map(verify_landmark, groups), strict=True):
            for component in connect(pairs):
                writer.writerow([landmark, " ".join(component)])


if __name__ == "__main__":
    main()
