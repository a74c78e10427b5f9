"""Make the bundle `lite` from photos, verified components and an ImageNet backbone.

The head is fitted in closed form, the backbone is tuned a little (tuning.py), then the projection is fitted again, to
things of a labelled folder as well.

    python scripts/lite/fit_lite.py scripts/lite/lite.toml --photos PHOTOS --labelled THINGS -o BUNDLE [--set seed=1]...

An instance is a component of photos that geometry verified as the same view, or a photo that is in none; it is seen
whole, cropped and in part, at several sizes. No name enters: fifty names would make the descriptor forget all others.
"""

from __future__ import annotations

import argparse
import shlex
import time
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import cv2
import numpy as np
import torch
from closed_form import fit_projection, fit_tokenizer
from numpy.typing import NDArray
from photos import Photo, group_labelled, read_components, read_labelled, read_photos
from tuning import Tuning, tune_backbone
from views import KINDS, Picture, make_view, normalise

from tessera.models.bundle import Bundle
from tessera.models.global_network import GlobalNetwork
from tessera.models.model_registry import build_model
from tessera.models.onnx_export import export_bundle, load_network, make_card
from tessera.models.token import TokenHead
from tessera.storage import hash_file

Array = NDArray[np.float32]
LEVELS = (1280, 320, 192, 112)  # channels of the backbone's levels, in their order
CHUNK = 40  # photos a task
BATCH = 8
SAMPLED = 8  # every so many photos give local features to the tokenizer


@dataclass(frozen=True)
class Settings:
    """roles: of the landmarks to fit on; excluded: landmarks that are in a benchmark; sets: of the labelled folder,
    whose train photos the last projection is fitted to as well, shrunk by last_shrinkage; size: the longer side of
    pictures that commands give the bundle when none is named."""

    roles: tuple[str, ...] = ("train",)
    excluded: tuple[int, ...] = (16,)
    sets: tuple[str, ...] = ()
    seed: int = 0
    dim: int = 1024
    num_tokens: int = 4
    power: float = 3.0
    sharpness: float = 1.0
    shrinkage: float = 1.0
    last_shrinkage: float = 1.0
    size: int = 384
    tuning: Tuning = field(default_factory=Tuning)


def read_settings(path: Path, changes: list[str]) -> Settings:
    values, changed = tomllib.loads(path.read_text()), tomllib.loads("\n".join(changes))
    tuning = refuse_unknown(path, Tuning, values.pop("tuning", {}) | changed.pop("tuning", {}))
    values = refuse_unknown(path, Settings, values | changed)
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return Settings(**values | lists, tuning=Tuning(**tuning))


def refuse_unknown(path: Path, kind: type, values: dict[str, Any]) -> dict[str, Any]:
    known = {entry.name for entry in fields(kind)}
    if unknown := set(values) - known:
        raise SystemExit(f"{path}: unknown settings {sorted(unknown)}. Known: {sorted(known)}.")
    return values


@torch.inference_mode()
def sample_features(network: GlobalNetwork, photos: Sequence[Photo], seed: int) -> Array:
    """Local features of some whole photos, N C."""
    torch.set_num_threads(1)
    samples = []
    for number, photo in enumerate(photos):
        view = make_view(read_picture(photo), 0, np.random.default_rng([seed, number, 0]))
        maps = network.backbone(normalise(view[None], network.backbone))
        samples.append(maps.flatten(2)[0].T[::7].numpy())
    return np.concatenate(samples)


@torch.inference_mode()
def gather_tokens(network: GlobalNetwork, photos: Sequence[Photo], seed: int, part: range) -> Array:
    """The mean token of every view of some photos, in their order, kinds innermost: N C."""
    torch.set_num_threads(1)
    head = cast(TokenHead, network.head)
    views = []
    for number in part:
        picture = read_picture(photos[number])
        views += [make_view(picture, kind, np.random.default_rng([seed, number, kind])) for kind in range(KINDS)]
    by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for row, view in enumerate(views):
        by_shape[view.shape].append(row)
    tokens = np.zeros((len(views), sum(LEVELS)), np.float32)
    for rows in by_shape.values():
        for first in range(0, len(rows), BATCH):
            batch = rows[first : first + BATCH]
            images = normalise(np.stack([views[row] for row in batch]), network.backbone)
            tokens[batch] = head.tokens(network.backbone(images))[0].mean(dim=1).numpy()
    return tokens


def read_picture(photo: Photo) -> Picture:
    return np.asarray(cv2.cvtColor(cv2.imread(str(photo.path)), cv2.COLOR_BGR2RGB), np.uint8)


def number_instances(photos: Sequence[Photo], components: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    component = {name: number for number, names in enumerate(components) for name in names}
    return np.array([component.get(photo.id, len(components) + row) for row, photo in enumerate(photos)])


def fit_tokens(network: GlobalNetwork, photos: Sequence[Photo], settings: Settings, workers: int) -> None:
    some = photos[::SAMPLED]
    shares = [some[first::workers] for first in range(workers)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        features = list(pool.map(partial(sample_features, network, seed=settings.seed), shares))
    fit_tokenizer(cast(TokenHead, network.head), np.concatenate(features), settings.sharpness, settings.seed)


def fit_whitening(
    network: GlobalNetwork,
    photos: Sequence[Photo],
    components: Sequence[Sequence[str]],
    seed: int,
    shrinkage: float,
    workers: int,
) -> None:
    parts = [range(first, min(first + CHUNK, len(photos))) for first in range(0, len(photos), CHUNK)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        tokens = np.concatenate(list(pool.map(partial(gather_tokens, network, photos, seed), parts)))
    instances = np.repeat(number_instances(photos, components), KINDS)
    fit_projection(cast(TokenHead, network.head), tokens, instances, LEVELS, shrinkage)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--labelled", type=Path, help="a folder with labels.csv, for the recipe's sets")
    parser.add_argument("--start", help="a bundle: keep its backbone and tokens, fit the projection alone")
    parser.add_argument("--components", type=Path, default=Path("results/lite/components.csv"))
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, help="a folder for the backbone every 40 steps")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    settings = read_settings(options.recipe, options.set)
    if settings.sets and not options.labelled:
        parser.error("the recipe names sets: say with --labelled which folder has them, or --set 'sets=[]'.")
    begin = time.time()
    photos = [
        photo
        for photo in read_photos(options.photos)
        if photo.role in settings.roles and photo.landmark not in settings.excluded
    ]
    components = read_components(options.components)
    labelled = read_labelled(options.labelled, settings.sets) if settings.sets else []
    network = (
        load_network(Bundle.open(options.start))
        if options.start
        else build_model(
            "token-lite", weights="imagenet", dim=settings.dim, power=settings.power, num_tokens=settings.num_tokens
        )
    ).eval()
    assert isinstance(network, GlobalNetwork)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    instances = number_instances(photos, components)
    landmarks = np.array([photo.landmark for photo in photos])
    if not options.start:
        fit_tokens(network, photos, settings, options.workers)
        fit_whitening(network, photos, components, settings.seed, settings.shrinkage, options.workers)
        if settings.tuning.steps:
            torch.set_num_threads(options.workers)
            pictures = [read_picture(photo) for photo in photos]
            tune_backbone(network, pictures, instances, landmarks, settings.tuning, settings.seed, options.checkpoints)
    if labelled:
        everything, groups = photos + labelled, components + group_labelled(labelled)
        fit_whitening(network, everything, groups, settings.seed, settings.last_shrinkage, options.workers)
    card = make_card(
        network,
        "lite",
        training_data=f"ImageNet-1k (backbone); {len(photos)} photos of {len(np.unique(landmarks))} landmarks of "
        f"Google Landmarks v2 as {len(np.unique(instances))} instances (tokenizer, projection, backbone tuned)"
        + (f"; {len(labelled)} photos of {len(group_labelled(labelled))} things (projection)" if labelled else ""),
        licence="Apache-2.0",
        provenance={
            "settings": asdict(settings),
            "command": shlex.join(
                ["python", "scripts/lite/fit_lite.py", str(options.recipe)]
                + (["--labelled", "THINGS"] if labelled else [])
                + (["--start", Bundle.open(options.start).card.fingerprint] if options.start else [])
                + [word for change in options.set for word in ("--set", change)]
            ),
            "seconds": round(time.time() - begin),
            "backbone": network.architecture["config"]["backbone"],
            "components_sha256": hash_file(options.components),
        },
    )
    card = replace(card, preprocessing=replace(card.preprocessing, size=settings.size))
    bundle = export_bundle(network, options.output, card, half=True)
    print(f"{bundle.path}: fingerprint {bundle.card.fingerprint}, {time.time() - begin:.0f} s")


if __name__ == "__main__":
    main()
