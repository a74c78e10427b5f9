"""Local feature self-attention: SOLAR's second-order block, which the paper says it follows."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn


class SecondOrderAttention(nn.Module):
    """Every position looks at every other; the result is added to the map (Ng et al. 2020, eq. 4 and 5).

    f and g (queries and keys) have batch norm and ReLU, h and v are bare. `v` starts at zero, so a new block changes
    nothing. The mid width is C / reduction: 2 after the last block of a ResNet, 4 after the one before.
    """

    def __init__(self, channels: int, reduction: int = 2) -> None:
        super().__init__()
        middle = channels // reduction
        self.scale = float(middle**-0.5)
        self.f = nn.Sequential(nn.Conv2d(channels, middle, 1), nn.BatchNorm2d(middle), nn.ReLU())
        self.g = nn.Sequential(nn.Conv2d(channels, middle, 1), nn.BatchNorm2d(middle), nn.ReLU())
        self.h = nn.Conv2d(channels, middle, 1)
        self.v = nn.Conv2d(middle, channels, 1)
        nn.init.zeros_(self.v.weight)
        nn.init.zeros_(cast(Tensor, self.v.bias))

    def attend(self, features: Tensor) -> Tensor:
        """Where each position looks: B S S, rows summing to one."""
        queries = self.f(features).flatten(2).transpose(1, 2)  # B S C'
        keys = self.g(features).flatten(2)  # B C' S
        return cast(Tensor, ((queries @ keys) * self.scale).softmax(dim=-1))

    def forward(self, features: Tensor) -> Tensor:
        """features: B C H W. Returns B C H W."""
        weights = self.attend(features)
        values = self.h(features).flatten(2)  # B C' S
        gathered = (values @ weights.transpose(1, 2)).view(features.shape[0], -1, *features.shape[2:])
        return features + cast(Tensor, self.v(gathered))
