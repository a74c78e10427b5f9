"""A disk that loses its power: recorded changes replayed up to a moment, and what was not synced lost, torn or kept.

What was synced is there. Of what was not, each sector of 512 bytes may have arrived or not, in whatever order; changes
of names arrive in the order in which they were made, as on a journalled file system, up to any of them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_HEAD = struct.Struct("<cIqI")
_SECTOR = 512


@dataclass(frozen=True)
class Change:
    """kind: W write, T truncation, S sync, C creation, R renaming, L link, U unlinking, F and D folders, M a mark."""

    kind: str
    name: str
    number: int
    content: bytes


def read_changes(recording: bytes) -> Iterator[Change]:
    at = 0
    while at + _HEAD.size <= len(recording):
        kind, name_bytes, number, content_bytes = _HEAD.unpack_from(recording, at)
        at += _HEAD.size
        name = recording[at : at + name_bytes].decode("utf-8", "surrogateescape")
        content = recording[at + name_bytes : at + name_bytes + content_bytes]
        at += name_bytes + content_bytes
        yield Change(kind.decode(), name.removesuffix(" (deleted)"), number, content)


@dataclass
class _File:
    synced: bytearray = field(default_factory=bytearray)
    content: bytearray = field(default_factory=bytearray)


class Disk:
    """The files below a folder: as a process sees them, and as they would be found after a power cut."""

    def __init__(self, root: Path) -> None:
        """Starts with what is there, all of it synced."""
        self.root = root
        self._names: dict[str, _File] = {}
        for path in root.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                self._names[str(path)] = _File(bytearray(content), bytearray(content))
        self._folders = {str(root), *(str(path) for path in root.rglob("*") if path.is_dir())}
        self._synced_names, self._synced_folders = dict(self._names), set(self._folders)
        self._pending: list[Change] = []  # changes of names

    def apply(self, change: Change) -> None:
        if change.kind in "CRLUFD":
            self._rename(self._names, self._folders, change)
            self._pending.append(change)
        elif change.kind == "S":
            self._sync(change.name)
        elif change.kind in "WT" and change.name in self._names:
            content = self._names[change.name].content
            if change.kind == "T":
                content[:] = content[: change.number].ljust(change.number, b"\0")
            else:
                end = change.number + len(change.content)
                content.extend(bytes(max(0, end - len(content))))
                content[change.number : end] = change.content

    def cut_power(self, target: Path, numbers: random.Random) -> None:
        """Write what is found afterwards to another folder."""
        names, folders = dict(self._synced_names), set(self._synced_folders)
        for change in self._pending[: numbers.randint(0, len(self._pending))]:
            self._rename(names, folders, change)
        for folder in sorted(folders):
            (target / Path(folder).relative_to(self.root)).mkdir(parents=True, exist_ok=True)
        for name, file in names.items():
            path = target / Path(name).relative_to(self.root)
            if name.rpartition("/")[0] in folders:
                path.write_bytes(_torn(file, numbers))

    def _sync(self, name: str) -> None:
        if name in self._names:
            file = self._names[name]
            file.synced = bytearray(file.content)
            return
        # A folder: the names in it are safe. Those of others stay as uncertain as they were.
        mine = [change for change in self._pending if _parent(change) == name]
        for change in mine:
            self._rename(self._synced_names, self._synced_folders, change, self._names)
        self._pending = [change for change in self._pending if _parent(change) != name]

    def _rename(
        self, names: dict[str, _File], folders: set[str], change: Change, known: dict[str, _File] | None = None
    ) -> None:
        other = change.content.decode("utf-8", "surrogateescape")
        if change.kind == "C":
            file = _File() if known is None else known.get(change.name, _File())
            names.setdefault(change.name, self._names.get(change.name, file))
        elif change.kind in "RL":
            moved = names.get(change.name) or self._names.get(other)
            if moved is not None:
                names[other] = moved
            if change.kind == "R":
                names.pop(change.name, None)
        elif change.kind == "U":
            names.pop(change.name, None)
        elif change.kind == "F":
            folders.add(change.name)
        elif change.kind == "D":
            folders.discard(change.name)


def _parent(change: Change) -> str:
    return change.name.rpartition("/")[0]


def _torn(file: _File, numbers: random.Random) -> bytes:
    """A file's synced content with some of the sectors that were written since."""
    if file.content == file.synced:
        return bytes(file.synced)
    share = numbers.choice([0.0, 0.3, 0.7, 1.0])
    length = len(file.content) if numbers.random() < 0.5 else len(file.synced)
    found = bytearray(file.synced[:length].ljust(length, b"\0"))
    for at in range(0, length, _SECTOR):
        if numbers.random() < share:
            found[at : at + _SECTOR] = file.content[at : at + _SECTOR].ljust(len(found[at : at + _SECTOR]), b"\0")
    return bytes(found)
