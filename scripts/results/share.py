"""The claim behind the method: mAP against the share of the picture that the object fills.

A controlled form of it, since no set has boxes: of each thing of instances val one photo asks, and another is pasted
into a photo of a val landmark so that it fills a share of it. At each share the gallery is those pictures, one a thing,
and every photo of the test landmarks. The same things, places and backgrounds at every share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from default_search import open_default_search
from local_rows import LOCAL_ROWS, WORDS, LocalRow, features_of_maps, rank_by_asmk, training_maps
from maps import PictureMaps, describe_maps
from PIL import Image
from rows import BACKBONE, DEFAULT_BY, REFERENCES, ROWS, SIZE, Row
from run import Bench, append_csv, choose_rate, commit, load_network, open_reference, read_csv, say, train
from sets import Photo

from tessera.data.sets.benchmark import Benchmark
from tessera.evaluate.protocol import KAPPAS
from tessera.evaluate.rankers import rank_exactly
from tessera.evaluate.run import score_rankings
from tessera.local.codebook import Codebook
from tessera.models.backbones import build_backbone
from tessera.storage import atomic_path

SHARES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
SYSTEMS = ("token", "gem", "solar", "delg", "spoc", "how")
SETS = ("beerlabels", "grocery", "pairs", "tmbud")  # whose photos show little but the thing
COLUMNS = ("row", "seed", "share", "map", "queries", "gallery", "commit")
_SIDE = 512  # of a made picture, before it is reduced for the network

IntArray = npt.NDArray[np.int64]
Rank = Callable[[list[int], list[int]], Iterator[IntArray]]


def make_share(bench: Bench, seed: int, systems: Sequence[str] = SYSTEMS) -> None:
    """Measure systems with one seed at every share, unless that was done."""
    path = bench.results / "share.csv"
    asked, targets = choose_things(bench.photos)
    backgrounds = [photo for photo in bench.photos if photo.source == "gldv2" and photo.role == "val"]
    others = [photo for photo in bench.photos if photo.source == "gldv2" and photo.role == "test"]
    paths = [bench.data / photo.file for photo in (*asked, *others)]
    galleries: list[list[int]] = []  # at each share the things, hidden so, then the photos of the test landmarks
    for share in SHARES:
        folder = bench.work / "share" / f"{share:.4f}"
        galleries.append([*range(len(paths), len(paths) + len(targets)), *range(len(asked), len(asked) + len(others))])
        paths += [
            paste(bench, target, backgrounds[(7 * number) % len(backgrounds)], share, number, folder)
            for number, target in enumerate(targets)
        ]
    maps = PictureMaps(bench.work / "share" / f"{BACKBONE}-{SIZE}", paths, SIZE)
    for name in systems:
        if any(found["row"] == name and found["seed"] == str(seed) for found in read_csv(path)):
            continue
        with open_system(bench, name, seed, maps, galleries) as rank:
            lines = []
            for share, gallery in zip(SHARES, galleries, strict=True):
                benchmark = one_each(len(asked), gallery, maps)
                scores, _, _ = score_rankings(benchmark, rank(gallery, list(range(len(asked)))), KAPPAS)
                found = {"row": name, "seed": seed, "share": round(share, 4), "map": round(scores["all"].map, 5)}
                lines.append({**found, "queries": len(asked), "gallery": len(gallery), "commit": commit()})
        append_csv(path, COLUMNS, *lines)
        say(f"share: {name}, seed {seed}: done")


def choose_things(photos: Sequence[Photo]) -> tuple[list[Photo], list[Photo]]:
    """Of each thing one photo that asks and one that is hidden in another picture."""
    by_label: dict[str, list[Photo]] = defaultdict(list)
    for photo in photos:
        if photo.role == "val" and photo.source in SETS:
            by_label[photo.label].append(photo)
    pairs = [own[:2] for own in by_label.values() if len(own) > 1]
    return [first for first, _ in pairs], [second for _, second in pairs]


def paste(bench: Bench, target: Photo, background: Photo, share: float, number: int, folder: Path) -> Path:
    """The picture of a thing that fills a share of it, kept as a file; a share of 1 is the photo itself."""
    file = folder / f"{number:04d}.png"
    if file.is_file():
        return file
    with Image.open(bench.data / target.file) as opened:
        thing = opened.convert("RGB")
    if share < 1:
        with Image.open(bench.data / background.file) as opened:
            scene = opened.convert("RGB")
        factor = _SIDE / max(scene.size)
        scene = scene.resize((round(scene.width * factor), round(scene.height * factor)), Image.Resampling.LANCZOS)
        zoom = (share * scene.width * scene.height / (thing.width * thing.height)) ** 0.5
        zoom = min(zoom, scene.width / thing.width, scene.height / thing.height)
        small = thing.resize(
            (max(1, round(thing.width * zoom)), max(1, round(thing.height * zoom))), Image.Resampling.LANCZOS
        )
        place = np.random.default_rng(number).random(2)
        free = (scene.width - small.width, scene.height - small.height)
        scene.paste(small, (int(place[0] * free[0]), int(place[1] * free[1])))
        thing = scene
    with atomic_path(file) as temporary:
        thing.save(temporary, "PNG")
    return file


@contextmanager
def open_system(
    bench: Bench, name: str, seed: int, maps: PictureMaps, galleries: Sequence[Sequence[int]]
) -> Iterator[Rank]:
    """What ranks rows of the list for other rows of it. galleries: all that will be asked for."""
    if name in DEFAULT_BY:
        with open_default_search(maps.folder.parent, maps.paths, galleries) as search:
            yield lambda gallery, queries: search.rank(gallery, [maps.paths[row] for row in queries], DEFAULT_BY[name])
        return
    maps.prepare(build_backbone(BACKBONE, weights="imagenet"), say)
    if name in REFERENCES:
        yield rank_by_head(open_reference(name).head, maps)
        return
    yield (
        rank_by_parts(bench, LOCAL_ROWS[name], seed, maps)
        if name in LOCAL_ROWS
        else rank_by_row(bench, ROWS[name], seed, maps)
    )


def rank_by_parts(bench: Bench, local: LocalRow, seed: int, maps: PictureMaps) -> Rank:
    """ASMK* over the local features of a trained row."""
    train(bench, local.row, seed, local.rate)
    network = load_network(bench.run_dir(local.row, seed, local.rate))
    words = np.concatenate([one.descriptors for one in features_of_maps(network, training_maps(bench))])
    codebook = Codebook.train(words, 64 if bench.smoke else WORDS, seed=seed)
    features = features_of_maps(network, maps)

    def rank(gallery: list[int], queries: list[int]) -> Iterator[IntArray]:
        benchmark = one_each(len(queries), gallery, maps)
        there, asked = ([features[row] for row in rows] for rows in (gallery, queries))
        return rank_by_asmk(codebook, benchmark, there, asked, None, None)

    return rank


def rank_by_row(bench: Bench, row: Row, seed: int, maps: PictureMaps) -> Rank:
    """The descriptors of a trained row."""
    rate = choose_rate(bench, row)
    train(bench, row, seed, rate)
    return rank_by_head(load_network(bench.run_dir(row, seed, rate)).head, maps)


def rank_by_head(head: Any, maps: PictureMaps) -> Rank:
    descriptors = describe_maps(head, maps.scaled_groups(), len(maps.paths))
    return lambda gallery, queries: rank_exactly(descriptors[gallery], descriptors[queries])


def one_each(asked: int, gallery: Sequence[int], maps: PictureMaps) -> Benchmark:
    """Query i has one positive, picture i of the gallery."""
    names = tuple(str(row) for row in gallery)
    nothing = np.array([], dtype=np.int64)
    return Benchmark(
        name="share",
        gallery=tuple(maps.paths[row] for row in gallery),
        gallery_names=names,
        queries=maps.paths[:asked],
        query_names=tuple(str(row) for row in range(asked)),
        boxes=(None,) * asked,
        lists=tuple({"easy": np.array([row]), "junk": nothing} for row in range(asked)),
        own_ids=np.full(asked, -1, dtype=np.int64),
        levels=False,
        num_distractors=len(gallery) - asked,
        strict=False,
    )
