"""Several pictures to take away: a table of them, or a zip, of which only one picture at a time is in memory."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from tessera.gallery.cells import guard_cell
from tessera.serve.problems import ProblemError

if TYPE_CHECKING:
    from tessera.serve.service import GalleryService


_MISSING = "missing.txt"
_UNSAFE = frozenset('/\\:*?"<>|')
_DEVICES = {"CON", "PRN", "AUX", "NUL", *(f"{port}{number}" for port in ("COM", "LPT") for number in range(1, 10))}


class _Sink:
    """What a zip is written to: bytes that wait to be sent. It cannot seek, so sizes follow the files."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, content: bytes, /) -> int:
        self._pieces.append(bytes(content))
        return len(content)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def take(self) -> bytes:
        content = b"".join(self._pieces)
        self._pieces.clear()
        return content


def pack(read: Callable[[int], tuple[bytes, str]], ids: Sequence[int]) -> Iterator[bytes]:
    """The zip's bytes, piece by piece. read: a picture's bytes and name by its id, or a problem that says why not."""
    sink = _Sink()
    taken = {_MISSING}
    missing: list[str] = []
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_STORED) as packed:
        for image_id in ids:
            try:
                content, name = read(image_id)
            except ProblemError as problem:
                missing.append(f"{image_id}: {problem.detail}\n")
                continue
            packed.writestr(_free_name(name, taken), content)
            yield sink.take()
        if missing:
            packed.writestr(_MISSING, "".join(missing))
    yield sink.take()


def write_table(service: GalleryService, ids: Sequence[int]) -> str:
    """A CSV with a row a picture: its path if that is for the reader to know, else id and name; then its metadata."""
    images = [service.image(image_id) for image_id in ids]
    keys = sorted({key for image in images for key in image["metadata"]})
    named: dict[str, list[Any]]
    if service.settings.is_own_machine:
        named = {"path": [service.path(image_id) for image_id in ids]}
    else:
        named = {"id": list(ids), "name": [image["name"] for image in images]}
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(map(guard_cell, [*named, *keys]))
    for image, *first in zip(images, *named.values(), strict=True):
        table.writerow(map(guard_cell, [*first, *(image["metadata"].get(key, "") for key in keys)]))
    return text.getvalue()


def safe_name(name: str) -> str:
    """A file's name without what another system takes for a folder, a device or a command to its terminal."""
    kept = "".join(c if c.isprintable() and c not in _UNSAFE else "_" for c in name).strip(". ")
    return f"_{kept}" if PurePath(kept).stem.upper() in _DEVICES or not kept else kept


def _free_name(name: str, taken: set[str]) -> str:
    name = safe_name(name)
    stem, suffix = PurePath(name).stem, PurePath(name).suffix
    number, free = 1, name
    while free.casefold() in taken:
        number += 1
        free = f"{stem}-{number}{suffix}"
    taken.add(free.casefold())
    return free
