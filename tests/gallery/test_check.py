"""Check and repair: what is wrong is said, and what can be saved is."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import tessera
from tessera.errors import BundleDamagedError, GalleryDamagedError
from tessera.gallery.check import check_catalog_file


def change(folder: Path, statement: str, *parameters: object) -> None:
    with closing(sqlite3.connect(folder / "catalog.sqlite")) as connection:
        connection.execute(statement, parameters)
        connection.commit()


def test_a_sound_gallery_has_no_findings(filled: Path) -> None:
    with tessera.Gallery(filled) as gallery:
        report = gallery.check()
    assert (report.ok, report.findings, report.images, report.missing_files) == (True, [], 8, 0)


def test_missing_files_are_a_note_and_no_damage(filled: Path, photo_folder: Path) -> None:
    (photo_folder / "photo0.png").unlink()
    with tessera.Gallery(filled) as gallery:
        report = gallery.check()
    assert (report.ok, report.missing_files) == (True, 1)
    assert "photo0.png" in report.findings[0].message
    assert "--prune" in report.findings[0].message


@pytest.mark.parametrize(
    ("statement", "parameter", "left"),
    [
        ("UPDATE contents SET descriptor = ? WHERE id = 1", b"\x00" * 32, 7),
        ("UPDATE contents SET descriptor = ? WHERE id = 1", b"short", 7),
        ("DELETE FROM contents WHERE id = ?", 1, 7),
        ("UPDATE settings SET value = ? WHERE key = 'searchable'", 5, 8),
    ],
)
def test_rows_that_cannot_be_right_are_put_right(
    filled: Path, photo_folder: Path, statement: str, parameter: object, left: int
) -> None:
    change(filled, statement, parameter)
    with tessera.Gallery(filled) as gallery:
        assert not gallery.check().ok
        report = gallery.check(repair=True)
        assert report.ok
        assert report.findings[0].repaired
        assert gallery.check().findings == []
        assert len(gallery) == left
        assert gallery.index(photo_folder).images == 8
        assert gallery.search(photo_folder / "photo0.png", 1)[0].path == str(photo_folder / "photo0.png")


def test_a_damaged_catalogue_gives_up_what_can_be_read(tmp_path: Path, small_bundle: Path, photo_folder: Path) -> None:
    folder, more = tmp_path / "gallery", tmp_path / "more"
    more.mkdir()
    picture = (photo_folder / "photo0.png").read_bytes()
    for i in range(500):
        (more / f"{i:03}.png").write_bytes(picture + str(i).encode())
    with tessera.Gallery(folder, small_bundle) as gallery:
        gallery.index(more)
    path = folder / "catalog.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        page_bytes = connection.execute("PRAGMA page_size").fetchone()[0]
        (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'contents'").fetchone()
    content = bytearray(path.read_bytes())
    pages = len(content) // page_bytes
    assert pages > 8
    last_of_contents = int.from_bytes(content[(root - 1) * page_bytes + 8 :][:4], "big") - 1
    for page in (pages - 2, pages // 2, last_of_contents):
        content[page * page_bytes : (page + 1) * page_bytes] = b"\xa5" * page_bytes
    path.write_bytes(content)
    (finding,) = check_catalog_file(folder, repair=False)
    assert not finding.repaired
    (finding,) = check_catalog_file(folder, repair=True)
    assert finding.repaired
    assert "images were saved" in finding.message
    assert (folder / "catalog.sqlite.damaged-1").read_bytes() == content  # nothing is thrown away
    with tessera.Gallery(folder) as gallery:
        gallery.check(repair=True)
        assert gallery.check().ok
        saved = len(gallery)
        assert 0 < saved < 500
        report = gallery.index(more)
        assert report.images == 500
        assert report.unchanged >= saved


def test_a_catalogue_of_which_nothing_is_left(filled: Path) -> None:
    path = filled / "catalog.sqlite"
    path.write_bytes(b"\xa5" * path.stat().st_size)
    with pytest.raises(GalleryDamagedError, match="check --repair"):
        tessera.Gallery(filled)
    with pytest.raises(GalleryDamagedError, match="Nothing could be read"):
        check_catalog_file(filled, repair=True)
    assert path.read_bytes()[:4] == b"\xa5" * 4  # it stays where it is


def test_a_damaged_bundle_makes_no_descriptors_and_is_found(
    tmp_path: Path, small_bundle: Path, photo_folder: Path
) -> None:
    bundle = shutil.copytree(small_bundle, tmp_path / "bundle")
    with tessera.Gallery(tmp_path / "gallery", bundle) as gallery:
        gallery.index(photo_folder)
        content = bytearray((bundle / "model.onnx").read_bytes())
        content[-100] ^= 1
        (bundle / "model.onnx").write_bytes(content)
        report = gallery.check(repair=True)
        assert not report.ok
        assert "changed or damaged" in report.findings[0].message
    with (
        tessera.Gallery(tmp_path / "gallery") as gallery,
        pytest.raises(BundleDamagedError, match="changed or damaged"),
    ):
        gallery.search(photo_folder / "photo0.png")
    shutil.rmtree(bundle)
    with tessera.Gallery(tmp_path / "gallery") as gallery:
        assert gallery.check().ok  # its descriptors are sound; that the bundle is elsewhere is a note


def test_an_edit_that_keeps_size_and_time_is_found_by_a_deep_check(filled: Path, photo_folder: Path) -> None:
    path = photo_folder / "photo0.png"
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    (filled / "uploads" / "aa").mkdir(parents=True)
    (filled / "uploads" / "aa" / "orphan.jpg").write_bytes(b"never acknowledged")
    with tessera.Gallery(filled) as gallery:
        assert gallery.check().ok
        report = gallery.check(deep=True)
        assert not report.ok
        assert ["photo0.png" in finding.message for finding in report.findings] == [True, False]
        assert "orphan.jpg" in report.findings[1].message
        assert gallery.check(deep=True, repair=True).ok
        gallery.index(photo_folder)
        assert [finding.kind for finding in gallery.check(deep=True).findings] == ["note"]


def test_a_damaged_card_is_damage_and_a_bundle_elsewhere_a_note(
    filled: Path, small_bundle: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(small_bundle, tmp_path / "own"))
    change(filled, "UPDATE settings SET value = ? WHERE key = 'model'", str(own))
    with tessera.Gallery(filled) as gallery:
        gallery.check(repair=True)
        assert gallery.check().ok
    content = (own / "model.json").read_bytes()
    (own / "model.json").write_bytes(content.replace(b'"kind"', b'"kine"', 1))
    with tessera.Gallery(filled) as gallery:
        assert not gallery.check().ok
    shutil.rmtree(own)
    with tessera.Gallery(filled) as gallery:
        report = gallery.check()
        assert report.ok
        assert report.findings[0].kind == "note"


@pytest.mark.parametrize("name", ["images.npz", "postings.faiss", "postings.json", "manifest.json"])
def test_a_flipped_bit_in_the_inverted_file_decides_no_answer(filled: Path, photo_folder: Path, name: str) -> None:
    with tessera.Gallery(filled) as gallery:
        expected = [(hit.path, hit.score) for hit in gallery.search(photo_folder / "photo0.png", 8)]
    (path,) = (filled / "postings").rglob(name)
    whole = path.read_bytes()
    for place in range(0, len(whole), max(1, len(whole) // 12)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with tessera.Gallery(filled) as gallery:
            assert [(hit.path, hit.score) for hit in gallery.search(photo_folder / "photo0.png", 8)] == expected, place
            assert not gallery.check().ok, place
        path.write_bytes(whole)
    path.write_bytes(whole[:-1])
    with tessera.Gallery(filled) as gallery:
        assert gallery.check(repair=True).ok
        assert gallery.check().ok
