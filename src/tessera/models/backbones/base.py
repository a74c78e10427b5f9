"""A backbone is anything that gives a B C H W map and says its channels, stride and normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from tessera.errors import CheckpointError, list_some
from tessera.models.preprocessing import IMAGENET_MEAN, IMAGENET_STD


class Backbone(nn.Module):
    """Base of all backbones.

    channels, stride: of the map that `forward` gives.
    stage_channels: of the two maps that `forward_stages` gives (stride 16 and 32: conv4 and conv5 of a ResNet).
    mean, std: the normalisation its ImageNet weights were trained with, for pictures in 0..1.
    classifier_prefixes: keys of an ImageNet file that a backbone has no use for; everything else must match.
    """

    channels: int
    stride: int
    stage_channels: tuple[int, int]
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    classifier_prefixes: ClassVar[tuple[str, ...]] = ()

    @property
    def summary_channels(self) -> int:
        """Of the vector that `forward_summary` gives."""
        return self.channels

    def conv4(self, images: Tensor) -> Tensor:
        """images: B 3 H W. Returns the map at stride 16, for networks that work on it before the last stage (SOLAR)."""
        raise NotImplementedError

    def conv5(self, conv4: Tensor) -> Tensor:
        """The last stage: from the map at stride 16 to the one at stride 32."""
        raise NotImplementedError

    def detectors(self, images: Tensor) -> Tensor:
        """images: B 3 H W. Returns a map at stride 16 whose channels say where something is: no number is negative.

        For deep spatial matching. A map with signs is given twice: far below zero is as good a detector as far above.
        """
        conv4 = self.conv4(images)
        return torch.cat([conv4.clamp_min(0), -conv4.clamp_max(0)], dim=1)

    def forward_stages(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """images: B 3 H W. Returns the maps at stride 16 and 32."""
        conv4 = self.conv4(images)
        return conv4, self.conv5(conv4)

    def forward(self, images: Tensor) -> Tensor:
        """images: B 3 H W, normalised. Returns B C H W."""
        return self.forward_stages(images)[1]

    def forward_summary(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """images: B 3 H W. Returns the backbone's own vector of the whole image, B C', and its map B C H W.

        The vector is the class token or what a network has in its place; here the mean of the map.
        """
        features = self(images)
        return features.mean(dim=(-2, -1)), features

    def load_weights(self, state: Mapping[str, Tensor], source: str) -> None:
        """Load an ImageNet state dict strictly; only the classifier may be left over.

        source: what an error message calls the file.
        """
        kept = {key: value for key, value in state.items() if not key.startswith(self.classifier_prefixes)}
        check_keys(self, kept, source)
        self.load_state_dict(kept)


def check_keys(module: nn.Module, state: Mapping[str, Tensor], source: str) -> None:
    """Raise unless names and shapes are the module's own and every number is finite.

    `num_batches_tracked` may be missing: files older than that counter are many, and inference has no use for it.
    """
    wanted = module.state_dict()
    missing = [key for key in wanted if key not in state and not key.endswith("num_batches_tracked")]
    extra = [key for key in state if key not in wanted]
    if missing or extra:
        raise CheckpointError(
            f"{source} does not match the network: {len(missing)} keys are missing ({list_some(missing)}), "
            f"{len(extra)} are not known ({list_some(extra)})."
        )
    shapes = [
        f"{key}: {tuple(state[key].shape)} where {tuple(wanted[key].shape)} is needed"
        for key in wanted
        if key in state and state[key].shape != wanted[key].shape
    ]
    if shapes:
        raise CheckpointError(f"{source} does not match the network: {list_some(shapes, '; ')}.")
    broken = [
        key for key, value in state.items() if value.is_floating_point() and not bool(torch.isfinite(value).all())
    ]
    if broken:
        raise CheckpointError(f"{source} has NaN or infinite weights: {list_some(broken)}. Get the file again.")


def initialise_convolutions(module: nn.Module) -> None:
    """Kaiming's normal weights, as ImageNet's convolutional networks begin."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
