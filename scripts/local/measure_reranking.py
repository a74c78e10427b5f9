"""What re-ranking adds: mAP of a global model on unseen landmarks before and after, query by query, with its spread.

    python scripts/local/measure_reranking.py PHOTOS --components components.csv --store features.sqlite -o rerank.json

Queries are the test photos that geometry connects with another one (components); positives are those, the landmark's
other photos are left out. The gain's spread is a bootstrap over queries, 95 %.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
from compare_tokens import choose_photos, read_features, truths

from tessera.data.images import load_benchmark
from tessera.evaluate.protocol import score_query
from tessera.extract.extractor import Extractor
from tessera.local.rerank import DEPTH, open_reranker, order_candidates
from tessera.local.store import FeatureStore

SIZE = 384


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("photos", type=Path)
    parser.add_argument("--components", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--model", default="lite")
    parser.add_argument("--features", default="xfeat", help="for sp")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--rerank", default="sp", choices=["sp", "dsm"])
    parser.add_argument("--test", type=int, default=60, help="photos a landmark")
    parser.add_argument("--queries", type=int, default=0, help="0 for all")
    parser.add_argument("--descriptors", type=Path, help="an .npz to keep the global descriptors in")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    test = choose_photos(given.photos, {"test": given.test})
    ids = [photo for _, _, photo in test]
    rows = describe(given, ids)
    store = FeatureStore(given.store)
    if given.rerank == "sp":
        from tessera.local.extractors import open_local_extractor

        reranker = open_reranker("sp", extractor=open_local_extractor(given.features, count=given.count))
        features = read_features(given.photos, store, given.features, given.count, ids)
    else:
        reranker = open_reranker("dsm", model=given.model)
        features = store.get_many(reranker.extractor.fingerprint, ids)
        for photo in ids:
            if photo not in features:
                features[photo] = reranker.extractor.extract(load_benchmark(place(given.photos, photo), size=SIZE))
                store.put(reranker.extractor.fingerprint, photo, features[photo])
        store.flush()
    relevances = truths(test, given.components)["views"]
    asked = [i for i, relevance in enumerate(relevances) if len(relevance.positives)]
    if given.queries:
        asked = sorted(np.random.default_rng(0).choice(asked, min(given.queries, len(asked)), replace=False).tolist())
    before, after, cpu = [], [], 0.0
    for query in asked:
        scores = rows @ rows[query]
        ranking = np.argsort(-scores, kind="stable")
        head = ranking[ranking != query][:DEPTH]
        began = time.process_time()
        inliers = reranker.count_inliers(features[ids[query]], [features[ids[i]] for i in head])
        cpu += time.process_time() - began
        verified = np.concatenate(
            [[query], head[order_candidates(inliers, scores[head])], ranking[ranking != query][DEPTH:]]
        )
        before.append(score_query(ranking, relevances[query], (1,)).ap)
        after.append(score_query(verified, relevances[query], (1,)).ap)
    gains = np.array(after) - np.array(before)
    draws = np.random.default_rng(0).integers(0, len(gains), (2000, len(gains)))
    low, high = np.percentile(gains[draws].mean(axis=1), [2.5, 97.5])
    answer = {
        "settings": {key: str(value) for key, value in vars(given).items()},
        "gallery": len(ids),
        "queries": len(asked),
        "map_before": float(np.mean(before)),
        "map_after": float(np.mean(after)),
        "gain": float(gains.mean()),
        "gain_95": [float(low), float(high)],
        "cpu_s_for_100": cpu / len(asked),
        "better": int((gains > 1e-9).sum()),
        "worse": int((gains < -1e-9).sum()),
    }
    given.output.write_text(json.dumps(answer, indent=2) + "\n")
    print(json.dumps(answer))


def place(photos: Path, photo: str) -> Path:
    return photos / "train" / photo[0] / photo[1] / photo[2] / f"{photo}.jpg"


def describe(given: argparse.Namespace, ids: list[str]) -> np.ndarray:
    """Global descriptors at scale 1."""
    if given.descriptors is not None and given.descriptors.is_file():
        kept = np.load(given.descriptors)
        if kept["ids"].tolist() == ids:
            return kept["rows"]
    extractor = Extractor(given.model, size=SIZE, scales=(1.0,))
    rows = np.stack([extractor.describe(load_benchmark(place(given.photos, photo), size=SIZE)) for photo in ids])
    if given.descriptors is not None:
        np.savez(given.descriptors, rows=rows, ids=np.array(ids))
    return rows


if __name__ == "__main__":
    main()
