"""Which inliers to believe: how many true pairs and how many strangers reach a number of them, and what mAP it gives.

    cd scripts/local && python calibrate_matches.py PHOTOS --components ../../experiments/lite/components.csv \
        --features sift --similarities 0.9 -o WORK

Every query of landmarks of the role `val`, against the hundred photos that a global model finds most similar: the same
task as re-ranking, on landmarks that no table is measured on. A photo is true if geometry connects it with the query
(components) and a stranger if it shows another landmark; the landmark's other photos count as neither. With
`--features dsm` the bounds are standard deviations above chance.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from measure_systems import SIZE, landmark_benchmark

from tessera.data.benchmark import Benchmark
from tessera.data.images import load_benchmark
from tessera.evaluate.local import BenchmarkFeatures
from tessera.evaluate.protocol import PROTOCOLS, relevance_for, score_query
from tessera.extract.extractor import Extractor
from tessera.local.dsm import DsmConfig, DsmExtractor, beyond_chance, verify_channels
from tessera.local.extractors import open_local_extractor
from tessera.local.features import LocalFeatures
from tessera.local.rerank import DEPTH, EDGE_CELLS, order_candidates
from tessera.local.verification import VerificationConfig, verify

BOUNDS = (6, 7, 8, 10, 12, 16, 20, 24)
SIGMAS = (16, 18, 20, 21, 24)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("photos", type=Path)
    parser.add_argument("--components", type=Path, required=True)
    parser.add_argument("--features", default="sift", help="an extractor's name or a local bundle")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--model", default="lite", help="whose best hundred are looked at")
    parser.add_argument("--role", default="val")
    parser.add_argument("--gallery", type=int, default=40, help="photos a landmark")
    parser.add_argument("--queries", type=int, default=10, help="a landmark")
    parser.add_argument("--similarities", default="-1,0.8,0.85,0.9")
    parser.add_argument("--tolerances", default="4", help="pixels")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    benchmark = landmark_benchmark(given)
    extractor = Extractor(given.model, size=SIZE, scales=(1.0,))
    rows = np.stack([extractor.describe(load_benchmark(path, size=SIZE)) for path in benchmark.gallery])
    dsm = given.features == "dsm"
    local = DsmExtractor(given.model) if dsm else open_local_extractor(given.features, count=given.count)
    store = BenchmarkFeatures(local, given.output / "cache", SIZE)
    features = [store.get(path) for path in benchmark.gallery]
    store.flush()
    rankings = np.argsort(-(rows @ rows[benchmark.own_ids].T).T, axis=1, kind="stable")
    print("| similarity | tolerance | bound | true pairs | strangers | gain of mAP, views |\n|---|---|---|---|---|---|")
    for similarity in (float(word) for word in given.similarities.split(",")):
        for tolerance in (float(word) for word in given.tolerances.split(",")):
            margin = EDGE_CELLS if hasattr(local, "cell_px") else 0.0
            config = VerificationConfig(min_similarity=similarity, threshold_px=tolerance, margin=margin)
            accepted = [
                [
                    count_channels(features[own], features[i])
                    if dsm
                    else count_matches(features[own], features[i], config)
                    for i in ranking[ranking != own][:DEPTH]
                ]
                for own, ranking in zip(benchmark.own_ids, rankings, strict=True)
            ]
            for number, bound in enumerate(SIGMAS if dsm else BOUNDS):
                counts = [np.array([pair[number] for pair in of_query]) for of_query in accepted]
                print(f"| {similarity:g} | {tolerance:g} px | {bound} | {_outcome(benchmark, rankings, counts)} |")


def count_matches(first: LocalFeatures, second: LocalFeatures, config: VerificationConfig) -> list[int]:
    """The inliers that each of BOUNDS accepts."""
    found = verify(first, second, config).num_inliers
    return [found * (found >= bound) for bound in BOUNDS]


def count_channels(first: LocalFeatures, second: LocalFeatures) -> list[int]:
    """The inliers that each of SIGMAS accepts."""
    config = DsmConfig(significance=0)
    found = verify_channels(first, second, config)
    cell = 2 * float(second.scales[0]) * config.tolerance if len(second) else 1.0
    least = [beyond_chance(len(found.matches), cell, second.image_size, sigma) for sigma in SIGMAS]
    return [found.num_inliers * (found.num_inliers >= max(needed, config.min_inliers)) for needed in least]


def _outcome(benchmark: Benchmark, rankings: np.ndarray, counts: list[np.ndarray]) -> str:
    """The shares of true pairs and strangers that are accepted, and the mean gain of AP with its standard error."""
    true, strange, gains = [], [], []
    for own, lists, ranking, found in zip(benchmark.own_ids, benchmark.lists, rankings, counts, strict=True):
        head, rest = ranking[ranking != own][:DEPTH], ranking[ranking != own][DEPTH:]
        same = np.isin(head, lists["easy"])
        true += (found[same] > 0).tolist()
        strange += (found[~same & ~np.isin(head, lists["hard"])] > 0).tolist()
        order = head[order_candidates(found, -np.arange(len(head)))]
        relevance = relevance_for(lists, PROTOCOLS["easy"])
        before, after = (score_query(np.r_[r, rest], relevance, (1,)) for r in (head, order))
        gains.append(after.ap - before.ap)
    error = np.std(gains) / np.sqrt(len(gains))
    shares = f"{np.mean(true):.1%} of {len(true):,} | {np.mean(strange):.2%} of {len(strange):,}"
    return f"{shares} | {np.mean(gains):+.4f} ± {error:.4f}"


if __name__ == "__main__":
    main()
