"""The collection of a remote catalogue: the rows of any, each with its whole record and where its features lie."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import GalleryError, GalleryMismatchError, TesseraError
from tessera.gallery.catalog.metadata import encode_metadata
from tessera.gallery.catalog.paths import from_blob
from tessera.gallery.catalog.records import Record, entry_of
from tessera.gallery.engines.milvus_collection import PAGE_ROWS, PUSH_ROWS, Description, MilvusCollection, row_of
from tessera.gallery.engines.milvus_connection import CALL_S, MilvusConnection
from tessera.gallery.engines.milvus_filters import ALWAYS_TYPED
from tessera.gallery.engines.milvus_index import CODES, MilvusIndex, choose_index
from tessera.gallery.remote.shards import RemoteImage, Span, key_of

_LARGEST_TEXT = 65535
_GROWN = 1_000_000  # images that an index is chosen for: it will grow, and many write to it, so none replaces it
_EFFORT, _CANDIDATES = 256, 400
_LOOKUP = 500
_KEYS = 1 << 63
Found = dict[int, "Stored"]


@dataclass(frozen=True)
class Stored:
    """What the collection has of an image."""

    record: Record
    span: Span
    sidecar_ns: int
    facts: str
    metadata: str


class RemoteCollection(MilvusCollection):
    """dim, codec, asked_type: how it is to be indexed, if it is made here."""

    layout = "remote-1"

    def __init__(self, connection: MilvusConnection, name: str, *, dim: int, codec: str, asked_type: str) -> None:
        super().__init__(connection, name)
        self._dim, self._codec, self._asked_type = dim, codec, asked_type

    def for_readers(self) -> RemoteCollection:
        """The same rows without waiting for what others have just written: a fifth of a second a question."""
        reading = copy.copy(self)
        reading._consistency = "Bounded"
        return reading

    def ensure(self, fingerprint: str) -> Description:
        """The collection, made where there is none yet; two who make it at once make one."""
        made = self.describe()
        if made is None:
            try:
                self.connection.call(lambda client: self._make(client, fingerprint))
            except TesseraError:
                if (made := self.describe()) is None:
                    raise
        made = made or self.describe()
        if made is None:
            raise GalleryError(
                f"The collection {self.name} of Milvus at {self.connection.uri} is none of a remote catalogue that "
                "this version knows. Choose another --storage."
            )
        if made.fingerprint != fingerprint:
            raise GalleryMismatchError(
                f"The collection {self.name} of Milvus at {self.connection.uri} holds descriptors of another model "
                f"(fingerprint {made.fingerprint}, not {fingerprint}). Name that model, or choose another --storage."
            )
        return made

    def _make(self, client: Any, fingerprint: str) -> None:
        index = choose_index(_GROWN, self._dim, self._codec, self.connection, self._asked_type)
        if not client.has_collection(self.name, timeout=CALL_S):
            self._create(client, Description(fingerprint, ALWAYS_TYPED), self._dim)
        chosen = client.prepare_index_params()
        if not self.connection.is_file:
            chosen.add_index("path_key", index_type="STL_SORT")  # first: with the other, someone else may load it
        chosen.add_index("descriptor", index_type=index.type, metric_type="IP", params=index.build)
        client.create_index(self.name, chosen, timeout=CALL_S)
        client.load_collection(self.name, timeout=CALL_S)

    @cached_property
    def index(self) -> MilvusIndex:
        """What whoever made the collection has chosen for it."""
        said = self.connection.call(lambda client: client.describe_index(self.name, "descriptor", timeout=CALL_S))
        index_type = str(said["index_type"])
        return MilvusIndex(index_type, effort=_EFFORT, candidates=_CANDIDATES if index_type in CODES else 0)

    def _add_fields(self, schema: Any) -> None:
        from pymilvus import DataType

        schema.add_field("path_key", DataType.INT64)
        schema.add_field("record", DataType.VARCHAR, max_length=_LARGEST_TEXT)

    def put_images(self, images: Sequence[RemoteImage], spans: Sequence[Span]) -> None:
        """Send images; doing it twice, or by two at once, changes nothing."""
        for start in range(0, len(images), PUSH_ROWS):
            part = slice(start, start + PUSH_ROWS)
            rows = {image.id: _row(image, span) for image, span in zip(images[part], spans[part], strict=True)}
            self._write("upsert", data=list(rows.values()))

    def get(self, ids: Sequence[int]) -> Found:
        """What is stored of these ids; one that is not there is left out."""
        return self._found(f"id in {part}" for part in _parts(ids))

    def find_paths(self, paths: Sequence[bytes]) -> dict[bytes, Stored]:
        """What is stored under these paths."""
        wanted = set(paths)
        found = self._found(f"path_key in {part}" for part in _parts([key_of(path) for path in paths]))
        by_path = {os.fsencode(stored.record.path): stored for stored in found.values()}
        return {path: stored for path, stored in by_path.items() if path in wanted}

    def stream_under(self, root: bytes) -> Iterator[Stored]:
        """What lies at a path or below it."""
        plain = "".join(takewhile(lambda letter: letter.isprintable() and letter not in "%_\\\"'", from_blob(root)))
        below = root.rstrip(b"/") + b"/"
        last = -1
        while rows := self.query(f'path like "{plain}%" and id > {last}', ["record"], _LOOKUP):
            for stored in _read(rows).values():
                last = max(last, stored.record.id)
                path = os.fsencode(stored.record.path)
                if path == root or path.startswith(below):
                    yield stored

    def stream(self) -> Iterator[Found]:
        """Everything, in pieces; keys are hashes, so equal ranges hold equally many."""
        ranges = max(1, -(-self.count() // (PAGE_ROWS // 8)))
        for i in range(ranges):
            low, high = i * _KEYS // ranges, (i + 1) * _KEYS // ranges - 1
            yield self._found([f"id >= {low} and id <= {high}"])

    def sample(self, count: int, size: int) -> list[int]:
        """About so many ids, the same for everyone: those with the smallest keys."""
        bound = min(_KEYS - 1, _KEYS * count // max(size, 1))
        return sorted(int(row["id"]) for row in self.query(f"id <= {bound}", ["id"]))[:count]

    def descriptors(self, ids: Sequence[int]) -> dict[int, npt.NDArray[np.float32]]:
        rows = [row for part in _parts(ids) for row in self.query(f"id in {part}", ["id", "descriptor"])]
        return {int(row["id"]): np.asarray(row["descriptor"], np.float32) for row in rows}

    def _found(self, expressions: Any) -> Found:
        found: Found = {}
        for expression in expressions:
            found |= _read(self.query(expression, ["record"]))
        return found


def _row(image: RemoteImage, span: Span) -> dict[str, Any]:
    record = Record(
        image.id, from_blob(image.path), image.size, image.mtime_ns, "ok", None, {}, image.width, image.height,
        image.content_hash.hex(),
    )  # fmt: skip
    said = {
        "id": image.id,
        "path": image.path.decode("latin-1"),  # any bytes, and back
        "hash": image.content_hash.hex(),
        "numbers": [image.size, image.mtime_ns, image.sidecar_ns, image.width, image.height],
        "metadata": json.loads(image.metadata),
        "facts": json.loads(image.facts),
        "span": astuple(span),
    }
    return {
        "id": image.id,
        "descriptor": image.descriptor.astype(np.float32),
        **row_of(entry_of(record, image.facts, image.metadata), ALWAYS_TYPED),
        "path_key": key_of(image.path),
        "record": json.dumps(said, ensure_ascii=False, separators=(",", ":")),
    }


def _read(rows: Sequence[dict[str, Any]]) -> Found:
    found: Found = {}
    for row in rows:
        said = json.loads(row["record"])
        size, mtime_ns, sidecar_ns, width, height = said["numbers"]
        record = Record(
            said["id"], from_blob(said["path"].encode("latin-1")), size, mtime_ns, "ok", None,
            {**said["facts"], **said["metadata"]}, width, height, said["hash"],
        )  # fmt: skip
        facts, metadata = encode_metadata(said["facts"]), encode_metadata(said["metadata"])
        found[record.id] = Stored(record, Span(*said["span"]), sidecar_ns, facts, metadata)
    return found


def _parts(ids: Sequence[int]) -> Iterator[list[int]]:
    for start in range(0, len(ids), _LOOKUP):
        yield [int(image_id) for image_id in ids[start : start + _LOOKUP]]
