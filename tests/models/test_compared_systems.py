"""The compared systems by themselves: the formulas of their papers in a slow second writing, what loads into what."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch.nn import functional

from tessera.errors import ConfigError, ModelError
from tessera.models.compared.compared_systems import EQUAL_DIM, SYSTEMS
from tessera.models.compared.netvlad import NetVLADConfig, NetVLADHead, sum_residuals
from tessera.models.compared.pooled import PooledConfig, PooledHead
from tessera.models.compared.rmac import region_windows
from tessera.models.losses import build_loss
from tessera.models.model_registry import MODELS, build_model
from tessera.models.parts.pooling import normalise


def random_map(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_every_system_has_all_depths_and_one_at_equal_size() -> None:
    names = {entry.name for entry in SYSTEMS}
    for system in ("spoc", "mac", "crow", "rmac", "gem", "gem-ap", "netvlad", "solar", "delg"):
        assert {f"{system}-r18", f"{system}-r50", f"{system}-r101"} <= names
        assert MODELS[f"{system}-r101"].dim == 2048
        assert MODELS[f"{system}-r101-{EQUAL_DIM}"].dim == EQUAL_DIM
    assert {f"{system}-released" for system in ("rmac", "netvlad", "solar", "delg")} <= names


@pytest.mark.parametrize("name", [entry.name for entry in SYSTEMS if "r101" not in entry.name])
def test_entry_says_what_is_built(name: str) -> None:
    network = build_model(name, backbone="tiny")
    assert (network.dim, network.kind) == (MODELS[name].dim, MODELS[name].kind)
    assert network.architecture["model"] == name


def test_gem_whitens_a_unit_vector_and_gem_ap_the_vector_itself() -> None:
    maps = random_map(2, 6, 3, 4)
    for normalised in (True, False):
        head = PooledHead(6, PooledConfig(dim=5, normalise=normalised)).double()
        pooled = (maps.clamp_min(1e-6) ** 3).mean(dim=(2, 3)) ** (1 / 3)
        if normalised:
            pooled = pooled / (pooled.square().sum(dim=1, keepdim=True).sqrt() + 1e-6)
        assert torch.allclose(head.describe(maps), pooled @ head.whiten.weight.T + head.whiten.bias, atol=1e-12)


def test_without_a_dim_there_is_no_layer() -> None:
    network = build_model("gem-r50", backbone="tiny", dim=None)
    assert network.dim == network.backbone.channels
    assert [key for key in network.state_dict() if key.startswith("head.")] == ["head.pool.p"]


def test_regional_whitening_needs_a_layer_and_windows() -> None:
    with pytest.raises(ConfigError, match="crow"):
        PooledHead(4, PooledConfig(pooling="crow", whitening="regional"))
    with pytest.raises(ConfigError, match="needs a dim"):
        PooledHead(4, PooledConfig(pooling="rmac", whitening="regional", dim=None))


@pytest.mark.parametrize("whitening", ["regional", "both"])
def test_layers_on_positions_regions_and_the_whole(whitening: Literal["regional", "both"]) -> None:
    """One region after another, as cirtorch's networks with every kind of whitening have it."""
    torch.manual_seed(6)
    head = PooledHead(4, PooledConfig(pooling="gem", dim=3, whitening=whitening, local=True)).double()
    maps = random_map(2, 4, 3, 5)
    with torch.no_grad():
        local = torch.einsum("oc,bchw->bohw", head.lwhiten.weight, maps) + head.lwhiten.bias[:, None, None]
        total = torch.zeros(2, 3, dtype=torch.float64)
        for y, x, height, width in region_windows(3, 5):
            pooled = (local[..., y : y + height, x : x + width].clamp_min(1e-6) ** 3).mean(dim=(2, 3)) ** (1 / 3)
            white = normalise(pooled) @ head.pool.whiten.weight.T + head.pool.whiten.bias
            total += normalise(white)
        expected = normalise(total)
        if whitening == "both":
            expected = normalise(expected) @ head.whiten.weight.T + head.whiten.bias
        assert torch.allclose(head.describe(maps), expected, atol=1e-12)


def slow_netvlad(head: NetVLADHead, maps: torch.Tensor) -> torch.Tensor:
    """One position and one word at a time."""
    rows = []
    for image in maps:
        residuals = torch.zeros_like(head.words)
        for position in image.flatten(1).T:
            local = head.reduce.weight[:, :, 0, 0] @ position
            local = local / local.norm()
            scores = torch.exp(head.assign.weight[:, :, 0, 0] @ local + head.assign.bias)
            for k in range(len(head.words)):
                residuals[k] += scores[k] / scores.sum() * (local - head.words[k])
        vlad = torch.cat([row / row.norm() for row in residuals])
        rows.append(head.whiten.weight @ (vlad / vlad.norm()) + head.whiten.bias)
    return torch.stack(rows)


def test_netvlad_equals_the_slow_writing() -> None:
    torch.manual_seed(1)
    head = NetVLADHead(7, NetVLADConfig(channels=4, clusters=3, dim=5)).double()
    maps = random_map(2, 7, 3, 4)
    with torch.no_grad():
        assert torch.allclose(head.describe(maps), slow_netvlad(head, maps), atol=1e-12)


def test_netvlad_starts_from_words() -> None:
    torch.manual_seed(2)
    head = NetVLADHead(7, NetVLADConfig(channels=4, clusters=3, dim=5))
    words = functional.normalize(torch.randn(3, 4), dim=-1)
    local = functional.normalize(words.repeat(20, 1) + 0.05 * torch.randn(60, 4), dim=-1)
    head.initialise(local, words)
    claims = head.assign(local.T[None, :, None, :])[0, :, 0].softmax(dim=0)  # K N
    assert torch.equal(claims.argmax(dim=0), torch.arange(60) % 3)
    assert claims.max(dim=0).values.mean() > 0.9


def test_residuals_need_no_large_tensor() -> None:
    claims, features, words = random_map(2, 3, 5), random_map(2, 5, 4, seed=1), random_map(3, 4, seed=2)
    plain = (claims[..., None] * (features[:, None] - words[None, :, None])).sum(dim=2)
    assert torch.allclose(sum_residuals(claims, features, words), plain, atol=1e-12)


def test_solar_starts_as_gem_and_attends_in_two_places() -> None:
    torch.manual_seed(4)
    solar = build_model("solar-r50", backbone="tiny").eval()
    gem = build_model("gem-r50", backbone="tiny").eval()
    gem.load_state_dict({key: value for key, value in solar.state_dict().items() if not key.startswith("soa")})
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        before = solar(images)["descriptor"]
        assert torch.allclose(before, gem(images)["descriptor"], atol=1e-6)
        for block in (solar.soa4, solar.soa5):
            torch.nn.init.normal_(block.v.weight)
            after = solar(images)["descriptor"]
            assert (after - before).abs().max() > 1e-4
            before = after


def test_delg_learns_its_branches_apart() -> None:
    torch.manual_seed(5)
    network = build_model("delg-r50", backbone="tiny")
    joint = network.describe_joint(torch.randn(4, 3, 64, 96))
    assert joint.raw.shape == (4, 2048) and joint.pooled.shape == (4, network.pooled_dim)
    loss = build_loss("arcface", dim=network.pooled_dim, num_classes=3)
    local = loss(joint.pooled, torch.tensor([0, 1, 2, 0])) + build_loss("reconstruction")(
        joint.local.features, joint.local.restored
    )
    local.backward(retain_graph=True)
    assert all(p.grad is None for name, p in network.named_parameters() if not name.startswith(network.auxiliary))
    assert all(p.grad is not None and p.grad.any() for p in network.local.parameters())
    network.zero_grad()
    joint.raw.square().sum().backward()
    assert all(p.grad is not None for name, p in network.named_parameters() if not name.startswith(network.auxiliary))


def test_delg_joint_pass_gives_the_same_descriptor() -> None:
    torch.manual_seed(6)
    for name in ("delg-r50", "delg-released"):
        network = build_model(name, backbone="tiny").eval()
        images = torch.randn(2, 3, 64, 96)
        with torch.no_grad():
            assert torch.allclose(network.describe_joint(images).raw, network.describe_raw(images), atol=1e-6)


def test_delg_weights_load_into_its_local_network() -> None:
    torch.manual_seed(7)
    delg = build_model("delg-r50", backbone="resnet18").eval()
    local = build_model("delg-local-r50", backbone="resnet18-conv4").eval()
    dropped = ("head.", "backbone.layer4.")
    local.load_state_dict({key: value for key, value in delg.state_dict().items() if not key.startswith(dropped)})
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        outputs = local(images)
        joint = delg.describe_joint(images)
    assert {key: tuple(value.shape) for key, value in outputs.items()} == {
        "features": (1, 24, 128),
        "strengths": (1, 24),
        "positions": (1, 24, 2),
    }
    assert torch.allclose(outputs["features"].norm(dim=-1), torch.ones(1, 24), atol=1e-5)
    assert torch.equal(outputs["strengths"], joint.local.strengths.flatten(1))
    assert outputs["positions"][0, :8].tolist() == [[0, 0], [1, 0], [2, 0], [3, 0], [4, 0], [5, 0], [0, 1], [1, 1]]


def test_delf_attention_learns() -> None:
    torch.manual_seed(8)
    network = build_model("delf-r50", backbone="tiny")
    loss = build_loss("arcface", dim=network.pooled_dim, num_classes=4)
    images, labels = torch.randn(8, 3, 64, 64), torch.arange(8) % 4
    learnt = [*network.local.parameters(), *loss.parameters()]
    values = []
    for _ in range(15):
        pooled, local = network.describe_local(images)
        value = loss(pooled, labels) + build_loss("reconstruction", weight=0.1)(local.features, local.restored)
        gradients = torch.autograd.grad(value, learnt)
        with torch.no_grad():
            for parameter, gradient in zip(learnt, gradients, strict=True):
                parameter.sub_(0.02 * gradient)
        values.append(value.item())
    assert values[-1] < 0.8 * values[0]
    assert not network.describe_local(images)[1].features.requires_grad


def test_a_picture_under_the_stride_is_refused() -> None:
    for name in ("solar-r50", "delg-r50", "how-r50"):
        with pytest.raises(ModelError, match="smaller than the network's stride"):
            build_model(name, backbone="tiny").eval()(torch.zeros(1, 3, 20, 20))
