"""Whitening against the field's numbers, and what it promises: unit variance, the start of a layer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tessera.errors import DataError, ModelError
from tessera.models.parts.whitening import HOW_FLOOR, fit_pca, load_into_layer


@pytest.fixture(scope="module")
def golden(golden_dir: Path) -> dict[str, np.ndarray]:
    with np.load(golden_dir / "pooling" / "whitening.npz") as file:
        return dict(file)


def agrees_up_to_sign(measured: np.ndarray, expected: np.ndarray) -> bool:
    """Columns equal but for their signs, to 1e-9 of the largest number."""
    signs = np.sign((measured * expected).sum(axis=0))
    return bool(np.abs(measured * signs - expected).max() <= 1e-9 * np.abs(expected).max())


def dots(rows: np.ndarray) -> np.ndarray:
    return rows @ rows.T


def test_pca_gives_the_golden_numbers(golden: dict[str, np.ndarray]) -> None:
    x = golden["X"].T
    whitening = fit_pca(x)
    assert np.abs(whitening.mean - golden["pca_m"][:, 0]).max() < 1e-12
    assert agrees_up_to_sign(whitening.projection, golden["pca_P"].T)
    assert np.abs(dots(whitening.apply(x)) - dots(golden["pca_apply"].T)).max() < 1e-9
    assert np.abs(dots(whitening.apply(x, 8)) - dots(golden["pca_apply8"].T)).max() < 1e-9
    assert np.array_equal(fit_pca(x, 8).apply(x), whitening.apply(x, 8))


@pytest.mark.parametrize("shrinkage", [1.0, 0.5])
def test_shrinkage_gives_the_golden_numbers(golden: dict[str, np.ndarray], shrinkage: float) -> None:
    x = golden["X"].T
    whitening = fit_pca(x, shrinkage=shrinkage, floor=HOW_FLOOR)
    assert agrees_up_to_sign(whitening.projection, golden[f"how_s{shrinkage}_P"])
    assert np.abs(dots(whitening.apply(x)) - dots(golden[f"how_s{shrinkage}_apply"])).max() < 1e-9
    assert np.abs(dots(whitening.apply(x, 8)) - dots(golden[f"how_s{shrinkage}_apply8"])).max() < 1e-9


def test_white_means_unit_variance_without_correlation() -> None:
    x = np.random.default_rng(1).standard_normal((200, 5)) @ np.random.default_rng(2).standard_normal((5, 5))
    white = fit_pca(x).project(x)
    assert np.abs(white.T @ white / len(x) - np.eye(5)).max() < 1e-10
    rotated = fit_pca(x, shrinkage=0.0).project(x)
    assert np.abs(dots(rotated) - dots(x - x.mean(axis=0))).max() < 1e-9


def test_directions_without_variance_are_refused_unless_cut_or_floored() -> None:
    x = np.random.default_rng(3).standard_normal((4, 6))
    with pytest.raises(DataError, match="span 3 dimensions"):
        fit_pca(x)
    assert fit_pca(x, 3).apply(x).shape == (4, 3)
    assert np.isfinite(fit_pca(x, floor=1e-6).apply(x)).all()


def test_wrong_descriptors_are_refused() -> None:
    x = np.random.default_rng(5).standard_normal((20, 3))
    whitening = fit_pca(x)
    with pytest.raises(DataError, match="3 numbers, not 4"):
        whitening.apply(np.zeros((2, 4)))
    with pytest.raises(DataError, match="components"):
        whitening.apply(x, 4)
    with pytest.raises(DataError, match="NaN"):
        fit_pca(np.full((3, 2), np.nan))
    with pytest.raises(DataError, match="rows"):
        fit_pca(np.zeros(3))


def test_a_layer_starts_as_the_whitening_of_its_input() -> None:
    x = np.random.default_rng(9).standard_normal((40, 6))
    whitening = fit_pca(x)
    layer = torch.nn.Conv2d(6, 4, 1).double()
    load_into_layer(layer, whitening)
    with torch.no_grad():
        outputs = layer(torch.from_numpy(x)[..., None, None])[..., 0, 0].numpy()
    assert np.abs(outputs - whitening.project(x, 4)).max() < 1e-10
    with pytest.raises(ModelError, match="cannot start a layer from 6 to 7"):
        load_into_layer(torch.nn.Linear(6, 7), whitening)
