"""Backbones by name: `build_backbone("resnet50", weights="imagenet")`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from tessera.errors import CheckpointError
from tessera.models.backbones.base import Backbone, check_keys
from tessera.models.backbones.convnext import ConvNeXt
from tessera.models.backbones.imagenet import imagenet_path
from tessera.models.backbones.mobile import EfficientNetLite, EfficientNetLiteLevels, MobileNetV2
from tessera.models.backbones.resnet import ResNet
from tessera.models.backbones.timm import TimmBackbone
from tessera.models.backbones.tiny import TinyBackbone
from tessera.models.backbones.vit import VisionTransformer
from tessera.models.shapes import SHAPES, ConvNeXtShape, Shape
from tessera.registry import Registry

__all__ = [
    "BACKBONES",
    "Backbone",
    "build_backbone",
    "build_shape",
    "check_keys",
    "load_backbone_weights",
    "read_state",
]


def build_shape(shape: Shape) -> Backbone:
    """A foundation model of any shape, its weights random."""
    return ConvNeXt(shape) if isinstance(shape, ConvNeXtShape) else VisionTransformer(shape)


BACKBONES: Registry[Callable[[], Backbone]] = Registry("backbone")
for _depth in (18, 34, 50, 101, 152):
    BACKBONES.add(f"resnet{_depth}", partial(ResNet, _depth))
    BACKBONES.add(f"resnet{_depth}-conv4", partial(ResNet, _depth, stage=4))  # without the last block: stride 16
BACKBONES.add("resnet50-v1", partial(ResNet, 50, v1=True))
for _variant in (0, 1, 2):
    BACKBONES.add(f"efficientnet-lite{_variant}", partial(EfficientNetLite, _variant))
    BACKBONES.add(f"efficientnet-lite{_variant}-levels", partial(EfficientNetLiteLevels, _variant))
BACKBONES.add("mobilenet-v2", MobileNetV2)
BACKBONES.add("tiny", TinyBackbone)
for _name, _shape in SHAPES.items():
    BACKBONES.add(_name, partial(build_shape, _shape))


def build_backbone(name: str, weights: str | Path | None = None) -> Backbone:
    """A backbone by name; `timm:NAME` takes any model of timm.

    weights: None for random ones, "imagenet", or the path of a state dict (.pth or .safetensors).
    """
    if name.startswith("timm:"):
        pretrained = weights == "imagenet"
        backbone: Backbone = TimmBackbone(name.removeprefix("timm:"), pretrained=pretrained)
        if pretrained:
            return backbone
    else:
        backbone = BACKBONES[name]()
    if weights is not None:
        load_backbone_weights(backbone, name, weights)
    return backbone


def load_backbone_weights(backbone: Backbone, name: str, weights: str | Path) -> None:
    """Load "imagenet" or a file into a backbone that was built under `name`."""
    path = imagenet_path(name) if weights == "imagenet" else Path(weights)
    backbone.load_weights(read_state(path), str(path))


def read_state(path: Path) -> dict[str, Tensor]:
    """A flat state dict from a .safetensors file or, with `weights_only`, from a pickle of torch."""
    if not path.is_file():
        raise CheckpointError(f"{path} is not a file: no weights to load.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return cast(dict[str, Tensor], load_file(path))
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or malicious file may raise anything; nothing of it has been run
        raise CheckpointError(f"{path} cannot be read as weights: {_first_line(error)}") from error
    if not isinstance(loaded, Mapping) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise CheckpointError(f"{path} holds no flat dictionary of tensors.")
    return dict(loaded)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
