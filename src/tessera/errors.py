"""Every error that Tessera raises on purpose.

TesseraError
├── UsageError              an option or an argument that cannot be meant (the command line exits with 2)
│   └── BoxError            a box inside out, or wholly outside its image
├── ImageError              a picture that cannot be read
│   └── ImageLimitError     more pixels or bytes than the limits admit
├── ConfigError             a configuration, a recipe or a registry name that does not fit
├── MissingExtraError       a feature whose optional dependency is not installed
├── ModelError              a bundle or a network that cannot be used
│   ├── BundleDamagedError  a bundle whose files are not those of its card
│   ├── CheckpointError     a checkpoint that is unknown, damaged or does not match
│   └── DownloadError       a published model that did not come, or not as it should be
├── GalleryError            a gallery that cannot be used as asked
│   ├── GalleryMismatchError  made with another model or other settings
│   ├── GalleryLockedError    another process is writing to it
│   ├── GalleryDamagedError   the catalogue itself cannot be read
│   └── EngineUnavailableError  the server that searches does not answer; the catalogue is whole
├── StorageError            a disk that is full, or a file that cannot be written
├── IndexingError           descriptors that an index cannot hold, or an index file that cannot be used
├── DataError               a data set whose files or labels are not as they should be
├── TrainingError           a run that cannot go on
└── EvaluationError         ranks or a ground truth that cannot be scored

A message says what was wrong, what was found and what to do.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Sequence

__all__ = [
    "BoxError",
    "BundleDamagedError",
    "CheckpointError",
    "ConfigError",
    "DataError",
    "DownloadError",
    "EngineUnavailableError",
    "EvaluationError",
    "GalleryDamagedError",
    "GalleryError",
    "GalleryLockedError",
    "GalleryMismatchError",
    "ImageError",
    "ImageLimitError",
    "IndexingError",
    "MissingExtraError",
    "ModelError",
    "StorageError",
    "TesseraError",
    "TrainingError",
    "UsageError",
    "as_utf8",
    "list_some",
    "printable",
    "unknown_name",
]


class TesseraError(Exception):
    """The root: catch it to catch everything that Tessera raises on purpose."""

    exit_code = 1


class UsageError(TesseraError):
    exit_code = 2


class BoxError(UsageError):
    pass


class ImageError(TesseraError):
    pass


class ImageLimitError(ImageError):
    pass


class ConfigError(TesseraError):
    pass


class MissingExtraError(TesseraError):
    """extra: one of Tessera's; requirement: what to give pip instead, for a package that no extra brings."""

    def __init__(self, feature: str, extra: str, requirement: str | None = None) -> None:
        from tessera.installation import add_command, install_command  # errors are loaded first, this only when needed

        what = f"the extra '{extra}'" if requirement is None else f"the package '{extra}'"
        command = install_command(extra) if requirement is None else add_command(requirement)
        super().__init__(f"{feature} needs {what}, which is not installed. Install it with: {command}")


class ModelError(TesseraError):
    pass


class BundleDamagedError(ModelError):
    pass


class CheckpointError(ModelError):
    pass


class DownloadError(ModelError):
    pass


class GalleryError(TesseraError):
    pass


class GalleryMismatchError(GalleryError):
    pass


class GalleryLockedError(GalleryError):
    pass


class GalleryDamagedError(GalleryError):
    pass


class EngineUnavailableError(GalleryError):
    pass


class StorageError(TesseraError):
    pass


class IndexingError(TesseraError):
    pass


class DataError(TesseraError):
    pass


class TrainingError(TesseraError):
    pass


class EvaluationError(TesseraError):
    pass


def printable(text: str | os.PathLike[str]) -> str:
    """A path or a text for a message: what a terminal could not show, or would obey, is spelt as an escape."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in as_utf8(os.fspath(text))
    )


def as_utf8(text: str) -> str:
    """A text that any file or table takes: bytes of a name that were no UTF-8 are spelt as escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def list_some(names: Sequence[str], separator: str = ", ", most: int = 12) -> str:
    """The first of some names, and how many more there are."""
    rest = len(names) - most
    return separator.join([*names[:most], *([f"and {rest} more"] if rest > 0 else [])]) or "none"


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """Say that a name is not known, which one may have been meant, and which there are."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return f"{kind} '{name}' is not known.{hint} Known: {', '.join(names) or 'none'}."
