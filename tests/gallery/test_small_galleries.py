"""The default search where a gallery is small, or full of one thing, and where a query shows little."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tessera.bench.planar_scenes import draw_homography, paint_scene, warp
from tessera.errors import BoxError
from tessera.gallery.gallery import Gallery

SIZE = (480, 360)
Pixels = np.ndarray


def view_of(scene: int, number: int) -> Pixels:
    return warp(paint_scene(scene, SIZE), draw_homography(number, SIZE), number)


@pytest.fixture
def make_gallery(small_bundle, tmp_path):
    opened: list[Gallery] = []

    def make(pictures: dict[str, Pixels]) -> Gallery:
        folder = tmp_path / f"pictures{len(opened)}"
        folder.mkdir()
        for name, picture in pictures.items():
            Image.fromarray(picture).save(folder / f"{name}.png")
        opened.append(Gallery(tmp_path / f"g{len(opened)}", str(small_bundle)))
        opened[-1].index(folder)
        return opened[-1]

    yield make
    for gallery in opened:
        gallery.close()


def check_order(result) -> None:
    probabilities = [hit.probability for hit in result]
    assert probabilities == sorted(probabilities, reverse=True)
    assert all(0 < probability <= 1 for probability in probabilities)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_gallery_of_a_few_pictures_knows_its_own(make_gallery, count):
    gallery = make_gallery({f"scene{s}": paint_scene(s, SIZE) for s in range(count)})
    found = gallery.search(view_of(0, 3))
    check_order(found)
    assert len(found) == count and Path(found[0].path).stem == "scene0"
    assert found.certain is True and found[0].verified
    assert [hit.verified for hit in found[1:]] == [False] * (count - 1)
    for stranger in (paint_scene(50, SIZE), np.zeros((200, 200, 3), np.uint8), np.full((1, 1, 3), 90, np.uint8)):
        nothing = gallery.search(stranger)
        check_order(nothing)
        assert len(nothing) == count and nothing.certain is False
        assert not any(hit.verified for hit in nothing)


def test_copies_do_not_make_each_other_strangers(make_gallery):
    """Half of the gallery is the thing itself: what it scores says nothing about how strangers score."""
    strangers = {f"stranger{s}": paint_scene(100 + s, SIZE) for s in range(5)}
    alone = make_gallery({"copy0": paint_scene(0, SIZE), **strangers}).search(view_of(0, 3))
    gallery = make_gallery({f"copy{n}": paint_scene(0, SIZE) for n in range(20)} | strangers)
    found = gallery.search(view_of(0, 3), k=25)
    check_order(found)
    assert all(Path(hit.path).stem.startswith("copy") and hit.verified for hit in found[:20])
    assert not any(hit.verified for hit in found[20:])
    assert found.certain is True and found[0].probability > alone[0].probability - 0.02
    assert gallery.search(paint_scene(50, SIZE)).certain is False


def test_a_small_part_is_answered_and_never_certain_without_reason(make_gallery):
    gallery = make_gallery({f"scene{s}": paint_scene(s, SIZE) for s in range(5)})
    query = paint_scene(2, SIZE)
    for side in (1, 8, 30):
        part = gallery.search(query, box=(200, 150, 200 + side, 150 + side))
        check_order(part)
        assert len(part) == 5 and part.certain is False
    large = gallery.search(query, box=(100, 80, 380, 300))
    assert Path(large[0].path).stem == "scene2" and large[0].verified and large.certain is True
    with pytest.raises(BoxError, match="outside"):
        gallery.search(query, box=(600, 10, 700, 90))


def test_a_huge_picture_is_found_by_its_reduction(make_gallery):
    gallery = make_gallery({f"scene{s}": paint_scene(s, SIZE) for s in range(5)})
    huge = np.asarray(Image.fromarray(view_of(1, 3)).resize((4800, 3600)))
    found = gallery.search(huge)
    assert Path(found[0].path).stem == "scene1" and found[0].verified and found.certain is True
