"""Every network by name: what it is, its paper, and how to build it. Loads no torch until something is built."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.config import from_mapping, to_mapping
from tessera.errors import MissingExtraError
from tessera.registry import Registry

if TYPE_CHECKING:
    from tessera.models.network import GlobalNetwork

TOKEN_PAPER = "Wu et al., Learning Token-based Representation for Image Retrieval, AAAI 2022"


@dataclass(frozen=True)
class ModelEntry:
    """What a caller needs to know without building it.

    target: "module:function"; the function takes the configuration and gives the network.
    config_class: "module:class", a frozen dataclass with at least the field `backbone`.
    config: what this entry sets in it; everything else has the class's defaults.
    dim: of the descriptor with this configuration; num_tokens: L, 0 for networks without tokens.
    """

    name: str
    summary: str
    paper: str
    dim: int
    target: str
    config_class: str
    kind: str = "global"
    num_tokens: int = 0
    config: Mapping[str, Any] = field(default_factory=dict)

    def resolve(self, **overrides: Any) -> Any:
        """The full configuration: the class's defaults, then this entry's values, then the caller's."""
        return from_mapping(_import(self.config_class), {**self.config, **overrides})

    def build(self, config: Any) -> GlobalNetwork:
        """The network of a resolved configuration, with random weights."""
        network: GlobalNetwork = _import(self.target)(config)
        network.architecture = {"model": self.name, "config": to_mapping(config)}
        return network


def build_model(name: str, *, weights: str | Path | None = None, **overrides: Any) -> GlobalNetwork:
    """Build a registered network, any configuration key overridden: build_model("token-r50", num_tokens=6).

    weights: of the backbone only: None, "imagenet" or a path. They are no part of the architecture.
    """
    entry = MODELS[name]
    network = entry.build(entry.resolve(**overrides))
    if weights is not None:
        from tessera.models.backbones import load_backbone_weights

        load_backbone_weights(network.backbone, str(network.architecture["config"]["backbone"]), weights)
    return network


def _import(target: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name in ("torch", "safetensors"):
            raise MissingExtraError("building a network", "train") from error
        raise


MODELS: Registry[ModelEntry] = Registry("model")

_TOKEN_NETWORKS: tuple[ModelEntry, ...] = ()

# SPoC, MAC, CroW, R-MAC, GeM, NetVLAD, SOLAR, DELG: the rows of the paper's Table 1 and their bases.
_GLOBAL_SYSTEMS: tuple[ModelEntry, ...] = ()

for _entry in (*_TOKEN_NETWORKS, *_GLOBAL_SYSTEMS):
    MODELS.add(_entry.name, _entry)
