"""Lists of pictures: a CSV or Parquet table whose other columns become metadata, or a text file with a path a line."""

# ruff: noqa: PTH110, PTH118, PTH120, PTH123 - names that are no UTF-8, as bytes and with surrogates
from __future__ import annotations

import csv
import datetime
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

from tessera.errors import DataError, MissingExtraError, UsageError, as_utf8
from tessera.gallery.catalog.metadata import encode_metadata
from tessera.gallery.catalog.paths import from_blob, printable, to_blob
from tessera.gallery.cells import unguard_cell

LIST_SUFFIXES = frozenset({b".csv", b".tsv", b".txt", b".parquet"})
_PARQUET_ROWS = 1024
PATH_COLUMNS = ("path", "image_path", "image", "file", "filename", "file_name")


# Of a row: where it stands in the list, the path in it, and what else it says.
_Row = tuple[str, str, dict[str, Any] | None]


def read_list(list_path: bytes, report: Callable[[bytes, str], None]) -> Iterator[tuple[bytes, str | None]]:
    """Paths, absolute, and their metadata as the catalogue keeps it. Relative paths start at the list's own folder."""
    folder = os.path.dirname(from_blob(list_path))

    def skip(place: str, reason: str) -> None:
        report(list_path, f"{place} skipped: {reason}")

    for place, path, metadata in _rows(list_path, folder, skip):
        if not path:
            skip(place, "it names no file")
            continue
        try:
            found = _absolute(folder, path), None if metadata is None else encode_metadata(metadata)
        except UsageError as error:
            skip(place, str(error))
            continue
        yield found


def _rows(list_path: bytes, folder: str, skip: Callable[[str, str], None]) -> Iterator[_Row]:
    name = printable(from_blob(list_path))
    if list_path.lower().endswith(b".parquet"):
        yield from _read_parquet(list_path, folder, name)
        return
    try:
        # Escaped surrogates carry paths that are no UTF-8 through.
        with open(list_path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            if list_path.lower().endswith(b".txt"):
                for number, line in enumerate(file, start=1):
                    if path := line.strip("\r\n"):
                        yield f"line {number}", path, None
            else:
                yield from _read_table(
                    file, is_tsv=list_path.lower().endswith(b".tsv"), folder=folder, name=name, skip=skip
                )
    except csv.Error as error:
        raise DataError(f"{name} is not a CSV that can be read: {error}.") from error
    except OSError as error:
        raise DataError(f"{name} could not be read: {error.strerror}.") from error


def _read_table(
    file: TextIO, *, is_tsv: bool, folder: str, name: str, skip: Callable[[str, str], None]
) -> Iterator[_Row]:
    first_line = file.readline()
    if not first_line.strip():
        raise DataError(f"{name} is empty. Its first line must name the columns, one of them 'path'.")
    delimiter = "\t" if is_tsv else _delimiter(first_line)
    header = [column.strip() for column in next(csv.reader([first_line], delimiter=delimiter))]
    twice = next((column for i, column in enumerate(header) if column and column in header[:i]), None)
    if twice is not None:
        raise DataError(f"{name} has the column '{printable(twice)}' twice. Rename one of them.")
    path_column: int | None = None
    for line, row in enumerate(csv.reader(file, delimiter=delimiter), start=2):
        if not row:
            continue
        if path_column is None:
            path_column = _path_column(header, row, folder, name)
        if len(row) != len(header):
            skip(f"line {line}", f"it has {len(row)} columns, the header {len(header)}")
            continue
        metadata = {
            printable(key): as_utf8(unguard_cell(value))
            for i, (key, value) in enumerate(zip(header, row, strict=True))
            if i != path_column and key and value
        }
        yield f"line {line}", unguard_cell(row[path_column]), metadata


def _read_parquet(list_path: bytes, folder: str, name: str) -> Iterator[_Row]:
    """Row by row, however long the table is: a list of a hundred million is not held in memory."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("a list in Parquet", "parquet") from error
    try:
        with open(list_path, "rb") as opened, parquet.ParquetFile(opened) as file:
            header = list(file.schema_arrow.names)
            path_column: int | None = None
            batches = file.iter_batches(batch_size=_PARQUET_ROWS)
            for line, row in enumerate((row for batch in batches for row in batch.to_pylist()), start=1):
                values = [os.fsdecode(value) if isinstance(value, bytes) else value for value in row.values()]
                if path_column is None:
                    path_column = _path_column(header, [str(value or "") for value in values], folder, name)
                said = {key: json_value(value) for key, value in zip(header, values, strict=True)}
                del said[header[path_column]]
                metadata = {printable(key): value for key, value in said.items() if value is not None}
                yield f"row {line}", str(values[path_column] or ""), metadata
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(getattr(error, "strerror", None) or error).splitlines()[0]
        raise DataError(f"{name} is not a Parquet file that can be read: {reason}") from error


def json_value(value: Any) -> Any:
    """What the catalogue keeps of a cell; None for what is no value."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return as_utf8(value) if isinstance(value, str) else value


def _absolute(folder: str, path: str) -> bytes:
    """The path that a line names, from the list's own folder."""
    if "\0" in path:
        raise UsageError(f"no file's name can hold the byte 0, as {printable(path)} does")
    return to_blob(os.path.join(folder, path))


def _delimiter(first_line: str) -> str:
    if "\t" in first_line and "," not in first_line:
        return "\t"
    return ";" if ";" in first_line and "," not in first_line else ","


def _path_column(header: Sequence[str], row: Sequence[str], folder: str, name: str) -> int:
    """The column that holds the paths: by its name, else the first, if there is a file where its first row says."""
    lowered = [column.lower() for column in header]
    for known in PATH_COLUMNS:
        if known in lowered:
            return lowered.index(known)
    if row and row[0] and os.path.exists(os.path.join(folder, row[0])):
        return 0
    raise DataError(
        f"{name} has no column with paths: its columns are {', '.join(map(printable, header))}. "
        f"Name one of them {' or '.join(repr(column) for column in PATH_COLUMNS[:3])}."
    )
