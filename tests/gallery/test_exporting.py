"""Descriptors for other programs: the same numbers in each format, and nothing described again."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import tessera
from tessera.errors import GalleryError, MissingExtraError, UsageError


@pytest.fixture
def indexed(gallery: tessera.Gallery, photo_folder: Path) -> tessera.Gallery:
    (photo_folder / "labels.csv").write_text("path,label\nphoto0.png,tower\n")
    gallery.index(photo_folder, photo_folder / "labels.csv")
    return gallery


def test_every_format_holds_the_same(indexed: tessera.Gallery, photo_folder: Path, tmp_path: Path) -> None:
    import faiss

    parquet = pytest.importorskip("pyarrow.parquet")
    assert [indexed.export_descriptors(tmp_path / f"out.{kind}") for kind in ("npz", "parquet", "faiss")] == [8, 8, 8]
    records = indexed.images()
    arrays = np.load(tmp_path / "out.npz")
    assert arrays["paths"].tolist() == [record.path for record in records]
    assert arrays["ids"].tolist() == [record.id for record in records]
    assert [json.loads(text) for text in arrays["metadata"]] == [record.metadata for record in records]
    np.testing.assert_allclose(np.linalg.norm(arrays["descriptors"], axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(arrays["descriptors"], indexed.descriptors(arrays["ids"]), atol=1e-3)
    table = parquet.read_table(tmp_path / "out.parquet").to_pydict()
    assert table["path"] == arrays["paths"].tolist()
    np.testing.assert_array_equal(np.array(table["descriptor"], np.float32), arrays["descriptors"])
    index = faiss.read_index(str(tmp_path / "out.faiss"))
    scores, ids = index.search(arrays["descriptors"], 1)
    assert ids[:, 0].tolist() == arrays["ids"].tolist()
    np.testing.assert_allclose(scores[:, 0], 1, atol=1e-5)
    with (tmp_path / "out.csv").open() as file:
        assert [(int(row["id"]), row["path"]) for row in csv.DictReader(file)] == [(r.id, r.path) for r in records]


def test_a_part_of_the_gallery(indexed: tessera.Gallery, tmp_path: Path) -> None:
    assert indexed.export_descriptors(tmp_path / "out.npz", where="label=tower") == 1
    with pytest.raises(GalleryError, match="nothing to export"):
        indexed.export_descriptors(tmp_path / "none.npz", where="label=bridge")
    assert not (tmp_path / "none.npz").exists()


def test_endings_that_are_not_known(indexed: tessera.Gallery, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.npz, \.parquet, \.faiss"):
        indexed.export_descriptors(tmp_path / "out.csv")


def test_parquet_without_its_package(indexed: tessera.Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="pyarrow"):
        indexed.export_descriptors(tmp_path / "out.parquet")
    assert list(tmp_path.glob("*out*")) == []
