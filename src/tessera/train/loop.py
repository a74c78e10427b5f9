"""The loop: epochs, steps, checkpoints and curves, the same for one process and for many.

All randomness is a function of the recipe's seed and the position in the run, or is saved with the checkpoint: a run
that was killed and resumed ends with the same weights as one that was left alone.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tessera.data.sets.labelled import ImageSet
from tessera.errors import TrainingError
from tessera.train.batches.inputs import InputLoader, Inputs
from tessera.train.batches.sampler import Sampler, share_of
from tessera.train.distributed import World
from tessera.train.objectives.objective import MicroBatch, Objective
from tessera.train.optimisation.averaging import WeightAverage
from tessera.train.optimisation.batchnorm import freeze_batch_norm
from tessera.train.optimisation.optimiser import build_optimiser, freeze_parts, rate_schedule, set_rate
from tessera.train.optimisation.precision import Precision
from tessera.train.recipe import Recipe, check_same
from tessera.train.records.checkpoint import (
    BEST,
    LAST,
    load_checkpoint,
    random_state,
    restore_random_state,
    save_checkpoint,
    seed_everything,
)
from tessera.train.records.scalars import ScalarLog
from tessera.train.validation import Validation

Say = Callable[[str], None]
UNREADABLE = "unreadable.txt"
_SAMPLER = "plan"  # the key in checkpoints; runs of earlier versions resume


@dataclass
class TrainingRun:
    """Everything a run is made of; `build_run.build_run` makes one from a recipe."""

    recipe: Recipe
    objective: Objective
    sampler: Sampler
    loader: InputLoader
    images: ImageSet
    world: World
    validation: Validation | None = None
    say: Say = field(default=lambda text: None)


class Trainer:
    """One run in `run_dir`: scalars.csv, tensorboard/, last.pt (the whole state) and best.pt (the best weights)."""

    def __init__(self, run: TrainingRun, run_dir: Path) -> None:
        self.run, self.run_dir, self.world = run, run_dir, run.world
        recipe = run.recipe
        self.objective = run.objective
        self.optimiser = build_optimiser(self.objective, recipe.optimiser)
        self.module: nn.Module = self.objective
        self._no_sync: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
        if self.world.size > 1:
            ids = [self.world.device] if self.world.device.type == "cuda" else None
            self.module = parallel = DistributedDataParallel(self.objective, device_ids=ids, forward_sync_buffers=False)
            self._no_sync = parallel.no_sync
        self.average = WeightAverage(self.objective, recipe.loop.average)
        self.precision = Precision(recipe.loop.precision, self.world.device)
        self.epoch = self.step_in_epoch = self.step = 0
        self.best = -math.inf
        self.scores: dict[str, float] = {}
        self._rate = rate_schedule(recipe.schedule, recipe.optimiser.rate, recipe.loop.epochs, len(run.sampler))
        self._data = run.images.fingerprint()
        self._unreadable = run.loader.photos.unreadable
        self._sampler_ready = False
        self._last_norm = math.nan
        self._parts: dict[str, float] = {}  # of the loss, where it is a sum
        self._last_checkpoint = time.monotonic()
        seed_everything(recipe.seed, self.world.rank)

    def train(self) -> dict[str, float]:
        """Run to the end of the recipe from where it stands; returns the last validation's scores, with `best`."""
        loop = self.run.recipe.loop
        log = ScalarLog(self.run_dir, self.step) if self.world.is_main else None
        try:
            while self.epoch < loop.epochs:
                self._train_epoch(log)
                self.epoch, self.step_in_epoch, self._sampler_ready = self.epoch + 1, 0, False
                self._validate(log)
                self.save(log)
                if len(self._unreadable):
                    self.run.say(f"{len(self._unreadable)} images could not be read. {self._unreadable.describe()}")
        finally:
            self.run.loader.photos.close()
            if log is not None:
                if len(self._unreadable):
                    self._unreadable.write(self.run_dir / UNREADABLE)
                log.close()
        return {**self.scores, "best": self.best} if self.scores else {}

    def header(self) -> str:
        """What is going to be trained, on what, for how long: the first line of a run."""
        recipe, images = self.run.recipe, self.run.images
        parameters = sum(parameter.numel() for parameter in self.objective.network.parameters())
        processes = f", {self.world.size} processes" if self.world.size > 1 else ""
        return (
            f"{recipe.name}: {recipe.model.name} ({parameters / 1e6:.1f} M parameters), {recipe.loss.name}, "
            f"{len(images)} images of {images.num_classes} classes, {recipe.loop.epochs} epochs of "
            f"{len(self.run.sampler)} steps of {recipe.loop.batch_size}, on {self.world.device.type}{processes} "
            f"-> {self.run_dir}"
        )

    def take_one_step(self) -> dict[str, float]:
        """The first step of the first epoch, for a dry run: nothing is written."""
        self.run.sampler.start_epoch(0)
        self._to_training()
        try:
            batches = self._batches()
            loss = self._step(next(batches))
            batches.close()
        finally:
            self.run.loader.photos.close()
        return {"loss": loss}

    def resume(self) -> None:
        """Go on from the run's last checkpoint."""
        state = load_checkpoint(self.run_dir / LAST)
        check_same(state["recipe"], self.run.recipe)
        if state.get("data", self._data) != self._data:
            raise TrainingError(
                f"the run was started on other training images (fingerprint {state['data']}, now {self._data}). Resume "
                "it with the same --data, or start a new run in another folder."
            )
        self.objective.load_state_dict(state["objective"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.average.restore(state["average"], state["average_updates"])
        self.precision.restore(state["scaler"])
        self.epoch, self.step_in_epoch, self.step = state["epoch"], state["step_in_epoch"], state["step"]
        self.best, self.scores = state["best"], state["scores"]
        if self.step_in_epoch:
            self.run.sampler.start_epoch_at(self.epoch, state[_SAMPLER])
            self._sampler_ready = True
        for file, reason in state["unreadable"].items():
            self._unreadable.record(file, reason)
        randoms = state["random"]
        if len(randoms) == self.world.size:
            restore_random_state(randoms[self.world.rank])
        else:
            self.run.say(
                f"the run had {len(randoms)} processes and has {self.world.size} now: it goes on in the same order, "
                "but with other random numbers for dropout."
            )

    def save(self, log: ScalarLog | None = None) -> None:
        """Write last.pt: every process gives its random state, the first one writes.

        After the log, which must be on the disk: a step that a checkpoint has is never written again.
        """
        if log is not None:
            log.sync()
        randoms = self.world.gather(random_state())
        for reasons in self.world.gather(dict(self._unreadable.reasons)):
            for file, reason in reasons.items():
                self._unreadable.record(file, reason)
        if self.world.is_main:
            state = {
                "objective": self.objective.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "average": self.average.values,
                "average_updates": self.average.updates,
                "scaler": self.precision.state(),
                "epoch": self.epoch,
                "step_in_epoch": self.step_in_epoch,
                "step": self.step,
                _SAMPLER: self.run.sampler.state() if self.step_in_epoch else {},
                "random": randoms,
                "best": self.best,
                "scores": self.scores,
                "unreadable": self._unreadable.reasons,
                "data": self._data,
            }
            save_checkpoint(self.run_dir / LAST, self.run.recipe, state)
        self._last_checkpoint = time.monotonic()
        self.world.wait()

    def _train_epoch(self, log: ScalarLog | None) -> None:
        sampler, loop = self.run.sampler, self.run.recipe.loop
        if not self._sampler_ready:
            sampler.start_epoch(self.epoch)
            self._sampler_ready = True
        self._to_training()
        started, seen, first = time.monotonic(), 0, self.step_in_epoch
        for parts in self._batches():
            loss = self._step(parts)
            images = sum(len(labels) for _, labels in parts) * self.world.size
            seen += images
            if log is not None and (self.step % loop.log_every == 0 or self.step_in_epoch == len(sampler)):
                elapsed = max(time.monotonic() - started, 1e-9)
                rate = seen / elapsed
                steps_left = loop.epochs * len(sampler) - self.step
                left = duration_text(steps_left * elapsed / max(self.step_in_epoch - first, 1))
                log.write(self.epoch, self.step, loss=loss, rate=self._rate(self.step - 1), images_per_s=rate)
                log.write(self.epoch, self.step, **self._parts, gradient_norm=self._last_norm)
                self.run.say(
                    f"epoch {self.epoch + 1}/{loop.epochs}  step {self.step_in_epoch}/{len(sampler)}  "
                    f"loss {loss:.4f}  {rate:.1f} images/s  {left} left"
                )
            if self._due and self.step_in_epoch < len(sampler):
                self.save(log)

    def _batches(self) -> Generator[list[MicroBatch], None, None]:
        """The micro-batches of this process, step after step, from where the epoch stands."""
        sampler, parts = self.run.sampler, self.run.recipe.loop.accumulate
        wanted = [
            piece
            for step in range(self.step_in_epoch, len(sampler))
            for piece in share_of(sampler.indices(step), self.world.rank, self.world.size, parts, sampler.group)
        ]
        source = self.run.loader.batches(wanted, self.epoch)
        for _ in range(len(wanted) // parts):
            step = []
            for _ in range(parts):
                inputs, indices = next(source)
                step.append((inputs, torch.from_numpy(self.run.images.labels[indices]).to(self.world.device)))
            yield step

    def _step(self, parts: list[MicroBatch]) -> float:
        """One step of the optimiser over the micro-batches; the mean loss of all processes."""
        set_rate(self.optimiser, self._rate(self.step))
        self.optimiser.zero_grad(set_to_none=True)
        loss = self.objective.accumulate(
            self._forward_backward, parts, chunk=self.run.recipe.task.chunk, world=self.world
        )
        loss = self._check_with_others(loss)
        norm = self.precision.step(self.optimiser, self.objective, self.run.recipe.optimiser.clip_norm)
        if not math.isfinite(norm) and not self.precision.scales:
            self._stop("gradient's norm", norm)
        self._last_norm = norm
        self.average.update()
        self.step, self.step_in_epoch = self.step + 1, self.step_in_epoch + 1
        return loss

    def _forward_backward(
        self, inputs: Inputs, labels: Tensor, gradient: Tensor | None, weight: float, *, last: bool
    ) -> float:
        """Add a micro-batch's gradient; processes exchange gradients at the last one only."""
        with contextlib.nullcontext() if last else self._no_sync():
            with self.precision.autocast():
                outputs = self.module(inputs, labels, gradient)
                loss = outputs.pop("loss")
            self._parts = {f"loss_{name}": float(value) for name, value in outputs.items()}
            self.precision.scale(loss * weight).backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def _check_with_others(self, loss: float) -> float:
        """The mean loss of all processes; a loss that is no number ends the run, before it spoils the weights."""
        minutes = self.run.recipe.loop.checkpoint_minutes
        due = self.world.is_main and time.monotonic() - self._last_checkpoint >= minutes * 60
        flags = self.world.sum(torch.tensor([loss, float(due)], dtype=torch.float64, device=self.world.device))
        self._due = bool(flags[1] > 0)
        mean = float(flags[0]) / self.world.size
        if not math.isfinite(mean):
            self._stop("loss", mean)
        return mean

    def _stop(self, what: str, value: float) -> NoReturn:
        kept = self.run_dir / LAST
        raise TrainingError(
            f"the {what} became {value} in epoch {self.epoch + 1}, step {self.step_in_epoch + 1} (rate "
            f"{self._rate(self.step):.3g}, gradient norm of the step before {self._last_norm:.3g}). The weights "
            f"were left as they were{f'; the last checkpoint is {kept}' if kept.is_file() else ''}. Lower "
            "optimiser.rate, set optimiser.clip_norm (10 is a start), warm up (schedule.warmup_epochs), or use "
            "loop.precision=fp32."
        )

    def _validate(self, log: ScalarLog | None) -> None:
        config = self.run.recipe.validation
        finished = self.epoch == self.run.recipe.loop.epochs
        if self.run.validation is None or (self.epoch % config.every_epochs and not finished):
            return
        with self.average.applied():
            self.scores = self.run.validation.run(self.objective)
            score = self.scores.get("val_loss" if config.metric == "loss" else config.metric, math.nan)
            score = -score if config.metric == "loss" else score
            if self.world.is_main and (score > self.best or not (self.run_dir / BEST).is_file()):
                state = {"objective": self.objective.state_dict(), "epoch": self.epoch, "scores": self.scores}
                save_checkpoint(self.run_dir / BEST, self.run.recipe, state)
        self.best = max(self.best, score) if not math.isnan(score) else self.best
        if log is not None:
            log.write(self.epoch, self.step, **self.scores)
        written = "  ".join(f"{name} {value:.4f}" for name, value in self.scores.items())
        self.run.say(f"epoch {self.epoch}/{self.run.recipe.loop.epochs} done  {written}")

    def _to_training(self) -> None:
        self.module.train()
        if self.run.recipe.loop.freeze_batch_norm:
            freeze_batch_norm(self.objective)
        freeze_parts(self.objective, self.run.recipe.optimiser.rates)


def duration_text(seconds: float) -> str:
    """`3 h 20 min`, `5 min` or `40 s`: as exact as a forecast can be."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
