"""Paths as the catalogue keeps them and as people see them.

A path is bytes to the system; names that are no UTF-8 exist. Python carries them as str with surrogate escapes, the
catalogue stores the bytes, and a terminal gets them spelt out, control characters too (a file name must not be able
to move the cursor).
"""

from __future__ import annotations

import os

from tessera.errors import printable

__all__ = ["from_blob", "printable", "to_blob"]


def to_blob(path: str | os.PathLike[str]) -> bytes:
    """The absolute path as bytes. Symbolic links stay: a user finds a file by the name they gave."""
    return os.fsencode(os.path.abspath(path))  # noqa: PTH100 - pathlib has no abspath that keeps links and drops ".."


def from_blob(blob: bytes) -> str:
    return os.fsdecode(blob)
