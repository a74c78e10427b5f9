"""Which inliers to believe: how many true pairs and how many strangers reach a number of them, and what mAP it gives.

    cd scripts/local && python calibrate_matches.py PHOTOS --components ../../results/lite/components.csv \
        --features sift --similarities 0.9 -o WORK

Every query of landmarks of the role `val`, against the hundred photos that a global model finds most similar: the same
task as re-ranking, on landmarks that no table is measured on. A photo is true if geometry connects it with the query
(components) and a stranger if it shows another landmark; the landmark's other photos count as neither. With
`--features dsm` or `lightglue` inliers are cells; the latter takes most of a second a pair, so a lower `--depth` is
wise. `--planar 24` adds painted scenes with known homographies: each with its view, and with four others'.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
from measure_systems import SIZE, landmark_benchmark
from PIL import Image

from tessera.bench.planar_scenes import draw_homography, paint_scene, warp
from tessera.data.images import load_benchmark
from tessera.data.sets.benchmark import Benchmark
from tessera.evaluate.local import BenchmarkFeatures
from tessera.evaluate.protocol import PROTOCOLS, relevance_for, score_query
from tessera.extract.extractor import Extractor
from tessera.local.dsm import DsmConfig, DsmExtractor, verify_channels
from tessera.local.extractors import open_local_extractor
from tessera.local.features import LocalExtractor, LocalFeatures
from tessera.local.spatial_reranking import EDGE_MARGIN, open_reranker, order_candidates
from tessera.local.verification import VerificationConfig, verify
from tessera.refiners import RERANKERS

BOUNDS = (6, 7, 8, 10, 12, 14, 16, 18, 20, 24, 28, 30, 32, 34, 36, 40)


# The inliers of a pair that each bound accepts.
Accept = Callable[[LocalFeatures, LocalFeatures], list[int]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("photos", type=Path)
    parser.add_argument("--components", type=Path, required=True)
    parser.add_argument("--features", default="sift", help="an extractor's name, a local bundle, dsm or lightglue")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--model", default="lite", help="whose best hundred are verified")
    parser.add_argument("--role", default="val")
    parser.add_argument("--gallery", type=int, default=40, help="photos a landmark; 0 for painted scenes alone")
    parser.add_argument("--queries", type=int, default=10, help="a landmark")
    parser.add_argument("--depth", type=int, default=RERANKERS["sp"].depth, help="photos that a query is compared with")
    parser.add_argument("--planar", type=int, default=0, help="painted scenes")
    parser.add_argument(
        "--enlarge", type=int, default=1, help="painted scenes by so much, for networks with coarse maps"
    )
    parser.add_argument("--similarities", default="-1,0.8,0.85,0.9")
    parser.add_argument("--tolerances", default="4", help="pixels")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    benchmark = landmark_benchmark(given)
    extractor = Extractor(given.model, size=SIZE, scales=(1.0,))
    described = [extractor.describe(load_benchmark(path, size=SIZE)) for path in benchmark.gallery]
    rows = np.stack(described) if described else np.zeros((0, 1))
    rankings = np.argsort(-(rows @ rows[benchmark.own_ids].T).T, axis=1, kind="stable")
    local, ways = open_ways(given)
    store = BenchmarkFeatures(local, given.output / "cache", SIZE)
    features = [store.get(path) for path in benchmark.gallery]
    store.flush()
    heads = [ranking[ranking != own][: given.depth] for own, ranking in zip(benchmark.own_ids, rankings, strict=True)]
    print("| way | bound | true pairs | strangers | gain of mAP, views | planar: true | strangers |\n|" + "---|" * 7)
    for name, accept in ways.items():
        accepted = [
            np.array([accept(features[own], features[i]) for i in head])
            for own, head in zip(benchmark.own_ids, heads, strict=True)
        ]
        scenes = compare_scenes(local, accept, given.planar, given.enlarge)
        for number, bound in enumerate(BOUNDS):
            counts = [of_query[:, number] for of_query in accepted]
            shares = " | ".join(_share(part[:, number]) if len(part) else "" for part in scenes)
            print(f"| {name} | {bound} | {_outcome(benchmark, rankings, counts)} | {shares} |", flush=True)


def open_ways(given: argparse.Namespace) -> tuple[LocalExtractor, dict[str, Accept]]:
    """The extractor, and the ways to compare its features that are to be tried."""
    if given.features == "dsm":
        return DsmExtractor(given.model), {"dsm": count_channels}
    if given.features == "lightglue":
        reranker = open_reranker("lightglue")
        return reranker.extractor, {
            "lightglue": lambda first, second: _accepted(reranker.compare(first, second).num_inliers)
        }
    local = open_local_extractor(given.features, count=given.count)
    margin = EDGE_MARGIN if hasattr(local, "cell_px") else 0.0
    ways: dict[str, Accept] = {}
    for similarity in map(float, given.similarities.split(",")):
        for tolerance in map(float, given.tolerances.split(",")):
            config = VerificationConfig(min_similarity=similarity, threshold_px=tolerance, margin=margin)
            ways[f"cosine {similarity:g}, {tolerance:g} px"] = functools.partial(count_matches, config=config)
    return local, ways


def compare_scenes(local: LocalExtractor, accept: Accept, scenes: int, zoom: int) -> tuple[np.ndarray, np.ndarray]:
    """What the bounds accept of painted scenes with their own views, and with the views of four others."""
    painted = [paint_scene(seed) for seed in range(scenes)]
    views = [warp(scene, draw_homography(seed), seed) for seed, scene in enumerate(painted)]
    first, second = ([local.extract(enlarge(image, zoom)) for image in images] for images in (painted, views))
    true = [accept(first[i], second[i]) for i in range(scenes)]
    strange = [accept(first[i], second[(i + j) % scenes]) for i in range(scenes) for j in range(1, 5)]
    return np.array(true), np.array(strange)


def enlarge(image: np.ndarray, zoom: int) -> np.ndarray:
    height, width = image.shape[:2]
    return np.asarray(Image.fromarray(image).resize((zoom * width, zoom * height), Image.Resampling.BICUBIC))


def _share(accepted: np.ndarray) -> str:
    return f"{np.mean(accepted > 0):.1%} of {len(accepted)}"


def count_matches(first: LocalFeatures, second: LocalFeatures, config: VerificationConfig) -> list[int]:
    return _accepted(verify(first, second, config).num_inliers)


def _accepted(found: int) -> list[int]:
    return [found * (found >= bound) for bound in BOUNDS]


def count_channels(first: LocalFeatures, second: LocalFeatures) -> list[int]:
    return _accepted(verify_channels(first, second, DsmConfig(min_inliers=0)).num_inliers)


def _outcome(benchmark: Benchmark, rankings: np.ndarray, counts: list[np.ndarray]) -> str:
    """The shares of true pairs and strangers that are accepted, and the mean gain of AP with its standard error."""
    if not counts:
        return " |  | "
    true, strange, gains = [], [], []
    for own, lists, ranking, found in zip(benchmark.own_ids, benchmark.lists, rankings, counts, strict=True):
        head, rest = np.split(ranking[ranking != own], [len(found)])
        same = np.isin(head, lists["easy"])
        true += (found[same] > 0).tolist()
        strange += (found[~same & ~np.isin(head, lists["hard"])] > 0).tolist()
        order = head[order_candidates(found, -np.arange(len(head)))]
        relevance = relevance_for(lists, PROTOCOLS["easy"])
        before, after = (score_query(np.r_[r, rest], relevance, (1,)) for r in (head, order))
        assert before is not None and after is not None, "every query has a positive"
        gains.append(after.ap - before.ap)
    error = np.std(gains) / np.sqrt(len(gains))
    shares = f"{np.mean(true):.1%} of {len(true):,} | {np.mean(strange):.2%} of {len(strange):,}"
    return f"{shares} | {np.mean(gains):+.4f} ± {error:.4f}"


if __name__ == "__main__":
    main()
