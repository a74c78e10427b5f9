"""Repairing a catalogue: at whatever moment it is stopped, whatever bytes are bad, whoever has it open."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest

import tessera
from tessera.errors import GalleryDamagedError, GalleryError, TesseraError
from tessera.gallery.catalog.commit_mark import CommitMark, put_mark
from tessera.gallery.check import check_catalog_file

Painter = Callable[..., Path]
NAME = "catalog.sqlite"


@pytest.fixture(scope="session")
def many_photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hundred and ninety pictures of different content, which one network sees as a few."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("many")
    for i in range(290):
        Image.new("RGB", (8, 6), (i % 7 * 30, i % 5 * 50, 90)).save(path := folder / f"{i:03}.png")
        path.write_bytes(path.read_bytes() + str(i).encode())
    return folder


@pytest.fixture(scope="session")
def large_original(tmp_path_factory: pytest.TempPathFactory, wide_bundle: Path, many_photos: Path) -> Path:
    folder = tmp_path_factory.mktemp("original") / "gallery"
    with tessera.Gallery(folder, wide_bundle) as gallery:
        gallery.index(many_photos)
    return folder


@pytest.fixture
def large(large_original: Path, tmp_path: Path) -> Path:
    """A gallery of 290 pictures with descriptors of 1024 numbers, closed: some 90 pages."""
    return Path(shutil.copytree(large_original, tmp_path / "large"))


def names(folder: Path) -> set[str]:
    with tessera.Gallery(folder, create=False) as gallery:
        return {Path(record.path).name for record in gallery.images(limit=1000)}


def page_size(path: Path) -> int:
    return int.from_bytes(path.read_bytes()[16:18], "big")


class KilledError(BaseException):
    pass


@pytest.fixture
def dying(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """`dying(n)`: this process may make n more changes to files' names or syncs, then it is as if killed."""
    left = [1 << 30]
    for name in ("replace", "rename", "unlink", "link", "fsync"):

        def guarded(call: Callable[..., object], *args: object, **kwargs: object) -> object:
            left[0] -= 1
            if left[0] < 0:
                raise KilledError
            return call(*args, **kwargs)

        monkeypatch.setattr(os, name, partial(guarded, getattr(os, name)))

    def allow(count: int) -> None:
        left[0] = count

    yield allow
    left[0] = 1 << 30


def test_a_repair_that_is_killed_at_any_step_loses_nothing(filled: Path, tmp_path: Path, dying: Callable) -> None:
    before = names(filled)
    (filled / f"{NAME}-wal").write_bytes(b"a log that is damaged, too")
    with closing(sqlite3.connect(filled / NAME)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE images SET state = 'oj' WHERE id = 3")
        connection.commit()
    (filled / f"{NAME}-wal").write_bytes(b"a log that is damaged, too")
    step = 0
    while True:
        folder = Path(shutil.copytree(filled, tmp_path / f"step{step}"))
        dying(step)
        try:
            check_catalog_file(folder, repair=True)
            break
        except KilledError:
            step += 1
        finally:
            dying(1 << 30)
        assert (folder / NAME).is_file(), step
        with tessera.Gallery(folder, create=False) as gallery:
            assert gallery.check(repair=True).ok, step
        assert names(folder) == before, step
        kept = [path.read_bytes() for path in folder.glob(f"{NAME}.damaged-[0-9]")]
        assert kept == [(filled / NAME).read_bytes()], step  # once, and whole
    assert step >= 5


@pytest.mark.parametrize("whole", [True, False])
def test_a_repair_that_an_older_version_left_halfway_is_found(filled: Path, whole: bool) -> None:
    before = names(filled)
    if whole:
        shutil.copy(filled / NAME, filled / f"{NAME}.salvaged")
    (filled / NAME).rename(filled / f"{NAME}.damaged-1")
    assert not check_catalog_file(filled, repair=False)[0].repaired
    with tessera.Gallery(filled) as gallery:  # which may make new ones
        assert len(gallery) == len(before)
    assert names(filled) == before


def test_a_catalogue_that_was_cut_gives_up_what_is_left(large: Path, many_photos: Path) -> None:
    before = names(large)
    path = large / NAME
    with path.open("rb+") as file:
        file.truncate(path.stat().st_size * 9 // 10)
    (finding,) = check_catalog_file(large, repair=True)
    assert finding.repaired
    saved = names(large)
    assert saved < before
    assert len(saved) > 240
    with tessera.Gallery(large) as gallery:
        assert gallery.check(repair=True).ok
        assert gallery.index(many_photos).images == 290


def test_a_state_that_cannot_be_is_put_right(filled: Path) -> None:
    before = names(filled)
    with closing(sqlite3.connect(filled / NAME)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE images SET state = 'oj' WHERE id = 3")
        connection.commit()
    (finding,) = check_catalog_file(filled, repair=True)
    assert finding.repaired
    assert names(filled) == before
    assert check_catalog_file(filled, repair=False) == []


def test_a_rowid_that_cannot_be_takes_neither_memory_nor_the_other_rows(large: Path, monkeypatch) -> None:
    """The last row of the last page of `images` gets nine bytes for its id that say 2^62."""
    before = names(large)
    path = large / NAME
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE images SET id = ? WHERE id = 290", (2**62 + 5,))
        connection.execute("UPDATE sqlite_sequence SET seq = ?", (2**62 + 5,))
        connection.execute("DROP INDEX images_by_content")
        connection.commit()
    content = bytearray(path.read_bytes())
    content[-page_size(path) :] = b"\xa5" * page_size(path)
    path.write_bytes(content)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), hard))
    try:
        check_catalog_file(large, repair=True)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    saved = names(large)
    assert len(saved) >= len(before) - 10
    with tessera.Gallery(large) as gallery:
        assert max(record.id for record in gallery.images(limit=1000)) < 1000


def test_an_open_gallery_goes_on_in_the_repaired_catalogue(
    filled: Path, tmp_path: Path, painter: Painter, photo_folder: Path
) -> None:
    with tessera.Gallery(filled) as writer, tessera.Gallery(filled) as reader:
        writer.index(painter(tmp_path / "one.png", 50))
        assert len(reader) == 9
        with closing(sqlite3.connect(filled / NAME)) as connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            connection.execute("UPDATE images SET state = 'oj' WHERE id = 3")
            connection.commit()
        (finding,) = check_catalog_file(filled, repair=True)
        assert finding.repaired
        writer.index(painter(tmp_path / "two.png", 51))
        assert len(reader) == len(writer) == 10
        assert reader.search(tmp_path / "two.png", 1)[0].path == str(tmp_path / "two.png")
    assert names(filled) >= {"one.png", "two.png", "photo0.png"}


def test_a_gallery_made_anew_is_not_written_by_who_had_the_old_one_open(
    filled: Path, small_bundle: Path, tmp_path: Path, painter: Painter
) -> None:
    with tessera.Gallery(filled) as old:
        old.index(painter(tmp_path / "one.png", 50))
        shutil.rmtree(filled)
        with tessera.Gallery(filled, small_bundle) as new:
            new.index(painter(tmp_path / "two.png", 51))
        with pytest.raises(GalleryError, match="made anew"):
            old.index(painter(tmp_path / "three.png", 52))
    assert names(filled) == {"two.png"}


@pytest.mark.parametrize("page", range(0, 12))
def test_each_bad_page_costs_its_own_rows_only(large: Path, many_photos: Path, wide_bundle: Path, page: int) -> None:
    before = names(large)
    path = large / NAME
    content = bytearray(path.read_bytes())
    size = page_size(path)
    content[page * size : (page + 1) * size] = random.Random(page).randbytes(size)
    path.write_bytes(content)
    findings = check_catalog_file(large, repair=True)
    assert all(finding.repaired for finding in findings)
    saved = names(large)
    assert saved <= before
    # The page of the schema says where the tables are: without it the rows are known by their form.
    assert len(saved) >= 290 - 100
    with tessera.Gallery(large, wide_bundle) as gallery:  # its name is lost with the settings
        assert gallery.check(repair=True).ok
        assert gallery.index(many_photos).images == 290


def test_deleted_rows_do_not_come_back(large: Path, many_photos: Path) -> None:
    """Their pages are free, and still hold them."""
    with tessera.Gallery(large) as gallery:
        gallery.remove([record.id for record in gallery.images(limit=200)])
    left = names(large)
    path = large / NAME
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        assert connection.execute("PRAGMA freelist_count").fetchone()[0] > 3
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE images SET state = 'oj' WHERE id = 250")
        connection.commit()
    (finding,) = check_catalog_file(large, repair=True)
    assert finding.repaired
    assert names(large) == left


def test_what_is_no_database_at_all_is_said(filled: Path) -> None:
    for content in (b"", b"\0" * 40000, random.Random(0).randbytes(40000)):
        (filled / NAME).write_bytes(content)
        try:
            check_catalog_file(filled, repair=True)
        except GalleryDamagedError as error:
            assert "Nothing could be read" in str(error)
        except TesseraError as error:
            pytest.fail(str(error))


def dump(folder: Path) -> dict[str, list[object]]:
    """What people would miss: facts, groups, metadata, and what was removed on purpose."""
    with closing(sqlite3.connect(folder / NAME)) as connection:
        images = "SELECT path, metadata, facts, sidecar_ns, group_id, group_rank FROM images ORDER BY path"
        return {
            "images": connection.execute(images).fetchall(),
            "ignored": connection.execute("SELECT path, hash FROM ignored ORDER BY path").fetchall(),
            "pairs": connection.execute("SELECT kind, first, second, score FROM pairs").fetchall(),
            "signatures": connection.execute("SELECT hash, signature FROM contents ORDER BY hash").fetchall(),
        }


@pytest.fixture
def rich(filled: Path, photo_folder: Path) -> Path:
    """The gallery of eight with one removed, a folder that is passed over, groups, pairs and facts."""
    with tessera.Gallery(filled) as gallery:
        gallery.remove(photo_folder / "photo6.png")
        gallery.ignore(photo_folder / "not-here")
        records = gallery.images()
        with gallery._catalog.write() as batch:
            batch.set_groups({4: [records[2].id, records[0].id]})
            batch.add_compared_pairs("match", {(str(records[0].content_hash), str(records[2].content_hash)): 33.0})
            batch._connection.execute('UPDATE images SET facts = \'{"camera":"X100"}\' WHERE id = 2')
            batch._seal("images.facts_checksum", "id = 2")
        assert gallery.check().ok
    return filled


def test_groups_facts_and_what_was_removed_are_saved(rich: Path, photo_folder: Path) -> None:
    before = dump(rich)
    with closing(sqlite3.connect(rich / NAME)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE images SET state = 'oj' WHERE id = 3")
        connection.commit()
    (finding,) = check_catalog_file(rich, repair=True)
    assert finding.repaired
    assert dump(rich) == before
    with tessera.Gallery(rich) as gallery:
        assert gallery.check(repair=True).ok
        assert gallery.count("camera=X100") == 1
        assert gallery.index(photo_folder).images == 7  # what was removed stays away


def test_an_image_whose_descriptor_is_lost_keeps_its_metadata(rich: Path, photo_folder: Path) -> None:
    before = dump(rich)
    with closing(sqlite3.connect(rich / NAME)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE images SET state = 'oj' WHERE id = 3")
        connection.execute("UPDATE contents SET hash = substr(hash, 1, 31) || x'00' WHERE id = 2")
        connection.commit()
    check_catalog_file(rich, repair=True)
    with tessera.Gallery(rich) as gallery:
        assert gallery.check(repair=True).ok
        assert gallery.index(photo_folder).images == 7
    assert [row[:2] for row in dump(rich)["images"]] == [row[:2] for row in before["images"]]


@pytest.mark.parametrize(
    "damage",
    [
        "PRAGMA user_version = 4",
        "PRAGMA user_version = 22",
        "PRAGMA user_version = 0",
        "PRAGMA application_id = 1413829458",
        "UPDATE sqlite_master SET sql = replace(sql, 'checksum', 'chacksum') WHERE name = 'images'",
        "UPDATE sqlite_master SET sql = replace(sql, 'metadata', 'metadaua') WHERE name = 'images'",
        "UPDATE sqlite_master SET name = 'iggored', tbl_name = 'iggored' WHERE name = 'ignored'",
    ],
)
def test_a_bit_in_the_head_or_in_the_schema_is_damage_and_is_repaired(rich: Path, damage: str) -> None:
    before = dump(rich)
    with closing(sqlite3.connect(rich / NAME)) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(damage)
        connection.commit()
    with pytest.raises(GalleryDamagedError, match="check --repair"):
        tessera.Gallery(rich)
    assert [finding.repaired for finding in check_catalog_file(rich, repair=True)] == [True]
    found = dump(rich)
    if "iggored" in damage:  # a table that nobody knows any more, whose rows still have their checksums
        assert found["images"] == before["images"]
    else:
        assert found == before


@pytest.mark.parametrize(
    ("change", "about"),
    [
        ('UPDATE images SET facts = \'{"camera":"X101"}\' WHERE id = 2', "say of themselves"),
        ("UPDATE images SET group_id = 5 WHERE id = 1", "groups"),
        ("UPDATE images SET metadata = CAST(metadata AS BLOB) WHERE id = 2", "metadata"),
        ("UPDATE contents SET descriptor = CAST(descriptor AS TEXT) WHERE id = 2", "descriptor"),
        ("UPDATE contents SET signature = zeroblob(256) WHERE id = 2", "signatures"),
        ("UPDATE ignored SET hash = zeroblob(32) WHERE hash IS NOT NULL", "passes over"),
        ("UPDATE pairs SET score = 34.0", "pairs"),
        ("UPDATE removals SET id = id - 1", "removed lately"),
        ("UPDATE sqlite_sequence SET seq = 3", "counter"),
        ("DELETE FROM sqlite_sequence", "counter"),
        ("UPDATE settings SET value = NULL WHERE key = 'generation'", "generation"),
        ("UPDATE settings SET value = CAST(x'ff66616973' AS TEXT) WHERE key = 'engine'", "engine"),
        ("UPDATE settings SET key = 'dhm' WHERE key = 'dim'", "dim"),
    ],
)
def test_damage_in_every_table_is_found_and_repaired(
    rich: Path, photo_folder: Path, painter: Painter, change: str, about: str
) -> None:
    with tessera.Gallery(rich) as gallery:  # a removal that the saved index does not know yet
        gallery.index(photo_folder)
        with gallery._catalog.write() as batch:
            batch.remove([gallery.images()[-1].id])
    with closing(sqlite3.connect(rich / NAME)) as connection:
        assert connection.execute(change).rowcount > 0
        connection.commit()
    with suppress(tessera.TesseraError), tessera.Gallery(rich) as gallery:
        gallery.search(photo_folder / "photo0.png", 1)  # an answer, or a sentence
    with tessera.Gallery(rich) as gallery:
        messages = [finding.message for finding in gallery.check(repair=True).findings]
        assert any(about in message for message in messages), messages
    with tessera.Gallery(rich) as gallery:
        assert gallery.check().ok
        gallery.index(photo_folder)
        gallery.index(painter(photo_folder / "new.png", 77))
        assert gallery.search(photo_folder / "new.png", 1)[0].path == str(photo_folder / "new.png")
        assert gallery.search(photo_folder / "photo0.png", 1)[0].path == str(photo_folder / "photo0.png")
        assert gallery.check().ok


COMMITTED_THEN_KILLED = """
import os, signal, sys, tessera
gallery = tessera.Gallery(sys.argv[1], sys.argv[2])
for path in sys.argv[3:]:
    gallery.index(path, metadata={"note": "here"})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="session")
def killed_original(tmp_path_factory: pytest.TempPathFactory, small_bundle: Path, many_photos: Path) -> Path:
    """A gallery as a killed writer leaves it: ten pictures, each committed by itself, most of them in the log."""
    folder = tmp_path_factory.mktemp("killed") / "gallery"
    photos = [str(many_photos / f"{i:03}.png") for i in range(10)]
    command = [sys.executable, "-c", COMMITTED_THEN_KILLED, str(folder), str(small_bundle), *photos]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    return folder


@pytest.mark.parametrize(
    ("damage", "saved"),
    [
        ("flip in the head", 9),
        ("flip in the first frame", 9),
        ("flip in the middle", 9),
        ("flip in the last frame", 9),
        ("cut", 1),
        ("deleted", 0),
        ("zeros", 0),
    ],
)
def test_a_log_that_lost_what_was_committed_is_damage_and_is_read_past_it(
    killed_original: Path, tmp_path: Path, many_photos: Path, damage: str, saved: int
) -> None:
    """SQLite takes such a log for a shorter one, and an index would go on to show ids that are given anew."""
    folder = Path(shutil.copytree(killed_original, tmp_path / "gallery"))
    log = folder / f"{NAME}-wal"
    content = bytearray(log.read_bytes())
    places = {"head": 17, "first frame": 60, "middle": len(content) // 2, "last frame": len(content) - 99}
    if damage.startswith("flip"):
        content[places[damage.removeprefix("flip in the ")]] ^= 4
    elif damage == "cut":
        del content[len(content) // 2 :]
    elif damage == "zeros":
        content = bytearray(len(content))
    (folder / f"{NAME}-shm").unlink()
    log.unlink()
    if damage != "deleted":
        log.write_bytes(content)
    with pytest.raises(GalleryDamagedError, match="lost what was stored last"):
        names(folder)
    with pytest.raises(GalleryDamagedError, match="check --repair"), tessera.Gallery(folder) as gallery:
        gallery.index(many_photos / "010.png")  # nobody writes over what is left either
    assert "lost what was stored last" in check_catalog_file(folder, repair=False)[0].message
    assert check_catalog_file(folder, repair=True)[0].repaired
    assert check_catalog_file(folder, repair=False) == []
    with tessera.Gallery(folder) as gallery:
        assert gallery.check(repair=True).ok
        assert gallery.check().ok
        assert gallery.count("note=here") >= saved
        for i in range(11):
            gallery.index(many_photos / f"{i:03}.png")
        assert len(gallery) == 11
        paths = [record.path for record in gallery.images()]
        assert len(set(paths)) == 11


def test_an_older_copy_of_the_catalogue_is_refused_until_it_is_accepted(
    filled: Path, tmp_path: Path, photo_folder: Path
) -> None:
    older = shutil.copy(filled / NAME, tmp_path / "older.sqlite")
    with tessera.Gallery(filled) as gallery:
        gallery.remove(photo_folder / "photo2.png")
    shutil.copy(older, filled / NAME)
    with pytest.raises(GalleryDamagedError, match="an older copy was put here"):
        names(filled)
    check_catalog_file(filled, repair=True)
    with tessera.Gallery(filled) as gallery:
        assert gallery.check(repair=True).ok
        assert len(gallery) == 8


def test_a_mark_that_is_damaged_or_of_another_gallery_says_nothing(filled: Path) -> None:
    mark = filled / f"{NAME}.committed"
    whole = mark.read_bytes()
    for place in range(len(whole)):
        mark.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert check_catalog_file(filled, repair=False) == [], place
    mark.write_bytes(b"")
    assert len(names(filled)) == 8
    put_mark(filled / NAME, CommitMark("0" * 32, 999))
    assert len(names(filled)) == 8


@pytest.mark.parametrize("lost", [["local_features"], ["local_features", "images"]])
def test_local_features_that_a_repair_cannot_save_are_made_again(
    filled: Path, photo_folder: Path, lost: list[str]
) -> None:
    path = filled / NAME
    content, size = bytearray(path.read_bytes()), page_size(path)
    with closing(sqlite3.connect(path)) as connection:
        for (root,) in connection.execute(
            f"SELECT rootpage FROM sqlite_master WHERE type = 'table' AND name IN ({','.join('?' * len(lost))})", lost
        ):
            content[(root - 1) * size : root * size] = b"\xff" * size
    path.write_bytes(content)
    away = photo_folder.rename(photo_folder.with_name("away"))
    check_catalog_file(filled, repair=True)
    with tessera.Gallery(filled) as gallery:
        assert gallery.check(repair=True).ok
        said = [finding.message for finding in gallery.check().findings]
        assert any("Local features were lost" in message for message in said) == (lost == ["local_features"])
        assert gallery.stats()["local_features"]["images"] == 0
        away.rename(photo_folder)
        gallery.index(photo_folder)  # the files are back
        assert gallery.stats()["local_features"]["images"] == 8
        assert gallery.check().findings == []
        assert gallery.search(photo_folder / "photo0.png", 1)[0].verified
