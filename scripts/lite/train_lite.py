"""Make the bundle `lite` from photos, verified components and an ImageNet backbone.

    python scripts/lite/train_lite.py scripts/lite/lite.toml --photos PHOTOS --work WORK -o BUNDLE [--set seed=1]...

WORK holds the cache of views (about 1 GB for 4,000 photos); a second run with another seed of training reuses it.
Instances are the components and, one each, the photos that are in none. ArcFace (the paper's loss) runs over instances,
not names; other instances of the same landmark and of the landmark that a view was pasted into are left out of its
softmax, because nobody knows whether they show the same thing. A second term keeps a view near the start's descriptor
of its whole photo.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from cache import BACKBONE, Cache, Trained, build_cache
from numpy.typing import NDArray
from photos import Photo, read_components, read_photos
from start import (
    fit_bare_tokenizer,
    fit_pca_projection,
    fit_projection,
    fit_reduction,
    fit_refinement,
    fit_tokenizer,
)
from torch import Tensor, nn
from torch.nn import functional as F
from views import NUM_VIEWS

from tessera.models.export import export_bundle, make_card
from tessera.models.network import GlobalNetwork
from tessera.models.registry import build_model
from tessera.storage import hash_file

WHOLE_VIEWS = (0,)
FIT_ROWS = 6000


@dataclass(frozen=True)
class Settings:
    """roles: of the landmarks to train on; excluded: landmarks that are in a benchmark.

    channels: 0 keeps the backbone's own, without reduction; power: of the tokenizer's mean (GeM above 1).
    whitening: power of the variances in W_g without a reduction. epochs: 0 leaves the start as it is.
    cut: blocks before it are frozen. tail_rate: 0 trains the head alone. Rates follow half a cosine after the warm-up.
    instances: a step; views: of an instance with one photo; those with several give two photos with two views each.
    """

    roles: tuple[str, ...] = ("train",)
    excluded: tuple[int, ...] = (16,)
    seed: int = 0
    view_seed: int = 0
    cut: int = 14
    channels: int = 256
    dim: int = 1024
    power: float = 1.0
    whitening: float = 0.25
    num_tokens: int = 4
    blocks: int = 1
    sharpness: float = 2.0
    shrinkage: float = 1.0
    epochs: float = 6.0
    instances: int = 64
    views: int = 3
    tail_rate: float = 0.0
    head_rate: float = 1e-3
    proxy_rate: float = 2e-3
    weight_decay: float = 1e-4
    warmup_steps: int = 30
    scale: float = 24.0
    margin_rad: float = 0.1
    keep: float = 0.3
    averaging: float = 0.995


class Trainee(nn.Module):
    """What training sees of the network: maps of the frozen part in, descriptors out. Shares its weights."""

    def __init__(self, network: GlobalNetwork, cut: int) -> None:
        super().__init__()
        self.tail, self.head = Trained(network.backbone, cut), network.head  # type: ignore[arg-type]

    def forward(self, maps: Tensor) -> Tensor:
        return self.head.describe(self.tail(maps))


@dataclass(frozen=True)
class Instances:
    """numbers: of each photo; landmarks: of each photo; owners: the landmark of each instance; members: its photos."""

    numbers: NDArray[np.int64]
    landmarks: NDArray[np.int64]
    owners: NDArray[np.int64]
    members: list[NDArray[np.int64]]


def find_instances(photos: list[Photo], components: list[list[str]]) -> Instances:
    known = {photo: number for number, ids in enumerate(components) for photo in ids}
    labels = [known.get(photo.id, len(components) + number) for number, photo in enumerate(photos)]
    _, first, numbers = np.unique(labels, return_index=True, return_inverse=True)
    landmarks = np.array([photo.landmark for photo in photos])
    members = [np.flatnonzero(numbers == number) for number in range(len(first))]
    return Instances(numbers, landmarks, landmarks[first], members)


@torch.no_grad()
def over_rows(cache: Cache, rows: NDArray[np.int64], function: nn.Module | object, width: int) -> Tensor:
    """A function of maps, for many rows. Returns N width."""
    results = torch.zeros(len(rows), width)
    for start in range(0, len(rows), 128):
        for maps, where in cache.load(rows[start : start + 128]):
            results[start + where] = function(maps)  # type: ignore[operator]
    return results


def make_start(trainee: Trainee, cache: Cache, instances: Instances, settings: Settings) -> None:
    rng = np.random.default_rng(settings.seed)
    head, tail = trainee.head, trainee.tail
    whole = np.flatnonzero(cache.kinds <= 2)
    local_features, sample = [], rng.choice(whole, 600, replace=False)
    with torch.no_grad():
        for maps, _ in cache.load(sample):
            features = tail(maps)
            local_features.append(features.flatten(2).transpose(1, 2).reshape(-1, features.shape[1]))
        flat = torch.cat(local_features)
        if not settings.channels:
            fit_bare_tokenizer(head, flat.numpy(), settings.sharpness, settings.seed)
            rows = np.flatnonzero(cache.kinds == WHOLE_VIEWS[0])
            width = head.tokenizer.channels * settings.num_tokens
            tokens = over_rows(cache, rows, lambda maps: head.tokens(tail(maps))[0].flatten(1), width)
            fit_pca_projection(head, tokens.numpy(), settings.whitening)
            return
        fit_reduction(head, flat.numpy())
        reduced = head.reduction(flat.T[None, :, :, None])[0, :, :, 0].T.numpy()
        fit_tokenizer(head, reduced[::4], settings.sharpness, settings.seed)
        fit_refinement(head, tail(cache.load(sample)[-1][0][:64]))
    rows = rng.permutation(len(cache.photos))[:FIT_ROWS]
    width = settings.channels * settings.num_tokens
    tokens = over_rows(cache, rows, lambda maps: head.tokens(tail(maps))[0].flatten(1), width)
    fit_projection(head, tokens.numpy(), instances.numbers[cache.photos[rows]], settings.shrinkage)


def draw_rows(rng: np.random.Generator, instances: Instances, table: NDArray[np.int64], settings: Settings) -> Tensor:
    """The rows of one step. Large components come more often, by the root of their size."""
    weights = np.array([len(members) ** 0.5 for members in instances.members])
    drawn = rng.choice(len(weights), settings.instances, replace=False, p=weights / weights.sum())
    rows: list[int] = []
    for number in drawn:
        members = instances.members[number]
        photos, views = (members, settings.views) if len(members) == 1 else (rng.choice(members, 2, replace=False), 2)
        rows += [table[photo, view] for photo in photos for view in rng.permutation(NUM_VIEWS)[:views]]
    return torch.tensor(rows)


def instance_loss(descriptors: Tensor, proxies: Tensor, labels: Tensor, ignored: Tensor, settings: Settings) -> Tensor:
    """ArcFace over instances. descriptors: B D, unit; ignored: B N, instances that may or may not be the same thing."""
    cosines = descriptors @ F.normalize(proxies, dim=1).T
    rows = torch.arange(len(labels))
    angles = cosines[rows, labels].clamp(-1 + 1e-6, 1 - 1e-6).acos()
    logits = cosines.index_put((rows, labels), torch.cos(angles + settings.margin_rad)) * settings.scale
    ignored = ignored.index_put((rows, labels), torch.tensor(False))
    return F.cross_entropy(logits.masked_fill(ignored, -1e4), labels)


def train(trainee: Trainee, cache: Cache, instances: Instances, settings: Settings) -> None:
    """Changes the trainee's weights in place, to their running average at the end."""
    rng = np.random.default_rng(settings.seed)
    count = len(instances.numbers)
    table = np.zeros((count, NUM_VIEWS), np.int64)
    table[cache.photos, cache.kinds] = np.arange(len(cache.photos))
    first = over_rows(cache, table[:, WHOLE_VIEWS].ravel(), trainee, trainee.head.dim)
    targets = F.normalize(F.normalize(first, dim=1).view(count, len(WHOLE_VIEWS), -1).mean(dim=1), dim=1)
    numbers, landmarks = torch.from_numpy(instances.numbers), torch.from_numpy(instances.landmarks)
    owners, clutter = torch.from_numpy(instances.owners), torch.from_numpy(cache.clutter)
    sums = torch.zeros(len(owners), targets.shape[1]).index_add_(0, numbers, targets)
    proxies = nn.Parameter(F.normalize(sums, dim=1))
    tail = list(trainee.tail.parameters()) if settings.tail_rate else []
    learning = [*tail, *trainee.head.parameters()]
    trainee.tail.requires_grad_(bool(tail))
    optimiser = torch.optim.AdamW(
        [
            {"params": tail, "lr": settings.tail_rate},
            {"params": list(trainee.head.parameters()), "lr": settings.head_rate},
            {"params": [proxies], "lr": settings.proxy_rate, "weight_decay": 0.0},
        ],
        weight_decay=settings.weight_decay,
    )
    steps = int(settings.epochs * count / settings.instances)
    warmup = settings.warmup_steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * step / steps))
    )
    averages = copy.deepcopy(learning)
    begin = time.time()
    for step in range(steps):
        rows = draw_rows(rng, instances, table, settings)
        parts = [(where, trainee(maps)) for maps, where in cache.load(rows.numpy())]
        order = torch.cat([where for where, _ in parts]).argsort()
        descriptors = F.normalize(torch.cat([part for _, part in parts])[order], dim=1)
        photos = torch.from_numpy(cache.photos[rows.numpy()])
        pasted = clutter[rows]
        behind = torch.where(pasted >= 0, landmarks[pasted], -1)
        ignored = (owners == landmarks[photos][:, None]) | (owners == behind[:, None])
        loss = instance_loss(descriptors, proxies, numbers[photos], ignored, settings)
        drift = (1 - (descriptors * targets[photos]).sum(dim=1)).mean()
        optimiser.zero_grad()
        (loss + settings.keep * drift).backward()
        nn.utils.clip_grad_norm_(learning, 5.0)
        optimiser.step()
        schedule.step()
        decay = min(settings.averaging, (step + 1) / (step + 10))
        with torch.no_grad():
            for average, weight in zip(averages, learning, strict=True):
                average.lerp_(weight, 1 - decay)
        if step % 20 == 0:
            print(f"step {step}/{steps} loss {loss:.3f} drift {drift:.3f} {time.time() - begin:.0f} s", flush=True)
    with torch.no_grad():
        for average, weight in zip(averages, learning, strict=True):
            weight.copy_(average)


def read_settings(path: Path, changes: list[str]) -> Settings:
    values = tomllib.loads(path.read_text()) | tomllib.loads("\n".join(changes))
    known = {field.name for field in fields(Settings)}
    if unknown := set(values) - known:
        raise SystemExit(f"{path}: unknown settings {sorted(unknown)}. Known: {sorted(known)}.")
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    return replace(Settings(), **values | lists)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--components", type=Path, default=Path("experiments/lite/components.csv"))
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    settings = read_settings(options.recipe, options.set)
    begin = time.time()
    torch.manual_seed(settings.seed)
    torch.set_num_threads(options.workers)
    photos = [
        photo
        for photo in read_photos(options.photos)
        if photo.role in settings.roles and photo.landmark not in settings.excluded
    ]
    instances = find_instances(photos, read_components(options.components))
    name = f"{'-'.join(settings.roles)}-{settings.cut}-{settings.view_seed}"
    cache = build_cache(options.work / name, photos, settings.cut, settings.view_seed, options.workers)
    network = build_model(
        "token-lite",
        weights="imagenet",
        channels=settings.channels or None,
        dim=settings.dim,
        power=settings.power,
        num_tokens=settings.num_tokens,
        blocks=settings.blocks,
        lfsa=False,
        bias=True,
        dropout=0.0,
    ).eval()
    trainee = Trainee(network, settings.cut).eval()
    make_start(trainee, cache, instances, settings)
    if settings.epochs:
        train(trainee, cache, instances, settings)
    card = make_card(
        network,
        "lite",
        training_data=f"ImageNet-1k (backbone); {len(photos)} photos of {len(set(instances.landmarks))} landmarks of "
        f"Google Landmarks v2 as {len(instances.members)} instances (head)",
        licence="Apache-2.0",
        provenance={
            "settings": {field.name: getattr(settings, field.name) for field in fields(Settings)},
            "command": f"python scripts/lite/train_lite.py {options.recipe} "
            + " ".join(f"--set {change}" for change in options.set),
            "seconds": round(time.time() - begin),
            "backbone": BACKBONE,
            "components_sha256": hash_file(options.components),
        },
    )
    bundle = export_bundle(network, options.output, card)
    print(f"{bundle.path}: fingerprint {bundle.card.fingerprint}")


if __name__ == "__main__":
    main()
