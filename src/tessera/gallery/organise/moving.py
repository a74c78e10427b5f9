"""Moving copies out of the way, and back. Nothing is ever deleted."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tessera.data.images import DEFAULT_LIMITS
from tessera.errors import ImageError, StorageError, UsageError, printable
from tessera.gallery.catalog.records import Record
from tessera.gallery.ingest.reading import read_indexed
from tessera.gallery.ingest.sources import is_picture_name
from tessera.gallery.organise.duplicates import CopyGroup
from tessera.storage import make_folder, move_file, parse_json, write_atomically

if TYPE_CHECKING:
    from tessera.gallery.gallery import Gallery

log = logging.getLogger(__name__)

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

    The journal comes first, so moves that were interrupted can be undone as well. The folder is ignored from now on:
    the next `index` of what lies above it does not bring the copies back. What is no copy of a kept picture any more
    stays where it is.
    """
    if gallery.holds(folder):
        raise UsageError(f"{printable(folder)} holds pictures of this gallery. Name another folder for the copies.")
    with gallery.writing():  # an index run meanwhile would see files that are neither here nor there
        make_folder(folder)
        journal = _read_journal(folder)
        planned = _plan_moves(groups, folder)
        _write_journal(folder, [*journal, *planned.values()])
        gallery.ignore(folder)
        moved: list[int] = []
        try:
            for image_id, entry in planned.items():
                move_file(Path(entry.origin), Path(entry.target))
                moved.append(image_id)
        finally:
            if moved:
                gallery.remove(moved, ignore=False)
    return list(planned.values())


def _plan_moves(groups: Sequence[CopyGroup], folder: Path) -> dict[int, Moved]:
    """Where each copy goes, by its id. A copy is left if its file has changed, or is the kept one by another name."""
    planned: dict[int, Moved] = {}
    taken: set[Path] = set()
    for group in groups:
        keep = Path(group.keep.path)
        if not _is_as_indexed(group.keep):
            log.warning("%s is gone or has changed: its copies stay where they are", printable(keep))
            continue
        for copy in group.copies:
            origin = Path(copy.record.path)
            if origin.is_symlink() or not _is_as_indexed(copy.record) or origin.samefile(keep):
                log.warning("%s stays: it is a link, or has changed since it was indexed", printable(origin))
                continue
            target = _free_name(folder, origin, taken)
            taken.add(target)
            planned[copy.record.id] = Moved(str(origin), str(target), copy.record.metadata)
    return planned


def _is_as_indexed(record: Record) -> bool:
    try:
        read_indexed(record.path, record.content_hash, max_bytes=DEFAULT_LIMITS.max_bytes)
    except ImageError:
        return False
    return True


def undo_moves(gallery: Gallery, folder: Path) -> list[Moved]:
    """Bring back what `move_copies` moved into a folder; where a name is taken meanwhile, the file stays.

    The journal is written last: one that was interrupted goes on where it stopped.
    """
    journal = _read_journal(folder)
    if not journal:
        raise UsageError(f"{printable(folder)} holds no {JOURNAL}: no copies were moved there.")
    for entry in journal:
        _refuse_foreign(entry, folder)
    back: list[Moved] = []
    left: list[Moved] = []
    with gallery.writing():
        for entry in reversed(journal):
            origin, target = Path(entry.origin), Path(entry.target)
            if target.is_file() and os.path.lexists(origin):
                left.append(entry)
                continue
            if target.is_file():
                make_folder(origin.parent)
                move_file(target, origin)
            elif not origin.is_file():
                continue  # it was moved on by hand
            known = gallery.find(origin)
            gallery.index_file(origin, metadata={**entry.metadata, **(known.metadata if known else {})} or None)
            back.append(entry)
        gallery.rejoin_groups()
        if not left:
            gallery.unignore(folder)
        _write_journal(folder, left[::-1])
    return back


def _refuse_foreign(entry: Moved, folder: Path) -> None:
    """A folder of copies may come from somebody else: its journal moves pictures out of that folder, and no more."""
    is_own = Path(entry.target).parent.resolve() == folder.resolve()
    if not is_own or not all(is_picture_name(os.fsencode(path)) for path in (entry.origin, entry.target)):
        raise UsageError(
            f"{printable(folder / JOURNAL)} names {printable(entry.target)}, which is no copy in that folder. "
            "Nothing was moved."
        )


def _free_name(folder: Path, origin: Path, taken: Container[Path]) -> Path:
    number, target = 1, folder.absolute() / origin.name
    while target in taken or os.path.lexists(target):
        number += 1
        target = target.with_name(f"{origin.stem}-{number}{origin.suffix}")
    return target


def _read_journal(folder: Path) -> list[Moved]:
    path = folder / JOURNAL
    if not path.is_file():
        return []
    try:
        return [_read_entry(entry) for entry in parse_json(path.read_text("utf-8"))]
    except OSError as error:
        raise StorageError(f"{printable(path)} cannot be read: {error.strerror or error}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{printable(path)} is no list of moved copies. Mend it, or choose another folder.") from error


def _read_entry(entry: dict[str, Any]) -> Moved:
    origin, target, metadata = str(entry["from"]), str(entry["to"]), dict(entry["metadata"])
    if "\0" in origin + target:
        raise ValueError("no path")
    return Moved(origin, target, metadata)


def _write_journal(folder: Path, journal: Sequence[Moved]) -> None:
    content = json.dumps([entry.to_json() for entry in journal], indent=1)
    write_atomically(folder / JOURNAL, content.encode("utf-8"))
