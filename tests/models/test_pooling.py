"""Pooling against the field's own numbers and against slow second writings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tessera.models.compared.rmac import RMAC, Rpool, pool_regions, pool_regions_masked, region_windows
from tessera.models.parts.pooling import (
    MAC,
    CroW,
    GeM,
    Linear1x1,
    SPoC,
    normalise,
    pool_crow,
    pool_gem,
    pool_mac,
    pool_spoc,
)

SIZES = ["wide", "tall", "square", "tiny", "one", "verywide", "r224x320"]


@pytest.fixture(scope="module")
def golden(golden_dir: Path) -> dict[str, np.ndarray]:
    with np.load(golden_dir / "pooling" / "pooling.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def meta(golden_dir: Path) -> dict:
    return json.loads((golden_dir / "pooling" / "meta.json").read_text())


@pytest.mark.parametrize("size", SIZES)
def test_poolings_give_the_golden_numbers(golden: dict[str, np.ndarray], meta: dict, size: str) -> None:
    x = torch.from_numpy(golden[f"{size}_x"])
    per_channel = GeM(exponents=8)
    per_channel.load_state_dict({"p": torch.tensor(meta["gemmp_p"])})
    with torch.no_grad():
        measured = {
            "mac": pool_mac(x),
            "spoc": pool_spoc(x),
            "gem3": GeM(3.0)(x),
            "gem2p5": pool_gem(x, 2.5),
            "gemmp": per_channel(x),
            "l2n_gem3": normalise(GeM(3.0, learnable=False)(x)),
            "rmac_L1": RMAC(1)(x),
            "rmac_L2": RMAC(2)(x),
            "rmac_L3": RMAC()(x),
            "rpool_mac": Rpool(MAC())(x),
        }
    names = {key.removeprefix(f"{size}_") for key in golden if key.startswith(f"{size}_")} - {"x"}
    assert names == set(measured)
    for name, value in measured.items():
        expected = golden[f"{size}_{name}"][..., 0, 0]
        assert value.shape == expected.shape, name
        assert np.abs(value.numpy() - expected).max() <= 1e-5 * max(1.0, np.abs(expected).max()), name


@pytest.mark.parametrize("size", SIZES)
def test_windows_are_the_golden_ones(meta: dict, size: str) -> None:
    height, width = meta["sizes"][size]["shape"][-2:]
    windows = region_windows(height, width)
    assert len(windows) == meta["sizes"][size]["n_regions_incl_global"]
    assert [list(window) for window in windows] == meta["regions_y_x_h_w"][size]


def test_windows_lie_inside_every_map() -> None:
    for height in range(1, 40):
        for width in range(1, 40):
            for y, x, h, w in region_windows(height, width):
                assert y >= 0 and x >= 0 and h >= 1 and w >= 1 and y + h <= height and x + w <= width


def test_a_tie_of_overlaps_falls_as_in_the_reference() -> None:
    # 5 and 6 extra windows miss 40 % by the same amount in exact arithmetic; rounding picks 6.
    assert len({x for _, x, h, _ in region_windows(11, 47, levels=1)[1:]}) == 7


@pytest.mark.parametrize(("height", "width"), [(7, 10), (1, 1), (2, 3), (13, 5), (4, 30), (11, 47), (1, 9), (8, 8)])
def test_masks_equal_slices(height: int, width: int) -> None:
    x = torch.randn(2, 5, height, width, generator=torch.Generator().manual_seed(height), dtype=torch.float64)
    regions, used = pool_regions_masked(x)
    assert torch.equal(regions[:, used], pool_regions(x, pool_mac))
    assert not regions[:, ~used].any()
    means, used = pool_regions_masked(x, mean=True)
    torch.testing.assert_close(means[:, used], pool_regions(x, pool_spoc), rtol=0, atol=1e-12)
    assert not means[:, ~used].any()


@pytest.mark.parametrize("pool", [None, MAC(), SPoC(), GeM(exponents=5)], ids=["rmac", "mac", "spoc", "gem"])
def test_one_exported_graph_serves_all_sizes(pool: MAC | SPoC | GeM | None) -> None:
    layer = RMAC().eval() if pool is None else Rpool(pool, Linear1x1(5, 4)).eval()
    sides = {2: torch.export.Dim("height", min=1, max=60), 3: torch.export.Dim("width", min=1, max=60)}
    program = torch.export.export(layer, (torch.rand(2, 5, 7, 10),), dynamic_shapes={"maps": sides})
    for height, width in [(7, 10), (1, 1), (12, 5), (3, 31), (9, 9)]:
        x = torch.rand(2, 5, height, width, generator=torch.Generator().manual_seed(width))
        assert torch.allclose(program.module()(x), layer(x), atol=1e-5)


def test_gem_spans_mean_and_maximum_and_learns_its_exponent() -> None:
    x = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.1
    assert torch.allclose(pool_gem(x, 1.0), pool_spoc(x))
    assert torch.allclose(pool_gem(x, 400.0), pool_mac(x), rtol=1e-2)
    layer = GeM(3.0)
    layer(x.float()).sum().backward()
    assert layer.p.grad is not None and layer.p.grad.abs().item() > 0
    assert not GeM(3.0, learnable=False).state_dict()
    assert pool_gem(torch.zeros(1, 2, 3, 3)).tolist() == [[pytest.approx(1e-6)] * 2]


def slow_crow(x: np.ndarray, eps: float) -> np.ndarray:
    channels, height, width = x.shape
    strength = [[sum(x[c, i, j] for c in range(channels)) for j in range(width)] for i in range(height)]
    length = sum(value**2 for row in strength for value in row) ** 0.5
    fires = [
        sum(x[c, i, j] > 0 for i in range(height) for j in range(width)) / (height * width) for c in range(channels)
    ]
    out = []
    for c in range(channels):
        total = sum((strength[i][j] / length) ** 0.5 * x[c, i, j] for i in range(height) for j in range(width))
        out.append(total * np.log((sum(fires) + channels * eps) / (fires[c] + eps)))
    return np.array(out)


def test_crow_equals_the_slow_writing() -> None:
    x = np.random.default_rng(5).standard_normal((2, 6, 4, 3)).clip(0)
    x[0, 2] = 0  # a channel that never fires
    x[1, :, 1, 1] = 0  # a position without strength
    measured = CroW()(torch.from_numpy(x)).numpy()
    assert measured == pytest.approx(np.stack([slow_crow(image, 1e-6) for image in x]), abs=1e-10)


def test_crow_survives_an_empty_map() -> None:
    x = torch.zeros(1, 4, 2, 2, requires_grad=True)
    y = pool_crow(x)
    y.sum().backward()
    assert torch.isfinite(y).all() and x.grad is not None and torch.isfinite(x.grad).all()


def test_rpool_whitens_each_region() -> None:
    x = torch.rand(2, 4, 5, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    whiten = Linear1x1(4, 3).double()
    expected = torch.zeros(2, 3, dtype=torch.float64)
    for y0, x0, h, w in region_windows(5, 7, 2):
        region = normalise(x[:, :, y0 : y0 + h, x0 : x0 + w].mean(dim=(2, 3)))
        expected += normalise(region @ whiten.weight[:, :, 0, 0].T + whiten.bias)
    assert torch.allclose(Rpool(SPoC(), whiten, levels=2)(x), normalise(expected), atol=1e-12)
