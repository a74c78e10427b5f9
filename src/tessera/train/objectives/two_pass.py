"""A loss over a batch that does not fit into memory: descriptors first, gradients after (GeM-AP)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import distributed as dist

from tessera.train.batches.inputs import Inputs
from tessera.train.distributed import World
from tessera.train.objectives.objective import ForwardBackward, MicroBatch, Objective


class ListObjective(Objective):
    """A listwise loss in two passes.

    The first gives all descriptors without a graph, and the loss its gradient at each; the second runs chunk by chunk
    with a graph and takes that gradient further down. Batch norm must be frozen: a chunk is not the batch.
    """

    def forward(self, inputs: Inputs, labels: Tensor, gradient: Tensor | None = None) -> dict[str, Tensor]:
        descriptors = self.describe(inputs)
        if gradient is None:
            return {"loss": self.loss(descriptors, labels)}
        return {"loss": (descriptors * gradient).sum()}

    def accumulate(
        self, forward_backward: ForwardBackward, parts: list[MicroBatch], *, chunk: int, world: World
    ) -> float:
        """Add the gradient of the loss over the whole global batch.

        Random numbers are put back before the second pass, or dropout would differ between the two.
        """
        pieces = [piece for inputs, labels in parts for piece in _split(inputs, labels, chunk)]
        states = []
        described = []
        with torch.no_grad():
            for inputs, _ in pieces:
                states.append(torch.get_rng_state())
                described.append(self.describe(inputs))
        after = torch.get_rng_state()
        labels = torch.cat([piece_labels for _, piece_labels in pieces])
        loss, gradient = self._loss_and_gradient(torch.cat(described), labels, world)
        start = 0
        for number, (inputs, piece_labels) in enumerate(pieces):
            torch.set_rng_state(states[number])
            rows = gradient[start : start + len(piece_labels)]
            # DDP takes the mean over processes of what must be a sum: each holds other images of one loss.
            forward_backward(inputs, piece_labels, rows, float(world.size), last=number == len(pieces) - 1)
            start += len(piece_labels)
        torch.set_rng_state(after)
        return loss

    def _loss_and_gradient(self, descriptors: Tensor, labels: Tensor, world: World) -> tuple[float, Tensor]:
        """The loss over the descriptors of all processes, and its gradient at those of this one."""
        everyone, all_labels = descriptors, labels
        if world.size > 1:
            rows = [torch.empty_like(descriptors) for _ in range(world.size)]
            names = [torch.empty_like(labels) for _ in range(world.size)]
            dist.all_gather(rows, descriptors)
            dist.all_gather(names, labels)
            everyone, all_labels = torch.cat(rows), torch.cat(names)
        everyone = everyone.detach().requires_grad_()
        loss = self.loss(everyone, all_labels)
        (gradient,) = torch.autograd.grad(loss, everyone)
        start = world.rank * len(descriptors)
        return float(loss.detach()), gradient[start : start + len(descriptors)]


def _split(inputs: Inputs, labels: Tensor, chunk: int) -> list[MicroBatch]:
    return [(inputs[start : start + chunk], labels[start : start + chunk]) for start in range(0, len(labels), chunk)]
