"""ResNet with torchvision's parameter names, so that its ImageNet files load unchanged."""

from __future__ import annotations

from typing import ClassVar, cast

from torch import Tensor, nn
from torch.nn import functional as F

from tessera.errors import ConfigError
from tessera.models.backbones.base import Backbone, initialise_convolutions

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
BASIC_DEPTHS = (18, 34)

# Caffe's colour means in RGB order, for pictures in 0..1; the weights want values up to 255.
CAFFE_MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)
CAFFE_STD = (1 / 255, 1 / 255, 1 / 255)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions (ResNet-18 and 34)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, *, stride_first: bool, eps: float) -> None:
        super().__init__()
        del stride_first  # the stride of this block can sit on its first convolution only
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width, eps=eps)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, eps=eps)
        self.downsample = _shortcut(inputs, width, stride, eps)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1. The stride sits on the 3x3 (v1.5) or, with `stride_first`, on the first 1x1 (v1: Keras, Caffe)."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, *, stride_first: bool, eps: float) -> None:
        super().__init__()
        outputs = width * self.expansion
        first, second = (stride, 1) if stride_first else (1, stride)
        self.conv1 = nn.Conv2d(inputs, width, 1, first, bias=False)
        self.bn1 = nn.BatchNorm2d(width, eps=eps)
        self.conv2 = nn.Conv2d(width, width, 3, second, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, eps=eps)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs, eps=eps)
        self.downsample = _shortcut(inputs, outputs, stride, eps)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(Backbone):
    """ResNet-18, 34, 50, 101 or 152.

    stage: 5 gives the conv5 map at stride 32; 4 leaves the last block out ("R50-" of HOW): conv4 at stride 16.
    v1: the stride on the first 1x1, batch norm with eps 1e-3 and pictures in 0..255 less their mean, as the Keras
        weights need. Their convolution biases are folded into the batch norms when the file is converted.
    """

    classifier_prefixes: ClassVar[tuple[str, ...]] = ("fc.",)

    def __init__(self, depth: int, *, stage: int = 5, v1: bool = False) -> None:
        super().__init__()
        if depth not in BLOCKS:
            raise ConfigError(f"there is no ResNet-{depth}. Known depths: {', '.join(map(str, BLOCKS))}.")
        if stage not in (4, 5):
            raise ConfigError(f"a ResNet ends at stage 4 or 5, not {stage}.")
        self.depth, self.stage = depth, stage
        if v1:
            self.mean, self.std = CAFFE_MEAN, CAFFE_STD
        eps = 1e-3 if v1 else 1e-5
        block: type[BasicBlock | Bottleneck] = BasicBlock if depth in BASIC_DEPTHS else Bottleneck
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64, eps=eps)
        inputs, stages = 64, []
        for index, count in enumerate(BLOCKS[depth][: stage - 1]):
            width, stride = 64 << index, 1 if index == 0 else 2
            layers: list[nn.Module] = []
            for position in range(count):
                layers.append(block(inputs, width, stride if position == 0 else 1, stride_first=v1, eps=eps))
                inputs = width * block.expansion
            stages.append(nn.Sequential(*layers))
        self.layer1, self.layer2, self.layer3 = stages[:3]
        if stage == 5:
            self.layer4 = stages[3]
        self.channels = inputs
        self.stride = 32 if stage == 5 else 16
        self.stage_channels = (inputs // 2, inputs) if stage == 5 else (inputs, 0)
        initialise_convolutions(self)

    def conv4(self, images: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(images)))
        x = F.max_pool2d(x, 3, 2, 1)
        return cast(Tensor, self.layer3(self.layer2(self.layer1(x))))

    def conv5(self, conv4: Tensor) -> Tensor:
        if self.stage != 5:
            raise ConfigError("this ResNet ends at conv4: it has no conv5 map.")
        return cast(Tensor, self.layer4(conv4))

    def forward(self, images: Tensor) -> Tensor:
        return self.conv5(self.conv4(images)) if self.stage == 5 else self.conv4(images)

    def load_weights(self, state: dict[str, Tensor], source: str) -> None:  # type: ignore[override]
        if self.stage == 4:
            state = {key: value for key, value in state.items() if not key.startswith("layer4.")}
        super().load_weights(state, source)


def _shortcut(inputs: int, outputs: int, stride: int, eps: float) -> nn.Sequential | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs, eps=eps))
