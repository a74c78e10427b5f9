"""How good the network is now: accuracy on held-out images of the classes, mAP when each image looks for its class."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.data.sets.labelled import ImageSet
from tessera.data.transforms import TransformConfig
from tessera.data.unreadable import UnreadableLog
from tessera.errors import ConfigError
from tessera.models.network import Network
from tessera.train.batches.inputs import ImageInputs, Inputs
from tessera.train.batches.loader import PhotoLoader, PhotoReader
from tessera.train.batches.sampler import Indices
from tessera.train.distributed import World
from tessera.train.objectives.objective import Objective

_BATCH = 32


class Validation:
    """held_out: images of the training's classes, for accuracy; retrieval: the set that is searched, for mAP.

    Each process takes its share of the images. Only descriptors are kept, so the sets may be large.
    """

    def __init__(
        self,
        held_out: ImageSet | None,
        retrieval: ImageSet | None,
        transform: TransformConfig,
        *,
        size: int,
        max_images: int,
        workers: int,
        world: World,
        unreadable: UnreadableLog,
    ) -> None:
        self.held_out, self.retrieval = thin_out(held_out, max_images), thin_out(retrieval, max_images)
        self.transform, self.size, self.workers, self.world = transform, size, workers, world
        self.unreadable = unreadable

    def check_metric(self, metric: str, objective: Objective) -> None:
        """Refuse a metric that no validation would ever give: every epoch would be as good as the first."""
        measured = ["accuracy", "loss"] if self.held_out is not None and objective.has_classes else []
        measured += ["map"] if self.retrieval is not None else []
        if metric not in measured:
            raise ConfigError(
                f"validation.metric '{metric}' is not measured here: this loss and these images give "
                f"{', '.join(measured) or 'nothing'}. Set validation.metric, or hold other images out (data.held_out, "
                "data.validation); data.held_out = 0 trains without validation."
            )

    @torch.no_grad()
    def run(self, objective: Objective) -> dict[str, float]:
        """`accuracy` and `val_loss` where the loss has classes, `map` where there is a set to search."""
        was_training = objective.training
        objective.eval()
        try:
            scores: dict[str, float] = {}
            if self.held_out is not None and objective.has_classes:
                scores |= self._accuracy(objective, self.held_out)
            if self.retrieval is not None:
                whole = TransformConfig(kind="whole", crop=self.size)
                rows = F.normalize(self._describe(objective, self.retrieval, whole), dim=-1)
                scores["map"] = leave_one_out_map(rows.cpu().numpy(), self.retrieval.labels)
            return scores
        finally:
            objective.train(was_training)

    def _describe(self, objective: Objective, images: ImageSet, transform: TransformConfig) -> Tensor:
        return describe_set(objective, images, transform, self.world, self.workers, self.unreadable)

    def _accuracy(self, objective: Objective, images: ImageSet) -> dict[str, float]:
        rows = self._describe(objective, images, self.transform)
        labels = torch.from_numpy(images.labels).to(rows.device)
        cosines = torch.cat([objective.classify(part) for part in torch.split(rows, 1024)])
        scale = float(getattr(objective.loss, "scale", 1.0))
        return {
            "accuracy": float((cosines.argmax(dim=1) == labels).double().mean()),
            "val_loss": float(F.cross_entropy(cosines * scale, labels)),
        }


@torch.no_grad()
def describe_set(
    objective: Objective,
    images: ImageSet,
    transform: TransformConfig,
    world: World,
    workers: int,
    unreadable: UnreadableLog,
) -> Tensor:
    """Descriptors of all images without augmentation, N D, not normalised, the same on every process."""
    backbone = objective.network.backbone
    reader = PhotoReader(images.paths, images.labels, transform, 0, decode_size=_decode_size(transform))
    photos = PhotoLoader(reader, workers, unreadable=unreadable)
    inputs = ImageInputs(photos, backbone, world.device)
    mine = np.array(world.share(len(images)), dtype=np.int64)
    try:
        batches = [mine[start : start + _BATCH] for start in range(0, len(mine), _BATCH)]
        rows = [_describe_batch(objective.network, batch) for batch, _ in inputs.batches(batches, None)]
    finally:
        photos.close()
    described = torch.cat(rows) if rows else torch.zeros(0, objective.network.dim, device=world.device)
    return world.gather_rows(described, len(images))


def _describe_batch(network: Network, batch: Inputs) -> Tensor:
    """Pictures of one shape go through together; the order stays. In the frozen mode, too, they are pictures."""
    if isinstance(batch, Tensor):
        return network.describe_raw(batch)
    by_shape: dict[torch.Size, list[int]] = {}
    for number, image in enumerate(batch):
        by_shape.setdefault(image.shape, []).append(number)
    rows: list[Tensor | None] = [None] * len(batch)
    for numbers in by_shape.values():
        alike = network.describe_raw(torch.cat([batch[number] for number in numbers]))
        for number, row in zip(numbers, alike, strict=True):
            rows[number] = row
    return torch.stack([row for row in rows if row is not None])


def leave_one_out_map(descriptors: np.ndarray, labels: Indices) -> float:
    """Mean over queries of the average precision (area by trapezoids) when each image searches all others.

    descriptors: N D of unit norm. Images alone in their class are no queries; NaN when all are.
    """
    precisions = [ap for ap in _average_precisions(descriptors, labels) if ap is not None]
    return float(np.mean(precisions)) if precisions else math.nan


def _average_precisions(descriptors: np.ndarray, labels: Indices) -> Iterator[float | None]:
    for query in range(len(labels)):
        similar = descriptors @ descriptors[query]
        similar[query] = -np.inf
        order = np.argsort(-similar, kind="stable")[:-1]
        found = np.flatnonzero(labels[order] == labels[query])
        if not len(found):
            yield None
            continue
        numbers = np.arange(len(found))
        before = np.where(found == 0, 1.0, numbers / np.maximum(found, 1))
        after = (numbers + 1) / (found + 1)
        yield float((before + after).sum() / (2 * len(found)))


def thin_out(images: ImageSet | None, limit: int) -> ImageSet | None:
    """At most `limit` images, evenly over the order, so that every class keeps some; 0 keeps all."""
    if images is None or not len(images) or not limit or len(images) <= limit:
        return images if images is not None and len(images) else None
    return images.subset(np.linspace(0, len(images) - 1, limit).astype(np.int64))


def _decode_size(transform: TransformConfig) -> int | None:
    return transform.crop if transform.kind == "whole" else None
