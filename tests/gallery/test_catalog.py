"""The catalogue: settings, rows, generations, versions, errors."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tessera.errors import GalleryDamagedError, GalleryError, StorageError
from tessera.gallery.catalog import schema
from tessera.gallery.catalog.batch import Batch
from tessera.gallery.catalog.catalog import Catalog

FINGERPRINT = "f" * 16


@pytest.fixture
def catalog(tmp_path: Path):
    made = Catalog(tmp_path / "catalog.sqlite")
    made.prepare()
    yield made
    made.close()


def put(batch: Batch, name: str, value: float | None, metadata: str | None = None) -> None:
    """An image whose descriptor is (value, 1); None for one that failed."""
    content_id = None
    if value is not None:
        descriptor = np.array([value, 1.0], np.float16)
        content_id = batch.add_content(str(value).encode().ljust(32), FINGERPRINT, 4, 3, descriptor)
    error = None if content_id is not None else "bad"
    batch.put_image(name.encode(), size=1, mtime_ns=2, content_id=content_id, error=error, metadata=metadata)


def test_the_file_tells_what_it_is(catalog: Catalog) -> None:
    with closing(sqlite3.connect(catalog.path)) as connection:
        assert connection.execute("PRAGMA application_id").fetchone() == (schema.APPLICATION_ID,)
        assert connection.execute("PRAGMA user_version").fetchone() == (len(schema.MIGRATIONS),)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_generation_grows_with_changes_only(catalog: Catalog) -> None:
    with catalog.write() as batch:
        batch.set("note", "not a change of images")
    assert catalog.generation() == 0
    with catalog.write() as batch:
        put(batch, "a", 0.5)
        put(batch, "b", 0.25)
    assert catalog.generation() == 1
    with catalog.write() as batch:
        assert batch.remove([99]) == 0
    assert catalog.generation() == 1


def test_copies_share_a_descriptor_and_the_last_one_takes_it_along(catalog: Catalog) -> None:
    with catalog.write() as batch:
        put(batch, "a", 0.5)
        put(batch, "b", 0.5)
    with catalog.read() as snapshot:
        assert (snapshot.searchable, snapshot.count_contents()) == (2, 1)
        ids = sorted(snapshot.lookup([b"a", b"b"])[name].id for name in (b"a", b"b"))
        assert [row.tolist() for row in snapshot.descriptors(ids).values()] == [[0.5, 1.0], [0.5, 1.0]]
    for expected, image_id in zip((1, 0), ids, strict=True):
        with catalog.write() as batch:
            batch.remove([image_id])
        with closing(sqlite3.connect(catalog.path)) as connection:
            assert connection.execute("SELECT count(*) FROM contents").fetchone() == (expected,)


def test_a_changed_image_gets_a_new_id_and_keeps_its_metadata(catalog: Catalog) -> None:
    with catalog.write() as batch:
        put(batch, "a", 0.5, '{"city":"Pisa"}')
    with catalog.read() as snapshot:
        before = snapshot.lookup([b"a"])[b"a"]
    with catalog.write() as batch:
        put(batch, "a", 0.25)
    with catalog.read() as snapshot:
        after = snapshot.lookup([b"a"])[b"a"]
        assert after.id > before.id
        assert after.metadata == '{"city":"Pisa"}'
        assert snapshot.removed_ids(1).tolist() == [before.id]
        assert snapshot.removed_ids(2).tolist() == []


def test_the_same_content_keeps_the_id(catalog: Catalog) -> None:
    with catalog.write() as batch:
        put(batch, "a", 0.5)
        first = batch.lookup([b"a"])[b"a"].id
        put(batch, "a", 0.5)
        assert batch.lookup([b"a"])[b"a"].id == first


def test_a_batch_that_raises_leaves_nothing(catalog: Catalog) -> None:
    with pytest.raises(ZeroDivisionError), catalog.write() as batch:
        put(batch, "a", 0.5)
        raise ZeroDivisionError
    with catalog.read() as snapshot:
        assert snapshot.searchable == 0
        assert snapshot.lookup([b"a"]) == {}


def test_content_given_up_and_taken_in_one_batch_stays(catalog: Catalog) -> None:
    with catalog.write() as batch:
        put(batch, "a", 0.5)
    with catalog.write() as batch:
        put(batch, "a", 0.25)
        put(batch, "b", 0.5)
    with catalog.read() as snapshot:
        found = snapshot.lookup([b"b"])[b"b"]
        assert snapshot.descriptors([found.id])[found.id].tolist() == [0.5, 1.0]


def test_a_reader_sees_one_moment(catalog: Catalog) -> None:
    with catalog.write() as batch:
        put(batch, "a", 0.5)
    with catalog.read() as snapshot:
        assert snapshot.searchable == 1
        writer = threading.Thread(target=lambda: _add(catalog, "b"))
        writer.start()
        writer.join()  # the writer is not kept waiting by the reader
        assert snapshot.searchable == 1
    with catalog.read() as snapshot:
        assert snapshot.searchable == 2


def _add(catalog: Catalog, name: str) -> None:
    with catalog.write() as batch:
        put(batch, name, 0.125)


def test_descriptors_stream_in_the_order_of_ids(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessera.gallery.catalog.snapshot.STREAM_ROWS", 3)
    with catalog.write() as batch:
        for i in range(8):
            put(batch, f"image{i}", None if i == 4 else i / 8)
    with catalog.read() as snapshot:
        parts = list(snapshot.stream_descriptors())
        assert [len(ids) for ids, _ in parts] == [3, 3, 1]
        ids = np.concatenate([ids for ids, _ in parts])
        assert np.array_equal(ids, np.sort(ids))
        values = np.concatenate([descriptors for _, descriptors in parts])[:, 0]
        assert values.tolist() == [i / 8 for i in range(8) if i != 4]


def test_an_older_version_is_brought_up(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    with closing(sqlite3.connect(path)) as connection:  # as the first version made it
        for statement in (*schema.MIGRATIONS[0], "UPDATE settings SET value = 1 WHERE key = 'searchable'"):
            connection.execute(statement)
        connection.execute(
            "INSERT INTO contents VALUES (1, ?, ?, 4, 3, ?)", (b"h" * 32, FINGERPRINT, np.ones(2, "<f2").tobytes())
        )
        connection.execute("INSERT INTO images VALUES (1, ?, 1, 2, 'ok', NULL, 1, '{}')", (b"a",))
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
        connection.commit()
    catalog = Catalog(path)
    assert catalog.needs_preparing()
    with pytest.raises(GalleryError, match="older version"), catalog.read():
        pass
    catalog.prepare()
    assert not catalog.needs_preparing()
    with catalog.read() as snapshot:
        assert snapshot.searchable == 1
        assert [descriptor.tolist() for _, descriptor in snapshot.stream_descriptors()] == [[[1.0, 1.0]]]
    with closing(sqlite3.connect(path)) as connection:
        names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    assert "images_failed" in names
    catalog.close()


def test_a_newer_version_and_a_stranger_are_refused(catalog: Catalog, tmp_path: Path) -> None:
    with closing(sqlite3.connect(catalog.path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(GalleryError, match="newer Tessera"), Catalog(catalog.path).read():
        pass
    stranger = tmp_path / "stranger.sqlite"
    with closing(sqlite3.connect(stranger)) as connection:
        connection.execute("CREATE TABLE notes (text)")
    with pytest.raises(GalleryError, match="another program"):
        Catalog(stranger).prepare()


def test_garbage_is_called_damaged(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    path.write_bytes(b"this is no database at all" * 100)
    with pytest.raises(GalleryDamagedError, match="check --repair"), Catalog(path).read():
        pass


def test_a_full_disk_is_a_storage_error_and_keeps_what_was_stored(catalog: Catalog) -> None:
    with catalog.write() as batch:
        put(batch, "a", 0.5)
    assert catalog._writer is not None
    pages = catalog._writer.connection.execute("PRAGMA page_count").fetchone()[0]
    catalog._writer.connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(StorageError, match="disk is full"), catalog.write() as batch:
        for i in range(10_000):
            put(batch, f"more{i}", i / 16384)
    with catalog.read() as snapshot:
        assert snapshot.searchable == 1
    catalog._writer.connection.execute("PRAGMA max_page_count = 1000000")
    _add(catalog, "b")
    with catalog.read() as snapshot:
        assert snapshot.searchable == 2
