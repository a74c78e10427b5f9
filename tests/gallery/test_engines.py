"""Engines as caches: lost, damaged, stale or behind, they come back from the catalogue; and they agree."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tessera
from tessera.errors import GalleryLockedError, GalleryMismatchError, UsageError
from tessera.gallery.engines import faiss_engine
from tessera.gallery.engines.engine import parse_engine, split_index
from tessera.gallery.engines.milvus_connection import MilvusConnection
from tessera.gallery.engines.milvus_index import choose_index

Painter = Callable[..., Path]


def answers(folder: Path, photo_folder: Path) -> list[tuple[int, float]]:
    with tessera.Gallery(folder) as gallery:
        return [(hit.id, hit.score) for hit in gallery.search(photo_folder / "photo0.png", 100)]


def spoil_manifest(folder: Path) -> None:
    (folder / "index" / "manifest.json").write_text("{}")


def spoil_state(folder: Path) -> None:
    (folder / "index" / "state.json").write_text("not json")


def spoil_data(folder: Path) -> None:
    for path in (folder / "index").glob("*.bin"):
        path.write_bytes(b"\x7f" * path.stat().st_size)


def lose_files(folder: Path) -> None:
    for path in (folder / "index").glob("*.bin"):
        path.unlink()


def lose_everything(folder: Path) -> None:
    shutil.rmtree(folder / "index")


def be_stale(folder: Path) -> None:
    path = folder / "index" / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"fingerprint": "another"}))


@pytest.mark.parametrize("spoil", [spoil_manifest, spoil_state, spoil_data, lose_files, lose_everything, be_stale])
def test_a_lost_index_is_found_made_again_and_saved(
    filled: Path, photo_folder: Path, spoil: Callable[[Path], None]
) -> None:
    expected = answers(filled, photo_folder)
    assert len(expected) == 8
    spoil(filled)
    with tessera.Gallery(filled) as gallery:
        report = gallery.check()
        is_lost = spoil is lose_everything  # as a run that was killed before its end leaves it: nothing is damaged
        assert (report.ok, report.findings[0].kind) == ((True, "note") if is_lost else (False, "damage"))
        assert "index" in report.findings[0].message
    assert answers(filled, photo_folder) == expected  # the search made it again
    with tessera.Gallery(filled) as gallery:
        assert gallery.check().ok  # and wrote it down
    spoil(filled)
    with tessera.Gallery(filled) as gallery:
        assert gallery.check(repair=True).ok
        assert gallery.check().findings == []
    assert answers(filled, photo_folder) == expected


def test_no_digit_of_an_indexs_state_decides_an_answer(filled: Path, photo_folder: Path, painter: Painter) -> None:
    with tessera.Gallery(filled) as gallery:  # changes that the saved index does not know
        gallery.index(painter(photo_folder / "new.png", 30))
        gallery.remove(photo_folder / "photo2.png")
    path = filled / "index" / "state.json"
    whole = path.read_bytes()
    assert (json.loads(whole)["last_id"], len(answers(filled, photo_folder))) == (8, 8)
    for place in (place for place, byte in enumerate(whole[: whole.index(b"fingerprint")]) if chr(byte).isdigit()):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with tessera.Gallery(filled) as gallery:
            assert not gallery.check().ok
            found = {Path(hit.path).name for hit in gallery.search(photo_folder / "new.png", 100, by="global")}
        assert "new.png" in found
        assert len(found) == 8


def test_a_reader_without_the_lock_searches_without_files(filled: Path, photo_folder: Path) -> None:
    from tessera.gallery.catalog.lock import writer_lock

    expected = answers(filled, photo_folder)
    lose_everything(filled)
    with writer_lock(filled):
        assert answers(filled, photo_folder) == expected
    assert not (filled / "index").exists()


def test_changes_since_the_last_saving_are_made_up(filled: Path, photo_folder: Path, painter: Painter) -> None:
    state = (filled / "index" / "state.json").read_text()
    with tessera.Gallery(filled) as gallery:
        painter(photo_folder / "new.png", 30)
        gallery.index(photo_folder)
        gallery.remove(photo_folder / "photo2.png")
    assert (filled / "index" / "state.json").read_text() == state  # too few changes to write anything
    with tessera.Gallery(filled) as gallery:
        found = {Path(hit.path).name for hit in gallery.search(photo_folder / "new.png", 100)}
        assert "new.png" in found
        assert "photo2.png" not in found
        assert len(found) == 8
        assert gallery.check().ok


def test_many_changes_are_saved_and_old_readers_still_follow(
    filled: Path, photo_folder: Path, painter: Painter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faiss_engine, "SAVE_AFTER", 2)
    state = (filled / "index" / "state.json").read_text()
    reader = tessera.Gallery(filled)
    assert len(reader.search(photo_folder / "photo0.png", 100)) == 8
    with tessera.Gallery(filled) as writer:
        for seed in range(40, 44):
            painter(photo_folder / f"new{seed}.png", seed)
        writer.index(photo_folder)
        writer.remove([photo_folder / "photo0.png", photo_folder / "photo2.png"])
    assert (filled / "index" / "state.json").read_text() != state
    found = {Path(hit.path).name for hit in reader.search(photo_folder / "photo0.png", 100)}
    assert len(found) == 10
    assert "photo0.png" not in found
    reader.close()


def test_a_crash_between_index_and_state_is_harmless(
    filled: Path, photo_folder: Path, painter: Painter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faiss_engine, "SAVE_AFTER", 1)
    with monkeypatch.context() as patch:
        patch.setattr(faiss_engine, "write_atomically", _interrupt)
        with tessera.Gallery(filled) as gallery:
            painter(photo_folder / "new.png", 30)
            (photo_folder / "photo2.png").unlink()
            with pytest.raises(KeyboardInterrupt):
                gallery.index(photo_folder, prune=True)
    with tessera.Gallery(filled) as gallery:
        found = {Path(hit.path).name for hit in gallery.search(photo_folder / "new.png", 100)}
        assert len(found) == 8
        assert "new.png" in found
        assert gallery.check().ok


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_left_overs_of_a_killed_build_are_cleared(filled: Path) -> None:
    left = filled / "index" / ".build-abc"
    left.mkdir()
    (left / "descriptors.f16").write_bytes(b"x")
    with tessera.Gallery(filled) as gallery:
        gallery.index(rebuild=True)
    assert list((filled / "index").glob(".build-*")) == []


def test_growing_far_beyond_its_size_fits_the_codec_anew(
    filled: Path, photo_folder: Path, painter: Painter, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    build = faiss_engine.build_index
    monkeypatch.setattr(faiss_engine, "build_index", lambda *given: built.append("built") or build(*given))
    with tessera.Gallery(filled) as gallery:
        painter(photo_folder / "one.png", 50)
        gallery.index(photo_folder)
        assert built == []
        for seed in range(60, 75):
            painter(photo_folder / f"many{seed}.png", seed)
        gallery.index(photo_folder)
        assert built == ["built"]
        assert len(gallery.search(photo_folder / "one.png", 100)) == 24


def test_growing_little_by_little_fits_the_codec_anew_at_twice_the_size(
    filled: Path, photo_folder: Path, painter: Painter, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[int] = []
    build = faiss_engine.build_index
    monkeypatch.setattr(faiss_engine, "build_index", lambda *given: built.append(len(given[1])) or build(*given))
    with tessera.Gallery(filled) as gallery:
        assert len(gallery) == 8
        for seed in range(50, 62):
            painter(photo_folder / f"more{seed}.png", seed)
            gallery.index(photo_folder)
        assert built == [16]
        assert len(gallery.search(photo_folder / "more61.png", 100)) == 20


def test_engine_names(tmp_path: Path) -> None:
    assert parse_engine("faiss") == ("faiss", "")
    assert parse_engine("milvus:http://host:19530") == ("milvus", "http://host:19530")
    for wrong in ("fais", "faiss:x", "milvus", "milvus:", "milvus:http://host:19530#HNSV"):
        with pytest.raises(UsageError):
            parse_engine(wrong)
    assert split_index("http://host:19530#IVF_PQ") == ("http://host:19530", "IVF_PQ")
    assert split_index("photos#1.db") == ("photos#1.db", "")  # a file may be called anything


@pytest.mark.parametrize(
    ("version", "count", "codec", "asked", "index_type"),
    [
        ("v2.3.5", 100_000, "auto", "", "FLAT"),
        ("v2.3.5", 10_000_000, "flat", "", "FLAT"),
        ("v2.3.5", 10_000_000, "auto", "", "HNSW"),
        ("v2.3.5", 10_000_001, "auto", "", "IVF_PQ"),
        ("v2.6.4", 10_000_001, "auto", "", "IVF_RABITQ"),
        ("v2.3.5", 1000, "pq8", "", "IVF_PQ"),
        ("v3.0.0-beta", 1000, "pq1", "", "IVF_RABITQ"),
        ("v2.6.4", 1000, "auto", "DISKANN", "DISKANN"),
        ("v2.3.5", 1000, "ivf", "HNSW", "HNSW"),
    ],
)
def test_milvus_is_asked_for_the_index_that_fits_and_that_its_version_has(
    version: str, count: int, codec: str, asked: str, index_type: str
) -> None:
    server = MilvusConnection("http://host:19530", wait_s=0)
    server._client, server._version = object(), server._known_version(version)  # as if it had answered
    chosen = choose_index(count, 1024, codec, server, asked)
    assert chosen.type == index_type
    assert chosen.build == {
        "HNSW": {"M": 24, "efConstruction": 200},
        "IVF_PQ": {"nlist": 1448 if count > 10**6 else 126, "m": 128, "nbits": 8},  # 131,072 rows a segment
        "IVF_RABITQ": {"nlist": 1448 if count > 10**6 else 126},
    }.get(index_type, {})
    name = {"HNSW": "ef", "DISKANN": "search_list"}.get(index_type, "nprobe")
    searched = dataclasses.replace(chosen, effort=64)
    assert searched.parameters_for(10) == ({} if index_type == "FLAT" else {name: 64})
    assert searched.parameters_for(100).get(name, 0) == {"ef": 100, "search_list": 100}.get(name, 64) * (
        index_type != "FLAT"
    )


# -- Milvus ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def mirrored(filled: Path, tmp_path: Path) -> Iterator[tuple[tessera.Gallery, Path]]:
    pytest.importorskip("pymilvus")
    pytest.importorskip("milvus_lite")
    database = tmp_path / "milvus.db"
    with tessera.Gallery(filled) as gallery:
        gallery.migrate(f"milvus:{database}")
        yield gallery, database


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_milvus_answers_as_faiss_does_and_follows_changes(
    mirrored: tuple[tessera.Gallery, Path], photo_folder: Path, painter: Painter
) -> None:
    gallery, database = mirrored
    table = photo_folder / "labels.csv"
    table.write_text("path,label\nphoto0.png,a\nphoto4.png,a\n")
    painter(photo_folder / "new.png", 30)
    gallery.index(photo_folder, table)
    gallery.remove(photo_folder / "photo2.png")
    query = photo_folder / "photo0.png"
    by_milvus = gallery.search(query, 100)
    filtered = gallery.search(query, where="label=a")
    assert gallery.check().ok
    assert gallery.stats()["engine"] == f"milvus:{database}"
    gallery.migrate("faiss")
    by_faiss = gallery.search(query, 100)
    assert [hit.id for hit in by_milvus] == [hit.id for hit in by_faiss]
    assert [hit.score for hit in by_milvus] == pytest.approx([hit.score for hit in by_faiss], abs=1e-6)
    assert [hit.id for hit in filtered] == [hit.id for hit in gallery.search(query, where="label=a")]
    assert sorted(Path(hit.path).name for hit in filtered) == ["photo0.png", "photo4.png"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_milvus_filters_as_the_catalogue_does(tmp_path: Path, compare_filters: Callable[[str], int]) -> None:
    pytest.importorskip("milvus_lite")
    assert compare_filters(f"milvus:{tmp_path / 'milvus.db'}") > 500


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_filters_of_many_ids_are_searched_in_parts(
    mirrored: tuple[tessera.Gallery, Path], photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery, _ = mirrored
    expected = [hit.id for hit in gallery.search(photo_folder / "photo0.png", 5, by="global")]
    monkeypatch.setattr("tessera.gallery.engines.milvus_engine._FILTER_IDS", 3)
    engine = gallery._store.engine
    ids = np.array([record.id for record in gallery.images()], np.int64)
    query = gallery.describe(photo_folder / "photo0.png")[None]
    assert engine.search(query, 5, allowed=ids)[1][0].tolist() == expected
    assert gallery.check().ok


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_lost_collection_is_filled_again(mirrored: tuple[tessera.Gallery, Path], photo_folder: Path) -> None:
    gallery, _ = mirrored
    expected = [hit.id for hit in gallery.search(photo_folder / "photo0.png")]
    gallery._store.engine._collection.drop()
    report = gallery.check()
    assert not report.ok
    assert "missing" in report.findings[0].message
    assert gallery.check(repair=True).ok
    assert [hit.id for hit in gallery.search(photo_folder / "photo0.png")] == expected


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_a_collection_shows_is_believed_by_its_checksum_alone(
    mirrored: tuple[tessera.Gallery, Path], photo_folder: Path
) -> None:
    gallery, _ = mirrored
    path = gallery.path / "milvus.json"
    whole = path.read_text()
    path.write_text(whole.replace('"effort": 0', '"effort": 4'))
    assert path.read_text() != whole
    report = gallery.check()
    assert not report.ok
    assert "milvus.json is damaged" in report.findings[0].message
    assert gallery.check(repair=True).ok
    assert gallery.check().findings == []
    path.unlink()  # as a fill that was killed leaves it
    report = gallery.check()
    assert (report.ok, report.findings[0].kind) == (True, "note")
    assert "behind the catalogue" in report.findings[0].message
    assert gallery.check(repair=True).ok
    assert gallery.check().findings == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_collection_of_an_earlier_version_is_made_anew(
    mirrored: tuple[tessera.Gallery, Path], photo_folder: Path
) -> None:
    from pymilvus import DataType

    gallery, _ = mirrored
    expected = [hit.id for hit in gallery.search(photo_folder / "photo0.png")]
    collection = gallery._store.engine._collection
    client = collection.connection._client
    collection.drop()
    schema = client.create_schema(auto_id=False)
    schema.add_field("id", DataType.INT64, is_primary=True)
    schema.add_field("descriptor", DataType.FLOAT_VECTOR, dim=16)
    client.create_collection(collection.name, schema=schema)
    state = json.loads((gallery.path / "milvus.json").read_text())
    del state["index"], state["checksum"]
    (gallery.path / "milvus.json").write_text(json.dumps(state))
    gallery.close()
    with tessera.Gallery(gallery.path) as opened:
        assert [hit.id for hit in opened.search(photo_folder / "photo0.png")] == expected
        assert opened.check().findings == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_one_process_at_a_time_uses_a_milvus_file(mirrored: tuple[tessera.Gallery, Path], photo_folder: Path) -> None:
    gallery, _ = mirrored
    gallery.search(photo_folder / "photo0.png")  # holds the file open
    with pytest.raises(GalleryMismatchError, match="migrate --engine"):
        tessera.Gallery(gallery.path, engine="faiss")
    done = subprocess.run(
        [sys.executable, "-m", "tessera.cli.main", "search", str(photo_folder / "photo0.png"), "-g", str(gallery.path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 1
    assert "one process at a time" in done.stderr
    assert GalleryLockedError.exit_code == 1
