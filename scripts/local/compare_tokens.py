"""Tokens against ASMK* and VLAD over the same local features, on landmarks that nothing was fitted to.

    python scripts/local/compare_tokens.py PHOTOS --features xfeat --store features.sqlite -o tokens.json

PHOTOS is laid out as GLDv2, with roles.csv. Words and tokens learn from landmarks of the role `train`; every test photo
is a query for the others of its landmark (`names`), or for those that geometry connects with it (`views`, from a file
of components; the landmark's other photos are then left out of the ranking). Features are kept in the store.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from pathlib import Path

import numpy as np

from tessera.data.images import load_benchmark
from tessera.evaluate.protocol import Relevance, score_query
from tessera.local.codebook import Codebook
from tessera.local.extractors import open_local_extractor
from tessera.local.feature_cache import FeatureCache
from tessera.local.features import LocalFeatures
from tessera.local.inverted_file import InvertedFile
from tessera.local.token_training import TokenTrainingConfig, train_tokens
from tessera.local.tokens import SetTokensConfig
from tessera.local.vlad import describe_vlad

SIZE = 384


def choose_photos(root: Path, per_landmark: dict[str, int]) -> list[tuple[str, str, str]]:
    """Role, landmark and id of the photos, the same ones each time; exact duplicates are left out."""
    roles = {row["landmark_id"]: row["role"] for row in csv.DictReader((root / "roles.csv").open())}
    dropped = {row["drop"] for row in csv.DictReader((root / "duplicates.csv").open())}
    photos: dict[str, list[str]] = {}
    for row in csv.DictReader((root / "train.csv").open()):
        if row["id"] not in dropped:
            photos.setdefault(row["landmark_id"], []).append(row["id"])
    chosen = []
    for landmark, ids in photos.items():
        order = np.random.RandomState(int(landmark)).permutation(sorted(ids))
        chosen += [(roles[landmark], landmark, str(photo)) for photo in order[: per_landmark.get(roles[landmark], 0)]]
    return chosen


def read_features(root: Path, store: FeatureCache, name: str, count: int, ids: list[str]) -> dict[str, LocalFeatures]:
    extractor = open_local_extractor(name, count=count)
    found = store.get_many(extractor.fingerprint, ids)
    for photo in ids:
        if photo not in found:
            path = root / "train" / photo[0] / photo[1] / photo[2] / f"{photo}.jpg"
            found[photo] = extractor.extract(load_benchmark(path, size=SIZE))
            store.put(extractor.fingerprint, photo, found[photo])
    store.flush()
    return found


def mean_ap(rankings: list[np.ndarray], relevances: list[Relevance]) -> tuple[float, np.ndarray]:
    """mAP, and the AP of each query that has something to find."""
    aps = []
    for ranking, relevance in zip(rankings, relevances, strict=True):
        score = score_query(ranking, relevance, (1,))
        if score is not None:
            aps.append(score.ap)
    return float(np.mean(aps)), np.array(aps)


def truths(test: list[tuple[str, str, str]], components: Path | None) -> dict[str, list[Relevance]]:
    labels = np.array([int(landmark) for _, landmark, _ in test])
    everything = np.arange(len(test))
    by_name = [
        Relevance(positives=everything[(labels == label) & (everything != i)], junk=np.array([i]))
        for i, label in enumerate(labels)
    ]
    answer = {"names": by_name}
    if components is not None:
        place = {photo: i for i, (_, _, photo) in enumerate(test)}
        of = np.full(len(test), -1)
        for number, row in enumerate(csv.DictReader(components.open())):
            for photo in row["images"].split():
                if photo in place:
                    of[place[photo]] = number
        answer["views"] = [
            Relevance(
                positives=everything[(of == of[i]) & (of[i] >= 0) & (everything != i)],
                junk=everything[(labels == labels[i]) & ((of != of[i]) | (of[i] < 0) | (everything == i))],
            )
            for i in range(len(test))
        ]
    return answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("photos", type=Path)
    parser.add_argument("--features", default="xfeat")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--components", type=Path)
    parser.add_argument("--words", type=int, default=4096)
    parser.add_argument("--train", type=int, default=60, help="photos a landmark")
    parser.add_argument("--test", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    chosen = choose_photos(given.photos, {"train": given.train, "test": given.test})
    store = FeatureCache(given.store)
    features = read_features(given.photos, store, given.features, given.count, [photo for _, _, photo in chosen])
    train = [row for row in chosen if row[0] == "train"]
    test = [row for row in chosen if row[0] == "test"]
    learnt = np.concatenate([features[photo].descriptors for _, _, photo in train]).astype(np.float32)
    relevances = truths(test, given.components)
    sets = [features[photo].descriptors for _, _, photo in test]
    answer: dict[str, object] = {"photos": {"train": len(train), "test": len(test)}, "settings": vars(given).copy()}
    answer["settings"] = {key: str(value) for key, value in vars(given).items()}

    def report(name: str, rankings: list[np.ndarray], num_bytes: float, seconds: float) -> None:
        row: dict[str, object] = {"bytes_an_image": round(num_bytes), "seconds": round(seconds, 1)}
        for truth, of_query in relevances.items():
            row[f"map_{truth}"], aps = mean_ap(rankings, of_query)
            row[f"queries_{truth}"] = len(aps)
        answer[name] = row
        print(name, row, flush=True)

    random = np.random.default_rng(0)
    sample = learnt[np.sort(random.choice(len(learnt), min(len(learnt), 40 * given.words), replace=False))]
    started = time.perf_counter()
    codebook = Codebook.train(sample, given.words)
    index = InvertedFile(codebook)
    index.add(np.repeat(np.arange(len(sets)), [len(values) for values in sets]), np.concatenate(sets))
    rankings = [index.search(values)[0] for values in sets]
    report("asmk", rankings, index.num_bytes / len(sets), time.perf_counter() - started)

    started = time.perf_counter()
    small = Codebook.train(sample, 16)
    rows = np.stack([describe_vlad(small, values) for values in sets])
    report("vlad", rank(rows), 2 * rows.shape[1], time.perf_counter() - started)

    labels = np.unique([int(landmark) for _, landmark, _ in train], return_inverse=True)[1]
    for seed in range(given.seeds):
        started = time.perf_counter()
        network = train_tokens(
            [features[photo].descriptors for _, _, photo in train],
            labels.astype(np.int64),
            SetTokensConfig(features=learnt.shape[1], hidden=256),
            TokenTrainingConfig(epochs=given.epochs, sample=150, seed=seed),
            say=lambda text: print(text, flush=True),
        )
        rows = np.stack([network.describe_features(features[photo]) for _, _, photo in test])
        report(f"tokens_{seed}", rank(rows), 2 * rows.shape[1], time.perf_counter() - started)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(answer, indent=2) + "\n")


def rank(rows: np.ndarray) -> list[np.ndarray]:
    return list(np.argsort(-(rows @ rows.T), axis=1, kind="stable"))


if __name__ == "__main__":
    main()
