"""One flipped bit in a row is found by `check`, and decides no answer."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import tessera
from tessera.errors import GalleryDamagedError, UsageError
from tessera.gallery.catalog.checksums import GUARDED, row_checksum
from tessera.gallery.catalog.metadata import MAX_METADATA_BYTES, encode_metadata

NAME = "catalog.sqlite"


def flip(folder: Path, table: str, column: str, where: str) -> None:
    """Turn the lowest bit of the last byte of a value, as a disk might."""
    with closing(sqlite3.connect(folder / NAME)) as connection:
        (value,) = connection.execute(f"SELECT {column} FROM {table} WHERE {where}").fetchone()
        if isinstance(value, int):
            other: object = value ^ 1
        else:
            content = bytearray(value.encode() if isinstance(value, str) else value)
            content[-2] ^= 1
            other = content.decode() if isinstance(value, str) else bytes(content)
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (other,))
        connection.commit()


def test_checksums_tell_values_apart() -> None:
    rows = [
        (),
        (None,),
        (0,),
        (1,),
        (-1,),
        (0.0,),
        ("",),
        ("a", "b"),
        ("ab", ""),
        ("ab",),
        ("", "ab"),
        (b"a\0",),
        (1, None),
    ]
    assert len({row_checksum(*row) for row in rows}) == len(rows)
    assert row_checksum("tür") == row_checksum("tür".encode())


@pytest.mark.parametrize(
    ("table", "column", "where"),
    [
        ("contents", "descriptor", "id = 3"),
        ("contents", "hash", "id = 3"),
        ("contents", "width", "id = 3"),
        ("images", "path", "id = 3"),
        ("images", "metadata", "id = 3"),
        ("images", "size", "id = 3"),
        ("images", "mtime_ns", "id = 3"),
        ("settings", "value", "key = 'dim'"),
        ("settings", "value", "key = 'fingerprint'"),
        ("settings", "value", "key = 'generation'"),
        ("settings", "value", "key = 'searchable'"),
        ("settings", "value", "key = 'codec'"),
    ],
)
def test_a_flipped_bit_in_any_value_is_found_and_repaired(
    filled: Path, photo_folder: Path, table: str, column: str, where: str
) -> None:
    with tessera.Gallery(filled) as gallery:
        gallery.index(photo_folder, metadata={"note": "here"})
    flip(filled, table, column, where)
    with tessera.Gallery(filled) as gallery:
        report = gallery.check()
        assert not report.ok
        assert any("checksum" in finding.message or "descriptor" in finding.message for finding in report.findings)
        assert gallery.check(repair=True).ok
    with tessera.Gallery(filled) as gallery:
        assert gallery.check().ok
        assert gallery.index(photo_folder).images == 8
        paths = sorted(record.path for record in gallery.images())
        assert paths == sorted(str(path) for path in photo_folder.rglob("*.png"))
        for path in paths:
            assert gallery.search(path, 1)[0].path == path
        if table == "contents":
            assert gallery.count("note=here") == 8  # a damaged descriptor does not cost the metadata


def test_a_damaged_descriptor_decides_no_answer(filled: Path) -> None:
    import shutil

    flip(filled, "contents", "descriptor", "id = 3")
    shutil.rmtree(filled / "index")  # so that it is made from the catalogue
    with tessera.Gallery(filled) as gallery:
        with pytest.raises(GalleryDamagedError, match="check --repair"):
            gallery.search(1)
        with pytest.raises(GalleryDamagedError, match="check --repair"):
            gallery.descriptors([3])


def test_every_row_that_is_written_has_its_checksum(filled: Path, photo_folder: Path, other_bundle: Path) -> None:
    with tessera.Gallery(filled, other_bundle) as gallery:
        gallery.index(photo_folder, rebuild=True, metadata={"a": "b"})
        gallery.remove(photo_folder / "photo0.png")
        gallery.index(photo_folder)
        gallery.duplicates()
        with gallery._catalog.write() as batch:
            hashes = [str(record.content_hash) for record in gallery.images()]
            batch.add_compared_pairs("match", {(hashes[0], hashes[1]): 21.0})
            batch.set_groups({1: [record.id for record in gallery.images(limit=2)]})
    with closing(sqlite3.connect(filled / NAME)) as connection:
        for guard, columns in GUARDED.items():
            table, checksum = guard.split(".")
            rows = connection.execute(f"SELECT {', '.join(columns)}, {checksum} FROM {table}").fetchall()
            assert rows, table
            for *values, stored in rows:
                assert row_checksum(*values) == stored, (table, values)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0, float("-inf")], b"bytes", object(), "\ud800"])
def test_metadata_that_no_filter_could_read_is_refused(
    gallery: tessera.Gallery, photo_folder: Path, value: object
) -> None:
    with pytest.raises(UsageError, match="cannot be stored"):
        gallery.index(photo_folder, metadata={"score": value})
    assert len(gallery) == 0


def test_metadata_is_bounded(gallery: tessera.Gallery, photo_folder: Path, tmp_path: Path) -> None:
    encode_metadata({"a": "b" * (MAX_METADATA_BYTES - 10)})
    with pytest.raises(UsageError, match=r"at most 16,384"):
        gallery.index(photo_folder, metadata={"a": "b" * MAX_METADATA_BYTES})
    listed = tmp_path / "list.csv"
    lines = ["path,note", f"{photo_folder}/photo0.png,{'x' * MAX_METADATA_BYTES}", f"{photo_folder}/photo2.png,short"]
    listed.write_text("\n".join(lines))
    report = gallery.index(listed)
    assert (report.added, report.passed_over) == (1, 1)
    assert "line 2 skipped" in report.problems[0].reason


@pytest.mark.parametrize("suffix", [".csv", ".txt", ".tsv"])
def test_a_nul_in_a_list_is_a_line_that_is_skipped(
    gallery: tessera.Gallery, photo_folder: Path, tmp_path: Path, suffix: str
) -> None:
    listed = tmp_path / f"list{suffix}"
    head = "" if suffix == ".txt" else "path\n"
    listed.write_text(f"{head}{photo_folder}/pho\0to0.png\n{photo_folder}/photo2.png\n")
    report = gallery.index(listed)
    assert (report.added, report.passed_over) == (1, 1)
    assert "byte 0" in report.problems[0].reason


def test_numbers_are_equal_however_they_are_spelt(gallery: tessera.Gallery, photo_folder: Path) -> None:
    for name, year in (("photo0.png", "1990"), ("photo2.png", 1990), ("photo4.png", 1990.0), ("photo6.png", "MCMXC")):
        gallery.index(photo_folder / name, metadata={"year": year})
    for asked in ("year=1990", "year=1990.0", "year=1.99e3"):
        assert gallery.count(asked) == 3, asked
    assert gallery.count("year!=1990.0") == 1
    assert gallery.count("year=MCMXC") == 1
    assert gallery.count("year=nan") == 0


def test_every_column_has_a_checksum(filled: Path) -> None:
    """But the state, which the rest tells. A new column is an entry of GUARDED, too."""
    with closing(sqlite3.connect(filled / NAME)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {(table, row[1]) for table in tables for row in connection.execute(f"PRAGMA table_info({table})")}
    guarded = {(guard.partition(".")[0], column) for guard, names in GUARDED.items() for column in names}
    checksums = {tuple(guard.split(".")) for guard in GUARDED}
    assert {one for one in columns - guarded - checksums if one[0] != "sqlite_sequence"} == {("images", "state")}
