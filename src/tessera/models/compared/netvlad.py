"""NetVLAD: residuals to soft-assigned words, learnt end to end (Arandjelovic 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from tessera.models.backbones import build_backbone
from tessera.models.compared.released import Encoder
from tessera.models.global_network import GlobalNetwork, Head


@dataclass(frozen=True)
class NetVLADConfig:
    """channels: local features are reduced to so many before aggregation; 64 words of a ResNet's 2048 channels would
    need a projection of 268 million weights, so the reduction stands in for the VGG map of the original."""

    backbone: str = "resnet50"
    channels: int = 128
    clusters: int = 64
    dim: int = 2048


@dataclass(frozen=True)
class NetVLADReleasedConfig:
    """dim: of words and descriptor alike. The compared files have 1024; the paper's rows say 2048."""

    backbone: str = "resnet50"
    clusters: int = 4
    dim: int = 1024


def sum_residuals(claims: Tensor, features: Tensor, words: Tensor) -> Tensor:
    """The residuals of each word, weighted by its claims: the sum over s of a_ks (x_s - c_k).

    claims: B K S. features: B S C. words: K C. Returns B K C, without a B K S C tensor on the way.
    """
    return claims @ features - claims.sum(dim=-1, keepdim=True) * words


class NetVLADHead(Head):
    """Unit local features, soft assignment by a 1x1 convolution, normalisation by word, whitening."""

    def __init__(self, inputs: int, config: NetVLADConfig) -> None:
        super().__init__()
        self.dim = config.dim
        self.reduce = nn.Conv2d(inputs, config.channels, 1, bias=False)
        self.assign = nn.Conv2d(config.channels, config.clusters, 1)
        self.words = nn.Parameter(torch.empty(config.clusters, config.channels))  # K C
        self.whiten = nn.Linear(config.clusters * config.channels, config.dim)
        nn.init.normal_(self.words, std=config.channels**-0.5)

    def describe(self, features: Tensor) -> Tensor:
        local = functional.normalize(self.reduce(features), dim=1)
        claims = self.assign(local).flatten(2).softmax(dim=1)  # B K S
        vlad = sum_residuals(claims, local.flatten(2).transpose(1, 2), self.words)
        vlad = functional.normalize(vlad, dim=-1).flatten(1)  # B KC
        return cast(Tensor, self.whiten(functional.normalize(vlad, dim=-1)))

    @torch.no_grad()
    def initialise(self, local_features: Tensor, words: Tensor, sharpness: float = 100.0) -> None:
        """Start from k-means words, so that assignment begins close to the nearest word.

        local_features: N C, unit vectors after `reduce`, of which the two nearest words' similarities set alpha: their
        mean ratio of assignments becomes `sharpness`. words: K C.
        """
        similarities = local_features @ words.T  # N K
        best = similarities.topk(2, dim=-1).values
        alpha = torch.log(torch.tensor(sharpness)) / (best[:, 0] - best[:, 1]).mean().clamp_min(1e-6)
        self.words.copy_(words)
        self.assign.weight.copy_((alpha * words)[..., None, None])
        cast(Tensor, self.assign.bias).copy_(-0.5 * alpha * words.square().sum(dim=-1))


class NetVLADReleased(nn.Module):
    """The re-implementation's `vlad`: an encoder over reduced features, four words, raw residuals, linear and norm."""

    def __init__(self, inputs: int, config: NetVLADReleasedConfig) -> None:
        super().__init__()
        dim = config.dim
        self.centroids = nn.Parameter(torch.empty(1, dim, config.clusters))
        nn.init.normal_(self.centroids, std=dim**-0.5)
        self.encoder = Encoder(dim)
        self.conv = nn.Sequential(nn.Conv2d(inputs, dim, 1), nn.BatchNorm2d(dim))
        self.proj = nn.Sequential(nn.Linear(config.clusters * dim, dim), nn.BatchNorm1d(dim))

    def forward(self, features: Tensor) -> Tensor:
        """B C H W to B D."""
        local = self.encoder(self.conv(features).flatten(2).transpose(1, 2))  # B S C
        claims = (local @ self.centroids[0]).softmax(dim=-1).transpose(1, 2)  # B K S
        vlad = sum_residuals(claims, local, self.centroids[0].T)
        return cast(Tensor, self.proj(vlad.flatten(1)))


class NetVLADReleasedHead(Head):
    """Keys `vlad.*`."""

    def __init__(self, inputs: int, config: NetVLADReleasedConfig) -> None:
        super().__init__()
        self.dim = config.dim
        self.vlad = NetVLADReleased(inputs, config)

    def describe(self, features: Tensor) -> Tensor:
        return cast(Tensor, self.vlad(features))


def build_netvlad(config: NetVLADConfig) -> GlobalNetwork:
    backbone = build_backbone(config.backbone)
    return GlobalNetwork(backbone, NetVLADHead(backbone.channels, config))


def build_netvlad_released(config: NetVLADReleasedConfig) -> GlobalNetwork:
    backbone = build_backbone(config.backbone)
    return GlobalNetwork(backbone, NetVLADReleasedHead(backbone.channels, config))
