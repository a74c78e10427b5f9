"""Losses over tuples of a query, its positive and its negatives: contrastive, triplet, second-order similarity.

Descriptors are T R D, of unit norm: T tuples, each a query, a positive and R - 2 negatives, as mining gives them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from tessera.errors import ConfigError

EPS = 1e-6


def split_tuples(descriptors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """T R D to queries T 1 D, positives T 1 D and negatives T (R - 2) D."""
    assert descriptors.ndim == 3 and descriptors.shape[1] >= 3, f"tuples are T R D with R >= 3: {descriptors.shape}"
    return descriptors[:, :1], descriptors[:, 1:2], descriptors[:, 2:]


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    """... D and ... D to ..., over the last axis."""
    return (a - b).square().sum(dim=-1)


def contrastive_loss(descriptors: Tensor, margin: float = 0.7, eps: float = EPS) -> Tensor:
    """Pull positives together, push negatives out of a radius of `margin` (Radenovic 2018); summed over pairs.

    eps is added to each difference, not to the distance: the root then has a slope where two descriptors agree.
    """
    query, positive, negatives = split_tuples(descriptors)
    attraction = (query - positive + eps).square().sum()
    distances = (query - negatives + eps).square().sum(dim=-1).sqrt()  # T R-2
    repulsion = (margin - distances).clamp_min(0).square().sum()
    return 0.5 * (attraction + repulsion)


def triplet_loss(descriptors: Tensor, margin: float = 0.1) -> Tensor:
    """Each negative at least `margin` further, in squared distance, than the positive; summed over triplets."""
    query, positive, negatives = split_tuples(descriptors)
    gaps = squared_distances(query, positive) - squared_distances(query, negatives)  # T R-2
    return (gaps + margin).clamp_min(0).sum()


def second_order_loss(descriptors: Tensor, eps: float = 1e-12) -> Tensor:
    """Query and positive should be equally far from every negative (second-order similarity, SOLAR).

    The root of the summed squared differences over the whole batch, by the number of tuples. eps only keeps the
    slope finite when all differences vanish.
    """
    query, positive, negatives = split_tuples(descriptors)
    differences = squared_distances(query, negatives) - squared_distances(positive, negatives)
    return differences.square().sum().clamp_min(eps).sqrt() / descriptors.shape[0]


@dataclass(frozen=True)
class ContrastiveConfig:
    margin: float = 0.7

    def __post_init__(self) -> None:
        if self.margin <= 0:
            raise ConfigError(f"the contrastive margin must be positive, not {self.margin}.")


class Contrastive(nn.Module):
    def __init__(self, config: ContrastiveConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, descriptors: Tensor) -> Tensor:
        return contrastive_loss(descriptors, self.config.margin)


@dataclass(frozen=True)
class TripletConfig:
    """second_order: weight of second-order similarity (SOLAR trains with 10); 0 leaves it out.

    reduction: `sum` over triplets, or `tuples`: the sum by the number of tuples, as SOLAR has it.
    """

    margin: float = 0.1
    second_order: float = 0.0
    reduction: Literal["sum", "tuples"] = "tuples"

    def __post_init__(self) -> None:
        if self.margin <= 0 or self.second_order < 0:
            raise ConfigError(
                f"a triplet's margin must be positive, second_order not negative: {self.margin}, {self.second_order}."
            )


class Triplet(nn.Module):
    def __init__(self, config: TripletConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, descriptors: Tensor) -> Tensor:
        loss = triplet_loss(descriptors, self.config.margin)
        if self.config.reduction == "tuples":
            loss = loss / descriptors.shape[0]
        if self.config.second_order:
            loss = loss + self.config.second_order * second_order_loss(descriptors)
        return loss


@dataclass(frozen=True)
class SolarLossConfig(TripletConfig):
    """The triplet with SOLAR's own weights."""

    margin: float = 1.25
    second_order: float = 10.0
