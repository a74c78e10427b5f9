"""Moving copies out of the way, and back. Nothing is ever deleted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.errors import StorageError, UsageError, printable
from tessera.gallery.organise.duplicates import CopyGroup
from tessera.storage import parse_json, storage_error, write_atomically

if TYPE_CHECKING:
    from tessera.gallery.gallery import Gallery

JOURNAL = "tessera-moved.json"


@dataclass(frozen=True)
class Moved:
    """A file that was moved, where it is now, and what the gallery knew of it."""

    origin: str
    target: str
    metadata: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"from": self.origin, "to": self.target, "metadata": self.metadata}


def move_copies(gallery: Gallery, groups: Sequence[CopyGroup], folder: Path) -> list[Moved]:
    """Move the copies of each group into a folder, out of the gallery, and write down where they were.

    Each move is in the journal before it is made, so one that was interrupted can be undone as well. The folder is
    ignored from now on: the next `index` of what lies above it does not bring the copies back.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, folder) from error
    journal = _read_journal(folder)
    moved: list[Moved] = []
    for group in groups:
        for copy in group.copies:
            origin = Path(copy.record.path)
            if not origin.is_file():
                continue
            entry = Moved(str(origin), str(_free_name(folder, origin)), copy.record.metadata)
            journal.append(entry)
            _write_journal(folder, journal)
            try:
                shutil.move(origin, entry.target)
            except OSError as error:
                raise StorageError(
                    f"{printable(origin)} could not be moved: {error.strerror or error}. "
                    f"{len(moved)} files were moved before it; --undo {printable(folder)} brings them back."
                ) from error
            moved.append(entry)
    if moved:
        gallery.remove([entry.origin for entry in moved], ignore=False)
    gallery.ignore(folder)
    return moved


def undo_moves(gallery: Gallery, folder: Path) -> list[Moved]:
    """Bring back what `move_copies` moved into a folder; where a name is taken meanwhile, the file stays."""
    journal = _read_journal(folder)
    if not journal:
        raise UsageError(f"{printable(folder)} holds no {JOURNAL}: no copies were moved there.")
    back, left = [], []
    for entry in reversed(journal):
        origin, target = Path(entry.origin), Path(entry.target)
        if not target.is_file():
            continue  # it was moved on by hand, or never came
        if origin.exists():
            left.append(entry)
            continue
        origin.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(target, origin)
        back.append(entry)
    _write_journal(folder, left[::-1])
    gallery.unignore(folder)
    for entry in back:
        gallery.index(entry.origin, metadata=entry.metadata or None)
    if left:
        gallery.ignore(folder)
    return back


def _free_name(folder: Path, origin: Path) -> Path:
    number, name = 1, origin.name
    while os.path.lexists(folder / name):
        number += 1
        name = f"{origin.stem}-{number}{origin.suffix}"
    return (folder / name).absolute()


def _read_journal(folder: Path) -> list[Moved]:
    path = folder / JOURNAL
    if not path.is_file():
        return []
    try:
        entries = parse_json(path.read_text("utf-8"))
        return [Moved(entry["from"], entry["to"], entry["metadata"]) for entry in entries]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{printable(path)} is no list of moved copies. Mend it, or choose another folder.") from error


def _write_journal(folder: Path, journal: Sequence[Moved]) -> None:
    content = json.dumps([entry.to_json() for entry in journal], indent=1)
    write_atomically(folder / JOURNAL, content.encode("utf-8"))
