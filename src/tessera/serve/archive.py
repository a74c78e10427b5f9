"""A zip of pictures, written while it is sent: nothing larger than one picture is held in memory."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath

from tessera.serve.problems import ProblemError


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
    taken: set[str] = set()
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
            packed.writestr("missing.txt", "".join(missing))
    yield sink.take()


def _free_name(name: str, taken: set[str]) -> str:
    stem, suffix = PurePath(name).stem, PurePath(name).suffix
    number, free = 1, name
    while free.casefold() in taken:
        number += 1
        free = f"{stem}-{number}{suffix}"
    taken.add(free.casefold())
    return free
