"""The engine for more than one machine: the catalogue's images mirrored into a collection of Milvus.

The same client and calls serve a cluster (`http://HOST:19530`) and Milvus Lite (a file, one process at a time). The
catalogue stays the truth: writers push their changes, what could not be pushed is pushed by the next command, and a
collection that is lost is filled again.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.errors import GalleryMismatchError, MissingExtraError, UsageError
from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.catalog.checksums import row_checksum
from tessera.gallery.catalog.records import Ids
from tessera.gallery.catalog.snapshot import Snapshot
from tessera.gallery.engines.engine import Allowed, Shown, split_index
from tessera.gallery.engines.milvus_collection import PAGE_ROWS, Description, MilvusCollection, by_ids
from tessera.gallery.engines.milvus_connection import WAIT_S, MilvusConnection
from tessera.gallery.engines.milvus_filters import to_expression
from tessera.gallery.engines.milvus_index import MilvusIndex, Scores, choose_index, measure_index, search_best
from tessera.storage import parse_json, write_atomically

STATE_NAME = "milvus.json"
_FILTER_IDS = 10000  # ids in one filter expression; more are searched in parts and merged
_SETTLE_AFTER = 4096  # rows that are pushed without being sealed; a server seals them by itself, but later


@dataclass(frozen=True)
class _Pushed:
    """Which moment of the catalogue the collection shows, and how it is searched."""

    uri: str
    generation: int
    last_id: int
    fingerprint: str
    index: MilvusIndex = field(default_factory=MilvusIndex)

    @property
    def moment(self) -> tuple[str, int, int, str]:
        return self.uri, self.generation, self.last_id, self.fingerprint


class MilvusEngine:
    def __init__(
        self, target: str, gallery_dir: Path, *, collection: str, codec: str = "auto", wait_s: float = WAIT_S
    ) -> None:
        if find_spec("pymilvus") is None:  # importing it takes longer than many a command
            raise MissingExtraError("the engine 'milvus'", "milvus")
        self.uri, self._asked_type = split_index(target)
        self._name, self._codec = f"milvus:{target}", codec
        self._connection = MilvusConnection(self.uri, wait_s=wait_s)
        self._collection = MilvusCollection(self._connection, collection)
        self._state_path = gallery_dir / STATE_NAME
        self._lock = threading.RLock()
        self._size = 0
        self._shown: Shown | None = None
        self._pushed: _Pushed | None = None
        self._described: Description | None = None  # once looked at
        self._behind = False
        self._catalog: Catalog | None = None  # whose images were shown last

    @property
    def size(self) -> int:
        return self._size

    @property
    def shown(self) -> Shown | None:
        return self._shown if self._size else None

    @contextlib.contextmanager
    def pin(self, catalog: Catalog) -> Iterator[tuple[Snapshot, Shown | None]]:
        with catalog.read() as snapshot:
            yield snapshot, None if snapshot.searchable == 0 else self._show(snapshot, catalog)

    def _show(self, snapshot: Snapshot, catalog: Catalog) -> Shown:
        """The collection is the same for every reader: it shows whatever its writer has pushed, after the catalogue."""
        self._catalog = catalog
        pushed = self._stored()
        generation = -1 if pushed is None else pushed.generation
        self._size, self._pushed = snapshot.searchable, pushed
        self._behind = pushed is None or pushed.moment != self._current(snapshot).moment
        fingerprint = str(snapshot.setting("fingerprint", ""))
        if self._shown is None or (self._shown.generation, self._shown.fingerprint) != (generation, fingerprint):
            self._described = None
            self._shown = Shown(
                self,
                generation,
                fingerprint,
                lambda: catalog.generation() != generation,
                # What was changed since may meet other conditions.
                lambda conditions: not self._behind and self._expression(conditions) is not None,
            )
        return self._shown

    @property
    def worth_saving(self) -> bool:
        return self._behind

    def is_behind(self, catalog: Catalog) -> bool:
        with catalog.read() as snapshot:
            if snapshot.searchable:
                self._show(snapshot, catalog)
                return self._behind
            return False

    def refresh(self, catalog: Catalog, *, writing: bool = False) -> None:
        if not self._lock.acquire(blocking=writing):
            return  # another thread is at it; a reader has nothing to push, and need not wait
        try:
            with catalog.read() as snapshot:
                self._show(snapshot, catalog)
                if not self._behind or not writing:
                    return
                current = self._current(snapshot)
                self._push(snapshot, self._pushed)
                self._show(snapshot, catalog)
            with catalog.write() as batch:
                batch.trim_removals(current.generation)
        finally:
            self._lock.release()

    def rebuild(self, catalog: Catalog) -> None:
        with self._lock, catalog.read() as snapshot:
            self._fill(snapshot)
            self._show(snapshot, catalog)

    def search(self, queries: npt.ArrayLike, k: int, *, allowed: npt.ArrayLike | None = None) -> tuple[Scores, Ids]:
        if k > PAGE_ROWS:
            raise UsageError(f"Milvus answers at most {PAGE_ROWS} results, not {k}. Ask for fewer, or use faiss.")
        self._refuse_other_model()
        index = self._pushed.index if self._pushed else MilvusIndex()
        asked = np.atleast_2d(np.asarray(queries, np.float32))
        return search_best(self._collection, index, asked, k, self._expressions(allowed), self._descriptors)

    def _descriptors(self, ids: Sequence[int]) -> Mapping[int, npt.NDArray[Any]]:
        assert self._catalog is not None
        with self._catalog.read() as snapshot:
            return snapshot.descriptors(ids)

    def _expressions(self, allowed: npt.ArrayLike | None) -> list[str]:
        """One filter, or several whose answers are to be merged."""
        if allowed is None:
            return [""]
        if isinstance(allowed, Allowed) and self._shown is not None and self._shown.can_filter(allowed.conditions):
            return [self._expression(allowed.conditions) or ""]
        wanted: Ids = np.asarray(allowed, np.int64)
        return [by_ids(part) for part in np.split(wanted, range(_FILTER_IDS, len(wanted), _FILTER_IDS)) if len(part)]

    def _expression(self, conditions: Any) -> str | None:
        described = self._describe()
        return None if described is None else to_expression(conditions, described.keys)

    def _describe(self) -> Description | None:
        if self._described is None:
            self._described = self._collection.describe()
        return self._described

    def _refuse_other_model(self) -> None:
        """A copy of a gallery has the collection of the first: whoever described it anew has filled it with others."""
        described, shown = self._describe(), self._shown
        if described is not None and shown is not None and described.fingerprint != shown.fingerprint:
            raise GalleryMismatchError(
                f"The collection {self._collection.name} in {self.uri} holds descriptors of another model (fingerprint "
                f"{described.fingerprint}; this gallery's is {shown.fingerprint}). `tessera check --repair` fills it "
                "again; a copy of a gallery needs a server of its own, or `tessera migrate --engine faiss`."
            )

    def problems(self, catalog: Catalog) -> list[str]:
        with catalog.read() as snapshot:
            if snapshot.searchable == 0:
                return []
            pushed = self._stored()
            if pushed is None and self._state_path.is_file():
                return [f"{self._state_path} is damaged: nothing tells what the collection in {self.uri} shows."]
            if pushed is None or pushed.moment != self._current(snapshot).moment:
                return []  # the next command sends what it lacks before it searches
            described = self._collection.describe()
            if described is None:
                return [f"The collection in {self.uri} is missing."]
            if described.fingerprint != pushed.fingerprint:
                return [f"The collection in {self.uri} holds descriptors of another model."]
            for changed, strange in self._collection.compare(snapshot, described.keys):
                if changed:
                    return [f"The collection in {self.uri} lacks images of the catalogue, or has them otherwise."]
                if strange:
                    return [f"The collection in {self.uri} holds images that the catalogue does not have."]
            if (count := self._collection.count()) != snapshot.searchable:
                return [f"The collection in {self.uri} holds {count} rows for {snapshot.searchable} images."]
            return []

    def unfinished(self, catalog: Catalog) -> list[str]:
        pushed = self._stored()
        if pushed is None and self._state_path.is_file():
            return []  # that is damage
        with catalog.read() as snapshot:
            if snapshot.searchable == 0 or (pushed is not None and pushed.moment == self._current(snapshot).moment):
                return []
        return [
            f"The collection in {self.uri} is behind the catalogue. The next search or `tessera index` sends it more."
        ]

    def advice(self) -> list[str]:
        return []

    def describe(self) -> dict[str, Any]:
        described: dict[str, Any] = {
            "engine": self._name,
            "collection": self._collection.name,
            "size": self._size,
        }
        if self._pushed is not None:
            described |= asdict(self._pushed.index)
        path = Path(self.uri)
        if self._connection.is_file and path.exists():
            files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
            described["bytes"] = sum(file.stat().st_size for file in files)
        return described

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _push(self, snapshot: Snapshot, pushed: _Pushed | None) -> None:
        """Bring the collection to the snapshot's moment, by as little as will do. Interrupted, it is done again."""
        current = self._current(snapshot)
        described = self._collection.describe()
        if described is None or described.fingerprint != current.fingerprint:
            self._fill(snapshot)
            return
        written = 0
        if pushed is None or not self._reaches(pushed, current, snapshot):
            for changed, strange in self._collection.compare(snapshot, described.keys):
                self._collection.delete(strange)
                self._collection.put(changed, snapshot, described.keys)
                written += len(changed)
        else:
            self._collection.delete(snapshot.removed_ids(pushed.generation).tolist())
            for entries in snapshot.stream_entries(pushed.last_id):
                self._collection.put(entries, snapshot, described.keys)
                written += len(entries)
        known = None if pushed is None else pushed.index
        self._finish(snapshot, known, written)

    def _fill(self, snapshot: Snapshot) -> None:
        dim = int(snapshot.setting("dim", 0))
        if dim:
            self._choose(snapshot)  # an index that the server lacks is refused before anything is taken away
        self._forget()
        if dim:
            keys = self._collection.make(snapshot, str(snapshot.setting("fingerprint", "")), dim).keys
            for entries in snapshot.stream_entries():
                self._collection.put(entries, snapshot, keys)
            self._finish(snapshot, None, snapshot.searchable)
        elif self._collection.describe() is not None:
            self._collection.drop()

    def _finish(self, snapshot: Snapshot, index: MilvusIndex | None, written: int) -> None:
        """Index what was pushed, and see that it can be found before it is remembered as pushed."""
        chosen = self._choose(snapshot)
        is_new = index is None or index.type != chosen.type
        if is_new:
            self._collection.build(chosen.type, chosen.build)
        if written >= _SETTLE_AFTER or self._connection.is_file or (is_new and chosen.type != "FLAT"):
            self._collection.settle()
        elif is_new:
            self._collection.load()
        if is_new or index is None:
            index = measure_index(self._collection, snapshot, chosen)
        self._collection.count()  # strong: it waits until every node has what was written
        moment = self._current(snapshot)
        pushed = _Pushed(*moment.moment, index)
        content = asdict(pushed)
        write_atomically(self._state_path, json.dumps({**content, "checksum": _checksum(content)}).encode())
        self._behind = False

    def _choose(self, snapshot: Snapshot) -> MilvusIndex:
        dim = int(snapshot.setting("dim"))
        return choose_index(snapshot.searchable, dim, self._codec, self._connection, self._asked_type)

    def _forget(self) -> None:
        """Trust the collection no more, until it is filled: a fill that is interrupted must not look finished."""
        self._state_path.unlink(missing_ok=True)
        self._described = None

    def _current(self, snapshot: Snapshot) -> _Pushed:
        fingerprint = str(snapshot.setting("fingerprint", ""))
        return _Pushed(self.uri, snapshot.generation, snapshot.last_id(), fingerprint)

    @staticmethod
    def _reaches(pushed: _Pushed, current: _Pushed, snapshot: Snapshot) -> bool:
        """Whether removals and new images alone lead from the one to the other."""
        return (
            (pushed.uri, pushed.fingerprint) == (current.uri, current.fingerprint)
            and int(snapshot.setting("removals_since", 0)) <= pushed.generation <= current.generation
            and pushed.last_id <= current.last_id
            and snapshot.counter("edited") <= pushed.generation
        )

    def _stored(self) -> _Pushed | None:
        try:
            said = parse_json(self._state_path.read_bytes())
            checksum = said.pop("checksum", None)  # of earlier versions there is none
            is_whole = checksum in (None, _checksum(said))
            return _Pushed(**{**said, "index": MilvusIndex(**said["index"])}) if is_whole else None
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


def _checksum(said: dict[str, Any]) -> int:
    return row_checksum(json.dumps(said, sort_keys=True))
