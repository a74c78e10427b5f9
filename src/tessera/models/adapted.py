"""The paper's head over somebody else's network: tokens of its map, fitted in closed form to one's own photos."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tessera.errors import ConfigError
from tessera.models.backbones import Backbone, build_backbone
from tessera.models.global_network import GlobalNetwork
from tessera.models.token import TokenConfig, TokenHead


@dataclass(frozen=True)
class AdaptedConfig:
    """base: the architecture whose backbone is used, {"model", "config"}; without it `backbone` names one.

    power: of each token's mean, as TokenConfig has it: above 1 for maps that are never negative.
    """

    backbone: str = "dinov2-s14"
    base: dict[str, Any] | None = None
    num_tokens: int = 4
    power: float = 1.0
    dim: int = 384


def build_adapted(config: AdaptedConfig) -> GlobalNetwork:
    backbone = build_backbone(config.backbone) if config.base is None else _backbone_of(config.base)
    return GlobalNetwork(backbone, TokenHead(backbone.channels, head_config(config)))


def head_config(config: AdaptedConfig) -> TokenConfig:
    """No layer that would need training: a tokenizer, and one matrix that all tokens share."""
    return TokenConfig(
        backbone=config.backbone,
        channels=None,
        lfsa=False,
        power=config.power,
        num_tokens=config.num_tokens,
        blocks=0,
        dim=config.dim,
        bias=True,
        shared=True,
    )


def _backbone_of(base: dict[str, Any]) -> Backbone:
    from tessera.models.model_registry import MODELS  # which names this module

    if set(base) != {"model", "config"}:
        raise ConfigError(f"base must have the keys model and config, not {', '.join(base) or 'none'}.")
    entry = MODELS[str(base["model"])]
    return entry.build(entry.resolve(**base["config"])).backbone
