"""Where pictures that were added over HTTP are kept: below the gallery, each in a folder named by its content."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from pathlib import Path, PurePath

FOLDER = "uploads"
log = logging.getLogger("tessera.serve")


def place_for(content: bytes, name: str, suffix: str, gallery_path: Path) -> Path:
    """The file for this content: the one it has already, whatever its name was then, or a new one.

    suffix: of the format that the content has. The name's own says what somebody wants it to be taken for.
    """
    folder = gallery_path / FOLDER / hashlib.sha256(content).hexdigest()[:16]
    return next(folder.glob("[!.]*"), folder / f"{PurePath(_safe_name(name)).stem}{suffix}")


def discard(path: Path) -> None:
    """Take an added file away, and the folder that was made for it; `check --deep` lists one that could not be."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("%s is in no gallery, and stays: %s", path, error)
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def _safe_name(name: str) -> str:
    """The last part of an uploaded file's name, with nothing in it that a path could be made of."""
    kept = "".join(letter for letter in PurePath(name.replace("\\", "/")).name if letter.isalnum() or letter in "._- ")
    short = kept.encode()[-120:].decode(errors="ignore")  # a file's name may have 255 bytes, letters four each
    return short.strip(". ") or "picture"
