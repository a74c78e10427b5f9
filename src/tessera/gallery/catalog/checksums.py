"""A checksum for every row: SQLite notices a torn page, but not a bit that a disk or a cable has turned.

A table that is to be guarded has a column `checksum` and an entry in GUARDED; whoever writes a row computes it with
`row_checksum`, `check` and the loading of an index compare it. What can be told from the rest, as the state of an image
from whether it has a content, is left out: then damage there can be put right.
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
    "settings": ("key", "value"),
    "contents": ("id", "hash", "fingerprint", "width", "height", "descriptor"),
    "local_features": ("id", "hash", "fingerprint", "features"),
    "images": ("id", "path", "size", "mtime_ns", "error", "content_id", "metadata"),
}
_ROWS = 256


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


def guarded_columns(table: str) -> str:
    """The guarded columns as SQL: texts as their bytes, since damaged ones may be no texts any more."""
    return ", ".join(f"iif(typeof({name}) = 'text', CAST({name} AS BLOB), {name})" for name in GUARDED[table])


def checksum_in_sql(table: str) -> str:
    """The checksum of a row as an SQL expression, on a connection that knows `tessera_checksum`."""
    return f"tessera_checksum({guarded_columns(table)})"


def damaged_rows(connection: sqlite3.Connection, table: str) -> Iterator[Any]:
    """The first guarded column of each row whose checksum is not its own."""
    cursor = connection.execute(f"SELECT {GUARDED[table][0]}, checksum, {guarded_columns(table)} FROM {table}")
    while rows := cursor.fetchmany(_ROWS):
        for key, stored, *values in rows:
            if row_checksum(*values) != stored:
                yield key
