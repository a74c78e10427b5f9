"""Galleries of other versions: an older one is upgraded and kept, a newer one is refused."""

from __future__ import annotations

import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path

import pytest

import tessera
from tessera.errors import GalleryError
from tessera.gallery.catalog import schema
from tessera.gallery.catalog.checksums import GUARDED

NAME = "catalog.sqlite"


@pytest.fixture
def old(tmp_path: Path, golden_dir: Path) -> Path:
    """The folder of gallery-0.1.zip: gallery.tessera, bundle, photos (tests/golden/galleries/make.py)."""
    with zipfile.ZipFile(golden_dir / "galleries" / "gallery-0.1.zip") as archive:
        archive.extractall(tmp_path / "old")
    return tmp_path / "old"


def test_a_gallery_of_version_0_1_is_upgraded_and_kept(old: Path) -> None:
    folder = old / "gallery.tessera"
    before = (folder / NAME).read_bytes()
    with tessera.Gallery(folder, old / "bundle") as gallery:  # the bundle has moved since
        records = {Path(record.path).name: record for record in gallery.images()}
        assert sorted(records) == ["copy.png", "photo0.png", "photo1.png", "photo2.png", "photo3.png", "photo4.png"]
        assert records["photo1.png"].metadata == {"place": "Pisa", "year": "1990"}
        assert records["photo3.png"].metadata == {"place": "Bari"}  # a number that was none is left out
        assert [record.path for record in gallery.failures()] == ["/mnt/g/photos/broken.png"]
        assert gallery.count("year>=1990") == 2
        assert gallery.facets()["place"] == {"Bari": 1, "Pisa": 1, "Rome": 1}
        report = gallery.check(repair=True)  # its index may be of an older format, and is made anew
        assert report.ok
        assert report.missing_files == 6  # one of the seven never could be read
        hits = gallery.search(old / "photos" / "photo2.png", 3)
        assert (Path(hits[0].path).name, hits[0].score) == ("photo2.png", pytest.approx(1.0, abs=1e-3))
        assert gallery.index(old / "photos").moved == 6
        assert max(record.id for record in gallery.images()) <= 8  # a file that has moved keeps its id
        assert gallery.check().ok
    kept = folder / f"{NAME}.version-2"
    with closing(sqlite3.connect(kept)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
        assert connection.execute("SELECT count(*) FROM images").fetchone() == (7,)
    kept.replace(folder / NAME)
    assert len(before) == (folder / NAME).stat().st_size  # what an older Tessera can go back to


def test_an_upgrade_that_is_interrupted_changes_nothing(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = old / "gallery.tessera"
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS[:-1], (*schema.MIGRATIONS[-1], "SELECT no_such()")])
        with pytest.raises(GalleryError, match="no_such"):
            tessera.Gallery(folder)
    with closing(sqlite3.connect(folder / NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
    with tessera.Gallery(folder) as gallery:
        assert len(gallery) == 6


@pytest.mark.parametrize("version", [0, 2])
def test_a_column_that_an_old_checksum_gains_is_sealed(
    version: int, old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As CONTRIBUTING says how a column is added: a new gallery has it, and so has one of any version."""
    guard = "images.facts_checksum"
    column = ("ALTER TABLE images ADD COLUMN rating INTEGER NOT NULL DEFAULT 3", schema.Seal(guard))
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, column])
    monkeypatch.setitem(GUARDED, guard, (*GUARDED[guard], "rating"))
    with tessera.Gallery(old / "gallery.tessera" if version else tmp_path / "new", old / "bundle") as gallery:
        gallery.index(old / "photos")
        with gallery._catalog.read() as snapshot:
            assert list(snapshot.query("SELECT DISTINCT rating FROM images")) == [(3,)]
            assert snapshot.damaged_rows(guard) == []
        with gallery._catalog.write() as batch:
            batch.query("UPDATE images SET rating = 4 WHERE id = 3")
            assert batch.damaged_rows(guard) == [3]
            batch.query("UPDATE images SET rating = 3 WHERE id = 3")
    schema._tables_of_version.cache_clear()


def test_a_newer_gallery_is_refused_and_not_touched(filled: Path) -> None:
    with closing(sqlite3.connect(filled / NAME)) as connection:
        connection.execute(f"PRAGMA user_version = {schema.latest_version() + 1}")
    before = (filled / NAME).read_bytes()
    with pytest.raises(GalleryError, match=r"newer Tessera.*Update"):
        tessera.Gallery(filled)
    assert (filled / NAME).read_bytes() == before
    assert not list(filled.glob("*version-*"))


def test_a_damaged_gallery_of_version_0_1_is_saved(old: Path) -> None:
    from tessera.gallery.check import check_catalog_file

    folder = old / "gallery.tessera"
    with closing(sqlite3.connect(folder / NAME)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("UPDATE images SET state = 'oj' WHERE id = 2")
        connection.commit()
    assert check_catalog_file(folder, repair=True)[0].repaired
    with tessera.Gallery(folder, old / "bundle") as gallery:
        assert (len(gallery), gallery.check(repair=True).ok, gallery.check().ok) == (6, True, True)
        assert gallery.count("place=Bari") == 1
