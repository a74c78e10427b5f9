"""A gallery's folder on the disk: what lies in it, how it is made, and how one that holds nothing goes."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from tessera.errors import GalleryError, TesseraError
from tessera.gallery.catalog.catalog import CATALOG_NAME, Catalog
from tessera.gallery.catalog.lock import LOCK_NAME, writer_lock
from tessera.gallery.catalog.paths import printable
from tessera.gallery.engines.postings_index import FOLDER as POSTINGS_FOLDER
from tessera.storage import make_folder, storage_error

LOCAL_NAME = "local.sqlite"  # local features, if they were asked for
_OWN_NAMES = (CATALOG_NAME, LOCK_NAME, "index", "milvus.json", "remote.json", "frames", LOCAL_NAME, POSTINGS_FOLDER)


def make_gallery_folder(path: Path) -> None:
    """Make the folder, unless it is there already; one with other things in it is an error."""
    try:
        make_folder(path)
        strange = [entry.name for entry in path.iterdir() if not entry.name.startswith(_OWN_NAMES)]
    except OSError as error:
        raise storage_error(error, path) from error
    if strange:
        raise GalleryError(
            f"{printable(path)} is a folder with other things in it ({printable(strange[0])}) and no gallery. "
            "Choose a new or empty folder with -g."
        )


def size_on_disk(folder: Path) -> int:
    """Every file below it; one that goes meanwhile (an index that was written anew) counts nothing."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size if path.is_file() else 0
    return total


def discard_empty(path: Path) -> None:
    """Take away a gallery that holds nothing, and its folder if that is empty then: what a failed run has made."""
    catalog = Catalog(path / CATALOG_NAME)
    with contextlib.suppress(TesseraError, OSError), writer_lock(path):
        try:
            with catalog.read() as snapshot:
                holds_something = snapshot.last_id() > 0 or bool(snapshot.ignored())
        finally:
            catalog.close()
        if not holds_something:
            for entry in path.iterdir():
                if entry.name.startswith(_OWN_NAMES):
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            path.rmdir()
