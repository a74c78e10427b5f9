"""Networks that others trained on everything, as they are: their own vector of an image, a GeM of its patches, or both.

For tokens over their patches, fitted to one's own photos, see `adapted.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from tessera.models.backbones import Backbone, build_backbone, build_shape
from tessera.models.global_network import EPS, GlobalNetwork, Head
from tessera.models.network import check_size
from tessera.models.parts.pooling import EPS as GEM_EPS
from tessera.models.shapes import ConvNeXtShape, ViTShape

Summary = Literal["cls", "gem", "both"]


@dataclass(frozen=True)
class FoundationConfig:
    """shape: of a network that has no name here, as `tessera convert` reads it off a file; else `backbone` names it.

    pooling: `cls` is the network's own vector (the class token, or what stands in its place), `gem` the generalised
    mean of power p over its patches, `both` the two side by side, each of unit norm.
    """

    backbone: str = "dinov2-s14"
    shape: ViTShape | ConvNeXtShape | None = None
    pooling: Summary = "cls"
    p: float = 3.0


class SummaryHead(Head):
    """From a summary B C' and a map B C H W to a descriptor."""

    def __init__(self, backbone: Backbone, pooling: Summary, p: float) -> None:
        super().__init__()
        self.pooling, self.p = pooling, p
        summary, channels = backbone.summary_channels, backbone.channels
        self.dim = {"cls": summary, "gem": channels, "both": summary + channels}[pooling]

    def join(self, summary: Tensor, features: Tensor) -> Tensor:
        if self.pooling == "cls":
            return summary
        pooled = pool_signed_gem(features, self.p)
        if self.pooling == "gem":
            return pooled
        return torch.cat([F.normalize(summary, dim=-1, eps=EPS), F.normalize(pooled, dim=-1, eps=EPS)], dim=-1)


class FoundationNetwork(GlobalNetwork):
    """A backbone's summary and map, joined."""

    head: SummaryHead

    def describe_raw(self, images: Tensor) -> Tensor:
        check_size(images, self.backbone.stride)
        return self.head.join(*self.backbone.forward_summary(images))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"descriptor": F.normalize(self.describe_raw(images), dim=-1, eps=EPS)}


def pool_signed_gem(features: Tensor, p: float) -> Tensor:
    """Generalised mean of maps with signs: powers and root keep them. Without negatives it is GeM. B C H W to B C."""
    powers = features.abs().pow(p) * features.sign()
    means = powers.mean(dim=(-2, -1))
    return means.abs().clamp_min(GEM_EPS**p).pow(1 / p) * means.sign()


def build_foundation(config: FoundationConfig) -> GlobalNetwork:
    backbone = build_backbone(config.backbone) if config.shape is None else build_shape(config.shape)
    return FoundationNetwork(backbone, SummaryHead(backbone, config.pooling, config.p))
