"""Learn the projection of `lite` by gradient from its closed form, on tokens that cache_tokens.py kept.

    python scripts/lite/learn_head.py CACHE --start BUNDLE --photos PHOTOS --labelled THINGS --ways hard -o runs.csv

The projection starts as the closed form and moves inside the whitened space, where one step size fits all directions.
Ways: each positive against negatives alone in batches of strangers (`random`), of the nearest strangers of all sets
(`hard`) or of one set (`one-set`); `supcon`, supervised contrastive; `arcface` with three centres a thing; `copies`,
every photo its own class, with an entropy term. Val figures are written every so many steps, and at the end for parts
of the way from the start. --without leaves a set out.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from cache_tokens import train_photos, val_photos
from closed_form import level_scale, whiten_within
from fit_lite import LEVELS, number_instances, read_settings
from measure_lite import score, score_sets
from numpy.typing import NDArray
from photos import Photo, group_labelled, read_components
from torch import Tensor
from torch.nn import functional as F
from tuning import MASKED, Memory, contrast
from views import KINDS

from tessera.models.bundle import Bundle
from tessera.models.global_network import GlobalNetwork
from tessera.models.onnx_export import load_network
from tessera.models.token import TokenHead

Array = NDArray[np.float32]
Labels = NDArray[np.int64]
Loss = Callable[[Tensor, Labels], Tensor]


@dataclass(frozen=True)
class Start:
    """The closed form of a mean token: weight C D', strongest directions first, and bias D'."""

    weight: Array
    bias: Array

    def apply(self, tokens: Array) -> Array:
        return tokens @ self.weight + self.bias


@dataclass(frozen=True)
class Train:
    """Whitened views N V C with what each photo shows: instance, landmark or thing, and the number of its set."""

    views: Tensor
    instances: Labels
    landmarks: Labels
    sets: Labels


def fit_start(tokens: Array, instances: Labels, shrinkage: float) -> Start:
    """tokens: N V C, of the views that fit_lite.py makes."""
    rows = tokens.reshape(-1, tokens.shape[-1])
    scale = level_scale(rows, LEVELS)
    mean = (rows * scale).mean(axis=0)
    centred = (rows * scale - mean).astype(np.float64)
    matrix = whiten_within(centred, np.repeat(instances, tokens.shape[1]), rows.shape[1], shrinkage)
    matrix /= np.sqrt(np.square(centred @ matrix[:, :1024]).sum(axis=1).mean())
    return Start((scale[:, None] * matrix).astype(np.float32), (-mean @ matrix).astype(np.float32))


def read_start(bundle: Bundle) -> Start:
    """The projection of a bundle as it is."""
    head = cast(TokenHead, cast(GlobalNetwork, load_network(bundle)).head)
    weight, bias = head.projection.weight.detach().numpy(), head.projection.bias.detach().numpy()
    return Start(weight.T * head.num_tokens, bias)


def draw_groups(groups: list[Labels], sets: Labels, count: int, each: int, rng: np.random.Generator) -> Labels:
    """Photos of each of some instances, half of them of landmarks. Returns at most `each` times count."""
    landmarks, things = np.flatnonzero(sets == 0), np.flatnonzero(sets > 0)
    half = count // 2 if len(things) else count
    chosen = np.concatenate(
        [rng.choice(landmarks, half, replace=False), rng.choice(things, count - half, replace=False)]
    )
    return np.concatenate([rng.permutation(groups[group])[:each] for group in chosen])


class Batches:
    """Rows of photos a step. `hard`: an anchor's pair and the pairs of its nearest strangers; mined now and then."""

    def __init__(self, train: Train, kind: str, size: int, seed: int) -> None:
        self.train, self.kind, self.size = train, kind, size
        self.rng = np.random.default_rng(seed)
        order = np.argsort(train.instances, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(train.instances[order])) + 1)
        self.groups = [part for part in parts if len(part) > 1]
        self.sets = np.array([train.sets[part[0]] for part in self.groups])
        self.near: Labels | None = None

    def mine(self, matrix: Tensor, count: int = 8) -> None:
        """The nearest groups of other landmarks or things, of each group: G count."""
        with torch.no_grad():
            means = torch.stack([self.train.views[part, 0].mean(dim=0) for part in self.groups])
            unit = F.normalize(means @ matrix.T, dim=1)
            similar = unit @ unit.T
        names = np.array([self.train.landmarks[part[0]] for part in self.groups])
        similar[torch.from_numpy(names[:, None] == names)] = -1
        self.near = similar.topk(count, dim=1).indices.numpy()

    def draw(self) -> tuple[Labels, Labels]:
        """Rows and the view of each."""
        pairs = self.size // 2
        if self.kind == "copies":
            photos = self.rng.choice(len(self.train.instances), pairs, replace=False)
            rows = np.repeat(photos, 2)
            views = np.stack([self.rng.permutation(self.train.views.shape[1])[:2] for _ in photos]).ravel()
            return rows, views
        if self.kind == "hard" and self.near is not None:
            anchors = self.rng.choice(len(self.groups), pairs // 4, replace=False)
            others = np.concatenate([self.rng.choice(self.near[anchor], 3, replace=False) for anchor in anchors])
            chosen = np.unique(np.concatenate([anchors, others]))
            rows = np.array([row for group in chosen for row in self.rng.choice(self.groups[group], 2, replace=False)])
        elif self.kind == "one-set":
            of = np.flatnonzero(self.sets == self.rng.choice(np.unique(self.sets)))
            chosen = self.rng.choice(of, min(pairs, len(of)), replace=False)
            rows = np.array([row for group in chosen for row in self.rng.choice(self.groups[group], 2, replace=False)])
        else:
            each = 4 if self.kind == "supcon" else 2  # with two it is the same as `random`
            rows = draw_groups(self.groups, self.sets, self.size // each, each, self.rng)
        return rows, self.rng.integers(self.train.views.shape[1], size=len(rows))


class SubCentres:
    """ArcFace over instances with more than one photo, each with K centres; the nearest counts."""

    def __init__(self, train: Train, groups: list[Labels], count: int, margin: float, scale: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.count, self.margin, self.scale = count, margin, scale
        rows = [rng.choice(part, count, replace=len(part) < count) for part in groups]
        descriptors = F.normalize(train.views[:, :, :1024], dim=2)
        own = torch.stack([descriptors[part[:50]].flatten(0, 1).mean(dim=0) for part in groups])
        some = torch.stack([descriptors[row, 0] for row in rows])
        self.centres = F.normalize(own[:, None] + 0.5 * some, dim=2).flatten(0, 1).requires_grad_(True)
        number = np.full(len(train.instances), -1)
        for group, part in enumerate(groups):
            number[part] = group
        self.classes = torch.from_numpy(number)
        self.names = torch.from_numpy(np.array([train.landmarks[part[0]] for part in groups]))

    def loss(self, descriptors: Tensor, rows: Labels, landmarks: Tensor) -> Tensor:
        """Other instances of the same landmark are neither right nor wrong."""
        cosines = (
            (descriptors @ F.normalize(self.centres, dim=1).T).reshape(len(descriptors), -1, self.count).amax(dim=2)
        )
        classes = self.classes[rows]
        own = F.one_hot(classes, cosines.shape[1]).bool()
        angles = cosines.clamp(-1 + 1e-6, 1 - 1e-6).acos()
        logits = torch.where(own, (angles + self.margin).clamp(max=np.pi).cos(), cosines) * self.scale
        logits = logits.masked_fill((landmarks[:, None] == self.names) & ~own, MASKED)
        return F.cross_entropy(logits, classes)


def supervised_contrast(descriptors: Tensor, instances: Tensor, landmarks: Tensor, temperature: float) -> Tensor:
    """Khosla et al. 2020, outside form: all others of the batch, positives too, in the denominator."""
    similar = (descriptors @ descriptors.T / temperature).fill_diagonal_(MASKED)
    same = (instances[:, None] == instances).fill_diagonal_(False)
    near = (landmarks[:, None] == landmarks) & ~same
    log = similar - similar.masked_fill(near, MASKED).logsumexp(dim=1, keepdim=True)
    return -((log * same).sum(dim=1) / same.sum(dim=1).clamp_min(1)).mean()


def spread(descriptors: Tensor, instances: Tensor) -> Tensor:
    """Differential entropy by the nearest stranger (KoLeo), as copy detection uses it."""
    distances = torch.cdist(descriptors, descriptors) + 4.0 * (instances[:, None] == instances)
    return -distances.amin(dim=1).clamp_min(1e-6).log().mean()


WAYS = ("random", "hard", "one-set", "supcon", "arcface", "copies")


def make_loss(way: str, train: Train, source: Batches, seed: int, options: argparse.Namespace) -> tuple[Loss, Tensor]:
    """The loss of descriptors B D of some rows, and weights of its own."""
    none, own = Memory(0, 1024), torch.zeros(0)
    centres = SubCentres(train, source.groups, 3, options.margin, options.scale, seed) if way == "arcface" else None

    def loss(descriptors: Tensor, rows: Labels) -> Tensor:
        instances, names = torch.from_numpy(train.instances[rows]), torch.from_numpy(train.landmarks[rows])
        if centres is not None:
            return centres.loss(descriptors, rows, names)
        if way == "supcon":
            return supervised_contrast(descriptors, instances, names, options.temperature)
        if way == "copies":
            close = contrast(descriptors, torch.from_numpy(rows), instances, none, options.temperature)
            return close + float(options.entropy) * spread(descriptors, instances)
        return contrast(descriptors, instances, names, none, options.temperature)

    return loss, own if centres is None else centres.centres


def learn(
    train: Train, way: str, seed: int, options: argparse.Namespace, report: Callable[[Tensor, int, float], None]
) -> Tensor:
    """The matrix D D' that is put behind the start."""
    torch.manual_seed(seed)
    matrix = torch.eye(1024, train.views.shape[2]).requires_grad_(True)
    source = Batches(train, way, options.size, seed)
    loss_of, centres = make_loss(way, train, source, seed, options)
    groups = [{"params": [matrix], "rate": options.rate}]
    if centres.numel():
        groups.append({"params": [centres], "rate": 10 * options.rate})
    optimiser = torch.optim.Adam(groups, lr=options.rate, betas=(0.9, 0.99))
    losses: list[float] = []
    for step in range(options.steps):
        if way == "hard" and step % 40 == 0:
            source.mine(matrix.detach())
        rows, views = source.draw()
        loss = loss_of(F.normalize(train.views[rows, views] @ matrix.T, dim=1), rows)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        share = min(1.0, (step + 1) / 20) * 0.5 * (1 + np.cos(np.pi * step / options.steps))
        for group in optimiser.param_groups:
            group["lr"] = group["rate"] * share
        optimiser.step()
        losses.append(loss.item())
        if (step + 1) % options.every == 0:
            report(matrix.detach(), step + 1, float(np.mean(losses[-options.every :])))
    return matrix.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--shrinkage", type=float, default=1.0)
    parser.add_argument("--margin", type=float, default=0.2)
    parser.add_argument("--scale", type=float, default=32.0)
    parser.add_argument("--entropy", type=float, default=0.3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    train, start = read_train(options)
    landmarks, things = val_photos(options.photos, options.labelled)
    val = torch.from_numpy(start.apply(np.load(options.cache / "val-384.npy").mean(axis=1, dtype=np.float32)))
    begin = time.time()

    def report(way: str, seed: int, matrix: Tensor, step: int, kept: float, loss: float) -> None:
        whole = torch.eye(*matrix.shape) * (1 - kept) + matrix * kept
        found = figures_of(F.normalize(val @ whole.T, dim=1).numpy(), landmarks, things, options.components)
        row: dict[str, Any] = {"way": f"{options.name} {way}".strip(), "seed": seed, "step": step, "kept": kept}
        row |= {"without": "+".join(options.without), "loss": round(loss, 4), "seconds": round(time.time() - begin)}
        write_row(options.output, row | found)
        print(row | found, flush=True)

    report("start", 0, torch.eye(1024, val.shape[1]), 0, 1.0, 0.0)
    for seed in options.seeds:
        for way in options.ways:

            def tell(matrix: Tensor, step: int, loss: float, way: str = way, seed: int = seed) -> None:
                for kept in (0.25, 0.5, 0.75, 1.0) if step == options.steps else (1.0,):
                    report(way, seed, matrix, step, kept, loss)

            matrix = learn(train, way, seed, options, tell)
            torch.save(matrix, options.output.with_name(f"{options.output.stem}-{way}-{seed}.pt"))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cache", type=Path)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--labelled", type=Path, required=True)
    parser.add_argument("--components", type=Path, default=Path("results/lite/components.csv"))
    parser.add_argument("--recipe", type=Path, default=Path("scripts/lite/lite.toml"))
    parser.add_argument("--cached-roles", nargs="+", default=["train"])
    parser.add_argument("--without", nargs="*", default=[], help="sets to leave out, also of the start")
    parser.add_argument("--start", help="a bundle whose projection is the start, instead of fitting one here")
    parser.add_argument("--temperature", type=float, default=0.05)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--name", default="")
    parser.add_argument("-o", "--output", type=Path, required=True)


def figures_of(descriptors: Array, landmarks: list[Photo], things: list[Photo], components: Path) -> dict[str, float]:
    """mAP in percent of every set of things, of landmarks by verified views and by name."""
    found = score(descriptors[: len(landmarks)], landmarks, read_components(components), "val")
    del found["queries"]
    return score_sets(descriptors, landmarks + things) | found


def train_labels(
    options: argparse.Namespace, there: NDArray[np.bool_]
) -> tuple[tuple[Labels, Labels, Labels], NDArray[np.intp]]:
    """Instances, landmarks and sets of the train photos that are `there`, and their rows in the cache."""
    settings = read_settings(options.recipe, [])
    photos = train_photos(options.photos, options.labelled, settings, options.cached_roles)
    kept = np.array([photo.role == "train" and photo.kind not in options.without for photo in photos])
    rows = np.flatnonzero(kept & there)
    photos = [photos[row] for row in rows]
    things = [photo for photo in photos if photo.landmark < 0]
    instances = number_instances(photos, read_components(options.components) + group_labelled(things))
    names = ["", *sorted({photo.kind for photo in things})]
    sets = np.array([names.index(photo.kind) if photo.landmark < 0 else 0 for photo in photos])
    return (instances, np.array([photo.landmark for photo in photos]), sets), rows


def read_train(options: argparse.Namespace) -> tuple[Train, Start]:
    tokens = np.load(options.cache / "train.npy", mmap_mode="r")
    there = ~np.isnan(tokens[:, :, 0, 0])  # N kinds
    labels, rows = train_labels(options, there[:, [0, 2]].all(axis=1))
    kinds = np.flatnonzero(there[rows].all(axis=0))
    means = np.stack([tokens[row, kinds].astype(np.float32).mean(axis=1) for row in rows])  # N V C
    print(f"{len(rows)} photos, views {kinds.tolist()}", flush=True)
    start = (
        read_start(Bundle.open(options.start))
        if options.start
        else fit_start(means[:, kinds < KINDS], labels[0], options.shrinkage)
    )
    views = torch.from_numpy(start.apply(means.reshape(-1, means.shape[-1])).reshape(*means.shape[:2], -1))
    return Train(views, *labels), start


def write_row(path: Path, row: dict[str, Any]) -> None:
    new = not path.is_file()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
