"""What every network is: a backbone, and a description of an image over its map.

`GlobalNetwork` gives one unit vector an image, `LocalNetwork` a set of local features.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tessera.errors import ModelError
from tessera.models.backbones.base import Backbone


class Network(nn.Module):
    """Base of all networks.

    architecture: {"model": registry name, "config": resolved configuration}; `build_model` fills it, a bundle keeps it.
    auxiliary: how the names of parameters begin that `describe_raw` does not reach.
    """

    kind: ClassVar[str]
    auxiliary: ClassVar[tuple[str, ...]] = ()
    dim: int
    num_tokens: int = 0

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        self.architecture: dict[str, Any] = {}

    @property
    def output_names(self) -> tuple[str, ...]:
        """What `forward` gives, in the order of a bundle's graph."""
        raise NotImplementedError

    @property
    def stride(self) -> int:
        return self.backbone.stride

    @property
    def has_position_contributions(self) -> bool:
        """Whether what a token adds to the descriptor can be laid to positions."""
        return False

    def position_contributions(self, images: Tensor) -> Tensor:
        """images: B 3 H W, normalised. Returns B L D H W: what each position adds through each token."""
        raise NotImplementedError

    def describe_raw(self, images: Tensor) -> Tensor:
        """images: B 3 H W, normalised. Returns B D before normalisation, for losses."""
        raise NotImplementedError

    def describe_features(self, features: Tensor) -> Tensor:
        """features: B C H W, the backbone's map. Returns B D before normalisation, for training on stored maps."""
        raise NotImplementedError


def exporting() -> bool:
    """Whether a graph is being written, by either exporter: Python numbers read from a shape would freeze in it."""
    return torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export()


def check_size(images: Tensor, stride: int) -> None:
    """Refuse a picture of which nothing would be left: both sides under the stride.

    A long strip (384 x 27 is a real photo) still has positions, so one short side is fine. An export sees no check:
    sizes are symbols there.
    """
    height, width = images.shape[-2:]
    if not exporting() and max(height, width) < stride:
        raise ModelError(
            f"the image is smaller than the network's stride: {width} x {height} pixels, and at least one side must "
            f"have {stride}. Give a larger image."
        )
