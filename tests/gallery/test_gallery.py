"""The gallery through its Python interface: opening it and asking it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from tessera.extract.extractor import Extractor
from tessera.gallery.catalog.lock import writer_lock
from tessera.index.build import build_index
from tessera.index.refinement import search_refined

Painter = Callable[..., Path]


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
    expected = gallery.search(path, by="global")
    pixels = np.asarray(Image.open(path).convert("RGB"))
    descriptor = Extractor(str(small_bundle)).describe(pixels)
    queries = [str(path), path.read_bytes(), Image.open(path), pixels, descriptor, 7 * descriptor]
    for query in queries:
        result = gallery.search(query, by="global")
        assert [hit.id for hit in result] == [hit.id for hit in expected]
        assert [hit.score for hit in result] == pytest.approx([hit.score for hit in expected], abs=1e-6)
    by_id = gallery.search(expected[0].id, by="global")
    assert [hit.id for hit in by_id] == [hit.id for hit in expected]
    assert by_id[0].score == pytest.approx(1.0, abs=1e-3)
    batch = gallery.search_many(np.stack([descriptor, descriptor]))
    assert [[hit.id for hit in hits] for hits in batch] == [[hit.id for hit in expected]] * 2


def test_a_box_searches_for_its_part(gallery: tessera.Gallery, tmp_path: Path, painter: Painter) -> None:
    part = painter(tmp_path / "photos" / "part.png", 1)
    painter(tmp_path / "photos" / "other.png", 2)
    gallery.index(tmp_path / "photos")
    clutter = Image.new("RGB", (120, 100), "white")
    clutter.paste(Image.open(part), (60, 50))
    hit = gallery.search(clutter, 1, box=(60, 50, 108, 86))[0]
    assert (Path(hit.path).name, round(hit.score, 3)) == ("part.png", 1.0)
    assert gallery.search(clutter, 1, by="global")[0].score < 0.999
    assert gallery.search(hit.id, 1, by="global", box=(0, 0, 24, 18))[0].score < 0.9999
    with pytest.raises(BoxError):
        gallery.search(clutter, box=(500, 500, 600, 600))
    with pytest.raises(UsageError, match="A box needs a picture"):
        gallery.search(np.ones(16, np.float32), box=(0, 0, 1, 1))


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
    monkeypatch.setattr("tessera.gallery.ingest.reading.read_file", lambda *_: pytest.fail("a file was read"))
    gallery.index(table)
    assert paths(gallery.search(query, where="label=c")) == ["photo0.png"]
    assert gallery.index(photo_folder).unchanged == 8
    assert gallery.count("label=c") == 1


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


@pytest.mark.parametrize(
    "options", [{"expand": "aqe"}, {"expand": "diffusion"}, {"rerank": "global"}, {"augment": True}]
)
def test_expansion_and_reranking_are_those_of_the_index_and_obey_filters(
    gallery: tessera.Gallery, photo_folder: Path, options: dict[str, Any]
) -> None:
    table = photo_folder / "labels.csv"
    table.write_text("path,label\nphoto0.png,a\nphoto2.png,a\nphoto4.png,a\n")
    gallery.index(photo_folder, table)
    query = photo_folder / "photo0.png"
    result = gallery.search(query, **options)
    ids = np.array([record.id for record in gallery.images()])
    index = build_index("flat", ids, gallery.descriptors(ids))
    scores, expected = search_refined(
        index,
        gallery.describe(query)[None],
        8,
        fetch=index.descriptors,
        expand=options.get("expand"),
        augment="augment" in options,
        rerank=options.get("rerank"),
    )
    assert [hit.id for hit in result] == expected[0].tolist()
    assert [hit.score for hit in result] == pytest.approx(np.minimum(scores[0], 1).tolist(), abs=1e-6)
    assert [hit.score for hit in result] != [hit.score for hit in gallery.search(query)]
    filtered = gallery.search(query, 2, where="label=a", **options)
    assert len(filtered) == 2
    assert all(hit.metadata == {"label": "a"} for hit in filtered)


def test_unknown_expansions_and_rerankings_are_refused(gallery: tessera.Gallery, photo_folder: Path) -> None:
    gallery.index(photo_folder)
    with pytest.raises(UsageError, match="Did you mean 'aqe'"):
        gallery.search(photo_folder / "photo0.png", expand="aqee")
    with pytest.raises(UsageError, match="re-ranking 'nothing' is not known"):
        gallery.search(photo_folder / "photo0.png", rerank="nothing")


def test_descriptors_made_elsewhere_are_stored_and_their_files_are_then_unchanged(
    gallery: tessera.Gallery, small_bundle: Path, photo_folder: Path
) -> None:
    extractor = Extractor(str(small_bundle))
    paths_there = sorted(photo_folder.rglob("*.png"))
    made = [
        tessera.DescribedImage(path, 3 * extraction.descriptor, extraction.width, extraction.height, {"by": "cluster"})
        for path, extraction in zip(paths_there, extractor.extract(paths_there), strict=True)
        if extraction.descriptor is not None
    ]
    lost = tessera.DescribedImage(photo_folder / "lost.png", np.ones(16, np.float32))
    assert gallery.add(image for image in [*made, lost]) == 9
    for path in paths_there:
        hit = gallery.search(path, 1)[0]
        assert (hit.path, hit.metadata) == (str(path), {"by": "cluster"})
        assert hit.score == pytest.approx(1.0, abs=1e-3)
    record = gallery.find(paths_there[0])
    assert record is not None
    assert (record.width, record.height) == (48, 36)
    report = gallery.index(photo_folder)
    assert (report.unchanged, report.added, report.vanished, report.images) == (8, 0, 1, 9)
    assert gallery.search(np.ones(16, np.float32), 1)[0].path == str(photo_folder / "lost.png")
    assert gallery.check().ok


def test_descriptors_of_another_kind_are_refused(
    gallery: tessera.Gallery, photo_folder: Path, other_bundle: Path
) -> None:
    path = photo_folder / "photo0.png"
    with pytest.raises(UsageError, match=r"photo0\.png has 17 numbers, the gallery's have 16"):
        gallery.add([tessera.DescribedImage(path, np.ones(17))])
    with pytest.raises(UsageError, match="no direction"):
        gallery.add([tessera.DescribedImage(path, np.zeros(16))])
    assert len(gallery) == 0
    gallery.index(photo_folder)
    with (
        tessera.Gallery(gallery.path, other_bundle) as other,
        pytest.raises(GalleryMismatchError, match="cannot be compared"),
    ):
        other.add([tessera.DescribedImage(path, np.ones(24))])
