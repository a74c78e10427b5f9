"""Copies: found whatever was done to them, kept apart from other photos, moved and brought back."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import tessera
from tessera.errors import UsageError
from tessera.gallery.organise.moving import JOURNAL, move_copies, undo_moves
from tessera.gallery.organise.pair_reader import PairReader
from tessera.gallery.organise.review import write_review

ROOT = Path(__file__).parents[3]
PHOTOS = ("roman-colosseum", "casa-mila", "piazza-gae-aulenti")


def load_alterations() -> ModuleType:
    spec = importlib.util.spec_from_file_location("alterations", ROOT / "scripts" / "photos" / "alterations.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def altered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three photos, `original/NAME.jpg`, and twelve copies of each, `KIND/NAME.*`."""
    folder = tmp_path_factory.mktemp("altered")
    (folder / "original").mkdir()
    for name in PHOTOS:
        copy = shutil.copy(ROOT / "examples" / "photos" / f"{name}.jpg", folder / "original" / f"{name}.jpg")
        load_alterations().write_altered(Path(copy), folder)
    return folder


@pytest.fixture(scope="module")
def copies_gallery(altered: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tessera.Gallery]:
    with tessera.Gallery(tmp_path_factory.mktemp("gallery") / "g") as gallery:
        gallery.index(altered)
        yield gallery


@pytest.fixture
def copies(gallery: tessera.Gallery, altered: Path, tmp_path: Path) -> tuple[tessera.Gallery, Path]:
    """A gallery of the smallest model over two photos, an exact copy and a small one."""
    folder = tmp_path / "mine"
    (folder / "sub").mkdir(parents=True)
    shutil.copy2(altered / "original" / f"{PHOTOS[0]}.jpg", folder / "a.jpg")
    shutil.copy2(altered / "original" / f"{PHOTOS[1]}.jpg", folder / "b.jpg")
    shutil.copy2(folder / "a.jpg", folder / "sub" / "exact.jpg")
    os.utime(folder / "a.jpg", (1_400_000_000, 1_400_000_000))
    os.utime(folder / "sub" / "exact.jpg", (1_500_000_000, 1_500_000_000))
    shutil.copy2(altered / "half" / f"{PHOTOS[0]}.jpg", folder / "sub" / "half.jpg")
    gallery.index(folder, metadata={"owner": "me"})
    return gallery, folder


@pytest.mark.slow
def test_every_alteration_is_found_and_no_stranger(copies_gallery: tessera.Gallery) -> None:
    groups = copies_gallery.duplicates()
    found = {frozenset(Path(record.path).stem for record in (g.keep, *(c.record for c in g.copies))) for g in groups}
    assert found == {frozenset([name]) for name in PHOTOS}
    kinds = {Path(copy.record.path).parent.name for group in groups for copy in group.copies}
    assert len(kinds) == 13 - len({Path(group.keep.path).parent.name for group in groups} - kinds)
    assert sum(len(group.copies) for group in groups) == 3 * 12


def test_what_is_kept_and_why(copies: tuple[tessera.Gallery, Path]) -> None:
    gallery, folder = copies
    (group,) = gallery.duplicates()
    assert group.keep.path == str(folder / "a.jpg")
    assert group.reason == "it is the oldest"
    assert {(Path(copy.record.path).name, copy.exact) for copy in group.copies} == {
        ("exact.jpg", True),
        ("half.jpg", False),
    }
    (below,) = gallery.duplicates(where="folder=sub")
    assert below.keep.path == str(folder / "sub" / "exact.jpg")
    assert below.reason == "it is the largest"


def test_pairs_are_compared_once(copies: tuple[tessera.Gallery, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    gallery, _ = copies
    before = gallery.duplicates()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a picture was read again")

    monkeypatch.setattr(PairReader, "_read", refuse)
    assert gallery.duplicates() == before


def test_moved_out_of_the_way_and_back(copies: tuple[tessera.Gallery, Path], tmp_path: Path) -> None:
    gallery, folder = copies
    aside = folder / "aside"
    moved = move_copies(gallery, gallery.duplicates(), aside)
    assert sorted(path.name for path in aside.iterdir()) == ["exact.jpg", "half.jpg", JOURNAL]
    assert sorted(Path(record.path).name for record in gallery.images()) == ["a.jpg", "b.jpg"]
    assert gallery.index(folder, prune=True).images == 2  # what was put aside stays aside
    back = undo_moves(gallery, aside)
    assert {entry.origin for entry in back} == {entry.origin for entry in moved}
    assert (folder / "sub" / "half.jpg").is_file()
    assert gallery.count("owner=me") == 4
    with pytest.raises(UsageError, match="no copies were moved there"):
        undo_moves(gallery, tmp_path)


def test_a_name_that_is_taken_again_is_not_overwritten(copies: tuple[tessera.Gallery, Path]) -> None:
    gallery, folder = copies
    move_copies(gallery, gallery.duplicates(), folder / "aside")
    (folder / "sub" / "half.jpg").write_bytes(b"something else")
    assert [Path(entry.origin).name for entry in undo_moves(gallery, folder / "aside")] == ["exact.jpg"]
    assert (folder / "sub" / "half.jpg").read_bytes() == b"something else"
    assert (folder / "aside" / "half.jpg").is_file()
    (folder / "sub" / "half.jpg").unlink()
    assert len(undo_moves(gallery, folder / "aside")) == 1


def test_a_page_to_look_through(copies: tuple[tessera.Gallery, Path], tmp_path: Path) -> None:
    gallery, folder = copies
    groups = gallery.duplicates()
    (folder / "sub" / "half.jpg").unlink()
    write_review(groups, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<img") == 2
    assert "not readable" in page
    assert "keep: it is the oldest" in page


def test_the_command(
    copies: tuple[tessera.Gallery, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from typer.testing import CliRunner

    from tessera.cli.main import app

    gallery, folder = copies
    words = ["duplicates", "-g", str(gallery.path)]
    answer = CliRunner().invoke(app, [*words, "--json", "--csv", str(tmp_path / "out.csv")], catch_exceptions=False)
    (group,) = json.loads(answer.stdout)["groups"]
    assert group["keep"]["path"] == str(folder / "a.jpg")
    assert {copy["kind"] for copy in group["copies"]} == {"exact", "near"}
    with (tmp_path / "out.csv").open() as file:
        assert [row["kind"] for row in csv.DictReader(file)] == ["keep", "exact", "near"]
    moved = CliRunner().invoke(app, [*words, "--move-to", str(folder / "x"), "--json"], catch_exceptions=False)
    assert len(json.loads(moved.stdout)["moved"]) == 2
    undone = CliRunner().invoke(app, [*words, "--undo", str(folder / "x"), "--json"], catch_exceptions=False)
    assert len(json.loads(undone.stdout)["restored"]) == 2
