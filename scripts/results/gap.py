"""Why Token is behind plain poolings in these tables: one thing changed at a time, measured on val landmarks alone.

    python scripts/results/gap.py --data DATA --work runs/results                     everything that is missing
    python scripts/results/gap.py epochs starts --seeds 0 --data DATA                 some groups, one seed

A variant is a row of the tables with something laid over it. It is trained by the same recipe, objective, optimiser,
schedule and order, on the same kept maps, and scored on gldv2-val; figures go to results/gap.csv. Test is not touched.
Several crops a photo are the crops of the other seeds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gap_starts import START_OF
from gap_variants import GROUPS, Variant
from maps import Group, describe_maps
from rows import ROWS
from run import Bench, append_csv, command_of, commit, locked, read_csv, say, score_descriptors
from sets import CHOICE_SET, benchmark_of, unseen_photos

from tessera.config import find_config
from tessera.train.batches.sampler import ShuffledSampler
from tessera.train.build_run import build_objective, build_run, load_data
from tessera.train.distributed import open_world
from tessera.train.init import build_network
from tessera.train.objectives.objective import Objective
from tessera.train.optimisation.optimiser import build_optimiser, rate_schedule, set_rate
from tessera.train.recipe import Recipe, load_recipe
from tessera.train.records.checkpoint import seed_everything

COLUMNS = ("group", "variant", "row", "seed", "images", "classes", "steps", "loss", "map", "train_cpu_s", "commit")


@dataclass(frozen=True)
class Ground:
    """What every variant stands on: kept maps of the training crops and the val landmarks' maps."""

    bench: Bench
    _kept: dict[int, npt.NDArray[np.float16]] = field(default_factory=dict)

    @cached_property
    def labels(self) -> npt.NDArray[np.int64]:
        labels: npt.NDArray[np.int64] = load_data(recipe_of(self.bench, "spoc", 0, ())).train.labels
        return labels

    @cached_property
    def val_maps(self) -> list[Group]:
        role = np.array([photo.source == "gldv2" and photo.role == "val" for photo in unseen_photos(self.bench.photos)])
        kept = []
        for rows, scale, group in self.bench.maps.scaled_groups():
            chosen = role[rows]
            if chosen.any():
                kept.append((rows[chosen], scale, group[chosen]))
        return kept

    def crops(self, seed: int) -> npt.NDArray[np.float16]:
        """N C H W, the maps that a run with this seed sees; those of the tables' runs."""
        if seed in self._kept:
            return self._kept[seed]
        recipe = recipe_of(self.bench, "spoc", seed, ())
        with open_world("cpu") as world:
            loader: Any = build_run(recipe, load_data(recipe), world, self.bench.work).loader
            count = len(loader.photos)
            for _ in loader.batches([np.arange(s, min(s + 64, count)) for s in range(0, count, 64)], 0):
                pass
        self._kept[seed] = np.load(loader.folder / "maps.npy", mmap_mode="r")
        return self._kept[seed]

    def score(self, network: Any) -> float:
        """mAP on the val landmarks."""
        descriptors = describe_maps(network.head, self.val_maps, len(self.bench.pictures.paths))
        benchmark = benchmark_of(CHOICE_SET, self.bench.photos, self.bench.data)
        return float(score_descriptors(self.bench, benchmark, descriptors, "flat").map)


def recipe_of(bench: Bench, name: str, seed: int, settings: tuple[str, ...], rate: float = 3e-4) -> Recipe:
    """The recipe of a row as the tables have it, with settings laid over it."""
    words = command_of(bench, ROWS[name], seed, rate)
    laid = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    root = f"data.root={json.dumps(str(bench.data))}"
    return load_recipe(find_config("recipes", words[2]), [*laid, *settings, root])


def choose_images(labels: npt.NDArray[np.int64], variant: Variant, seed: int) -> npt.NDArray[np.int64]:
    """The photos that a variant learns from: of so many classes, fewer within more, a share of each; by the seed."""
    random = np.random.default_rng(seed)
    order = random.permutation(labels.max() + 1)
    wanted = order[: variant.classes or len(order)]
    chosen = np.isin(labels, wanted)
    if variant.share < 1:
        of_class = [random.permutation(np.flatnonzero(labels == label)) for label in range(labels.max() + 1)]
        kept = [photos[: int(np.ceil(variant.share * len(photos)))] for photos in of_class]
        chosen &= np.isin(np.arange(len(labels)), np.concatenate(kept))
    return np.flatnonzero(chosen)


def fit(ground: Ground, variant: Variant, seed: int) -> tuple[Objective, dict[str, Any]]:
    """Train a variant as `tessera train` does; the steps of the tables are the length where it says no other."""
    recipe = recipe_of(ground.bench, variant.row, seed, variant.settings)
    chosen = choose_images(ground.labels, variant, seed)
    classes, labels = np.unique(ground.labels[chosen], return_inverse=True)
    crops = [ground.crops((seed + view) % 3) for view in range(variant.views)]
    torch.manual_seed(recipe.seed)
    network = build_network(recipe)
    if variant.start:
        START_OF[variant.start](network, crops[0][chosen], labels)
    with open_world("cpu") as world:
        objective = build_objective(recipe, network, len(classes), world)
        seed_everything(recipe.seed, 0)
    sampler = ShuffledSampler(len(chosen), recipe.loop.batch_size, seed)
    steps = round(variant.epochs * (len(ground.labels) // recipe.loop.batch_size))
    optimiser = build_optimiser(objective, recipe.optimiser)
    rate = rate_schedule(recipe.schedule, recipe.optimiser.rate, 1, steps)
    losses, before = [float("nan")], time.process_time()
    objective.train()
    for step, (epoch, batch) in zip(range(steps), batches_of(sampler), strict=False):
        maps = torch.from_numpy(crops[epoch % len(crops)][chosen[batch]]).float()
        set_rate(optimiser, rate(step))
        optimiser.zero_grad(set_to_none=True)
        loss = objective(maps, torch.from_numpy(labels[batch]))["loss"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(objective.parameters(), recipe.optimiser.clip_norm)
        optimiser.step()
        losses.append(float(loss.detach()))
    found = {"images": len(chosen), "classes": len(classes), "steps": steps, "loss": round(np.mean(losses[-20:]), 4)}
    return objective, {**found, "train_cpu_s": round(time.process_time() - before)}


def batches_of(sampler: ShuffledSampler) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Batches without an end, each with its epoch."""
    epoch = 0
    while True:
        sampler.start_epoch(epoch)
        yield from ((epoch, sampler.indices(step)) for step in range(len(sampler)))
        epoch += 1


def measure(ground: Ground, group: str, variant: Variant, seed: int) -> None:
    """Train and score one variant unless its figure is there."""
    path = ground.bench.results / "gap.csv"
    with locked(ground.bench, f"gap-{group}-{variant.name}-{seed}", wait=False) as mine:
        done = {(found["group"], found["variant"], found["seed"]) for found in read_csv(path)}
        if not mine or (group, variant.name, str(seed)) in done:
            return
        objective, found = fit(ground, variant, seed)
        found["map"] = round(ground.score(objective.network), 5)
        what = {"group": group, "variant": variant.name, "row": variant.row, "seed": seed}
        append_csv(path, COLUMNS, {**what, **found, "commit": commit()})
        say(f"{group}: {variant.name}, seed {seed}: mAP {100 * found['map']:.1f}, loss {found['loss']:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("groups", nargs="*", choices=[[], *GROUPS], help="which; all of them by default")
    parser.add_argument("--only", nargs="*", default=[], help="names of variants")
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--work", type=Path, default=Path("runs/results"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    given = parser.parse_args()
    torch.set_num_threads(1)
    ground = Ground(Bench(given.data.absolute(), given.work.absolute()))
    for seed in given.seeds:
        for group in given.groups or GROUPS:
            for variant in GROUPS[group]:
                if not given.only or variant.name in given.only:
                    measure(ground, group, variant, seed)


if __name__ == "__main__":
    main()
