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
