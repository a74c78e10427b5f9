"""What the tokens of a bundle look at, and how it finds small things in clutter, on landmarks that training never saw.

    python scripts/lite/measure_tokens.py BUNDLE --photos PHOTOS --role test -o tokens.json

Overlap: of two tokens' maps, each summing to one, the sum of the smaller values; 0 apart, 1 the same. Agreement: how
often the two ends of a SIFT match that a homography confirms have the same strongest token; chance is what the tokens'
frequencies alone would give. Clutter: photos with a verified partner are pasted onto a share of a photo of another
landmark and searched among all photos of the role; GeM and whitened GeM of the bare backbone beside it.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from measure_lite import whiten
from numpy.typing import NDArray
from photos import Photo, read_components, read_photos
from verify_landmarks import RATIO, THRESHOLD_PX, describe, match
from views import resize

from tessera.data.images import load_benchmark
from tessera.evaluate.protocol import average_precision
from tessera.extract.runtime import open_runtime
from tessera.models.bundle import Bundle

SHARES = (1.0, 0.5, 0.25, 0.1, 0.05)
Array = NDArray[np.float32]


class Describer:
    """A bundle on pictures: outputs by name."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle, self.runtime = bundle, open_runtime(bundle)

    def run(self, picture: NDArray[np.uint8], *names: str) -> list[Array]:
        outputs = self.runtime.run(self.bundle.card.preprocessing.normalise([picture]), outputs=names)
        return [outputs[name][0] for name in names]


def measure_overlap(describer: Describer, photos: Sequence[Photo], size: int) -> float:
    overlaps = []
    for photo in photos:
        (attention,) = describer.run(load_benchmark(photo.path, size=size), "attention")
        maps = attention.reshape(len(attention), -1)
        maps = maps / maps.sum(axis=1, keepdims=True)
        overlaps += [float(np.minimum(maps[a], maps[b]).sum()) for a, b in combinations(range(len(maps)), 2)]
    return float(np.mean(overlaps))


def measure_agreement(describer: Describer, pairs: Sequence[tuple[Photo, Photo]]) -> dict[str, float]:
    """Pictures are taken at their own size, so that SIFT's points are the network's pixels."""
    ends: list[tuple[int, int]] = []
    for pair in pairs:
        features = [describe(photo.path) for photo in pair]
        rows, columns = match(features[0].descriptors, features[1].descriptors, RATIO)
        if len(rows) < 8:
            continue
        points = [features[0].points[rows, :2], features[1].points[columns, :2]]
        homography, mask = cv2.findHomography(points[0], points[1], cv2.USAC_FAST, THRESHOLD_PX)
        if homography is None:
            continue
        kept = mask.ravel() > 0
        strongest = []
        for photo, places in zip(pair, points, strict=True):
            (attention,) = describer.run(load_benchmark(photo.path, size=10_000), "attention")
            cells = (places[kept] / describer.bundle.card.stride).astype(int)
            x, y = (cells[:, axis].clip(0, attention.shape[2 - axis] - 1) for axis in (0, 1))
            strongest.append(attention[:, y, x].argmax(axis=0))
        ends += zip(*(column.tolist() for column in strongest), strict=True)
    table = np.array(ends)
    tokens = range(describer.bundle.card.num_tokens)
    chance = sum(float((table[:, 0] == t).mean() * (table[:, 1] == t).mean()) for t in tokens)
    return {"agreement": float((table[:, 0] == table[:, 1]).mean()), "chance": chance, "matches": len(table)}


def paste_small(thing: NDArray[np.uint8], canvas: NDArray[np.uint8], share: float, rng: Any) -> NDArray[np.uint8]:
    if share == 1:
        return thing
    height, width = canvas.shape[:2]
    scale = (share * height * width / (thing.shape[0] * thing.shape[1])) ** 0.5
    scale = min(scale, height / thing.shape[0], width / thing.shape[1])
    h, w = max(8, int(thing.shape[0] * scale)), max(8, int(thing.shape[1] * scale))
    y, x = rng.integers(0, height - h + 1), rng.integers(0, width - w + 1)
    mixed = canvas.copy()
    mixed[y : y + h, x : x + w] = resize(thing, h, w)
    return mixed


def measure_clutter(
    models: dict[str, Describer], photos: list[Photo], components: list[list[str]], training: list[Photo], queries: int
) -> dict[str, dict[str, float]]:
    """mAP by share of the picture. The canvas's landmark is junk: it is in the picture too."""
    rng = np.random.default_rng(0)
    group = {photo: number for number, ids in enumerate(components) for photo in ids}
    groups = np.array([group.get(photo.id, -1) for photo in photos])
    landmarks = np.array([photo.landmark for photo in photos])
    candidates = np.flatnonzero(groups >= 0)
    chosen = rng.choice(candidates, min(queries, len(candidates)), replace=False)
    canvases = [int(rng.choice(np.flatnonzero(landmarks != landmarks[query]))) for query in chosen]
    pictures = {
        share: [
            paste_small(load(photos[query]), load(photos[canvas]), share, rng)
            for query, canvas in zip(chosen, canvases, strict=True)
        ]
        for share in SHARES
    }
    results: dict[str, dict[str, float]] = defaultdict(dict)
    for name, model in models.items():
        gallery = np.stack([model.run(load(photo), "descriptor")[0] for photo in photos])
        searches = {share: np.stack([model.run(p, "descriptor")[0] for p in pictures[share]]) for share in SHARES}
        forms = {name: (gallery, searches)}
        if name == "GeM":
            fitted_on = np.stack([model.run(load(photo), "descriptor")[0] for photo in training])
            for dim, power in ((512, 0.5), (512, 0.25)):
                white = {share: whiten(fitted_on, found, dim, power) for share, found in searches.items()}
                forms[f"GeM whitened {power}"] = (whiten(fitted_on, gallery, dim, power), white)
        for form, (database, found) in forms.items():
            for share in SHARES:
                precisions = []
                for row, query, canvas in zip(found[share], chosen, canvases, strict=True):
                    order = np.argsort(-(database @ row), kind="stable")
                    hit = (groups[order] == groups[query]) & (order != query)
                    junk = ~hit & ((landmarks[order] == landmarks[query]) | (landmarks[order] == landmarks[canvas]))
                    kept = hit[~junk]
                    precisions.append(average_precision(np.flatnonzero(kept), int(kept.sum())))
                results[form][f"{share:.0%}"] = round(100 * float(np.mean(precisions)), 2)
    return dict(results)


def load(photo: Photo) -> NDArray[np.uint8]:
    return np.asarray(load_benchmark(photo.path, size=384))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--gem", type=Path, help="a GeM bundle of the bare backbone (scripts/make_start_bundle.py)")
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--components", type=Path, default=Path("results/lite/components.csv"))
    parser.add_argument("--role", choices=["val", "test"], default="val")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    everything = read_photos(options.photos)
    components = read_components(options.components)
    photos = [photo for photo in everything if photo.role == options.role]
    by_id = {photo.id: photo for photo in photos}
    pairs = [(by_id[ids[0]], by_id[ids[1]]) for ids in components if ids[0] in by_id]
    describer = Describer(Bundle.open(options.bundle))
    figures: dict[str, Any] = {
        "overlap": round(measure_overlap(describer, photos[::10], 384), 4),
        "tokens": measure_agreement(describer, pairs),
    }
    print(figures, flush=True)
    if options.gem:
        models = {"lite": describer, "GeM": Describer(Bundle.open(options.gem))}
        training = [photo for photo in everything if photo.role == "train"][::5]
        figures["clutter"] = measure_clutter(models, photos, components, training, options.queries)
    options.output.write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
