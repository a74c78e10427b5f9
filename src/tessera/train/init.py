"""Where a network starts: ImageNet, another run, and what must be fitted to images before the first step (HOW)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.data.sets.labelled import ImageSet
from tessera.data.transforms import TransformConfig
from tessera.data.unreadable import UnreadableLog
from tessera.models.compared.how import HowNetwork, measure_strength, smooth
from tessera.models.model_registry import build_model
from tessera.models.network import Network
from tessera.train.batches.inputs import ImageInputs
from tessera.train.batches.loader import PhotoLoader, PhotoReader
from tessera.train.distributed import World
from tessera.train.recipe import Recipe
from tessera.train.records.checkpoint import checkpoint_of, load_checkpoint

_MAX_FEATURES = 1_000_000  # local features that a reduction is fitted to


def build_network(recipe: Recipe) -> Network:
    """The recipe's network with the weights it starts from."""
    weights = recipe.model.weights
    if weights in ("", "none"):
        return build_model(recipe.model.name, **recipe.model.config)
    path = Path(weights)
    if path.is_dir() or path.suffix == ".pt":
        network = build_model(recipe.model.name, **recipe.model.config)
        load_from_run(network, path, recipe.model.name)
        return network
    return build_model(recipe.model.name, weights=weights, **recipe.model.config)


def load_from_run(network: Network, path: Path, name: str) -> dict[str, Any]:
    """Load a run's network strictly; of another kind of network, its backbone. Returns the checkpoint.

    path: the run's folder (its best weights, else its last) or one checkpoint. A second stage (DELF) starts from the
    backbone of its first.
    """
    path = checkpoint_of(path)
    state = load_checkpoint(path)
    if state["recipe"]["model"]["name"] == name:
        network.load_state_dict(_below(state["objective"], "network."))
    else:
        network.backbone.load_weights(_below(state["objective"], "network.backbone."), str(path))
    return state


def initialise(network: Network, images: ImageSet, recipe: Recipe, world: World, unreadable: UnreadableLog) -> None:
    """Fit what the network wants fitted to the training images: HOW's reduction, by PCA of its own local features."""
    if not recipe.task.initial_images or not isinstance(network, HowNetwork):
        return
    chosen = images.subset(range(min(recipe.task.initial_images, len(images))))
    features = collect_features(network, chosen, recipe.transform, world, recipe.loop.workers, unreadable)
    network.initialise_reduction(features)


@torch.no_grad()
def collect_features(
    network: HowNetwork,
    images: ImageSet,
    transform: TransformConfig,
    world: World,
    workers: int,
    unreadable: UnreadableLog,
) -> np.ndarray:
    """The strongest local features of each image before the reduction, N C, the same on every process.

    At most a million in all: as many of each image as that allows.
    """
    photos = PhotoLoader(PhotoReader(images.paths, images.labels, transform, 0), workers, unreadable=unreadable)
    inputs = ImageInputs(photos, network.backbone, world.device)
    each = max(1, _MAX_FEATURES // len(images))
    was_training = network.training
    network.eval()
    collected = []
    try:
        for pictures, _ in inputs.batches([np.array([index]) for index in world.share(len(images))], None):
            assert isinstance(pictures, Tensor), "one picture a batch has one shape"
            maps = network.local_map(pictures)
            features = smooth(maps, network.config.smoothing).flatten(2)[0].T  # S C
            strengths = measure_strength(maps).flatten()
            collected.append(features[torch.topk(strengths, min(each, len(strengths))).indices].cpu().numpy())
    finally:
        photos.close()
        network.train(was_training)
    parts = world.gather(np.concatenate(collected) if collected else np.zeros((0, network.backbone.channels)))
    return np.concatenate(parts)


def _below(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
