"""How well the strongest token's box finds a picture pasted into another, beside the box of GeM's activation map.

    python scripts/measure_boxes.py BUNDLE --photos GLDV2-50 -o boxes.json

A case: a photo, and the same photo pasted onto a tenth to four tenths of a photo of another landmark, at a random
place. The token is the one that did most for the similarity of the two, its map the one that `explain` gives for the
pair. GeM's map is the sum over the same backbone's channels of their cubes, at the same scales. Both maps become boxes
by the same rules; each map's rule is the one that is best for it on the landmarks of role val, and is then used on
those of role test. The interval is 1.96 standard errors of the mean over cases.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from tessera.data.images import load_photo
from tessera.explain.attention_regions import merge_maps, region_box
from tessera.explain.explanation import explain_pair
from tessera.extract.extractor import Extractor
from tessera.extract.scales import parse_scales
from tessera.models.onnx_export import load_network

sys.path.insert(0, str(Path(__file__).parent / "lite"))
from photos import Photo, read_photos

Array = NDArray[np.float32]
Box = tuple[float, float, float, float]
Rule = Callable[[Array], Box]
SHARES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
POWER = 3.0


def box_above(values: Array, share: float) -> Box:
    """Around every place that exceeds a share of the peak."""
    height, width = values.shape
    rows, columns = np.nonzero(values >= share * values.max())
    return (columns.min() / width, rows.min() / height, (columns.max() + 1) / width, (rows.max() + 1) / height)


def make_rules() -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    for share in SHARES:
        rules[f"above {share} of the peak"] = functools.partial(box_above, share=share)
        rules[f"around the peak, above {share} from mean to peak"] = functools.partial(region_box, share=share)
    return rules


def paste(thing: NDArray[np.uint8], canvas: NDArray[np.uint8], rng: np.random.Generator) -> tuple[Any, Box]:
    height, width = canvas.shape[:2]
    scale = (rng.uniform(0.1, 0.4) * height * width / (thing.shape[0] * thing.shape[1])) ** 0.5
    scale = min(scale, height / thing.shape[0], width / thing.shape[1])
    h, w = int(thing.shape[0] * scale), int(thing.shape[1] * scale)
    y, x = int(rng.integers(0, height - h + 1)), int(rng.integers(0, width - w + 1))
    mixed = canvas.copy()
    mixed[y : y + h, x : x + w] = np.asarray(Image.fromarray(thing).resize((w, h), Image.Resampling.LANCZOS))
    return mixed, (x / width, y / height, (x + w) / width, (y + h) / height)


def iou(first: Box, second: Box) -> float:
    wide = min(first[2], second[2]) - max(first[0], second[0])
    high = min(first[3], second[3]) - max(first[1], second[1])
    both = max(wide, 0) * max(high, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    return both / (sum(areas) - both)


def gem_map(backbone: Any, extractor: Extractor, image: NDArray[np.uint8]) -> Array:
    """One map over the picture, 1 h w, as `explain` would lay it there."""
    maps = []
    for scale in extractor.scales:
        pixels = torch.from_numpy(extractor.normalise([image]))
        if scale != 1:
            pixels = torch.nn.functional.interpolate(pixels, scale_factor=scale, mode="bilinear")
        with torch.inference_mode():
            maps.append(backbone(pixels)[0].clamp_min(0).double().pow(POWER).sum(0, keepdim=True).float().numpy())
    return merge_maps(maps, *image.shape[:2])


def make_maps(
    photos: list[Photo], count: int, extractor: Extractor, backbone: Any, seed: int
) -> list[tuple[Box, dict[str, Array]]]:
    """For each case the pasted area, and the maps of the strongest token and of GeM."""
    rng = np.random.default_rng(seed)
    cases = []
    for number in range(count):
        thing, canvas = (photos[i] for i in rng.choice(len(photos), 2, replace=False))
        while canvas.landmark == thing.landmark:
            canvas = photos[rng.integers(len(photos))]
        picture = load_photo(thing.path, size=extractor.size)
        mixed, area = paste(picture, load_photo(canvas.path, size=extractor.size), rng)
        pair = explain_pair(extractor, picture, mixed)
        gem = gem_map(backbone, extractor, mixed)[0]
        cases.append((area, {"token": pair.other.maps[pair.strongest_token], "gem": gem}))
        print(f"\r{number + 1} of {count}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return cases


def mean_of(values: list[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "interval": float(1.96 * np.std(values, ddof=1) / len(values) ** 0.5)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle")
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--choosing", type=int, default=100, help="Cases of role val that the rules are chosen on.")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--scales", default=None, help="Such as 1/sqrt2,1,sqrt2; the bundle's own unless given.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    scales = parse_scales(options.scales) if options.scales else None
    extractor = Extractor(options.bundle, size=options.size, scales=scales)
    backbone: Any = load_network(extractor.bundle).backbone
    photos = read_photos(options.photos)
    cases = {
        role: make_maps([p for p in photos if p.role == role], count, extractor, backbone, options.seed)
        for role, count in (("val", options.choosing), ("test", options.cases))
    }
    rules = make_rules()
    report: dict[str, Any] = {"bundle": extractor.bundle.card.name, "size": options.size, "seed": options.seed}
    report["scales"] = list(extractor.scales)
    overlaps = {}
    for name in ("token", "gem"):
        means = {
            text: float(np.mean([iou(area, rule(maps[name])) for area, maps in cases["val"]]))
            for text, rule in rules.items()
        }
        chosen = max(means, key=lambda text: means[text])
        overlaps[name] = [iou(area, rules[chosen](maps[name])) for area, maps in cases["test"]]
        report[name] = {"rule": chosen, "val": means[chosen], **mean_of(overlaps[name]), "val_by_rule": means}
    report["difference"] = mean_of([a - b for a, b in zip(overlaps["token"], overlaps["gem"], strict=True)])
    report["whole_picture"] = mean_of([iou(case[0], (0, 0, 1, 1)) for case in cases["test"]])
    text = json.dumps(report, indent=1)
    if options.output:
        options.output.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
