"""Tuples: negatives are hard, of other classes, and change with the network; two passes equal one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tessera.errors import DataError
from tessera.train.batches.mining import TupleSampler
from tessera.train.batches.sampler import Indices
from tessera.train.loop import Trainer
from tessera.train.records.scalars import read_scalars

LABELS = np.repeat(np.arange(6), 4)


def sampler_over(points: Tensor, **options: Any) -> TupleSampler:
    """A sampler whose descriptors are given points, N D."""
    values = {"batch_size": 2, "queries": 6, "pool": 24, "negatives": 3, "seed": 0, **options}
    return TupleSampler(LABELS, lambda indices: points[torch.from_numpy(indices)], **values)


def random_points(seed: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(24, 8, generator=torch.Generator().manual_seed(seed)), dim=1)


def slow_negatives(points: Tensor, query: int, pool: Indices, count: int) -> list[int]:
    """The definition, one image at a time."""
    chosen: list[int] = []
    classes = {int(LABELS[query])}
    for other in sorted(pool, key=lambda index: -float(points[index] @ points[query])):
        if int(LABELS[other]) not in classes:
            classes.add(int(LABELS[other]))
            chosen.append(int(other))
    return chosen[:count]


def test_negatives_are_the_nearest_one_of_each_other_class() -> None:
    points = random_points(1)
    sampler = sampler_over(points)
    sampler.start_epoch(0)
    assert sampler.tuples.shape == (6, 5) and len(sampler) == 3
    for query, positive, *negatives in sampler.tuples.tolist():
        assert LABELS[positive] == LABELS[query] and positive != query
        assert negatives == slow_negatives(points, query, np.arange(24), 3)


def test_the_network_decides_and_each_epoch_draws_anew() -> None:
    one, other = sampler_over(random_points(1)), sampler_over(random_points(2))
    one.start_epoch(0)
    other.start_epoch(0)
    assert np.array_equal(one.tuples[:, :2], other.tuples[:, :2])
    assert not np.array_equal(one.tuples[:, 2:], other.tuples[:, 2:])
    first = one.tuples.copy()
    one.start_epoch(1)
    assert not np.array_equal(first[:, 0], one.tuples[:, 0])


def test_a_smaller_pool_limits_the_negatives() -> None:
    sampler = sampler_over(random_points(1), pool=18)
    sampler.start_epoch(0)
    assert len(np.unique(sampler.tuples[:, 2:])) <= 18


def test_given_pairs_are_the_only_ones() -> None:
    pairs = np.array([[0, 1], [4, 6], [9, 8], [20, 21]])
    sampler = sampler_over(random_points(1), pairs=pairs, queries=4)
    sampler.start_epoch(0)
    assert sorted(map(tuple, sampler.tuples[:, :2].tolist())) == sorted(map(tuple, pairs.tolist()))


def test_too_few_classes_or_pairs_are_refused() -> None:
    with pytest.raises(DataError, match="need at least 7 classes"):
        sampler_over(random_points(1), negatives=6)
    with pytest.raises(DataError, match="fewer than one batch"):
        sampler_over(random_points(1), pairs=np.array([[0, 1]]))
    lonely = TupleSampler(
        np.arange(5).repeat([2, 2, 2, 1, 1]),
        lambda i: random_points(0)[i],
        batch_size=1,
        queries=9,
        pool=8,
        negatives=2,
        seed=0,
    )
    assert lonely.anchors.tolist() == [0, 1, 2, 3, 4, 5]


def test_an_epoch_is_taken_up_in_its_middle_with_the_tuples_it_had() -> None:
    sampler, later = sampler_over(random_points(1)), sampler_over(random_points(2))
    sampler.start_epoch(3)
    later.start_epoch_at(3, sampler.state())
    assert np.array_equal(later.indices(2), sampler.indices(2))


EASY = {"area": (0.8, 1.0), "jitter": (0.0, 0.0, 0.0, 0.0)}
TUPLES: dict[str, Any] = {
    "task": {"kind": "tuples", "queries": 16, "pool": 40, "negatives": 3},
    "loop": {"batch_size": 4, "epochs": 4, "freeze_batch_norm": True},
    "data": {"held_out": 0.0},
    "transform": EASY,
}


def loss_on(trainer: Trainer, tuples: Indices) -> float:
    """The loss of given tuples with the network as it is."""
    trainer.objective.eval()
    with torch.no_grad():
        ((inputs, _),) = trainer.run.loader.batches([tuples.reshape(-1)], 99)
        return float(trainer.objective(inputs, torch.zeros(0))["loss"])


@pytest.mark.parametrize(
    ("loss", "model"),
    [
        (
            {"name": "contrastive", "config": {"margin": 0.8}},
            {"name": "how-r18", "config": {"backbone": "tiny", "dim": 16}},
        ),
        (
            {"name": "contrastive", "config": {"margin": 0.8}},
            {"name": "gem-r50", "config": {"backbone": "tiny", "dim": 16}},
        ),
        (
            {"name": "solar", "config": {"margin": 0.4}},
            {"name": "solar-r50", "config": {"backbone": "tiny", "dim": 16}},
        ),
        (
            {"name": "triplet", "config": {"margin": 0.5}},
            {"name": "rmac-r50", "config": {"backbone": "tiny", "dim": 16}},
        ),
    ],
)
def test_the_loss_falls_and_mined_negatives_change(
    make_trainer: Callable[..., Trainer], loss: dict[str, Any], model: dict[str, Any]
) -> None:
    trainer = make_trainer(loss=loss, model=model, optimiser={"name": "adam", "rate": 0.005}, **TUPLES)
    sampler: Any = trainer.run.sampler
    sampler.start_epoch(0)
    first = sampler.tuples.copy()
    before = loss_on(trainer, first)
    trainer.train()
    assert loss_on(trainer, first) < 0.8 * before
    trainer.run.loader.photos.close()
    sampler.start_epoch(0)  # the same queries and pool, another network
    assert np.array_equal(sampler.tuples[:, :2], first[:, :2])
    assert not np.array_equal(sampler.tuples[:, 2:], first[:, 2:])


def test_a_tuple_run_broken_in_mid_epoch_keeps_its_tuples(make_trainer: Callable[..., Trainer]) -> None:
    tables = {
        **TUPLES,
        "loss": {"name": "contrastive"},
        "loop": {**TUPLES["loop"], "checkpoint_minutes": 0.0, "epochs": 2},
    }
    alone = make_trainer("alone", **tables)
    alone.train()
    broken = make_trainer("broken", **tables)
    broken.run.sampler.start_epoch(0)
    broken._sampler_ready = True
    broken._to_training()
    broken._step(next(broken._batches()))
    broken.save()
    resumed = make_trainer("broken", **tables)
    resumed.resume()
    resumed.train()
    first, second = alone.objective.state_dict(), resumed.objective.state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


LISTWISE: dict[str, Any] = {
    "task": {"kind": "listwise", "per_class": 4, "chunk": 4},
    "loss": {"name": "listwise-ap"},
    "data": {"held_out": 0.0},
}


def test_two_passes_give_the_gradient_of_one(make_trainer: Callable[..., Trainer]) -> None:
    loop = {"batch_size": 16, "freeze_batch_norm": True, "epochs": 1}
    trainer = make_trainer(loop=loop, **LISTWISE)
    trainer.run.sampler.start_epoch(0)
    trainer._to_training()
    state = torch.get_rng_state()
    (parts,) = [next(trainer._batches())]
    inputs, labels = parts[0]
    torch.set_rng_state(state)
    # Dropout draws chunk by chunk, so the oracle must too.
    rows = torch.cat([trainer.objective.describe(inputs[i : i + 4]) for i in range(0, 16, 4)])
    whole = trainer.objective.loss(rows, labels)
    whole.backward()
    expected = {name: p.grad.clone() for name, p in trainer.objective.named_parameters() if p.grad is not None}
    torch.set_rng_state(state)
    trainer.precision.step = lambda *_: 0.0  # type: ignore[method-assign, assignment]
    loss = trainer._step(parts)
    assert loss == pytest.approx(float(whole.detach()), abs=1e-6)
    found = {name: p.grad for name, p in trainer.objective.named_parameters() if p.grad is not None}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, rtol=1e-3, atol=1e-6), name


def test_the_listwise_loss_falls(make_trainer: Callable[..., Trainer]) -> None:
    trainer = make_trainer(
        loop={"batch_size": 16, "freeze_batch_norm": True, "epochs": 4, "steps_per_epoch": 3},
        optimiser={"name": "adam", "rate": 0.002},
        model={"name": "gem-ap-r50", "config": {"backbone": "tiny", "dim": 16}},
        transform=EASY,
        **LISTWISE,
    )
    trainer.train()
    curve = [row["value"] for row in read_scalars(trainer.run_dir / "scalars.csv") if row["name"] == "loss"]
    assert sum(curve[-3:]) < 0.85 * sum(curve[:3])
