"""`tessera convert timm:NAME`, with a stand-in where timm does not import: it speaks the same interface."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from tessera.cli.main import app
from tessera.errors import ConfigError, UsageError
from tessera.extract.extractor import Extractor
from tessera.models.bundle import Bundle
from tessera.models.convert import convert_timm

SETTINGS = {"mean": (0.4, 0.5, 0.6), "std": (0.2, 0.2, 0.2), "input_size": (3, 96, 96), "license": "apache-2.0"}


class Pyramid(nn.Module):
    """Two maps, as timm's feature extraction gives them."""

    def __init__(self, pretrained: bool) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, 8, 1), nn.Conv2d(8, 12, 3, 2, 1)
        if pretrained:
            with torch.no_grad():
                for weight in self.parameters():
                    weight.fill_(0.01)
        self.feature_info = SimpleNamespace(channels=lambda: [8, 12], reduction=lambda: [8, 16])
        self.pretrained_cfg = SETTINGS

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        first = self.first(images).relu()
        return [first, self.second(first).relu()]


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("timm")
    module.list_models = lambda: ["pyramid"]  # type: ignore[attr-defined]
    module.create_model = lambda name, pretrained, features_only: Pyramid(pretrained)  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, "timm", module)


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
