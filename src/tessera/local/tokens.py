"""Tokens over any set of local features: the paper's future work, as a system of its own.

The same tokenizer and refinement as over a map, but an image brings as many features as it has. Sets are padded to a
batch, and a mask keeps the padding out: it claims no token and no token looks at it, so padding changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tessera.config import from_mapping, to_mapping
from tessera.errors import CheckpointError, ConfigError, ModelError
from tessera.local.features import LocalExtractor, LocalFeatures
from tessera.local.weights import load_strictly
from tessera.models.parts.token_refinement import RefinementBlock
from tessera.models.parts.tokenizers import AttentionTokenizer, claim_positions, pool_tokens
from tessera.storage import atomic_path, parse_json


@dataclass(frozen=True)
class SetTokensConfig:
    """features: D of a local feature. channels: C of the tokens. hidden: width of the layer that lifts features to C.

    normalise: bring features to unit length first (HOW's are not). extractor: fingerprint of what the network was
    trained on; others are refused.
    """

    features: int = 128
    channels: int = 256
    num_tokens: int = 4
    blocks: int = 2
    heads: int = 8
    dim: int = 512
    hidden: int = 512
    dropout: float = 0.1
    normalise: bool = True
    extractor: str = ""

    def __post_init__(self) -> None:
        if self.features < 1 or self.num_tokens < 1 or self.blocks < 0 or self.dim < 1:
            raise ConfigError(f"tokens need features, tokens and a dimension: {self}")


class SetTokens(nn.Module):
    """B N features with a mask to one descriptor an image."""

    def __init__(self, config: SetTokensConfig) -> None:
        super().__init__()
        self.config = config
        self.dim = config.dim
        self.lift = nn.Sequential(
            nn.Linear(config.features, config.hidden),
            nn.GELU(),
            nn.Linear(config.hidden, config.channels),
            nn.LayerNorm(config.channels),
        )
        self.tokenizer = AttentionTokenizer(config.channels, config.num_tokens)
        # The paper's start of 0.02 leaves all tokens alike for as long as features are few: let them differ.
        nn.init.normal_(self.tokenizer.weight, std=config.channels**-0.5)
        self.blocks = nn.ModuleList(
            RefinementBlock(config.channels, config.num_tokens, heads=config.heads, dropout=config.dropout)
            for _ in range(config.blocks)
        )
        self.projection = nn.Linear(config.num_tokens * config.channels, config.dim)

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        """features: B N D; mask: B N, True where there is one. Returns B dim, not normalised.

        An image without any feature sees one feature of zeros: it gets some descriptor, the same for all such images.
        """
        empty = ~mask.any(dim=1)
        features = features.masked_fill(~mask[:, :, None], 0.0)
        mask = mask.clone()
        mask[empty, 0] = True
        if self.config.normalise:
            features = F.normalize(features, dim=-1)
        context = self.lift(features)  # B N C
        claims = claim_positions(context, self.tokenizer.weight) * mask[:, None]  # B L N
        tokens = pool_tokens(claims, context)
        for block in self.blocks:
            tokens, _ = block(tokens, context, mask[:, None, None])
        return cast(Tensor, self.projection(tokens.flatten(1)))

    @torch.inference_mode()
    def describe_features(self, features: LocalFeatures) -> npt.NDArray[np.float32]:
        """The unit descriptor of one image's features; zeros where it has none, so that it resembles nothing."""
        if not len(features):
            return np.zeros(self.dim, np.float32)
        batch, mask = pad_sets([features.descriptors])
        return np.asarray(F.normalize(self.eval()(batch, mask), dim=1)[0].numpy(), np.float32)


def pad_sets(sets: Sequence[npt.NDArray[Any]]) -> tuple[Tensor, Tensor]:
    """Feature sets, each N_i D, as one batch B N D with its mask B N."""
    longest = max(1, *(len(values) for values in sets))
    batch = torch.zeros(len(sets), longest, sets[0].shape[1])
    mask = torch.zeros(len(sets), longest, dtype=torch.bool)
    for row, values in enumerate(sets):
        batch[row, : len(values)] = torch.from_numpy(np.asarray(values, np.float32))
        mask[row, : len(values)] = True
    return batch, mask


def save_tokens(network: SetTokens, path: Path) -> None:
    """Weights and configuration in one safetensors file."""
    from safetensors.torch import save_file

    state = {key: value.detach().contiguous() for key, value in network.state_dict().items()}
    with atomic_path(path) as temporary:
        save_file(state, temporary, metadata={"config": json.dumps(to_mapping(network.config))})


def load_tokens(path: Path, extractor: LocalExtractor | None = None) -> SetTokens:
    """The network of a file; refused where it was trained on another extractor's features."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            config = from_mapping(SetTokensConfig, parse_json((file.metadata() or {})["config"]))
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dictionary
    except (OSError, KeyError, ValueError, SafetensorError, ConfigError) as error:
        raise CheckpointError(f"{path} holds no tokens over local features: {error}") from error
    if extractor is not None and (
        config.features != extractor.dim or (config.extractor and config.extractor != extractor.fingerprint)
    ):
        raise ModelError(
            f"{path} was trained on other local features than '{extractor.name}' gives (dimension {config.features}, "
            f"fingerprint {config.extractor}). Train it again on these."
        )
    network = SetTokens(config)
    load_strictly(network, state, path)
    return network
