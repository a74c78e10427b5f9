"""DELG's reconstruction loss: local features squeezed to few dimensions should come back as they were (Cao 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from tessera.errors import ConfigError


@dataclass(frozen=True)
class ReconstructionConfig:
    """weight: DELG trains with 10."""

    weight: float = 10.0

    def __post_init__(self) -> None:
        if self.weight < 0:
            raise ConfigError(f"the reconstruction weight must not be negative: {self.weight}.")


class Reconstruction(nn.Module):
    """The mean over images, positions and channels of the squared error, times the weight.

    No gradient reaches the features: the autoencoder follows the backbone, it must not flatten it.
    """

    def __init__(self, config: ReconstructionConfig) -> None:
        super().__init__()
        self.config = config

    def forward(self, features: Tensor, restored: Tensor) -> Tensor:
        """features, restored: B C H W."""
        return self.config.weight * (restored - features.detach()).square().mean()
