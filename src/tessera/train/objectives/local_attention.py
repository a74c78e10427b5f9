"""Learning local features: attention by classifying with it, an autoencoder by giving features back (DELF, DELG).

DELF trains them in a second stage over a backbone that is finished; DELG in the same run as the global descriptor, with
the local branch's gradient cut before the backbone. Either way the branch follows the backbone and never bends it.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F

from tessera.models.compared.delf import DelfNetwork
from tessera.models.compared.delg import JointNetwork
from tessera.models.losses import build_loss
from tessera.train.batches.inputs import Inputs
from tessera.train.objectives.objective import Objective
from tessera.train.recipe import TaskSection


class SoftmaxLoss(nn.Module):
    """A plain classifier with cross-entropy over what the attention pooled, B C."""

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(dim, num_classes)

    def cosines(self, pooled: Tensor) -> Tensor:
        """Scores of each class, B K, in the order that the loss has them; for accuracy."""
        return cast(Tensor, self.linear(pooled))

    def forward(self, pooled: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.linear(pooled), labels)


def build_local_loss(task: TaskSection, dim: int, num_classes: int) -> nn.Module:
    """softmax as DELF and DELG have it, or the small ArcFace (scale sqrt(dim)) of the authors' re-implementation."""
    if task.local_loss == "softmax":
        return SoftmaxLoss(dim, num_classes)
    return build_loss("arcface", dim=dim, num_classes=num_classes, margin_rad=task.local_margin_rad, scale="sqrt_dim")


class AttentionObjective(Objective):
    """The second stage: the backbone stands still, attention and autoencoder learn."""

    network: DelfNetwork

    def __init__(
        self, network: DelfNetwork, loss: nn.Module, reconstruction: nn.Module, weight: float, *, on_maps: bool
    ) -> None:
        super().__init__(network, loss, on_maps=on_maps)
        self.reconstruction, self.weight = reconstruction, weight

    @property
    def trains_backbone(self) -> bool:
        return False

    def forward(self, inputs: Inputs, labels: Tensor, gradient: Tensor | None = None) -> dict[str, Tensor]:
        del gradient
        assert isinstance(inputs, Tensor), "attention is trained on crops of one size"
        if self.on_maps:
            local = self.network.local(inputs)
            pooled = self.network.local.pool(local)
        else:
            pooled, local = self.network.describe_local(inputs)
        classified = self.loss(pooled, labels) * self.weight
        restored = self.reconstruction(local.features, local.restored)
        return {"loss": classified + restored, "attention": classified.detach(), "reconstruction": restored.detach()}


class JointObjective(Objective):
    """DELG in one run: the global loss, the attention's and the reconstruction's, each on its own parameters."""

    network: JointNetwork

    def __init__(
        self, network: JointNetwork, loss: nn.Module, local_loss: nn.Module, reconstruction: nn.Module, weight: float
    ) -> None:
        super().__init__(network, loss)
        self.local_loss, self.reconstruction, self.weight = local_loss, reconstruction, weight

    def forward(self, inputs: Inputs, labels: Tensor, gradient: Tensor | None = None) -> dict[str, Tensor]:
        del gradient
        assert isinstance(inputs, Tensor), "DELG is trained on crops of one size"
        joint = self.network.describe_joint(inputs)
        parts = {
            "global": self.loss(joint.raw, labels),
            "attention": self.local_loss(joint.pooled, labels) * self.weight,
        }
        if joint.local is not None:  # the authors' re-implementation has no autoencoder
            parts["reconstruction"] = self.reconstruction(joint.local.features, joint.local.restored)
        total = sum(parts.values(), start=joint.raw.new_zeros(()))
        return {"loss": total, **{name: value.detach() for name, value in parts.items()}}
