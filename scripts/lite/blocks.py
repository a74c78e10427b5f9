"""Blocks on top of the closed form, with a kept start: every branch ends in zeros, so step 0 is the bundle itself.

Both blocks of the paper work in a few principal directions of the map: at its 1,904 channels refinement alone would
have more weights than the bundle may have, and LFSA would cost as much as the backbone. What they add is written in the
whitened space, where one step size fits all directions.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from tessera.models.parts.token_refinement import RefinementBlock
from tessera.models.parts.tokenizers import AttentionTokenizer

Array = NDArray[np.float32]
PARTS = ("head", "lfsa", "refinement")


class NarrowAttention(nn.Module):
    """SOLAR's second-order block (parts/lfsa.py) among R directions. `v`, R to D, is zero at the start."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.f, self.g, self.h = (nn.Linear(width, width) for _ in range(3))
        self.v = nn.Linear(width, dim, bias=False)
        nn.init.zeros_(self.v.weight)
        self.scale = float(width**-0.5)

    def gather(self, directions: Tensor) -> Tensor:
        """B S R, before `v`."""
        queries, keys = F.relu(self.f(directions)), F.relu(self.g(directions))
        weights = (queries @ keys.transpose(1, 2) * self.scale).softmax(dim=-1)  # B S S
        gathered: Tensor = weights @ self.h(directions)
        return gathered


class NarrowRefinement(nn.Module):
    """The paper's block among R directions; what its two attentions add to the tokens goes back to D, zero at first."""

    def __init__(self, width: int, dim: int, num_tokens: int, blocks: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)
        self.down = nn.Linear(dim, width, bias=False)
        self.blocks = nn.ModuleList(RefinementBlock(width, num_tokens, heads=4, dropout=0.0) for _ in range(blocks))
        for matrix in (weight for weight in self.blocks.parameters() if weight.ndim == 2):
            nn.init.xavier_uniform_(matrix)
        self.up = nn.Linear(width, dim, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scale = float(dim**-0.5)  # a norm leaves every number near one; those of a unit vector are this small

    def forward(self, tokens: Tensor, directions: Tensor) -> Tensor:
        """tokens: B L D, whitened; directions: B S R. Returns B L D."""
        start = refined = self.down(self.norm(tokens))
        for block in self.blocks:
            refined, _ = block(refined, directions)
        added: Tensor = self.up(refined - start) * self.scale
        return added


class KeptStart(nn.Module):
    """From maps B S C to raw descriptors B D: tokens, the closed form, and the blocks that are to be learnt.

    weight C D and bias D: of the closed form for a mean token; mean C and basis C R: principal directions of the map.
    """

    basis: Tensor
    mean: Tensor
    weight: Tensor
    bias: Tensor
    back: Tensor

    def __init__(
        self,
        tokenizer: AttentionTokenizer,
        weight: Array,
        bias: Array,
        mean: Array,
        basis: Array,
        parts: tuple[str, ...],
        blocks: int = 1,
    ) -> None:
        super().__init__()
        self.tokenizer = tokenizer.requires_grad_(False)
        width, dim = basis.shape[1], weight.shape[1]
        for name, value in (("weight", weight), ("bias", bias), ("mean", mean), ("basis", basis)):
            self.register_buffer(name, torch.from_numpy(np.ascontiguousarray(value, np.float32)))
        self.register_buffer("back", torch.from_numpy(np.linalg.pinv(weight.astype(np.float64)).astype(np.float32)))
        self.lfsa = NarrowAttention(width, dim) if "lfsa" in parts else None
        self.refinement = NarrowRefinement(width, dim, tokenizer.num_tokens, blocks) if "refinement" in parts else None
        self.head = nn.Linear(dim, dim, bias=False) if "head" in parts else None
        if self.head is not None:
            nn.init.eye_(self.head.weight)

    def forward(self, maps: Tensor) -> Tensor:
        directions = maps @ self.basis - self.mean @ self.basis  # B S R
        if self.lfsa is not None:
            gathered, v = self.lfsa.gather(directions), self.lfsa.v.weight.T @ self.back  # R C
            maps = maps + gathered @ v
            directions = directions + gathered @ (v @ self.basis)
        tokens = self.tokenizer(maps)[0] @ self.weight + self.bias  # B L D
        if self.refinement is not None:
            tokens = tokens + self.refinement(tokens, directions)
        raw: Tensor = tokens.mean(dim=1)
        return raw if self.head is None else F.linear(raw, self.head.weight)


def find_directions(maps: Array, width: int) -> tuple[Array, Array]:
    """The mean C and the strongest directions C R of local features N C, so that each has a variance of one."""
    mean = maps.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov((maps - mean).T.astype(np.float64)))
    strongest = np.argsort(-values)[:width]
    return mean, (vectors[:, strongest] / np.sqrt(values[strongest])).astype(np.float32)
