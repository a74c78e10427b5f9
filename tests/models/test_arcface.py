"""ArcFace against a slow second writing in float64, angles worked by hand, and its corners."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tessera.errors import ConfigError
from tessera.models.losses import LOSSES, build_loss
from tessera.models.losses.arcface import ArcFace, ArcFaceConfig, add_angular_margin


def slow_arcface(x: np.ndarray, w: np.ndarray, labels: list[int], *, m: float, s: float, literal: bool) -> float:
    """Equation 12 and 13, one number at a time."""
    total = 0.0
    for row, label in zip(x, labels, strict=True):
        adjusted = []
        for k, classifier in enumerate(w):
            cosine = float(row @ classifier / np.linalg.norm(row) / np.linalg.norm(classifier))
            if k == label and (literal or math.acos(cosine) <= math.pi - m):
                cosine = math.cos(math.acos(cosine) + m)
            adjusted.append(s * cosine)
        total -= adjusted[label] - math.log(sum(math.exp(value) for value in adjusted))
    return total / len(labels)


@pytest.mark.parametrize("threshold", ["plain", "none"])
@pytest.mark.parametrize(("scale", "expected_scale"), [(32.0, 32.0), ("sqrt_dim", math.sqrt(6))])
def test_equals_the_slow_writing(threshold: str, scale: float | str, expected_scale: float) -> None:
    rng = np.random.default_rng(3)
    x, w, labels = rng.standard_normal((5, 6)) * 3, rng.standard_normal((4, 6)), [0, 3, 2, 1, 1]
    x[4] = -w[1] + 0.01 * rng.standard_normal(6)  # past pi - m, where the two thresholds part
    loss = build_loss("arcface", dim=6, num_classes=4, margin_rad=0.3, scale=scale, threshold=threshold).double()
    loss.load_state_dict({"weight": torch.from_numpy(w)})
    slow = slow_arcface(x, w, labels, m=0.3, s=expected_scale, literal=threshold == "none")
    measured = loss(torch.from_numpy(x), torch.tensor(labels)).item()
    assert measured == pytest.approx(slow, abs=1e-10)


def test_margin_by_hand() -> None:
    angles = torch.tensor([[0.5, 1.0], [math.pi - 0.1, 1.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0])
    plain = add_angular_margin(angles.cos(), labels, 0.2, "plain")
    literal = add_angular_margin(angles.cos(), labels, 0.2, "none")
    assert plain[0].tolist() == pytest.approx([math.cos(0.7), math.cos(1.0)])
    assert plain[1, 0].item() == pytest.approx(math.cos(math.pi - 0.1))  # left alone
    assert literal[1, 0].item() == pytest.approx(math.cos(math.pi + 0.1))  # has begun to rise again


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gradient_is_finite_on_the_class_vector(sign: float) -> None:
    loss = ArcFace(ArcFaceConfig(), dim=4, num_classes=3)
    x = (sign * loss.weight.detach()[:2]).requires_grad_()
    loss(x, torch.tensor([0, 1])).backward()
    assert x.grad is not None and torch.isfinite(x.grad).all()
    assert loss.weight.grad is not None and torch.isfinite(loss.weight.grad).all()


def test_half_precision_is_widened() -> None:
    loss = ArcFace(ArcFaceConfig(), dim=8, num_classes=3)
    x, labels = torch.randn(2, 8, generator=torch.Generator().manual_seed(0)).bfloat16(), torch.tensor([0, 2])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = loss.logits(x, labels)
    assert logits.dtype == torch.float32
    assert torch.allclose(logits, loss.logits(x.float(), labels), atol=1e-6)


def test_entry_says_what_it_needs() -> None:
    assert LOSSES["arcface"].batch == "labels"
    with pytest.raises(ConfigError, match="num_classes"):
        build_loss("arcface", dim=8)
    with pytest.raises(ConfigError, match="margin_rad"):
        build_loss("arcface", dim=8, num_classes=2, margin=0.1)
    with pytest.raises(ConfigError, match="scale"):
        build_loss("arcface", dim=8, num_classes=2, scale=-1.0)
    with pytest.raises(ConfigError, match="pi"):
        build_loss("arcface", dim=8, num_classes=2, margin_rad=4.0)
