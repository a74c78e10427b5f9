"""More than one process, and processes that end badly."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

import tessera
from tessera.errors import GalleryError, GalleryLockedError
from tessera.gallery import store
from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.catalog.lock import writer_lock

COMMAND = [sys.executable, "-m", "tessera.cli.main"]
PICTURES = 96  # more than a run stores at once: it does not end between a look at the catalogue and the signal


def stored(gallery_dir: Path) -> dict[bytes, int]:
    """What a reader can see now, by a connection of its own."""
    catalog = Catalog(gallery_dir / "catalog.sqlite")
    try:
        with catalog.read() as snapshot:
            return {path: image_id for image_id, path in snapshot.stream_under(b"/")}
    finally:
        catalog.close()


def wait_for(gallery_dir: Path, count: int) -> dict[bytes, int]:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if (gallery_dir / "catalog.sqlite").is_file():
            try:
                if len(seen := stored(gallery_dir)) >= count:
                    return seen
            except tessera.TesseraError:
                pass  # the file is there before its tables
        time.sleep(0.01)
    raise AssertionError("the other process stored nothing within five minutes")


def test_a_killed_run_loses_nothing_and_is_gone_on_with(
    tmp_path: Path, small_bundle: Path, many_pictures: Callable[[Path, int], Path]
) -> None:
    photos, folder = many_pictures(tmp_path / "photos", PICTURES), tmp_path / "gallery"
    command = [*COMMAND, "index", str(photos), "-g", str(folder), "--model", str(small_bundle)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    acknowledged = wait_for(folder, 1)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    after = stored(folder)
    assert len(after) < PICTURES
    assert acknowledged.items() <= after.items()
    with tessera.Gallery(folder) as gallery:
        assert len(gallery.search(photos / "0000.jpg", 1000)) == len(after)  # what there is can be searched at once
        report = gallery.index(photos)
        assert (report.unchanged, report.added, report.images) == (len(after), PICTURES - len(after), PICTURES)
        assert gallery.check().ok
    assert after.items() <= stored(folder).items()


def test_readers_go_on_while_another_process_writes(
    tmp_path: Path, small_bundle: Path, many_pictures: Callable[[Path, int], Path]
) -> None:
    photos, folder = many_pictures(tmp_path / "photos", PICTURES), tmp_path / "gallery"
    command = [*COMMAND, "index", str(photos), "-g", str(folder), "--model", str(small_bundle)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_for(folder, 1)
        writer.send_signal(signal.SIGSTOP)  # in the middle of its work, however fast the machine
        second = subprocess.run(command, capture_output=True, text=True, check=False)
        with tessera.Gallery(folder) as reader:
            found = len(reader.search(photos / "0000.jpg", 1000))
        assert writer.poll() is None
    finally:
        writer.send_signal(signal.SIGCONT)
        _, complaint = writer.communicate(timeout=400)
    assert writer.returncode == 0, complaint
    assert second.returncode == 1
    assert f"another process (pid {writer.pid})" in second.stderr
    assert 1 <= found < PICTURES
    assert len(stored(folder)) == PICTURES


def test_a_full_disk_does_not_keep_anybody_from_searching(filled: Path, photo_folder: Path) -> None:
    """SQLite wants to make a file of 32 KB beside the catalogue even to read it."""
    command = [*COMMAND, "search", str(photo_folder / "photo0.png"), "--json", "-g", str(filled)]
    full = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert full.returncode == 0, full.stderr
    assert json.loads(full.stdout)["results"][0]["path"] == str(photo_folder / "photo0.png")


def test_a_full_disk_says_so_and_loses_nothing(tmp_path: Path, small_bundle: Path, photo_folder: Path) -> None:
    folder = tmp_path / "gallery"
    with tessera.Gallery(folder, small_bundle) as gallery:
        gallery.index(photo_folder)
        expected = [hit.id for hit in gallery.search(photo_folder / "photo0.png", 100)]
    more = tmp_path / "more"
    more.mkdir()
    picture = (photo_folder / "photo0.png").read_bytes()
    for i in range(200):
        (more / f"{i}.png").write_bytes(picture + str(i).encode())

    def limit_files() -> None:
        # What a full disk does to a file that grows: writing fails in the middle of it.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    done = subprocess.run(
        [*COMMAND, "index", str(more), "-g", str(folder)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit_files,
    )
    assert done.returncode == 1, done.stderr
    assert "disk is full" in done.stderr
    assert "Traceback" not in done.stderr
    with tessera.Gallery(folder) as gallery:
        assert set(expected) <= {hit.id for hit in gallery.search(photo_folder / "photo0.png", 10_000)}
        assert gallery.index(more).images == 208
        assert gallery.check().ok


@pytest.mark.parametrize("reload", ["inline", "background"])
def test_threads_search_while_one_adds_and_removes(
    tmp_path: Path, small_bundle: Path, photo_folder: Path, reload: str
) -> None:
    folder = tmp_path / "gallery"
    shared = tessera.Gallery(folder, small_bundle, reload=reload)  # type: ignore[arg-type]
    shared.index(photo_folder / "inner")
    failures: list[BaseException] = []
    stopping = threading.Event()
    counts: set[int] = set()

    def search() -> None:
        try:
            while not stopping.is_set():
                hits = shared.search(photo_folder / "photo0.png", 100)
                counts.add(len(hits))
                assert [hit.rank for hit in hits] == list(range(len(hits)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=search) for _ in range(4)]
    for thread in threads:
        thread.start()
    other = tessera.Gallery(folder)
    for i in range(6):
        writer = shared if i % 2 else other  # from this process's gallery and from one that it must follow
        writer.index(photo_folder)
        writer.remove([photo_folder / f"photo{k}.png" for k in (0, 2, 4, 6)], ignore=False)
    shared.index(photo_folder)
    stopping.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert counts <= set(range(4, 9))
    assert len(shared.search(photo_folder / "photo0.png", 100)) == 8
    shared.close()
    other.close()


def test_background_reload_follows_another_process(tmp_path: Path, small_bundle: Path, photo_folder: Path) -> None:
    with tessera.Gallery(tmp_path / "gallery", small_bundle, reload="background") as shared:
        shared.index(photo_folder / "inner")
        with tessera.Gallery(tmp_path / "gallery") as other:
            other.index(photo_folder)
        deadline = time.monotonic() + 120
        while (found := len(shared.search(photo_folder / "photo0.png", 100))) == 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert found == 8


def test_background_reload_never_asks_an_index_of_another_model(
    tmp_path: Path, small_bundle: Path, twin_bundle: Path, photo_folder: Path
) -> None:
    query = photo_folder / "photo0.png"
    with tessera.Gallery(tmp_path / "gallery", small_bundle) as first:
        first.index(photo_folder)
    with tessera.Gallery(tmp_path / "gallery", reload="background") as shared:
        shared.search(query, 8)
        with tessera.Gallery(tmp_path / "gallery", twin_bundle) as other:
            other.index(rebuild=True)
        found = [(hit.path, hit.score) for hit in shared.search(query, 8)]
    with tessera.Gallery(tmp_path / "gallery") as fresh:
        assert found == [(hit.path, hit.score) for hit in fresh.search(query, 8)]


def test_opening_waits_for_whoever_is_making_the_gallery_and_keeps_its_choice(
    tmp_path: Path, small_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its catalogue is there and has no settings yet: they are the maker's to choose."""
    folder = tmp_path / "gallery"
    folder.mkdir()
    catalog = Catalog(folder / "catalog.sqlite")
    made, opened = threading.Event(), []

    def make() -> None:
        with writer_lock(folder):
            catalog.prepare()
            made.set()
            time.sleep(0.3)
            with catalog.write() as batch:
                for key, value in {"engine": "faiss", "codec": "pq8", "model": str(small_bundle)}.items():
                    batch.set(key, value)
        catalog.close()

    def read() -> None:
        with tessera.Gallery(folder, create=False) as gallery:
            opened.append(gallery.stats()["codec"])

    threads = [threading.Thread(target=make), threading.Thread(target=read)]
    threads[0].start()
    assert made.wait(120)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert opened == ["pq8"]
    with writer_lock(folder):
        Catalog(folder / "catalog.sqlite").close()
        with tessera.Gallery(folder, create=False) as gallery:  # a writer at work is no reason to wait
            assert len(gallery) == 0
    monkeypatch.setattr(store, "_MAKING_S", 0.1)
    half_made = tmp_path / "half-made"
    half_made.mkdir()
    with writer_lock(half_made):
        Catalog(half_made / "catalog.sqlite").prepare()
        with pytest.raises(GalleryLockedError, match="is being written"):
            tessera.Gallery(half_made, create=False)


def test_who_only_looks_at_a_gallery_that_is_being_made_does_not_choose_for_its_maker(
    tmp_path: Path, small_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, between and after the maker's steps; a maker that was killed there leaves no gallery behind."""
    folder, seen, prepare = tmp_path / "gallery", [], Catalog.prepare

    def look() -> None:
        try:
            tessera.Gallery(folder, create=False).close()
            seen.append("a gallery")
        except GalleryError as error:
            seen.append(type(error).__name__)

    def prepare_and_look(catalog: Catalog) -> None:
        look()
        prepare(catalog)
        look()

    monkeypatch.setattr(store, "_MAKING_S", 0.0)
    monkeypatch.setattr(Catalog, "prepare", prepare_and_look)
    with tessera.Gallery(folder, small_bundle, codec="pq8") as gallery:
        assert gallery.stats()["codec"] == "pq8"
    look()
    assert seen == ["GalleryError", "GalleryLockedError", "a gallery"]
    half_made = tmp_path / "half-made"
    half_made.mkdir()
    prepare(Catalog(half_made / "catalog.sqlite"))
    with pytest.raises(GalleryError, match="There is no gallery"):
        tessera.Gallery(half_made, create=False)
    with tessera.Gallery(half_made, small_bundle, codec="pq8") as gallery:
        assert gallery.stats()["codec"] == "pq8"


_FORKING = """
import os, sys, time, tessera
from tessera.errors import GalleryLockedError
photos, folder, bundle = sys.argv[1:]
names = sorted(os.listdir(photos))
with tessera.Gallery(folder, bundle) as gallery:
    gallery.index(os.path.join(photos, names[0]))
    gallery.search(os.path.join(photos, names[0]))
    child = os.fork()
    for name in names[1:3] if child else names[3:5]:
        while True:
            try:
                gallery.index(os.path.join(photos, name))
                break
            except GalleryLockedError:
                time.sleep(0.01)
        assert gallery.search(os.path.join(photos, name), 1)[0].path.endswith(name)
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert len(gallery) == 5
"""


def test_a_process_that_forks_and_its_child_both_go_on(tmp_path: Path, small_bundle: Path) -> None:
    """Threads do not survive a fork: neither those of the gallery nor OpenMP's may be waited for."""
    photos = tmp_path / "photos"
    photos.mkdir()
    for k in range(5):
        Image.effect_noise((160, 120), 40 + 10 * k).convert("RGB").save(photos / f"{k}.png")
    threads = os.environ | {"OMP_NUM_THREADS": "2"}  # one thread has nobody to wait for
    command = [sys.executable, "-c", _FORKING, str(photos), str(tmp_path / "gallery"), str(small_bundle)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=threads, check=False)
    assert ended.returncode == 0, ended.stderr
