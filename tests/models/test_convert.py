"""Checkpoints as they come: recognised by keys, checked key by key, refused with reasons."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tessera.errors import CheckpointError
from tessera.models.bundle import Bundle
from tessera.models.convert import FORMATS, convert_checkpoint, load_checkpoint
from tessera.models.convert.formats import Format
from tessera.models.model_registry import build_model
from tessera.models.onnx_export import Network, check_graph, load_network
from tessera.models.parts.whitening import Whitening

SIZES = ((1, 3, 224, 160), (3, 3, 160, 224), (1, 3, 33, 33), (1, 3, 37, 201), (3, 3, 65, 40), (1, 3, 27, 384))
NARROW: dict[str, dict[str, Any]] = {
    "token-released": {"channels": 32, "dim": 48},
    "token-legacy": {"channels": 32, "dim": 48},
    "netvlad-released": {"dim": 32},
    "solar-released": {"dim": 48},
    "delg-released": {"dim": 48, "local_dim": 16},
    "rmac-released": {"dim": 48},
    "solar-r101": {"dim": 48},
    "how-r50": {"dim": 16},
    "gem-r50": {"dim": 48},
}


def by_name(name: str) -> Format:
    return next(entry for entry in FORMATS if entry.name == name)


def make(found: Format, backbone: str = "resnet18", **overrides: Any) -> tuple[Network, dict[str, torch.Tensor]]:
    """A network with random weights, and its state under the names of the format's own files."""
    torch.manual_seed(0)
    network = build_model(found.model, backbone=backbone, **{**NARROW[found.model], **overrides}).eval()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.startswith(("head", "local", "dim_reduction")) and not name.endswith("pool.p"):
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return network, {found.to_theirs(key): value for key, value in network.state_dict().items()}


def save(content: Any, folder: Path, name: str = "file.pth") -> Path:
    path = folder / name
    torch.save(content, path)
    return path


@pytest.fixture(scope="module")
def image() -> torch.Tensor:
    return torch.randn(1, 3, 96, 128, generator=torch.Generator().manual_seed(3))


def same(first: Network, second: Network, image: torch.Tensor) -> None:
    with torch.inference_mode():
        expected, answer = first(image), second(image)
    assert expected.keys() == answer.keys()
    for key, value in expected.items():
        assert torch.equal(value, answer[key]), key


@pytest.mark.parametrize("found", FORMATS, ids=lambda found: found.name)
def test_every_format_is_recognised(found: Format, tmp_path: Path, image: torch.Tensor) -> None:
    network, state = make(found)
    state["classifier.weight"] = torch.zeros(5, 8)
    content: Any = {"state_dict": state, "epoch": 3}
    if found.name == "cirtorch":
        content["meta"] = {
            "architecture": "resnet18",
            "pooling": "gem",
            "mean": [0.5, 0.5, 0.5],
            "std": [0.2, 0.2, 0.2],
        }
    loaded = load_checkpoint(save(content, tmp_path))
    assert loaded.architecture["model"] == found.model
    assert loaded.architecture["config"]["backbone"] == "resnet18"
    same(network, loaded, image)


@pytest.mark.parametrize("shape", ["flat", "module", "half", "counters", "no counters", "safetensors"])
def test_the_shape_of_the_file_does_not_matter(shape: str, tmp_path: Path, image: torch.Tensor) -> None:
    network, state = make(by_name("Token (from April 2022)"))
    if shape == "half":
        state = {key: value.half() if value.is_floating_point() else value for key, value in state.items()}
        network.half().float()
    if shape == "counters":
        state = {key: value.reshape(1) if "num_batches" in key else value for key, value in state.items()}
    if shape == "no counters":
        state = {key: value for key, value in state.items() if "num_batches" not in key}
    if shape == "safetensors":
        from safetensors.torch import save_file

        path = tmp_path / "file.safetensors"
        save_file({key: value.contiguous() for key, value in state.items()}, path)
    else:
        path = save({f"module.{key}": value for key, value in state.items()} if shape == "module" else state, tmp_path)
    same(network, load_checkpoint(path), image)


@pytest.mark.parametrize(("backbone", "stage"), [("resnet50", ""), ("resnet101", ""), ("resnet50", "-conv4")])
def test_depth_is_read_off_the_keys(backbone: str, stage: str, tmp_path: Path) -> None:
    _, state = make(by_name("HOW"), backbone=backbone + stage)
    # Only names and shapes decide: one number a tensor would do, but the check of shapes comes after.
    loaded = load_checkpoint(save(state, tmp_path))
    assert loaded.architecture["config"]["backbone"] == backbone + stage


def test_old_how_files_call_the_reduction_whiten(tmp_path: Path, image: torch.Tensor) -> None:
    network, state = make(by_name("HOW"))
    old = {key.replace("dim_reduction", "whiten"): value for key, value in state.items()}
    loaded = load_checkpoint(save({"state_dict": old, "meta": {"architecture": "resnet18"}}, tmp_path))
    assert loaded.kind == "local"
    same(network, loaded, image)


@pytest.mark.parametrize("pooling", ["mac", "spoc", "gem", "gemmp"])
def test_cirtorch_says_its_pooling_in_meta(pooling: str, tmp_path: Path, image: torch.Tensor) -> None:
    overrides: dict[str, Any] = {"pooling": pooling.removesuffix("mp"), "dim": None}
    if pooling == "gemmp":
        overrides["exponents"] = "channels"
    network, state = make(by_name("cirtorch"), **overrides)
    # A numpy array beside the weights is plain data, and cirtorch keeps its whitening so.
    meta = {"pooling": pooling, "Lw": {"retrieval-SfM-120k": {"ss": {"P": np.eye(3), "m": np.float64(1.5)}}}}
    same(network, load_checkpoint(save({"state_dict": state, "meta": meta}, tmp_path)), image)


@pytest.mark.slow
def test_a_bundle_answers_as_torch_does_at_all_sizes(tmp_path: Path) -> None:
    network, state = make(by_name("Token (from April 2022)"))
    bundle = convert_checkpoint(save(state, tmp_path), tmp_path / "bundle")
    bundle.verify()
    assert bundle.card.dim == 48 and bundle.card.num_tokens == 4
    assert bundle.card.provenance["format"] == "Token (from April 2022)"
    reopened = load_network(Bundle.open(tmp_path / "bundle"))
    same(network, reopened, torch.zeros(1, 3, 64, 64))
    assert max(check_graph(reopened, bundle.onnx_path, SIZES).values()) < 1e-5


@pytest.mark.slow
def test_a_local_bundle_has_features_strengths_and_positions(tmp_path: Path) -> None:
    network, state = make(by_name("HOW"))
    net_params = {"runtime": {"mean_std": [[0.4, 0.5, 0.6], [0.1, 0.2, 0.3]]}}
    path = save({"state_dict": state, "net_params": net_params, "_version": "how/2020"}, tmp_path)
    bundle = convert_checkpoint(path, tmp_path / "bundle", name="how")
    assert (bundle.card.kind, bundle.card.name, bundle.card.dim, bundle.card.stride) == ("local", "how", 16, 32)
    assert bundle.card.preprocessing.mean == (0.4, 0.5, 0.6)
    assert max(check_graph(network, bundle.onnx_path, SIZES).values()) < 1e-5


class _Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


def test_a_malicious_pickle_runs_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "ran"
    path = tmp_path / "file.pth"
    torch.save({"state_dict": {"tr.query": _Malicious(trace)}}, path)
    with pytest.raises(CheckpointError, match=r"it asks for .*system"):
        load_checkpoint(path)
    plain = tmp_path / "plain.pkl"
    plain.write_bytes(pickle.dumps(_Malicious(trace)))
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(plain)
    assert not trace.exists()


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.99])
def test_a_truncated_file_is_refused(kept: float, tmp_path: Path) -> None:
    path = save({"tr.query": torch.zeros(1, 4, 8)}, tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_checkpoint(path)


def test_what_does_not_match_is_listed_in_the_files_own_names(tmp_path: Path) -> None:
    _, state = make(by_name("Token (from April 2022)"))
    state.pop("tr.decoder.1.mlp.fc1.weight")
    state["tr.decoder.0.surprise"] = torch.zeros(3)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(save(state, tmp_path))
    message = str(caught.value)
    assert "Missing keys: tr.decoder.1.mlp.fc1.weight." in message
    assert "Extra keys: tr.decoder.0.surprise." in message


def test_wrong_shapes_depths_and_numbers_are_refused(tmp_path: Path) -> None:
    _, state = make(by_name("Token (from April 2022)"))
    wrong = {**state, "tr.token_norm.1.weight": torch.ones(7)}
    with pytest.raises(CheckpointError, match=r"tr\.token_norm\.1\.weight \(7,\) instead of \(32,\)"):
        load_checkpoint(save(wrong, tmp_path))
    shallow = {key: value for key, value in state.items() if not key.startswith("backbone.block4.1.")}
    with pytest.raises(CheckpointError, match=r"depth of no known ResNet: its stages have 2, 2, 1, 2 basic blocks"):
        load_checkpoint(save(shallow, tmp_path))
    broken = {**state, "tr.proj.0.bias": torch.full((48,), float("nan"))}
    with pytest.raises(CheckpointError, match=r"NaN or infinite weights: tr\.proj\.0\.bias"):
        load_checkpoint(save(broken, tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"conv.weight": torch.zeros(3)}, "unknown kind: its keys .conv.weight"),
        ({"state_dict": {}}, "holds no weights"),
        ([torch.zeros(2)], "holds a list"),
        ({"state_dict": {"features.0.weight": torch.zeros(2), "note": "hello"}}, "no tensors: note"),
    ],
)
def test_files_of_other_kinds_are_refused(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(save(content, tmp_path))


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a file"):
        convert_checkpoint(tmp_path / "nothing.pth", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_cirtorch_without_its_pooling_is_refused(tmp_path: Path) -> None:
    _, state = make(by_name("cirtorch"))
    state.pop("pool.p")
    with pytest.raises(CheckpointError, match="nothing of its pooling"):
        load_checkpoint(save(state, tmp_path))
    with pytest.raises(CheckpointError, match="regions of regions"):
        load_checkpoint(save({"state_dict": state, "meta": {"pooling": "rmac", "regional": True}}, tmp_path))


@pytest.mark.parametrize("pooling", ["mac", "spoc", "gem", "gemmp"])
@pytest.mark.parametrize("whitening", ["regional", "both"])
def test_cirtorch_with_layers_on_regions_and_positions(
    pooling: str, whitening: str, tmp_path: Path, image: torch.Tensor
) -> None:
    overrides = {"pooling": pooling.removesuffix("mp"), "whitening": whitening, "local": True, "dim": 512}
    overrides["exponents"] = "channels" if pooling == "gemmp" else "shared"
    network, state = make(by_name("cirtorch"), **overrides)
    assert {"pool.whiten.weight", "lwhiten.weight"} <= state.keys()
    assert ("pool.rpool.p" in state) == pooling.startswith("gem") and ("whiten.weight" in state) == (
        whitening == "both"
    )
    meta = {"pooling": pooling, "regional": True, "local_whitening": True, "whitening": whitening == "both"}
    path = save({"state_dict": state, "meta": meta}, tmp_path)
    same(network, load_checkpoint(path), image)
    if (pooling, whitening) in (("gem", "both"), ("mac", "regional")):
        bundle = convert_checkpoint(path, tmp_path / "bundle")
        assert max(check_graph(network, bundle.onnx_path, SIZES).values()) < 1e-5


@pytest.mark.parametrize("places", [(True, True), (False, True)])
def test_solar_has_attention_where_its_file_has_it(
    places: tuple[bool, bool], tmp_path: Path, image: torch.Tensor
) -> None:
    network, state = make(by_name("SOLAR"), soa4=places[0], soa5=places[1])
    assert ("features.soa4.f.0.weight" in state) == places[0] and "features.conv2_x.2.0.conv1.weight" in state
    old = {**state, "features.soa5.gamma": torch.zeros(1)}  # stored by early versions, used by none
    meta = {"architecture": "resnet18", "pooling": "gem", "whitening": True, "soa": True, "soa_layers": "45"}
    same(network, load_checkpoint(save({"state_dict": old, "meta": meta}, tmp_path)), image)


def test_a_learned_whitening_becomes_the_last_layer(tmp_path: Path, image: torch.Tensor) -> None:
    network, state = make(by_name("cirtorch"), dim=None)
    rng = np.random.default_rng(0)
    learned = {"m": rng.normal(size=(512, 1)) * 0.01, "P": rng.normal(size=(512, 512))}
    meta = {"pooling": "gem", "whitening": False, "Lw": {"retrieval-SfM-120k": {"ss": learned, "ms": learned}}}
    path = save({"state_dict": state, "meta": meta}, tmp_path)
    bundle = convert_checkpoint(path, tmp_path / "bundle", whitening="retrieval-SfM-120k/ss")
    with torch.inference_mode():
        plain, white = (net(image)["descriptor"][0].double().numpy() for net in (network, load_network(bundle)))
    expected = Whitening(learned["m"][:, 0], learned["P"].T).apply(plain[None])[0]
    assert np.abs(white - expected).max() < 1e-5
    names = ["retrieval-SfM-120k/ss", "retrieval-SfM-120k/ms"]
    assert bundle.card.provenance["whitenings"] == names and bundle.card.provenance["whitening"] == names[0]
    with pytest.raises(CheckpointError, match=r"'SfM' is not known.*retrieval-SfM-120k/ms"):
        convert_checkpoint(path, tmp_path / "other", whitening="SfM")
    _, with_layer = make(by_name("cirtorch"))
    again = save({"state_dict": with_layer, "meta": meta}, tmp_path, "layer.pth")
    with pytest.raises(CheckpointError, match="a whitening layer of its own"):
        convert_checkpoint(again, tmp_path / "other", whitening="retrieval-SfM-120k/ss")
