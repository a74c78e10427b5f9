"""What becomes of files: new, copied, changed, broken, gone, or described by another model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import tessera
from tessera.errors import (
    GalleryError,
    GalleryMismatchError,
    UsageError,
)
from tessera.extract.extractor import Extraction, Extractor
from tessera.gallery.ingest import indexing, reading
from tessera.gallery.ingest.reading import read_file
from tessera.gallery.ingest.sources import FoundFile

Painter = Callable[..., Path]


def ages(path: Path) -> Path:
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - 10**9))
    return path


def watch_network(monkeypatch: pytest.MonkeyPatch, *, stop_after: int | None = None) -> list[object]:
    """What is given to the network from now on; interrupts the run after so many results."""
    given: list[object] = []
    extract = Extractor.extract

    def watched(self: Extractor, sources: Iterable[bytes], **options: object) -> Iterator[Extraction]:
        noted = (given.append(source) or source for source in sources)
        for i, extraction in enumerate(extract(self, noted, **options)):  # type: ignore[arg-type]
            if i == stop_after:
                raise KeyboardInterrupt
            yield extraction

    monkeypatch.setattr(Extractor, "extract", watched)
    return given


def paths(hits: object) -> list[str]:
    return [Path(hit.path).name for hit in hits]  # type: ignore[attr-defined]


def test_unchanged_files_are_not_read(
    gallery: tessera.Gallery, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.index(photo_folder)
    generation = gallery.generation

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a file's content was read")

    monkeypatch.setattr("tessera.gallery.ingest.reading.read_file", refuse)
    report = gallery.index(photo_folder)
    assert (report.added, report.unchanged, gallery.generation) == (0, 8, generation)


def test_copies_cost_no_network_and_keep_both_paths(
    gallery: tessera.Gallery, photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.index(photo_folder)
    shutil.copytree(photo_folder, tmp_path / "copies")
    described = watch_network(monkeypatch)
    report = gallery.index(tmp_path / "copies")
    assert (report.added, report.reused, report.images, len(described)) == (8, 8, 16, 0)
    assert gallery.stats()["copies"] == 8
    first = gallery.find(photo_folder / "photo0.png")
    assert first is not None
    assert paths(gallery.search(first.id, 2)) == ["photo0.png", "photo0.png"]


def test_copies_within_one_run_are_described_once(
    gallery: tessera.Gallery, tmp_path: Path, painter: Painter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(30):
        painter(tmp_path / "photos" / f"{i:02}.png", i % 3)
    described = watch_network(monkeypatch)
    monkeypatch.setattr(indexing, "BATCH_FILES", 4)
    report = gallery.index(tmp_path / "photos")
    assert (report.added, report.reused, len(described)) == (30, 27, 3)


def test_a_changed_file_is_described_again(gallery: tessera.Gallery, photo_folder: Path, painter: Painter) -> None:
    gallery.index(photo_folder)
    old = gallery.find(photo_folder / "photo0.png")
    painter(photo_folder / "photo0.png", 100)
    report = gallery.index(photo_folder)
    assert (report.changed, report.unchanged, report.images) == (1, 7, 8)
    new = gallery.find(photo_folder / "photo0.png")
    assert old is not None
    assert new is not None
    assert new.id > old.id
    assert gallery.record(old.id) is None
    assert gallery.search(photo_folder / "photo0.png")[0].id == new.id
    assert old.id not in [hit.id for hit in gallery.search(photo_folder / "photo0.png", 100)]


def test_a_touched_file_keeps_its_id(gallery: tessera.Gallery, photo_folder: Path) -> None:
    gallery.index(photo_folder)
    before = gallery.find(photo_folder / "photo0.png")
    ages(photo_folder / "photo0.png")
    report = gallery.index(photo_folder)
    after = gallery.find(photo_folder / "photo0.png")
    assert (report.changed, report.unchanged) == (0, 8)
    assert before is not None
    assert after is not None
    assert (after.id, after.mtime_ns) == (before.id, before.mtime_ns - 10**9)


def test_a_file_rewritten_within_a_tick_is_noticed(tmp_path: Path, painter: Painter) -> None:
    from tessera.gallery.ingest.sources import look_at

    path = painter(tmp_path / "new.png", 1)
    fresh = read_file(look_at(os.fsencode(path)), max_bytes=10**9)
    assert fresh.mtime_ns == -1
    ages(path)
    aged = read_file(look_at(os.fsencode(path)), max_bytes=10**9)
    assert aged.mtime_ns == path.stat().st_mtime_ns


def test_vanished_files_stay_until_pruned(gallery: tessera.Gallery, photo_folder: Path) -> None:
    gallery.index(photo_folder)
    (photo_folder / "photo0.png").unlink()
    report = gallery.index(photo_folder)
    assert (report.vanished, report.pruned, report.images) == (1, 0, 8)
    report = gallery.index(photo_folder, prune=True)
    assert (report.vanished, report.pruned, report.images) == (1, 1, 7)
    shutil.rmtree(photo_folder)
    with pytest.raises(UsageError, match="--prune takes them out"):
        gallery.index(photo_folder)
    assert gallery.index(photo_folder, prune=True).images == 0


@pytest.mark.parametrize("is_replaced", [False, True], ids=["gone", "an-empty-one-in-its-place"])
def test_a_folder_that_leaves_during_a_run_is_not_pruned(
    gallery: tessera.Gallery, photo_folder: Path, painter: Callable[..., Path], is_replaced: bool
) -> None:
    gallery.index(photo_folder)
    painter(photo_folder / "late.png", 70)

    def leave(_: object) -> None:
        if not photo_folder.with_name("away").exists():
            photo_folder.rename(photo_folder.with_name("away"))
            if is_replaced:
                photo_folder.mkdir()

    report = gallery.index(photo_folder, prune=True, progress=leave)
    assert report.pruned == 0 and len(gallery) >= 8
    assert any("went away meanwhile" in problem.reason for problem in report.problems)


def test_prune_looks_only_under_its_sources(gallery: tessera.Gallery, photo_folder: Path) -> None:
    gallery.index(photo_folder)
    (photo_folder / "photo0.png").unlink()
    assert gallery.index(photo_folder / "inner", prune=True).images == 8


def test_pictures_that_cannot_be_read_are_written_down_and_tried_again_when_changed(
    gallery: tessera.Gallery, photo_folder: Path, painter: Painter
) -> None:
    bad = photo_folder / "bad.jpg"
    bad.write_text("this is no picture")
    ages(bad)
    report = gallery.index(photo_folder)
    assert (report.added, report.failed) == (8, 1)
    assert [problem.path for problem in report.problems] == [str(bad)]
    (failure,) = gallery.failures()
    assert failure.error is not None
    assert "not an image" in failure.error
    report = gallery.index(photo_folder)
    assert (report.failed, report.failed_before, report.unchanged) == (0, 1, 8)
    painter(bad.with_suffix(".png"), 50).replace(bad)
    report = gallery.index(photo_folder)
    assert (report.added, report.failed_before, report.images) == (1, 0, 9)
    assert gallery.failures() == []


def test_a_picture_that_breaks_leaves_the_search(gallery: tessera.Gallery, photo_folder: Path) -> None:
    gallery.index(photo_folder)
    path = photo_folder / "photo0.png"
    path.write_bytes(path.read_bytes()[:60])
    report = gallery.index(photo_folder)
    assert (report.failed, report.images) == (1, 7)
    assert str(path) not in [hit.path for hit in gallery.search(photo_folder / "photo2.png", 100)]


def test_remove_by_path_folder_and_id_is_all_or_nothing(gallery: tessera.Gallery, photo_folder: Path) -> None:
    gallery.index(photo_folder)
    with pytest.raises(GalleryError, match="Nothing was removed"):
        gallery.remove([photo_folder / "photo0.png", photo_folder / "nothing.png"])
    assert len(gallery) == 8
    assert gallery.remove(photo_folder / "photo0.png") == 1
    assert gallery.remove([photo_folder / "inner"]) == 4
    last = gallery.images()[-1]
    assert gallery.remove(last.id) == 1
    assert len(gallery.search(photo_folder / "photo0.png", 100)) == 2
    assert (photo_folder / "photo0.png").exists()


def test_another_model_is_refused_and_a_rebuild_switches_all_at_once(
    tmp_path: Path, photo_folder: Path, small_bundle: Path, other_bundle: Path
) -> None:
    folder = tmp_path / "gallery"
    with tessera.Gallery(folder, small_bundle) as gallery:
        gallery.index(photo_folder)
        ids = {record.id for record in gallery.images()}
    with tessera.Gallery(folder, other_bundle) as other:
        for act in (lambda: other.index(photo_folder), lambda: other.search(photo_folder / "photo0.png")):
            with pytest.raises(GalleryMismatchError, match="--rebuild"):
                act()
        assert len(other.search(min(ids))) == 8  # its own descriptors need no model
        report = other.index(rebuild=True)
        assert report.images == 8
        assert other.stats()["dim"] == 24
        path = photo_folder / "inner" / "photo3.png"
        assert other.search(path, 1)[0].path == str(path)
    with tessera.Gallery(folder) as again:  # the gallery's own model is the new one now
        path = photo_folder / "photo2.png"
        assert again.search(path, 1)[0].path == str(path)
        assert {record.id for record in again.images()}.isdisjoint(ids)
        assert again.check().ok


def test_a_rebuild_that_stops_goes_on_and_readers_keep_the_old_model(
    tmp_path: Path, photo_folder: Path, small_bundle: Path, other_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gallery"
    reader = tessera.Gallery(folder, small_bundle)
    reader.index(photo_folder)
    expected = [hit.id for hit in reader.search(photo_folder / "photo0.png")]
    monkeypatch.setattr(indexing, "BATCH_FILES", 1)
    with tessera.Gallery(folder, other_bundle) as other:
        with monkeypatch.context() as patch:
            watch_network(patch, stop_after=5)
            with pytest.raises(KeyboardInterrupt):
                other.index(rebuild=True)
        assert [hit.id for hit in reader.search(photo_folder / "photo0.png")] == expected
        described = watch_network(monkeypatch)
        assert other.index(rebuild=True).images == 8
        assert len(described) == 3
    reader.close()


def test_a_rebuild_without_the_disk_of_the_photos_changes_nothing(
    tmp_path: Path, photo_folder: Path, small_bundle: Path, other_bundle: Path
) -> None:
    folder = tmp_path / "gallery"
    with tessera.Gallery(folder, small_bundle) as gallery:
        gallery.index(photo_folder)
        ids = [record.id for record in gallery.images()]
    photo_folder.rename(tmp_path / "elsewhere")
    with tessera.Gallery(folder, other_bundle) as other:
        with pytest.raises(GalleryError, match=r"8 files .* cannot be reached.*--prune"):
            other.index(rebuild=True)
        assert [record.id for record in other.images()] == ids
        (tmp_path / "elsewhere").rename(photo_folder)
        (photo_folder / "photo2.png").unlink()
        with pytest.raises(GalleryError, match=r"1 files .*photo2\.png"):
            other.index(photo_folder, rebuild=True)
        report = other.index(photo_folder, rebuild=True, prune=True)
        assert (report.images, report.pruned, report.redescribed) == (7, 1, 7)
        assert other.check().ok


def test_a_rebuild_looks_again_at_what_has_changed(
    tmp_path: Path, photo_folder: Path, small_bundle: Path, other_bundle: Path, painter: Painter
) -> None:
    folder = tmp_path / "gallery"
    with tessera.Gallery(folder, small_bundle) as gallery:
        gallery.index(photo_folder)
    painter(photo_folder / "photo0.png", 77)
    (photo_folder / "photo2.png").write_bytes(b"no picture any more")
    with tessera.Gallery(folder, other_bundle) as other:
        report = other.index(rebuild=True)
        assert (report.images, report.failed) == (7, 1)
        assert [Path(record.path).name for record in other.failures()] == ["photo2.png"]
        assert other.search(photo_folder / "photo0.png", 1)[0].score == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_disk_that_goes_in_the_midst_of_a_run_is_read_when_it_is_back(
    gallery: tessera.Gallery, photo_folder: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """Its files are as they were, but for the moment: that they could not be read then must not be remembered."""
    if is_known:
        gallery.index(photo_folder)
        for path in photo_folder.rglob("*.png"):
            os.utime(path, (1, 1))
    before = {record.path: record.id for record in gallery.images()}
    read = reading.read_file

    def taken_out(found: FoundFile, *, max_bytes: int) -> reading.ReadFile:
        if photo_folder.is_dir():
            photo_folder.rename(photo_folder.with_name("away"))
        return read(found, max_bytes=max_bytes)

    with monkeypatch.context() as patched:
        patched.setattr(reading, "read_file", taken_out)
        assert gallery.index(photo_folder).failed == 8
    assert {record.path: record.id for record in gallery.images()} == before
    photo_folder.with_name("away").rename(photo_folder)
    report = gallery.index(photo_folder)
    assert (report.failed_before, report.failed, report.images) == (0, 0, 8)
    assert {record.path: record.id for record in gallery.images()}.items() >= before.items()
    assert gallery.check().ok
