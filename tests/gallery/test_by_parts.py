"""The default search: by descriptor and local features together, verified, with a probability."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tessera.bench.planar_scenes import draw_homography, paint_scene, warp
from tessera.errors import GalleryDamagedError, GalleryError, UsageError
from tessera.gallery.engines.postings_index import FOLDER
from tessera.gallery.gallery import Gallery
from tessera.gallery.search import parts_searcher
from tessera.local.turning import turn_picture

SIZE = (360, 270)
SCENES = 8


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> tuple[Path, Path]:
    """Scenes, and another view of scene 3."""
    folder = tmp_path_factory.mktemp("scenes")
    for seed in range(SCENES):
        Image.fromarray(paint_scene(seed, SIZE)).save(folder / f"scene{seed}.png")
    view = tmp_path_factory.mktemp("query") / "view.png"
    Image.fromarray(warp(paint_scene(3, SIZE), draw_homography(3, SIZE), 3)).save(view)
    return folder, view


@pytest.fixture
def gallery(pictures, small_bundle, tmp_path):
    with Gallery(tmp_path / "g", str(small_bundle)) as opened:
        opened.index(pictures[0])
        yield opened


def names(result) -> list[str]:
    return [Path(hit.path).stem for hit in result]


def test_another_view_is_found_verified_and_certain(gallery, pictures):
    result = gallery.search(pictures[1])
    assert names(result)[0] == "scene3"
    assert (result[0].verified, result.certain, result.degrees) == (True, True, 0)
    assert result[0].inliers > 20
    assert [hit.verified for hit in result[1:]] == [False] * (SCENES - 1)
    scores = [hit.score for hit in result]
    assert scores == sorted(scores, reverse=True) and scores[0] == result[0].probability <= 1
    answer = result.to_json()
    assert answer["certain"] is True
    assert {"probability", "verified", "inliers", "parts"} <= answer["results"][0].keys()


def test_local_features_alone_find_it_too(gallery, pictures):
    assert names(gallery.search(pictures[1], 1, by="local")) == ["scene3"]
    with pytest.raises(UsageError, match="needs a picture"):
        gallery.search(np.ones(gallery.stats()["dim"], np.float32), by="local")
    with pytest.raises(UsageError, match="auto"):
        gallery.search(pictures[1], by="locl")
    with pytest.raises(UsageError, match="follow a search by the descriptor"):
        gallery.search(pictures[1], by="local", expand="aqe")


def test_a_stranger_is_nothing_certain(gallery):
    result = gallery.search(paint_scene(99, SIZE))
    assert result.certain is False
    assert not any(hit.verified for hit in result)
    assert "Nothing certain" in result.notes[0]
    assert len(gallery.search(paint_scene(99, SIZE), min_probability=0.9)) == 0
    with pytest.raises(UsageError, match="between 0 and 1"):
        gallery.search(paint_scene(99, SIZE), min_probability=1.5)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_turned_picture_is_found(gallery, turns):
    result = gallery.search(np.ascontiguousarray(np.rot90(paint_scene(5, SIZE), turns)))
    assert names(result)[0] == "scene5" and result[0].verified
    assert result.degrees == 360 - 90 * turns


@pytest.mark.parametrize("degrees", [25, 140, 310])
def test_a_slanted_picture_is_found(gallery, degrees):
    result = gallery.search(turn_picture(paint_scene(5, SIZE), degrees))
    assert names(result)[0] == "scene5" and result[0].verified
    assert abs((result.degrees + degrees + 180) % 360 - 180) <= 30


def test_a_box_keeps_the_features_inside_it(gallery):
    half = np.concatenate([paint_scene(2, SIZE), paint_scene(6, SIZE)], axis=1)
    width, height = SIZE
    assert names(gallery.search(half, 1, box=(0, 0, width, height))) == ["scene2"]
    assert names(gallery.search(half, 1, box=(width, 0, 2 * width, height))) == ["scene6"]
    both = gallery.search(half)
    assert {name for name, hit in zip(names(both), both, strict=True) if hit.verified} == {"scene2", "scene6"}


@pytest.mark.parametrize("query", [np.zeros((200, 200, 3), np.uint8), np.full((20, 20, 3), 90, np.uint8)])
def test_a_query_without_features_is_answered_by_its_descriptor(gallery, query):
    result = gallery.search(query)
    assert len(result) == SCENES and result.certain is False


def test_an_image_whose_file_has_gone_is_still_a_query(gallery, pictures, tmp_path):
    fresh = tmp_path / "fresh.png"
    Image.fromarray(paint_scene(50, SIZE)).save(fresh)
    gallery.index(fresh)
    (image_id,) = (image.id for image in gallery.images() if image.path == str(fresh))
    fresh.unlink()
    result = gallery.search(image_id)
    assert names(result)[0] == "fresh" and len(result) == SCENES + 1 and result.degrees == 0


def test_adding_and_removing_are_seen_at_once(gallery, pictures, tmp_path):
    gallery.search(pictures[1])
    fresh = tmp_path / "fresh.png"
    Image.fromarray(paint_scene(50, SIZE)).save(fresh)
    gallery.index(fresh)
    view = warp(paint_scene(50, SIZE), draw_homography(7, SIZE), 7)
    assert names(gallery.search(view, 1)) == ["fresh"]
    gallery.remove(fresh)
    assert "fresh" not in names(gallery.search(view, 20))
    gallery.remove(pictures[0] / "scene3.png")
    result = gallery.search(pictures[1])
    assert "scene3" not in names(result) and result.certain is False


def test_a_filter_holds_inside_the_search(gallery, pictures, tmp_path):
    gallery.index(pictures[0] / "scene3.png", metadata={"place": "here"})
    gallery.index(pictures[0] / "scene4.png", metadata={"place": "there"})
    assert names(gallery.search(pictures[1], where="place=here")) == ["scene3"]
    assert names(gallery.search(pictures[1], where="place=there")) == ["scene4"]


def test_another_process_sees_the_same(gallery, pictures):
    expected = [(hit.id, hit.score, hit.inliers) for hit in gallery.search(pictures[1])]
    with Gallery(gallery.path) as other:
        assert [(hit.id, hit.score, hit.inliers) for hit in other.search(pictures[1])] == expected


def test_a_damaged_or_lost_inverted_file_is_made_again(gallery, pictures):
    expected = [(hit.id, hit.score) for hit in gallery.search(pictures[1])]
    (lists,) = (gallery.path / FOLDER).glob("segment-*/postings.faiss")
    lists.write_bytes(lists.read_bytes()[:100])
    with Gallery(gallery.path) as other:
        assert [(hit.id, hit.score) for hit in other.search(pictures[1])] == expected
        report = other.check()
        assert not report.ok and "postings" in report.findings[0].message
        assert other.check(repair=True).ok and other.check().ok
        assert [(hit.id, hit.score) for hit in other.search(pictures[1])] == expected
    (gallery.path / FOLDER / "manifest.json").unlink()
    with Gallery(gallery.path) as other:
        assert [(hit.id, hit.score) for hit in other.search(pictures[1])] == expected


@pytest.mark.parametrize("at", [-1, 8, 40])  # a code, what says how many there are, a word that may be none
def test_damaged_local_features_are_named_and_made_again(gallery, pictures, at):
    expected = [(hit.id, hit.score) for hit in gallery.search(pictures[1])]
    with sqlite3.connect(gallery.path / "catalog.sqlite") as connection:
        (content,) = connection.execute("SELECT features FROM local_features WHERE id = 4").fetchone()
        damaged = bytearray(content)
        damaged[at] ^= 0x80
        connection.execute("UPDATE local_features SET features = ? WHERE id = 4", (bytes(damaged),))
    with Gallery(gallery.path) as other:
        with pytest.raises(GalleryDamagedError, match=r"local features of image 4 .*--repair"):
            other.search(pictures[1])
        assert not other.check().ok
        assert other.check(repair=True).ok and other.check().ok
        assert [(hit.id, hit.score) for hit in other.search(pictures[1])] == expected


def test_an_image_without_local_features_is_judged_by_its_descriptor(gallery, pictures):
    """Stored by `add`, or lost with a damaged page: nothing that could agree is no sign that nothing does."""
    with sqlite3.connect(gallery.path / "catalog.sqlite") as connection:
        connection.execute("DELETE FROM local_features WHERE id = 4")
        (path,) = connection.execute(
            "SELECT path FROM images JOIN contents ON contents.id = content_id WHERE hash NOT IN "
            "(SELECT hash FROM local_features)"
        ).fetchone()
    result = gallery.search(path.decode())
    assert result[0].path == path.decode() and result[0].probability > 0.9


def test_a_gallery_without_local_features_says_how_to_add_them(gallery, pictures):
    with sqlite3.connect(gallery.path / "catalog.sqlite") as connection:
        connection.execute("DELETE FROM local_features")
    with Gallery(gallery.path) as old:
        result = old.search(pictures[1])
        assert result.certain is None and "tessera index --rebuild" in result.notes[0]
        with pytest.raises(GalleryError, match="--rebuild"):
            old.search(pictures[1], by="local")
        old.index(rebuild=True)
        assert old.search(pictures[1])[0].verified
        assert old.stats()["local_features"]["images"] == SCENES


def test_features_of_an_earlier_version_are_named_and_replaced(gallery, pictures):
    added = pictures[0] / "scene4.png"
    gallery.remove([image.id for image in gallery.images() if image.path == str(added)], ignore=False)
    with sqlite3.connect(gallery.path / "catalog.sqlite") as connection:
        connection.execute("UPDATE local_features SET fingerprint = 'earlier'")
    with Gallery(gallery.path) as old:
        result = old.search(pictures[1])
        assert result.certain is None and "earlier version" in result.notes[0] and "--rebuild" in result.notes[0]
        with pytest.raises(GalleryError, match="earlier version"):
            old.search(pictures[1], by="local")
        old.index(added)
        partly = old.search(added)
        assert names(partly)[0] == "scene4" and partly[0].verified
        assert any("Some images" in note and "--rebuild" in note for note in partly.notes)
        old.index(rebuild=True)
        renewed = old.search(pictures[1])
        assert renewed[0].verified and renewed.notes == []
    with sqlite3.connect(gallery.path / "catalog.sqlite") as connection:
        assert connection.execute("SELECT count(DISTINCT fingerprint), count(*) FROM local_features").fetchone() == (
            1,
            SCENES,
        )


def test_a_gallery_too_large_to_scan_has_nearly_the_same_answer(gallery, pictures, monkeypatch):
    expected = names(gallery.search(pictures[1], 3))
    monkeypatch.setattr(parts_searcher, "MOST_SCANNED", 2)
    result = gallery.search(pictures[1], 3)
    assert names(result)[0] == expected[0] and result[0].verified


def test_another_model_keeps_the_local_features(gallery, pictures, twin_bundle):
    with Gallery(gallery.path, str(twin_bundle)) as other:
        other.index(rebuild=True)
        result = other.search(pictures[1])
    assert names(result)[0] == "scene3" and result[0].verified


def test_attention_finds_what_signs_leave_in_doubt(gallery, pictures, monkeypatch):
    model = gallery._searcher._parts.model
    monkeypatch.setattr(model, "match_distances", np.full_like(model.match_distances, -1))  # signs match nothing
    result = gallery.search(pictures[1])
    assert names(result)[0] == "scene3"
    assert result[0].inliers >= 8 and {hit.inliers for hit in result[1:]} == {0}
    assert {hit.inliers for hit in gallery.search(paint_scene(99, SIZE))} == {0}
