"""How many inliers photos of the same view have, and photos of different landmarks by chance: by least similarity.

    python scripts/local/calibrate_matches.py PHOTOS --components components.csv --features sift --store features.sqlite

Only landmarks of the role `train` are looked at, so that what is chosen here owes nothing to a test set.
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import numpy as np
from compare_tokens import read_features

from tessera.local.store import FeatureStore
from tessera.local.verification import VerificationConfig, verify

BOUNDS = (8, 10, 12, 16, 20)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("photos", type=Path)
    parser.add_argument("--components", type=Path, required=True)
    parser.add_argument("--features", default="sift")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--true", type=int, default=80)
    parser.add_argument("--false", type=int, default=250)
    parser.add_argument("--similarities", default="-1,0.8,0.85,0.9")
    given = parser.parse_args()
    roles = {row["landmark_id"]: row["role"] for row in csv.DictReader((given.photos / "roles.csv").open())}
    views = [
        (row["landmark_id"], *row["images"].split()[:2])
        for row in csv.DictReader(given.components.open())
        if roles[row["landmark_id"]] == "train"
    ]
    random = np.random.default_rng(0)
    chosen = [views[i] for i in random.permutation(len(views))[: given.true]]
    true = [(first, second) for _, first, second in chosen]
    false: list[tuple[str, str]] = []
    while len(false) < given.false:
        one, other = chosen[random.integers(len(chosen))], chosen[random.integers(len(chosen))]
        if one[0] != other[0]:
            false.append((one[1], other[1]))
    ids = sorted({photo for pair in true + false for photo in pair})
    features = read_features(given.photos, FeatureStore(given.store), given.features, given.count, ids)
    for least in (float(word) for word in given.similarities.split(",")):
        config = VerificationConfig(min_similarity=least)
        found = {
            name: np.array([verify(features[a], features[b], config).num_inliers for a, b in pairs])
            for name, pairs in (("true", true), ("false", false))
        }
        shares = {bound: {name: float((counts >= bound).mean()) for name, counts in found.items()} for bound in BOUNDS}
        print(json.dumps({"features": given.features, "min_similarity": least, "at_least": shares}), flush=True)


if __name__ == "__main__":
    main()
