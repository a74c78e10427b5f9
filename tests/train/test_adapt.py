"""`tessera adapt`: a head fitted to photos without labels, over convolutional and transformer backbones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from tessera.cli.main import app
from tessera.errors import DataError, ModelError
from tessera.extract.extractor import Extractor
from tessera.models.bundle import Bundle
from tessera.models.model_registry import build_model
from tessera.models.onnx_export import check_graph, export_bundle, load_network, make_card
from tessera.models.parts.closed_form import fit_projection, fit_tokens
from tessera.models.preprocessing import Preprocessing
from tessera.models.shapes import ViTShape
from tessera.train.adapt import AdaptSettings, adapt
from tessera.train.verified_pairs import join_pairs, verified_pairs

SHAPE = ViTShape(patch=8, width=32, depth=1, heads=2, hidden=48, grid=4, layer_scale=True)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty scenes of coloured blots, each quite unlike the others, and one file that is no picture."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(30):
        blots = np.random.default_rng(number).integers(0, 256, (5, 6, 3), dtype=np.uint8)
        Image.fromarray(blots).resize((96, 72), Image.Resampling.BICUBIC).save(folder / f"{number:02}.png")
    (folder / "broken.jpg").write_bytes(b"no picture")
    return folder


def make_bundle(folder: Path, name: str) -> Bundle:
    torch.manual_seed(0)
    network = build_model("dinov2", shape=SHAPE) if name == "vit" else build_model("gem-r18", backbone="tiny", dim=None)
    card = make_card(network, name, preprocessing=Preprocessing(size=96, scales=(1.0,)), licence="Apache-2.0")
    return export_bundle(network, folder / name, card)


@pytest.mark.parametrize(("name", "power"), [("vit", 1.0), ("cnn", 3.0)])
def test_any_backbone_gets_tokens_that_explain(name: str, power: float, photos: Path, tmp_path: Path) -> None:
    base = make_bundle(tmp_path, name)
    adapted = adapt(base, photos, tmp_path / "adapted", AdaptSettings(dim=16, pairs=False))
    card = adapted.card
    assert (card.dim, card.num_tokens, card.licence) == (16, 4, "Apache-2.0")
    assert card.architecture["config"]["power"] == power
    assert card.provenance["photos"] == 30 and card.provenance["base"]["fingerprint"] == base.card.fingerprint
    network = load_network(Bundle.open(adapted.path))
    check_graph(network, adapted.onnx_path)
    extractor = Extractor(adapted)
    with Image.open(photos / "00.png") as photo:
        outputs = extractor.outputs(np.asarray(photo), ("descriptor", "attention", "parts", "places"))[0]
    total = outputs["parts"].sum(axis=1)
    np.testing.assert_allclose(total / np.linalg.norm(total), outputs["descriptor"], atol=1e-5)
    np.testing.assert_allclose(outputs["attention"].sum(axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(outputs["places"].sum(axis=(3, 4)), outputs["parts"][:, :-1], atol=1e-4)
    usage = outputs["attention"].mean(axis=(2, 3))[0]
    assert usage.max() < 0.9  # no token takes all


def test_it_can_be_repeated(photos: Path, tmp_path: Path) -> None:
    base = make_bundle(tmp_path, "vit")
    settings = AdaptSettings(dim=16, pairs=False, seed=3)
    first, second = (adapt(base, photos, tmp_path / name, settings, name="same") for name in ("a", "b"))
    assert first.card.fingerprint == second.card.fingerprint


def test_an_adapted_bundle_can_be_adapted_again(photos: Path, tmp_path: Path) -> None:
    once = adapt(make_bundle(tmp_path, "vit"), photos, tmp_path / "once", AdaptSettings(dim=16, pairs=False))
    twice = adapt(once, photos, tmp_path / "twice", AdaptSettings(dim=8, num_tokens=2, pairs=False))
    assert (twice.card.dim, twice.card.num_tokens) == (8, 2)


def test_the_whitening_divides_out_what_changes_within_an_instance() -> None:
    random = np.random.default_rng(0)
    identity, change = random.standard_normal((200, 6)), random.standard_normal((600, 6))
    tokens = np.concatenate([np.repeat(identity, 3, axis=0), change], axis=1).astype(np.float32)
    weight, bias = fit_projection(tokens, np.repeat(np.arange(200), 3), num_tokens=4, dim=6)
    descriptors = 4 * tokens @ weight.T + bias
    assert np.square(descriptors).sum(axis=1).mean() == pytest.approx(1, abs=1e-3)
    strengths = np.abs(weight).sum(axis=0)
    assert strengths[:6].mean() > 4 * strengths[6:].mean()


def test_tokens_find_the_clusters_of_local_features() -> None:
    random = np.random.default_rng(0)
    centres = random.standard_normal((4, 16)) * 3
    features = (np.repeat(centres, 100, axis=0) + random.standard_normal((400, 16)) * 0.3 + 5).astype(np.float32)
    weight = fit_tokens(features, 4)
    claimed = (features @ weight.T).argmax(axis=1).reshape(4, 100)
    assert sorted(np.bincount(row, minlength=4).argmax() for row in claimed) == [0, 1, 2, 3]
    assert (features @ weight.T).std() == pytest.approx(1, abs=1e-3)


def test_two_views_of_one_scene_are_verified_and_strangers_are_not() -> None:
    pytest.importorskip("cv2")
    random = np.random.default_rng(0)
    scenes = [
        np.asarray(Image.fromarray(random.integers(0, 256, (40, 50, 3), dtype=np.uint8)).resize((400, 320)))
        for _ in range(3)
    ]
    photos = [scenes[0], scenes[1], scenes[2], scenes[0][20:300, 30:380]]
    descriptors = np.eye(4, dtype=np.float32)
    assert verified_pairs(photos, descriptors) == [(0, 3)]
    np.testing.assert_array_equal(join_pairs(4, [(0, 3)]), [0, 1, 2, 0])
    np.testing.assert_array_equal(join_pairs(5, [(3, 4), (1, 3), (0, 2)]), [0, 1, 0, 1, 1])


def test_from_the_command_line(photos: Path, tmp_path: Path) -> None:
    make_bundle(tmp_path, "vit")
    words = ["adapt", str(tmp_path / "vit"), str(photos), "-o", str(tmp_path / "out"), "--dim", "16", "--json"]
    answer = CliRunner().invoke(app, words, catch_exceptions=False)
    told = json.loads(answer.stdout)
    assert answer.exit_code == 0 and told["dim"] == 16 and set(told["recall"]) == {"before", "after"}


def test_what_cannot_be_adapted_is_refused(photos: Path, small_bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a graph without weights of its own"):
        adapt(Bundle.open(small_bundle), photos, tmp_path / "out")
    base = make_bundle(tmp_path, "vit")
    few = tmp_path / "few"
    few.mkdir()
    with pytest.raises(DataError, match=r"has 0 photos that can be read, and a head needs 16 at least"):
        adapt(base, few, tmp_path / "out")
    with pytest.raises(DataError, match="is not a folder"):
        adapt(base, tmp_path / "nowhere", tmp_path / "out")
