"""Sections A and B of Table 1 in small: local features of the same maps, aggregated (ASMK*, R-ASMK*, VLAD) or matched.

The backbone stands still, so the local features of HOW, DELF and DELG are functions of maps that are there already.
HesAff-rSIFT needs no network: it sees the pictures.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from maps import PictureMaps
from rows import BACKBONE, HOW_PCA, HOW_TRAINED, ROWS, SIZE, TRAIN_LAST_STAGE, Row
from run import (
    FIGURES,
    RUNS,
    Bench,
    append_csv,
    choose_rate,
    commit,
    describe,
    load_network,
    measure,
    read_csv,
    say,
    train,
)
from sets import training_photos, unseen_photos

from tessera.data.images import load_benchmark
from tessera.data.sets.benchmark import Benchmark
from tessera.evaluate.protocol import KAPPAS
from tessera.evaluate.rankers import rank_exactly
from tessera.evaluate.run import score_rankings
from tessera.explain.attention_regions import merge_maps, region_box
from tessera.local.bundle_extractor import select_strongest
from tessera.local.codebook import Codebook
from tessera.local.extractors import open_local_extractor
from tessera.local.features import LocalFeatures
from tessera.local.inverted_file import InvertedFile, KernelConfig
from tessera.local.regions import Region, aggregate_regions, join_aggregates
from tessera.local.spatial_reranking import open_reranker, order_candidates
from tessera.local.vlad import describe_vlad
from tessera.models.backbones import build_backbone
from tessera.storage import atomic_path

COUNT = 300  # local features of a picture
WORDS = 4096
VLAD_WORDS = 16  # of 128 numbers: 2048
DEPTH = 100  # results that are re-ranked
CODEBOOK_PHOTOS = 1000
CELL_PX = 32
HESAFF_SIZE = 384

IntArray = npt.NDArray[np.int64]
Ranker = Callable[[Benchmark, Sequence[LocalFeatures], Sequence[LocalFeatures]], Iterator[IntArray]]


class InlierCounter(Protocol):
    """What re-ranks: a re-ranker, or one that keeps what it counted."""

    def count_inliers(self, query: LocalFeatures, candidates: Sequence[LocalFeatures]) -> IntArray: ...


_ON_LITE = (f'model.config.backbone="{BACKBONE}"',)
_HOW_START = ('model={name="how-r18"}', *_ON_LITE, "task.initial_images=500", "frozen.enabled=false")
# The recipe keeps the reduction and trains the backbone. Here the backbone stands still, so the reduction learns.
_HOW = (
    *_HOW_START,
    'optimiser.rates={"network.backbone"=0, "network.dim_reduction"=1}',
    "data.cache_gb=1.0",
    "loop.epochs=2",
)
_HOW_AS_IT_STARTS = (
    *_HOW_START,
    'optimiser.rates={"network.backbone"=0}',  # beside the recipe's own: nothing of the network learns
    "loop.epochs=1",
    "loop.steps_per_epoch=1",
)


@dataclass(frozen=True)
class LocalRow:
    """A local network and the ways that its features are used. ways: as the column `codec` of the figures has them."""

    row: Row
    rate: float
    ways: tuple[str, ...]


_HOW_RECIPE = "table1/a-how-r101-asmk.toml"
LOCAL_ROWS = {
    "how": LocalRow(Row("how", "HOW", _HOW_RECIPE, _HOW), 3e-4, ("asmk", "vlad")),
    "delf": LocalRow(
        Row("delf", "DELF", "table1/a-delf-asmk-sp.toml", (*_ON_LITE, "model.config.hidden=256")),
        1e-3,
        ("asmk", "asmk+sp", "rasmk", "rasmk+sp"),
    ),
    "delg-local": LocalRow(
        Row(
            "delg-local",
            "DELG's local branch",
            "small/delg-local-lite.toml",
            (*_ON_LITE, "model.config.hidden=512", "data.cache_gb=0", "validation.metric=accuracy"),
        ),
        1e-3,
        ("delg+sp", "delg+sp*"),
    ),
    "hesaff": LocalRow(Row("hesaff", "HesAff-rSIFT", "table1/a-hesaff-rsift-asmk-sp.toml"), 0.0, ("asmk", "asmk+sp")),
    HOW_PCA: LocalRow(Row(HOW_PCA, "HOW, PCA", _HOW_RECIPE, _HOW_AS_IT_STARTS), 3e-4, ("asmk", "vlad")),
    HOW_TRAINED: LocalRow(
        Row(HOW_TRAINED, "HOW", _HOW_RECIPE, (*_HOW_START, *TRAIN_LAST_STAGE), trained=True), 3e-4, ("asmk", "vlad")
    ),
}


def make_local_row(bench: Bench, local: LocalRow, seed: int) -> None:
    """Train and measure a local network in each of its ways, unless its figures are there."""
    name = local.row.name
    found = {(row["row"], row["seed"], row["codec"]) for row in read_csv(bench.results / "figures.csv")}
    ways = [way for way in local.ways if (name, str(seed), way) not in found]
    if not ways:
        return
    started = time.monotonic()
    if name == "hesaff":
        training, pictures = hesaff_features(bench)
    else:
        train(bench, local.row, seed, local.rate)
        network = load_network(bench.run_dir(local.row, seed, local.rate))
        learnt = local.row.trained
        training = features_of_maps(network, training_maps(bench), learnt=learnt) if local.ways[0] == "asmk" else []
        pictures = features_of_maps(network, bench.pictures if learnt else bench.maps, learnt=learnt)
    for way in ways:
        say(f"measure {name}, seed {seed}: {way}")
        ranker, size = open_way(bench, local, way, seed, training)
        what = {"row": name, "seed": seed, "codec": way, "dim": size}
        figures = measure(bench, what, scoring_of(bench, pictures, ranker))
        append_csv(bench.results / "figures.csv", FIGURES, *figures)
    run = {"row": name, "seed": seed, "rate": local.rate, "describe_s": round(time.monotonic() - started)}
    append_csv(bench.results / "runs.csv", RUNS, {**run, "commit": commit()})


def open_way(
    bench: Bench, local: LocalRow, way: str, seed: int, training: Sequence[LocalFeatures]
) -> tuple[Ranker, int]:
    """How features become rankings, and how many numbers a picture has (0 for an inverted file)."""
    name = local.row.name
    reranker = (
        open_reranker("sp", extractor=NamedFeatures("hesaff-rsift" if name == "hesaff" else name))
        if "sp" in way
        else None
    )
    if way == "vlad":
        codebook = Codebook.train(_stack(training), VLAD_WORDS, seed=seed)
        return (lambda _, gallery, queries: rank_by_vlad(codebook, gallery, queries)), codebook.size * codebook.dim
    if way.startswith("delg"):
        delg = ROWS["delg"]
        descriptors = describe(bench, delg, seed, choose_rate(bench, delg))
        rank = rank_by_descriptors(bench, descriptors, reranker, signs=way.endswith("*"))
        return rank, descriptors.shape[1]
    codebook = Codebook.train(_stack(training), 64 if bench.smoke else WORDS, seed=seed)
    regions = token_regions(bench, seed) if way.startswith("rasmk") else None
    return (lambda b, gallery, queries: rank_by_asmk(codebook, b, gallery, queries, regions, reranker)), 0


@dataclass
class NamedFeatures:
    """Stands for an extractor where only its name and its cells are asked for: the features are there."""

    name: str
    dim: int = 128

    @property
    def cell_px(self) -> int:
        return 0 if self.name == "hesaff-rsift" else CELL_PX

    @property
    def fingerprint(self) -> str:
        return self.name

    def extract(self, image: Any) -> LocalFeatures:
        raise NotImplementedError


def rank_by_asmk(
    codebook: Codebook,
    benchmark: Benchmark,
    gallery: Sequence[LocalFeatures],
    queries: Sequence[LocalFeatures],
    regions: dict[str, list[Region]] | None,
    reranker: InlierCounter | None,
) -> Iterator[IntArray]:
    """ASMK* or, with regions, R-ASMK*; then, with a re-ranker, re-ranking of the best."""
    index = InvertedFile(codebook, KernelConfig())
    if regions is None:
        ids = np.repeat(np.arange(len(gallery)), [len(features) for features in gallery])
        index.add(ids, _stack(gallery))
    else:
        index.add_aggregate(
            join_aggregates(
                [
                    aggregate_regions(
                        codebook,
                        features.descriptors,
                        features.positions / np.maximum(features.image_size, 1),
                        regions[benchmark.gallery_names[image]],
                        image_id=image,
                    )
                    for image, features in enumerate(gallery)
                    if len(features)
                ]
            )
        )
    empty = np.setdiff1d(np.arange(len(gallery)), index.search_ids())
    for asked in queries:
        found, scores = index.search(np.asarray(asked.descriptors, np.float32))
        ranking = np.concatenate([found, empty]).astype(np.int64)
        padded = np.concatenate([scores, np.full(len(empty), -np.inf)])
        yield ranking if reranker is None else look_again(reranker, asked, gallery, ranking, padded)


def rank_by_vlad(
    codebook: Codebook, gallery: Sequence[LocalFeatures], queries: Sequence[LocalFeatures]
) -> Iterator[IntArray]:
    rows = [np.stack([describe_vlad(codebook, one.descriptors) for one in many]) for many in (gallery, queries)]
    return rank_exactly(*rows)


def rank_by_descriptors(
    bench: Bench, descriptors: npt.NDArray[np.float32], reranker: InlierCounter | None, *, signs: bool
) -> Ranker:
    """Global descriptors, then re-ranking of the best with local features, as they are or as signs."""
    row_of = {photo.file: row for row, photo in enumerate(unseen_photos(bench.photos))}

    def rank(
        benchmark: Benchmark, gallery: Sequence[LocalFeatures], queries: Sequence[LocalFeatures]
    ) -> Iterator[IntArray]:
        assert reranker is not None
        if signs:
            gallery, queries = ([one.binarised() for one in many] for many in (gallery, queries))
        rows = descriptors[[row_of[name] for name in benchmark.gallery_names]]
        asked_rows = descriptors[[row_of[name] for name in benchmark.query_names]]
        for asked, row, ranking in zip(queries, asked_rows, rank_exactly(rows, asked_rows), strict=True):
            yield look_again(reranker, asked, gallery, ranking, rows[ranking] @ row)

    return rank


def look_again(
    reranker: InlierCounter,
    asked: LocalFeatures,
    gallery: Sequence[LocalFeatures],
    ranking: IntArray,
    scores: npt.NDArray[Any],
) -> IntArray:
    """A ranking whose head stands in the order of inliers."""
    head = ranking[:DEPTH]
    inliers = reranker.count_inliers(asked, [gallery[image] for image in head])
    return np.concatenate([head[order_candidates(inliers, scores[: len(head)])], ranking[len(head) :]])


@torch.no_grad()
def features_of_maps(network: Any, maps: PictureMaps, *, learnt: bool = False) -> list[LocalFeatures]:
    """The strongest local features of each picture over all scales, chosen as the extractor of a bundle does.

    learnt: whether the network's backbone is its own, so that the kept maps are not its maps.
    """
    network.eval()
    outputs: dict[int, list[dict[str, npt.NDArray[Any]]]] = defaultdict(list)
    scales: dict[int, list[float]] = defaultdict(list)
    for rows, scale, group in maps.stream(network.backbone) if learnt else maps.scaled_groups():
        ys, xs = np.divmod(np.arange(group.shape[2] * group.shape[3]), group.shape[3])
        cells = np.stack([xs, ys], axis=1)[None]
        for start in range(0, len(rows), 64):
            part = torch.from_numpy(group[start : start + 64].astype(np.float32))
            features, strengths = network.describe_map(part)
            features = features.flatten(2).transpose(1, 2).numpy()
            for row, vectors, values in zip(
                rows[start : start + 64], features, strengths.flatten(1).numpy(), strict=True
            ):
                one = {"features": vectors[None], "strengths": values[None], "positions": cells}
                outputs[int(row)].append(one)
                scales[int(row)].append(scale)
    return [_select(maps, row, outputs[row], scales[row]) for row in range(len(maps.paths))]


def _select(
    maps: PictureMaps, row: int, outputs: Sequence[dict[str, npt.NDArray[Any]]], scales: Sequence[float]
) -> LocalFeatures:
    height, width = maps.shape_of(row)
    return select_strongest(outputs, scales, COUNT).to_features(CELL_PX, (width, height))


def training_maps(bench: Bench) -> PictureMaps:
    """Maps of some training photos, whole, for the words."""
    photos = training_photos(bench.photos)
    chosen = np.sort(np.random.default_rng(0).permutation(len(photos))[:CODEBOOK_PHOTOS])
    paths = [bench.data / photos[i].file for i in chosen]
    maps = PictureMaps(bench.work / "pictures" / f"{BACKBONE}-{SIZE}-training", paths, SIZE)
    maps.prepare(build_backbone(BACKBONE, weights="imagenet"), say)
    return maps


def token_regions(bench: Bench, seed: int) -> dict[str, list[Region]]:
    """Where the tokens of the Token row look, a box a token, by file: the detector of R-ASMK*."""
    token = ROWS["token"]
    rate = choose_rate(bench, token)
    train(bench, token, seed, rate)
    head = load_network(bench.run_dir(token, seed, rate)).head.eval()
    attention: dict[int, list[npt.NDArray[np.float32]]] = defaultdict(list)
    with torch.no_grad():
        for rows, _, group in bench.maps.scaled_groups():
            for start in range(0, len(rows), 64):
                part = torch.from_numpy(group[start : start + 64].astype(np.float32))
                for row, maps in zip(rows[start : start + 64], head(part)["attention"].numpy(), strict=True):
                    attention[int(row)].append(maps)
    boxes = {}
    for row, photo in enumerate(unseen_photos(bench.photos)):
        boxes[photo.file] = [region_box(values) for values in merge_maps(attention[row], *bench.maps.shape_of(row))]
    return boxes


def hesaff_features(bench: Bench) -> tuple[list[LocalFeatures], list[LocalFeatures]]:
    """HesAff-rSIFT of training photos for the words and of every unseen photo, kept on the disk picture by picture."""
    extractor = open_local_extractor("hesaff-rsift", count=COUNT)
    photos = training_photos(bench.photos)
    chosen = np.sort(np.random.default_rng(0).permutation(len(photos))[:CODEBOOK_PHOTOS])
    folder = bench.work / f"hesaff-{HESAFF_SIZE}-{COUNT}"
    folder.mkdir(parents=True, exist_ok=True)

    def extract(file: str) -> LocalFeatures:
        kept = folder / f"{file.replace('/', '_')}.npz"
        if not kept.is_file():
            features = extractor.extract(load_benchmark(bench.data / file, size=HESAFF_SIZE))
            arrays = {key: getattr(features, key) for key in ("descriptors", "positions", "scales", "strengths")}
            with atomic_path(kept) as temporary, temporary.open("wb") as opened:
                np.savez(opened, size=np.array(features.image_size), **arrays)
        with np.load(kept) as arrays:
            values = {key: arrays[key] for key in ("descriptors", "positions", "scales", "strengths")}
            width, height = arrays["size"]
        return LocalFeatures(**values, shapes=None, image_size=(int(width), int(height)))

    asked = [photos[i].file for i in chosen], [photo.file for photo in unseen_photos(bench.photos)]
    return [extract(file) for file in asked[0]], [extract(file) for file in asked[1]]


def scoring_of(bench: Bench, pictures: Sequence[LocalFeatures], rank: Ranker) -> Callable[[Benchmark], Any]:
    """What scores a benchmark by the local features of the pictures that training did not see."""
    row_of = {photo.file: row for row, photo in enumerate(unseen_photos(bench.photos))}

    def score(benchmark: Benchmark) -> Any:
        gallery = [pictures[row_of[name]] for name in benchmark.gallery_names]
        queries = [pictures[row_of[name]] for name in benchmark.query_names]
        scores, _, _ = score_rankings(benchmark, rank(benchmark, gallery, queries), KAPPAS)
        return scores["all"]

    return score


def _stack(many: Sequence[LocalFeatures]) -> npt.NDArray[np.float32]:
    return np.concatenate([np.asarray(one.descriptors, np.float32) for one in many])
