"""From local features to L visual tokens: by attention (eq. 1 and 2), learned, or by vector quantisation (Table 5).

A tokenizer takes B S C and gives tokens B L C and, where positions are shared out, claims B L S.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, distributed, nn

from tessera.errors import ConfigError, unknown_name

EPS = 1e-12
GEM_EPS = 1e-6  # below it GeM has no gradient to speak of
TokenizerKind = Literal["attention", "learned", "vq", "mean"]


class Tokenizer(nn.Module):
    """Base. `constant` tokenizers give the same tokens for every image: they need a cross-attention after them."""

    constant = False

    def __init__(self, channels: int, num_tokens: int) -> None:
        super().__init__()
        self.channels, self.num_tokens = channels, num_tokens

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor | None]:
        raise NotImplementedError


class AttentionTokenizer(Tokenizer):
    """Tokens compete for each position (softmax over L); a token is the mean of what it won.

    power: 1 is the paper. Above it a token is a generalised mean (GeM), channel by channel: our addition, for maps that
    are never negative, such as a bare backbone's; anything below zero counts as zero there.
    """

    def __init__(self, channels: int, num_tokens: int, power: float = 1.0) -> None:
        super().__init__(channels, num_tokens)
        self.power = power
        self.weight = nn.Parameter(torch.empty(num_tokens, channels))
        nn.init.trunc_normal_(self.weight, std=0.02)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        claims = claim_positions(features, self.weight)
        if self.power == 1:
            return pool_tokens(claims, features), claims
        means = pool_tokens(claims, features.clamp_min(GEM_EPS).pow(self.power))
        return means.pow(1 / self.power), claims

    def share_out(self, features: Tensor) -> Tensor:
        """features: B S C. Returns B L S C, what each position gave to each token; over S they sum to the tokens."""
        tokens: Tensor
        claims: Tensor
        tokens, claims = self(features)
        powers = features if self.power == 1 else features.clamp_min(GEM_EPS).pow(self.power)
        given = claims[..., None] * powers[:, None]
        mass = claims.sum(dim=-1).clamp_min(EPS)[:, :, None, None]
        if self.power == 1:
            return given / mass
        return given / mass * tokens[:, :, None].pow(1 - self.power)


class LearnedTokenizer(Tokenizer):
    """T is a parameter, the same for every image; cross-attention makes the difference."""

    constant = True

    def __init__(self, channels: int, num_tokens: int) -> None:
        super().__init__(channels, num_tokens)
        self.tokens = nn.Parameter(torch.empty(num_tokens, channels))
        nn.init.trunc_normal_(self.tokens, std=0.02)

    def forward(self, features: Tensor) -> tuple[Tensor, None]:
        return self.tokens.expand(features.shape[0], -1, -1), None


class QuantisedTokenizer(Tokenizer):
    """T is a codebook without gradient that follows the local features by an exponential average.

    The paper refers to an appendix for details, which is not at hand. This is the plain reading: every training step
    assigns the mini-batch's local features (of all processes) to their nearest row, and a row that got some moves by
    1 - decay towards their mean. Rows start small, so that at first the direction decides and not a row's length.
    """

    constant = True
    tokens: Tensor

    def __init__(self, channels: int, num_tokens: int, decay: float = 0.99) -> None:
        super().__init__(channels, num_tokens)
        self.decay = decay
        self.register_buffer("tokens", torch.randn(num_tokens, channels) * 0.02)

    def forward(self, features: Tensor) -> tuple[Tensor, None]:
        # A copy: the update below must not change what the backward pass has kept.
        tokens = self.tokens.clone() if self.training else self.tokens
        if self.training:
            self.update(features.detach())
        return tokens.expand(features.shape[0], -1, -1), None

    @torch.no_grad()
    def update(self, features: Tensor) -> None:
        """features: B S C. One step of the moving average."""
        flat = features.flatten(0, 1).to(self.tokens.dtype)
        nearest = torch.cdist(flat, self.tokens).argmin(dim=1)
        counts = torch.bincount(nearest, minlength=self.num_tokens).to(flat.dtype)
        sums = torch.zeros_like(self.tokens).index_add_(0, nearest, flat)
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(counts)
            distributed.all_reduce(sums)
        means = sums / counts.clamp_min(1)[:, None]
        moved = self.decay * self.tokens + (1 - self.decay) * means
        self.tokens.copy_(torch.where(counts[:, None] > 0, moved, self.tokens))


class MeanTokenizer(Tokenizer):
    """No tokenizer: the mean of all positions (SPoC), row 1 of Table 3."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, 1)

    def forward(self, features: Tensor) -> tuple[Tensor, None]:
        return features.mean(dim=1, keepdim=True), None


def claim_positions(features: Tensor, weight: Tensor) -> Tensor:
    """Share every position out among the tokens (eq. 1).

    features: B S C; weight: L C. Returns B L S, summing to one over L.
    """
    return (features @ weight.T).softmax(dim=-1).transpose(1, 2)


def pool_tokens(claims: Tensor, features: Tensor) -> Tensor:
    """Average the local features of each token, weighted by its claims (eq. 2).

    claims: B L S, summing to one over L: tokens compete for a position, so an attention pooling over S is something
    else. features: B S C. Returns B L C.
    """
    mass = claims.sum(dim=-1, keepdim=True)  # B L 1
    return claims @ features / mass.clamp_min(EPS)


def build_tokenizer(kind: str, channels: int, num_tokens: int, power: float = 1.0) -> Tokenizer:
    kinds: dict[str, type[Tokenizer]] = {
        "attention": AttentionTokenizer,
        "learned": LearnedTokenizer,
        "vq": QuantisedTokenizer,
    }
    if power < 1 or (power != 1 and kind != "attention"):
        raise ConfigError(f"power is for the tokenizer 'attention' and at least 1, not {power} for '{kind}'.")
    if kind == "mean":
        return MeanTokenizer(channels)
    if kind not in kinds:
        raise ConfigError(unknown_name("tokenizer", kind, [*kinds, "mean"]))
    if num_tokens < 1:
        raise ConfigError(f"a tokenizer needs at least one token, not {num_tokens}. `tokenizer: mean` has none.")
    if kind == "attention":
        return AttentionTokenizer(channels, num_tokens, power)
    return kinds[kind](channels, num_tokens)
