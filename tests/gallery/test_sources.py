"""Walking: folders, globs, lists, links in circles, names that are no UTF-8."""

# ruff: noqa: PTH118, PTH119, PTH123 - names as bytes
from __future__ import annotations

import datetime
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tessera.errors import DataError
from tessera.gallery.catalog.paths import from_blob, printable, to_blob
from tessera.gallery.ingest.sources import FoundFile, find_files, resolve_source


def walk(*sources: str | os.PathLike[str]) -> tuple[list[FoundFile], list[tuple[bytes, str]]]:
    problems: list[tuple[bytes, str]] = []
    found = list(find_files([resolve_source(source) for source in sources], lambda *problem: problems.append(problem)))
    return found, problems


def names(found: list[FoundFile], root: Path) -> list[str]:
    return [os.path.relpath(from_blob(file.path), root) for file in found]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "b.jpg",
        "a.PNG",
        "deep/er/c.webp",
        "deep/d.txt",
        "deep/e.jpeg",
        ".hidden/f.jpg",
        "._a.jpg",
        "z/g.tif",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * len(name))
    return tmp_path


def test_a_folder_gives_its_pictures_in_a_fixed_order(tree: Path) -> None:
    found, problems = walk(tree)
    assert names(found, tree) == ["a.PNG", "b.jpg", "deep/e.jpeg", "deep/er/c.webp", "z/g.tif"]
    assert [file.size for file in found] == [5, 5, 11, 14, 7]
    assert problems == []


def test_globs_take_pictures_and_folders(tree: Path) -> None:
    assert names(walk(tree / "*.jpg")[0], tree) == ["b.jpg"]
    assert names(walk(tree / "d*")[0], tree) == ["deep/e.jpeg", "deep/er/c.webp"]
    assert names(walk(tree / "**" / "*.jp*g")[0], tree) == ["b.jpg", "deep/e.jpeg"]
    assert names(walk(tree / "**" / "?.webp")[0], tree) == ["deep/er/c.webp"]
    assert resolve_source(tree / "deep" / "*.gif").root == to_blob(tree / "deep")


def test_links_in_circles_end_and_real_names_win(tree: Path) -> None:
    (tree / "a-link").symlink_to(tree / "z")  # sorted first, but z is reached by its own name
    (tree / "deep" / "up").symlink_to(tree)
    (tree / "self.jpg").symlink_to(tree / "self.jpg")
    found, problems = walk(tree)
    assert names(found, tree) == ["a.PNG", "b.jpg", "self.jpg", "deep/e.jpeg", "deep/er/c.webp", "z/g.tif"]
    errors = {os.path.basename(from_blob(file.path)): file.error for file in found}
    assert errors.pop("self.jpg") == "it is a symbolic link that leads back to itself"
    assert set(errors.values()) == {None}
    assert {os.path.basename(path) for path, _ in problems} == {b"a-link", b"up"}
    assert names(walk(tree / "**" / "g.tif")[0], tree) == ["z/g.tif"]


def test_a_link_to_a_folder_elsewhere_is_followed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "far.jpg").write_bytes(b"far")
    (tree / "link").symlink_to(elsewhere)
    assert "link/far.jpg" in names(walk(tree)[0], tree)


def test_a_name_that_is_no_utf8_is_found_and_printable(tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"caf\xe9\n.jpg")
    with open(path, "wb") as file:
        file.write(b"x")
    found, _ = walk(tmp_path)
    assert [file.path for file in found] == [path]
    shown = printable(from_blob(path))
    assert shown.endswith(r"caf\xe9\n.jpg")
    assert shown.isprintable()


def test_a_gallery_in_the_tree_is_left_alone(tree: Path) -> None:
    (tree / "z" / "catalog.sqlite").write_bytes(b"")
    found, problems = walk(tree)
    assert "z/g.tif" not in names(found, tree)
    assert problems == [(to_blob(tree / "z"), "skipped: this folder is a gallery")]


def test_a_csv_gives_metadata(tree: Path) -> None:
    table = tree / "labels.csv"
    table.write_text('\ufefflabel,path,year\n"tower, leaning",b.jpg,1990\n,deep/e.jpeg,\nx,missing.jpg,1\n')
    found, problems = walk(table)
    assert names(found, tree) == ["b.jpg", "deep/e.jpeg", "missing.jpg"]
    assert [file.metadata for file in found] == [
        '{"label":"tower, leaning","year":"1990"}',
        "{}",
        '{"label":"x","year":"1"}',
    ]
    assert found[2].gone
    assert problems == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.tsv", "image\tcity\nb.jpg\tPisa\n"),
        ("t.csv", "file;city\nb.jpg;Pisa\n"),
        ("t.csv", "picture,city\nb.jpg,Pisa\n"),
    ],
)
def test_other_separators_and_columns(tree: Path, name: str, text: str) -> None:
    (tree / name).write_text(text)
    found, _ = walk(tree / name)
    assert [(os.path.basename(file.path), file.metadata) for file in found] == [(b"b.jpg", '{"city":"Pisa"}')]


def test_quotes_line_ends_and_bytes_that_are_no_utf8_in_a_csv(tree: Path) -> None:
    table = tree / "odd.csv"
    table.write_bytes(b'\xef\xbb\xbfpath,note\r\n"b.jpg","he said ""hi"",\r\ntwice"\r\na.PNG,caf\xe9\r\n')
    found, problems = walk(table)
    assert names(found, tree) == ["b.jpg", "a.PNG"]
    assert [json.loads(file.metadata or "")["note"] for file in found] == ['he said "hi",\r\ntwice', r"caf\xe9"]
    assert problems == []


def test_a_link_to_nothing_is_not_a_file_that_has_gone(tree: Path) -> None:
    (tree / "link.jpg").symlink_to("nowhere.jpg")
    (found,) = walk(tree / "link.jpg")[0]
    assert (found.error, found.gone) == ("it is a symbolic link to a file that is not there", False)


def test_a_text_file_lists_paths(tree: Path) -> None:
    (tree / "list.txt").write_bytes(b"b.jpg\r\n\n" + os.fsencode(tree / "a.PNG") + b"\n")
    assert names(walk(tree / "list.txt")[0], tree) == ["b.jpg", "a.PNG"]


def test_lists_that_cannot_be_meant_are_refused(tree: Path) -> None:
    (tree / "empty.csv").write_text("")
    with pytest.raises(DataError, match="is empty"):
        walk(tree / "empty.csv")
    (tree / "ids.csv").write_text("id,landmark\n7,8\n")
    with pytest.raises(DataError, match="no column with paths: its columns are id, landmark"):
        walk(tree / "ids.csv")
    (tree / "twice.csv").write_text("path,label,label\nb.jpg,1,2\n")
    with pytest.raises(DataError, match="has the column 'label' twice"):
        walk(tree / "twice.csv")
    (tree / "short.csv").write_text("path,year\nb.jpg\na.PNG,1990\n,1991\n")
    found, problems = walk(tree / "short.csv")
    assert names(found, tree) == ["a.PNG"]
    assert [reason for _, reason in problems] == [
        "line 2 skipped: it has 1 columns, the header 2",
        "line 4 skipped: it names no file",
    ]


def test_a_folder_that_cannot_be_read_is_reported(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., object] = os.scandir

    def refuse(path: bytes) -> object:
        if path == to_blob(tree / "deep"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found, problems = walk(tree)
    assert names(found, tree) == ["a.PNG", "b.jpg", "z/g.tif"]
    assert problems == [
        (to_blob(tree / "deep"), "this folder could not be looked through: it may not be read: check its permissions")
    ]


def test_a_parquet_table_gives_typed_metadata(tree: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = {
        "path": ["b.jpg", "a.PNG", None],
        "year": [1990, None, 3],
        "score": [0.5, float("nan"), 1.0],
        "taken": [datetime.datetime(2019, 6, 3, 10, 20), datetime.datetime(2020, 1, 1), None],
        "good": [True, False, None],
    }
    parquet.write_table(pyarrow.table(rows), tree / "list.parquet")
    found, problems = walk(tree / "list.parquet")
    assert names(found, tree) == ["b.jpg", "a.PNG"]
    assert [json.loads(file.metadata or "") for file in found] == [
        {"good": True, "score": 0.5, "taken": "2019-06-03T10:20:00", "year": 1990},
        {"good": False, "taken": "2020-01-01T00:00:00"},
    ]
    assert [reason for _, reason in problems] == ["row 3 skipped: it names no file"]
    parquet.write_table(pyarrow.table({"picture": ["none"], "year": [1]}), tree / "strange.parquet")
    with pytest.raises(DataError, match="no column with paths"):
        walk(tree / "strange.parquet")
    (tree / "damaged.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DataError, match="not a Parquet file that can be read"):
        walk(tree / "damaged.parquet")
