"""What every global network is: a backbone, a head, and a unit vector at the end.

A head sees the map B C H W and gives `raw` B D, before normalisation; losses normalise as they need. Heads with tokens
also give `attention` and `parts`. `forward` is what a bundle's graph holds; `describe_raw` is the training path and
computes nothing but the descriptor.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from tessera.models.backbones.base import Backbone
from tessera.models.network import Network, check_size

EPS = 1e-12  # of the final L2 normalisation, as the released code has it


class Head(nn.Module):
    """From a map to a descriptor. Subclasses set `dim` and implement `describe`; token heads override `forward` too."""

    dim: int
    num_tokens: int = 0

    def describe(self, features: Tensor) -> Tensor:
        """features: B C H W. Returns B D, not normalised."""
        raise NotImplementedError

    @property
    def has_position_contributions(self) -> bool:
        """Whether what a token adds to the descriptor can be laid to positions."""
        return False

    def position_contributions(self, features: Tensor) -> Tensor:
        """features: B C H W. Returns B L D H W: what each position adds through each token, together the `parts`."""
        raise NotImplementedError

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """features: B C H W. Returns `raw` B D and, with tokens, `attention` B L H W and `parts` B (L+1) D."""
        return {"raw": self.describe(features)}


class GlobalNetwork(Network):
    """Images to one unit vector each."""

    kind = "global"

    def __init__(self, backbone: Backbone, head: Head) -> None:
        super().__init__(backbone)
        self.head = head
        self.dim, self.num_tokens = head.dim, head.num_tokens

    @property
    def output_names(self) -> tuple[str, ...]:
        return ("descriptor", "attention", "parts") if self.num_tokens else ("descriptor",)

    @property
    def has_position_contributions(self) -> bool:
        return self.head.has_position_contributions

    def position_contributions(self, images: Tensor) -> Tensor:
        check_size(images, self.backbone.stride)
        return self.head.position_contributions(self.backbone(images))

    def describe_raw(self, images: Tensor) -> Tensor:
        check_size(images, self.backbone.stride)
        return self.head.describe(self.backbone(images))

    def describe_features(self, features: Tensor) -> Tensor:
        return self.head.describe(features)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        """images: B 3 H W, normalised. Returns `descriptor` B D of unit norm and the head's other outputs."""
        check_size(images, self.backbone.stride)
        outputs = self.head(self.backbone(images))
        raw = outputs.pop("raw")
        return {"descriptor": F.normalize(raw, dim=-1, eps=EPS), **outputs}
