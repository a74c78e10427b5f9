"""Verification on planar scenes with known homographies; matches by hand; real and binarised features."""

from __future__ import annotations

import numpy as np
import pytest

from tessera.bench import planar_scenes as planar
from tessera.errors import UsageError
from tessera.local.features import LocalFeatures
from tessera.local.sift import SiftExtractor
from tessera.local.spatial_reranking import order_candidates
from tessera.local.verification import VerificationConfig, match_features, verify

SIZE, COUNT = (240, 180), 24


@pytest.fixture(scope="module")
def views():
    """Features of each scene and of another view of it, and the homographies between them."""
    extractor = SiftExtractor(300)
    scenes = [planar.paint_scene(seed, SIZE) for seed in range(COUNT)]
    homographies = [planar.draw_homography(seed, SIZE) for seed in range(COUNT)]
    others = [planar.warp(scene, homographies[seed], seed) for seed, scene in enumerate(scenes)]
    return [extractor.extract(scene) for scene in scenes], [extractor.extract(other) for other in others], homographies


@pytest.mark.parametrize("kind", ["real", "binarised"])
def test_true_pairs_are_found_and_false_ones_are_not(views, kind, transfer_error):
    first, second, homographies = views
    if kind == "binarised":
        first, second = [f.binarised() for f in first], [f.binarised() for f in second]
    least = VerificationConfig().min_inliers
    pairs = [verify(a, b) for a, b in zip(first, second, strict=True)]
    assert np.mean([pair.num_inliers >= least for pair in pairs]) >= 0.95
    errors = [transfer_error(pair.transformation, true, SIZE) for pair, true in zip(pairs, homographies, strict=True)]
    assert np.median(errors) < 1.0
    false = [verify(first[i], second[(i + shift) % COUNT]) for i in range(COUNT) for shift in range(1, 9)]
    assert np.mean([pair.num_inliers >= least for pair in false]) <= 0.01


def test_the_same_features_give_the_same_answer(views):
    first, second, _ = views
    one, two = verify(first[0], second[0]), verify(first[0], second[0])
    assert np.array_equal(one.inliers, two.inliers)
    assert np.array_equal(one.transformation, two.transformation)


@pytest.mark.parametrize("model", ["affinity", "fundamental"])
def test_other_models_verify_too(views, model):
    first, second, _ = views
    found = verify(first[1], second[1], VerificationConfig(model=model, threshold_px=8.0))
    assert found.num_inliers >= 10


def make(values, points=None):
    values = np.asarray(values, np.float32)
    zeros = np.zeros(len(values), np.float32)
    return LocalFeatures(values, np.zeros((len(values), 2), np.float32) if points is None else points, zeros, zeros)


def test_mutual_and_ratio_matches_by_hand():
    first = make([[1, 0], [0.9, 0.1], [0, 1]])
    second = make([[1, 0.02], [0, 1]])
    assert match_features(first, second, VerificationConfig()).tolist() == [[0, 0], [2, 1]]
    ratio = VerificationConfig(matches="ratio", ratio=0.5)
    assert match_features(first, second, ratio).tolist() == [[0, 0], [1, 0], [2, 1]]
    close = make([[1, 0.02], [1, -0.02]])
    assert match_features(make([[1, 0]]), close, ratio).tolist() == []
    assert match_features(first, make(np.zeros((0, 2))), VerificationConfig()).shape == (0, 2)


def test_signs_match_signs_only():
    real = make(np.random.default_rng(0).normal(size=(6, 16)))
    assert match_features(real.binarised(), real.binarised(), VerificationConfig()).tolist() == [
        [i, i] for i in range(6)
    ]
    with pytest.raises(UsageError, match="binarised"):
        verify(real, real.binarised())


def test_points_on_one_spot_are_no_agreement():
    values = np.random.default_rng(1).normal(size=(30, 16))
    assert verify(make(values), make(values)).transformation is None


@pytest.mark.parametrize("model", ["homography", "affinity"])
def test_what_flattens_the_picture_is_no_agreement(model):
    """Strange matches that all end on one short line: a homography sends them there, no camera does."""
    config = VerificationConfig(model=model)
    random = np.random.default_rng(3)
    values = random.normal(size=(40, 32))
    points = random.uniform(0, 300, (40, 2)).astype(np.float32)
    flattened = np.column_stack([150 + points[:, 0], 100 + 0.02 * points[:, 1]]).astype(np.float32)
    assert verify(make(values, points), make(values, flattened), config).num_inliers == 0
    narrowed = np.column_stack([points[:, 0], 100 + 0.4 * points[:, 1]]).astype(np.float32)
    assert verify(make(values, points), make(values, narrowed), config).num_inliers >= 35


def test_a_place_that_is_found_several_times_counts_once():
    """A detector gives one corner in two orientations: two descriptors, one piece of evidence."""
    random = np.random.default_rng(4)
    places = 20 * np.stack(np.meshgrid(np.arange(1, 4), np.arange(1, 3)), axis=-1).reshape(-1, 2).astype(np.float32)
    twice = np.repeat(places, 2, axis=0)
    values = random.normal(size=(len(twice), 32))
    found = verify(make(values, twice), make(values, 1.1 * twice + 5))
    assert len(found.matches) == 12
    assert found.num_inliers == 6


def test_features_at_the_edge_are_not_matched_where_a_margin_is_asked():
    values = np.eye(3, dtype=np.float32)
    points = np.array([[5, 50], [50, 50], [50, 97]], np.float32)
    ones = np.full(3, 8, np.float32)
    features = LocalFeatures(values, points, ones, ones, None, (100, 100))
    assert match_features(features, features, VerificationConfig()).tolist() == [[0, 0], [1, 1], [2, 2]]
    assert match_features(features, features, VerificationConfig(margin=1.0)).tolist() == [[1, 1]]
    assert match_features(features, features, VerificationConfig(margin=4.0)).shape == (0, 2)


def test_order_is_inliers_then_score_then_place():
    assert order_candidates([0, 12, 0, 12, 30], [0.9, 0.1, 0.95, 0.5, 0.0]).tolist() == [4, 3, 1, 2, 0]
    assert order_candidates([0, 0, 0], [0.5, 0.5, 0.5]).tolist() == [0, 1, 2]
