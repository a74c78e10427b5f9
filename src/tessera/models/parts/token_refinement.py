"""The paper's refinement block: tokens look at each other, then at the local features again (eq. 6 to 10)."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from tessera.models.parts.attention import MultiHeadAttention, Scale


class RefinementBlock(nn.Module):
    """T_r = T + LayerNorm(self-attention of T); T_update = T_r + LayerNorm(cross-attention of T_r on F).

    The last equation prints T_e for the branch; it is read as T_c, which is otherwise unused. Either half can be left
    out (Table 4). Unlike most transformers the norm is on the branch, nothing is normalised before attention, and there
    is no MLP.
    """

    def __init__(
        self,
        channels: int,
        num_tokens: int,
        *,
        heads: int = 8,
        self_attention: bool = True,
        cross_attention: bool = True,
        scale: Scale = "head",
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.self_attention: MultiHeadAttention | None = None
        self.cross_attention: MultiHeadAttention | None = None
        if self_attention:
            self.self_attention = MultiHeadAttention(channels, heads, bias=False, scale=scale, value_dropout=dropout)
            self.self_norm = nn.LayerNorm(channels)
        if cross_attention:
            self.cross_attention = MultiHeadAttention(
                channels, heads, num_queries=num_tokens, bias=False, scale=scale, value_dropout=dropout
            )
            self.cross_norm = nn.LayerNorm(channels)

    def forward(self, tokens: Tensor, features: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """tokens: B L C; features: B S C; mask: B 1 1 S, True where there is a feature.

        Returns B L C and the weights B N L S of the cross-attention, if any.
        """
        weights = None
        if self.self_attention is not None:
            branch, _ = self.self_attention(tokens, tokens)
            tokens = tokens + cast(Tensor, self.self_norm(branch))
        if self.cross_attention is not None:
            branch, weights = self.cross_attention(tokens, features, mask)
            tokens = tokens + cast(Tensor, self.cross_norm(branch))
        return tokens, weights
