"""Learn LFSA, refinement and the head behind them on top of the closed form, on maps that cache_maps.py kept.

    python scripts/lite/learn_blocks.py CACHE --start BUNDLE --photos PHOTOS --labelled THINGS --parts lfsa \
        --ways hard -o runs.csv

Ways: those of learn_head.py, `hard` and `arcface` on whole and hard views, `copies` (every photo its own class, with an
entropy term) on whole and strong ones; `mixed` is the sum of `hard` and `copies`. Val figures are written every so many
steps. --without leaves sets out, and fits the start again without them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from blocks import PARTS, KeptStart, find_directions
from cache_maps import HARD, STRONG, WHOLE
from cache_tokens import train_photos, val_photos
from fit_lite import number_instances, read_settings
from learn_head import (
    Batches,
    Labels,
    Loss,
    Start,
    Train,
    add_options,
    figures_of,
    fit_start,
    make_loss,
    read_start,
    write_row,
)
from photos import group_labelled, read_components
from torch import Tensor
from torch.nn import functional as F

from tessera.models.bundle import Bundle
from tessera.models.global_network import GlobalNetwork
from tessera.models.onnx_export import load_network
from tessera.models.parts.tokenizers import AttentionTokenizer
from tessera.models.token import TokenHead

WAYS = ("hard", "arcface", "copies", "mixed")
VIEWS_OF = {"hard": WHOLE + HARD, "arcface": WHOLE + HARD, "copies": WHOLE + STRONG}
Report = Callable[[int, float], None]


class Maps:
    """The kept maps of the photos that take part."""

    def __init__(self, path: Path, rows: Labels) -> None:
        self.file, self.rows = np.load(path, mmap_mode="r"), rows

    def read(self, rows: Labels, views: Labels) -> Tensor:
        """B S C."""
        kept = [self.file[self.rows[row], view] for row, view in zip(rows, views, strict=True)]
        return torch.from_numpy(np.stack(kept)).float()


class Source:
    """Batches of one way with their loss, and which of the kept views they may use."""

    def __init__(self, way: str, train: Train, seed: int, options: argparse.Namespace) -> None:
        self.views = np.array(VIEWS_OF[way])
        seen = replace(train, views=train.views[:, self.views])
        self.batches = Batches(seen, way, options.size, seed)
        self.loss: Loss
        self.loss, self.centres = make_loss(way, seen, self.batches, seed, options)
        if way == "hard":
            self.batches.mine(torch.eye(train.views.shape[2]))

    def draw(self) -> tuple[Labels, Labels]:
        rows, views = self.batches.draw()
        return rows, self.views[views]


def learn(
    model: KeptStart, maps: Maps, train: Train, way: str, seed: int, options: argparse.Namespace, report: Report
) -> None:
    """Change the blocks of a model in place."""
    names = ("hard", "copies") if way == "mixed" else (way,)
    sources = [Source(name, train, seed, options) for name in names]
    moved = [weight for weight in model.parameters() if weight.requires_grad]
    centres = [source.centres for source in sources if source.centres.numel()]
    groups = [{"params": moved, "rate": options.rate}, {"params": centres, "rate": 10 * options.rate}]
    optimiser = torch.optim.Adam([group for group in groups if group["params"]], lr=options.rate, betas=(0.9, 0.99))
    losses: list[float] = []
    for step in range(options.steps):
        drawn = [source.draw() for source in sources]
        rows, views = (np.concatenate([part[place] for part in drawn]) for place in (0, 1))
        descriptors = F.normalize(model(maps.read(rows, views)), dim=1)
        parts = torch.split(descriptors, [len(part[0]) for part in drawn])
        loss = torch.stack(
            [source.loss(part, own[0]) for source, part, own in zip(sources, parts, drawn, strict=True)]
        ).sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        share = min(1.0, (step + 1) / 20) * 0.5 * (1 + np.cos(np.pi * step / options.steps))
        for group in optimiser.param_groups:
            group["lr"] = group["rate"] * share
        optimiser.step()
        losses.append(loss.item())
        if (step + 1) % options.every == 0:
            report(step + 1, float(np.mean(losses[-options.every :])))


class Val:
    """The val photos' maps, and their figures by a model."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.photos, self.components = val_photos(options.photos, options.labelled), options.components
        self.rows: dict[str, list[int]] = json.loads((options.cache / "val-rows.json").read_text())
        with np.load(options.cache / "val-maps.npz") as file:
            self.maps = {shape: file[shape] for shape in self.rows}

    @torch.inference_mode()
    def score(self, model: KeptStart) -> dict[str, float]:
        found = np.zeros((sum(map(len, self.photos)), model.bias.numel()), np.float32)
        for shape, rows in self.rows.items():
            for first in range(0, len(rows), 16):
                part = torch.from_numpy(self.maps[shape][first : first + 16]).float()
                found[rows[first : first + 16]] = F.normalize(model(part), dim=1).numpy()
        return figures_of(found, *self.photos, self.components)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["lfsa"])
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--width", type=int, default=96, help="directions that the blocks work in")
    parser.add_argument("--blocks", type=int, default=1, help="of refinement")
    parser.add_argument("--shrinkage", type=float, default=1.0)
    parser.add_argument("--margin", type=float, default=0.2)
    parser.add_argument("--scale", type=float, default=32.0)
    parser.add_argument("--entropy", type=float, default=0.3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    head = cast(TokenHead, cast(GlobalNetwork, load_network(Bundle.open(options.start))).head)
    kept, train, start = read_train(options)
    maps = Maps(options.cache / "train-maps.npy", kept)
    some = np.arange(0, len(kept), 4)
    mean, basis = find_directions(maps.read(some, 0 * some)[:, ::8].flatten(0, 1).numpy(), options.width)
    val = Val(options)

    def build(seed: int) -> KeptStart:
        torch.manual_seed(seed)
        tokenizer = deepcopy(cast(AttentionTokenizer, head.tokenizer))
        return KeptStart(tokenizer, start.weight, start.bias, mean, basis, tuple(options.parts), options.blocks)

    def tell(model: KeptStart, way: str, seed: int, step: int, loss: float) -> None:
        row: dict[str, Any] = {"parts": "+".join(options.parts), "way": f"{options.name} {way}".strip(), "seed": seed}
        row |= {"without": "+".join(options.without), "rate": options.rate, "step": step, "loss": round(loss, 4)}
        row |= {"seconds": round(time.process_time()), **val.score(model)}
        write_row(options.output, row)
        print(row, flush=True)

    tell(build(0), "start", 0, 0, 0.0)
    for seed in options.seeds:
        for way in options.ways:
            model = build(seed)

            def report(step: int, loss: float, model: KeptStart = model, way: str = way, seed: int = seed) -> None:
                tell(model, way, seed, step, loss)

            learn(model, maps, train, way, seed, options, report)
            name = f"{options.output.stem}-{'-'.join(options.parts)}-{way}-{seed}.pt"
            torch.save(
                {key: value for key, value in model.state_dict().items() if "." in key}, options.output.with_name(name)
            )


def read_train(options: argparse.Namespace) -> tuple[Labels, Train, Start]:
    """Which rows of the cache take part, what they show, and the start: a bundle's, or fitted to them alone."""
    settings = read_settings(options.recipe, [])
    everything = train_photos(options.photos, options.labelled, settings)
    cached = json.loads((options.cache / "train-rows.json").read_text())
    kept = np.array([place for place, row in enumerate(cached) if everything[row].kind not in options.without])
    photos = [everything[cached[place]] for place in kept]
    things = [photo for photo in photos if photo.landmark < 0]
    instances = number_instances(photos, read_components(options.components) + group_labelled(things))
    names = ["", *sorted({photo.kind for photo in things})]
    sets = np.array([names.index(photo.kind) if photo.landmark < 0 else 0 for photo in photos])
    means = np.load(options.cache / "train-means.npy")[kept]
    start = (
        fit_start(means[:, [*WHOLE, *HARD]], instances, options.shrinkage)
        if options.without
        else read_start(Bundle.open(options.start))
    )
    start = Start(start.weight[:, :1024], start.bias[:1024])
    views = torch.from_numpy(start.apply(means.reshape(-1, means.shape[-1])).reshape(*means.shape[:2], -1))
    return kept, Train(views, instances, np.array([photo.landmark for photo in photos]), sets), start


if __name__ == "__main__":
    main()
