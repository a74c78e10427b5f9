"""The table of `lite`: verified views on landmarks that training never saw, against poolings of the same backbone.

    python scripts/lite/measure_lite.py BUNDLE... --photos PHOTOS --role test --sizes 192 256 320 384 -o table.json

Queries are the photos with a verified partner; positives the rest of its component; other photos of its landmark are
junk. The gallery is every photo of the role and, for test, of the val landmarks. Poolings are taken from the bare
ImageNet backbone: plain, with PCA whitening fitted on every third photo of the train landmarks at the same size, and
whitened as `lite` is, within the verified instances of all of them.
A second figure counts by name. --labelled FOLDER adds a figure for each set of things there: every val photo is a query
among all others and the photos above. Poolings take most of the time and never change: --no-poolings leaves them out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from closed_form import whiten_within
from fit_lite import number_instances
from numpy.typing import NDArray
from photos import Photo, read_components, read_labelled, read_photos
from torch import Tensor
from torch.nn import functional as F
from views import normalise

from tessera.data.images import load_benchmark
from tessera.evaluate.protocol import average_precision
from tessera.extract.runtime import open_runtime
from tessera.models.backbones import build_backbone
from tessera.models.backbones.mobile import EfficientNetLite
from tessera.models.bundle import Bundle
from tessera.models.compared.rmac import pool_regions
from tessera.models.parts.pooling import pool_crow, pool_gem, pool_mac, pool_spoc

BATCH = 8
Array = NDArray[np.float32]


def pool_rmac(maps: Tensor) -> Tensor:
    return F.normalize(pool_regions(maps, pool_mac), dim=-1).sum(dim=1)


POOLINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "SPoC": pool_spoc,
    "GeM": pool_gem,
    "MAC": pool_mac,
    "CroW": pool_crow,
    "R-MAC": pool_rmac,
}
# Components kept and power of the eigenvalues (0.5 whitens wholly). All are tried; the best on val is the rival.
WHITENINGS = {"PCA 1024": (1024, 0.5), "PCA 512": (512, 0.5), "PCA 256": (256, 0.5), "PCA 512 half": (512, 0.25)}


def batches(photos: Sequence[Photo], size: int) -> Iterator[tuple[list[int], NDArray[np.uint8]]]:
    """Photos of equal shape together: their numbers and B H W 3."""
    waiting: dict[tuple[int, ...], list[tuple[int, NDArray[np.uint8]]]] = defaultdict(list)
    for number, photo in enumerate(photos):
        picture = np.asarray(load_benchmark(photo.path, size=size))
        group = waiting[picture.shape]
        group.append((number, picture))
        if len(group) == BATCH:
            yield [n for n, _ in group], np.stack([p for _, p in group])
            group.clear()
    for group in waiting.values():
        if group:
            yield [n for n, _ in group], np.stack([p for _, p in group])


@torch.inference_mode()
def describe_poolings(photos: Sequence[Photo], size: int) -> dict[str, Array]:
    """Descriptors N D of every pooling of the bare backbone."""
    backbone = build_backbone("efficientnet-lite0", weights="imagenet").eval()
    backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert isinstance(backbone, EfficientNetLite)
    results: dict[str, list[tuple[int, Array]]] = defaultdict(list)
    for numbers, pictures in batches(photos, size):
        maps = backbone(normalise(pictures, backbone))
        for name, pool in POOLINGS.items():
            results[name] += zip(numbers, F.normalize(pool(maps), dim=1).numpy(), strict=True)
    return {name: in_order(pairs) for name, pairs in results.items()}


def describe_by(bundle: Bundle, photos: Sequence[Photo], size: int, threads: int) -> Array:
    """Descriptors N D, as the commands make them at a single scale."""
    runtime, way = open_runtime(bundle, threads=threads), bundle.card.preprocessing
    results: list[tuple[int, Array]] = []
    for numbers, pictures in batches(photos, size):
        found = runtime.run(way.normalise(list(pictures)))["descriptor"]
        results += zip(numbers, found, strict=True)
    return in_order(results)


def in_order(pairs: Sequence[tuple[int, Array]]) -> Array:
    return np.stack([row for _, row in sorted(pairs, key=lambda pair: pair[0])])


def whiten(fitted_on: Array, descriptors: Array, dim: int, power: float) -> Array:
    mean = fitted_on.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov((fitted_on - mean).T.astype(np.float64)))
    strongest = np.argsort(-values)[: min(dim, len(fitted_on) - 1)]
    matrix = vectors[:, strongest] / np.maximum(values[strongest], 1e-9 * values.max()) ** power
    return unit_rows((descriptors - mean) @ matrix)


def whiten_by_instances(fitted_on: Array, descriptors: Array, instances: NDArray[np.int64]) -> Array:
    """With the shrinkage of `lite`."""
    mean = fitted_on.mean(axis=0)
    return unit_rows((descriptors - mean) @ whiten_within((fitted_on - mean).astype(np.float64), instances, 1024, 2.0))


def unit_rows(rows: NDArray[np.float64]) -> Array:
    unit: NDArray[np.float64] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit.astype(np.float32)


def score(
    descriptors: Array, photos: Sequence[Photo], components: Sequence[Sequence[str]], role: str
) -> dict[str, float]:
    """Mean average precision in percent: verified, by name, and verified for objects and areas apart."""
    component = {photo: number for number, ids in enumerate(components) for photo in ids}
    groups = np.array([component.get(photo.id, -1) for photo in photos])
    landmarks = np.array([photo.landmark for photo in photos])
    figures: dict[str, list[float]] = defaultdict(list)
    for query, photo in enumerate(photos):
        if photo.role != role:
            continue
        order = np.argsort(-(descriptors @ descriptors[query]), kind="stable")
        order = order[order != query]
        same_name = landmarks[order] == photo.landmark
        figures["name"].append(average_precision(np.flatnonzero(same_name), int(same_name.sum())))
        if groups[query] >= 0:
            same_view = groups[order] == groups[query]
            kept = same_view[same_view | ~same_name]
            precision = average_precision(np.flatnonzero(kept), int(kept.sum()))
            figures["verified"].append(precision)
            figures[photo.kind].append(precision)
    return {key: round(100 * float(np.mean(values)), 2) for key, values in figures.items()} | {
        "queries": len(figures["verified"])
    }


def score_sets(descriptors: Array, photos: Sequence[Photo]) -> dict[str, float]:
    """Mean average precision in percent of every labelled set: a photo finds the others of its label among all."""
    labels = np.array([photo.landmark for photo in photos])
    figures: dict[str, list[float]] = defaultdict(list)
    for query, photo in enumerate(photos):
        same = labels == photo.landmark
        if photo.landmark < 0 and same.sum() > 1:
            order = np.argsort(-(descriptors @ descriptors[query]), kind="stable")
            found = same[order[order != query]]
            figures[photo.kind].append(average_precision(np.flatnonzero(found), int(found.sum())))
    means = {key: round(100 * float(np.mean(values)), 2) for key, values in sorted(figures.items())}
    return means | {"sets": round(float(np.mean([*means.values()])), 2)} if means else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundles", type=Path, nargs="*")
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--components", type=Path, default=Path("results/lite/components.csv"))
    parser.add_argument("--labelled", type=Path, help="a folder with labels.csv")
    parser.add_argument("--role", choices=["val", "test"], default="val")
    parser.add_argument("--sizes", type=int, nargs="+", default=[192, 256, 320, 384])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-poolings", action="store_true")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    everything = read_photos(options.photos)
    components = read_components(options.components)
    shown = [
        photo for photo in everything if photo.role == options.role or (photo.role, options.role) == ("val", "test")
    ]
    known = len(shown)
    shown += read_labelled(options.labelled, role="val") if options.labelled else []
    training = [photo for photo in everything if photo.role == "train"]
    instances = number_instances(training, components)
    table: dict[str, dict[str, dict[str, float]]] = {}
    for size in options.sizes:
        begin = time.time()
        descriptors = {
            str(path): describe_by(Bundle.open(path), shown, size, options.threads) for path in options.bundles
        }
        if not options.no_poolings:
            poolings, fitted_on = describe_poolings(shown, size), describe_poolings(training, size)
            descriptors |= poolings
            for pooling, values in poolings.items():
                for name, (dim, power) in WHITENINGS.items():
                    descriptors[f"{pooling} {name}"] = whiten(fitted_on[pooling][::3], values, dim, power)
                descriptors[f"{pooling} instances"] = whiten_by_instances(fitted_on[pooling], values, instances)
        rows = {
            name: score(values[:known], shown[:known], components, options.role) | score_sets(values, shown)
            for name, values in descriptors.items()
        }
        for bundle in map(str, options.bundles):
            for dim in (512, 256):
                short = descriptors[bundle][:, :dim]
                short = short / np.linalg.norm(short, axis=1, keepdims=True)
                rows[f"{bundle} first {dim}"] = score(short[:known], shown[:known], components, options.role)
        table[str(size)] = rows
        options.output.write_text(json.dumps(table, indent=1) + "\n")
        print(f"{size} px: {time.time() - begin:.0f} s", flush=True)
        for name, figures in rows.items():
            print(f"  {name:40s} {figures}", flush=True)


if __name__ == "__main__":
    main()
