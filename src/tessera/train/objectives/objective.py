"""What is minimised: a network and its loss as one module, so that DDP wraps both and a checkpoint holds both."""

from __future__ import annotations

from typing import Any, Protocol, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tessera.models.network import Network
from tessera.train.batches.inputs import Inputs
from tessera.train.distributed import World

MicroBatch = tuple[Inputs, Tensor]  # inputs and labels


class ForwardBackward(Protocol):
    """Adds the gradient of one micro-batch and returns its loss; processes exchange gradients at the last one."""

    def __call__(
        self, inputs: Inputs, labels: Tensor, gradient: Tensor | None, weight: float, *, last: bool
    ) -> float: ...


class Objective(nn.Module):
    """Un-normalised descriptors and labels into a loss with a classifier (ArcFace).

    on_maps: inputs are the backbone's maps (frozen mode).
    """

    def __init__(self, network: Network, loss: nn.Module, *, on_maps: bool = False) -> None:
        super().__init__()
        self.network = network
        self.loss = loss
        self.on_maps = on_maps
        if not self.trains_backbone:
            network.backbone.requires_grad_(False)

    @property
    def trains_backbone(self) -> bool:
        return not self.on_maps

    def train(self, mode: bool = True) -> Self:
        """As for any module; a backbone that is not trained stays in evaluation, its batch statistics too."""
        super().train(mode)
        if not self.trains_backbone:
            self.network.backbone.eval()
        return self

    def accumulate(
        self, forward_backward: ForwardBackward, parts: list[MicroBatch], *, chunk: int, world: World
    ) -> float:
        """Add the gradient of one step; returns the loss. parts: the micro-batches of this process.

        chunk: images with a graph in memory at a time, where a loss needs two passes.
        """
        del chunk, world
        values = [
            forward_backward(inputs, labels, None, 1 / len(parts), last=number == len(parts) - 1)
            for number, (inputs, labels) in enumerate(parts)
        ]
        return sum(values) / len(values)

    def describe(self, inputs: Inputs) -> Tensor:
        """Inputs of one batch to B D, not normalised; pictures of different shapes go one by one."""
        if isinstance(inputs, list):
            return torch.cat([self.describe(image) for image in inputs])
        return self.network.describe_features(inputs) if self.on_maps else self.network.describe_raw(inputs)

    def forward(self, inputs: Inputs, labels: Tensor, gradient: Tensor | None = None) -> dict[str, Tensor]:
        """labels: B. gradient: B D of a loss that was computed elsewhere (the second of two passes)."""
        del gradient
        return {"loss": self.loss(self.describe(inputs), labels)}

    @property
    def has_classes(self) -> bool:
        return hasattr(self.loss, "cosines")

    def classify(self, descriptors: Tensor) -> Tensor:
        """The cosine with each class, B K, or what a plain classifier gives. descriptors: B D, not normalised."""
        cosines: Tensor = cast(Any, self.loss).cosines(descriptors)
        return cosines


class TupleObjective(Objective):
    """Tuples of a query, its positive and negatives.

    size: R, images of a tuple. factor: undoes the mean over micro-batches and processes for losses that are sums over
    the batch's tuples, as the field's contrastive loss is.
    """

    def __init__(self, network: Network, loss: nn.Module, *, size: int, factor: float, on_maps: bool = False) -> None:
        super().__init__(network, loss, on_maps=on_maps)
        self.size, self.factor = size, factor

    def forward(self, inputs: Inputs, labels: Tensor, gradient: Tensor | None = None) -> dict[str, Tensor]:
        del labels, gradient
        rows = F.normalize(self.describe(inputs), dim=-1)
        return {"loss": self.loss(rows.view(-1, self.size, rows.shape[-1])) * self.factor}
