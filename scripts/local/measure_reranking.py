"""What re-ranking adds: mAP of a global model on unseen landmarks before and after, query by query, with its spread.

    cd scripts/local && python measure_reranking.py PHOTOS --components ../../results/lite/components.csv -o WORK

The gallery is every photo of the role's landmarks; the queries are those that geometry connects with another one
(components). `views` are those partners, the landmark's other photos left out; `names` are all photos of the landmark.
The best hundred are re-ranked. The spread is a bootstrap over queries, 95 %. Features, descriptors and inliers are kept
in WORK, so a run that was stopped goes on. `--rules` compares ways to order by inliers and score: for the role `val`.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from compare_tokens import choose_photos, truths

from tessera.data.images import load_benchmark
from tessera.evaluate.local import BenchmarkFeatures
from tessera.evaluate.protocol import Relevance, score_query
from tessera.extract.extractor import Extractor
from tessera.local.spatial_reranking import Reranker, open_reranker, order_candidates
from tessera.refiners import RERANKERS

SIZE = 384
Rule = Callable[[np.ndarray, np.ndarray], np.ndarray]


def order_by_sum(counts: np.ndarray, scores: np.ndarray, *, weight: float) -> np.ndarray:
    return np.argsort(-(scores + weight * np.log1p(counts)), kind="stable")


# counts and scores of the hundred to their order. `count` is what the product does; the others are its rivals.
RULES: dict[str, Rule] = {
    "count": order_candidates,
    **{
        f"score + {weight:g} log(1 + count)": functools.partial(order_by_sum, weight=weight)
        for weight in (0.02, 0.05, 0.1, 0.2)
    },
    "verified first, by score": lambda counts, scores: order_candidates(counts > 0, scores),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("photos", type=Path)
    parser.add_argument("--components", type=Path, required=True)
    parser.add_argument("--role", default="test")
    parser.add_argument("--model", default="lite")
    parser.add_argument("--rerank", default="sp", choices=["sp", "dsm", "lightglue"])
    parser.add_argument("--features", default="sift", help="for sp")
    parser.add_argument("--queries", type=int, default=0, help="drawn at random; 0 for all")
    parser.add_argument("--rules", action="store_true", help="compare ways to order; only on val")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    photos = choose_photos(given.photos, {given.role: 10_000})
    paths = [given.photos / "train" / p[0] / p[1] / p[2] / f"{p}.jpg" for _, _, p in photos]
    rows = describe(given, paths)
    relevances = truths(photos, given.components)
    asked = [i for i, relevance in enumerate(relevances["views"]) if len(relevance.positives)]
    if given.queries:
        asked = sorted(np.random.default_rng(0).choice(asked, min(given.queries, len(asked)), replace=False).tolist())
    reranker = open_reranker(given.rerank, extractor=given.features, model=given.model)
    rankings = {query: np.argsort(-(rows @ rows[query]), kind="stable") for query in asked}
    rankings = {query: ranking[ranking != query] for query, ranking in rankings.items()}
    inliers, cpu_s = count(given, reranker, paths, rankings)
    for name in RULES if given.rules else ["count"]:
        answer: dict[str, Any] = {"rule": name, "gallery": len(paths), "queries": len(asked), "cpu_s_for_100": cpu_s}
        for truth, relevance in relevances.items():
            aps: list[list[float]] = [[], []]
            for query, ranking in rankings.items():
                head = ranking[: RERANKERS["sp"].depth]
                order = RULES[name](inliers[query], rows[head] @ rows[query])
                for found, new in zip(
                    aps, (ranking, np.r_[head[order], ranking[RERANKERS["sp"].depth :]]), strict=True
                ):
                    found.append(average_precision(new, relevance[query]))
            answer[truth] = gain(*map(np.array, aps))
        print(json.dumps(answer), flush=True)


def average_precision(ranking: np.ndarray, relevance: Relevance) -> float:
    score = score_query(ranking, relevance, (1,))
    assert score is not None  # a query has at least one partner
    return score.ap


def gain(before: np.ndarray, after: np.ndarray) -> dict[str, Any]:
    gains = after - before
    draws = np.random.default_rng(0).integers(0, len(gains), (10_000, len(gains)))
    return {
        "before": round(float(before.mean()), 4),
        "after": round(float(after.mean()), 4),
        "gain": round(float(gains.mean()), 4),
        "gain_95": np.percentile(gains[draws].mean(axis=1), [2.5, 97.5]).round(4).tolist(),
        "better": int((gains > 1e-9).sum()),
        "worse": int((gains < -1e-9).sum()),
    }


def count(
    given: argparse.Namespace, reranker: Reranker, paths: list[Path], rankings: dict[int, np.ndarray]
) -> tuple[dict[int, np.ndarray], float]:
    """The inliers of each query with its best hundred, and the processor's seconds for one query where it was timed."""
    file = given.output / f"{given.role}-{given.rerank}-{reranker.extractor.fingerprint}-{reranker.min_inliers}.json"
    known = {
        int(key): np.array(value) for key, value in json.loads(file.read_text() if file.is_file() else "{}").items()
    }
    features = BenchmarkFeatures(reranker.extractor, given.output / "cache", SIZE)
    spent = []
    for number, (query, ranking) in enumerate(rankings.items()):
        if query not in known:
            candidates = [features.get(paths[i]) for i in ranking[: RERANKERS["sp"].depth]]
            asked = features.get(paths[query])
            began = time.process_time()
            known[query] = reranker.count_inliers(asked, candidates)
            spent.append(time.process_time() - began)
        if number % 20 == 0 or number == len(rankings) - 1:
            features.flush()
            file.write_text(json.dumps({key: value.tolist() for key, value in known.items()}))
    return known, round(float(np.median(spent)), 3) if spent else float("nan")


def describe(given: argparse.Namespace, paths: list[Path]) -> np.ndarray:
    """Global descriptors at scale 1."""
    extractor = Extractor(given.model, size=SIZE, scales=(1.0,))
    file = given.output / f"{given.role}-{extractor.fingerprint}.npy"
    if not file.is_file():
        np.save(file, np.stack([extractor.describe(load_benchmark(path, size=SIZE)) for path in paths]))
    return np.asarray(np.load(file))


if __name__ == "__main__":
    main()
