"""Paths as the catalogue keeps them and as people see them.

A path is bytes to the system; names that are no UTF-8 exist. Python carries them as str with surrogate escapes, the
catalogue stores the bytes, and a terminal gets them spelt out, control characters too (a file name must not be able
to move the cursor).
"""

from __future__ import annotations

import os


def to_blob(path: str | os.PathLike[str]) -> bytes:
    """The absolute path as bytes. Symbolic links stay: a user finds a file by the name they gave."""
    return os.fsencode(os.path.abspath(path))  # noqa: PTH100 - pathlib has no abspath that keeps links and drops ".."


def from_blob(blob: bytes) -> str:
    return os.fsdecode(blob)


def printable(text: str | os.PathLike[str]) -> str:
    """The text with everything that a terminal could not show spelt as an escape."""
    readable = os.fspath(text).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in readable
    )
