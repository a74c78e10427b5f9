"""The engine for more than one machine: the catalogue's descriptors mirrored into a collection of Milvus.

The same client and calls serve a cluster (`http://HOST:19530`) and Milvus Lite (a file, one process at a time). The
catalogue stays the truth: writers push their changes, and a collection that is lost is filled again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import GalleryError, GalleryLockedError, MissingExtraError, UsageError
from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.catalog.snapshot import Ids, Snapshot
from tessera.gallery.engines.engine import Shown
from tessera.storage import write_atomically

STATE_NAME = "milvus.json"
MAX_RESULTS = 16384  # a server's own limit
_PUSH_ROWS = 1000
_FILTER_IDS = 10000  # ids in one filter expression; more are searched in parts and merged
_VECTOR, _KEY = "descriptor", "id"


@dataclass(frozen=True)
class _Pushed:
    """Which moment of the catalogue the collection shows."""

    uri: str
    generation: int
    last_id: int
    fingerprint: str


class MilvusEngine:
    def __init__(self, uri: str, gallery_dir: Path, *, collection: str) -> None:
        if find_spec("pymilvus") is None:  # importing it takes longer than many a command
            raise MissingExtraError("the engine 'milvus'", "milvus")
        self.uri = uri
        self._is_file = "://" not in uri
        self._collection = collection
        self._state_path = gallery_dir / STATE_NAME
        self._lock = threading.RLock()
        self._client: Any = None
        self._size = 0
        self._shown: Shown | None = None
        self._behind = False

    @property
    def size(self) -> int:
        return self._size

    @property
    def shown(self) -> Shown | None:
        return self._shown if self._size else None

    @contextlib.contextmanager
    def pin(self, catalog: Catalog) -> Iterator[tuple[Snapshot, Shown | None]]:
        self.refresh(catalog)
        with catalog.read() as snapshot:
            yield snapshot, None if snapshot.searchable == 0 else self._show(snapshot, catalog)

    def _show(self, snapshot: Snapshot, catalog: Catalog) -> Shown:
        """The collection is the same for every reader: it shows whatever its writer has pushed, after the catalogue."""
        self._size, generation = snapshot.searchable, snapshot.generation
        fingerprint = str(snapshot.setting("fingerprint", ""))
        self._shown = Shown(self, generation, fingerprint, lambda: catalog.generation() != generation)
        return self._shown

    @property
    def worth_saving(self) -> bool:
        return self._behind

    def refresh(self, catalog: Catalog, *, writing: bool = False) -> None:
        if not self._lock.acquire(blocking=writing):
            return  # another thread is at it; a reader has nothing to push, and need not wait
        try:
            with catalog.read() as snapshot:
                current = self._current(snapshot)
                pushed = self._stored()
                self._show(snapshot, catalog)
                self._behind = pushed != current
                if not self._behind or not writing:
                    return
                if pushed is None or not self._reaches(pushed, current, snapshot) or not self._has_collection():
                    self._fill(snapshot)
                else:
                    self._push_changes(snapshot, pushed)
                self._remember(current)
            with catalog.write() as batch:
                batch.trim_removals(current.generation)
        finally:
            self._lock.release()

    def rebuild(self, catalog: Catalog) -> None:
        with self._lock, catalog.read() as snapshot:
            self._show(snapshot, catalog)
            self._fill(snapshot)
            self._remember(self._current(snapshot))

    def search(
        self, queries: npt.ArrayLike, k: int, *, allowed: npt.ArrayLike | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        if k > MAX_RESULTS:
            raise UsageError(f"Milvus answers at most {MAX_RESULTS} results, not {k}. Ask for fewer, or use faiss.")
        asked = np.atleast_2d(np.asarray(queries, np.float32))
        scores = np.full((len(asked), k), -np.inf, np.float32)
        ids = np.full((len(asked), k), -1, np.int64)
        parts: list[Ids | None] = [None]
        if allowed is not None:
            wanted = np.asarray(allowed, np.int64)
            parts = list(np.split(wanted, range(_FILTER_IDS, len(wanted), _FILTER_IDS)))
        found: list[list[tuple[float, int]]] = [[] for _ in asked]
        for part in parts:
            if part is not None and len(part) == 0:
                continue
            expression = "" if part is None else f"{_KEY} in {part.tolist()}"
            with self._translated():
                answers = self._open().search(
                    self._collection,
                    data=list(asked),
                    limit=k,
                    filter=expression,
                    output_fields=[_KEY],
                    search_params={"metric_type": "IP"},
                    consistency_level="Strong",
                )
            for q, hits in enumerate(answers):
                found[q].extend((float(hit["distance"]), int(hit[_KEY])) for hit in hits)
        for q, pairs in enumerate(found):
            best = sorted(pairs, key=lambda pair: (-pair[0], pair[1]))[:k]
            scores[q, : len(best)] = [score for score, _ in best]
            ids[q, : len(best)] = [image_id for _, image_id in best]
        return scores, ids

    def problems(self, catalog: Catalog) -> list[str]:
        with catalog.read() as snapshot:
            if snapshot.searchable == 0:
                return []
            if self._stored() != self._current(snapshot):
                return [f"The collection in {self.uri} is behind the catalogue."]
            if not self._has_collection():
                return [f"The collection in {self.uri} is missing."]
            for ids in snapshot.stream_ids():
                for start in range(0, len(ids), _FILTER_IDS):
                    part = ids[start : start + _FILTER_IDS]
                    if self._count(f"{_KEY} in {part.tolist()}") != len(part):
                        return [f"The collection in {self.uri} lacks images of the catalogue."]
            if self._count("") != snapshot.searchable:
                return [f"The collection in {self.uri} holds images that the catalogue does not have."]
            return []

    def advice(self) -> list[str]:
        return []

    def describe(self) -> dict[str, Any]:
        described: dict[str, Any] = {"engine": f"milvus:{self.uri}", "collection": self._collection, "size": self._size}
        path = Path(self.uri)
        if self._is_file and path.exists():
            files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
            described["bytes"] = sum(file.stat().st_size for file in files)
        return described

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _fill(self, snapshot: Snapshot) -> None:
        from pymilvus import DataType

        with self._translated():
            client = self._open()
            if client.has_collection(self._collection):
                client.drop_collection(self._collection)
            dim = int(snapshot.setting("dim", 0))
            if dim == 0:
                return
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field(_KEY, DataType.INT64, is_primary=True)
            schema.add_field(_VECTOR, DataType.FLOAT_VECTOR, dim=dim)
            index = client.prepare_index_params()
            # A file is small enough for exact search; a cluster knows best what suits its hardware.
            index.add_index(_VECTOR, index_type="FLAT" if self._is_file else "AUTOINDEX", metric_type="IP")
            client.create_collection(self._collection, schema=schema, index_params=index)
            self._push(snapshot, after_id=0)

    def _push_changes(self, snapshot: Snapshot, pushed: _Pushed) -> None:
        removed = snapshot.removed_ids(pushed.generation).tolist()
        with self._translated():
            for start in range(0, len(removed), _FILTER_IDS):
                self._open().delete(self._collection, ids=removed[start : start + _FILTER_IDS])
            self._push(snapshot, after_id=pushed.last_id)

    def _push(self, snapshot: Snapshot, *, after_id: int) -> None:
        client = self._open()
        for ids, descriptors in snapshot.stream_descriptors(after_id):
            values = descriptors.astype(np.float32)
            for start in range(0, len(ids), _PUSH_ROWS):
                pairs = zip(ids[start : start + _PUSH_ROWS].tolist(), values[start : start + _PUSH_ROWS], strict=True)
                client.upsert(self._collection, [{_KEY: image_id, _VECTOR: vector} for image_id, vector in pairs])
        # Without these, Milvus searches what has not been indexed by brute force, and only when asked nicely.
        client.flush(self._collection)
        client.load_collection(self._collection)

    def _count(self, expression: str) -> int:
        with self._translated():
            rows = self._open().query(
                self._collection, filter=expression, output_fields=["count(*)"], consistency_level="Strong"
            )
        return int(rows[0]["count(*)"])

    def _has_collection(self) -> bool:
        with self._translated():
            return bool(self._open().has_collection(self._collection))

    def _open(self) -> Any:
        with self._lock:
            if self._client is None:
                from pymilvus import MilvusClient

                # It logs every refusal with its trace; the error that is raised says it once.
                logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
                logging.getLogger("milvus_lite").setLevel(logging.CRITICAL)
                self._client = MilvusClient(self.uri)
                if self._client.has_collection(self._collection):
                    self._client.load_collection(self._collection)
            return self._client

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        from pymilvus.exceptions import MilvusException

        try:
            yield
        except MilvusException as error:
            if self._is_file and "local milvus" in str(error).lower():
                raise GalleryLockedError(
                    f"{self.uri} could not be opened: Milvus Lite lets one process at a time use its file. Stop the "
                    f"other one, or use a server: `tessera migrate --engine milvus:http://HOST:19530`. ({error})"
                ) from error
            raise GalleryError(
                f"Milvus at {self.uri} refused: {error}. If its data are lost, `tessera check --repair` fills it again."
            ) from error

    def _current(self, snapshot: Snapshot) -> _Pushed:
        fingerprint = str(snapshot.setting("fingerprint", ""))
        return _Pushed(self.uri, snapshot.generation, snapshot.last_id(), fingerprint)

    @staticmethod
    def _reaches(pushed: _Pushed, current: _Pushed, snapshot: Snapshot) -> bool:
        return (
            (pushed.uri, pushed.fingerprint) == (current.uri, current.fingerprint)
            and int(snapshot.setting("removals_since", 0)) <= pushed.generation <= current.generation
            and pushed.last_id <= current.last_id
        )

    def _stored(self) -> _Pushed | None:
        try:
            return _Pushed(**json.loads(self._state_path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def _remember(self, current: _Pushed) -> None:
        write_atomically(self._state_path, json.dumps(asdict(current)).encode())
        self._behind = False
