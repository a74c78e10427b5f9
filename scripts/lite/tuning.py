"""Move the backbone a little, so that verified photos of one view agree and strangers do not.

Thirty landmarks teach a backbone their names and make it forget the rest, unless it is held: the tokenizer and W_g
stay as they were fitted, steps are small beside each weight, the end is the running average, and only a part of the way
to it is gone. The loss compares each positive with the negatives alone. With the other positives among them (the usual
contrast of many positives) it cannot fall below the logarithm of their number, and the weights drifted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from views import Picture, make_hard_view, normalise

from tessera.models.backbones.mobile import EfficientNetLite
from tessera.models.global_network import GlobalNetwork

SHAPES = ((192, 256), (256, 192), (224, 224), (192, 256))  # of a step's views: most photos are wide
MASKED = -1e4
Labels = NDArray[np.int64]
State = dict[str, Tensor]


@dataclass(frozen=True)
class Tuning:
    """pairs: of verified photos a step; singles: photos seen twice themselves; step_size: of Adam, as a share of a
    tensor's root mean square; kept: how far from the start to the averaged end the weights go."""

    steps: int = 0
    pairs: int = 16
    singles: int = 6
    step_size: float = 2e-4
    warm_up: int = 50
    temperature: float = 0.05
    memory: int = 2048
    averaging: float = 0.99
    frozen_blocks: int = 5
    kept: float = 0.75


def tune_backbone(
    network: GlobalNetwork,
    pictures: Sequence[Picture],
    instances: Labels,
    landmarks: Labels,
    tuning: Tuning,
    seed: int,
    checkpoints: Path | None = None,
) -> None:
    """Change the backbone of a fitted network in place. Pictures are those of all photos, in memory.

    checkpoints: a folder for what the backbone would be if this were the end, every 40 steps.
    """
    backbone = network.backbone
    assert isinstance(backbone, EfficientNetLite)
    network.eval().requires_grad_(False)  # norms keep their statistics
    fold_scales(backbone)
    parts = [*backbone._blocks[tuning.frozen_blocks :], backbone._conv_head, backbone._bn1]
    layers = [layer for part in parts for layer in part.modules()]
    moved = [layer.weight for layer in layers if isinstance(layer, nn.Conv2d)]
    moved += [layer.bias for layer in layers if isinstance(layer, nn.BatchNorm2d)]
    for weight in moved:
        weight.requires_grad_(True)
    start, average = deepcopy(backbone.state_dict()), deepcopy(backbone.state_dict())
    rates = [tuning.step_size * float(weight.detach().square().mean().sqrt()) for weight in moved]
    optimiser = torch.optim.Adam([{"params": [weight], "lr": 0.0} for weight in moved], betas=(0.9, 0.99))
    memory = Memory(tuning.memory, network.dim)
    losses = []
    for step, (rows, images) in enumerate(iterate_batches(network, pictures, instances, tuning, seed)):
        descriptors = network(images)["descriptor"]
        instance, landmark = torch.from_numpy(instances[rows]), torch.from_numpy(landmarks[rows])
        loss = contrast(descriptors, instance, landmark, memory, tuning.temperature)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        share = min(1.0, (step + 1) / tuning.warm_up) * 0.5 * (1 + np.cos(np.pi * step / tuning.steps))
        for group, rate in zip(optimiser.param_groups, rates, strict=True):
            group["lr"] = rate * share
        optimiser.step()
        memory.add(descriptors.detach(), instance, landmark)
        follow(average, backbone.state_dict(), min(tuning.averaging, step / (step + 10)))
        losses.append(loss.item())
        if (step + 1) % 20 == 0:
            print(f"step {step + 1} of {tuning.steps}: loss {np.mean(losses[-20:]):.3f}", flush=True)
        if checkpoints and (step + 1) % 40 == 0:
            state = deepcopy(average)
            follow(state, start, tuning.kept)
            torch.save(state, checkpoints / f"step-{step + 1}.pt")
    follow(average, start, tuning.kept)
    backbone.load_state_dict(average)
    network.requires_grad_(True)


class Memory:
    """The last descriptors with their labels: negatives that cost nothing, since the weights move slowly."""

    def __init__(self, size: int, dim: int) -> None:
        self.size = size
        self.descriptors = torch.zeros(0, dim)
        self.instances = self.landmarks = torch.zeros(0, dtype=torch.long)

    def add(self, descriptors: Tensor, instances: Tensor, landmarks: Tensor) -> None:
        self.descriptors = torch.cat([descriptors, self.descriptors])[: self.size]
        self.instances = torch.cat([instances, self.instances])[: self.size]
        self.landmarks = torch.cat([landmarks, self.landmarks])[: self.size]


def contrast(descriptors: Tensor, instances: Tensor, landmarks: Tensor, memory: Memory, temperature: float) -> Tensor:
    """Each positive against all negatives, averaged over an image's positives, then over images.

    Positives share the instance; photos of the same landmark that geometry did not connect are neither.
    """
    similarities = descriptors @ torch.cat([descriptors, memory.descriptors]).T / temperature  # B B+M
    same = instances[:, None] == torch.cat([instances, memory.instances])
    near = landmarks[:, None] == torch.cat([landmarks, memory.landmarks])
    positive = same.clone().fill_diagonal_(False)
    negatives = similarities.masked_fill(same | near, MASKED).logsumexp(dim=1, keepdim=True)
    losses = F.softplus(negatives - similarities) * positive
    found = positive.sum(dim=1)
    return (losses.sum(dim=1) / found.clamp_min(1))[found > 0].mean()


def iterate_batches(
    network: GlobalNetwork, pictures: Sequence[Picture], instances: Labels, tuning: Tuning, seed: int
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """The rows and images of every step; the next ones are made while a step runs."""
    members: dict[int, list[int]] = defaultdict(list)
    for row, instance in enumerate(instances.tolist()):
        members[instance].append(row)
    groups = [rows for rows in members.values() if len(rows) > 1]
    singles = [rows[0] for rows in members.values() if len(rows) == 1]

    def make(step: int) -> tuple[NDArray[np.int64], Tensor]:
        rng = np.random.default_rng([seed, step])
        chosen = rng.choice(len(groups), tuning.pairs, replace=False)
        rows = [row for group in chosen for row in rng.choice(groups[group], 2, replace=False)]
        rows += [row for row in rng.choice(singles, tuning.singles, replace=False) for _ in range(2)]
        shape = SHAPES[step % len(SHAPES)]
        backgrounds = rng.integers(len(pictures), size=len(rows))
        views = [
            make_hard_view(pictures[row], pictures[other], shape, rng)
            for row, other in zip(rows, backgrounds, strict=True)
        ]
        return np.array(rows), normalise(np.stack(views), network.backbone)

    with ThreadPoolExecutor(1) as pool:
        waiting = [pool.submit(make, step) for step in range(min(2, tuning.steps))]
        for step in range(tuning.steps):
            if step + 2 < tuning.steps:
                waiting.append(pool.submit(make, step + 2))
            yield waiting.pop(0).result()


@torch.no_grad()
def follow(state: State, target: State, memory: float) -> None:
    """Move to `memory` of the state and the rest of the target."""
    for key, value in state.items():
        if value.is_floating_point():
            value.lerp_(target[key], 1 - memory)


@torch.no_grad()
def fold_scales(backbone: nn.Module) -> None:
    """Put each norm's scale into the convolution before it and leave the norm a bias alone: the same function.

    A step that is small beside a tensor is then small beside what the tensor does; with the scales apart the same steps
    gained half as much.
    """
    layers = [layer for layer in backbone.modules() if isinstance(layer, nn.Conv2d | nn.BatchNorm2d)]
    for convolution, norm in zip(layers[::2], layers[1::2], strict=True):
        assert isinstance(convolution, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d)
        assert norm.running_var is not None and norm.running_mean is not None
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        convolution.weight.mul_(scale[:, None, None, None])
        norm.bias.sub_(norm.running_mean * scale)
        norm.weight.fill_(1)
        norm.running_mean.zero_()
        norm.running_var.fill_(1 - norm.eps)
