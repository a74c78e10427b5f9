"""`tessera convert timm:NAME`, with a stand-in that speaks timm's interface; timm itself where it is installed.

timm imports torchvision for its data loading alone, so empty modules stand in for it where it is not there.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from tessera.cli.main import app
from tessera.errors import ConfigError, MissingExtraError, ModelError, UsageError
from tessera.extract.extractor import Extractor
from tessera.models.backbones import build_backbone
from tessera.models.bundle import Bundle
from tessera.models.convert import convert_timm

SETTINGS = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.2, 0.2), "input_size": (3, 96, 96), "license": "apache-2.0"}


class Pyramid(nn.Module):
    """Two maps, as timm's feature extraction gives them; some networks have channels last, some take one size only."""

    def __init__(self, pretrained: bool, output_fmt: str = "NCHW", size: int | None = None) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 8, 1), nn.Conv2d(8, 12, 3, 2, 1)
        if pretrained:
            with torch.no_grad():
                for weight in self.parameters():
                    weight.fill_(0.01)
        self.feature_info = SimpleNamespace(channels=lambda: [8, 12], reduction=lambda: [8, 16])
        self.pretrained_cfg, self.output_fmt, self.size = SETTINGS, output_fmt, size

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        assert self.size is None or images.shape[2] == self.size, f"Input height doesn't match model ({self.size})."
        first = self.first(images).relu()
        maps = [first, self.second(first).relu()]
        return [one.permute(0, 2, 3, 1) for one in maps] if self.output_fmt == "NHWC" else maps


def create_model(name: str, pretrained: bool, features_only: bool) -> Pyramid:
    assert features_only
    if name.endswith(".nonsense"):
        raise RuntimeError("Invalid pretrained tag (nonsense) for pyramid.")
    if name == "flat" and pretrained:
        raise OSError("An error happened while trying to locate the file on the Hub.\nAnd more.")
    kinds: dict[str, dict[str, Any]] = {"last": {"output_fmt": "NHWC"}, "fixed": {"size": 224}}
    return Pyramid(pretrained, **kinds.get(name, {}))


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType("timm")
    module.is_model = lambda name: name.split(".")[0] in ("pyramid", "last", "fixed", "flat")
    module.create_model = create_model
    monkeypatch.setitem(sys.modules, "timm", module)


class _Empty(ModuleType):
    """Any name of it is a class that does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "InterpolationMode":
            return Enum(name, "NEAREST BILINEAR BICUBIC BOX HAMMING LANCZOS")
        return type(name, (nn.Module,), {})


class _EmptyFinder(MetaPathFinder, Loader):
    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".", maxsplit=1)[0] == "torchvision" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


@pytest.fixture
def real_timm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    before = set(sys.modules)
    if find_spec("torchvision") is None:
        monkeypatch.setattr(sys, "meta_path", [_EmptyFinder(), *sys.meta_path])
    yield import_module("timm")
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("timm", "torchvision"):
            del sys.modules[name]


@pytest.mark.usefixtures("timm")
def test_a_model_by_name_becomes_a_bundle_with_its_pretrained_weights(tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, ["convert", "timm:pyramid", "-o", str(tmp_path / "b")], catch_exceptions=False)
    assert answer.exit_code == 0
    bundle = Bundle.open(tmp_path / "b")
    card = bundle.card
    assert (card.dim, card.licence, card.provenance["format"]) == (12, "apache-2.0", "timm")
    assert (card.preprocessing.size, card.preprocessing.mean) == (96, (0.4, 0.5, 0.6))
    picture = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    pixels = (
        torch.from_numpy(picture).permute(2, 0, 1)[None] / 255 - torch.tensor([0.4, 0.5, 0.6])[:, None, None]
    ) / 0.2
    with torch.inference_mode():
        pooled = Pyramid(pretrained=True)(pixels)[1].clamp_min(1e-6).pow(3).mean(dim=(2, 3)).pow(1 / 3)[0].numpy()
    np.testing.assert_allclose(Extractor(bundle).describe(picture), pooled / np.linalg.norm(pooled), atol=1e-5)


@pytest.mark.usefixtures("timm")
def test_mistakes_are_a_sentence_each(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="timm has no model 'pyramide'"):
        convert_timm("timm:pyramide", tmp_path / "b")
    with pytest.raises(UsageError, match="its pooling is gem"):
        convert_timm("timm:pyramid", tmp_path / "b", pooling="cls")
    answer = CliRunner().invoke(app, ["convert", "timm:pyramid", "--heads", "3", "-o", str(tmp_path / "b")])
    assert isinstance(answer.exception, UsageError) and "only --name, --pooling and --size" in str(answer.exception)
    assert not (tmp_path / "b").exists()


@pytest.mark.usefixtures("timm")
def test_a_name_may_have_a_tag(tmp_path: Path) -> None:
    assert convert_timm("timm:pyramid.in12k", tmp_path / "b").card.provenance["file"] == "timm:pyramid.in12k"


@pytest.mark.usefixtures("timm")
def test_maps_with_channels_last_are_turned() -> None:
    torch.manual_seed(0)
    backbone = build_backbone("timm:last")
    images = torch.randn(1, 3, 64, 96)
    before, last = backbone.forward_stages(images)
    assert (tuple(before.shape), tuple(last.shape)) == ((1, 8, 8, 12), (1, 12, 4, 6))
    backbone.model.output_fmt, backbone.channels_last = "NCHW", False
    torch.testing.assert_close(backbone.forward_stages(images)[1], last)


@pytest.mark.usefixtures("timm")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pyramid.nonsense", r"maps of 'pyramid.nonsense': Invalid pretrained tag .*list_pretrained"),
        ("flat", r"maps of 'flat': An error happened while trying to locate the file on the Hub\. `timm"),
        ("fixed", r"'fixed' does not take pictures of every size: .* match model \(224\)\. .*--size N"),
    ],
)
def test_what_timm_cannot_give_is_a_sentence(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        convert_timm(f"timm:{name}", tmp_path / "b")
    assert "\n" not in str(caught.value) and not (tmp_path / "b").exists()


def test_without_timm_its_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    answer = CliRunner().invoke(app, ["convert", "timm:resnet18", "-o", str(tmp_path / "b")])
    assert isinstance(answer.exception, MissingExtraError)
    assert "the backbone 'timm:resnet18' needs the extra 'timm', which is not installed" in str(answer.exception)


def test_a_timm_that_does_not_import_says_why_and_the_way_round(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As torchvision fails that is of another torch: RuntimeError, operator torchvision::nms does not exist."""
    (tmp_path / "timm").mkdir()
    (tmp_path / "timm" / "__init__.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        ModelError, match=r"cannot be imported: operator torchvision::nms does not exist\. .*onnx"
    ) as caught:
        convert_timm("timm:resnet18", tmp_path / "b")
    assert f"the torchvision of torch {torch.__version__}" in str(caught.value)


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_convnext"])
def test_networks_of_timm_itself_become_bundles(
    name: str, real_timm: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Random weights stand in for the pretrained ones, which need a connection."""
    torch.manual_seed(0)
    network = real_timm.create_model(name, features_only=True)
    create = real_timm.create_model
    monkeypatch.setattr(
        real_timm, "create_model", lambda name, pretrained, **more: network if pretrained else create(name, **more)
    )
    bundle = convert_timm(f"timm:{name}", tmp_path / "b")
    settings = network.pretrained_cfg
    picture = np.random.default_rng(0).integers(0, 256, (96, 64, 3), dtype=np.uint8)
    mean, std = (torch.tensor(settings[key])[:, None, None] for key in ("mean", "std"))
    with torch.inference_mode():
        maps = network.eval()((torch.from_numpy(picture).permute(2, 0, 1)[None] / 255 - mean) / std)[-1]
    pooled = maps.clamp_min(1e-6).pow(3).mean(dim=(2, 3)).pow(1 / 3)[0].numpy()
    np.testing.assert_allclose(Extractor(bundle).describe(picture), pooled / np.linalg.norm(pooled), atol=1e-5)
    assert (bundle.card.licence, bundle.card.provenance["format"]) == (settings["license"], "timm")


def test_a_transformer_of_timm_itself_is_refused_in_a_sentence(
    real_timm: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    create = real_timm.create_model
    monkeypatch.setattr(real_timm, "create_model", lambda name, pretrained, **more: create(name, **more))
    with pytest.raises(ModelError, match=r"'test_vit' does not take pictures of every size: Input height"):
        convert_timm("timm:test_vit", tmp_path / "b")
