"""One row of the model registry: what a network is, and where the code is that builds it. Loads no torch."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tessera.config import from_mapping, to_mapping
from tessera.errors import MissingExtraError

if TYPE_CHECKING:
    from tessera.models.network import Network


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

    def build(self, config: Any) -> Network:
        """The network of a resolved configuration, with random weights."""
        network: Network = _import(self.target)(config)
        network.architecture = {"model": self.name, "config": to_mapping(config)}
        return network


def _import(target: str) -> Any:
    module, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if error.name in ("torch", "safetensors"):
            raise MissingExtraError("building a network", "train") from error
        raise
