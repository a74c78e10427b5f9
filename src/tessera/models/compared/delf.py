"""DELF's and DELG's local features: a learnt attention, and an autoencoder that makes them small (Noh 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

from torch import Tensor, nn
from torch.nn import functional

from tessera.models.backbones import Backbone, build_backbone
from tessera.models.local_network import LocalNetwork


@dataclass(frozen=True)
class DelfConfig:
    """The map is conv4's (stride 16). local_dim: of the stored features. hidden: width of the attention's layer."""

    backbone: str = "resnet50-conv4"
    local_dim: int = 128
    hidden: int = 512


class LocalMaps(NamedTuple):
    """What the local losses need: features B C H W without gradient, their code B D H W, what the code gives back
    B C H W, and strengths B 1 H W."""

    features: Tensor
    code: Tensor
    restored: Tensor
    strengths: Tensor


class Attention(nn.Module):
    """Two 1x1 convolutions and softplus: how much a position matters to the class. B C H W to B 1 H W, positive."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, hidden, 1)
        self.bn1 = nn.BatchNorm2d(hidden)
        self.conv2 = nn.Conv2d(hidden, 1, 1)

    def forward(self, maps: Tensor) -> Tensor:
        return functional.softplus(self.conv2(functional.relu(self.bn1(self.conv1(maps)))))


class LocalBranch(nn.Module):
    """Attention and autoencoder over a map whose gradient is cut: the branch must not bend the global descriptor."""

    def __init__(self, channels: int, dim: int = 128, hidden: int = 512) -> None:
        super().__init__()
        self.channels = channels
        self.dim = dim
        self.attention = Attention(channels, hidden)
        self.encoder = nn.Conv2d(channels, dim, 1)
        self.decoder = nn.Conv2d(dim, channels, 1)

    def forward(self, maps: Tensor) -> LocalMaps:
        """maps: B C H W."""
        features = maps.detach()
        code = self.encoder(features)
        return LocalMaps(features, code, functional.relu(self.decoder(code)), self.attention(features))

    def pool(self, local: LocalMaps) -> Tensor:
        """What the local classifier sees, B C: unit restored features, averaged by their strengths."""
        return (functional.normalize(local.restored, dim=1) * local.strengths).mean(dim=(-2, -1))

    def describe(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """maps: B C H W. Returns unit codes B D H W and strengths B 1 H W; nothing is decoded."""
        return functional.normalize(self.encoder(maps), dim=1), cast(Tensor, self.attention(maps))


class DelfNetwork(LocalNetwork):
    """conv4 and the branch. A trained DELG's weights load here, less its head and its last stage."""

    auxiliary = ("backbone.",)  # the branch's gradient is cut before it

    def __init__(self, backbone: Backbone, config: DelfConfig) -> None:
        super().__init__(backbone)
        self.dim = config.local_dim
        self.local = LocalBranch(backbone.channels, config.local_dim, config.hidden)

    @property
    def pooled_dim(self) -> int:
        """C of what the classifier sees."""
        return self.local.channels

    def local_map(self, images: Tensor) -> Tensor:
        return cast(Tensor, self.backbone(images))

    def describe_map(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        return self.local.describe(maps)

    def describe_local(self, images: Tensor) -> tuple[Tensor, LocalMaps]:
        """For training: what the classifier sees, B C, and the maps for the reconstruction loss."""
        local = self.local(self.local_map(images))
        return self.local.pool(local), local

    def describe_raw(self, images: Tensor) -> Tensor:
        """What the classifier sees, B C: the network trains with any loss over labels."""
        return self.describe_local(images)[0]


def build_delf(config: DelfConfig) -> DelfNetwork:
    return DelfNetwork(build_backbone(config.backbone), config)
