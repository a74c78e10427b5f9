"""Tuples with hard negatives, mined anew each epoch with the network as it is (HOW, GeM, SOLAR, R-MAC)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessera.errors import DataError
from tessera.train.batches.sampler import Indices, members_of

_MINING_STREAM = 0x713E

Describe = Callable[[Indices], Tensor]  # images to unit descriptors, N D, the same on every process


class TupleSampler:
    """Batches of tuples: a query, a positive, and the nearest images of the pool that are of other classes.

    labels: N. pairs: P 2, the only pairs of query and positive (SfM-120k); None draws them from the classes.
    The negatives of a tuple are of different classes each, as the field's code has it: ten photos of one look-alike
    teach little more than one. A class with a single image gives negatives, never queries.
    """

    def __init__(
        self,
        labels: Indices,
        describe: Describe,
        *,
        batch_size: int,
        queries: int,
        pool: int,
        negatives: int,
        seed: int,
        pairs: Indices | None = None,
    ) -> None:
        self.labels, self.describe, self.pairs = np.asarray(labels), describe, pairs
        self.batch_size, self.seed = batch_size, seed
        self.negatives, self.group = negatives, negatives + 2
        self._members = {int(labels[m[0]]): m for m in members_of(labels)}
        if len(self._members) <= negatives:
            raise DataError(
                f"{negatives} negatives of different classes need at least {negatives + 1} classes; "
                f"there are {len(self._members)}."
            )
        counts = np.array([len(self._members[int(label)]) for label in self.labels])
        self.anchors: Indices = np.arange(len(pairs)) if pairs is not None else np.flatnonzero(counts > 1)
        if len(self.anchors) < batch_size:
            raise DataError(f"{len(self.anchors)} images have a positive, fewer than one batch of {batch_size} tuples.")
        self.queries = min(queries, len(self.anchors)) // batch_size * batch_size
        self.pool = min(pool, len(self.labels))
        self.tuples: Indices = np.empty((0, self.group), dtype=np.int64)

    def start_epoch(self, epoch: int) -> None:
        random = np.random.default_rng((self.seed, epoch, _MINING_STREAM))
        anchors = random.choice(self.anchors, self.queries, replace=False)
        if self.pairs is not None:
            queries, positives = self.pairs[anchors].T
        else:
            queries = anchors
            positives = np.array([self._positive(int(query), random) for query in queries])
        pool = np.sort(random.choice(len(self.labels), self.pool, replace=False))
        negatives = self._nearest(queries, pool)
        self.tuples = np.column_stack([queries, positives, negatives]).astype(np.int64)

    def __len__(self) -> int:
        return self.queries // self.batch_size

    def indices(self, step: int) -> Indices:
        return self.tuples[step * self.batch_size : (step + 1) * self.batch_size].reshape(-1)

    def state(self) -> dict[str, Any]:
        """The tuples themselves: a run resumed in the middle of an epoch has no longer the network that mined them."""
        return {"tuples": torch.from_numpy(self.tuples.copy())}

    def start_epoch_at(self, epoch: int, state: dict[str, Any]) -> None:
        del epoch
        self.tuples = state["tuples"].numpy().copy()

    def _positive(self, query: int, random: np.random.Generator) -> int:
        others = self._members[int(self.labels[query])]
        choice = int(random.integers(len(others) - 1))
        return int(others[choice] if others[choice] != query else others[-1])

    def _nearest(self, queries: Indices, pool: Indices) -> Indices:
        """The hardest negatives of each query, nearest first, at most one a class: Q negatives."""
        wanted = np.unique(np.concatenate([queries, pool]))
        described = self.describe(wanted)
        rows = {int(index): row for row, index in enumerate(wanted)}
        of_pool = described[[rows[int(i)] for i in pool]]
        chosen = np.empty((len(queries), self.negatives), dtype=np.int64)
        pool_labels = self.labels[pool]
        for number, query in enumerate(queries):
            similar = (of_pool @ described[rows[int(query)]]).cpu().numpy()
            order = np.argsort(-similar, kind="stable")
            order = order[pool_labels[order] != self.labels[query]]
            _, first = np.unique(pool_labels[order], return_index=True)  # the nearest of each class
            nearest = order[np.sort(first)[: self.negatives]]
            if len(nearest) < self.negatives:
                raise DataError(
                    f"the pool of {self.pool} images has too few other classes for {self.negatives} negatives: "
                    "choose a larger task.pool or fewer task.negatives."
                )
            chosen[number] = pool[nearest]
        return chosen
