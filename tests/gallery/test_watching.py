"""Folders that are watched: whatever happens in them is in the gallery a moment later."""

from __future__ import annotations

import errno
import random
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
from tessera.storage import hash_file

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
        watched.until(lambda: len(gallery) == 8 and bool(watched.reports))  # not in the midst of the first run
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


def test_a_link_out_of_the_folders_publishes_nothing(
    gallery: tessera.Gallery, photo_folder: Path, painter: Painter, tmp_path: Path
) -> None:
    """Whoever may put files into a watched folder must not get at what they cannot read themselves."""
    private, other = tmp_path / "private", tmp_path / "other"
    painter(private / "secret.png", 50)
    painter(other / "shown.png", 51)
    (photo_folder / "file.png").symlink_to(private / "secret.png")
    (photo_folder / "folder").symlink_to(private)
    (photo_folder / "inner" / "up.png").symlink_to(Path("../../private/secret.png"))
    (photo_folder / "own.png").symlink_to("photo0.png")
    (photo_folder / "both").symlink_to(other)
    (photo_folder / "list.csv").write_text(f"path\n{private / 'secret.png'}\n")
    with watching(gallery, photo_folder, other) as watched:
        watched.until(lambda: len(gallery) == 11)
        (photo_folder / "later.png").symlink_to(private / "secret.png")
        painter(photo_folder / "last.png", 52)
        watched.until(lambda: len(gallery) == 12)
        painter(private / "more.png", 53)
    assert not gallery.search(private / "secret.png", 1, by="global")[0].score > 0.999
    assert gallery.find(photo_folder / "own.png") is not None
    assert gallery.find(other / "shown.png") is not None
    report = gallery.follow(photo_folder, links_within=[photo_folder])
    assert sum("leads out" in problem.reason for problem in report.problems) == 5
    assert gallery.index(photo_folder).images == 12 + 5  # by hand, links are followed as ever


def test_a_folder_that_is_moved_away_and_back_at_once_is_heard_of(
    gallery: tessera.Gallery, photo_folder: Path, painter: Painter
) -> None:
    """The system's watch ends with the moving; that the folder was gone may never be seen."""
    pytest.importorskip("watchdog")
    with watching(gallery, photo_folder) as watched:
        watched.until(lambda: len(gallery) == 8)
        photo_folder.rename(photo_folder.with_name("away"))
        photo_folder.with_name("away").rename(photo_folder)
        time.sleep(0.5)
        painter(photo_folder / "new.png", 50)
        watched.until(lambda: len(gallery) == 9)
        shutil.copytree(photo_folder, photo_folder.with_name("copy"))
        photo_folder.rename(photo_folder.with_name("away"))
        photo_folder.with_name("copy").rename(photo_folder)
        time.sleep(0.5)
        painter(photo_folder / "newer.png", 51)
        watched.until(lambda: len(gallery) == 10)


def test_what_the_system_does_not_tell_is_found_later(
    gallery: tessera.Gallery, photo_folder: Path, painter: Painter, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("watchdog")
    from tessera.gallery.ingest.folder_events import FolderEvents

    monkeypatch.setattr(FolderEvents, "dispatch", lambda *_: None)
    config = WatchConfig(quiet_s=0.05, poll_s=0.1, all_s=0.5)
    with watching(gallery, photo_folder, config=config) as watched:
        watched.until(lambda: len(gallery) == 8)
        painter(photo_folder / "new.png", 50)
        watched.until(lambda: len(gallery) == 9)


@pytest.mark.parametrize("config", [QUICK, POLLING], ids=["events", "polling"])
def test_a_disk_that_is_taken_out_of_a_watched_folder_keeps_its_pictures(
    gallery: tessera.Gallery,
    photo_folder: Path,
    painter: Painter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: WatchConfig,
) -> None:
    """Where a disk was mounted, an empty folder is left, and other pictures lie beside it."""
    if config.events:
        pytest.importorskip("watchdog")
    mounts = tmp_path / "mounts"
    mounts.write_text(f"36 35 98:0 / {photo_folder}/inner rw,noatime - ext3 /dev/root rw\n")
    monkeypatch.setattr("tessera.gallery.ingest.mounts._MOUNTS", mounts)
    with watching(gallery, photo_folder, config=config) as watched:
        watched.until(lambda: len(gallery) == 8)
        mounts.write_text("")
        (photo_folder / "inner").rename(tmp_path / "disk")
        (photo_folder / "inner").mkdir()
        painter(photo_folder / "new.png", 50)
        watched.until(lambda: len(gallery) == 9)
        (tmp_path / "disk").rename(tmp_path / "inner")
        (photo_folder / "inner").rmdir()
        (tmp_path / "inner").rename(photo_folder / "inner")
        mounts.write_text(f"36 35 98:0 / {photo_folder}/inner rw,noatime - ext3 /dev/root rw\n")
        (photo_folder / "new.png").unlink()
        watched.until(lambda: len(gallery) == 8)
    assert watched.said.count(f"The disk at {photo_folder}/inner is gone. Its pictures stay in the gallery.") == 1


def test_a_disk_that_is_taken_out_while_pictures_are_described_keeps_its_pictures(
    gallery: tessera.Gallery, photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"36 35 98:0 / {photo_folder}/inner rw,noatime - ext3 /dev/root rw\n")
    monkeypatch.setattr("tessera.gallery.ingest.mounts._MOUNTS", mounts)
    gallery.index(photo_folder)
    shutil.copy(photo_folder / "photo0.png", photo_folder / "new.png")

    def take_out(_: object) -> None:
        if (photo_folder / "inner").is_dir():
            shutil.rmtree(photo_folder / "inner")
            mounts.write_text("")

    report = gallery.index(photo_folder, prune=True, progress=take_out)
    assert report.pruned == 0 and len(gallery) == 9


def test_a_disk_that_does_not_answer_ends_no_watching(
    gallery: tessera.Gallery, photo_folder: Path, painter: Painter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    with watching(gallery, photo_folder, config=POLLING) as watched:
        watched.until(lambda: len(gallery) == 8)
        with monkeypatch.context() as patched:
            patched.setattr(Path, "iterdir", fail)
            watched.until(lambda: any("is gone" in line for line in watched.said))
        painter(photo_folder / "new.png", 50)
        watched.until(lambda: len(gallery) == 9)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_in_a_folder_the_gallery_is_as_the_folder_in_the_end(
    gallery: tessera.Gallery, photo_folder: Path, painter: Painter, seed: int
) -> None:
    numbers = random.Random(seed)
    config = WatchConfig(quiet_s=0.05, most_s=0.5, poll_s=0.2, all_s=1.0, retry_s=0.1, events=seed % 2 == 0)

    def act(kind: str, number: int) -> None:
        files = sorted(photo_folder.rglob("*.png"))
        one, other = numbers.sample(files, 2)
        new = photo_folder / f"folder{number % 3}" / f"{number}.png"
        if kind == "add":
            painter(new, 100 + number)
        elif kind == "write over":
            painter(photo_folder.with_name("new.png"), 200 + number).rename(one)
        elif kind == "delete" and len(files) > 4:
            one.unlink()
        elif kind == "move":
            new.parent.mkdir(exist_ok=True)
            one.rename(new)
        elif kind == "swap":
            one.rename(photo_folder.with_name("swapped.png"))
            other.rename(one)
            photo_folder.with_name("swapped.png").rename(other)
        elif kind == "folder away and back":
            photo_folder.rename(photo_folder.with_name("away"))
            time.sleep(numbers.choice([0.0, 0.3]))
            photo_folder.with_name("away").rename(photo_folder)

    def is_same() -> bool:
        found = {Path(record.path): record.content_hash for record in gallery.images(limit=1000)}
        return found == {path: hash_file(path) for path in photo_folder.rglob("*.png")}

    with watching(gallery, photo_folder, config=config) as watched:
        for number in range(20):
            act(numbers.choice(["add", "write over", "delete", "move", "swap", "folder away and back"]), number)
            time.sleep(numbers.choice([0.0, 0.0, 0.1]))
        watched.until(is_same)
    assert gallery.check().ok
