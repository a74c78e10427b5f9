"""Losses over tuples, lists and maps against the field's numbers and slow second writings in float64."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tessera.errors import ConfigError
from tessera.models.losses import LOSSES, build_loss
from tessera.models.losses.listwise import ListwiseConfig, assign_bins
from tessera.models.losses.tuples import contrastive_loss, second_order_loss, triplet_loss


@pytest.fixture(scope="module")
def golden(golden_dir: Path) -> dict[str, np.ndarray]:
    with np.load(golden_dir / "pooling" / "losses.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def tuples(golden: dict[str, np.ndarray]) -> torch.Tensor:
    """The golden columns D x N, labelled -1 1 0 0 0 0 0, as T R D."""
    assert golden["label"].reshape(2, 7).tolist() == [[-1, 1, 0, 0, 0, 0, 0]] * 2
    return torch.from_numpy(golden["x"].T.reshape(2, 7, 6).copy())


@pytest.mark.parametrize("margin", [0.7, 0.8])
def test_contrastive_gives_the_golden_number(golden: dict, tuples: torch.Tensor, margin: float) -> None:
    loss = build_loss("contrastive", margin=margin)
    assert loss(tuples).item() == pytest.approx(float(golden[f"contrastive_m{margin}"]), abs=1e-6)


def test_triplet_and_second_order_give_the_golden_numbers(golden: dict, tuples: torch.Tensor) -> None:
    assert build_loss("triplet", reduction="sum")(tuples).item() == pytest.approx(
        float(golden["triplet_m0.1"]), abs=1e-6
    )
    per_tuple = float(golden["triplet_solar_m0.1"])
    assert build_loss("triplet")(tuples).item() == pytest.approx(per_tuple, abs=1e-6)
    assert second_order_loss(tuples).item() == pytest.approx(float(golden["sos"]), abs=1e-6)
    both = build_loss("solar", margin=0.1, second_order=10.0)(tuples).item()
    assert both == pytest.approx(per_tuple + 10 * float(golden["sos"]), abs=1e-5)


def slow_tuple_losses(tuples: np.ndarray, margin: float) -> tuple[float, float, float]:
    contrastive = triplet = second = 0.0
    for query, positive, *negatives in tuples:
        contrastive += 0.5 * sum((a - b + 1e-6) ** 2 for a, b in zip(query, positive, strict=True))
        for negative in negatives:
            distance = math.sqrt(sum((a - b + 1e-6) ** 2 for a, b in zip(query, negative, strict=True)))
            contrastive += 0.5 * max(margin - distance, 0) ** 2
            to_query, to_positive = np.sum((query - negative) ** 2), np.sum((positive - negative) ** 2)
            triplet += max(np.sum((query - positive) ** 2) - to_query + margin, 0)
            second += (to_query - to_positive) ** 2
    return contrastive, triplet, math.sqrt(second) / len(tuples)


def test_tuples_equal_the_slow_writing() -> None:
    rng = np.random.default_rng(2)
    tuples = rng.standard_normal((3, 5, 4))
    tuples /= np.linalg.norm(tuples, axis=-1, keepdims=True)
    x = torch.from_numpy(tuples)
    contrastive, triplet, second = slow_tuple_losses(tuples, 0.9)
    assert contrastive_loss(x, 0.9).item() == pytest.approx(contrastive, abs=1e-12)
    assert triplet_loss(x, 0.9).item() == pytest.approx(triplet, abs=1e-12)
    assert second_order_loss(x).item() == pytest.approx(second, abs=1e-12)


@pytest.mark.parametrize("name", ["contrastive", "triplet", "solar"])
def test_gradient_is_finite_where_all_descriptors_agree(name: str) -> None:
    x = torch.full((2, 4, 3), 3**-0.5, requires_grad=True)
    build_loss(name)(x).backward()
    assert x.grad is not None and torch.isfinite(x.grad).all()


def slow_listwise(x: np.ndarray, labels: list[int], num_bins: int) -> float:
    """One query at a time, one bin at a time."""
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    width, values = 1 / (num_bins - 1), []
    for q, query in enumerate(x):
        others = [i for i in range(len(x)) if i != q]
        total = sum(labels[i] == labels[q] for i in others)
        if not total:
            continue
        seen = hits = value = 0.0
        for m in range(num_bins):
            centre = 1 - m * width
            share = {i: max(1 - abs(min(max(query @ x[i], 0), 1) - centre) / width, 0) for i in others}
            new = sum(share[i] for i in others if labels[i] == labels[q])
            seen, hits = seen + sum(share.values()), hits + new
            value += new / total * (hits / (seen + 1e-16))
        values.append(value)
    return 1 - sum(values) / len(values)


def test_listwise_equals_the_slow_writing() -> None:
    rng = np.random.default_rng(7)
    x, labels = rng.standard_normal((9, 5)), [0, 0, 1, 1, 1, 2, 0, 3, 2]  # class 3 has one image
    loss = build_loss("listwise-ap", num_bins=11)
    measured = loss(torch.from_numpy(x), torch.tensor(labels)).item()
    assert measured == pytest.approx(slow_listwise(x, labels, 11), abs=1e-10)


def test_listwise_is_zero_for_a_perfect_ranking_and_falls_when_followed() -> None:
    loss = build_loss("listwise-ap")
    labels = torch.tensor([0, 0, 1, 1])
    assert loss(torch.eye(2)[labels], labels).item() == pytest.approx(0, abs=1e-6)
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    labels = torch.arange(8) % 4
    before = loss(x, labels)
    (gradient,) = torch.autograd.grad(before, x)
    assert loss(x - 0.05 * gradient / gradient.norm(), labels).item() < before.item()


def test_listwise_without_pairs_is_zero_and_tied_to_the_input() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    loss = build_loss("listwise-ap")(x, torch.arange(3))
    loss.backward()
    assert loss.item() == 0 and x.grad is not None and not x.grad.any()


def test_bins_share_a_similarity_between_neighbours() -> None:
    shares = assign_bins(torch.tensor([1.0, 0.875, 0.25, -0.5]), ListwiseConfig(num_bins=5))
    assert shares.tolist() == [[1, 0, 0, 0, 0], [0.5, 0.5, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]


def test_reconstruction_leaves_the_features_alone() -> None:
    features = torch.randn(2, 3, 4, 5, requires_grad=True)
    restored = torch.randn(2, 3, 4, 5, requires_grad=True)
    loss = build_loss("reconstruction")(features, restored)
    expected = (
        10
        * sum((r - f) ** 2 for r, f in zip(restored.flatten().tolist(), features.flatten().tolist(), strict=True))
        / 120
    )
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert features.grad is None and restored.grad is not None and restored.grad.any()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("contrastive", {"margin": 0.0}),
        ("triplet", {"margin": -1.0}),
        ("solar", {"second_order": -1.0}),
        ("listwise-ap", {"num_bins": 1}),
        ("reconstruction", {"weight": -1.0}),
        ("triplet", {"reduction": "mean"}),
    ],
)
def test_wrong_settings_are_refused(name: str, wrong: dict) -> None:
    with pytest.raises(ConfigError):
        build_loss(name, **wrong)


def test_the_table_loads_no_torch() -> None:
    code = "import sys; from tessera.models.losses import LOSSES; print(*LOSSES); sys.exit('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0 and run.stdout.split() == list(LOSSES)
