"""The network of the paper: reduction, LFSA, tokenizer, refinement, one FC (eq. 1 to 11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from tessera.errors import ConfigError
from tessera.models.backbones import build_backbone
from tessera.models.global_network import GlobalNetwork, Head
from tessera.models.parts.attention import Scale
from tessera.models.parts.lfsa import SecondOrderAttention
from tessera.models.parts.token_refinement import RefinementBlock
from tessera.models.parts.tokenizers import AttentionTokenizer, TokenizerKind, build_tokenizer


@dataclass(frozen=True)
class TokenConfig:
    """Every ablation of the paper's Tables 3 to 6 is a value here.

    channels: C, reached by a 1x1 convolution with batch norm; null keeps the backbone's, which is the literal paper.
    blocks: N, the refinement blocks; 0 lays the tokens end to end straight into W_g.
    heads and dropout: the released code's, the paper gives none. scale: see MultiHeadAttention.
    power: of the attention tokenizer's mean; 1 is the paper, more is a GeM of what each token won (ours).
    bias: of W_g. The paper has none; a whitening folded into W_g needs one to take the mean away.
    shared: every token has the same block of W_g, kept once: what a token won speaks, not its number (ours).
    """

    backbone: str = "resnet50"
    channels: int | None = 1024
    lfsa: bool = True
    tokenizer: TokenizerKind = "attention"
    power: float = 1.0
    num_tokens: int = 4
    blocks: int = 2
    self_attention: bool = True
    cross_attention: bool = True
    heads: int = 8
    scale: Literal["head", "channels"] = "head"
    dropout: float = 0.1
    dim: int = 1024
    bias: bool = False
    shared: bool = False


class TokenHead(Head):
    """The paper's head over a map of `inputs` channels."""

    def __init__(self, inputs: int, config: TokenConfig) -> None:
        super().__init__()
        check_config(config)
        channels = inputs if config.channels is None else config.channels
        self.dim = config.dim
        self.reduction = (
            nn.Identity()
            if config.channels is None
            else nn.Sequential(nn.Conv2d(inputs, channels, 1, bias=False), nn.BatchNorm2d(channels))
        )
        self.lfsa = SecondOrderAttention(channels) if config.lfsa else nn.Identity()
        self.tokenizer = build_tokenizer(config.tokenizer, channels, config.num_tokens, config.power)
        self.num_tokens = 0 if config.tokenizer == "mean" else config.num_tokens
        scale: Scale = config.scale
        self.refinement = nn.ModuleList(
            RefinementBlock(
                channels,
                config.num_tokens,
                heads=config.heads,
                self_attention=config.self_attention,
                cross_attention=config.cross_attention,
                scale=scale,
                dropout=config.dropout,
            )
            for _ in range(config.blocks)
        )
        self.blocks = 1 if config.shared else self.tokenizer.num_tokens  # of W_g
        self.projection = nn.Linear(self.blocks * channels, config.dim, bias=config.bias)

    def tokens(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        """features: B C' H W. Returns the refined tokens B L C and attention B L S, None where nothing was shared out.

        Attention is that of the last cross-attention, averaged over heads, else the tokenizer's claims.
        """
        context = self.lfsa(self.reduction(features)).flatten(2).transpose(1, 2)  # B S C
        tokens, attention = self.tokenizer(context)
        for block in self.refinement:
            tokens, weights = block(tokens, context)
            if weights is not None:
                attention = weights.mean(dim=1)
        return tokens, attention

    def describe(self, features: Tensor) -> Tensor:
        return self._project(self.tokens(features)[0])

    def _project(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.projection(tokens.sum(dim=1) if self.blocks == 1 else tokens.flatten(1)))

    @property
    def has_position_contributions(self) -> bool:
        return isinstance(self.tokenizer, AttentionTokenizer) and not len(self.refinement)

    def position_contributions(self, features: Tensor) -> Tensor:
        """A token is a mean, so each position has its share of it, channel by channel, and W_g is linear."""
        context = self.lfsa(self.reduction(features)).flatten(2).transpose(1, 2)  # B S C
        shares = cast(AttentionTokenizer, self.tokenizer).share_out(context)  # B L S C
        added = shares @ split_rows(self.projection.weight, self.blocks)  # B L S D
        return added.transpose(2, 3).reshape(*added.shape[:2], self.dim, *features.shape[-2:])

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        tokens, attention = self.tokens(features)
        if attention is None:
            return {"raw": self._project(tokens)}
        shares = split_projection(tokens, self.projection.weight, self.blocks)
        constant = torch.zeros_like(shares[:, :1])
        if self.projection.bias is not None:
            constant = constant + self.projection.bias
        parts = torch.cat([shares, constant], dim=1)
        raw = parts.sum(dim=1)
        return {"raw": raw, "attention": attention.reshape(*attention.shape[:2], *features.shape[-2:]), "parts": parts}


def split_projection(tokens: Tensor, weight: Tensor, blocks: int) -> Tensor:
    """What each token adds to the descriptor: its block of the projection's columns.

    tokens: B L C; weight: D LC in L blocks, or D C in one that all tokens share. Returns B L D, whose sum over L is the
    projection of the tokens laid end to end.
    """
    if blocks == 1:
        return tokens @ weight.T
    return (tokens.transpose(0, 1) @ split_rows(weight, blocks)).transpose(0, 1)


def split_rows(weight: Tensor, blocks: int) -> Tensor:
    """weight: D times blocks C. Returns blocks C D."""
    return weight.view(weight.shape[0], blocks, -1).permute(1, 2, 0)


def check_config(config: TokenConfig) -> None:
    """Refuse combinations whose descriptor could not depend on the image, or whose switches would do nothing."""
    crosses = config.blocks > 0 and config.cross_attention
    if config.tokenizer in ("learned", "vq") and not crosses:
        raise ConfigError(
            f"the tokenizer '{config.tokenizer}' gives the same tokens for every image, so without cross-attention the "
            "descriptor would be constant. Set cross_attention and at least one block, or tokenizer 'attention'."
        )
    if config.blocks > 0 and not (config.self_attention or config.cross_attention):
        raise ConfigError("a refinement block without self- and cross-attention does nothing. Set blocks to 0.")
    if config.tokenizer == "mean" and config.blocks > 0:
        raise ConfigError("there is nothing to refine without a tokenizer: set blocks to 0 with tokenizer 'mean'.")
    if config.blocks < 0 or config.dim < 1:
        raise ConfigError(f"blocks must not be negative and dim must be positive, not {config.blocks}, {config.dim}.")


def build_token(config: TokenConfig) -> GlobalNetwork:
    backbone = build_backbone(config.backbone)
    return GlobalNetwork(backbone, TokenHead(backbone.channels, config))
