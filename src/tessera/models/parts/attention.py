"""Multi-head attention in two writings of the same numbers: plain, and by association.

With few queries and many positions it is wasteful to send every position through the key and value matrices. By
association (Q Wq)(F Wk)^T = ((Q Wq) Wk^T) F^T and A (F Wv) = (A F) Wv, head by head: the queries go through the key
matrix instead, and the values are projected after the sum. With L queries and C channels in N heads this costs about
C / (N L) times less; at L = 4, N = 8, C = 1024 thirty-two times.
"""

from __future__ import annotations

from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tessera.errors import ConfigError

Scale = Literal["head", "channels"]


class MultiHeadAttention(nn.Module):
    """Queries B L C look at a memory B S C; gives B L C and the weights B N L S of the N heads.

    num_queries: L where it is fixed and small; association is then used if it is the cheaper writing. None: plain.
    scale: "head" divides logits by sqrt(C / N), "channels" by sqrt(C), the literal eq. 6 and 9 of the paper.
    weight_dropout acts on the softmax (released code), value_dropout on S V of each head (paper, eq. 7 and 10),
    projection_dropout after the projection (released code).
    """

    def __init__(
        self,
        channels: int,
        heads: int = 8,
        *,
        num_queries: int | None = None,
        bias: bool = True,
        scale: Scale = "head",
        weight_dropout: float = 0.0,
        value_dropout: float = 0.0,
        projection_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if channels % heads:
            raise ConfigError(f"{channels} channels cannot be split into {heads} heads. Choose heads that divide them.")
        self.channels, self.heads = channels, heads
        self.by_association = num_queries is not None and heads * num_queries < channels
        self.scale = float((channels // heads if scale == "head" else channels) ** -0.5)
        self.weight_dropout, self.value_dropout = weight_dropout, value_dropout
        self.projection_dropout = projection_dropout
        self.q = nn.Linear(channels, channels, bias)
        self.k = nn.Linear(channels, channels, bias)
        self.v = nn.Linear(channels, channels, bias)
        self.proj = nn.Linear(channels, channels, bias)
        for linear in (self.q, self.k, self.v, self.proj):
            nn.init.trunc_normal_(linear.weight, std=0.02)
            if bias:
                nn.init.zeros_(linear.bias)

    def forward(self, queries: Tensor, memory: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """queries: B L C; memory: B S C; mask: broadcasts to B N L S, True where a query may look.

        Returns B L C and the weights B N L S (before dropout).
        """
        attend = self.attend_by_association if self.by_association else self.attend_plainly
        values, weights = attend(queries, memory, mask)  # B N L C/N
        values = F.dropout(values, self.value_dropout, self.training)
        output = cast(Tensor, self.proj(values.transpose(1, 2).flatten(2)))
        return F.dropout(output, self.projection_dropout, self.training), weights

    def attend_plainly(self, queries: Tensor, memory: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Every position through the key and value matrices. Returns B N L C/N and B N L S."""
        q = self._split(self.q(queries))
        k = self._split(self.k(memory))
        v = self._split(self.v(memory))
        weights = self._softmax(q @ k.transpose(-1, -2), mask)
        return F.dropout(weights, self.weight_dropout, self.training) @ v, weights

    def attend_by_association(self, queries: Tensor, memory: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The queries through the key matrix, the sums through the value matrix. Returns B N L C/N and B N L S."""
        heads, length = self.heads, queries.shape[1]
        q = self._split(self.q(queries))
        probes = self._per_head(q, self.k.weight.view(heads, -1, self.channels))  # B N L C
        logits = probes.flatten(1, 2) @ memory.transpose(1, 2)  # B NL S
        logits = logits.reshape(-1, heads, length, memory.shape[1])
        if self.k.bias is not None:
            logits = logits + q @ self.k.bias.view(heads, -1, 1)  # the same for every position
        weights = self._softmax(logits, mask)
        dropped = F.dropout(weights, self.weight_dropout, self.training)
        sums = (dropped.flatten(1, 2) @ memory).view(-1, heads, length, self.channels)  # B N L C
        values = self._per_head(sums, self.v.weight.view(heads, -1, self.channels).transpose(1, 2))
        if self.v.bias is not None:
            # Each position would bring the bias once: a row of weights that sums to one brings it whole.
            values = values + dropped.sum(dim=-1, keepdim=True) * self.v.bias.view(heads, 1, -1)
        return values, weights

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)  # B N L C/N

    @staticmethod
    def _per_head(x: Tensor, matrices: Tensor) -> Tensor:
        """x: B N L I times N I O, without a copy of the matrices for each image. Returns B N L O."""
        batch, heads, length = x.shape[:3]
        flat = x.transpose(0, 1).reshape(heads, batch * length, -1)
        return (flat @ matrices).view(heads, batch, length, -1).transpose(0, 1)

    def _softmax(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        logits = logits * self.scale
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        return logits.softmax(dim=-1)
