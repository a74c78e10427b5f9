"""A checksum for every row: SQLite notices a torn page, but not a bit that a disk or a cable has turned.

A guarded table has a column for checksums and an entry in GUARDED; code that writes a row computes it with
`row_checksum`, `check` and the loading of an index compare it. What can be told from the rest, as the state of an image
from whether it has a content, is left out: then damage there can be put right. What can be made again, as the facts of
a file, has a checksum of its own: damage there costs nothing else.
"""

from __future__ import annotations

import sqlite3
import struct
import zlib
from collections.abc import Iterator
from typing import Any

Value = int | float | str | bytes | None

# The columns that a row's checksum is of, in this order. The first tells which row it is.
GUARDED: dict[str, tuple[str, ...]] = {
    "settings.checksum": ("key", "value"),
    "contents.checksum": ("id", "hash", "fingerprint", "width", "height", "descriptor"),
    "contents.signature_checksum": ("id", "signature"),
    "local_features.checksum": ("id", "hash", "fingerprint", "features"),
    "images.checksum": ("id", "path", "size", "mtime_ns", "error", "content_id", "metadata"),
    "images.facts_checksum": ("id", "facts", "sidecar_ns", "group_id", "group_rank"),
    "removals.checksum": ("id", "generation"),
    "ignored.checksum": ("path", "hash"),
    "pairs.checksum": ("kind", "first", "second", "score"),
}
# What SQLite must call the value of a column, if it is not NULL; _NUMBER where nothing is said. A bit can make a
# text of bytes, with the same checksum.
_KINDS = dict.fromkeys(("path", "hash", "descriptor", "features", "signature", "first", "second"), "'blob'")
_KINDS |= dict.fromkeys(("key", "fingerprint", "error", "metadata", "facts", "kind"), "'text'")
_NUMBER = "'integer'"
_KINDS |= {"score": "'real'", "value": "'text', 'integer', 'real'"}


def row_checksum(*values: Value) -> int:
    """CRC-32 of a row's values with their kinds and lengths; texts count as their bytes."""
    found = 0
    for value in values:
        if value is None:
            found = zlib.crc32(b"n", found)
        elif isinstance(value, int):
            found = zlib.crc32(b"i" + value.to_bytes(8, "little", signed=True), found)
        elif isinstance(value, float):
            found = zlib.crc32(struct.pack("<cd", b"f", value), found)
        else:
            content = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
            found = zlib.crc32(content, zlib.crc32(struct.pack("<cQ", b"t", len(content)), found))
    return found


def seal_in_sql(guard: str) -> str:
    """The statement that gives rows their checksums, on a connection that knows `tessera_checksum`."""
    table, column = guard.split(".")
    return f"UPDATE {table} SET {column} = {_checksum_in_sql(guard)}"


def damage_in_sql(guard: str) -> str:
    """The condition that a row does not have its checksum, or has values of other kinds, on such a connection."""
    of_kind = " AND ".join(f"typeof({name}) IN ('null', {_KINDS.get(name, _NUMBER)})" for name in GUARDED[guard])
    return f"(NOT ({of_kind}) OR {guard.partition('.')[2]} IS NOT {_checksum_in_sql(guard)})"


def damaged_rows(connection: sqlite3.Connection, guard: str) -> Iterator[Any]:
    """The first guarded column of each row that is damaged."""
    key = _readable(GUARDED[guard][0])
    cursor = connection.execute(f"SELECT {key} FROM {guard.partition('.')[0]} WHERE {damage_in_sql(guard)}")
    for (value,) in cursor:
        yield value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _checksum_in_sql(guard: str) -> str:
    return f"tessera_checksum({', '.join(map(_readable, GUARDED[guard]))})"


def _readable(column: str) -> str:
    """A column as SQL: a text as its bytes, since a damaged one may be none any more."""
    return f"iif(typeof({column}) = 'text', CAST({column} AS BLOB), {column})"
