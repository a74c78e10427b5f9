"""ConvNeXt as DINOv3 distils it; parameter names are the original's."""

from __future__ import annotations

import itertools
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tessera.models.backbones.base import Backbone
from tessera.models.backbones.vit import PatchConv2d
from tessera.models.shapes import ConvNeXtShape


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of B C H W."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """A 7x7 convolution of each channel, then an MLP at each position."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps)
        self.pwconv1, self.pwconv2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        branch = self.pwconv2(F.gelu(self.pwconv1(branch))) * self.gamma
        return x + branch.permute(0, 3, 1, 2)


class ConvNeXt(Backbone):
    """Four stages at stride 4, 8, 16 and 32; the summary is the mean of the last map, normed."""

    def __init__(self, shape: ConvNeXtShape) -> None:
        super().__init__()
        widths, eps = shape.widths, shape.eps
        self.shape = shape
        self.channels, self.stride, self.stage_channels = widths[3], 32, (widths[2], widths[3])
        self.mean, self.std = shape.mean, shape.std
        stem = nn.Sequential(PatchConv2d(3, widths[0], 4), ChannelNorm(widths[0], eps))
        halves = [
            nn.Sequential(ChannelNorm(inputs, eps), PatchConv2d(inputs, outputs, 2))
            for inputs, outputs in itertools.pairwise(widths)
        ]
        self.downsample_layers = nn.ModuleList([stem, *halves])
        self.stages = nn.ModuleList(
            nn.Sequential(*(ConvNeXtBlock(width, eps) for _ in range(depth)))
            for width, depth in zip(widths, shape.depths, strict=True)
        )
        self.norm = nn.LayerNorm(widths[3], eps)

    def conv4(self, images: Tensor) -> Tensor:
        x = images
        for downsample, stage in zip(self.downsample_layers[:3], self.stages[:3], strict=True):
            x = stage(downsample(x))
        return x

    def _last(self, conv4: Tensor) -> Tensor:
        return cast(Tensor, self.stages[3](self.downsample_layers[3](conv4)))

    def conv5(self, conv4: Tensor) -> Tensor:
        return cast(Tensor, self.norm(self._last(conv4).permute(0, 2, 3, 1))).permute(0, 3, 1, 2)

    def forward_summary(self, images: Tensor) -> tuple[Tensor, Tensor]:
        last = self._last(self.conv4(images))
        features = self.norm(last.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.norm(last.mean(dim=(-2, -1))), features
