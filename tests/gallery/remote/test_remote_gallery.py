"""A remote catalogue on Milvus Lite and a folder: what it finds, what it keeps, and what becomes of it when killed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tessera
from tessera.cli.main import app
from tessera.errors import GalleryDamagedError, GalleryError, GalleryMismatchError, StorageError, UsageError
from tessera.gallery.remote.remote_collection import RemoteCollection
from tessera.gallery.remote.remote_gallery import RemoteGallery
from tessera.gallery.remote.shards import DAMAGED, FAILED, IMAGES, REMOVED, Shards

pytest.importorskip("pymilvus")
pytest.importorskip("milvus_lite")
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning")]
Painter = Callable[..., Path]


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One file for all tests here: opening one takes seconds. Each has a collection of its own, by its storage."""
    return f"milvus:{tmp_path_factory.mktemp('lite') / 'all.db'}"


@pytest.fixture
def opened(tmp_path: Path, small_bundle: Path, lite: str) -> Iterator[Callable[..., RemoteGallery]]:
    galleries: list[tessera.Gallery] = []

    def open_one(name: str = "gallery", **options: Any) -> RemoteGallery:
        given = {"model": small_bundle, "engine": lite, "catalog": "remote", "storage": str(tmp_path / "storage")}
        gallery = tessera.Gallery(tmp_path / name, **{**given, **options})
        assert isinstance(gallery, RemoteGallery)
        galleries.append(gallery)
        return gallery

    yield open_one
    for gallery in galleries:
        gallery.close()


def names(gallery: tessera.Gallery, query: Path, **options: Any) -> list[str]:
    return [Path(hit.path).name for hit in gallery.search(query, 100, **options)]


def test_it_answers_as_a_local_gallery_does(
    opened: Callable[..., RemoteGallery], filled: Path, photo_folder: Path, tmp_path: Path
) -> None:
    table = photo_folder / "labels.csv"
    table.write_text("path,label,year\nphoto0.png,a,1990\nphoto4.png,b,2004\nphoto6.png,a,x\n")
    remote = opened("remote")
    report = remote.index(photo_folder, table)
    assert (report.added, report.images, report.failed) == (8, 8, 0)
    assert sorted(path.name for path in (tmp_path / "remote").iterdir()) == ["remote.json"]
    again = remote.index(photo_folder, table)
    assert (again.added, again.changed, again.unchanged) == (0, 0, 11)
    query = photo_folder / "photo0.png"
    with tessera.Gallery(filled) as local:
        local.index(photo_folder, table)
        for by in ("global", "auto", "local"):
            assert names(remote, query, by=by)[:1] == names(local, query, by=by)[:1]
        expected = [(Path(hit.path), hit.score, hit.metadata) for hit in local.search(query, 8, by="global")]
        found = [(Path(hit.path), hit.score, hit.metadata) for hit in remote.search(query, 8, by="global")]
        assert [(path, metadata) for path, _, metadata in found] == [(path, said) for path, _, said in expected]
        assert [score for _, score, _ in found] == pytest.approx([score for _, score, _ in expected], abs=1e-5)
        for where in ("label=a", "year>=1991", "width=48", "name=photo1.png", "label!=a"):
            assert names(remote, query, where=where, by="global") == names(local, query, where=where, by="global")
            assert set(names(remote, query, where=where)) == set(names(local, query, where=where))
        first, second = (gallery.search(query, 3) for gallery in (local, remote))
        assert second[0].inliers == first[0].inliers
    with pytest.raises(UsageError, match="labl"):
        remote.search(query, where="labl=a", by="global")
    assert names(remote, query, where="label=z", by="global") == []
    with pytest.raises(UsageError, match="near="):
        remote.search(query, where="folder=inner", by="global")


def test_an_image_is_its_content(
    opened: Callable[..., RemoteGallery], photo_folder: Path, painter: Painter, ager: Painter, tmp_path: Path
) -> None:
    gallery = opened()
    gallery.index(photo_folder)
    query = photo_folder / "photo0.png"
    copy = ager(painter(photo_folder / "copy.png", 0))
    report = gallery.index(photo_folder)
    assert (report.unchanged, report.reused, report.images) == (9, 1, 8)
    query.unlink()
    report = gallery.index(photo_folder)
    assert (report.moved, report.images) == (1, 8)
    assert gallery.find(copy) is not None
    assert gallery.find(query) is None
    swapped = photo_folder / "photo2.png", photo_folder / "photo4.png"  # two pictures that change places
    for path, seed in zip(swapped, (4, 2), strict=True):
        ager(painter(path, seed), 5)
    gallery.index(photo_folder)
    assert len(gallery) == 8
    assert names(gallery, swapped[0], by="global")[0] == "photo2.png"
    assert names(gallery, swapped[1], by="global")[0] == "photo4.png"
    ager(painter(copy, 50), 9)
    report = gallery.index(photo_folder)
    assert (report.changed, report.images) == (1, 8)
    gone = photo_folder / "photo6.png"
    gone.unlink()
    assert gallery.index(photo_folder).vanished == 1
    assert gallery.index(photo_folder, prune=True).pruned == 1
    assert gallery.check().ok
    assert gallery.check(repair=True).images == 7
    assert gallery.check().findings == []


def test_a_copy_of_a_file_that_was_young_when_it_was_read_is_no_move(
    opened: Callable[..., RemoteGallery], photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a file has no time in the catalogue: it may change again within one tick of the clock."""
    monkeypatch.setattr("tessera.gallery.ingest.reading._TICK_NS", 1 << 62)
    gallery = opened()
    gallery.index(photo_folder)
    copy = photo_folder / "copy.png"
    copy.write_bytes((photo_folder / "photo0.png").read_bytes())
    report = gallery.index(copy)
    assert (report.moved, report.reused, report.images) == (0, 1, 8)
    assert gallery.find(photo_folder / "photo0.png") is not None


def test_what_was_removed_stays_away_until_it_is_named(
    opened: Callable[..., RemoteGallery], photo_folder: Path, painter: Painter
) -> None:
    gallery = opened()
    (photo_folder / "broken.png").write_bytes(b"no picture")
    os.utime(photo_folder / "broken.png", (1, 1))
    gallery.index(photo_folder)
    assert gallery.remove(photo_folder / "inner") == 4
    with pytest.raises(GalleryError, match="does not hold"):
        gallery.remove(photo_folder / "inner")
    report = gallery.index(photo_folder)
    assert (report.images, report.ignored, report.failed, report.failed_before) == (4, 4, 0, 1)
    assert [Path(record.path).name for record in gallery.failures()] == ["broken.png"]
    gallery.index(photo_folder / "inner" / "photo1.png")
    assert gallery.index(painter(photo_folder / "broken.png", 60)).added == 1
    stats = gallery.stats()
    assert (stats["images"], stats["failed"], stats["shards"]["unsent"]) == (6, 0, 0)
    assert gallery.check().ok


def test_a_killed_writer_loses_nothing_and_doubles_nothing(
    opened: Callable[..., RemoteGallery], photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = opened()
    with monkeypatch.context() as patched:
        patched.setattr(RemoteCollection, "put_images", _killed)
        with pytest.raises(KeyboardInterrupt):
            gallery.index(photo_folder)
    assert len(gallery) == 0
    findings = gallery.check().findings
    assert ["8 images of the shards" in finding.message for finding in findings] == [True]
    other = opened("other")
    report = other.index(photo_folder)
    assert (report.added, report.unchanged, report.images) == (0, 8, 8)
    assert other.check().findings == []


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


def test_check_compares_shards_and_collection(
    opened: Callable[..., RemoteGallery], photo_folder: Path, tmp_path: Path
) -> None:
    gallery = opened()
    gallery.index(photo_folder)
    store = gallery._store
    ids = [hit.id for hit in gallery.search(photo_folder / "photo0.png", 8, by="global")]
    store.collection.delete(ids[:3])
    assert "3 images of the shards are not in the collection." in {one.message for one in gallery.check().findings}
    assert gallery.check(repair=True).ok
    assert gallery.check().findings == []
    (shard,) = store.shards.names(IMAGES)
    images, model = store.shards.read_images(shard)
    store.shards.write_images(images[:5], {"fingerprint": model["fingerprint"]})  # as another writer at the same moment
    (doubled,) = gallery.check().findings
    assert doubled.message.startswith("5 rows of the shards are doubled")
    assert gallery.check(repair=True).images == 8
    assert gallery.check().findings == []
    store.collection.drop()
    assert "missing" in gallery.check().findings[0].message
    assert gallery.check(repair=True).images == 8
    assert names(gallery, photo_folder / "photo0.png")[0] == "photo0.png"
    (path,) = (tmp_path / "storage" / IMAGES).glob("*.parquet")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    assert not gallery.check(deep=True).ok
    assert gallery.check(repair=True, deep=True).images == 0
    assert gallery.index(photo_folder).added == 8


def test_what_cannot_be_is_a_sentence(
    opened: Callable[..., RemoteGallery],
    filled: Path,
    photo_folder: Path,
    twin_bundle: Path,
    tmp_path: Path,
) -> None:
    gallery = opened("remote")
    gallery.index(photo_folder)
    for call in (gallery.duplicates, gallery.groups, gallery.images, gallery.months):
        with pytest.raises(UsageError, match="needs a catalogue on this machine"):
            call()
    with pytest.raises(UsageError, match="--rebuild needs"):
        gallery.index(rebuild=True)
    with pytest.raises(GalleryMismatchError, match="another model"):
        opened("twin", model=twin_bundle)
    with pytest.raises(GalleryMismatchError, match="fingerprint"):
        opened("remote", model=twin_bundle).index(photo_folder)
    with pytest.raises(UsageError, match="needs --engine milvus:URI and --storage"):
        opened("new", engine="faiss")
    with pytest.raises(UsageError, match="needs --engine"):
        opened("new", storage=None)
    with pytest.raises(GalleryMismatchError, match="storage"):
        opened("remote", storage=str(tmp_path / "elsewhere"))
    with pytest.raises(GalleryMismatchError, match="catalogue of its own"):
        opened(filled.name)
    with pytest.raises(UsageError, match="nosuch"):
        opened("new", storage="nosuch://bucket")
    with pytest.raises(UsageError, match="--catalog remote"):
        tessera.Gallery(tmp_path / "plain", storage="x")
    with pytest.raises(UsageError, match="remot"):
        tessera.Gallery(tmp_path / "plain", catalog="remot")
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StorageError):
        opened("new", storage=str(file / "below"))
    assert not (tmp_path / "new").exists()


def test_commands_that_need_one_machine_say_so(opened: Callable[..., RemoteGallery], tmp_path: Path) -> None:
    opened().close()
    for words in (["duplicates"], ["group"], ["watch", str(tmp_path)], ["serve"], ["migrate", "--engine", "faiss"]):
        answer = CliRunner().invoke(app, [*words, "-g", str(tmp_path / "gallery")])
        assert isinstance(answer.exception, UsageError), words
        assert "needs a catalogue on this machine" in str(answer.exception)


def test_storage_in_memory(opened: Callable[..., RemoteGallery], photo_folder: Path, tmp_path: Path) -> None:
    gallery = opened(storage=f"memory://{tmp_path.name}")
    gallery.index(photo_folder)
    assert names(gallery, photo_folder / "photo0.png")[0] == "photo0.png"
    assert gallery.check(deep=True).findings == []


def test_storage_that_denies_writing_is_said_before_anything_is_described(
    opened: Callable[..., RemoteGallery], photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery = opened(storage=f"memory://{tmp_path.name}")

    def deny(*_: Any, **__: Any) -> None:
        raise PermissionError("Access Denied")

    monkeypatch.setattr(gallery._store.shards._files, "pipe_file", deny)
    monkeypatch.setattr(type(gallery._store.describer), "open_bulk", deny)
    with pytest.raises(StorageError, match=r"may not be written: Access Denied\. Check its permissions"):
        gallery.index(photo_folder)
    assert Shards(f"memory://{tmp_path.name}").names(IMAGES) == []


@pytest.mark.parametrize("kind", [FAILED, REMOVED])
@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_damaged_lists_of_what_failed_and_was_removed_are_named_and_set_aside(
    opened: Callable[..., RemoteGallery], photo_folder: Path, tmp_path: Path, kind: str, damage: str
) -> None:
    gallery = opened()
    (photo_folder / "broken.png").write_bytes(b"no picture")
    os.utime(photo_folder / "broken.png", (1, 1))  # one just written is read again whatever is known of it
    gallery.index(photo_folder)
    gallery.remove(photo_folder / "photo0.png")
    (path,) = (tmp_path / "storage" / kind).glob("*.parquet")
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes({"flip": bytes(content), "cut": content[: len(content) // 2], "empty": b""}[damage])
    with pytest.raises(GalleryDamagedError, match=r"is damaged: .* `tessera check --deep --repair`"):
        gallery.index(photo_folder)
    assert [finding.kind for finding in gallery.check().findings][:1] == ["damage"]
    assert gallery.check(repair=True).ok
    assert len(list((tmp_path / "storage" / DAMAGED).glob("*.parquet"))) == 1
    report = gallery.index(photo_folder)
    assert (report.failed, report.images) == ((1, 7) if kind == FAILED else (0, 8))
    assert gallery.check(deep=True).findings == []


def test_every_byte_of_a_shard_is_guarded(
    opened: Callable[..., RemoteGallery], photo_folder: Path, tmp_path: Path
) -> None:
    """A bit of the features decides no answer and goes into no other shard; one of the footer is found, too."""
    gallery = opened()
    gallery.index(photo_folder)
    (path,) = (tmp_path / "storage" / IMAGES).glob("*.parquet")
    content = path.read_bytes()
    images, _ = gallery._store.shards.read_images(path.stem)
    in_features = content.index(next(image.features for image in images if image.path.endswith(b"photo0.png"))) + 20
    for at in (in_features, len(content) - 40):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert not gallery.check(deep=True).ok
        if at == in_features:
            with pytest.raises(GalleryDamagedError, match="local features are not what was written"):
                gallery.search(photo_folder / "photo0.png")
            with pytest.raises(GalleryDamagedError, match="local features are not what was written"):
                gallery.index(photo_folder, metadata={"new": "words"})
        path.write_bytes(content)
    assert gallery.check(deep=True).findings == []


def test_a_storage_that_is_not_mounted_is_no_empty_one(
    opened: Callable[..., RemoteGallery], photo_folder: Path, tmp_path: Path
) -> None:
    gallery = opened()
    gallery.index(photo_folder)
    (tmp_path / "storage").rename(tmp_path / "away")
    for call in (lambda: gallery.index(photo_folder), lambda: gallery.check(repair=True), lambda: gallery.remove(1)):
        with pytest.raises((StorageError, GalleryError)):
            call()
    with pytest.raises(StorageError, match="is empty, though 8 images lie there"):
        gallery.index(photo_folder)
    assert not (tmp_path / "storage").exists()
    (tmp_path / "away").rename(tmp_path / "storage")
    assert gallery.check().findings == []


@pytest.mark.parametrize("content", ["", "[]", "7", '{"dim": "x"}', "{}", "[" * 100_000])
def test_a_damaged_marker_says_the_way_out(opened: Callable[..., RemoteGallery], tmp_path: Path, content: str) -> None:
    opened().close()
    marker = tmp_path / "gallery" / "remote.json"
    marker.write_text(content if content != '{"dim": "x"}' else marker.read_text().replace('"dim": 16', '"dim": "x"'))
    with pytest.raises(GalleryError, match=r"Delete it and name --catalog remote"):
        opened()
