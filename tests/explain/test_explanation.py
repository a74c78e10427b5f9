from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tessera.cli.main import app
from tessera.data.images import load_photo
from tessera.errors import UsageError
from tessera.explain.explanation import explain_image, explain_pair, occlusion_map, pair_up
from tessera.explain.figure import draw_image, draw_pair
from tessera.extract.extractor import Extractor

EXAMPLES = Path(__file__).parents[2] / "examples" / "photos"


@pytest.fixture(scope="module")
def extractor(token_bundle):
    return Extractor(str(token_bundle), threads=1)


def test_shares_sum_to_the_extractors_own_descriptor(extractor, scenes_dir):
    for name in ("scene00.jpg", "scene01.jpg"):
        image = load_photo(scenes_dir / name, size=extractor.size)
        explained = explain_image(extractor, image)
        assert explained.method == "tokens"
        assert explained.num_tokens == 4
        assert explained.maps.shape[0] == 4
        np.testing.assert_allclose(explained.descriptor, extractor.describe(image), atol=1e-5)
        assert all(0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1 for x0, y0, x1, y1 in explained.boxes)


def test_contributions_sum_to_the_score(extractor, scenes_dir):
    first, second = (load_photo(scenes_dir / f"scene0{i}.jpg", size=extractor.size) for i in (2, 3))
    pair = explain_pair(extractor, first, second)
    score = float(extractor.describe(first) @ extractor.describe(second))
    assert float(pair.matrix.sum()) == pytest.approx(score, abs=1e-4)
    assert pair.score == pytest.approx(score, abs=1e-4)
    values = [pair.matrix[i, j] for i, j in pair.pairs]
    assert values == sorted(values, reverse=True)
    assert 0 <= pair.strongest_token < 4


@pytest.mark.parametrize("scales", [(1.0,), (0.7071, 1.0, 1.4142)])
def test_the_packaged_models_contributions_sum_to_the_score(scales):
    extractor = Extractor("lite", size=256, scales=scales, threads=1)
    names = ("bridge", "casa-mila", "roman-colosseum", "wine")
    photos = [load_photo(EXAMPLES / f"{name}.jpg", size=256) for name in names]
    explained = [explain_image(extractor, photo) for photo in photos]
    descriptors = [extractor.describe(photo) for photo in photos]
    for i, j in itertools.combinations_with_replacement(range(len(photos)), 2):
        pair = pair_up(explained[i], explained[j])
        assert float(pair.matrix.sum()) == pytest.approx(float(descriptors[i] @ descriptors[j]), abs=1e-4)


def test_a_network_without_tokens_gets_a_map_and_says_so(scenes_dir):
    extractor = Extractor("lite", size=96, scales=(1.0,), threads=1)
    if extractor.bundle.card.num_tokens:
        extractor.bundle.card.__dict__["num_tokens"] = 0  # the packaged model has tokens: look away from them
    image = load_photo(scenes_dir / "scene00.jpg", size=96)
    explained = explain_image(extractor, image)
    assert explained.method in ("activation", "occlusion")
    assert explained.num_tokens == 0
    assert "no tokens" in explained.to_json()["note"]
    np.testing.assert_allclose(explained.descriptor, extractor.describe(image), atol=1e-5)


def test_hiding_what_matters_moves_the_descriptor():
    class LeftHalf:
        """Describes nothing but the left half's brightness pattern."""

        def describe_batch(self, images):
            rows = [image[:, : image.shape[1] // 2].reshape(-1).astype(np.float32) + 1 for image in images]
            return np.stack([row / np.linalg.norm(row) for row in rows])

    image = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    drops = occlusion_map(LeftHalf(), image, cells=4)
    assert drops.shape == (4, 4)
    assert drops[:, :2].min() > 100 * drops[:, 2:].max()


def test_figures_have_a_panel_a_token(extractor, scenes_dir):
    image = load_photo(scenes_dir / "scene01.jpg", size=extractor.size)
    explained = explain_image(extractor, image)
    strip = draw_image(explained)
    assert strip.width > 5 * 300 > strip.height
    pair = draw_pair(explain_pair(extractor, image, image))
    assert pair.width > 600


def run(*arguments):
    return CliRunner().invoke(app, ["explain", *map(str, arguments)])


def test_the_command_writes_a_figure_and_boxes_in_the_pictures_pixels(token_bundle, scenes_dir, tmp_path):
    query, other = scenes_dir / "scene01.jpg", scenes_dir / "scene02.jpg"
    result = run(query, other, "--box", "80,60,160,120", "--model", token_bundle, "-o", tmp_path / "why.png", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert sum(map(sum, answer["matrix"])) == pytest.approx(answer["score"], abs=1e-4)
    for token in answer["query"]["tokens"]:
        x0, y0, x1, y1 = token["box"]
        assert 80 <= x0 < x1 <= 160
        assert 60 <= y0 < y1 <= 120
    with Image.open(tmp_path / "why.png") as figure:
        assert figure.format == "PNG"


def test_bad_input_is_refused(token_bundle, scenes_dir):
    outside = run(scenes_dir / "scene01.jpg", "--model", token_bundle, "--box", "500,500,600,600", "--json")
    assert isinstance(outside.exception, UsageError)
    nothing = run(scenes_dir / "scene01.jpg", "--model", token_bundle)
    assert isinstance(nothing.exception, UsageError)
    assert "-o" in str(nothing.exception)


def test_evidence_is_laid_to_the_places_it_comes_from(scenes_dir):
    """The packaged model says what each place added: with its part of the constant that is a token's, exactly."""
    extractor = Extractor("lite", size=128, scales=(1.0, 0.7), threads=1)
    first, second = (load_photo(scenes_dir / f"scene0{i}.jpg", size=128) for i in (0, 1))
    alone, other = explain_image(extractor, first), explain_image(extractor, second)
    assert len(alone.position_contributions) == 2
    laid = sum(scale.sum(axis=(2, 3)) for scale in alone.position_contributions)
    constant = alone.parts - laid
    np.testing.assert_allclose(constant, np.broadcast_to(constant[0], constant.shape), atol=1e-5)
    pair = pair_up(alone, other)
    assert pair.score == pytest.approx(float(alone.descriptor @ other.descriptor), abs=1e-5)
    assert pair.query.maps.shape == alone.maps.shape and not np.allclose(pair.query.maps, alone.maps)
    assert pair.query.maps.min() >= 0
    np.testing.assert_allclose(pair.query.maps.mean(axis=(1, 2)), 1, atol=1e-4)


def test_a_network_that_cannot_lay_tokens_to_places_keeps_their_maps(extractor, scenes_dir):
    image = load_photo(scenes_dir / "scene00.jpg", size=extractor.size)
    alone = explain_image(extractor, image)
    assert alone.position_contributions == () and pair_up(alone, alone).query is alone


@pytest.mark.parametrize(
    "name", ["token", "token-released", "token-legacy", "gem-r50", "rmac-r50", "netvlad-r50", "solar-r50"]
)
def test_contributions_of_any_network_sum_to_the_score(name, scenes_dir, tmp_path):
    """Other networks than the packaged one, with random weights, at several scales and with a box."""
    torch = pytest.importorskip("torch")
    from tessera.models.model_registry import build_model
    from tessera.models.onnx_export import export_bundle, make_card
    from tessera.models.preprocessing import Preprocessing

    torch.manual_seed(1)
    network = build_model(name, backbone="tiny").eval()
    card = make_card(network, name, preprocessing=Preprocessing(size=96, scales=(2**-0.5, 1.0, 2**0.5)))
    export_bundle(network, tmp_path / name, card)
    extractor = Extractor(str(tmp_path / name), threads=1)
    query = load_photo(scenes_dir / "scene02.jpg", size=96, box=(10, 20, 110, 90))
    other = load_photo(scenes_dir / "scene03.jpg", size=96)
    pair = explain_pair(extractor, query, other)
    score = float(extractor.describe(query) @ extractor.describe(other))
    assert float(pair.matrix.sum()) == pytest.approx(score, abs=1e-4)
    assert pair.matrix.shape == (max(1, extractor.bundle.card.num_tokens),) * 2
    assert (pair.query.method == "tokens") == (extractor.bundle.card.num_tokens > 0)
    assert sum(map(sum, pair.to_json()["matrix"])) == pytest.approx(pair.to_json()["score"], abs=1e-4)
    assert draw_pair(pair).width > 900
    assert draw_image(pair.query).width > 600
