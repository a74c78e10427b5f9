"""SOLAR: second-order attention between and after the last stages, then GeM and whitening (Ng 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from torch import Tensor
from torch.nn import functional

from tessera.models.backbones import Backbone, build_backbone
from tessera.models.compared.pooled import PooledConfig, PooledHead, build_whitening
from tessera.models.global_network import EPS, GlobalNetwork, Head
from tessera.models.network import check_size
from tessera.models.parts.lfsa import SecondOrderAttention
from tessera.models.parts.pooling import pool_gem


@dataclass(frozen=True)
class SolarConfig:
    """soa4, soa5: the attention after conv4 (a quarter of the width inside) and after conv5 (a half). dim: as GeM's."""

    backbone: str = "resnet101"
    dim: int | None = 2048
    soa4: bool = True
    soa5: bool = True


@dataclass(frozen=True)
class SolarReleasedConfig:
    """The re-implementation that the paper compares with has attention after the last stage only and p fixed at 3."""

    backbone: str = "resnet50"
    dim: int = 2048


class SolarNetwork(GlobalNetwork):
    """The attention after conv4 sits inside the backbone's way, so the network itself calls the stages."""

    def __init__(self, backbone: Backbone, config: SolarConfig) -> None:
        head = PooledHead(backbone.channels, PooledConfig(pooling="gem", dim=config.dim))
        super().__init__(backbone, head)
        conv4, conv5 = backbone.stage_channels
        self.soa4 = SecondOrderAttention(conv4, reduction=4) if config.soa4 else None
        self.soa5 = SecondOrderAttention(conv5, reduction=2) if config.soa5 else None

    def attend(self, images: Tensor) -> Tensor:
        """images: B 3 H W. Returns the attended map B C H W."""
        maps = self.backbone.conv4(images)
        if self.soa4 is not None:
            maps = self.soa4(maps)
        maps = self.backbone.conv5(maps)
        return maps if self.soa5 is None else cast(Tensor, self.soa5(maps))

    def describe_raw(self, images: Tensor) -> Tensor:
        check_size(images, self.backbone.stride)
        return self.head.describe(self.attend(images))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"descriptor": functional.normalize(self.describe_raw(images), dim=-1, eps=EPS)}


class SecondOrderPooling(SecondOrderAttention):
    """Attention and GeM with p = 3 in one module, whose keys are the attention's. B C H W to B C."""

    def forward(self, features: Tensor) -> Tensor:
        return pool_gem(super().forward(features), 3.0)


class SolarReleasedHead(Head):
    """Keys `pooling.*` and `whiten.*`, as in the re-implementation's files."""

    def __init__(self, inputs: int, config: SolarReleasedConfig) -> None:
        super().__init__()
        self.dim = config.dim
        self.pooling = SecondOrderPooling(inputs)
        self.whiten = build_whitening(inputs, config.dim, convolution=True)

    def describe(self, features: Tensor) -> Tensor:
        return cast(Tensor, self.whiten(functional.normalize(self.pooling(features), dim=-1, eps=EPS)))


def build_solar(config: SolarConfig) -> SolarNetwork:
    return SolarNetwork(build_backbone(config.backbone), config)


def build_solar_released(config: SolarReleasedConfig) -> GlobalNetwork:
    backbone = build_backbone(config.backbone)
    return GlobalNetwork(backbone, SolarReleasedHead(backbone.channels, config))
