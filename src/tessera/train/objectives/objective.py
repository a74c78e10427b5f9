"""What is minimised: a network and its loss as one module, so that DDP wraps both and a checkpoint holds both."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tessera.train.batches.inputs import Inputs


class Objective(nn.Module):
    """Un-normalised descriptors and labels into a loss with a classifier (ArcFace).

    network: with `describe_raw`, `backbone` and `head`. on_maps: inputs are the backbone's maps (frozen mode).
    """

    def __init__(self, network: Any, loss: nn.Module, *, on_maps: bool = False) -> None:
        super().__init__()
        self.network = network
        self.loss = loss
        self.on_maps = on_maps
        if on_maps:
            network.backbone.requires_grad_(False)

    def describe(self, inputs: Inputs) -> Tensor:
        """Inputs of one batch to B D, not normalised; pictures of different shapes go one by one."""
        if isinstance(inputs, list):
            return torch.cat([self.describe(image) for image in inputs])
        described: Tensor = self.network.head.describe(inputs) if self.on_maps else self.network.describe_raw(inputs)
        return described

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

    def __init__(self, network: Any, loss: nn.Module, *, size: int, factor: float, on_maps: bool = False) -> None:
        super().__init__(network, loss, on_maps=on_maps)
        self.size, self.factor = size, factor

    def forward(self, inputs: Inputs, labels: Tensor, gradient: Tensor | None = None) -> dict[str, Tensor]:
        del labels, gradient
        rows = F.normalize(self.describe(inputs), dim=-1)
        return {"loss": self.loss(rows.view(-1, self.size, rows.shape[-1])) * self.factor}


class ListObjective(Objective):
    """A loss over a batch that does not fit into memory (GeM-AP), in two passes.

    The first gives all descriptors without a graph, and the loss its gradient at each; the second runs chunk by chunk
    with a graph and takes that gradient further down. Batch norm must be frozen: a chunk is not the batch.
    """

    def forward(self, inputs: Inputs, labels: Tensor, gradient: Tensor | None = None) -> dict[str, Tensor]:
        descriptors = self.describe(inputs)
        if gradient is None:
            return {"loss": self.loss(descriptors, labels)}
        return {"loss": (descriptors * gradient).sum()}
