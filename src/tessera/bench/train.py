"""The training rate against a bare forward-backward loop on tensors that are already decoded, in one run.

Both loops do the same steps with the same network, loss and optimiser, in turn, so that what else the machine does
falls on both. What is lost is decoding, augmenting and the loop's own book-keeping.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessera.config import find_config
from tessera.data.sets.labelled import ImageSet
from tessera.train.build_run import TrainingData, build_run, load_data
from tessera.train.distributed import World
from tessera.train.dryrun import draw_images
from tessera.train.loop import Trainer
from tessera.train.recipe import Recipe, load_recipe

BAR = 0.9
_DRAWN_SIDE = 384  # of drawn pictures where there is no data


def measure_training(
    recipe_name: str, *, data: Path | None = None, rounds: int = 5, steps: int = 2, settings: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Rates in images a second, and their ratio.

    data: the recipe's data set; without it, pictures of 384 px are drawn. A round is `steps` of the one loop and as
    many of the other; the ratio is the median over the rounds. It is measured in the first epoch, whose
    photos are not in memory yet. `processor_ratio` compares the processor time of an image instead: what else runs on
    the machine disturbs it less.
    """
    recipe = load_recipe(find_config("recipes", recipe_name), settings)
    recipe = replace(recipe, loop=replace(recipe.loop, log_every=1_000_000, checkpoint_minutes=1e9))
    with tempfile.TemporaryDirectory() as folder:
        if data is not None:
            recipe = replace(recipe, data=replace(recipe.data, root=str(data)))
            images = load_data(recipe).train
        else:
            images = draw_images(
                Path(folder) / "drawn", classes=8, per_class=2 * recipe.loop.batch_size, side=_DRAWN_SIDE
            )
        fitted = _rounds(recipe, images, Path(folder), rounds, steps)
    bare, full = (statistics.median(rate for rate, _ in rates) for rates in fitted)
    ratio = statistics.median(f[0] / b[0] for b, f in zip(*fitted, strict=True))
    processor = statistics.median(b[1] / f[1] for b, f in zip(*fitted, strict=True))
    return {
        "recipe": recipe.name,
        "model": recipe.model.name,
        "images": len(images),
        "data": images.name,
        "batch": recipe.loop.batch_size,
        "crop": recipe.transform.crop,
        "threads": torch.get_num_threads(),
        "workers": recipe.loop.workers,
        "rounds": rounds,
        "bare_images_per_s": bare,
        "training_images_per_s": full,
        "ratio": ratio,
        "processor_ratio": processor,
        "bar": BAR,
        "met": ratio >= BAR,
    }


Measured = tuple[float, float]  # images a second, processor seconds an image


def _rounds(
    recipe: Recipe, images: ImageSet, folder: Path, rounds: int, steps: int
) -> tuple[list[Measured], list[Measured]]:
    """What each round measured: bare, then with everything."""
    trainer = Trainer(build_run(recipe, TrainingData(images), World(), folder), folder / "run")
    trainer.run.sampler.start_epoch(0)
    trainer._to_training()
    batches = trainer._batches()
    decoded = [next(batches)[0] for _ in range(steps)]
    bare, full = [], []
    try:
        _bare_steps(trainer, decoded[:1])  # the first step allocates
        for _ in range(rounds):
            trainer.run.loader.photos.wait_until_ready()  # or batches prepared ahead would slow the bare loop down
            bare.append(_timed(lambda: _bare_steps(trainer, decoded), steps * recipe.loop.batch_size))
            full.append(_timed(lambda: _full_steps(trainer, batches, steps), steps * recipe.loop.batch_size))
    finally:
        batches.close()
        trainer.run.loader.photos.close()
    return bare, full


def _bare_steps(trainer: Trainer, decoded: list[tuple[Any, Tensor]]) -> None:
    for inputs, labels in decoded:
        trainer.optimiser.zero_grad(set_to_none=True)
        trainer.objective(inputs, labels)["loss"].backward()
        trainer.optimiser.step()


def _full_steps(trainer: Trainer, batches: Any, steps: int) -> None:
    for _ in range(steps):
        trainer._step(next(batches))


def _timed(work: Callable[[], None], images: int) -> Measured:
    started, processor = time.perf_counter(), time.process_time()
    work()
    return images / (time.perf_counter() - started), (time.process_time() - processor) / images


def to_markdown(report: dict[str, Any]) -> str:
    return (
        f"| loop | images/s |\n| --- | --- |\n| bare forward and backward | {report['bare_images_per_s']:.2f} |\n"
        f"| training | {report['training_images_per_s']:.2f} |\n\n"
        f"ratio {report['ratio']:.3f} (bar {report['bar']}), by processor time {report['processor_ratio']:.3f}; "
        f"{report['model']}, batch {report['batch']}, crop "
        f"{report['crop']}, {report['threads']} threads, {report['data']}"
    )
