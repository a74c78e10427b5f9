"""The network whose weights the paper's authors released, module for module; it differs from the paper's text.

A multi-head encoder with one linear layer for LFSA; tokens summed (from April 2022) or averaged over positions (before,
"legacy") with a norm after; cross-attention, MLP, self-attention in that order, normed before attention; batch norm on
the descriptor. Parameter names below `head` are the authors' below `tr`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tessera.models.backbones import build_backbone
from tessera.models.global_network import GlobalNetwork, Head
from tessera.models.parts.attention import MultiHeadAttention
from tessera.models.token import split_projection


@dataclass(frozen=True)
class ReleasedConfig:
    """legacy: the version public from December 2021 to 20 April 2022. drop_path is in the code only."""

    backbone: str = "resnet50"
    channels: int = 1024
    num_tokens: int = 4
    blocks: int = 2
    heads: int = 8
    dropout: float = 0.1
    drop_path: float = 0.1
    dim: int = 1024
    legacy: bool = False


class DropPath(nn.Module):
    """Leave a residual branch out for some images of the batch, the others scaled so that the mean stays."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return branch
        kept = 1 - self.probability
        draws = torch.rand(branch.shape[0], *[1] * (branch.ndim - 1), dtype=branch.dtype, device=branch.device)
        return branch * (draws < kept).to(branch.dtype) / kept


class Encoder(nn.Module):
    """Self-attention over all positions, then one linear layer after a batch norm over all B * S positions."""

    def __init__(self, channels: int, heads: int = 8, dropout: float = 0.1, drop_path: float = 0.1) -> None:
        super().__init__()
        self.attn = _attention(channels, heads, dropout)
        self.bn = nn.BatchNorm1d(channels)
        self.mlp = nn.Linear(channels, channels)
        self.drop_path = DropPath(drop_path)

    def forward(self, features: Tensor) -> Tensor:
        """features: B S C. Returns B S C."""
        branch, _ = self.attn(features, features)
        features = features + cast(Tensor, self.drop_path(branch))
        normed = self.bn(features.flatten(0, 1)).view(features.shape)
        return features + cast(Tensor, self.drop_path(self.mlp(normed)))


class MLP(nn.Module):
    """Two linear layers around an exact GELU, the hidden one twice as wide."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__()
        self.fc1 = nn.Linear(channels, 2 * channels)
        self.fc2 = nn.Linear(2 * channels, channels)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.dropout(F.gelu(self.fc1(x)), self.dropout, self.training)
        return F.dropout(self.fc2(hidden), self.dropout, self.training)


class Decoder(nn.Module):
    """Cross-attention, MLP, self-attention. bn1 and bn2 are layer norms in spite of their names."""

    def __init__(self, channels: int, num_tokens: int, heads: int, dropout: float, drop_path: float) -> None:
        super().__init__()
        self.self_attn = _attention(channels, heads, dropout)
        self.cross_attn = _attention(channels, heads, dropout, num_queries=num_tokens)
        self.bn1 = nn.LayerNorm(channels)
        self.bn2 = nn.LayerNorm(channels)
        self.mlp = MLP(channels, dropout)
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """tokens: B L C; features: B S C, not normed. Returns B L C and the cross-attention's weights B N L S."""
        branch, weights = self.cross_attn(self.bn1(tokens), features)
        tokens = tokens + self.drop_path(branch)
        tokens = tokens + self.drop_path(self.mlp(tokens))
        normed = self.bn2(tokens)
        branch, _ = self.self_attn(normed, normed)
        return tokens + self.drop_path(branch), weights


class ReleasedHead(Head):
    """The authors' `tr`."""

    def __init__(self, inputs: int, config: ReleasedConfig) -> None:
        super().__init__()
        channels = config.channels
        self.dim, self.num_tokens, self.legacy = config.dim, config.num_tokens, config.legacy
        if config.legacy:
            self.tokens = nn.Conv2d(channels, config.num_tokens, 1)
            self.token_norm: nn.Module = nn.LayerNorm(channels)
        else:
            self.query = nn.Parameter(torch.empty(1, config.num_tokens, channels))
            nn.init.trunc_normal_(self.query, std=0.02)
            self.token_norm = nn.Sequential(nn.Linear(channels, channels), nn.LayerNorm(channels))
        self.encoder = nn.ModuleList([Encoder(channels, config.heads, config.dropout, config.drop_path)])
        self.decoder = nn.ModuleList(
            Decoder(channels, config.num_tokens, config.heads, config.dropout, config.drop_path)
            for _ in range(config.blocks)
        )
        self.conv = nn.Sequential(nn.Conv2d(inputs, channels, 1), nn.BatchNorm2d(channels))
        self.proj = nn.Sequential(nn.Linear(config.num_tokens * channels, config.dim), nn.BatchNorm1d(config.dim))

    def tokenize(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """features: B S C. Returns B L C, before the norm, and claims B L S.

        The sum (or the mean over all positions) is not divided by the claims' mass: not eq. 2.
        """
        if self.legacy:
            logits = F.linear(features, self.tokens.weight.flatten(1), self.tokens.bias)
        else:
            logits = features @ self.query[0].T
        claims = logits.softmax(dim=-1).transpose(1, 2)  # B L S
        if self.legacy:
            # Divided first: a mean of thousands of positions in half precision would overflow as a sum.
            return (claims / claims.shape[-1]) @ features, claims
        return claims @ features, claims

    def refine(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """features: B C' H W. Returns tokens B L C and the attention B L S."""
        context = self.conv(features).flatten(2).transpose(1, 2)  # B S C
        for encoder in self.encoder:
            context = encoder(context)
        sums, attention = self.tokenize(context)
        tokens = self.token_norm(sums)
        for decoder in self.decoder:
            tokens, weights = decoder(tokens, context)
            attention = weights.mean(dim=1)
        return tokens, attention

    def describe(self, features: Tensor) -> Tensor:
        return cast(Tensor, self.proj(self.refine(features)[0].flatten(1)))

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """As the base says; in training there are no `parts`, because batch norm then mixes the images."""
        tokens, attention = self.refine(features)
        maps = attention.reshape(*attention.shape[:2], *features.shape[-2:])
        if self.training:
            return {"raw": self.proj(tokens.flatten(1)), "attention": maps}
        linear, norm = cast(nn.Linear, self.proj[0]), cast(nn.BatchNorm1d, self.proj[1])
        gain = norm.weight * (cast(Tensor, norm.running_var) + norm.eps).rsqrt()
        constant = (linear.bias - cast(Tensor, norm.running_mean)) * gain + norm.bias
        shares = split_projection(tokens, linear.weight, self.num_tokens) * gain
        parts = torch.cat([shares, constant.expand(shares.shape[0], 1, -1)], dim=1)
        return {"raw": parts.sum(dim=1), "attention": maps, "parts": parts}


def _attention(channels: int, heads: int, dropout: float, num_queries: int | None = None) -> MultiHeadAttention:
    """The authors' attention: biases, dropout on weights and projection, and a projection that starts at zero."""
    attention = MultiHeadAttention(
        channels, heads, num_queries=num_queries, weight_dropout=dropout, projection_dropout=dropout
    )
    nn.init.zeros_(attention.proj.weight)
    return attention


def build_released(config: ReleasedConfig) -> GlobalNetwork:
    backbone = build_backbone(config.backbone)
    return GlobalNetwork(backbone, ReleasedHead(backbone.channels, config))
