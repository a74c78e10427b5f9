"""What every registered network promises, with a tiny backbone."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch

from tessera.errors import ConfigError, ModelError
from tessera.models.model_registry import MODELS, build_model
from tessera.models.onnx_export import Network

# Widths at which a test takes milliseconds; keys that a configuration does not have are left out.
NARROW = {"backbone": "tiny", "channels": 16, "heads": 4, "dim": 24, "clusters": 3, "local_dim": 8, "hidden": 12}


def build(name: str) -> Network:
    """The entry on the tiny backbone, its parameters away from the zeros that some start with."""
    defaults = MODELS[name].resolve()
    overrides: dict[str, Any] = {}
    for key, value in NARROW.items():
        if getattr(defaults, key, None) is not None:
            overrides[key] = value
    torch.manual_seed(0)
    network = build_model(name, **overrides)
    with torch.no_grad():
        for key, parameter in network.named_parameters():
            if not key.endswith("pool.p"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return network.eval()


def images(batch: int, height: int, width: int) -> torch.Tensor:
    return torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module", params=list(MODELS))
def network(request: pytest.FixtureRequest) -> Network:
    return build(request.param)


@pytest.mark.parametrize(("height", "width"), [(96, 128), (130, 70)])
def test_shapes_norms_and_numbers(network: Network, height: int, width: int) -> None:
    with torch.inference_mode():
        outputs = network(images(2, height, width))
    assert tuple(outputs) == tuple(network.output_names)
    assert all(bool(torch.isfinite(value).all()) for value in outputs.values())
    if network.kind == "global":
        assert outputs["descriptor"].shape == (2, network.dim)
        torch.testing.assert_close(outputs["descriptor"].norm(dim=1), torch.ones(2), rtol=0, atol=1e-5)
    else:
        count = outputs["features"].shape[1]
        assert outputs["features"].shape == (2, count, network.dim)
        assert outputs["strengths"].shape == (2, count) and outputs["positions"].shape == (2, count, 2)


def test_a_batch_of_two_equals_two_of_one(network: Network) -> None:
    batch = images(2, 96, 64)
    with torch.inference_mode():
        together = network(batch)
        apart = [network(batch[i : i + 1]) for i in range(2)]
    for name, value in together.items():
        expected = torch.cat([outputs[name] for outputs in apart])
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-5)


def test_every_parameter_has_a_gradient(network: Network) -> None:
    network.zero_grad()
    batch = images(4, 96, 64)
    auxiliary = tuple(getattr(network, "auxiliary", ()))
    if hasattr(network, "describe_raw"):
        network.train().describe_raw(batch).square().sum().backward()
    else:
        outputs = network.train()(batch)
        (outputs["features"].square().sum() + outputs["strengths"].square().sum()).backward()
    network.eval()
    # The key bias of attention adds the same to all logits of a query: its gradient is there, and is zero.
    names = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    without = {name for name, parameter in network.named_parameters() if name in names and (parameter.grad is None)} - {
        name for name in names if auxiliary and name.startswith(auxiliary)
    }
    local_only = {name for name in without if network.kind == "local" and name.startswith("local.")}
    assert without - local_only == set()
    zero = {name for name, p in network.named_parameters() if p.grad is not None and not bool(p.grad.any())}
    assert {name for name in zero if not name.endswith(".k.bias")} == set()


def test_saved_and_loaded_it_is_the_same(network: Network) -> None:
    file = io.BytesIO()
    torch.save(network.state_dict(), file)
    file.seek(0)
    entry = MODELS[network.architecture["model"]]
    again = entry.build(entry.resolve(**network.architecture["config"])).eval()
    again.load_state_dict(torch.load(file, weights_only=True))
    picture = images(1, 64, 64)
    with torch.inference_mode():
        expected, answer = network(picture), again(picture)
    assert all(torch.equal(expected[name], answer[name]) for name in expected)


def test_a_picture_under_the_stride_is_refused(network: Network) -> None:
    side = network.stride - 1
    with pytest.raises(ModelError, match=f"smaller than the network's stride: {side} x {side} pixels"):
        network(images(1, side, side))
    with torch.inference_mode():
        strip = network(images(1, 27, 384))  # a real photo's shape: one short side is fine
    assert all(bool(torch.isfinite(value).all()) for value in strip.values())


@pytest.mark.parametrize("name", list(MODELS))
def test_the_entry_tells_the_truth(name: str) -> None:
    entry = MODELS[name]
    with torch.device("meta"):
        network = entry.build(entry.resolve())
    assert (network.dim, network.num_tokens, network.kind) == (entry.dim, entry.num_tokens, entry.kind)
    assert entry.summary and entry.paper


def test_an_unknown_name_is_answered_with_a_near_one() -> None:
    with pytest.raises(ConfigError, match=r"model 'tokn-r50' is not known\. Did you mean 'token-r50'"):
        build_model("tokn-r50")
