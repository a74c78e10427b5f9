"""Work that is handed out: a tar of WebDataset, a piece of a list or of a folder, here or on a file system of fsspec.

A worker opens its unit itself, so what the one who hands out holds does not grow with the pictures. A picture inside a
tar is called by the tar's URL and its name: `s3://bucket/000.tar/0001.jpg`.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from tessera.data.photos.decoding import DEFAULT_LIMITS
from tessera.errors import DataError, MissingExtraError, UsageError
from tessera.gallery.catalog.metadata import encode_metadata
from tessera.gallery.ingest.source_lists import PATH_COLUMNS, json_value
from tessera.gallery.ingest.sources import FoundFile, Source, find_files, is_picture_name, resolve_source, with_sidecar
from tessera.storage import parse_json

UNIT_FILES = 256
_LIST_ROWS = 4096
_BATCH = 32  # pictures that are held at once
_MOST_SAID = 1 << 20  # bytes of JSON beside a picture
_END_OF_TIME_S = 1 << 33  # what a column of nanoseconds holds

Fetch = Callable[[], bytes] | None  # None: a file of this machine
Batch = list[tuple[FoundFile, Fetch]]


@dataclass(frozen=True)
class WorkUnit:
    """files: of a `files` unit. rows: of a `list` unit, a row group and the first and last row in it."""

    kind: Literal["files", "tar", "list"]
    url: str = ""
    files: tuple[FoundFile, ...] = ()
    rows: tuple[int, int, int] = (0, 0, 0)

    @property
    def name(self) -> str:
        first = self.files[0].path if self.files else b""
        said = f"{self.kind} {self.url} {self.rows} {len(self.files)}".encode() + first
        return hashlib.sha256(said).hexdigest()[:32]


def is_handed_out(source: str | os.PathLike[str]) -> bool:
    """Whether only a worker can open a source: it lies behind a URL, or is a tar."""
    return "://" in os.fspath(source) or os.fspath(source).endswith(".tar")


def make_units(sources: Sequence[str | os.PathLike[str]], report: Callable[[bytes, str], None]) -> Iterator[WorkUnit]:
    for given in sources:
        if is_handed_out(given):
            yield from _units_behind(os.fspath(given))
        else:
            yield from _units_of(find_files([resolve_source(given)], report))


def _units_of(files: Iterator[FoundFile]) -> Iterator[WorkUnit]:
    while part := tuple(islice(files, UNIT_FILES)):
        yield WorkUnit("files", files=part)


def _units_behind(given: str) -> Iterator[WorkUnit]:
    url = given if "://" in given else Path(given).absolute().as_uri()
    files, root = open_url(url)
    try:
        found = sorted(files.glob(root)) if any(letter in root for letter in "*?[") else [root]
        if not found or not files.exists(found[0]):
            raise UsageError(f"There is nothing at {given}. Check the address.")
        for path in found:
            name = files.unstrip_protocol(path)
            if path.endswith(".tar"):
                yield WorkUnit("tar", name)
            elif path.endswith(".parquet"):
                yield from _units_of_list(name)
            elif files.isdir(path):
                sizes = files.find(path, detail=True)
                yield from _units_of(
                    FoundFile(os.fsencode(files.unstrip_protocol(entry)), int(said.get("size") or -1))
                    for entry, said in sorted(sizes.items())
                    if is_picture_name(os.fsencode(entry))
                )
            else:
                yield WorkUnit("files", files=(FoundFile(os.fsencode(name)),))
    except OSError as error:
        raise DataError(f"{given} cannot be read: {error.strerror or error}.") from error


def _units_of_list(url: str) -> Iterator[WorkUnit]:
    with _open_list(url) as table:
        for group in range(table.num_row_groups):
            count = table.metadata.row_group(group).num_rows
            for start in range(0, count, _LIST_ROWS):
                yield WorkUnit("list", url, rows=(group, start, min(start + _LIST_ROWS, count)))


def read_unit(unit: WorkUnit) -> Iterator[Batch]:
    """The pictures of a unit, a few at a time, each with what gives its bytes."""
    if unit.kind == "tar":
        yield from _read_tar(unit.url)
        return
    files = iter(unit.files if unit.kind == "files" else _read_rows(unit))
    while part := list(islice(files, _BATCH)):
        yield [(file, _fetcher(os.fsdecode(file.path)) if b"://" in file.path else None) for file in part]


def _read_tar(url: str) -> Iterator[Batch]:
    """Members of one key belong together: a picture, and the JSON beside it, which is its metadata."""
    files, path = open_url(url)
    batch: Batch = []
    key, said, picture = "", "", None
    try:
        with files.open(path, "rb") as opened, tarfile.open(fileobj=opened, mode="r|") as tar:
            for member in tar:
                stream = tar.extractfile(member) if member.isfile() else None
                folder, _, name = member.name.rpartition("/")
                stem = f"{folder}/{name.partition('.')[0]}"
                if stem != key:
                    batch += _member(url, picture, said)
                    key, said, picture = stem, "", None
                if stream is not None and is_picture_name(os.fsencode(name)):
                    batch += _member(url, picture, said)  # of a key with two pictures, both
                    picture = (member.name, stream.read(DEFAULT_LIMITS.max_bytes + 1), member.mtime)
                elif stream is not None and name.endswith(".json"):
                    said = stream.read(_MOST_SAID + 1).decode("utf-8", "replace")
                if len(batch) >= _BATCH:
                    yield batch
                    batch = []
    except (tarfile.TarError, OSError) as error:
        if batch:
            yield batch  # what came before the damage is whole
        raise DataError(f"{url} cannot be read to its end: {error}.") from error
    yield batch + _member(url, picture, said)


def _member(url: str, picture: tuple[str, bytes, float] | None, said: str) -> Batch:
    if picture is None:
        return []
    name, content, mtime = picture
    try:
        found = parse_json(said) if said and len(said) <= _MOST_SAID else None
        metadata = None if not isinstance(found, dict) else encode_metadata(found)
    except (ValueError, UsageError):
        metadata = None
    path = os.fsencode(f"{url}/{name.removeprefix('./')}")
    mtime_ns = int(mtime * 1e9) if 0 <= mtime < _END_OF_TIME_S else 0
    return [(FoundFile(path, len(content), mtime_ns, metadata=metadata), lambda: content)]


def _read_rows(unit: WorkUnit) -> Iterator[FoundFile]:
    group, start, stop = unit.rows
    with _open_list(unit.url) as table:
        rows = table.read_row_group(group).slice(start, stop - start).to_pylist()
    column = next((name for name in PATH_COLUMNS if rows and name in rows[0]), None)
    if column is None:
        raise DataError(f"{unit.url} has no column {', '.join(PATH_COLUMNS)}: name one of them.")
    folder = unit.url.rpartition("/")[0]
    for row in rows:
        given = row.pop(column)
        path = os.fsdecode(given) if isinstance(given, bytes) else str(given or "")
        if not path:
            continue
        metadata = _encode_row(row)
        if "://" not in path and not path.startswith("/"):
            path = f"{folder}/{path}"
        if path.startswith("/"):
            (found,) = find_files([Source("file", os.fsencode(path), os.fsencode(path))], lambda *_: None)
            found = with_sidecar(found)
            yield FoundFile(found.path, found.size, found.mtime_ns, found.error, metadata, found.sidecar_ns)
        else:
            yield FoundFile(os.fsencode(path), metadata=metadata)


def _encode_row(row: dict[str, Any]) -> str | None:
    """What a row says of its picture; None where that is more than is kept: the picture itself is as good as any."""
    said = {key: json_value(value) for key, value in row.items() if isinstance(value, str | int | float)}
    try:
        return encode_metadata({key: value for key, value in said.items() if value is not None})
    except UsageError:
        return None


def _fetcher(url: str) -> Callable[[], bytes]:
    def fetch() -> bytes:
        files, path = open_url(url)
        content: bytes = files.cat_file(path)
        return content

    return fetch


def _open_list(url: str) -> Any:
    import pyarrow
    from pyarrow import parquet

    files, path = open_url(url)
    try:
        return parquet.ParquetFile(files.open(path, "rb"))
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{url} is not a Parquet file that can be read: {error}.") from error


def open_url(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtraError("a source behind a URL", "remote") from error
    try:
        files, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{url} cannot be opened: {str(error).splitlines()[0].rstrip('.')}.") from error
    return files, str(path)
