"""A file that moved is the same image: its id, its metadata and its group stay, and nothing is described again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tessera
from tessera.extract.extractor import Extractor


@pytest.fixture
def labelled(gallery: tessera.Gallery, photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> tessera.Gallery:
    """The eight pictures, each with its name as metadata; describing one more is an error from now on."""
    rows = [f"{path},{path.stem}\n" for path in sorted(photo_folder.rglob("*.png"))]
    (photo_folder / "labels.csv").write_text("path,label\n" + "".join(rows))
    assert gallery.index(photo_folder / "labels.csv").metadata_given == 8

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a picture was described again")

    monkeypatch.setattr(Extractor, "extract", refuse)
    return gallery


def ids(gallery: tessera.Gallery) -> dict[str, int]:
    return {str(record.metadata["label"]): record.id for record in gallery.images()}


def test_a_moved_folder_keeps_ids_and_metadata(labelled: tessera.Gallery, photo_folder: Path) -> None:
    before = ids(labelled)
    photo_folder.rename(photo_folder.with_name("elsewhere"))
    report = labelled.index(photo_folder.with_name("elsewhere"))
    assert (report.moved, report.added, report.unchanged, report.vanished) == (8, 0, 0, 0)
    assert report.to_json()["moved"] == 8
    assert ids(labelled) == before
    assert {Path(record.path).parent.parts[-1] for record in labelled.images()} == {"elsewhere", "inner"}
    assert labelled.search(before["photo3"], 1)[0].path == str(photo_folder.with_name("elsewhere") / "inner/photo3.png")
    again = labelled.index(photo_folder.with_name("elsewhere"))
    assert (again.moved, again.unchanged) == (0, 8)


def test_a_renamed_file_survives_prune(labelled: tessera.Gallery, photo_folder: Path) -> None:
    before = ids(labelled)
    (photo_folder / "photo0.png").rename(photo_folder / "zero.png")
    report = labelled.index(photo_folder, prune=True)
    assert (report.moved, report.unchanged, report.pruned) == (1, 7, 0)
    assert ids(labelled) == before


def test_a_copy_is_no_move(labelled: tessera.Gallery, photo_folder: Path) -> None:
    before = ids(labelled)
    shutil.copy2(photo_folder / "photo0.png", photo_folder / "copy.png")
    report = labelled.index(photo_folder)
    assert (report.moved, report.added, report.reused) == (0, 1, 1)
    copy = labelled.find(photo_folder / "copy.png")
    assert copy is not None
    assert copy.id not in before.values()
    assert copy.metadata == {}


def test_two_files_that_swap_their_names_keep_themselves(
    labelled: tessera.Gallery, photo_folder: Path, ager: Callable[..., Path]
) -> None:
    before = ids(labelled)
    first, second, aside = (photo_folder / name for name in ("photo0.png", "photo2.png", "aside.png"))
    for source, target in ((first, aside), (second, first), (aside, second)):
        source.rename(target)
    ager(first, 5)
    ager(second, 7)
    report = labelled.index(photo_folder)
    assert (report.moved, report.unchanged, report.problems) == (2, 6, [])
    assert ids(labelled) == before
    record = labelled.record(before["photo0"])
    assert record is not None
    assert record.path == str(second)


def test_a_name_that_is_moved_onto_another_is_said(
    labelled: tessera.Gallery, photo_folder: Path, ager: Callable[..., Path]
) -> None:
    before = ids(labelled)
    (photo_folder / "photo0.png").replace(ager(photo_folder / "photo2.png", 3))
    ager(photo_folder / "photo2.png", 9)
    report = labelled.index(photo_folder, prune=True)
    assert report.moved == 1
    assert [problem.path for problem in report.problems] == [str(photo_folder / "photo2.png")]
    assert "photo0.png was moved onto it" in report.problems[0].reason
    after = ids(labelled)
    assert after == {label: image_id for label, image_id in before.items() if label != "photo2"}
    assert len(labelled) == 7


def test_a_file_out_of_reach_has_not_moved(
    labelled: tessera.Gallery, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tessera.gallery.ingest.planning import moves
    from tessera.gallery.ingest.sources import FoundFile

    shutil.copy2(photo_folder / "photo0.png", photo_folder / "copy.png")
    monkeypatch.setattr(moves, "look_at", lambda path: FoundFile(path, error="its disk is gone"))
    assert labelled.index(photo_folder).moved == 0


def test_metadata_of_a_csv_survives_indexing_and_change(
    gallery: tessera.Gallery, photo_folder: Path, other_bundle: Path, painter: Callable[..., Path]
) -> None:
    (photo_folder / "labels.csv").write_text("path,label\nphoto0.png,tower\n")
    assert gallery.index(photo_folder / "labels.csv").metadata_given == 1
    painter(photo_folder / "photo0.png", 99)
    report = gallery.index(photo_folder)
    assert (report.changed, report.added, report.metadata_given) == (1, 7, 0)
    record = gallery.find(photo_folder / "photo0.png")
    assert record is not None
    assert record.metadata == {"label": "tower"}
    gallery.close()
    with tessera.Gallery(gallery.path, other_bundle) as other:
        other.index(photo_folder, rebuild=True)
        assert other.count("label=tower") == 1
