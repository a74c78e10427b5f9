"""ArcFace: cross-entropy over classes whose true angle is made harder by a margin (paper, eq. 12 and 13)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from tessera.errors import ConfigError

# acos has an infinite slope at 1: a descriptor on its class vector would fill the network with NaN.
MAX_COSINE = 1 - 1e-6

Threshold = Literal["plain", "none"]


@dataclass(frozen=True)
class ArcFaceConfig:
    """scale: a number, or `sqrt_dim` as the released code has it (32 only at D = 1024).

    threshold: `plain` leaves the cosine alone once angle + margin passes pi, where the cosine would rise again, as the
    released code does; `none` is equation 13 to the letter.
    """

    margin_rad: float = 0.2
    scale: float | Literal["sqrt_dim"] = 32.0
    threshold: Threshold = "plain"

    def __post_init__(self) -> None:
        if not 0 <= self.margin_rad < math.pi:
            raise ConfigError(f"margin_rad must lie in [0, pi), not {self.margin_rad}.")
        if self.scale != "sqrt_dim" and self.scale <= 0:
            raise ConfigError(f"scale must be positive or 'sqrt_dim', not {self.scale}.")


def add_angular_margin(cosines: Tensor, labels: Tensor, margin_rad: float, threshold: Threshold = "plain") -> Tensor:
    """Move the true class's cosine `margin_rad` further away (eq. 13).

    cosines: B K, labels: B. Returns B K; only the true class's column of each row is changed.
    """
    target = cosines.gather(1, labels[:, None])  # B 1
    angle = torch.acos(target.clamp(-MAX_COSINE, MAX_COSINE))
    moved = torch.cos(angle + margin_rad)
    if threshold == "plain":
        moved = torch.where(angle <= math.pi - margin_rad, moved, target)
    return cosines.scatter(1, labels[:, None], moved)


class ArcFace(nn.Module):
    """The classifier and its loss. Computed in float32 at least, whatever autocast says: half has no 1 - 1e-6."""

    def __init__(self, config: ArcFaceConfig, *, dim: int, num_classes: int) -> None:
        super().__init__()
        self.config = config
        self.scale = math.sqrt(dim) if config.scale == "sqrt_dim" else float(config.scale)
        self.weight = nn.Parameter(torch.empty(num_classes, dim))  # K D
        nn.init.normal_(self.weight, std=0.01)

    def cosines(self, descriptors: Tensor) -> Tensor:
        """Cosine of each descriptor (B D, any length) and each class: B K."""
        wide = torch.promote_types(descriptors.dtype, torch.float32)
        with torch.autocast(descriptors.device.type, enabled=False):
            rows = functional.normalize(descriptors.to(wide), dim=-1)
            return functional.linear(rows, functional.normalize(self.weight.to(wide), dim=-1))

    def logits(self, descriptors: Tensor, labels: Tensor) -> Tensor:
        """descriptors: B D, labels: B. Returns B K, scaled and with the margin on the true class."""
        moved = add_angular_margin(self.cosines(descriptors), labels, self.config.margin_rad, self.config.threshold)
        return self.scale * moved

    def forward(self, descriptors: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of a batch (eq. 12); descriptors B D need no unit length, labels B are class indices."""
        return functional.cross_entropy(self.logits(descriptors, labels), labels)

    def extra_repr(self) -> str:
        classes, dim = self.weight.shape
        return f"dim={dim}, num_classes={classes}, scale={self.scale:g}, margin_rad={self.config.margin_rad:g}"
