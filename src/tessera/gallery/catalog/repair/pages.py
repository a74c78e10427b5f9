"""Rows of a damaged SQLite file, read page by page without SQLite, which gives up a table at its first bad page.

The trees of the tables are walked from their roots, and whatever of them cannot be read is passed over. Pages that no
tree leads to any more, though they are not free, hold rows too: those below a bad page. Nothing is believed: every
number is held against the size of the page or the file, so damage costs rows, and never memory or time.

The format is described at https://www.sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

Row = tuple[Any, ...]  # the rowid (None in a table without), then the columns

_MAGIC = b"SQLite format 3\0"
_INTERIOR_INDEX, _INTERIOR_TABLE, _LEAF_INDEX, _LEAF_TABLE = 2, 5, 10, 13
_INTERIOR = (_INTERIOR_INDEX, _INTERIOR_TABLE)
_MAX_PAYLOAD = 64 << 20
_LOG_HEAD_BYTES = 32
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


class PageFile:
    """The pages of a database as its last commit left them: the file, and over it the log beside it."""

    def __init__(self, path: Path, *, page_bytes: int, past_damage: bool = False) -> None:
        """page_bytes: of every catalogue, for a header that does not say. past_damage: read the log behind a bad frame,
        where it is known that what follows had been committed.
        """
        self._file = path.open("rb")
        head = self._file.read(100)
        said = int.from_bytes(head[16:18], "big")
        said = 65536 if said == 1 else said
        is_plausible = head[:16] == _MAGIC and said >= 512 and said & (said - 1) == 0
        self.has_head = is_plausible
        self.page_bytes = said if is_plausible else page_bytes
        self._usable = self.page_bytes - (head[20] if is_plausible and head[20] <= 64 else 0)
        log_path = path.with_name(f"{path.name}-wal")
        self._log: IO[bytes] | None = log_path.open("rb") if log_path.is_file() else None
        self._logged = (
            {} if self._log is None else _committed_frames(self._log, self.page_bytes, past_damage=past_damage)
        )
        in_file = (path.stat().st_size + self.page_bytes - 1) // self.page_bytes
        self.num_pages = max(in_file, *self._logged, 0)
        self._visited: set[int] = set()

    def close(self) -> None:
        self._file.close()
        if self._log is not None:
            self._log.close()

    def tables(self) -> dict[str, int]:
        """The root pages that the schema names."""
        rows = (row[1:6] for row in self.walk(1) if len(row) == 6)
        return {name: root for kind, name, _, root, _ in rows if kind == "table" and isinstance(root, int)}

    def walk(self, root: int) -> Iterator[Row]:
        """Every row of the tree below a root that can be read, each page once."""
        pending = [root]
        while pending:
            number = pending.pop()
            if number in self._visited or not 1 <= number <= self.num_pages:
                continue
            self._visited.add(number)
            page = self._page(number)
            start = 100 if number == 1 else 0
            kind, cells = _cells(page, start)
            if kind in _INTERIOR:
                children = [int.from_bytes(page[at : at + 4], "big") for at in cells]
                pending += [int.from_bytes(page[start + 8 : start + 12], "big"), *reversed(children)]
            yield from self._rows(page, kind, cells)

    def stray_rows(self) -> Iterator[Row]:
        """Rows of pages that are neither free nor part of a tree that was walked; none where it is not known which.

        A page that was freed still holds what was deleted, which must not come back. Where the head of the file is lost
        nothing else leads to any row: then every page counts.
        """
        free = self._free_pages() if self.has_head else set()
        if free is None:
            return
        for number in range(2, self.num_pages + 1):
            if number not in self._visited and number not in free:
                page = self._page(number)
                kind, cells = _cells(page, 0)
                if kind in (_LEAF_TABLE, _LEAF_INDEX):
                    yield from self._rows(page, kind, cells)

    def _free_pages(self) -> set[int] | None:
        """The pages on the list of free ones, or None where that list is damaged."""
        head = self._page(1)
        trunk, count = (int.from_bytes(head[at : at + 4], "big") for at in (32, 36))
        free: set[int] = set()
        while trunk:
            if trunk in free or not 1 <= trunk <= self.num_pages:
                return None
            free.add(trunk)
            page = self._page(trunk)
            following, leaves = (int.from_bytes(page[at : at + 4], "big") for at in (0, 4))
            if leaves > len(page) // 4 - 2:
                return None
            free.update(struct.unpack_from(f">{leaves}I", page, 8))
            trunk = following
        return free if len(free) == count else None

    def _page(self, number: int) -> bytes:
        """One page; what the file does not have of it is zeros, which are no page of any kind."""
        if self._log is not None and number in self._logged:
            self._log.seek(self._logged[number])
            content = self._log.read(self.page_bytes)
        else:
            self._file.seek((number - 1) * self.page_bytes)
            content = self._file.read(self.page_bytes)
        return content.ljust(self.page_bytes, b"\0")

    def _rows(self, page: bytes, kind: int, cells: list[int]) -> Iterator[Row]:
        if kind == _INTERIOR_TABLE:
            return
        for cell in cells:
            try:
                length, at = _varint(page, cell + (4 if kind == _INTERIOR_INDEX else 0))
                rowid = None
                if kind == _LEAF_TABLE:
                    rowid, at = _varint(page, at)
                row = _decode(self._payload(page, at, length, is_table=kind == _LEAF_TABLE))
            except (IndexError, ValueError, struct.error):  # of this cell alone
                continue
            yield (rowid, *row)

    def _payload(self, page: bytes, at: int, length: int, *, is_table: bool) -> bytes:
        """A cell's content: in the page, and the rest of a long one in a chain of others."""
        if not 0 < length <= _MAX_PAYLOAD:
            raise ValueError("a length that no row has")
        usable = self._usable
        most = usable - 35 if is_table else (usable - 12) * 64 // 255 - 23
        if length <= most:
            local = length
        else:
            least = (usable - 12) * 32 // 255 - 23
            local = least + (length - least) % (usable - 4)
            local = local if local <= most else least
        parts, lacking = [page[at : at + local]], length - local
        following = int.from_bytes(page[at + local : at + local + 4], "big") if lacking else 0
        while lacking > 0:
            if not 1 <= following <= self.num_pages:
                raise ValueError("a chain that leads nowhere")
            more = self._page(following)
            following = int.from_bytes(more[:4], "big")
            parts.append(more[4 : min(usable, 4 + lacking)])
            lacking -= usable - 4
        content = b"".join(parts)
        if len(content) != length:
            raise ValueError("a row that is cut short")
        return content


def _committed_frames(log: IO[bytes], page_bytes: int, *, past_damage: bool) -> dict[int, int]:
    """Where in a write-ahead log each page is that was committed; frames after the last commit do not count.

    A frame's checksum goes on from the one before, so behind a bad frame only those are believed that follow from what
    is written in it, or from each other.
    """
    head = log.read(_LOG_HEAD_BYTES)
    order = ">" if head[3:4] == b"\x83" else "<"
    sums, salts = _checksum(head[:24].ljust(24), (0, 0), order), head[16:24]
    stated = struct.unpack(">II", head[24:].ljust(8))
    is_ours = head[:3] == b"\x37\x7f\x06" and int.from_bytes(head[8:12], "big") == page_bytes
    if not (is_ours and sums == stated):
        if not past_damage:
            return {}
        sums, salts = stated, _commonest_salts(log, page_bytes)
    committed: dict[int, int] = {}
    waiting: dict[int, int] = {}
    while len(frame := log.read(24)) == 24 and len(page := log.read(page_bytes)) == page_bytes:
        stated = struct.unpack(">II", frame[16:24])
        sums = _checksum(page, _checksum(frame[:8], sums, order), order)
        number, size_after_commit = struct.unpack(">II", frame[:8])
        is_right, sums = sums == stated and frame[8:16] == salts, stated
        if is_right:
            waiting[number] = log.tell() - page_bytes
        elif not past_damage:
            break
        if size_after_commit and frame[8:16] == salts:
            committed |= waiting
            waiting = {}
    return committed


def _commonest_salts(log: IO[bytes], page_bytes: int) -> bytes:
    """The salts of a log whose own head is damaged: of its first frames, behind which may be those of earlier logs."""
    found = []
    for number in range(3):
        log.seek(_LOG_HEAD_BYTES + number * (24 + page_bytes) + 8)
        found.append(log.read(8))
    log.seek(_LOG_HEAD_BYTES)
    return max(found, key=found.count)


def _checksum(content: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    first, second = sums
    for low, high in struct.iter_unpack(f"{order}II", content):
        first = (first + low + second) & 0xFFFFFFFF
        second = (second + high + first) & 0xFFFFFFFF
    return first, second


def _cells(page: bytes, start: int) -> tuple[int, list[int]]:
    """What kind of page it is, and where its cells begin; those that lie outside are left out."""
    kind = page[start]
    if kind not in (*_INTERIOR, _LEAF_INDEX, _LEAF_TABLE):
        return 0, []
    count = int.from_bytes(page[start + 3 : start + 5], "big")
    first = start + (12 if kind in _INTERIOR else 8)
    count = min(count, (len(page) - first) // 2)
    found = struct.unpack_from(f">{count}H", page, first)
    return kind, [at for at in found if first + 2 * count <= at < len(page) - 4]


def _varint(page: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and where it ends."""
    value = 0
    for i in range(8):
        byte = page[at + i]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + i + 1
    value = value << 8 | page[at + 8]
    return value - (1 << 64) if value >= 1 << 63 else value, at + 9


def _decode(payload: bytes) -> Row:
    """The columns of a record."""
    head_bytes, at = _varint(payload, 0)
    if not 1 <= head_bytes <= len(payload):
        raise ValueError("a head that no row has")
    kinds = []
    while at < head_bytes:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    values: list[Any] = []
    for kind in kinds:
        if kind >= 12:
            length = (kind - 12) // 2
            content = payload[at : at + length]
            if len(content) != length:
                raise ValueError("a value that is cut short")
            values.append(content if kind % 2 == 0 else content.decode())
            at += length
        elif kind in _INTEGER_BYTES:
            length = _INTEGER_BYTES[kind]
            values.append(int.from_bytes(payload[at : at + length], "big", signed=True))
            at += length
        elif kind == 7:
            values.append(struct.unpack_from(">d", payload, at)[0])
            at += 8
        else:
            values.append({0: None, 8: 0, 9: 1}[kind] if kind in (0, 8, 9) else None)
    return tuple(values)
