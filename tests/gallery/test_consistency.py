"""Searches while others write: each image is in the answer once, and what was added is there at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tessera
from tessera.errors import GalleryError
from tessera.gallery.engines import faiss_engine
from tessera.index.search_index import SearchIndex

Painter = Callable[..., Path]
WAIT_S = 60


@pytest.fixture
def reader(tmp_path: Path, small_bundle: Path, photo_folder: Path) -> Iterator[tessera.Gallery]:
    table = photo_folder / "labels.csv"
    table.write_text("path,label\n" + "".join(f"photo{i}.png,even\n" for i in (0, 2, 4, 6)))
    with tessera.Gallery(tmp_path / "gallery", small_bundle) as opened:
        opened.index(photo_folder, table)
        opened.search(photo_folder / "photo0.png")
        yield opened


@pytest.fixture
def writer(reader: tessera.Gallery) -> Iterator[tessera.Gallery]:
    """The same gallery as another process would have it."""
    with tessera.Gallery(reader.path) as opened:
        yield opened


def names(hits: object) -> list[str]:
    return sorted(Path(hit.path).name for hit in hits)  # type: ignore[attr-defined]


def run_once(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], object], *, when: str) -> None:
    """Let `act` happen before or after the first call of a function or method."""
    real = getattr(owner, name)
    left = [act]

    def wrapped(*given: object, **options: object) -> object:
        first = left.pop() if left else None
        if first is not None and when == "before":
            first()
        result = real(*given, **options)
        if first is not None and when == "after":
            first()
        return result

    monkeypatch.setattr(owner, name, wrapped)


@pytest.mark.parametrize("where", [None, "label=even"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("follows", [False, True], ids=["index-stays", "index-follows"])
def test_an_image_that_changes_during_a_search_is_in_its_answer(
    reader: tessera.Gallery,
    writer: tessera.Gallery,
    photo_folder: Path,
    painter: Painter,
    monkeypatch: pytest.MonkeyPatch,
    where: str | None,
    when: str,
    follows: bool,
) -> None:
    """follows: whether another thread brings the reader's index up to the change, too."""
    query = reader.describe(photo_folder / "photo0.png")
    expected = names(reader.search(query, 100, where=where))

    def change() -> None:
        writer.index(painter(photo_folder / "photo2.png", 100))
        if follows:
            reader.refresh()

    run_once(monkeypatch, SearchIndex, "search", change, when=when)
    assert names(reader.search(query, 100, where=where)) == expected


def test_an_image_added_during_a_search_pushes_no_other_out(
    reader: tessera.Gallery,
    writer: tessera.Gallery,
    photo_folder: Path,
    painter: Painter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def add() -> None:
        writer.index(painter(photo_folder / "new.png", 100))
        reader.refresh()

    query = reader.describe(photo_folder / "photo0.png")
    run_once(monkeypatch, SearchIndex, "search", add, when="before")
    assert len(reader.search(query, 100)) == 9


def test_an_image_removed_during_a_search_is_still_in_its_answer_and_not_in_the_next(
    reader: tessera.Gallery, writer: tessera.Gallery, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = reader.describe(photo_folder / "photo0.png")
    first, second, third = reader.search(query, 3)
    run_once(monkeypatch, SearchIndex, "search", lambda: writer.remove(second.id), when="after")
    assert [hit.id for hit in reader.search(query, 2)] == [first.id, second.id]  # as it was when the search began
    assert [hit.id for hit in reader.search(query, 2)] == [first.id, third.id]


def test_the_last_image_removed_during_a_search_is_gone_after_it(
    reader: tessera.Gallery, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = reader.describe(photo_folder / "photo0.png")
    run_once(monkeypatch, SearchIndex, "search", lambda: reader.remove(photo_folder), when="before")
    assert len(reader.search(query)) == 8  # as it was when the search began
    with pytest.raises(GalleryError, match="is empty"):
        reader.search(query)


def test_a_changed_image_is_never_out_of_the_index(
    reader: tessera.Gallery,
    writer: tessera.Gallery,
    photo_folder: Path,
    painter: Painter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = reader.find(photo_folder / "photo2.png")
    writer.index(painter(photo_folder / "photo2.png", 100))
    new = writer.find(photo_folder / "photo2.png")
    assert old is not None
    assert new is not None
    steps: list[set[int]] = []
    for method in ("add", "remove"):
        real = getattr(SearchIndex, method)

        def noted(index: SearchIndex, *given: object, real: Callable[..., object] = real) -> object:
            result = real(index, *given)
            steps.append({old.id, new.id} & set(index.ids().tolist()))
            return result

        monkeypatch.setattr(SearchIndex, method, noted)
    reader.refresh()
    assert all(steps)
    assert steps[-1] == {new.id}


def test_what_was_added_is_found_though_another_thread_still_catches_up(
    reader: tessera.Gallery,
    writer: tessera.Gallery,
    photo_folder: Path,
    painter: Painter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catching_up, go_on = threading.Event(), threading.Event()

    def pause() -> None:
        catching_up.set()
        assert go_on.wait(WAIT_S)

    writer.index(painter(photo_folder / "first.png", 100))
    run_once(monkeypatch, faiss_engine, "_replay", pause, when="before")
    slow = threading.Thread(target=reader.refresh)
    slow.start()
    assert catching_up.wait(WAIT_S)
    writer.index(painter(photo_folder / "second.png", 101))
    query = reader.describe(photo_folder / "second.png")
    answers: list[list[str]] = []
    searching = threading.Thread(target=lambda: answers.append(names(reader.search(query, 1))))
    searching.start()
    go_on.set()
    searching.join(WAIT_S)
    slow.join(WAIT_S)
    assert answers == [["second.png"]]


def test_searches_go_on_while_the_index_is_built_anew(
    reader: tessera.Gallery, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = reader.describe(photo_folder / "photo0.png")
    answers: list[int] = []

    def search_elsewhere() -> None:
        thread = threading.Thread(target=lambda: answers.append(len(reader.search(query, 100))))
        thread.start()
        thread.join(WAIT_S)

    run_once(monkeypatch, faiss_engine, "build_index", search_elsewhere, when="before")
    reader.index(rebuild=True)
    assert answers == [8]


def test_searches_go_on_while_the_codec_changes(
    reader: tessera.Gallery, small_bundle: Path, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = reader.describe(photo_folder / "photo0.png")
    with tessera.Gallery(reader.path, codec="flat") as other:
        other.search(query)
        run_once(monkeypatch, SearchIndex, "search", lambda: other.index(photo_folder), when="before")
        assert len(other.search(query, 100)) == 8
        assert other.stats()["codec"] == "flat"


def test_a_reader_opens_the_index_that_is_replaced_at_the_same_moment(
    reader: tessera.Gallery,
    writer: tessera.Gallery,
    photo_folder: Path,
    painter: Painter,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def replace() -> None:
        writer.index(painter(photo_folder / "new.png", 100))
        writer.index(rebuild=True)

    with tessera.Gallery(reader.path) as late:
        query = late.describe(photo_folder / "photo0.png")
        run_once(monkeypatch, faiss_engine, "load_index", replace, when="before")
        monkeypatch.setattr(faiss_engine, "_build_in_memory", lambda *_: pytest.fail("it was made, not opened"))
        assert len(late.search(query, 100)) == 9


def test_threads_find_every_image_once_while_two_galleries_write(
    reader: tessera.Gallery, writer: tessera.Gallery, photo_folder: Path, painter: Painter
) -> None:
    query = reader.describe(photo_folder / "photo0.png")
    lasting = {f"photo{i}.png" for i in range(8)}
    stopping = threading.Event()
    failures: list[object] = []

    def search(where: str | None, expected: set[str]) -> None:
        while not stopping.is_set():
            try:
                counts = Counter(names(reader.search(query, 1000, where=where)))
            except BaseException as error:
                failures.append(error)
                return
            if any(counts[name] != 1 for name in expected):
                failures.append(counts)

    even = {f"photo{i}.png" for i in (0, 2, 4, 6)}
    asked = [(None, lasting), (None, lasting), ("label=even", even)]
    threads = [threading.Thread(target=search, args=given) for given in asked]
    for thread in threads:
        thread.start()
    try:
        for i in range(12):
            gallery = (reader, writer)[i % 2]
            gallery.index(painter(photo_folder / f"photo{2 * (i % 4)}.png", 100 + i))
            new = gallery.find(gallery_path := painter(photo_folder / f"new{i}.png", 200 + i))
            assert new is None
            gallery.index(gallery_path)
            new = gallery.find(gallery_path)
            assert new is not None
            assert new.id in [hit.id for hit in reader.search(new.id, 1000)]  # at once
    finally:
        stopping.set()
        for thread in threads:
            thread.join(WAIT_S)
    assert failures == []
