"""From a recipe to a run: data, network, loss, sampler and loader, checked against each other first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from tessera.data.datasets import load_dataset
from tessera.data.sets.labelled import ImageSet, split_by_class
from tessera.data.sets.pairs import PairSet
from tessera.data.transforms import TransformConfig
from tessera.data.unreadable import UnreadableLog
from tessera.errors import ConfigError
from tessera.models.compared.delf import DelfNetwork
from tessera.models.compared.delg import JointNetwork
from tessera.models.losses import LOSSES, build_loss
from tessera.models.model_registry import MODELS
from tessera.models.network import Network
from tessera.train.batches.inputs import ImageInputs, InputLoader, MapInputs
from tessera.train.batches.loader import PhotoLoader, PhotoReader
from tessera.train.batches.mining import TupleSampler
from tessera.train.batches.sampler import BalancedSampler, Indices, Sampler, ShuffledSampler
from tessera.train.distributed import World
from tessera.train.init import build_network
from tessera.train.loop import TrainingRun
from tessera.train.objectives.local_attention import AttentionObjective, JointObjective, build_local_loss
from tessera.train.objectives.objective import Objective, TupleObjective
from tessera.train.objectives.two_pass import ListObjective
from tessera.train.optimisation.batchnorm import share_batch_norm
from tessera.train.recipe import Recipe
from tessera.train.validation import Validation, describe_set

BATCH_OF_TASK = {"classify": "labels", "attention": "labels", "tuples": "tuples", "listwise": "list"}


@dataclass(frozen=True)
class TrainingData:
    """train: what is learned from. pairs: P 2 of indices, where the set says which images belong together.

    held_out: images of the same classes; retrieval: the set that validation searches.
    """

    train: ImageSet
    pairs: Indices | None = None
    held_out: ImageSet | None = None
    retrieval: ImageSet | None = None
    notes: tuple[str, ...] = ()

    def open_log(self) -> UnreadableLog:
        """One count of unreadable images for all that a run reads: of ten held-out images one is no ten per cent."""
        sets = (self.train, self.held_out, self.retrieval)
        return UnreadableLog(len({path for images in sets if images is not None for path in images.paths}))


def load_data(recipe: Recipe) -> TrainingData:
    """Read the recipe's data set, hold out a part, and the retrieval set where it has one of its own."""
    config = recipe.data
    loaded = load_dataset(config.name, config.root or None, config.options)
    retrieval: ImageSet | None = None
    if config.validation:
        found = load_dataset(config.name, config.root or None, {**config.options, **config.validation})
        retrieval = found.images if isinstance(found, PairSet) else found
    if isinstance(loaded, PairSet):
        pairs = np.column_stack([loaded.queries, loaded.positives])
        return TrainingData(loaded.images, pairs, None, retrieval, loaded.images.notes)
    if not config.held_out:
        return TrainingData(loaded, None, None, retrieval, loaded.notes)
    train, held_out = split_by_class(loaded, validation=config.held_out, seed=config.split_seed)
    return TrainingData(train, None, held_out, retrieval or held_out, loaded.notes)


def build_run(
    recipe: Recipe, data: TrainingData, world: World, run_dir: Path, say: Callable[[str], None] = lambda text: None
) -> TrainingRun:
    """Everything a run needs. The same weights on every process: they come from the recipe's seed."""
    check_recipe(recipe)
    for note in data.notes:
        say(note)
    torch.manual_seed(recipe.seed)
    network = build_network(recipe)
    objective = build_objective(recipe, network, data.train.num_classes, world)
    if recipe.loop.precision == "fp64":
        objective.double()
    objective.to(device=world.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    shared = share_batch_norm(objective, world)
    assert shared is objective or world.device.type == "cuda"
    if world.size > 1 and world.device.type == "cpu":
        say("batch norm is shared between processes by all-reduce: torch's own refuses CPUs.")
    unreadable = data.open_log()
    loader = _build_loader(recipe, data.train, objective, world, run_dir, unreadable)
    sampler = _build_sampler(recipe, data, objective, world, unreadable)
    validation = None
    if data.held_out is not None or data.retrieval is not None:
        validation = Validation(
            data.held_out,
            data.retrieval,
            recipe.transform,
            size=recipe.validation.size,
            max_images=recipe.validation.max_images,
            workers=recipe.loop.workers,
            world=world,
            unreadable=unreadable,
        )
        validation.check_metric(recipe.validation.metric, objective)
    return TrainingRun(recipe, objective, sampler, loader, data.train, world, validation, say)


def check_recipe(recipe: Recipe) -> None:
    """Refuse combinations that cannot work, before the data is read."""
    task, loop = recipe.task.kind, recipe.loop
    wanted, found = BATCH_OF_TASK.get(task), LOSSES[recipe.loss.name].batch
    if wanted is not None and wanted != found:
        fitting = ", ".join(name for name, entry in LOSSES.items() if entry.batch == wanted)
        raise ConfigError(
            f"task '{task}' feeds {wanted}, and loss '{recipe.loss.name}' takes {found}. Fitting: {fitting}."
        )
    kind = MODELS[recipe.model.name].kind
    if task == "codebook":
        raise ConfigError("task 'codebook' has nothing to minimise: it goes through `train_codebook`.")
    if recipe.task.joint and (task != "attention" or recipe.frozen.enabled):
        raise ConfigError("task.joint belongs to task 'attention' with the backbone in training.")
    if (recipe.task.joint and kind != "global") or (task == "attention" and not recipe.task.joint and kind != "local"):
        raise ConfigError(
            f"model '{recipe.model.name}' is of kind {kind}: joint attention needs a global network with a local "
            "branch (delg-...), a second stage a local one (delf-..., delg-local-...)."
        )
    if task == "listwise" and not loop.freeze_batch_norm:
        raise ConfigError("task 'listwise' runs in chunks: set loop.freeze_batch_norm = true.")
    if recipe.frozen.enabled and recipe.transform.kind != "crop":
        raise ConfigError("the frozen mode keeps maps of one size: set transform.kind = 'crop'.")
    if recipe.transform.kind == "whole" and not loop.freeze_batch_norm:
        raise ConfigError("pictures of different shapes go one by one: set loop.freeze_batch_norm = true.")


def build_objective(recipe: Recipe, network: Network, num_classes: int, world: World) -> Objective:
    """The network and the loss as the task needs them."""
    task, on_maps = recipe.task, recipe.frozen.enabled
    reconstruction = build_loss("reconstruction", weight=task.reconstruction_weight)
    if task.kind == "attention" and not task.joint:
        if not isinstance(network, DelfNetwork):
            raise ConfigError(f"model '{recipe.model.name}' has no attention to train: take delf-... or delg-local-...")
        local_loss = build_local_loss(task, network.local.channels, num_classes)
        return AttentionObjective(network, local_loss, reconstruction, task.attention_weight, on_maps=on_maps)
    loss = build_loss(recipe.loss.name, dim=network.dim, num_classes=num_classes, **recipe.loss.config)
    if task.kind == "attention":
        if not isinstance(network, JointNetwork):
            raise ConfigError(f"model '{recipe.model.name}' has no local branch to train jointly: take delg-...")
        local_loss = build_local_loss(task, network.pooled_dim, num_classes)
        return JointObjective(network, loss, local_loss, reconstruction, task.attention_weight)
    for name, parameter in network.named_parameters():  # DELG without its local branch: DDP wants no idle parameters
        if name.startswith(network.auxiliary):
            parameter.requires_grad_(False)
    if task.kind == "tuples":
        is_sum = recipe.loss.name == "contrastive" or recipe.loss.config.get("reduction") == "sum"
        factor = float(recipe.loop.accumulate * world.size) if is_sum else 1.0
        return TupleObjective(network, loss, size=task.negatives + 2, factor=factor, on_maps=on_maps)
    if task.kind == "listwise":
        return ListObjective(network, loss, on_maps=on_maps)
    return Objective(network, loss, on_maps=on_maps)


def _build_loader(
    recipe: Recipe, images: ImageSet, objective: Objective, world: World, run_dir: Path, unreadable: UnreadableLog
) -> InputLoader:
    reader = PhotoReader(
        images.paths,
        images.labels,
        recipe.transform,
        recipe.seed,
        decode_size=recipe.data.decode_size or None,
        cache_gb=recipe.data.cache_gb,
    )
    photos = PhotoLoader(reader, recipe.loop.workers, recipe.loop.worker_kind, unreadable=unreadable)
    inputs = ImageInputs(photos, objective.network.backbone, world.device)
    if not recipe.frozen.enabled:
        return inputs
    folder = Path(recipe.frozen.dir) if recipe.frozen.dir else run_dir / "maps"
    return MapInputs(inputs, objective.network.backbone, folder, recipe.frozen.views)


def _build_sampler(
    recipe: Recipe, data: TrainingData, objective: Objective, world: World, unreadable: UnreadableLog
) -> Sampler:
    task, loop, labels = recipe.task, recipe.loop, data.train.labels
    if task.kind == "tuples":

        def describe(indices: Indices) -> torch.Tensor:
            was_training = objective.training
            objective.eval()
            plain = TransformConfig(
                kind=recipe.transform.kind, crop=recipe.transform.crop, margin=recipe.transform.margin
            )
            rows = describe_set(objective, data.train.subset(indices), plain, world, loop.workers, unreadable)
            objective.train(was_training)
            return F.normalize(rows, dim=-1)

        return TupleSampler(
            labels,
            describe,
            batch_size=loop.batch_size,
            queries=task.queries,
            pool=task.pool,
            negatives=task.negatives,
            seed=recipe.seed,
            pairs=data.pairs,
        )
    if task.kind == "listwise":
        return BalancedSampler(labels, loop.batch_size, task.per_class, recipe.seed, loop.steps_per_epoch)
    return ShuffledSampler(len(labels), loop.batch_size, recipe.seed, loop.steps_per_epoch)
