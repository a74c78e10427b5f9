"""Networks that pool a map and whiten the result: SPoC, MAC, CroW, R-MAC, GeM and GeM-AP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from torch import Tensor, nn

from tessera.errors import ConfigError
from tessera.models.backbones import build_backbone
from tessera.models.compared.rmac import RMAC, Rpool
from tessera.models.global_network import GlobalNetwork, Head
from tessera.models.parts.pooling import MAC, CroW, GeM, Linear1x1, SPoC, normalise

Pooling = Literal["spoc", "mac", "crow", "gem", "rmac"]


@dataclass(frozen=True)
class PooledConfig:
    """dim: D of the whitening layer; null leaves the layer out, D is then the backbone's C.

    normalise: whether the pooled vector is made a unit vector before the layer, which is then a whitening of unit
    vectors; GeM-AP and the re-implemented R-MAC feed it as it is. whitening: where the layer sits: after the pooling,
    on each of R-MAC's regions, as its paper has it (any pooling but CroW can be regional), or one on each. local: a
    layer on each position before the pooling (cirtorch). exponents: of GeM, one for all channels or one each.
    convolution: keep the layer as a 1x1 convolution, as the re-implemented files do.
    """

    backbone: str = "resnet50"
    pooling: Pooling = "gem"
    dim: int | None = 2048
    normalise: bool = True
    whitening: Literal["global", "regional", "both"] = "global"
    local: bool = False
    p: float = 3.0
    learnable_p: bool = True
    exponents: Literal["shared", "channels"] = "shared"
    levels: int = 3
    convolution: bool = False


class PooledHead(Head):
    """Pool, normalise, whiten. Keys: `pool.p`, `whiten.*` and `lwhiten.*`, as the field's own files have them."""

    def __init__(self, inputs: int, config: PooledConfig) -> None:
        super().__init__()
        regional = config.whitening != "global"
        if regional and (config.pooling == "crow" or config.dim is None):
            raise ConfigError("regional whitening needs a dim, and a pooling that is not 'crow'.")
        self.dim = inputs if config.dim is None else config.dim
        self.normalise = config.normalise and config.dim is not None and config.whitening != "regional"
        self.lwhiten = nn.Linear(inputs, inputs) if config.local else None
        self.pool = _build_pooling(inputs, config)
        self.whiten = None
        if config.dim is not None and config.whitening != "regional":
            pooled = config.dim if regional else inputs
            self.whiten = build_whitening(pooled, config.dim, convolution=config.convolution)

    def pool_map(self, features: Tensor) -> Tensor:
        """B C H W to B C: what the whitening layer sees, and what its initial whitening is fitted to."""
        if self.lwhiten is not None:
            features = self.lwhiten(features.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        pooled = cast(Tensor, self.pool(features))
        return normalise(pooled) if self.normalise else pooled

    def describe(self, features: Tensor) -> Tensor:
        pooled = self.pool_map(features)
        return pooled if self.whiten is None else cast(Tensor, self.whiten(pooled))


def build_whitening(inputs: int, dim: int, *, convolution: bool = False) -> nn.Linear | Linear1x1:
    return Linear1x1(inputs, dim) if convolution else nn.Linear(inputs, dim)


def _build_pooling(inputs: int, config: PooledConfig) -> nn.Module:
    regional = config.whitening != "global"
    if config.pooling == "crow":
        return CroW()
    if config.pooling == "rmac" and not regional:
        return RMAC(config.levels)
    pool: MAC | SPoC | GeM
    if config.pooling == "gem":
        exponents = inputs if config.exponents == "channels" else 1
        pool = GeM(config.p, exponents=exponents, learnable=config.learnable_p)
    else:
        pool = SPoC() if config.pooling == "spoc" else MAC()
    if not regional or config.dim is None:
        return pool
    return Rpool(pool, build_whitening(inputs, config.dim, convolution=config.convolution), config.levels)


def build_pooled(config: PooledConfig) -> GlobalNetwork:
    backbone = build_backbone(config.backbone)
    return GlobalNetwork(backbone, PooledHead(backbone.channels, config))
