"""What every global network is: a backbone, a head, and a unit vector at the end.

A head sees the map B C H W and gives `raw` B D, before normalisation; losses normalise as they need. Heads with tokens
also give `attention` and `parts`. `forward` is what a bundle's graph holds; `describe_raw` is the training path and
computes nothing but the descriptor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tessera.errors import ModelError
from tessera.models.backbones.base import Backbone

EPS = 1e-12  # of the final L2 normalisation, as the released code has it


class Head(nn.Module):
    """From a map to a descriptor. Subclasses set `dim` and implement `describe`; token heads override `forward` too."""

    dim: int
    num_tokens: int = 0

    def describe(self, features: Tensor) -> Tensor:
        """features: B C H W. Returns B D, not normalised."""
        raise NotImplementedError

    @property
    def has_places(self) -> bool:
        """Whether what a token adds to the descriptor can be laid to positions."""
        return False

    def places(self, features: Tensor) -> Tensor:
        """features: B C H W. Returns B L D H W: what each position adds through each token, together the `parts`."""
        raise NotImplementedError

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """features: B C H W. Returns `raw` B D and, with tokens, `attention` B L H W and `parts` B (L+1) D."""
        return {"raw": self.describe(features)}


class GlobalNetwork(nn.Module):
    """Images to one unit vector each.

    architecture: {"model": registry name, "config": resolved configuration}; `build_model` fills it, a bundle keeps it.
    """

    kind = "global"

    def __init__(self, backbone: Backbone, head: Head) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.architecture: dict[str, Any] = {}

    @property
    def dim(self) -> int:
        return self.head.dim

    @property
    def stride(self) -> int:
        return self.backbone.stride

    @property
    def num_tokens(self) -> int:
        return self.head.num_tokens

    @property
    def output_names(self) -> tuple[str, ...]:
        return ("descriptor", "attention", "parts") if self.num_tokens else ("descriptor",)

    @property
    def has_places(self) -> bool:
        return self.head.has_places

    def places(self, images: Tensor) -> Tensor:
        """images: B 3 H W, normalised. Returns B L D H W, see `Head.places`."""
        check_size(images, self.backbone.stride)
        return self.head.places(self.backbone(images))

    def describe_raw(self, images: Tensor) -> Tensor:
        """images: B 3 H W, normalised. Returns B D before normalisation, for losses."""
        check_size(images, self.backbone.stride)
        return self.head.describe(self.backbone(images))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """images: B 3 H W, normalised. Returns `descriptor` B D of unit norm and the head's other outputs."""
        check_size(images, self.backbone.stride)
        outputs = self.head(self.backbone(images))
        raw = outputs.pop("raw")
        return {"descriptor": F.normalize(raw, dim=-1, eps=EPS), **outputs}


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
