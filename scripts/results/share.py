"""The claim behind the method: mAP against the share of the picture that the object fills.

A controlled form of it, since no set has boxes: of each thing of instances val one photo asks, and another is pasted
into a photo of a val landmark so that it fills a share of it. At each share the gallery is those pictures, one a thing,
and every photo of the test landmarks. The same things, places and backgrounds at every share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from local_rows import LOCAL_ROWS, WORDS, features_of_maps, rank_by_asmk, training_maps
from maps import PictureMaps, describe_maps
from PIL import Image
from rows import BACKBONE, ROWS, SIZE
from run import Bench, append_csv, choose_rate, commit, load_network, read_csv, say, train
from sets import Photo

from tessera.data.benchmark import Benchmark
from tessera.evaluate.protocol import KAPPAS
from tessera.evaluate.rankers import rank_exactly
from tessera.evaluate.run import score_rankings
from tessera.local.codebook import Codebook
from tessera.models.backbones import build_backbone

SHARES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
SYSTEMS = ("token", "gem", "solar", "delg", "spoc", "how")
SETS = ("beerlabels", "grocery", "pairs", "tmbud")  # whose photos show little but the thing
COLUMNS = ("row", "seed", "share", "map", "queries", "gallery", "commit")
_SIDE = 512  # of a made picture, before it is reduced for the network

IntArray = npt.NDArray[np.int64]


def make_share(bench: Bench, seed: int, systems: Sequence[str] = SYSTEMS) -> None:
    """Measure systems with one seed at every share, unless that was done."""
    path = bench.results / "share.csv"
    asked, targets = choose_things(bench.photos)
    backgrounds = [photo for photo in bench.photos if photo.source == "gldv2" and photo.role == "val"]
    others = [photo for photo in bench.photos if photo.source == "gldv2" and photo.role == "test"]
    paths = [bench.data / photo.file for photo in (*asked, *others)]
    for share in SHARES:
        folder = bench.work / "share" / f"{share:.4f}"
        paths += [
            paste(bench, target, backgrounds[(7 * number) % len(backgrounds)], share, number, folder)
            for number, target in enumerate(targets)
        ]
    maps = PictureMaps(bench.work / "share" / f"{BACKBONE}-{SIZE}", paths, SIZE)
    for name in systems:
        if any(found["row"] == name and found["seed"] == str(seed) for found in read_csv(path)):
            continue
        maps.prepare(build_backbone(BACKBONE, weights="imagenet"), say)
        rank = open_system(bench, name, seed, maps)
        for number, share in enumerate(SHARES):
            first = len(asked) + len(others) + number * len(targets)
            gallery = [*range(first, first + len(targets)), *range(len(asked), len(asked) + len(others))]
            benchmark = one_each(len(asked), gallery, maps)
            scores, _, _ = score_rankings(benchmark, rank(gallery, list(range(len(asked)))), KAPPAS)
            found = {"row": name, "seed": seed, "share": round(share, 4), "map": round(scores["all"].map, 5)}
            counts = {"queries": len(asked), "gallery": len(gallery), "commit": commit()}
            append_csv(path, COLUMNS, {**found, **counts})
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
    file.parent.mkdir(parents=True, exist_ok=True)
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
    thing.save(file)
    return file


def open_system(
    bench: Bench, name: str, seed: int, maps: PictureMaps
) -> Callable[[list[int], list[int]], Iterator[IntArray]]:
    """What ranks rows of the list for other rows of it."""
    if name in LOCAL_ROWS:
        local = LOCAL_ROWS[name]
        train(bench, local.row, seed, local.rate)
        network = load_network(bench.run_dir(local.row, seed, local.rate))
        words = np.concatenate([one.descriptors for one in features_of_maps(network, training_maps(bench))])
        codebook = Codebook.train(words, 64 if bench.smoke else WORDS, seed=seed)
        features = features_of_maps(network, maps)

        def by_parts(gallery: list[int], queries: list[int]) -> Iterator[IntArray]:
            benchmark = one_each(len(queries), gallery, maps)
            there, asked = ([features[row] for row in rows] for rows in (gallery, queries))
            return rank_by_asmk(codebook, benchmark, there, asked, None, None)

        return by_parts
    rate = choose_rate(bench, ROWS[name])
    train(bench, ROWS[name], seed, rate)
    head = load_network(bench.run_dir(ROWS[name], seed, rate)).head
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
