"""Folders that are watched: whatever happens in them is in the gallery a moment later."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tessera
from tessera.errors import UsageError
from tessera.gallery.ingest.watching import WatchConfig, Watcher
from tessera.gallery.results import IndexReport

Painter = Callable[..., Path]
QUICK = WatchConfig(quiet_s=0.05, poll_s=0.2, retry_s=0.1)
POLLING = WatchConfig(quiet_s=0.05, poll_s=0.2, retry_s=0.1, events=False)


class Watched:
    """A watcher at work in a thread, and what it said."""

    def __init__(self, gallery: tessera.Gallery, *folders: Path, config: WatchConfig = QUICK) -> None:
        self.gallery = gallery
        self.said: list[str] = []
        self.reports: list[IndexReport] = []
        self.watcher = Watcher(gallery, folders, say=self.said.append, told=self.reports.append, config=config)
        self.thread = threading.Thread(target=self.watcher.run)

    def until(self, what: Callable[[], bool]) -> None:
        give_up = time.monotonic() + 60
        while not what():
            assert time.monotonic() < give_up, (len(self.gallery), self.said, self.reports)
            time.sleep(0.02)


@contextmanager
def watching(gallery: tessera.Gallery, *folders: Path, config: WatchConfig = QUICK) -> Iterator[Watched]:
    watched = Watched(gallery, *folders, config=config)
    watched.thread.start()
    try:
        yield watched
    finally:
        watched.watcher.stop.set()
        watched.thread.join(timeout=60)


@pytest.mark.parametrize("config", [QUICK, POLLING], ids=["events", "polling"])
def test_new_moved_and_deleted_pictures_are_followed(
    gallery: tessera.Gallery, photo_folder: Path, painter: Painter, tmp_path: Path, config: WatchConfig
) -> None:
    if config.events:
        pytest.importorskip("watchdog")
    with watching(gallery, photo_folder, config=config) as watched:
        watched.until(lambda: len(gallery) == 8)
        painter(photo_folder / "new" / "a.png", 50)
        watched.until(lambda: gallery.find(photo_folder / "new" / "a.png") is not None)
        moved = gallery.find(photo_folder / "photo0.png")
        assert moved is not None
        (photo_folder / "photo0.png").rename(photo_folder / "new" / "b.png")
        watched.until(lambda: gallery.find(photo_folder / "new" / "b.png") is not None)
        record = gallery.find(photo_folder / "new" / "b.png")
        assert record is not None
        assert record.id == moved.id
        shutil.rmtree(photo_folder / "inner")
        watched.until(lambda: len(gallery) == 5)
    assert sum(report.moved for report in watched.reports) == 1


def test_a_watched_folder_that_vanishes_keeps_its_pictures(
    gallery: tessera.Gallery, photo_folder: Path, painter: Painter
) -> None:
    with watching(gallery, photo_folder) as watched:
        watched.until(lambda: len(gallery) == 8)
        photo_folder.rename(photo_folder.with_name("away"))
        watched.until(lambda: any("is gone" in line for line in watched.said))
        assert len(gallery) == 8
        painter(photo_folder.with_name("away") / "new.png", 50)
        photo_folder.with_name("away").rename(photo_folder)
        watched.until(lambda: len(gallery) == 9)
        painter(photo_folder / "newer.png", 51)
        watched.until(lambda: len(gallery) == 10)
    assert sum("is gone" in line for line in watched.said) == 1


def test_an_empty_mount_point_is_a_folder_that_vanished(gallery: tessera.Gallery, photo_folder: Path) -> None:
    with watching(gallery, photo_folder, config=POLLING) as watched:
        watched.until(lambda: len(gallery) == 8)
        photo_folder.rename(photo_folder.with_name("away"))
        photo_folder.mkdir()
        watched.until(lambda: any("is gone" in line for line in watched.said))
    assert len(gallery) == 8


def test_a_gallery_that_another_writes_to_is_waited_for(
    gallery: tessera.Gallery, photo_folder: Path, painter: Painter
) -> None:
    from tessera.gallery.catalog.lock import writer_lock

    with watching(gallery, photo_folder, config=POLLING) as watched:
        watched.until(lambda: len(gallery) == 8)
        with gallery._store._writing, writer_lock(gallery.path):  # between two of its own runs
            painter(photo_folder / "new.png", 50)
            time.sleep(0.5)
            assert len(gallery) == 8
        watched.until(lambda: len(gallery) == 9)


def test_searches_go_on_while_folders_are_followed(
    gallery: tessera.Gallery, photo_folder: Path, painter: Painter
) -> None:
    with watching(gallery, photo_folder) as watched:
        watched.until(lambda: len(gallery) == 8)
        for seed in range(60, 90):
            painter(photo_folder / f"{seed}.png", seed)
            assert len(gallery.search(gallery.images()[0].id, 3)) == 3
        watched.until(lambda: len(gallery) == 38)


def test_what_is_no_folder_is_refused(gallery: tessera.Gallery, photo_folder: Path) -> None:
    for wrong in (photo_folder / "nothing", photo_folder / "photo0.png"):
        with pytest.raises(UsageError, match="is no folder"):
            Watcher(gallery, [wrong])
