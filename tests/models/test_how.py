"""HOW against the numbers of its own code: one scale, the strongest of all scales, and the reduction's start."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.nn import functional

from tessera.errors import ConfigError
from tessera.models.compared.how import HowNetwork, measure_strength, smooth
from tessera.models.model_registry import build_model

STEMS = {"0": "conv1", "1": "bn1", "4": "layer1", "5": "layer2", "6": "layer3", "7": "layer4"}


@pytest.fixture(scope="module")
def meta(golden_dir: Path) -> dict:
    return json.loads((golden_dir / "how" / "meta.json").read_text())


@pytest.fixture(scope="module")
def golden(golden_dir: Path) -> dict[str, np.ndarray]:
    with np.load(golden_dir / "how" / "how_r18.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def layers(golden_dir: Path) -> dict[str, np.ndarray]:
    with np.load(golden_dir / "how" / "layers.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def network(fill: ModuleType, golden_dir: Path) -> HowNetwork:
    spec = json.loads((golden_dir / "how" / "how_r18_spec.json").read_text())
    state = {}
    for key, value in fill.seeded_state_dict(spec, 4321).items():
        if key.startswith("features."):
            _, stem, rest = key.split(".", 2)
            state[f"backbone.{STEMS[stem]}.{rest}"] = value
        else:
            state[key] = value
    network = build_model("how-r18")
    network.load_state_dict(state)
    return network.eval()


@pytest.fixture(scope="module")
def scaled(fill: ModuleType, meta: dict) -> list[torch.Tensor]:
    image = fill.imagenet_normalise(fill.synthetic_rgb(*meta["image"]["h_w_seed"]))
    return [
        functional.interpolate(
            image, scale_factor=scale, mode="bilinear", align_corners=False, recompute_scale_factor=True
        )
        for scale in meta["scales"]
    ]


def close(measured: np.ndarray, expected: np.ndarray) -> bool:
    return measured.shape == expected.shape and np.abs(measured - expected).max() <= 1e-5 * np.abs(expected).max()


def test_maps_of_one_scale_are_the_golden_ones(network: HowNetwork, golden: dict, scaled: list) -> None:
    with torch.inference_mode():
        maps = network.local_map(scaled[6])
        features, strengths = network.describe_map(maps)
        raw = measure_strength(network.local_map(scaled[2]))
    assert close(maps[0].numpy(), golden["backbone_scale0.25"])
    assert close(smooth(maps)[0].numpy(), golden["smoothed_scale0.25"])
    assert close(features[0].numpy(), golden["reduced_scale0.25"])
    assert close(raw[0, 0].numpy(), golden["attention_raw_scale1"])
    assert strengths.shape == (1, 1, 2, 2)


def test_strongest_of_all_scales_are_the_golden_ones(
    network: HowNetwork, golden: dict, meta: dict, scaled: list
) -> None:
    with torch.inference_mode():
        outputs = [network(image) for image in scaled]
    strengths = torch.cat([output["strengths"][0] for output in outputs])
    largest = strengths.max()
    assert largest.item() == pytest.approx(meta["how_r18"]["attention_max_before_normalisation"], rel=1e-5)
    for index, output in enumerate(outputs):
        expected = golden[f"attention_{index}"]
        assert close((output["strengths"][0] / largest).view(expected.shape).numpy(), expected)
    order = strengths.argsort(descending=True)[:50]
    features = torch.cat([output["features"][0] for output in outputs])[order]
    assert close(features.numpy(), golden["top50_vecs"])
    positions = torch.cat([output["positions"][0] for output in outputs])[order]
    assert np.array_equal(positions.numpy().astype(np.int16), golden["top50_xy"])


def test_sums_are_the_golden_ones(network: HowNetwork, golden: dict, scaled: list) -> None:
    with torch.inference_mode():
        single = functional.normalize(network.describe_raw(scaled[2]), dim=-1)[0]
        # The golden sum is over strengths divided by their maximum; the norm takes such a factor out again.
        several = sum(network.describe_raw(image)[0] for image in scaled)
    assert np.abs(single.numpy() - golden["global_ss"]).max() < 1e-5
    assert np.abs(functional.normalize(several, dim=0).numpy() - golden["global_ms"]).max() < 1e-5


def test_smoothing_is_the_golden_one(layers: dict) -> None:
    x = torch.from_numpy(layers["smooth_in"])
    assert close(smooth(x, 3).numpy(), layers["smooth_k3"])
    assert close(smooth(x, 5).numpy(), layers["smooth_k5"])


def test_reduction_starts_at_the_golden_components(layers: dict) -> None:
    network = build_model("how-r18", backbone="tiny", dim=5)
    network.dim_reduction = torch.nn.Conv2d(12, 5, 1)
    network.initialise_reduction(layers["pca_X"])
    weight, bias = network.dim_reduction.weight.detach().numpy(), network.dim_reduction.bias.detach().numpy()
    signs = np.sign((weight * layers["pca_weight"]).sum(axis=(1, 2, 3)))
    assert np.abs(weight * signs[:, None, None, None] - layers["pca_weight"]).max() < 1e-5
    assert np.abs(bias * signs - layers["pca_bias"]).max() < 1e-5


def test_without_a_reduction_features_are_the_smoothed_map(golden: dict, scaled: list, network: HowNetwork) -> None:
    bare = build_model("how-r18", dim=None).eval()
    bare.load_state_dict({k: v for k, v in network.state_dict().items() if not k.startswith("dim_reduction")})
    with torch.inference_mode():
        outputs = [bare(image) for image in scaled]
    order = torch.cat([output["strengths"][0] for output in outputs]).argsort(descending=True)[:5]
    features = torch.cat([output["features"][0] for output in outputs])[order]
    assert close(features.numpy(), golden["top5_vecs_no_reduction"])
    with pytest.raises(ConfigError, match="no reduction"):
        bare.initialise_reduction(np.zeros((3, 512)))


def test_an_even_window_is_refused() -> None:
    with pytest.raises(ConfigError, match="odd"):
        build_model("how-r18", backbone="tiny", smoothing=4)
