"""Bundles in eight bits: smaller, near, and models of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tessera.cli.main import app
from tessera.errors import ModelError, UsageError
from tessera.extract.extractor import Extractor
from tessera.models.bundle import Bundle
from tessera.models.model_registry import build_model
from tessera.models.onnx_export import export_bundle, make_card
from tessera.models.quantised import quantise_bundle
from tessera.models.shapes import ViTShape

SHAPE = ViTShape(patch=16, width=128, depth=2, heads=2, hidden=256, grid=4, layer_scale=True)


def test_a_transformer_in_eight_bits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = build_model("dinov2", shape=SHAPE)
    bundle = export_bundle(network, tmp_path / "float", make_card(network, "float"))
    words = ["convert", str(tmp_path / "float"), "-o", str(tmp_path / "small"), "--int8"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    small = Bundle.open(tmp_path / "small")
    small.verify()
    assert small.card.fingerprint != bundle.card.fingerprint
    assert small.onnx_path.stat().st_size < 0.6 * bundle.weights_path.stat().st_size
    image = np.random.default_rng(0).integers(0, 256, (80, 112, 3), dtype=np.uint8)
    one, other = (Extractor(each, scales=[1.0]).describe(image) for each in (bundle, small))
    assert 0.99 < one @ other < 1 - 1e-9
    assert min(small.card.figures.values()) > 0.99


def test_other_options_beside_it_are_refused(small_bundle: Path, tmp_path: Path) -> None:
    words = ["convert", str(small_bundle), "-o", str(tmp_path / "small"), "--int8", "--pooling", "gem"]
    answer = CliRunner().invoke(app, words)
    assert isinstance(answer.exception, UsageError) and "beside it only --name" in str(answer.exception)


def test_a_network_without_matrices_is_refused(small_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no matrices to quantise"):
        quantise_bundle(Bundle.open(small_bundle), tmp_path / "small")
