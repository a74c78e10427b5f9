"""Try a recipe without its data, its weights or a GPU: its own network, loss and sampler, one batch, one step."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tessera.data.sets.labelled import ImageSet, image_set
from tessera.errors import CheckpointError
from tessera.models.backbones.imagenet import imagenet_path
from tessera.train.build_run import TrainingData, build_run, load_data
from tessera.train.codebook_training import train_codebook
from tessera.train.distributed import World
from tessera.train.init import initialise
from tessera.train.loop import Trainer
from tessera.train.recipe import Recipe

BATCH = 4
CROP = 96
_CLASSES, _PER_CLASS = 8, 3


def dry_run(recipe: Recipe, world: World, say: Callable[[str], None]) -> dict[str, Any]:
    """Build everything and take one step on a batch of at most 4 and pictures of at most 96 px.

    Without the recipe's data, pictures are drawn; without ImageNet weights, the start is random. Nothing is kept.
    """
    started = time.monotonic()
    small, stand_ins = shrink(recipe)
    with tempfile.TemporaryDirectory() as folder:
        if recipe.data.root and Path(recipe.data.root).is_dir():
            data = replace(load_data(small), held_out=None, retrieval=None)
        else:
            data = TrainingData(draw_images(Path(folder) / "drawn"))
            stand_ins["data"] = f"{len(data.train)} drawn pictures for {recipe.data.name}"
        if recipe.task.kind == "codebook":
            outcome = train_codebook(replace(small, task=replace(small.task, words=16)), data.train, Path(folder), say)
            return {**_described(recipe, small, data), "words": outcome["words"], "features": outcome["features"]} | {
                "sampler": "k-means",
                "seconds": round(time.monotonic() - started, 2),
                "stand_ins": {**stand_ins, "words": f"16 words for {recipe.task.words}"},
            }
        run = build_run(small, data, world, Path(folder), say)
        trainer = Trainer(run, Path(folder) / "run")
        initialise(run.objective.network, data.train, small, world, run.loader.photos.unreadable)
        scores = trainer.take_one_step()
        network = run.objective.network
        backbone = str(network.architecture["config"]["backbone"])
        if "weights" in stand_ins:
            stand_ins["weights"] += _missing_weights(recipe, backbone)
        return {
            **_described(recipe, small, data),
            "backbone": backbone,
            "parameters": sum(p.numel() for p in network.parameters()),
            "dim": network.dim,
            "loss": recipe.loss.name,
            "sampler": type(run.sampler).__name__,
            "loss_value": scores["loss"],
            "seconds": round(time.monotonic() - started, 2),
            "stand_ins": stand_ins,
        }


def _described(recipe: Recipe, small: Recipe, data: TrainingData) -> dict[str, Any]:
    return {
        "recipe": recipe.name,
        "fingerprint": recipe.fingerprint,
        "model": recipe.model.name,
        "task": recipe.task.kind,
        "images": len(data.train),
        "batch": [recipe.loop.batch_size, recipe.transform.crop],
        "tried": [small.loop.batch_size, small.transform.crop],
    }


def shrink(recipe: Recipe) -> tuple[Recipe, dict[str, str]]:
    """The same recipe with a batch and pictures that any machine can take, and random weights for the start."""
    stand_ins = {}
    batch = min(recipe.loop.batch_size, BATCH)
    if recipe.model.weights not in ("", "none"):
        stand_ins["weights"] = f"random weights for {recipe.model.weights}"
    task = replace(
        recipe.task,
        queries=min(recipe.task.queries, batch),
        pool=min(recipe.task.pool, 24),
        chunk=2,
        per_class=2,
        initial_images=min(recipe.task.initial_images, 12),
    )
    small = replace(
        recipe,
        model=replace(recipe.model, weights="none"),
        task=task,
        transform=replace(recipe.transform, crop=min(recipe.transform.crop, CROP)),
        loop=replace(
            recipe.loop,
            batch_size=batch,
            accumulate=recipe.loop.accumulate if batch % recipe.loop.accumulate == 0 else 1,
            epochs=1,
            workers=1,
        ),
    )
    return small, stand_ins


def _missing_weights(recipe: Recipe, backbone: str) -> str:
    """What to say of weights that the run itself would not find; nothing if it would."""
    weights = recipe.model.weights
    try:
        if weights == "imagenet":
            imagenet_path(backbone)
        elif weights not in ("", "none") and not Path(weights).exists():
            raise CheckpointError(f"{weights} does not exist.")
    except CheckpointError as error:
        return f"; the run itself would stop: {error}"
    return ""


def draw_images(folder: Path, classes: int = _CLASSES, per_class: int = _PER_CLASS, side: int = 128) -> ImageSet:
    """Class folders of small pictures: each class its own colours in its own stripes, and noise on top."""
    random = np.random.default_rng(0)
    pairs = []
    for label in range(classes):
        colours = random.integers(0, 255, (2, 3))
        width = int(random.integers(4, 24))
        for number in range(per_class):
            stripes = (np.add.outer(np.arange(side), np.arange(side + 16) * (label % 3)) // width % 2).astype(int)
            pixels = colours[stripes] + random.integers(-40, 40, (side, side + 16, 3))
            path = folder / f"class{label}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)
            pairs.append((f"class{label}/{number}.jpg", f"class{label}"))
    return image_set("drawn", folder, pairs)
