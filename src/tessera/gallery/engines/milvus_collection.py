"""One collection of Milvus: a row an image, with its descriptor, path, content and metadata, and how it is searched."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import EngineUnavailableError, printable
from tessera.gallery.catalog.paths import from_blob
from tessera.gallery.catalog.records import Entry, Ids
from tessera.gallery.catalog.snapshot import Snapshot
from tessera.gallery.engines.milvus_connection import CALL_S, MilvusConnection
from tessera.gallery.engines.milvus_filters import ALWAYS_TYPED, METADATA, encode_values, typed_fields

LAYOUT = 2  # of the fields; a collection of another is made anew
TYPED_KEYS = 8  # of a gallery's own, beside those that every image has
PUSH_ROWS = 1000
PAGE_ROWS = 16384  # a server's own limit
_STALLED_S = 3600.0  # an index that grows by nothing for so long is not being built
_LARGEST_TEXT = 65535
_SAYS = "tessera"
_VECTOR, _KEY, _DIGEST = "descriptor", "id", "digest"


@dataclass(frozen=True)
class Description:
    """What a collection says of itself: the model of its descriptors, and the keys that have fields of their own."""

    fingerprint: str
    keys: tuple[str, ...]


class MilvusCollection:
    layout: int | str = LAYOUT
    _consistency = "Strong"  # of what is read of rows: it waits for all that was written before

    def __init__(self, connection: MilvusConnection, name: str) -> None:
        self.connection = connection
        self.name = name

    def describe(self) -> Description | None:
        """None where there is none, or one that this version did not make."""

        def ask(client: Any) -> str | None:
            if not client.has_collection(self.name, timeout=CALL_S):
                return None
            said = client.describe_collection(self.name, timeout=CALL_S)
            return str(said.get("description") or said.get("properties", {}).get(_SAYS, ""))

        text = self.connection.call(ask)
        try:
            said = json.loads(text or "")
            return Description(said["fingerprint"], tuple(said["keys"])) if said["layout"] == self.layout else None
        except (ValueError, KeyError, TypeError):
            return None

    def make(self, snapshot: Snapshot, fingerprint: str, dim: int) -> Description:
        """An empty collection, in place of any that was there."""
        own = [key for key in snapshot.commonest_keys(TYPED_KEYS) if key not in ALWAYS_TYPED]
        made = Description(fingerprint, (*ALWAYS_TYPED, *own))

        def make(client: Any) -> None:
            if client.has_collection(self.name, timeout=CALL_S):
                client.drop_collection(self.name, timeout=CALL_S)
            self._create(client, made, dim)

        self.connection.call(make)
        return made

    def _create(self, client: Any, made: Description, dim: int) -> None:
        from pymilvus import DataType

        said = json.dumps({"layout": self.layout, "fingerprint": made.fingerprint, "keys": made.keys})
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False, description=said)
        schema.add_field(_KEY, DataType.INT64, is_primary=True)
        schema.add_field(_VECTOR, DataType.FLOAT_VECTOR, dim=dim)
        schema.add_field(_DIGEST, DataType.INT64)
        schema.add_field("path", DataType.VARCHAR, max_length=_LARGEST_TEXT)
        schema.add_field("content_hash", DataType.VARCHAR, max_length=128)
        schema.add_field(METADATA, DataType.JSON)
        for name, form in typed_fields(made.keys):
            if form == "number":
                schema.add_field(name, DataType.DOUBLE)
            else:
                schema.add_field(name, DataType.VARCHAR, max_length=_LARGEST_TEXT)
        self._add_fields(schema)
        options = {"properties": {_SAYS: said}} if self.connection.is_file else {}  # a file keeps no description
        client.create_collection(self.name, schema=schema, timeout=CALL_S, **options)

    def _add_fields(self, schema: Any) -> None:
        """What a kind of collection has beside the fields that every one has."""

    def drop(self) -> None:
        self.connection.call(lambda client: client.drop_collection(self.name, timeout=CALL_S))

    def put(self, entries: Sequence[Entry], snapshot: Snapshot, keys: Sequence[str]) -> None:
        """Store these images, in place of rows with the same ids: doing it twice changes nothing."""
        for start in range(0, len(entries), PUSH_ROWS):
            part = entries[start : start + PUSH_ROWS]
            descriptors = snapshot.descriptors([entry.id for entry in part])
            rows = [
                {_KEY: entry.id, _VECTOR: descriptors[entry.id].astype(np.float32), **row_of(entry, keys)}
                for entry in part
            ]
            self._write("upsert", data=rows)

    def delete(self, ids: Sequence[int]) -> None:
        for start in range(0, len(ids), PAGE_ROWS // 2):
            part = list(ids[start : start + PAGE_ROWS // 2])
            self._write("delete", ids=part)

    def _write(self, method: str, **given: Any) -> None:
        self.connection.call(
            lambda client: getattr(client, method)(self.name, timeout=CALL_S, **given), collection=self.name
        )

    def compare(self, snapshot: Snapshot, keys: Sequence[str]) -> Iterator[tuple[list[Entry], list[int]]]:
        """Entries whose rows are missing or differ, and ids of rows that the catalogue does not have, in pieces."""
        after = 0
        for entries in snapshot.stream_entries():
            last = entries[-1].id
            there: dict[int, int] = {}
            for low in range(after, last, PAGE_ROWS):
                there |= self._digests(f"{_KEY} > {low} and {_KEY} <= {min(low + PAGE_ROWS, last)}")
            changed = [entry for entry in entries if there.get(entry.id) != row_of(entry, keys)[_DIGEST]]
            yield changed, sorted(there.keys() - {entry.id for entry in entries})
            after = last
        while beyond := self._digests(f"{_KEY} > {after}"):
            yield [], sorted(beyond)
            after = max(beyond)

    def _digests(self, expression: str) -> dict[int, int]:
        return {int(row[_KEY]): int(row[_DIGEST]) for row in self.query(expression, [_KEY, _DIGEST])}

    def query(self, expression: str, fields: Sequence[str], limit: int = PAGE_ROWS) -> list[dict[str, Any]]:
        """The fields of rows that meet an expression."""
        rows: list[dict[str, Any]] = self.connection.call(
            lambda client: client.query(
                self.name, filter=expression, output_fields=list(fields), limit=limit,
                consistency_level=self._consistency, timeout=CALL_S,
            ),
            collection=self.name,
        )  # fmt: skip
        return rows

    def count(self) -> int:
        """Rows; those that are there twice count twice."""
        rows = self.connection.call(
            lambda client: client.query(
                self.name, filter="", output_fields=["count(*)"], consistency_level=self._consistency, timeout=CALL_S
            ),
            collection=self.name,
        )
        return int(rows[0]["count(*)"])

    def build(self, index_type: str, parameters: dict[str, Any]) -> None:
        """Begin to index what is sealed in this way; to be loaded or settled then.

        Not loaded before: a server goes on searching what it held unsealed by an index of its own, with less recall.
        """

        def build(client: Any) -> None:
            if client.list_indexes(self.name, _VECTOR):
                client.release_collection(self.name, timeout=CALL_S)
                client.drop_index(self.name, _VECTOR, timeout=CALL_S)
            index = client.prepare_index_params()
            index.add_index(_VECTOR, index_type=index_type, metric_type="IP", params=parameters)
            client.create_index(self.name, index, timeout=CALL_S, sync=False)

        self.connection.call(build)

    def load(self) -> None:
        self.connection.call(lambda client: client.load_collection(self.name, timeout=CALL_S))

    def settle(self) -> None:
        """Have what was written sealed and indexed: until then it is searched row by row."""
        self.connection.call(lambda client: client.flush(self.name, timeout=CALL_S))
        grown_at, indexed = time.monotonic(), -1
        while not self.connection.is_file:
            state = self.connection.call(lambda client: client.describe_index(self.name, _VECTOR, timeout=CALL_S))
            if state["state"] == "Finished" and int(state["pending_index_rows"]) == 0:
                break
            if int(state["indexed_rows"]) != indexed:
                grown_at, indexed = time.monotonic(), int(state["indexed_rows"])
            if state["state"] == "Failed" or time.monotonic() - grown_at > _STALLED_S:
                raise EngineUnavailableError(
                    f"Milvus at {self.connection.uri} does not finish its index of the type {state['index_type']}: its "
                    "log says why. `tessera migrate --engine milvus:URI#TYPE` names another type."
                )
            time.sleep(0.2)
        self.load()

    def search(
        self, queries: npt.NDArray[np.float32], k: int, expression: str, parameters: dict[str, Any]
    ) -> list[tuple[list[int], list[float]]]:
        """Ids and scores of each query, as the server orders them."""
        answers = self.connection.call(
            lambda client: client.search(
                self.name, data=list(queries), limit=k, filter=expression, consistency_level="Bounded",
                search_params={"metric_type": "IP", "params": parameters}, timeout=CALL_S,
            ),
            collection=self.name,
        )  # fmt: skip
        return [([int(hit[_KEY]) for hit in hits], [float(hit["distance"]) for hit in hits]) for hits in answers]


def by_ids(ids: Ids) -> str:
    return f"{_KEY} in {ids.tolist()}"


def one_in(divisor: int) -> str:
    """About so many of the images, wherever they lie."""
    return f"{_KEY} % {divisor} == 0"


def row_of(entry: Entry, keys: Sequence[str]) -> dict[str, Any]:
    """Everything but the descriptor, which never changes under an id, with a digest to compare by."""
    row = {
        "path": printable(from_blob(entry.path)),
        "content_hash": entry.content_hash.hex(),
        **encode_values(entry, keys),
    }
    row[_DIGEST] = zlib.crc32(json.dumps(row, sort_keys=True).encode())
    return row
