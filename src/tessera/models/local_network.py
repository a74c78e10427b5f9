"""What every network of local features is: one scale of one image to features, strengths and positions.

Choosing the strongest over several scales is the local extractor's work; a bundle of kind `local` holds this graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tessera.models.network import Network, check_size


class LocalNetwork(Network):
    """Images to B S local features. Subclasses set `dim` and implement `local_map` and `describe_map`."""

    kind = "local"
    output_names = ("features", "strengths", "positions")

    def local_map(self, images: Tensor) -> Tensor:
        """The map that local features are taken from, B C H W."""
        raise NotImplementedError

    def describe_map(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """maps: B C H W. Returns features B D H W and strengths B 1 H W."""
        raise NotImplementedError

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """images: B 3 H W, normalised. Returns `features` B S D, `strengths` B S and `positions` B S 2.

        Positions are cells (x, y) of the map, row-major; a cell's centre in pixels is (cell + 0.5) * stride.
        """
        check_size(images, self.stride)
        features, strengths = self.describe_map(self.local_map(images))
        return {
            "features": features.flatten(2).transpose(1, 2),
            "strengths": strengths.flatten(1),
            "positions": cells(features),
        }


def cells(maps: Tensor) -> Tensor:
    """The cells (x, y) of B C H W maps in row-major order, B S 2, int64."""
    batch, _, height, width = maps.shape
    ys = torch.arange(height, device=maps.device)[:, None].expand(height, width)
    xs = torch.arange(width, device=maps.device)[None, :].expand(height, width)
    return torch.stack([xs, ys], dim=-1).reshape(1, -1, 2).expand(batch, -1, 2)
