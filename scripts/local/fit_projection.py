"""Fit the projection to 64 signs of the system that `tessera` ships to features that are known to be the same place.

    python scripts/local/fit_projection.py --data DATA src/tessera/systems/parts

DATA holds `instances`, whose train role is read. Photos of one thing are laid over each other by the present system;
features of both that fall on the same place at the same scale are pairs, whatever their descriptors say. Signs should
differ between features of a word and be the same for a pair: the directions with the largest variance of residuals
over the variance within pairs (linear discriminant analysis), turned at random so that every sign says as much.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tessera.data.images import load_photo
from tessera.local.compact import CODE_BITS
from tessera.local.features import LocalFeatures, Vectors
from tessera.local.matching import verify_many
from tessera.local.parts import PROJECTION_NAME, PartsFeatures, PartsModel

Array = npt.NDArray[np.float64]
SETS = {"tmbud": 2, "wonders": 6, "stitch": 2}  # how many photos of each thing
LEAST_INLIERS = 15
NEAR = 2 / 384  # of the longer side
OCTAVES = 0.4
NPROBE = 24  # of the 128 groups of words
LEAST_COSINE = 0.6  # below, something else lies there
SHRINKAGE = 0.1  # of the covariance within pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("system", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    model = PartsModel.open([str(given.system)])
    differences, residuals = [], []
    for paths in read_things(given.data / "instances"):
        features = [model.extract(load_photo(path, size=model.size)).kinds[0] for path in paths]
        residuals += [residuals_of(model, one.descriptors) for one in features]
        differences += [pair_differences(model, *pair) for pair in combinations(features, 2)]
    within, between = np.concatenate(differences), np.concatenate(residuals)
    print(f"{len(within)} pairs, {len(between)} features")
    np.save(given.system / PROJECTION_NAME, fit(within, between, given.seed))


def read_things(folder: Path) -> Iterator[list[Path]]:
    things: dict[str, list[Path]] = defaultdict(list)
    with (folder / "labels.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["role"] == "train" and row["set"] in SETS:
                things[f"{row['set']}/{row['label']}"].append(folder / row["path"])
    for thing, paths in things.items():
        yield paths[: SETS[thing.split("/")[0]]]


def residuals_of(model: PartsModel, descriptors: Vectors) -> Vectors:
    (vocabulary,) = model.vocabularies
    words = vocabulary.encode(descriptors, 1, NPROBE)[0][:, 0]
    return np.asarray(descriptors - vocabulary.system.codebook.centroids[words])


def pair_differences(model: PartsModel, first: LocalFeatures, second: LocalFeatures) -> Vectors:
    """What differs, M D, between the descriptors of features that lie on the same place at the same scale."""
    nothing = np.zeros((0, first.descriptors.shape[1]), np.float32)
    if not len(first) or not len(second):
        return nothing
    asked, stored = PartsFeatures.of([first]), PartsFeatures.of([second])
    (found,) = verify_many(model.encode_query(asked), [model.encode(stored)], model.match_distances)
    if found.num_inliers < LEAST_INLIERS or found.transformation is None:
        return nothing
    places, zooms = carry_over(first.positions.astype(np.float64), found.transformation)
    apart = np.square(places[:, None] - second.positions[None]).sum(axis=2)
    nearest = apart.argmin(axis=1)
    is_near = apart[np.arange(len(places)), nearest] < (NEAR * max(second.image_size)) ** 2
    octaves = np.log2(second.scales[nearest] / (first.scales * zooms))
    mine, theirs = first.descriptors, second.descriptors[nearest]
    is_alike = (mine * theirs).sum(axis=1) > LEAST_COSINE
    kept = is_near & (np.abs(octaves) < OCTAVES) & is_alike
    return np.asarray(mine[kept] - theirs[kept])


def carry_over(points: Array, transformation: Array) -> tuple[Array, Array]:
    """Where points, N 2, come to lie, and how much larger a small region becomes there, N."""

    def move(moved: Array) -> Array:
        mapped = np.column_stack([moved, np.ones(len(moved))]) @ transformation.T
        return np.asarray(mapped[:, :2] / mapped[:, 2:])

    places = move(points)
    frames = np.stack([move(points + step) - places for step in np.eye(2)], axis=2)
    return places, np.sqrt(np.abs(np.linalg.det(frames)))


def fit(within: Vectors, between: Vectors, seed: int) -> Vectors:
    """D 64. within: differences of pairs; between: residuals to words."""
    noise = within.T.astype(np.float64) @ within / (2 * len(within))
    spread = between.T.astype(np.float64) @ between / len(between)
    noise += SHRINKAGE * np.trace(noise) / len(noise) * np.eye(len(noise))
    variances, axes = np.linalg.eigh(noise)
    whitening = axes / np.sqrt(variances)
    _, directions = np.linalg.eigh(whitening.T @ spread @ whitening)
    chosen = whitening @ directions[:, -CODE_BITS:]
    turn, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((CODE_BITS, CODE_BITS)))
    return np.asarray(chosen @ turn, np.float32)


if __name__ == "__main__":
    main()
