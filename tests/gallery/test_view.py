"""A search reads one moment of the gallery, in one transaction, and decodes its picture once a size."""

from __future__ import annotations

import io
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import tessera
from tessera.data.images import Limits
from tessera.errors import ImageLimitError, UsageError
from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.catalog.snapshot import Snapshot
from tessera.gallery.search import query as query_module
from tessera.gallery.search.query import QueryPicture


@pytest.fixture
def transactions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A name for each transaction that this thread opens; a service of other tests may follow its gallery meanwhile."""
    opened: list[str] = []
    read, mine = Catalog.read, threading.get_ident()

    @contextmanager
    def counted(catalog: Catalog) -> Iterator[Snapshot]:
        if threading.get_ident() == mine:
            opened.append("read")
        with read(catalog) as snapshot:
            yield snapshot

    monkeypatch.setattr(Catalog, "read", counted)
    return opened


@pytest.mark.parametrize("reload", ["inline", "background"])
@pytest.mark.parametrize(
    "options",
    [{}, {"where": "none=1"}, {"expand": "aqe"}, {"expand": "diffusion"}, {"augment": True}, {"rerank": "sp"}],
    ids=str,
)
def test_a_warm_search_opens_one_transaction(
    filled: Path, photo_folder: Path, transactions: list[str], options: dict[str, Any], reload: Any
) -> None:
    with tessera.Gallery(filled, reload=reload) as gallery:
        for query in (photo_folder / "photo0.png", 1):
            gallery.search(query, **options)
            transactions.clear()
            gallery.search(query, **options)
            assert transactions == ["read"]
        transactions.clear()
        gallery.search_many([1, 2, 3], 5)
        assert transactions == ["read"]


@pytest.mark.parametrize("timeout_s", [None, math.inf, 1e300, 3600.0, 3600])
def test_any_number_of_seconds_is_a_timeout(filled: Path, photo_folder: Path, timeout_s: float | None) -> None:
    with tessera.Gallery(filled) as gallery:
        found = gallery.search(photo_folder / "photo0.png", rerank="sp", rerank_timeout_s=timeout_s)
    assert len(found) == 8
    assert not any("time was enough" in note for note in found.notes)


def test_a_timeout_may_be_over_and_must_be_a_number(filled: Path, photo_folder: Path) -> None:
    with tessera.Gallery(filled) as gallery:
        gallery.search(photo_folder / "photo0.png", rerank="sp")
        late = gallery.search(photo_folder / "photo0.png", rerank="sp", rerank_timeout_s=-1)
        assert {hit.inliers for hit in late} == {None}
        with pytest.raises(UsageError, match="not NaN"):
            gallery.search(photo_folder / "photo0.png", rerank="sp", rerank_timeout_s=math.nan)


def test_a_search_obeys_the_limits_that_it_is_given(filled: Path, photo_folder: Path) -> None:
    with tessera.Gallery(filled) as gallery:
        for query in (photo_folder / "photo0.png", (photo_folder / "photo0.png").read_bytes()):
            with pytest.raises(ImageLimitError, match="more than the limit of 100"):
                gallery.search(query, limits=Limits(max_pixels=100))
            with pytest.raises(ImageLimitError, match="bytes, more than the limit"):
                gallery.search(query, limits=Limits(max_bytes=100))


def jpeg() -> bytes:
    """A picture that is large enough for the decoder to scale it."""
    noise = np.random.default_rng(0).integers(0, 255, (30, 40, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((1600, 1200)).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize("box", [None, (200, 100, 1400, 900)])
def test_every_source_gives_the_same_pixels_at_every_size(tmp_path: Path, box: Any) -> None:
    """A caller's PIL image once was reduced by the first decoding, so that the second saw another picture."""
    path = tmp_path / "picture.jpg"
    path.write_bytes(jpeg())
    pictures = [QueryPicture(source, box) for source in (path, jpeg(), str(path))]
    for size in (64, 1024):
        first, *others = [picture.pixels(size) for picture in pictures]
        assert max(first.shape) == size
        assert all(np.array_equal(first, other) for other in others)
    with Image.open(path) as opened:
        lent = QueryPicture(opened, box)
        assert [max(lent.pixels(size).shape) for size in (64, 1024)] == [64, 1024]
        whole = QueryPicture(np.asarray(Image.open(path).convert("RGB")), box)
        assert np.array_equal(lent.pixels(1024), whole.pixels(1024))
        assert opened.size == (1600, 1200)


def test_a_picture_is_decoded_once_a_size(
    filled: Path, photo_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    decoded: list[int] = []
    load = query_module.load_photo

    def counted(*given: Any, size: int, **options: Any) -> Any:
        decoded.append(size)
        return load(*given, size=size, **options)

    monkeypatch.setattr(query_module, "load_photo", counted)
    with tessera.Gallery(filled) as gallery:
        gallery.search(photo_folder / "photo0.png", rerank="sp")
        assert len(decoded) == len(set(decoded)) <= 2
        decoded.clear()
        gallery.search(np.ones(16, np.float32))
        gallery.search(1, by="global")
        assert decoded == []
