"""DELG: a global descriptor from conv5 and local features from conv4 of one backbone (Cao 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

from torch import Tensor, nn
from torch.nn import functional

from tessera.models.backbones import Backbone, build_backbone
from tessera.models.compared.delf import LocalBranch, LocalMaps
from tessera.models.compared.pooled import PooledConfig, PooledHead, build_whitening
from tessera.models.global_network import EPS, GlobalNetwork, Head
from tessera.models.network import check_size
from tessera.models.parts.pooling import pool_gem


@dataclass(frozen=True)
class DelgConfig:
    """dim: of the global descriptor. local_dim, hidden: see DelfConfig."""

    backbone: str = "resnet50"
    dim: int = 2048
    local_dim: int = 128
    hidden: int = 512


@dataclass(frozen=True)
class DelgReleasedConfig:
    backbone: str = "resnet50"
    dim: int = 2048
    local_dim: int = 128


class Joint(NamedTuple):
    """For joint training: the global `raw` B D, what the local classifier sees B C, and the maps of the local losses
    (None where the branch has no autoencoder)."""

    raw: Tensor
    pooled: Tensor
    local: LocalMaps | None


class JointNetwork(GlobalNetwork):
    """A global network with a local branch; `describe_joint` gives what both learn from in one pass.

    pooled_dim: C of what the local classifier sees.
    """

    auxiliary = ("local.",)
    pooled_dim: int

    def describe_joint(self, images: Tensor) -> Joint:
        """images: B 3 H W, normalised."""
        raise NotImplementedError


class DelgNetwork(JointNetwork):
    """The global descriptor of DELG.

    GeM with p = 3 and a whitening layer on the pooled vector as it is (the paper's eq. 1). The graph of a bundle has no
    local branch; `delg-local-...` is that branch by itself.
    """

    def __init__(self, backbone: Backbone, config: DelgConfig) -> None:
        pooled = PooledConfig(pooling="gem", dim=config.dim, learnable_p=False, normalise=False)
        super().__init__(backbone, PooledHead(backbone.channels, pooled))
        self.local = LocalBranch(backbone.stage_channels[0], config.local_dim, config.hidden)
        self.pooled_dim = self.local.channels

    def describe_joint(self, images: Tensor) -> Joint:
        check_size(images, self.backbone.stride)
        conv4, conv5 = self.backbone.forward_stages(images)
        local = self.local(conv4)
        return Joint(self.head.describe(conv5), self.local.pool(local), local)


class DelgReleasedHead(Head):
    """GeM with p = 3, unit vectors into the whitening. Key `whiten.*`."""

    def __init__(self, inputs: int, config: DelgReleasedConfig) -> None:
        super().__init__()
        self.dim = config.dim
        self.whiten = build_whitening(inputs, config.dim, convolution=True)

    def describe(self, features: Tensor) -> Tensor:
        pooled = pool_gem(features, 3.0)
        return cast(Tensor, self.whiten(functional.normalize(pooled, dim=-1, eps=EPS)))


class ReleasedAttention(nn.Module):
    """One 1x1 convolution without a bias, and softplus. B C H W to B 1 H W."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.att_conv1 = nn.Conv2d(channels, 1, 1, bias=False)

    def forward(self, maps: Tensor) -> Tensor:
        return functional.softplus(self.att_conv1(maps))


class ReleasedLocalBranch(nn.Module):
    """Attention over reduced features, which are normalised along the width of the map, not over channels.

    The axis is a slip of the compared code, kept because its numbers are compared. Keys `attention.*`, `reduction.*`.
    """

    def __init__(self, channels: int, dim: int) -> None:
        super().__init__()
        self.attention = ReleasedAttention(channels)
        self.reduction = nn.Conv2d(channels, dim, 1)

    def pool(self, maps: Tensor) -> Tensor:
        """maps: B C H W. Returns what the local classifier sees, B D."""
        features = maps.detach()
        reduced = functional.normalize(self.reduction(features), dim=-1, eps=EPS)
        strengths: Tensor = self.attention(features)
        return (reduced * strengths).sum(dim=(-2, -1))


class DelgReleasedNetwork(JointNetwork):
    """The re-implementation that the paper compares with: no autoencoder, hence no reconstruction."""

    def __init__(self, backbone: Backbone, config: DelgReleasedConfig) -> None:
        super().__init__(backbone, DelgReleasedHead(backbone.channels, config))
        self.local = ReleasedLocalBranch(backbone.stage_channels[0], config.local_dim)
        self.pooled_dim = config.local_dim

    def describe_joint(self, images: Tensor) -> Joint:
        check_size(images, self.backbone.stride)
        conv4, conv5 = self.backbone.forward_stages(images)
        return Joint(self.head.describe(conv5), self.local.pool(conv4), None)


def build_delg(config: DelgConfig) -> DelgNetwork:
    return DelgNetwork(build_backbone(config.backbone), config)


def build_delg_released(config: DelgReleasedConfig) -> DelgReleasedNetwork:
    return DelgReleasedNetwork(build_backbone(config.backbone), config)
