"""Foundation models answer as the transformers package does, from every layout of their files, at any size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tessera.models.bundle import Bundle
from tessera.models.convert import convert_checkpoint, load_checkpoint
from tessera.models.onnx_export import check_graph, load_network

GRIDS = ((3, 3), (4, 2), (7, 5), (1, 9), (1, 1))  # the first is the grid that the small originals were made with


@pytest.fixture(scope="session")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    small = random.integers(0, 256, (9, 12, 3), dtype=np.uint8)
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    Image.fromarray(small).resize((200, 150), Image.Resampling.BICUBIC).save(path)
    return path


@pytest.mark.parametrize("layout", ["folder", "single", "original"])
def test_every_layout_gives_the_originals_descriptor_at_every_size(original: Any, layout: str, tmp_path: Path) -> None:
    path = getattr(original, f"save_{layout}")(tmp_path)
    network = load_checkpoint(path, activation=original.untold.get(layout))
    generator = torch.Generator().manual_seed(1)
    for height, width in GRIDS:
        images = torch.randn(2, 3, height * original.multiple, width * original.multiple, generator=generator)
        with torch.inference_mode():
            answer = network(images)["descriptor"]
        torch.testing.assert_close(answer, original.descriptor(images), rtol=0, atol=1e-5)


def test_openais_own_clip_is_read_out_of_its_program(build_original: Any, tmp_path: Path) -> None:
    original = build_original("clip")
    card = convert_checkpoint(original.save_program(tmp_path), tmp_path / "bundle").card
    assert card.architecture["config"]["shape"]["activation"] == "quick_gelu"
    assert card.provenance["assumed"] == {"heads": 2}
    images = torch.randn(2, 3, 48, 64, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        answer = load_network(Bundle.open(tmp_path / "bundle"))(images)["descriptor"]
    torch.testing.assert_close(answer, original.descriptor(images), rtol=0, atol=1e-5)


def test_the_map_is_the_originals_normed_patches(original: Any, tmp_path: Path) -> None:
    network = load_checkpoint(original.save_folder(tmp_path))
    images = torch.randn(1, 3, 5 * original.multiple, 3 * original.multiple)
    with torch.inference_mode():
        features = network.backbone(images)
        expected = original.patches(images)
    assert features.shape[2:] == (5, 3)
    torch.testing.assert_close(features.flatten(2).transpose(1, 2), expected, rtol=0, atol=1e-5)


def test_the_graph_answers_at_any_size_and_batch(original: Any, tmp_path: Path) -> None:
    bundle = convert_checkpoint(original.save_folder(tmp_path / "folder"), tmp_path / "bundle")
    network = load_network(bundle)
    shapes = [(2, 3, height * original.multiple, width * original.multiple) for height, width in GRIDS]
    assert max(check_graph(network, bundle.onnx_path, [*shapes, (1, 3, 27, 384), (3, 3, 101, 67)]).values()) < 1e-5
    assert bundle.card.preprocessing.mean == pytest.approx(original.mean)
    assert bundle.card.stride == original.multiple and bundle.card.num_tokens == 0


@pytest.mark.parametrize("runtime", ["onnx", "torch"])
def test_convert_and_embed_equal_the_originals_preprocessing_and_network(
    original: Any, photo: Path, tmp_path: Path, runtime: str
) -> None:
    """The original's processor resizes and cuts a photo; what it cut is embedded, and compared with the original."""
    from typer.testing import CliRunner

    from tessera.cli.main import app

    side = 3 * original.multiple
    picture, pixels = original.preprocess(photo, side)
    cut = tmp_path / "cut.png"
    picture.save(cut)
    source, bundle, output = original.save_folder(tmp_path / "folder"), tmp_path / "bundle", tmp_path / "out.npz"
    told = CliRunner().invoke(app, ["convert", str(source), "-o", str(bundle), "--json"], catch_exceptions=False)
    answer = json.loads(told.stdout)
    assert told.exit_code == 0 and answer["dim"] == original.descriptor(pixels).shape[1]
    arguments = ["embed", str(cut), "-o", str(output), "--model", str(bundle), "--runtime", runtime, "--json"]
    embedded = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert embedded.exit_code == 0
    with np.load(output) as file:
        np.testing.assert_allclose(file["descriptors"], original.descriptor(pixels).numpy(), rtol=0, atol=1e-5)
