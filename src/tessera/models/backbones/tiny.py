"""A backbone of five small convolutions, for tests and for trying a recipe out in seconds."""

from __future__ import annotations

import itertools

from torch import Tensor, nn
from torch.nn import functional as F

from tessera.models.backbones.base import Backbone


class TinyBackbone(Backbone):
    """32 channels at stride 32, 24 at stride 16; every input side of one pixel or more gives a map."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 8, 12, 16, 24, 32)
        self.convs = nn.ModuleList(
            nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False) for inputs, outputs in itertools.pairwise(widths)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for width in widths[1:])
        self.channels, self.stride, self.stage_channels = 32, 32, (24, 32)

    def conv4(self, images: Tensor) -> Tensor:
        x = images
        for conv, norm in zip(self.convs[:-1], self.norms[:-1], strict=True):
            x = F.relu(norm(conv(x)))
        return x

    def conv5(self, conv4: Tensor) -> Tensor:
        return F.relu(self.norms[-1](self.convs[-1](conv4)))
