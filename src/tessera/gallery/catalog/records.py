"""What is known of one image, as the catalogue keeps it, as an engine filters by it, and as people see it."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import UsageError
from tessera.gallery.catalog import filters

Ids = npt.NDArray[np.int64]
Descriptors = npt.NDArray[np.float16]
Descriptor = npt.NDArray[np.float32]

# || '': a list is a text here, not JSON again.
VALUES = "SELECT json_group_array(json_array(key, value || '', type)) FROM json_each"


@dataclass(frozen=True)
class CatalogEntry:
    """What the catalogue holds of a path: enough to tell whether its file has changed."""

    id: int
    size: int
    mtime_ns: int
    state: str
    metadata: str
    content_id: int | None
    facts: str | None  # what its file says of itself; None: not read yet
    sidecar_ns: int


@dataclass(frozen=True)
class Entry:
    """What an engine that filters by itself keeps of an image.

    values: of each key, as filters see it, the text, the number if it spells one, and JSON's type.
    """

    id: int
    path: bytes
    content_hash: bytes
    values: dict[str, tuple[str, float | None, str]]


@dataclass(frozen=True)
class Record:
    """One image of the gallery. `error` says why a failed one could not be read.

    metadata: what its file says of itself, and over it what a CSV or a caller said.
    """

    id: int
    path: str
    size: int
    mtime_ns: int
    state: str
    error: str | None
    metadata: dict[str, Any]
    width: int | None
    height: int | None
    content_hash: str | None
    group_id: int | None = None


def entry_of_row(row: Sequence[Any]) -> Entry:
    image_id, path, content_hash, width, height, size, *said = row
    known = {"width": width, "height": height, "bytes": size}
    values: dict[str, tuple[str, float | None, str]] = {
        key: (str(value), float(value), "integer") for key, value in known.items() if value is not None
    }
    values["name"] = (filters.file_name(path), filters.number(filters.file_name(path)), "text")
    for stored, texts in zip(said[:2], said[2:], strict=True):
        found = json.loads(stored)
        for key, text, kind in json.loads(texts):
            # Not by SQLite: it writes numbers into JSON with fifteen digits, and infinity as no JSON at all.
            values[key] = (text, None if isinstance(found[key], list | dict) else filters.number(found[key]), kind)
    return Entry(image_id, path, content_hash, values)


def entry_of(record: Record, facts: str, metadata: str) -> Entry:
    """What a catalogue would say of an image that it does not hold, facts and metadata as it keeps them."""
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:  # some ten microseconds
        (values,) = connection.execute(
            f"SELECT ({VALUES}(?) WHERE value IS NOT NULL), ({VALUES}(?) WHERE value IS NOT NULL)", (facts, metadata)
        )
    path, content_hash = os.fsencode(record.path), bytes.fromhex(record.content_hash or "")
    return entry_of_row(
        (record.id, path, content_hash, record.width, record.height, record.size, facts, metadata, *values)
    )


def decode_descriptors(blobs: Sequence[bytes]) -> Descriptors:
    """N D from N blobs of little-endian fp16, whatever the machine's own order."""
    return np.frombuffer(b"".join(blobs), dtype="<f2").astype(np.float16, copy=False).reshape(len(blobs), -1)


def encode_descriptor(descriptor: npt.NDArray[Any]) -> bytes:
    return np.asarray(descriptor, dtype="<f2").tobytes()


def unit_descriptor(values: npt.NDArray[Any]) -> Descriptor:
    """A descriptor of length one, whatever its scale was; half precision has rounded a stored one a little off."""
    if values.ndim != 1 or values.dtype.kind not in "fiu":
        raise UsageError(f"A descriptor must be one row of numbers, not shape {values.shape} of {values.dtype}.")
    descriptor = values.astype(np.float64)
    norm = float(np.linalg.norm(descriptor))
    if not np.isfinite(norm) or norm == 0.0:
        raise UsageError("The descriptor is zero or not finite; it has no direction to compare.")
    unit: Descriptor = (descriptor / norm).astype(np.float32)
    return unit
