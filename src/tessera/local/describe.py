"""From an image's local features to one descriptor, as a system says: VLAD or tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tessera.errors import ConfigError
from tessera.local.features import LocalFeatures
from tessera.local.system import System
from tessera.local.vlad import describe_vlad

Describe = Callable[[LocalFeatures], npt.NDArray[np.float32]]


def open_aggregator(system: System) -> tuple[Describe, int]:
    """What describes an image's features, and D. An image without features has a descriptor of zeros."""
    config = system.config
    if config.kind == "vlad":
        codebook = system.codebook

        def describe(features: LocalFeatures) -> npt.NDArray[np.float32]:
            return describe_vlad(codebook, features.descriptors, intra=config.intra, power=config.power)

        return describe, codebook.size * codebook.dim
    if config.kind == "tokens":
        from tessera.local.tokens import load_tokens

        network = load_tokens(system.folder / config.tokens, system.extractor)
        return network.describe_features, network.dim
    raise ConfigError(f"the system {system.name} is of kind {config.kind}, which gives no descriptor.")
