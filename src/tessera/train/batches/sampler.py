"""Which images make up each step: a new order every epoch, the same on every process, each taking its own share.

The order depends on the seed and the epoch alone and is cut into global batches first, so that one process and eight
take the same steps, and a run can go on from any step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tessera.errors import DataError

Indices = npt.NDArray[np.int64]

_ORDER_STREAM = 0x0BDE  # keeps the order's random numbers apart from those of the images


class Sampler(Protocol):
    """The batches of one epoch. `indices(step)` are the images of the whole global batch, processes together.

    group: so many images in a row belong together (a tuple) and go to the same process.
    """

    group: int

    def start_epoch(self, epoch: int) -> None: ...
    def __len__(self) -> int: ...
    def indices(self, step: int) -> Indices: ...
    def state(self) -> dict[str, Any]: ...
    def start_epoch_at(self, epoch: int, state: dict[str, Any]) -> None: ...


class ShuffledSampler:
    """Every image once an epoch, in a new order; the last, incomplete batch is left out."""

    group = 1

    def __init__(self, total: int, batch_size: int, seed: int, steps_per_epoch: int = 0) -> None:
        if total < batch_size:
            raise DataError(
                f"there are {total} training images, fewer than one batch of {batch_size}: "
                "choose a smaller loop.batch_size."
            )
        self.total, self.batch_size, self.seed = total, batch_size, seed
        self.steps = min(total // batch_size, steps_per_epoch or total)
        self._order = np.arange(total)

    def start_epoch(self, epoch: int) -> None:
        self._order = random_order(self.total, self.seed, epoch)

    def __len__(self) -> int:
        return self.steps

    def indices(self, step: int) -> Indices:
        return self._order[step * self.batch_size : (step + 1) * self.batch_size]

    def state(self) -> dict[str, Any]:
        return {}

    def start_epoch_at(self, epoch: int, state: dict[str, Any]) -> None:
        """Take up an epoch in its middle, with what `state` gave."""
        del state
        self.start_epoch(epoch)


class BalancedSampler(ShuffledSampler):
    """Batches of `per_class` images a class, for a loss that ranks a batch and needs positives in it.

    Classes with a single image have no positive and are left out; a class with fewer images repeats them.
    """

    def __init__(
        self, labels: Sequence[int] | Indices, batch_size: int, per_class: int, seed: int, steps_per_epoch: int = 0
    ) -> None:
        self.members = [m for m in members_of(labels) if len(m) > 1]
        self.per_class = per_class
        self.classes = batch_size // per_class
        if self.classes < 2 or len(self.members) < self.classes:
            raise DataError(
                f"a batch of {batch_size} with {per_class} images a class needs at least two and here {self.classes} "
                f"classes with more than one image; there are {len(self.members)}."
            )
        super().__init__(len(labels), self.classes * per_class, seed, steps_per_epoch)

    def start_epoch(self, epoch: int) -> None:
        random = np.random.default_rng((self.seed, epoch, _ORDER_STREAM))
        batches = []
        for _ in range(self.steps):
            chosen = random.choice(len(self.members), self.classes, replace=False)
            rows = [self.members[c] for c in chosen]
            batches += [random.choice(row, self.per_class, replace=len(row) < self.per_class) for row in rows]
        self._order = np.concatenate(batches)


def random_order(total: int, seed: int, epoch: int) -> Indices:
    """A permutation that depends on the seed and the epoch alone."""
    return np.random.default_rng((seed, epoch, _ORDER_STREAM)).permutation(total)


def share_of(indices: Indices, rank: int, size: int, parts: int = 1, group: int = 1) -> list[Indices]:
    """The images of one process in a global batch, in `parts` micro-batches.

    A micro-batch of all processes together is a contiguous piece of the global batch, so that accumulating and dividing
    among processes can be exchanged for each other.
    """
    units = len(indices) // group
    if units % (size * parts):
        raise DataError(
            f"a batch of {units} cannot be divided among {size} processes and {parts} micro-batches: choose a "
            "loop.batch_size that is a multiple of both."
        )
    pieces = indices.reshape(parts, size, -1)
    return [pieces[part, rank] for part in range(parts)]


def members_of(labels: Sequence[int] | Indices) -> list[Indices]:
    """The images of each class, classes in ascending order."""
    values = np.asarray(labels)
    order = np.argsort(values, kind="stable")
    cuts = np.flatnonzero(np.diff(values[order])) + 1
    return list(np.split(order, cuts))
