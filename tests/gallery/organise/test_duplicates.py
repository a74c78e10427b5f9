"""Copies: found whatever was done to them, kept apart from other photos, moved and brought back."""

from __future__ import annotations

import contextlib
import csv
import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import tessera
from tessera.errors import GalleryLockedError, StorageError, UsageError
from tessera.gallery.catalog.lock import writer_lock
from tessera.gallery.organise import moving
from tessera.gallery.organise.moving import JOURNAL, move_copies, undo_moves
from tessera.gallery.organise.pair_reader import PairReader
from tessera.gallery.organise.review import write_review

ROOT = Path(__file__).parents[3]
PHOTOS = ("roman-colosseum", "casa-mila", "piazza-gae-aulenti")


@pytest.fixture(scope="module")
def altered(tmp_path_factory: pytest.TempPathFactory, load_module: Callable[[str], ModuleType]) -> Path:
    """Three photos, `original/NAME.jpg`, and twelve copies of each, `KIND/NAME.*`."""
    folder = tmp_path_factory.mktemp("altered")
    (folder / "original").mkdir()
    alterations = load_module("scripts/photos/alterations.py")
    for name in PHOTOS:
        copy = shutil.copy(ROOT / "examples" / "photos" / f"{name}.jpg", folder / "original" / f"{name}.jpg")
        alterations.write_altered(Path(copy), folder)
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
    assert "border" not in {Path(group.keep.path).parent.name for group in groups}


def test_what_is_kept_and_why(copies: tuple[tessera.Gallery, Path]) -> None:
    gallery, folder = copies
    (group,) = gallery.duplicates()
    assert group.keep.path == str(folder / "a.jpg")
    assert group.reason == "it is the oldest"
    assert {(Path(copy.record.path).name, copy.exact) for copy in group.copies} == {
        ("exact.jpg", True),
        ("half.jpg", False),
    }
    os.utime(folder / "sub" / "exact.jpg", (1_400_000_900, 1_400_000_900))  # as of files that were copied together
    gallery.index(folder)
    (group,) = gallery.duplicates()
    assert (group.keep.path, group.reason) == (str(folder / "a.jpg"), "its path is the shortest")
    strip = group._repr_html_()
    assert strip.count("<img") == 3
    assert "keep: its path is the shortest" in strip
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
    grouped = {image.path for group in gallery.groups() for image in group.images}
    assert len(grouped) >= 3
    moved = move_copies(gallery, gallery.duplicates(), aside)
    assert sorted(path.name for path in aside.iterdir()) == ["exact.jpg", "half.jpg", JOURNAL]
    assert sorted(Path(record.path).name for record in gallery.images()) == ["a.jpg", "b.jpg"]
    assert gallery.index(folder, prune=True).images == 2  # what was put aside stays aside
    back = undo_moves(gallery, aside)
    assert {entry.origin for entry in back} == {entry.origin for entry in moved}
    assert (folder / "sub" / "half.jpg").is_file()
    assert gallery.count("owner=me") == 4
    assert {image.path for group in gallery.groups(renew=False) for image in group.images} == grouped
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
    assert "keep it: it is the oldest" in page
    assert f"<h1>{sum(len(group.copies) for group in groups)} copies in 1 group, " in page
    assert f'href="{Path(groups[0].keep.path).as_uri()}"' in page


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


@pytest.mark.parametrize("entry", ["elsewhere.jpg", "../elsewhere.jpg", "no-picture.txt"])
def test_a_journal_of_somebody_else_moves_nothing_of_ones_own(
    copies: tuple[tessera.Gallery, Path], tmp_path: Path, entry: str
) -> None:
    """A folder of copies that was given away may come back with another journal."""
    gallery, folder = copies
    move_copies(gallery, gallery.duplicates(), folder / "aside")
    own = (tmp_path if entry == "elsewhere.jpg" else folder / "aside") / entry
    own.write_bytes(b"mine")
    journal = json.loads((folder / "aside" / JOURNAL).read_text())
    planted = {"from": str(tmp_path / f"target{own.suffix}"), "to": str(own), "metadata": {}}
    (folder / "aside" / JOURNAL).write_text(json.dumps([*journal, planted]))
    with pytest.raises(UsageError, match="Nothing was moved"):
        undo_moves(gallery, folder / "aside")
    assert own.read_bytes() == b"mine" and not (tmp_path / f"target{own.suffix}").exists()
    assert (folder / "aside" / "half.jpg").is_file()


@pytest.mark.parametrize("kind", ["link", "hard link", "folder link"])
def test_a_file_under_two_names_is_not_moved_away_from_itself(
    gallery: tessera.Gallery, tmp_path: Path, painter: Callable[..., Path], kind: str
) -> None:
    """A symbolic link looks like an exact copy of what it leads to."""
    original = painter(tmp_path / "mine" / "a-long-name.png", 1)
    other = tmp_path / "mine" / "b.png"
    if kind == "link":
        other.symlink_to(original.name)
    elif kind == "hard link":
        other.hardlink_to(original)
    else:
        (tmp_path / "l").symlink_to(tmp_path / "mine")
        gallery.index(tmp_path / "l")
    gallery.index(tmp_path / "mine")
    (group,) = gallery.duplicates()
    assert move_copies(gallery, [group], tmp_path / "aside") == []
    assert len(gallery) == 2 and all(Path(record.path).is_file() for record in gallery.images())


def test_the_last_one_that_is_there_is_not_moved(copies: tuple[tessera.Gallery, Path]) -> None:
    gallery, folder = copies
    groups = gallery.duplicates()
    (folder / "a.jpg").unlink()  # the one to keep
    assert move_copies(gallery, groups, folder / "aside") == []
    assert (folder / "sub" / "exact.jpg").is_file()


def test_what_was_changed_since_it_was_compared_is_not_moved(copies: tuple[tessera.Gallery, Path]) -> None:
    gallery, folder = copies
    groups = gallery.duplicates()
    shutil.copy(folder / "b.jpg", folder / "sub" / "half.jpg")
    assert [Path(entry.origin).name for entry in move_copies(gallery, groups, folder / "aside")] == ["exact.jpg"]
    assert (folder / "sub" / "half.jpg").is_file()


def test_copies_are_not_moved_among_the_pictures(copies: tuple[tessera.Gallery, Path]) -> None:
    """That folder would be passed over from then on, with what is kept in it."""
    gallery, folder = copies
    with pytest.raises(UsageError, match="holds pictures of this gallery"):
        move_copies(gallery, gallery.duplicates(), folder)
    assert (folder / "sub" / "half.jpg").is_file() and not (folder / JOURNAL).exists()


def test_nothing_is_moved_while_another_process_writes(copies: tuple[tessera.Gallery, Path]) -> None:
    gallery, folder = copies
    groups = gallery.duplicates()
    with writer_lock(gallery.path), pytest.raises(GalleryLockedError):
        move_copies(gallery, groups, folder / "aside")
    assert (folder / "sub" / "half.jpg").is_file()


@pytest.mark.parametrize("stopped_at", range(1, 9))
def test_moves_and_their_undoing_go_on_where_they_were_stopped(
    copies: tuple[tessera.Gallery, Path], monkeypatch: pytest.MonkeyPatch, stopped_at: int
) -> None:
    """Stopped at the n-th call that changes something; every picture ends where it was, with its metadata."""
    gallery, folder = copies
    calls = iter(range(1, 100))

    def stop(function: Callable[..., object]) -> Callable[..., object]:
        def call(*words: object, **named: object) -> object:
            if next(calls) == stopped_at:
                raise KeyboardInterrupt
            return function(*words, **named)

        return call

    with monkeypatch.context() as patched:
        for owner, name in ((moving, "move_file"), (moving, "write_atomically"), (tessera.Gallery, "index_file")):
            patched.setattr(owner, name, stop(getattr(owner, name)))
        with contextlib.suppress(KeyboardInterrupt):
            move_copies(gallery, gallery.duplicates(), folder / "aside")
            undo_moves(gallery, folder / "aside")
    gallery.index(folder, prune=True)
    with contextlib.suppress(UsageError):  # it was stopped before the first move
        undo_moves(gallery, folder / "aside")
    assert sorted(path.name for path in folder.rglob("*.jpg")) == ["a.jpg", "b.jpg", "exact.jpg", "half.jpg"]
    assert gallery.count("owner=me") == 4
    assert gallery.check().ok


def test_a_folder_that_denies_writing_is_said(
    copies: tuple[tessera.Gallery, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery, folder = copies
    move_copies(gallery, gallery.duplicates(), folder / "aside")

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched, pytest.raises(StorageError, match="Permission denied"):
        patched.setattr(Path, "rename", refuse)
        undo_moves(gallery, folder / "aside")
    assert len(undo_moves(gallery, folder / "aside")) == 2


@pytest.mark.parametrize(
    "content", ['[{"from":1,"to":2,"metadata":{}}]', '[{"from":"a\\u0000.jpg"}]', "null", "7", "\0"]
)
def test_a_journal_that_is_none(copies: tuple[tessera.Gallery, Path], content: str) -> None:
    gallery, folder = copies
    (folder / "aside").mkdir()
    (folder / "aside" / JOURNAL).write_text(content)
    with pytest.raises(UsageError, match=r"no list of moved copies|Nothing was moved"):
        undo_moves(gallery, folder / "aside")


@pytest.mark.parametrize("fate", ["away", "changed"])
def test_pictures_that_could_not_be_read_are_compared_when_they_can(
    copies: tuple[tessera.Gallery, Path], fate: str
) -> None:
    """A disk that is not mounted must not be remembered as photos that show nothing alike."""
    gallery, folder = copies
    kept = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*.jpg")}
    if fate == "away":
        folder.rename(folder.with_name("unmounted"))
    else:
        for path in kept:
            path.write_bytes(kept[folder / "b.jpg"][0] + path.name.encode())
    assert [copy for group in gallery.duplicates() for copy in group.copies if not copy.exact] == []
    assert len({image.path for found in gallery.groups() for image in found.images}) == 2  # of one content
    if fate == "away":
        folder.with_name("unmounted").rename(folder)
    for path, (content, mtime_ns) in kept.items():
        path.write_bytes(content)
        os.utime(path, ns=(mtime_ns, mtime_ns))
    (group,) = gallery.duplicates()
    assert {Path(copy.record.path).name for copy in group.copies} == {"exact.jpg", "half.jpg"}
    assert len({image.path for found in gallery.groups() for image in found.images}) == 3
