"""Average precision as a loss: a large batch is ranked against itself and the ranking is graded (Revaud 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from tessera.errors import ConfigError

EPS = 1e-16


@dataclass(frozen=True)
class ListwiseConfig:
    """num_bins: centres of the histogram of similarities over [low, high]; a similarity outside counts as the bound.

    The published loss bins [0, 1] by 20 to 25 centres: more give a sharper ranking and sparser gradients.
    """

    num_bins: int = 25
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if self.num_bins < 2 or self.low >= self.high:
            raise ConfigError(
                f"a histogram needs two bins or more and low < high: {self.num_bins} bins over {self.low}..{self.high}."
            )


def assign_bins(similarities: Tensor, config: ListwiseConfig) -> Tensor:
    """Share each similarity between its two nearest bins, linearly: ... to ... M, summing to one, best bin first."""
    centres = torch.linspace(
        config.high, config.low, config.num_bins, dtype=similarities.dtype, device=similarities.device
    )  # M
    width = (config.high - config.low) / (config.num_bins - 1)
    clamped = similarities.clamp(config.low, config.high)
    return (1 - (clamped[..., None] - centres).abs() / width).clamp_min(0)


def quantised_ap(similarities: Tensor, relevant: Tensor, config: ListwiseConfig, counted: Tensor) -> Tensor:
    """Average precision of each query over histogram bins instead of ranks, which have no gradient.

    similarities: Q N. relevant: Q N, 1 for a positive. counted: Q N, 0 leaves a pair out (the query itself).
    Returns Q; a query without positives has 0.
    """
    shares = assign_bins(similarities, config) * counted[..., None]  # Q N M
    found = shares.sum(dim=1)  # Q M
    positives = (shares * relevant[..., None]).sum(dim=1)  # Q M
    precision = positives.cumsum(dim=-1) / (found.cumsum(dim=-1) + EPS)
    recall = positives / positives.sum(dim=-1, keepdim=True).clamp_min(EPS)
    return (precision * recall).sum(dim=-1)


class ListwiseAP(nn.Module):
    """1 - mean AP of a batch in which each image is a query to all others. Queries alone in their class leave the mean.

    A batch without any pair of one class has nothing to teach: the loss is then 0, still tied to the descriptors.
    """

    def __init__(self, config: ListwiseConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, descriptors: Tensor, labels: Tensor) -> Tensor:
        """descriptors: B D of any length. labels: B."""
        rows = functional.normalize(descriptors, dim=-1)
        similarities = rows @ rows.T  # B B
        counted = 1 - torch.eye(len(labels), device=rows.device, dtype=rows.dtype)
        relevant = (labels[:, None] == labels[None, :]).to(rows.dtype) * counted
        asked = relevant.sum(dim=-1) > 0
        if not bool(asked.any()):
            return similarities.sum() * 0
        return 1 - quantised_ap(similarities[asked], relevant[asked], self.config, counted[asked]).mean()
