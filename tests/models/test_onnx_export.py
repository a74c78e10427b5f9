"""Bundles: the graph answers as the network at every size, weights are stored once, damage is noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor

from tessera.errors import CheckpointError, ModelError
from tessera.models.bundle import Bundle, ModelCard
from tessera.models.global_network import GlobalNetwork, Head
from tessera.models.model_registry import build_model
from tessera.models.onnx_export import Network, check_graph, export_bundle, load_network, make_card

SIZES = ((1, 3, 224, 160), (3, 3, 160, 224), (1, 3, 33, 33), (1, 3, 37, 201), (3, 3, 65, 40), (1, 3, 27, 384))
NARROW: dict[str, dict[str, Any]] = {
    "token": {"channels": 16, "heads": 4, "dim": 24},
    "token-released": {"channels": 16, "heads": 4, "dim": 24},
    "token-legacy": {"channels": 16, "heads": 4, "dim": 24},
    "rmac-r50": {"dim": 24},
    "rmac-released": {"dim": 24},
    "crow-r50": {"dim": 24},
    "gem-r50": {"dim": 24},
    "netvlad-released": {"dim": 24},
    "solar-r50": {"dim": 24},
    "delg-released": {"dim": 24},
    "how-r50": {"dim": 8},
    "delf-r50": {},
}


def make(name: str) -> Network:
    torch.manual_seed(0)
    network = build_model(name, backbone="tiny", **NARROW[name]).eval()
    with torch.no_grad():
        for key, parameter in network.named_parameters():
            if not key.endswith("pool.p"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return network


@pytest.mark.parametrize("name", NARROW)
def test_the_graph_answers_as_the_network(name: str, tmp_path: Path) -> None:
    network = make(name)
    bundle = export_bundle(network, tmp_path / "bundle", make_card(network, name))
    assert max(check_graph(network, bundle.onnx_path, SIZES).values()) < 1e-5
    again = load_network(Bundle.open(tmp_path / "bundle"))
    picture = torch.zeros(1, 3, 64, 96)
    with torch.inference_mode():
        assert all(torch.equal(value, again(picture)[key]) for key, value in network(picture).items())


def test_weights_are_stored_once(tmp_path: Path) -> None:
    network = build_model("token", backbone="resnet18", channels=64)
    bundle = export_bundle(network, tmp_path / "bundle", make_card(network, "small"))
    numbers = sum(value.numel() * value.element_size() for value in network.state_dict().values())
    assert bundle.onnx_path.stat().st_size < 300_000
    assert numbers <= bundle.weights_path.stat().st_size < numbers + 50_000
    graph = onnx.load(str(bundle.onnx_path), load_external_data=False).graph
    external = [tensor for tensor in graph.initializer if tensor.data_location == onnx.TensorProto.EXTERNAL]
    assert {entry.value for tensor in external for entry in tensor.external_data if entry.key == "location"} == {
        "weights.safetensors"
    }
    onnx.checker.check_model(str(bundle.onnx_path))


def test_half_precision_is_stored_and_turned_back(tmp_path: Path) -> None:
    """Half the bytes, and both runtimes compute with the same rounded numbers."""
    network = build_model("token", backbone="resnet18", channels=64)
    sizes = {}
    for half in (False, True):
        bundle = export_bundle(network, tmp_path / str(half), make_card(network, "small"), half=half)
        sizes[half] = bundle.weights_path.stat().st_size
        again = load_network(Bundle.open(bundle.path))
        assert max(check_graph(again, bundle.onnx_path).values()) < 1e-5
    assert sizes[True] < 0.51 * sizes[False]
    assert again.state_dict()["backbone.bn1.running_var"].dtype == torch.float32
    assert torch.equal(network.state_dict()["backbone.conv1.weight"], again.state_dict()["backbone.conv1.weight"])


def test_position_contributions_have_a_graph_of_their_own(tmp_path: Path) -> None:
    network = build_model("token", backbone="tiny", channels=16, dim=24, lfsa=False, blocks=0, power=3.0)
    bundle = export_bundle(network, tmp_path / "b", make_card(network, "b"))
    assert check_graph(network, bundle.position_contributions_path, SIZES, names=["places"])["places"] < 1e-5
    bundle.position_contributions_path.unlink()
    with pytest.raises(ModelError, match="changed or damaged"):
        Bundle.open(bundle.path).verify()
    refined = build_model("token", backbone="tiny", channels=16, heads=4, dim=24)
    assert not export_bundle(refined, tmp_path / "r", make_card(refined, "r")).position_contributions_path.exists()


def test_the_card_says_what_the_network_is(tmp_path: Path) -> None:
    network = make("token")
    card = export_bundle(network, tmp_path / "b", make_card(network, "mine", licence="CC0")).card
    assert (card.name, card.kind, card.dim, card.num_tokens, card.stride) == ("mine", "global", 24, 4, 32)
    assert card.architecture["config"]["channels"] == 16 and card.licence == "CC0" and "Token-based" in card.paper
    dims = {entry.name: entry for entry in onnx.load(str(tmp_path / "b" / "model.onnx")).graph.output}
    assert list(dims) == ["descriptor", "attention", "parts"]


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    network = make("gem-r50")
    bundle = export_bundle(network, tmp_path / "b", make_card(network, "b"))
    bundle.verify()
    content = bytearray(bundle.weights_path.read_bytes())
    content[-1] ^= 1
    bundle.weights_path.write_bytes(content)
    with pytest.raises(ModelError, match="changed or damaged"):
        Bundle.open(tmp_path / "b").verify()


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    network = make("gem-r50")
    bundle = export_bundle(network, tmp_path / "b", make_card(network, "b"))
    card_path = tmp_path / "b" / "model.json"
    card = json.loads(card_path.read_text())
    card["architecture"]["config"]["dim"] = 12
    card_path.write_text(json.dumps(card))
    with pytest.raises(CheckpointError, match="does not match the network"):
        load_network(Bundle.open(tmp_path / "b"))
    card["architecture"]["model"] = "gem-r5"
    card_path.write_text(json.dumps(card))
    with pytest.raises(ModelError, match="Did you mean 'gem-r50'"):
        load_network(Bundle.open(tmp_path / "b"))
    bundle.weights_path.unlink()
    with pytest.raises(ModelError, match=r"no weights\.safetensors"):
        load_network(bundle)


def test_nan_weights_make_no_bundle(tmp_path: Path) -> None:
    network = make("gem-r50")
    with torch.no_grad():
        next(network.backbone.parameters())[0] = float("nan")
    with pytest.raises(CheckpointError, match="NaN"):
        export_bundle(network, tmp_path / "b", make_card(network, "b"))
    assert not (tmp_path / "b" / "model.json").exists()


class _Frozen(Head):
    """Divides by a number that it read from the traced shape."""

    dim = 32

    def describe(self, features: Tensor) -> Tensor:
        return features.sum(dim=(2, 3)) - float(features.shape[3]) + features.amax(dim=(2, 3))


def test_a_graph_with_a_frozen_size_is_not_finished(tmp_path: Path) -> None:
    donor = make("gem-r50")
    network = GlobalNetwork(donor.backbone, _Frozen()).eval()
    network.architecture = donor.architecture
    with pytest.raises(ModelError, match=r"test_onnx_export\.py, line \d+\), which would freeze"):
        export_bundle(network, tmp_path / "b", make_card(network, "b"))
    assert not (tmp_path / "b" / "model.json").exists()


def test_a_network_without_an_architecture_is_refused(tmp_path: Path) -> None:
    network = GlobalNetwork(make("gem-r50").backbone, _Frozen())
    card = ModelCard("x", "global", {}, 32)
    with pytest.raises(ModelError, match="build it with build_model"):
        export_bundle(network, tmp_path / "b", card)
