"""What was removed on purpose does not come back by itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tessera


@pytest.fixture
def indexed(gallery: tessera.Gallery, photo_folder: Path) -> tessera.Gallery:
    gallery.index(photo_folder)
    return gallery


def test_a_removed_picture_stays_away(indexed: tessera.Gallery, photo_folder: Path) -> None:
    indexed.remove(photo_folder / "photo0.png")
    indexed.remove(indexed.images()[0].id)
    report = indexed.index(photo_folder)
    assert (report.added, report.ignored, report.images) == (0, 2, 6)
    assert report.to_json()["ignored"] == 2
    assert indexed.stats()["ignored"] == 2
    indexed.close()
    with tessera.Gallery(indexed.path) as again:
        assert again.index(photo_folder).ignored == 2


def test_a_removed_picture_that_moved_stays_away(indexed: tessera.Gallery, photo_folder: Path) -> None:
    indexed.remove(photo_folder / "photo0.png")
    (photo_folder / "photo0.png").rename(photo_folder / "renamed.png")
    assert indexed.index(photo_folder).ignored == 1
    assert indexed.index(photo_folder).ignored == 1  # known by its new path now
    assert indexed.find(photo_folder / "renamed.png") is None


def test_a_copy_of_a_removed_picture_is_another_picture(indexed: tessera.Gallery, photo_folder: Path) -> None:
    indexed.remove(photo_folder / "photo0.png")
    (photo_folder / "copy.png").write_bytes((photo_folder / "photo0.png").read_bytes())
    report = indexed.index(photo_folder)
    assert (report.added, report.ignored) == (1, 1)


def test_naming_it_brings_it_back(indexed: tessera.Gallery, photo_folder: Path) -> None:
    indexed.remove(photo_folder / "photo0.png")
    report = indexed.index(photo_folder / "photo0.png")
    assert (report.added, report.ignored) == (1, 0)
    assert indexed.stats()["ignored"] == 0


def test_a_removed_folder_stays_away_with_what_comes_into_it(
    indexed: tessera.Gallery, photo_folder: Path, painter: Callable[..., Path]
) -> None:
    assert indexed.remove(photo_folder / "inner") == 4
    painter(photo_folder / "inner" / "new.png", 50)
    assert indexed.index(photo_folder).ignored == 5
    assert indexed.index(photo_folder / "inner" / "photo1.png").added == 1  # named itself
    report = indexed.index(photo_folder)
    assert (report.unchanged, report.ignored) == (5, 4)
    assert indexed.index(photo_folder / "inner").added == 4
    assert indexed.index(photo_folder).ignored == 0


def test_a_list_respects_it(indexed: tessera.Gallery, photo_folder: Path) -> None:
    indexed.remove(photo_folder / "photo0.png")
    (photo_folder / "labels.csv").write_text("path,label\nphoto0.png,tower\nphoto2.png,bridge\n")
    report = indexed.index(photo_folder / "labels.csv")
    assert (report.ignored, report.unchanged) == (1, 1)


def test_removed_without_being_ignored(indexed: tessera.Gallery, photo_folder: Path) -> None:
    indexed.remove(photo_folder / "photo0.png", ignore=False)
    assert indexed.index(photo_folder).added == 1
