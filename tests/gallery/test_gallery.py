"""The gallery through its Python interface."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import tessera
from tessera.errors import (
    BoxError,
    GalleryError,
    GalleryLockedError,
    GalleryMismatchError,
    ImageError,
    StorageError,
    UsageError,
)
from tessera.extract.extractor import Extraction, Extractor
from tessera.gallery import indexing
from tessera.gallery.intake import read_file
from tessera.gallery.lock import writer_lock
from tessera.index.build import build_index
from tessera.index.refinement import search_refined

Painter = Callable[..., Path]


@pytest.fixture
def gallery(tmp_path: Path, small_bundle: Path):
    with tessera.Gallery(tmp_path / "gallery", small_bundle) as made:
        yield made


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


def test_index_then_search_finds_each_picture_first(gallery: tessera.Gallery, photo_folder: Path) -> None:
    report = gallery.index(photo_folder)
    assert (report.added, report.failed, report.images, len(gallery)) == (8, 0, 8, 8)
    for path in sorted(photo_folder.rglob("*.png")):
        result = gallery.search(path, k=3)
        assert result[0].path == str(path)
        assert result[0].score == pytest.approx(1.0, abs=1e-3)
        assert [hit.rank for hit in result] == [0, 1, 2]
        assert result[0].score >= result[1].score >= result[2].score
        assert set(result.timing_ms) == {"embed", "search", "total"}


def test_every_kind_of_query_gives_the_same_answer(
    gallery: tessera.Gallery, photo_folder: Path, small_bundle: Path
) -> None:
    gallery.index(photo_folder)
    path = photo_folder / "photo4.png"
    expected = gallery.search(path)
    pixels = np.asarray(Image.open(path).convert("RGB"))
    descriptor = Extractor(str(small_bundle)).describe(pixels)
    queries = [str(path), path.read_bytes(), Image.open(path), pixels, descriptor, 7 * descriptor]
    for query in queries:
        result = gallery.search(query)
        assert [hit.id for hit in result] == [hit.id for hit in expected]
        assert [hit.score for hit in result] == pytest.approx([hit.score for hit in expected], abs=1e-6)
    by_id = gallery.search(expected[0].id)
    assert [hit.id for hit in by_id] == [hit.id for hit in expected]
    assert by_id[0].score == pytest.approx(1.0, abs=1e-3)
    batch = gallery.search_descriptors(np.stack([descriptor, descriptor]))
    assert [[hit.id for hit in hits] for hits in batch] == [[hit.id for hit in expected]] * 2


def test_a_box_searches_for_its_part(gallery: tessera.Gallery, tmp_path: Path, painter: Painter) -> None:
    part = painter(tmp_path / "photos" / "part.png", 1)
    painter(tmp_path / "photos" / "other.png", 2)
    gallery.index(tmp_path / "photos")
    clutter = Image.new("RGB", (120, 100), "white")
    clutter.paste(Image.open(part), (60, 50))
    hit = gallery.search(clutter, 1, box=(60, 50, 108, 86))[0]
    assert (Path(hit.path).name, round(hit.score, 3)) == ("part.png", 1.0)
    assert gallery.search(clutter, 1)[0].score < 0.999
    assert gallery.search(hit.id, 1, box=(0, 0, 24, 18))[0].score < 0.9999
    with pytest.raises(BoxError):
        gallery.search(clutter, box=(500, 500, 600, 600))
    with pytest.raises(UsageError, match="A box needs a picture"):
        gallery.search(np.ones(16, np.float32), box=(0, 0, 1, 1))


def test_unchanged_files_are_not_read(
    gallery: tessera.Gallery, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.index(photo_folder)
    generation = gallery.generation

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a file's content was read")

    monkeypatch.setattr("tessera.gallery.intake.read_file", refuse)
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
    from tessera.gallery.sources import look_at

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


def test_metadata_filters_and_changes_without_reading(
    gallery: tessera.Gallery, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = photo_folder / "labels.csv"
    table.write_text(
        "path,label,year\n" + "".join(f"photo{i}.png,{'ab'[i % 4 // 2]},{1990 + i}\n" for i in (0, 2, 4, 6))
    )
    gallery.index(photo_folder, table)
    query = photo_folder / "photo0.png"
    assert sorted(paths(gallery.search(query, where="label=a"))) == ["photo0.png", "photo4.png"]
    assert sorted(paths(gallery.search(query, where=["label=a", "year>1990"]))) == ["photo4.png"]
    assert list(gallery.search(query, where={"label": "nothing"})) == []
    assert gallery.search(query, 1, where="label=a")[0].metadata == {"label": "a", "year": "1990"}
    assert (gallery.count("label=a"), gallery.count()) == (2, 8)
    assert gallery.facets()["label"] == {"a": 2, "b": 2}
    table.write_text("path,label\nphoto0.png,c\n")
    monkeypatch.setattr("tessera.gallery.intake.read_file", lambda *_: pytest.fail("a file was read"))
    gallery.index(table)
    assert paths(gallery.search(query, where="label=c")) == ["photo0.png"]
    assert gallery.index(photo_folder).unchanged == 8
    assert gallery.count("label=c") == 1


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


def test_a_rebuild_looks_again_at_what_has_changed_or_gone(
    tmp_path: Path, photo_folder: Path, small_bundle: Path, other_bundle: Path, painter: Painter
) -> None:
    folder = tmp_path / "gallery"
    with tessera.Gallery(folder, small_bundle) as gallery:
        gallery.index(photo_folder)
    painter(photo_folder / "photo0.png", 77)
    (photo_folder / "photo2.png").unlink()
    with tessera.Gallery(folder, other_bundle) as other:
        report = other.index(rebuild=True)
        assert (report.images, report.failed) == (7, 1)
        assert [Path(record.path).name for record in other.failures()] == ["photo2.png"]
        assert other.search(photo_folder / "photo0.png", 1)[0].score == pytest.approx(1.0, abs=1e-3)


def test_queries_that_cannot_be_meant(gallery: tessera.Gallery, photo_folder: Path) -> None:
    with pytest.raises(GalleryError, match="is empty"):
        gallery.search(np.ones(16, np.float32))
    gallery.index(photo_folder)
    for k in (0, -1, True):
        with pytest.raises(UsageError, match="k must be"):
            gallery.search(photo_folder / "photo0.png", k)
    assert len(gallery.search(photo_folder / "photo0.png", 10**6)) == 8
    with pytest.raises(UsageError, match="17 numbers, the gallery's have 16"):
        gallery.search(np.ones(17, np.float32))
    with pytest.raises(UsageError, match="no direction"):
        gallery.search(np.zeros(16, np.float32))
    with pytest.raises(GalleryError, match="no image with the id 999"):
        gallery.search(999)
    with pytest.raises(UsageError, match="must be a path"):
        gallery.search(None)  # type: ignore[arg-type]
    with pytest.raises(ImageError, match="does not exist"):
        gallery.search("nothing.jpg")
    with pytest.raises(UsageError, match="Nothing to index"):
        gallery.index()
    with pytest.raises(UsageError, match="There is nothing at"):
        gallery.index(photo_folder / "nothing")


def test_folders_that_cannot_be_galleries(tmp_path: Path, small_bundle: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GalleryError, match="is a file"):
        tessera.Gallery(tmp_path / "file", small_bundle)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("")
    with pytest.raises(GalleryError, match="other things in it"):
        tessera.Gallery(tmp_path / "photos", small_bundle)
    with pytest.raises(GalleryError, match="There is no gallery"):
        tessera.Gallery(tmp_path / "new", small_bundle, create=False)
    assert not (tmp_path / "new").exists()
    with pytest.raises(StorageError):
        tessera.Gallery(tmp_path / "file" / "below", small_bundle)


def test_a_second_writer_is_told_who_writes(gallery: tessera.Gallery, photo_folder: Path) -> None:
    gallery.index(photo_folder)
    with writer_lock(gallery.path):
        with pytest.raises(GalleryLockedError, match=rf"pid {os.getpid()}"):
            gallery.index(photo_folder)
        assert len(gallery.search(photo_folder / "photo0.png")) == 8  # readers go on
    assert gallery.index(photo_folder).unchanged == 8


def test_the_fingerprint_is_the_extractors(gallery: tessera.Gallery, small_bundle: Path) -> None:
    assert gallery.describer.fingerprint == Extractor(str(small_bundle)).fingerprint


def test_one_gallery_object_follows_another(tmp_path: Path, photo_folder: Path, small_bundle: Path) -> None:
    writer, reader = (tessera.Gallery(tmp_path / "gallery", small_bundle) for _ in range(2))
    writer.index(photo_folder / "inner")
    assert len(reader.search(photo_folder / "photo0.png", 100)) == 4
    writer.index(photo_folder)
    assert len(reader.search(photo_folder / "photo0.png", 100)) == 8
    writer.remove(photo_folder / "inner")
    assert len(reader.search(photo_folder / "photo0.png", 100)) == 4
    reader.close()
    writer.close()


def test_a_codec_that_is_asked_for_becomes_the_gallerys(tmp_path: Path, photo_folder: Path, small_bundle: Path) -> None:
    with tessera.Gallery(tmp_path / "gallery", small_bundle) as gallery:
        gallery.index(photo_folder)
        assert gallery.stats()["codec"] == "auto"
    with tessera.Gallery(tmp_path / "gallery", codec="flat") as gallery:
        gallery.index(photo_folder)
        assert (gallery.stats()["codec"], gallery.stats()["index"]["codec"]) == ("flat", "flat")
        assert gallery.check().ok


@pytest.mark.parametrize("options", [{"expand": "aqe"}, {"expand": "diffusion"}, {"rerank": "global"}])
def test_expansion_and_reranking_are_those_of_the_index_and_obey_filters(
    gallery: tessera.Gallery, photo_folder: Path, options: dict[str, str]
) -> None:
    table = photo_folder / "labels.csv"
    table.write_text("path,label\nphoto0.png,a\nphoto2.png,a\nphoto4.png,a\n")
    gallery.index(photo_folder, table)
    query = photo_folder / "photo0.png"
    result = gallery.search(query, **options)  # type: ignore[arg-type]
    ids = np.array([record.id for record in gallery.images()])
    index = build_index("flat", ids, gallery.descriptors(ids))
    scores, expected = search_refined(
        index,
        gallery.describe(query)[None],
        8,
        fetch=index.descriptors,
        expand=options.get("expand"),
        rerank="rerank" in options,
    )
    assert [hit.id for hit in result] == expected[0].tolist()
    assert [hit.score for hit in result] == pytest.approx(scores[0].tolist(), abs=1e-6)
    assert [hit.score for hit in result] != [hit.score for hit in gallery.search(query)]
    filtered = gallery.search(query, 2, where="label=a", **options)  # type: ignore[arg-type]
    assert len(filtered) == 2
    assert all(hit.metadata == {"label": "a"} for hit in filtered)


def test_unknown_expansions_and_rerankings_are_refused(gallery: tessera.Gallery, photo_folder: Path) -> None:
    gallery.index(photo_folder)
    with pytest.raises(UsageError, match="Did you mean 'aqe'"):
        gallery.search(photo_folder / "photo0.png", expand="aqee")
    with pytest.raises(UsageError, match="re-ranking 'nothing' is not known"):
        gallery.search(photo_folder / "photo0.png", rerank="nothing")
