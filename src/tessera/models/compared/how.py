"""HOW: local features whose strength is the norm of the raw map, trained through their sum (Tolias 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional

from tessera.errors import ConfigError
from tessera.models.backbones import Backbone, build_backbone
from tessera.models.local_network import LocalNetwork
from tessera.models.parts.whitening import HOW_FLOOR, fit_pca, load_into_layer

STRENGTH_EPS = 1e-10


@dataclass(frozen=True)
class HowConfig:
    """dim: of the reduced features; null keeps the map's channels. smoothing: side of the averaging window, odd.

    "R50-" is the backbone `resnet50-conv4`.
    """

    backbone: str = "resnet50-conv4"
    dim: int | None = 128
    smoothing: int = 3

    def __post_init__(self) -> None:
        if self.smoothing < 1 or self.smoothing % 2 == 0:
            raise ConfigError(f"smoothing must be odd and positive, not {self.smoothing}.")


def measure_strength(maps: Tensor) -> Tensor:
    """The L2 norm over channels, of the raw map: smoothed or reduced features would blur it. B C H W to B 1 H W."""
    return (maps.square().sum(dim=1, keepdim=True) + STRENGTH_EPS).sqrt()


def smooth(maps: Tensor, side: int = 3) -> Tensor:
    """The average over a side x side window; at the border only what is there counts. B C H W to B C H W."""
    return functional.avg_pool2d(maps, side, stride=1, padding=side // 2, count_include_pad=False)


class HowNetwork(LocalNetwork):
    """Key `dim_reduction.*` as in HOW's files. Features are neither normalised nor weighted by their strength."""

    def __init__(self, backbone: Backbone, config: HowConfig) -> None:
        super().__init__(backbone)
        self.config = config
        self.dim = backbone.channels if config.dim is None else config.dim
        self.dim_reduction = None if config.dim is None else nn.Conv2d(backbone.channels, config.dim, 1)

    def local_map(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.backbone(images))

    def describe_map(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        smoothed = smooth(maps, self.config.smoothing)
        return smoothed if self.dim_reduction is None else self.dim_reduction(smoothed), measure_strength(maps)

    def describe_raw(self, images: Tensor) -> Tensor:
        """The strength-weighted sum of the features, B D: what the contrastive loss trains; sum it over scales."""
        features, strengths = self.describe_map(self.local_map(images))
        return (features * strengths).sum(dim=(-2, -1))

    def initialise_reduction(self, local_features: ArrayLike) -> None:
        """Set the reduction to the whitened leading components of local features (N C, smoothed, unreduced).

        The layer is frozen in HOW's training: it is fitted once, to the start's features.
        """
        layer = self.dim_reduction
        if layer is None:
            raise ConfigError("this network has no reduction to initialise: its dim is null.")
        load_into_layer(layer, fit_pca(local_features, floor=HOW_FLOOR))


def build_how(config: HowConfig) -> HowNetwork:
    return HowNetwork(build_backbone(config.backbone), config)
