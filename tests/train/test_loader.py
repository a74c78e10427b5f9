"""The loader: the same pixels for any number and kind of workers; unreadable photos are replaced and listed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tessera.data.sets.folder import FolderConfig, load_folder
from tessera.data.transforms import TransformConfig
from tessera.errors import DataError
from tessera.train.batches.loader import PhotoLoader, PhotoReader, Photos
from tessera.train.dryrun import draw_images


def read_all(folder: Path, **options: object) -> list[Photos]:
    workers, kind = options.pop("workers", 1), options.pop("kind", "thread")
    images = load_folder(FolderConfig(str(folder)))
    reader = PhotoReader(images.paths, images.labels, TransformConfig(crop=24), seed=3, **options)  # type: ignore[arg-type]
    loader = PhotoLoader(reader, workers, kind)  # type: ignore[arg-type]
    try:
        return list(loader.batches([np.arange(5), np.array([7, 7, 2])], epoch=1))
    finally:
        loader.close()


@pytest.mark.parametrize("options", [{"workers": 3}, {"cache_gb": 1.0}, {"workers": 2, "kind": "process"}])
def test_pixels_do_not_depend_on_the_workers(drawn_dir: Path, options: dict[str, object]) -> None:
    alone, many = read_all(drawn_dir), read_all(drawn_dir, **options)
    for one, other in zip(alone, many, strict=True):
        assert np.array_equal(one.indices, other.indices)
        assert np.array_equal(np.stack(one.pixels), np.stack(other.pixels))


def test_a_cache_too_small_for_all_is_no_error(drawn_dir: Path) -> None:
    small = read_all(drawn_dir, cache_gb=1e-5)
    assert np.array_equal(np.stack(small[0].pixels), np.stack(read_all(drawn_dir)[0].pixels))


@pytest.fixture
def damaged_dir(tmp_path: Path) -> Path:
    """120 photos, the second of class0 no picture at all."""
    draw_images(tmp_path / "many", classes=4, per_class=30, side=32)
    (tmp_path / "many" / "class0" / "1.jpg").write_text("not a picture")
    return tmp_path / "many"


def test_an_unreadable_photo_is_replaced_by_the_next_of_its_class_and_listed(damaged_dir: Path, tmp_path: Path) -> None:
    images = load_folder(FolderConfig(str(damaged_dir)))
    broken = images.files.index("class0/1.jpg")
    loader = PhotoLoader(PhotoReader(images.paths, images.labels, TransformConfig(crop=16), seed=0))
    (photos,) = loader.batches([np.array([0, broken])], epoch=0)
    loader.close()
    assert photos.indices[0] == 0 and photos.indices[1] != broken
    assert images.labels[photos.indices[1]] == images.labels[broken]
    loader.unreadable.write(tmp_path / "unreadable.txt")
    assert "class0/1.jpg" in (tmp_path / "unreadable.txt").read_text()


def test_more_than_one_in_a_hundred_is_an_error_that_names_some(damaged_dir: Path) -> None:
    (damaged_dir / "class0" / "2.jpg").write_bytes(b"")
    images = load_folder(FolderConfig(str(damaged_dir)))
    loader = PhotoLoader(PhotoReader(images.paths, images.labels, TransformConfig(crop=16), seed=0))
    with pytest.raises(DataError, match=r"2 of 120 images cannot be read, more than 1%") as caught:
        list(loader.batches([np.arange(len(images))], epoch=0))
    loader.close()
    assert "class0/" in str(caught.value)


def test_when_nothing_can_be_read_it_ends(drawn_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(drawn_dir / "class0", tmp_path / "bad" / "class0")
    for path in (tmp_path / "bad" / "class0").iterdir():
        path.write_text("no")
    images = load_folder(FolderConfig(str(tmp_path / "bad")))
    loader = PhotoLoader(PhotoReader(images.paths, images.labels, TransformConfig(crop=16), seed=0))
    with pytest.raises(DataError, match="not one of 6 training images can be read"):
        list(loader.batches([np.arange(2)], epoch=0))
    loader.close()
