"""The order of training: new each epoch, the same for any number of processes, without loss or doubling."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.errors import DataError
from tessera.train.batches.sampler import BalancedSampler, ShuffledSampler, members_of, share_of


def test_every_epoch_has_a_new_order_and_each_image_once() -> None:
    sampler = ShuffledSampler(100, 10, seed=4)
    orders = []
    for epoch in range(3):
        sampler.start_epoch(epoch)
        orders.append(np.concatenate([sampler.indices(step) for step in range(len(sampler))]))
        assert sorted(orders[-1]) == list(range(100))
    assert not np.array_equal(orders[0], orders[1]) and not np.array_equal(orders[1], orders[2])
    sampler.start_epoch(1)
    assert np.array_equal(sampler.indices(3), orders[1][30:40])


@pytest.mark.parametrize(("size", "parts"), [(1, 1), (2, 1), (4, 1), (2, 3), (1, 6)])
def test_processes_and_micro_batches_divide_a_batch_without_overlap(size: int, parts: int) -> None:
    batch = np.random.default_rng(0).permutation(24)
    shares = [share_of(batch, rank, size, parts) for rank in range(size)]
    assert all(len(share) == parts for share in shares)
    together = np.concatenate([share[part] for part in range(parts) for share in shares])
    assert np.array_equal(together, batch)


def test_tuples_stay_together() -> None:
    tuples = np.arange(4 * 7)
    first, second = (share_of(tuples, rank, 2, 2, group=7) for rank in range(2))
    assert [list(part) for part in first] == [list(range(0, 7)), list(range(14, 21))]
    assert [list(part) for part in second] == [list(range(7, 14)), list(range(21, 28))]


def test_a_batch_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(DataError, match="cannot be divided among 3 processes"):
        share_of(np.arange(8), 0, 3)


def test_too_few_images_for_a_batch_are_refused() -> None:
    with pytest.raises(DataError, match="5 training images, fewer than one batch of 8"):
        ShuffledSampler(5, 8, seed=0)


def test_balanced_batches_have_classes_of_the_size_asked_for_and_no_lonely_image() -> None:
    labels = np.array([0] * 5 + [1] + [2] * 3 + [3] * 4 + [4] * 2)
    sampler = BalancedSampler(labels, 8, 4, seed=1, steps_per_epoch=1)
    for epoch in range(20):
        sampler.start_epoch(epoch)
        found = labels[sampler.indices(0)]
        assert len(found) == 8 and 1 not in found
        assert sorted(np.unique(found, return_counts=True)[1]) == [4, 4]


def test_members_are_the_images_of_each_class() -> None:
    assert [list(m) for m in members_of([2, 0, 2, 1, 0])] == [[1, 4], [3], [0, 2]]
