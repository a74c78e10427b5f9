"""LFSA and refinement on top of the closed form of `lite` (scripts/lite/blocks.py), and the views they learn from."""

from importlib import import_module
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tessera.models.bundle import Bundle
from tessera.models.global_network import GlobalNetwork
from tessera.models.onnx_export import load_network
from tessera.models.token import TokenHead

pytest.importorskip("cv2", reason="the extra 'local' is not installed")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / "lite"))
    return import_module


@pytest.fixture(scope="module")
def network():
    return cast(GlobalNetwork, load_network(Bundle.open("lite")))


def build(script, network, parts):
    start = script("learn_head").read_start(Bundle.open("lite"))
    maps = torch.randn(400, 1904, generator=torch.Generator().manual_seed(1)).abs().numpy()
    mean, basis = script("blocks").find_directions(maps, 16)
    tokenizer = cast(TokenHead, network.head).tokenizer
    torch.manual_seed(0)
    return script("blocks").KeptStart(tokenizer, start.weight, start.bias, mean, basis, parts)


@pytest.mark.parametrize("parts", [(), ("lfsa",), ("refinement",), ("head", "lfsa", "refinement")])
def test_the_start_is_the_bundle_and_every_part_learns(script, network, parts):
    model = build(script, network, parts)
    images = torch.randn(2, 3, 96, 128, generator=torch.Generator().manual_seed(0))
    maps = network.backbone(images).flatten(2).transpose(1, 2).detach()
    found = F.normalize(model(maps), dim=1)
    torch.testing.assert_close(found, network(images)["descriptor"], atol=1e-5, rtol=0)
    for _ in range(2):  # the last matrices are zero: what stands before them has a gradient from the second step
        model.zero_grad()
        F.normalize(model(maps), dim=1)[:, :100].sum().backward() if parts else None
        moved = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        with torch.no_grad():
            for weight in moved.values():
                weight.sub_(0.1 * weight.grad)
    assert {name.split(".")[0] for name in moved} == set(parts)
    assert all(float(weight.grad.abs().max()) > 0 for name, weight in moved.items() if "g.bias" not in name)


def test_directions_have_a_variance_of_one(script):
    maps = np.random.default_rng(0).standard_normal((500, 12)).astype(np.float32) * np.arange(1, 13)
    mean, basis = script("blocks").find_directions(maps.astype(np.float32), 5)
    np.testing.assert_allclose(np.cov(((maps - mean) @ basis).T), np.eye(5), atol=1e-3)


def test_strong_views_have_the_shape_and_come_again(script):
    views = script("views")
    photo, other = (np.random.default_rng(seed).integers(0, 256, (90, 120, 3), dtype=np.uint8) for seed in (0, 1))
    for seed in range(20):
        first, again = (views.make_strong_view(photo, other, (64, 96), np.random.default_rng(seed)) for _ in range(2))
        assert first.shape == (64, 96, 3) and first.dtype == np.uint8
        np.testing.assert_array_equal(first, again)
