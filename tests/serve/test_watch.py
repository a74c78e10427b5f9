"""A service that follows a folder: what comes into it is searched for a moment later."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

import tessera
from tessera.serve.settings import Settings


def test_a_watched_folder_is_served(
    tmp_path: Path, small_bundle: Path, photo_folder: Path, painter: Callable[..., Path], running: Any
) -> None:
    with tessera.Gallery(tmp_path / "gallery", small_bundle):
        pass
    settings = Settings(gallery_path=tmp_path / "gallery", watch=(photo_folder,), threads=1)

    def count(address: str) -> int:
        return int(httpx.get(f"{address}/api/images", timeout=60).json()["total"])

    def until(address: str, images: int) -> None:
        give_up = time.monotonic() + 90
        while (now := count(address)) != images:
            assert time.monotonic() < give_up, now
            time.sleep(0.1)

    with running(settings) as address:
        until(address, 8)
        painter(photo_folder / "new.png", 50)
        until(address, 9)
        (photo_folder / "new.png").unlink()
        until(address, 8)
