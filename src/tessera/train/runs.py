"""A run from start to end, and several of them: the paper trains five and keeps the one in the middle."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tessera.config import to_mapping
from tessera.errors import TrainingError
from tessera.storage import atomic_path, write_atomically
from tessera.train.build_run import build_run, load_data
from tessera.train.codebook_training import train_codebook
from tessera.train.distributed import World
from tessera.train.init import initialise
from tessera.train.loop import Trainer
from tessera.train.recipe import Recipe
from tessera.train.records.checkpoint import BEST, LAST, checkpoint_of, load_checkpoint

Say = Callable[[str], None]


def train_run(recipe: Recipe, run_dir: Path, world: World, say: Say, *, resume: bool = False) -> dict[str, Any]:
    """Train one run in its folder. A folder that already holds one is refused unless it is to be resumed."""
    started = world.gather((run_dir / LAST).is_file())[0]  # the first process writes it; folders need not be shared
    if started and not resume:
        raise TrainingError(f"{run_dir} already holds a run: continue it with --resume, or choose another folder (-o).")
    data = load_data(recipe)
    if recipe.task.kind == "codebook":
        return train_codebook(recipe, data.train, run_dir, say)
    trainer = Trainer(build_run(recipe, data, world, run_dir, say), run_dir)
    if not started:
        initialise(trainer.objective.network, data.train, recipe, world, trainer.run.loader.photos.unreadable)
    if resume and not started:
        say(f"{run_dir} has no checkpoint yet: the run starts from the beginning.")
    elif resume:
        trainer.resume()
        say(f"resumed at epoch {trainer.epoch + 1}, step {trainer.step_in_epoch}.")
    if world.is_main:
        described = {
            "recipe": to_mapping(recipe),
            "fingerprint": recipe.fingerprint,
            "processes": world.size,
            "training_images": len(data.train),
            "classes": data.train.num_classes,
            "data": data.train.name,
            "data_fingerprint": data.train.fingerprint(),
        }
        write_atomically(run_dir / "run.json", json.dumps(described, indent=2).encode() + b"\n")
    say(trainer.header())
    scores = trainer.train()
    return {"run_dir": str(run_dir), "seed": recipe.seed, "fingerprint": recipe.fingerprint, "scores": scores}


def train_runs(
    recipe: Recipe, run_dir: Path, world: World, say: Say, *, count: int, resume: bool = False
) -> dict[str, Any]:
    """Train `count` seeds in run-0, run-1, ... and keep the weights of the one with the median validation score.

    With an even number, the lower of the two in the middle. With `resume`, finished runs are not trained again.
    """
    _check_scored(recipe)
    results = []
    for number in range(count):
        seeded = replace(recipe, seed=recipe.seed + number)
        folder = run_dir / f"run-{number}"
        finished = _finished(folder, seeded) if resume else None
        results.append(finished or train_run(seeded, folder, world, say, resume=resume and (folder / LAST).is_file()))
        say(f"run {number + 1} of {count}: best {recipe.validation.metric} {results[-1]['scores']['best']:.4f}")
    ranked = sorted(results, key=lambda result: _sortable(result["scores"]["best"]))
    median = ranked[(count - 1) // 2]
    if world.is_main:
        with atomic_path(run_dir / BEST) as temporary:
            shutil.copyfile(checkpoint_of(Path(median["run_dir"])), temporary)
        content = {"metric": recipe.validation.metric, "median": median, "runs": results}
        write_atomically(run_dir / "runs.json", json.dumps(content, indent=2).encode() + b"\n")
    world.wait()
    return {"run_dir": str(run_dir), "metric": recipe.validation.metric, "median": median, "runs": results}


def _check_scored(recipe: Recipe) -> None:
    """Refuse what gives no median before the first run is trained, not after it."""
    data = None if recipe.task.kind == "codebook" else load_data(recipe)
    if data is None or not (data.held_out or data.retrieval):
        raise TrainingError(
            f"runs of '{recipe.name}' have no validation score to find the median by: set data.held_out or "
            "data.validation, or train one run."
        )


def _finished(folder: Path, recipe: Recipe) -> dict[str, Any] | None:
    if not (folder / LAST).is_file():
        return None
    state = load_checkpoint(folder / LAST)
    if state["epoch"] < recipe.loop.epochs or state["fingerprint"] != recipe.fingerprint:
        return None
    scores = {**state["scores"], "best": state["best"]} if state["scores"] else {}
    return {"run_dir": str(folder), "seed": recipe.seed, "fingerprint": recipe.fingerprint, "scores": scores}


def _sortable(score: float) -> float:
    return -math.inf if math.isnan(score) else score
