"""Fixtures shared by every room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def golden_dir() -> Path:
    """Numbers of the field's own codes, copied in."""
    return Path(__file__).parent / "golden"


@pytest.fixture(scope="session")
def photos_dir() -> Path:
    """The landmark photos (gldv2-50); they may not be redistributed, so most machines do not have them."""
    given = os.environ.get("TESSERA_PHOTOS")
    folder = Path(given) if given else ROOT.parent / "shared" / "data" / "gldv2-50"
    if not (folder / "train.csv").is_file():
        pytest.skip("the landmark photos are not here: set TESSERA_PHOTOS to a gldv2-50 folder")
    return folder
