"""The embedded engine: the index of `tessera.index`, kept in step with the catalogue.

Beside the index lies `state.json`: the generation and the last id that it holds. It is written after the index; a
crash between the two leaves an index that is ahead of its state, and adding or removing again what it has already is
harmless.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tessera.errors import IndexingError
from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.catalog.checksums import row_checksum
from tessera.gallery.catalog.records import Ids
from tessera.gallery.catalog.snapshot import Snapshot
from tessera.gallery.engines.engine import Shown
from tessera.index.build import build_index, choose_codec, load_index
from tessera.index.files import MANIFEST, verify
from tessera.index.search_index import DRIFT_RATIO, SearchIndex
from tessera.storage import parse_json, storage_error, write_atomically

STATE_NAME = "state.json"
SAVE_AFTER = 256  # a reader that opens the index makes up so many changes itself in no time
REFIT_GROWTH = 2.0  # times the size that the codec was fitted for: then it is fitted anew
_MADE_AGAIN = "The next search or `tessera index` makes it."
_LOADS = 3  # how often to read an index that is replaced at the same moment

T = TypeVar("T")


@dataclass(frozen=True)
class State:
    """Which moment of the catalogue an index shows."""

    generation: int
    last_id: int
    fingerprint: str
    codec: str  # as asked for: `auto` stays `auto`


@dataclass(frozen=True)
class _View:
    """What searches use; replaced as a whole."""

    index: SearchIndex
    state: State
    unsaved: int  # changes since the files were written


class FaissEngine:
    def __init__(self, index_dir: Path, *, codec: str) -> None:
        self.index_dir = index_dir
        self.codec = codec
        self._view: _View | None = None
        self._moves = 0  # how often an index was brought up to a later moment: counted before it changes
        self._lock = threading.RLock()

    @property
    def shown(self) -> Shown | None:
        moves, view = self._moves, self._view
        if view is None:
            return None
        return Shown(view.index, view.state.generation, view.state.fingerprint, lambda: self._moves != moves)

    def is_behind(self, catalog: Catalog) -> bool:
        return False  # every reader catches up in memory

    @property
    def worth_saving(self) -> bool:
        return self._view is not None and self._view.unsaved >= SAVE_AFTER

    @contextlib.contextmanager
    def pin(self, catalog: Catalog) -> Iterator[tuple[Snapshot, Shown | None]]:
        with contextlib.ExitStack() as held:
            # Opened under the lock, the snapshot is never older than the index: whoever moves it on holds the lock.
            with self._lock:
                snapshot = held.enter_context(self._catch_up(catalog))
                shown = self.shown
            yield snapshot, shown

    def refresh(self, catalog: Catalog, *, writing: bool = False) -> None:
        if writing:
            self._renew(catalog)
        with self._lock:
            if not writing or self._view is not None:  # who only writes need not open the index
                with self._catch_up(catalog):
                    pass
            if writing:
                self._save_if_due(catalog)

    def rebuild(self, catalog: Catalog) -> None:
        with catalog.read() as snapshot:
            self._build_and_save(snapshot, _current_state(snapshot, self.codec))
        self._trim(catalog)

    def problems(self, catalog: Catalog) -> list[str]:
        return self._read_stored(lambda state: self._look_through(catalog, state))

    def unfinished(self, catalog: Catalog) -> list[str]:
        state = self._stored_state()
        with catalog.read() as snapshot:
            if snapshot.searchable == 0:
                return []
            if state is None:
                is_there = (self.index_dir / STATE_NAME).is_file()  # then it is damage
                return (
                    [] if is_there else [f"The index in {self.index_dir} is missing or was not finished. {_MADE_AGAIN}"]
                )
            if not _reaches(state, _current_state(snapshot, self.codec), snapshot):
                stale = f"The index in {self.index_dir} is stale: it shows generation {state.generation}."
                return [f"{stale} {_MADE_AGAIN}"]
            return []

    def _look_through(self, catalog: Catalog, state: State | None) -> list[str]:
        with catalog.read() as snapshot:
            current = _current_state(snapshot, self.codec)
            if state is None and snapshot.searchable and (self.index_dir / STATE_NAME).is_file():
                return [f"{self.index_dir / STATE_NAME} is damaged: nothing tells what the index beside it shows."]
            if snapshot.searchable == 0 or state is None or not _reaches(state, current, snapshot):
                return []  # nothing that a search would use
            try:
                found = [f"{problem}." for problem in verify(self.index_dir)]
                if found:
                    return found
                index = load_index(self.index_dir)
            except IndexingError as error:
                return [str(error)]
            _replay(index, snapshot, state)
            expected = np.concatenate([np.empty(0, np.int64), *snapshot.stream_ids()])
            if not np.array_equal(index.ids(), expected):
                return [f"The index in {self.index_dir} holds other images than the catalogue."]
            return []

    def advice(self) -> list[str]:
        """What would make searching better, though nothing is wrong."""
        view = self._view
        if view is None or (drift := view.index.drift()) <= DRIFT_RATIO:
            return []
        return [
            f"The codec fits what was added since it was made less well (error {drift:.2f} times that of then): "
            "`tessera check --repair` or `tessera index --rebuild` makes the index anew."
        ]

    def describe(self) -> dict[str, Any]:
        view = self._view
        files = [path for path in self.index_dir.glob("*") if path.is_file()]
        described: dict[str, Any] = {"engine": "faiss", "bytes": sum(path.stat().st_size for path in files)}
        if view is not None:
            described |= view.index.describe() | {"memory_bytes": view.index.memory_bytes, "drift": view.index.drift()}
        return described

    def close(self) -> None:
        """Nothing to do: the index and its files go with the last search that uses them."""

    @contextlib.contextmanager
    def _catch_up(self, catalog: Catalog) -> Iterator[Snapshot]:
        """Show the catalogue as it is now: by what has changed, by the index on disk, or by one made in memory.

        Yields the snapshot that is shown; the caller holds the lock.
        """
        with catalog.read() as snapshot:
            if self._shows(snapshot):
                yield snapshot
                return
        stored = self._stored_view()
        with catalog.read() as snapshot:  # opened later than the index was stored, so not older than it
            current = _current_state(snapshot, self.codec)
            if stored is None or not self._follow(stored, snapshot, current):
                self._view = _build_in_memory(snapshot, current)
            yield snapshot

    def _shows(self, snapshot: Snapshot) -> bool:
        """Whether what is in memory shows the snapshot, after the changes since were made in it."""
        if self._view is not None and self._view.state.generation == snapshot.generation:
            return True
        if snapshot.searchable == 0:
            self._view = None
            return True
        return self._view is not None and self._follow(self._view, snapshot, _current_state(snapshot, self.codec))

    def _follow(self, view: _View, snapshot: Snapshot, current: State) -> bool:
        """Bring a view up to the snapshot and search with it from now on; False where that cannot be done."""
        if view.state != current:
            if not _reaches(view.state, current, snapshot):
                return False
            self._moves += 1
            changes = _replay(view.index, snapshot, view.state)
            if view.index.needs_maintenance:
                view.index.maintain()
            if view.index.size != snapshot.searchable:
                return False  # whatever the reason, the catalogue is right
            view = _View(view.index, current, view.unsaved + changes)
        self._view = view
        return True

    def _stored_view(self) -> _View | None:
        """The index on disk, if it is whole."""

        def load(state: State | None) -> _View | None:
            with contextlib.suppress(IndexingError):
                return None if state is None else _View(load_index(self.index_dir), state, 0)
            return None

        return self._read_stored(load)

    def _read_stored(self, read: Callable[[State | None], T]) -> T:
        """What `read` makes of the files: of one saving, though another process may replace them meanwhile."""
        for _ in range(_LOADS):
            saved = self._saved()
            found = read(self._stored_state())
            if self._saved() == saved:
                break
        return found

    def _saved(self) -> list[bytes]:
        """What tells one saving from another: the names of its files, and its state."""
        paths = (self.index_dir / MANIFEST, self.index_dir / STATE_NAME)
        return [path.read_bytes() if path.is_file() else b"" for path in paths]

    def _renew(self, catalog: Catalog) -> None:
        """Build and save a new index where there is none, or where the gallery has outgrown the one that there is.

        By the one writer, and without the lock: searches go on with what they have, however long it takes.
        """
        _remove_abandoned_builds(self.index_dir)
        with catalog.read() as snapshot:
            current = _current_state(snapshot, self.codec)
            if snapshot.searchable == 0 or self._stored_state() == current:
                return
            view = self._view or self._stored_view()
            if view is not None and _reaches(view.state, current, snapshot) and not self._outgrown(view, snapshot):
                with self._lock:
                    self._view = self._view or view
                return
            self._build_and_save(snapshot, current)

    def _build_and_save(self, snapshot: Snapshot, current: State) -> None:
        if snapshot.searchable == 0:
            self._view = None
            return
        with _scratch_folder(self.index_dir) as scratch:
            self._write(build_index(self.codec, *_spool(snapshot, scratch / "descriptors.f16")), current)
        with self._lock:
            if self._view is not None:  # a command that only indexes need not open it
                # Opened again, so that searches read the file that was saved and not the one that has gone.
                self._view = _View(load_index(self.index_dir), current, 0)

    def _outgrown(self, view: _View, snapshot: Snapshot) -> bool:
        """Whether so much has come that the codec should be chosen and fitted anew."""
        arriving = snapshot.count_after(view.state.last_id)
        size = view.index.size + arriving
        chosen = choose_codec(size) if self.codec == "auto" else self.codec
        if arriving > view.index.size or view.index.grown * size >= REFIT_GROWTH * view.index.size:
            return True
        return chosen != view.index.codec and choose_codec(size * 9 // 10) == chosen

    def _save_if_due(self, catalog: Catalog) -> None:
        view = self._view
        if view is not None and view.unsaved >= SAVE_AFTER:
            self._write(view.index, view.state)
            self._view = _View(view.index, view.state, 0)
        self._trim(catalog)

    def _trim(self, catalog: Catalog) -> None:
        """Forget the removals that the saved index knows, once after each saving."""
        state = self._stored_state()
        with catalog.read() as snapshot:
            trimmed_to = snapshot.counter("removals_since")
        if state is not None and trimmed_to < state.generation:
            with catalog.write() as batch:
                batch.trim_removals(state.generation)

    def _write(self, index: SearchIndex, state: State) -> None:
        index.save(self.index_dir)
        content = {**asdict(state), "checksum": row_checksum(*astuple(state))}
        write_atomically(self.index_dir / STATE_NAME, json.dumps(content).encode())

    def _stored_state(self) -> State | None:
        try:
            values = parse_json((self.index_dir / STATE_NAME).read_bytes())
            checksum = values.pop("checksum", None)  # of earlier versions there is none
            state = State(**values)
            return state if checksum in (None, row_checksum(*astuple(state))) else None
        except (OSError, ValueError, TypeError, AttributeError, OverflowError):
            return None


def _current_state(snapshot: Snapshot, codec: str) -> State:
    fingerprint = str(snapshot.setting("fingerprint", ""))
    return State(snapshot.generation, snapshot.last_id(), fingerprint, codec)


def _reaches(state: State, current: State, snapshot: Snapshot) -> bool:
    """Whether the changes since `state` are all still known, so that it can be brought up to `current`."""
    return (
        state.fingerprint == current.fingerprint
        and state.codec == current.codec
        and snapshot.counter("removals_since") <= state.generation <= current.generation
        and state.last_id <= current.last_id
    )


def _build_in_memory(snapshot: Snapshot, current: State) -> _View | None:
    """For a reader, who may write no file of the gallery."""
    if snapshot.searchable == 0:
        return None
    with _scratch_folder(None) as scratch:
        index = build_index(current.codec, *_spool(snapshot, scratch / "descriptors.f16"))
    return _View(index, current, max(index.size, SAVE_AFTER))


def _replay(index: SearchIndex, snapshot: Snapshot, state: State) -> int:
    """Make the changes since `state` in the index; how many there were.

    Additions first: a changed image has a new id, and searches under way must find one of the two.
    """
    changes = 0
    for ids, descriptors in snapshot.stream_descriptors(state.last_id):
        index.add(ids, descriptors)
        changes += len(ids)
    return changes + index.remove(snapshot.removed_ids(state.generation))


def _spool(snapshot: Snapshot, path: Path) -> tuple[Ids, npt.NDArray[np.float16]]:
    """Copy every descriptor from the catalogue into a file, mapped: N D, in the order of ids."""
    parts: list[Ids] = []
    dim = 0
    try:
        with path.open("wb") as file:
            for part_ids, descriptors in snapshot.stream_descriptors():
                parts.append(part_ids)
                file.write(np.ascontiguousarray(descriptors).data)
                dim = descriptors.shape[1]
    except OSError as error:
        raise storage_error(error, path) from error
    ids = np.concatenate(parts)
    return ids, np.memmap(path, np.float16, "r", shape=(len(ids), dim))


@contextlib.contextmanager
def _scratch_folder(index_dir: Path | None) -> Iterator[Path]:
    """A folder for the length of a build: beside the index, where there is room for it, or for a reader anywhere."""
    try:
        if index_dir is not None:
            index_dir.mkdir(parents=True, exist_ok=True)
            _remove_abandoned_builds(index_dir)
        folder = Path(tempfile.mkdtemp(prefix=".build-", dir=index_dir))
    except OSError as error:
        raise storage_error(error, index_dir or Path(tempfile.gettempdir())) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned_builds(index_dir: Path) -> None:
    """By the one writer: what builds have left that were killed."""
    for left in index_dir.glob(".build-*"):
        shutil.rmtree(left, ignore_errors=True)
