"""A gallery of the smallest model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tessera


@pytest.fixture
def gallery(tmp_path: Path, small_bundle: Path) -> Iterator[tessera.Gallery]:
    with tessera.Gallery(tmp_path / "gallery", small_bundle) as made:
        yield made


@pytest.fixture
def filled(tmp_path: Path, small_bundle: Path, photo_folder: Path) -> Path:
    """The folder of a gallery with eight pictures, closed."""
    folder = tmp_path / "gallery"
    with tessera.Gallery(folder, small_bundle) as gallery:
        gallery.index(photo_folder)
    return folder
