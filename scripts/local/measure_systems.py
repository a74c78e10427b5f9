"""Every system of sections A and B of the paper's Table 1, in small: unseen landmarks and planar scenes, in one table.

    python scripts/local/measure_systems.py PHOTOS --models MODELS --components results/lite/components.csv -o WORK

PHOTOS is laid out as GLDv2 with roles.csv; MODELS has the bundles how-lite, delf-lite, delg-lite and delg-local-lite
(the recipes `small/...`). Words and tokens learn from landmarks of the role `train`, figures come from the role `test`.
A query's `views` are the photos that geometry connects with it (components, the landmark's others left out), its
`names` all photos of the landmark. Everything is kept in WORK: a run that was stopped goes on, and each row is printed
when done.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from compare_tokens import choose_photos
from PIL import Image

from tessera.bench.planar_scenes import draw_homography, paint_scene, warp
from tessera.data.sets.benchmark import Benchmark
from tessera.evaluate.local import BenchmarkFeatures
from tessera.evaluate.run import evaluate_model
from tessera.local.describe import open_aggregator
from tessera.local.feature_cache import encode_features
from tessera.local.spatial_reranking import Reranker, open_reranker
from tessera.local.system import FILE_NAME, System, SystemConfig, build_system
from tessera.local.token_training import train_token_system
from tessera.models.bundle import Bundle
from tessera.storage import write_atomically

SIZE = 384
COUNT = 300
FEW_QUERIES = 4  # of the slowest row
TOKENS = {"hidden": 256, "dim": 512}
TOKEN_TRAINING = {"epochs": 10, "sample": 100}
SCALES = (1.414, 1.0, 0.707)  # of the networks' systems; HOW's seven take twice as long


@dataclass(frozen=True)
class Row:
    """kind: of the system, or `global`. extractor: a name or a bundle of MODELS; of `global`, the model. paper: kB.

    base: the row that re-ranking started from.
    """

    name: str
    kind: str
    extractor: str
    rerank: str | None = None
    local: str | None = None
    paper: float | None = None
    base: str = ""
    few: bool = False


ROWS = (
    Row("lite", "global", "lite", paper=3.9),
    Row("lite + SP (SIFT)", "global", "lite", rerank="sp", base="lite"),
    Row("lite + DSM", "global", "lite", rerank="dsm", base="lite"),
    Row("HesAff-rSIFT-ASMK*", "asmk", "hesaff-rsift"),
    Row("HesAff-rSIFT-ASMK*+SP", "asmk", "hesaff-rsift", rerank="sp", base="HesAff-rSIFT-ASMK*"),
    Row("HOW-ASMK*", "asmk", "how-lite", paper=14.3),
    Row("HOW-VLAD", "vlad", "how-lite", paper=7.6),
    Row("DELF-ASMK*", "asmk", "delf-lite", paper=10.3),
    Row("DELF-ASMK*+SP", "asmk", "delf-lite", rerank="sp", base="DELF-ASMK*"),
    Row("DELF-R-ASMK*", "rasmk", "delf-lite", paper=27.6),
    Row("DELF-R-ASMK*+SP", "rasmk", "delf-lite", rerank="sp", base="DELF-R-ASMK*"),
    Row("DELG", "global", "delg-lite", paper=7.6),
    Row("DELG+SP", "global", "delg-lite", rerank="sp", local="delg-local-lite", paper=485.9, base="DELG"),
    Row("HOW + tokens", "tokens", "how-lite"),
    Row("DELF + tokens", "tokens", "delf-lite"),
    Row("lite + LightGlue", "global", "lite", rerank="lightglue", base="lite", few=True),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("photos", type=Path)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--components", type=Path, required=True)
    parser.add_argument("--role", default="test", help="whose landmarks are searched; val for choosing settings")
    parser.add_argument("--gallery", type=int, default=10, help="photos a landmark")
    parser.add_argument("--queries", type=int, default=2, help="a landmark")
    parser.add_argument("--train", type=int, default=6, help="photos a landmark that tokens learn from")
    parser.add_argument("--words", type=int, default=512)
    parser.add_argument("--only", nargs="*", help="names of rows, in this order")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    file = given.output / "rows.json"
    rows: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    sets = {"photos": landmark_benchmark(given), "planar": planar_benchmark(given.output / "planar")}
    by_name = {row.name: row for row in ROWS}
    for row in ROWS if given.only is None else [by_name[name] for name in given.only]:
        missing = [name for name in (row.extractor, row.local) if name in LITE and not (given.models / name).is_dir()]
        if missing:
            print(f"{row.name}: waits for {given.models / str(missing[0])}", flush=True)
            continue
        for name, benchmark in sets.items():
            if name not in rows.get(row.name, {}):
                measured = measure(row, benchmark, given)
                rows.setdefault(row.name, {})[name] = measured
                write_atomically(file, json.dumps(rows, indent=1).encode())
                print(row.name, name, {key: value for key, value in measured.items() if key != "ap"}, flush=True)
    print(to_markdown(rows))


LITE = ("how-lite", "delf-lite", "delg-lite", "delg-local-lite")


def landmark_benchmark(given: argparse.Namespace) -> Benchmark:
    """Photos of unseen landmarks, those that geometry connects first: `easy` are the views, `hard` the other names."""
    view_of = {}
    for number, found in enumerate(csv.DictReader(given.components.open())):
        view_of.update(dict.fromkeys(found["images"].split(), number))
    by_landmark: dict[str, list[str]] = {}
    for _, landmark, photo in choose_photos(given.photos, {given.role: 1000}):
        by_landmark.setdefault(landmark, []).append(photo)
    chosen: list[str] = []
    labels: list[str] = []
    asked: list[int] = []
    for landmark, photos in by_landmark.items():
        kept = sorted(photos, key=lambda photo: photo not in view_of)[: given.gallery]
        views = [view_of.get(photo) for photo in kept]
        fit = [photo for photo in kept if photo in view_of and views.count(view_of[photo]) > 1]
        asked += [len(chosen) + kept.index(photo) for photo in fit[: given.queries]]
        chosen += kept
        labels += [landmark] * len(kept)
    view = np.array([view_of.get(photo, -1) for photo in chosen])
    label, ids = np.array(labels), np.arange(len(chosen))
    lists = []
    for query in asked:
        same_view = (view == view[query]) & (ids != query)
        other = (label == label[query]) & ~same_view & (ids != query)
        lists.append({"easy": ids[same_view], "hard": ids[other], "junk": np.array([query])})
    paths = [given.photos / "train" / p[0] / p[1] / p[2] / f"{p}.jpg" for p in chosen]
    return _benchmark(f"gldv2-50 {given.role}", paths, asked, lists)


def planar_benchmark(folder: Path, scenes: int = 12) -> Benchmark:
    """Painted scenes and their views through known homographies; each scene asks for its view."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{kind}{seed}.png" for kind in ("scene", "view") for seed in range(scenes)]
    for seed in range(scenes):
        if not paths[scenes + seed].is_file():
            scene = paint_scene(seed)
            Image.fromarray(scene).save(paths[seed])
            Image.fromarray(warp(scene, draw_homography(seed), seed)).save(paths[scenes + seed])
    lists = [
        {"easy": np.array([scenes + i]), "hard": np.array([], np.int64), "junk": np.array([i])} for i in range(scenes)
    ]
    return _benchmark("planar", paths, list(range(scenes)), lists)


def _benchmark(name: str, paths: Sequence[Path], asked: Sequence[int], lists: Sequence[Any]) -> Benchmark:
    names = tuple(path.stem for path in paths)
    return Benchmark(
        name=name,
        gallery=tuple(paths),
        gallery_names=names,
        queries=tuple(paths[i] for i in asked),
        query_names=tuple(names[i] for i in asked),
        boxes=(None,) * len(asked),
        lists=tuple({key: ids.astype(np.int64) for key, ids in found.items()} for found in lists),
        own_ids=np.array(asked, np.int64),
        strict=False,
    )


def measure(row: Row, benchmark: Benchmark, given: argparse.Namespace) -> dict[str, Any]:
    """Evaluate one row: mAP of both truths, the processor's time a query, bytes an image."""
    if row.few:
        lost = range(FEW_QUERIES, len(benchmark.queries))
        benchmark = benchmark.without([], list(lost))
    cache, clocks = given.output / "cache", [time.process_time()]
    model = _place(row.extractor, given) if row.kind == "global" else str(build(row, given))
    local = None if row.local is None else _place(row.local, given)

    def progress(stage: str, done: int, total: int) -> None:
        del done, total
        if stage == "scoring queries":
            clocks.append(time.process_time())

    options: dict[str, Any] = {"size": SIZE, "scales": "1"} if row.kind == "global" else {}
    run = evaluate_model(
        benchmark, model, rerank=row.rerank, local=local, cache_dir=cache, progress=progress, **options
    )
    scores = run.result.protocols
    truths = {"views": "easy", "names": "medium"}
    answer: dict[str, Any] = {name: round(scores[level].map, 4) for name, level in truths.items() if level in scores}
    answer["cpu_ms_a_query"] = round(1e3 * float(np.median(np.diff(clocks[1:]))), 1)
    answer["bytes_an_image"] = round(_bytes_of_index(row, model, run.result.details))
    if row.rerank is not None:
        extractor = local if row.kind == "global" else System.open(model).extractor
        reranker = open_reranker(row.rerank, extractor=extractor, model=model if row.kind == "global" else "lite")
        size = reranker.size if row.kind == "global" else SIZE
        features = BenchmarkFeatures(reranker.extractor, cache, size)
        stored = [len(encode_features(features.get(path))) for path in benchmark.gallery]
        answer["bytes_of_features"] = round(float(np.mean(stored)))
        if benchmark.name == "planar":
            answer |= _verified(reranker, features, benchmark, few=row.few)
    ap = {name: scores[level].ap.tolist() for name, level in truths.items() if level in scores}
    answer["ap"] = {"queries": list(benchmark.query_names), **ap}
    return answer


def _verified(reranker: Reranker, features: BenchmarkFeatures, benchmark: Benchmark, *, few: bool) -> dict[str, float]:
    """The share of true pairs and of pairs of different scenes that verification accepts."""
    scenes = len(benchmark.gallery) // 2
    strangers = range(1, 3 if few else scenes)
    first, second = ([features.get(path) for path in benchmark.gallery[k : k + scenes]] for k in (0, scenes))
    true = [reranker.count_inliers(first[i], [second[i]])[0] > 0 for i in range(scenes)]
    false = [reranker.count_inliers(first[i], [second[(i + j) % scenes] for j in strangers]) for i in range(scenes)]
    return {"true_pairs": float(np.mean(true)), "false_pairs": float((np.concatenate(false) > 0).mean())}


def build(row: Row, given: argparse.Namespace) -> Path:
    """The folder of a row's system, its words or tokens learnt from train landmarks if that was not done before."""
    folder = given.output / "systems" / f"{row.extractor}-{row.kind}"
    if (folder / FILE_NAME).is_file():
        return Path(folder)
    train = choose_photos(given.photos, {"train": given.train})
    order = np.random.default_rng(0).permutation(len(train))
    paths = [given.photos / "train" / p[0] / p[1] / p[2] / f"{p}.jpg" for _, _, p in train]
    config = SystemConfig(
        name=folder.name,
        extractor=_place(row.extractor, given),
        kind=row.kind,  # type: ignore[arg-type]
        count=COUNT,
        size=SIZE,
        words=16 if row.kind == "vlad" else given.words,
        regions="lite" if row.kind == "rasmk" else "",
        scales=SCALES if row.extractor in LITE else (),
    )
    if row.kind == "tokens":
        labels = np.unique([int(landmark) for _, landmark, _ in train], return_inverse=True)[1].astype(np.int64)
        config = dataclasses.replace(config, network=TOKENS, training=TOKEN_TRAINING)
        train_token_system(config, paths, labels, folder, say=_say)
    else:
        build_system(config, (paths[i] for i in order), folder, say=_say)
    return Path(folder)


def _bytes_of_index(row: Row, model: str, details: Any) -> float:
    if row.kind == "global":
        return 4.0 * Bundle.open(model).card.dim
    if row.kind in ("vlad", "tokens"):
        return 4.0 * open_aggregator(System.open(model))[1]
    return float(details["bytes_an_image"])


def _place(name: str, given: argparse.Namespace) -> str:
    return str(given.models / name) if name in LITE else name


_say: Callable[[str], None] = lambda text: print(f"  {text}", flush=True)  # noqa: E731


def to_markdown(rows: dict[str, Any]) -> str:
    lines = [
        "| system | mAP views | mAP names | gain of re-ranking, views | planar mAP | planar pairs, true / false | "
        "bytes an image | the paper's | CPU ms a query |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        found = rows.get(row.name, {})
        if "photos" not in found:
            continue
        photos, scenes = found["photos"], found.get("planar", {})
        base = rows.get(row.base, {}).get("photos")
        pairs = f"{scenes['true_pairs']:.0%} / {scenes['false_pairs']:.1%}" if "true_pairs" in scenes else ""
        extra = f" + {photos['bytes_of_features']:,}" if "bytes_of_features" in photos else ""
        lines.append(
            f"| {row.name} | {photos['views']:.3f} | {photos['names']:.3f} | {gain(photos, base)} | "
            f"{scenes.get('views', float('nan')):.3f} | {pairs} | {photos['bytes_an_image']:,}{extra} | "
            f"{'' if row.paper is None else f'{row.paper * 1000:,.0f}'} | {photos['cpu_ms_a_query']:.0f} |"
        )
    return "\n".join(lines)


def gain(photos: dict[str, Any], base: dict[str, Any] | None, truth: str = "views") -> str:
    """The gain over the row below it on the same queries, with the 95 % of a bootstrap over queries."""
    if base is None:
        return ""
    before = dict(zip(base["ap"]["queries"], base["ap"][truth], strict=True))
    gains = np.array(
        [value - before[query] for query, value in zip(photos["ap"]["queries"], photos["ap"][truth], strict=True)]
    )
    draws = np.random.default_rng(0).integers(0, len(gains), (2000, len(gains)))
    low, high = np.percentile(gains[draws].mean(axis=1), [2.5, 97.5])
    return f"{gains.mean():+.3f} ({low:+.3f} .. {high:+.3f}, {len(gains)} queries)"


if __name__ == "__main__":
    main()
