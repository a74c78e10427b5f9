"""Keep the maps of a bundle's backbone, so that blocks before and behind its tokens can be learnt (learn_blocks.py).

    python scripts/lite/cache_maps.py BUNDLE --photos PHOTOS --labelled THINGS -o FOLDER

Train photos that have a partner, and some that have none: whole, two hard views as the backbone was tuned on, three
strong ones as copy detection sees them, all of one number of positions. Val photos: whole, at 384 px.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cache_tokens import BATCH, Tokens, rank_in_instance, train_photos, val_photos
from fit_lite import LEVELS, read_picture, read_settings
from measure_lite import batches
from numpy.lib.format import open_memmap
from numpy.typing import NDArray
from photos import Photo, read_components
from views import Picture, make_hard_view, make_strong_view, nearest_aspect, resize

from tessera.models.bundle import Bundle

WIDE, TALL = (224, 288), (288, 224)
POSITIONS = 63
WHOLE, HARD, STRONG = (0,), (1, 2), (3, 4, 5)
VIEWS = 6
CHUNK = 32  # photos whose views wait for their batches
SIZE = 384


def make_map_view(photos: Sequence[Photo], pictures: dict[int, Picture], number: int, view: int, seed: int) -> Picture:
    """A view of a photo; another photo is its background now and then."""
    picture, rng = pictures[number], np.random.default_rng([seed, number, view])
    aspect = nearest_aspect(picture)
    shape = TALL if aspect == "tall" or (aspect == "square" and number % 2) else WIDE
    if view in WHOLE:
        return resize(picture, *shape)
    other = int(rng.integers(len(photos)))
    if other not in pictures:
        pictures[other] = read_picture(photos[other])
    return (make_hard_view if view in HARD else make_strong_view)(picture, pictures[other], shape, rng)


def cache_train(options: argparse.Namespace, run: Tokens) -> None:
    photos = train_photos(options.photos, options.labelled, read_settings(options.recipe, []))
    ranks = rank_in_instance(photos, read_components(options.components))
    single = np.flatnonzero(ranks < 0)
    some = single[:: max(1, len(single) // max(1, options.singles))][: options.singles]
    rows = np.sort(np.concatenate([np.flatnonzero(ranks >= 0), some]))
    channels = sum(LEVELS)
    maps = open_memmap(options.output / "train-maps.npy", "w+", np.float16, (len(rows), VIEWS, POSITIONS, channels))
    means = np.zeros((len(rows), VIEWS, channels), np.float32)
    begin = time.process_time()
    for first in range(0, len(rows), CHUNK):
        pictures = {int(number): read_picture(photos[number]) for number in rows[first : first + CHUNK]}
        waiting: dict[tuple[int, ...], list[tuple[int, int, Picture]]] = defaultdict(list)
        for place, number in enumerate(rows[first : first + CHUNK], start=first):
            for view in range(VIEWS):
                picture = make_map_view(photos, pictures, int(number), view, options.seed)
                waiting[picture.shape].append((place, view, picture))
        for group in waiting.values():
            for start in range(0, len(group), BATCH):
                part = group[start : start + BATCH]
                tokens, found = run(np.stack([picture for _, _, picture in part]), maps=True)
                for (place, view, _), token, of_map in zip(part, tokens, found, strict=True):
                    maps[place, view], means[place, view] = of_map, token.mean(axis=0)
        if first % (10 * CHUNK) == 0:
            print(f"{first} of {len(rows)} photos: {time.process_time() - begin:.0f} s of the processor", flush=True)
    np.save(options.output / "train-means.npy", means)
    (options.output / "train-rows.json").write_text(json.dumps(rows.tolist()))  # last: the rest is whole


def cache_val(options: argparse.Namespace, run: Tokens) -> None:
    landmarks, things = val_photos(options.photos, options.labelled)
    by_shape: dict[str, list[NDArray[np.float16]]] = defaultdict(list)
    rows: dict[str, list[int]] = defaultdict(list)
    for numbers, pictures in batches(landmarks + things, SIZE):
        shape = "x".join(map(str, pictures.shape[1:3]))
        by_shape[shape].append(run(pictures, maps=True)[1].astype(np.float16))
        rows[shape] += numbers
    files: dict[str, Any] = {name: np.concatenate(maps) for name, maps in by_shape.items()}
    np.savez(options.output / "val-maps.npz", **files)
    (options.output / "val-rows.json").write_text(json.dumps(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--labelled", type=Path, required=True)
    parser.add_argument("--recipe", type=Path, default=Path("scripts/lite/lite.toml"))
    parser.add_argument("--components", type=Path, default=Path("results/lite/components.csv"))
    parser.add_argument("--singles", type=int, default=700, help="photos without a partner")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    run = Tokens(Bundle.open(options.bundle), options.output)
    for name, cache in (("val-rows.json", cache_val), ("train-rows.json", cache_train)):
        if not (options.output / name).is_file():
            cache(options, run)


if __name__ == "__main__":
    main()
