"""The gallery's inverted file, kept in step with the catalogue: a cache of its local features.

On disk it is a few segments, each a range of ids, larger ones first; a manifest names them and is written last. What
came after the last segment is added in memory. An image that was removed stays in its segment, where it can only be
found by a reader whose catalogue still has it, until there are so many that everything is written anew.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import threading
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tessera.errors import IndexingError
from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.catalog.snapshot import Snapshot
from tessera.index.files import sample_digest
from tessera.index.locks import SharedLock
from tessera.local.compact import Codes, CompactFeatures
from tessera.local.postings import Ids, Postings, Scores, verify_files
from tessera.storage import hash_file, parse_json, write_atomically

FOLDER = "postings"
_MANIFEST = "manifest.json"
SAVE_AFTER = 256  # images in memory; a reader makes up so many in a moment
_GROWTH = 2.0  # a segment is at least so many times as large as the one after it
_MOST_DEAD = 0.2
_WHOLE_BYTES = 16 << 20  # of larger files, pages are compared when they are opened; `check` reads all
_FEW_IMAGES = 2000  # scanned sooner than other threads are awake
_LOADS = 3  # how often to try to read segments that are replaced at the same moment


@dataclass(frozen=True)
class _Segment:
    name: str
    images: int
    last_id: int
    digest: str = ""  # of its files, as `_digest` sees them


@dataclass(frozen=True)
class _Manifest:
    """fingerprint: of the local features and of the descriptors: a new model gives every image a new id."""

    fingerprint: str
    segments: tuple[_Segment, ...] = ()

    @property
    def last_id(self) -> int:
        return self.segments[-1].last_id if self.segments else 0


class PostingsIndex:
    """One inverted file of one gallery, for as many threads as there are."""

    is_filtered = False

    def __init__(self, gallery_dir: Path, num_words: int, features: str) -> None:
        self.folder = gallery_dir / FOLDER
        self._num_words, self._features = num_words, features
        self._lock = SharedLock()
        self._refreshing = threading.Lock()
        self._manifest: _Manifest | None = None
        self._manifest_file: tuple[int, int] | None = None  # which file it was read from
        self._saved: list[Postings] = []
        self._tail = Postings(num_words)
        self._last_id = 0  # of the last image that was looked at

    def scores(self, words: Any, codes: Codes) -> tuple[Ids, Scores]:
        """Every image's id and its similarity with a query of aggregated words and codes."""
        from tessera.index.codecs.codec import use_threads

        with self._lock.shared():
            parts = [*self._saved, self._tail]
            with use_threads(1 if sum(map(len, parts)) < _FEW_IMAGES else None):
                found = [part.scores(words, codes) for part in parts]
            return np.concatenate([part.ids for part in parts]), np.concatenate(found)

    def __len__(self) -> int:
        with self._lock.shared():
            return sum(map(len, (*self._saved, self._tail)))

    def refresh(self, snapshot: Snapshot) -> None:
        """Show the catalogue as the snapshot has it, by the segments on disk and what came after them."""
        with self._refreshing:
            fingerprint = self._fingerprint_of(snapshot)
            if self._manifest is None or self._manifest.fingerprint != fingerprint or self._was_rewritten():
                self._open(fingerprint)
            self._add_after(snapshot)

    def shows_model_of(self, snapshot: Snapshot) -> bool:
        """Whether it is open and has the ids of the gallery's present model, however many have come since."""
        return self._manifest is not None and self._manifest.fingerprint == self._fingerprint_of(snapshot)

    def save(self, catalog: Catalog) -> None:
        """Write down what is not on disk, by the one writer; large changes make one segment of several."""
        with catalog.read() as snapshot:
            fingerprint, searchable = self._fingerprint_of(snapshot), snapshot.searchable
            manifest = self._read_manifest()
            if manifest is None or manifest.fingerprint != fingerprint:
                manifest = _Manifest(fingerprint)
            kept = list(manifest.segments)
            arrived = snapshot.count_after(manifest.last_id)
            if sum(segment.images for segment in kept) + arrived > (1 + _MOST_DEAD) * searchable + SAVE_AFTER:
                kept = []
            elif arrived < SAVE_AFTER and (kept or arrived == 0):
                return
            size = arrived
            while kept and kept[-1].images < _GROWTH * size:
                size += kept.pop().images
            self._write(snapshot, fingerprint, kept)

    def rebuild(self, catalog: Catalog) -> None:
        """Write everything anew, by the one writer."""
        with catalog.read() as snapshot:
            self._write(snapshot, self._fingerprint_of(snapshot), [])

    def unfinished(self, catalog: Catalog) -> list[str]:
        """Whether an interrupted writer, or somebody who deleted it, has left a gallery without its inverted file."""
        with catalog.read() as snapshot:
            if (self.folder / _MANIFEST).is_file() or snapshot.count_local_features(self._features)[0] == 0:
                return []
        return [
            f"The inverted file in {self.folder} is missing or was not finished. The next `tessera index` makes it."
        ]

    def problems(self) -> list[str]:
        """What is wrong with the files, read to their last byte. Missing ones are no damage: they are a cache."""
        manifest = self._read_manifest()
        if manifest is None:
            path = self.folder / _MANIFEST
            return [f"{path} is damaged: nothing tells which files the inverted file is of."] if path.is_file() else []
        found: list[str] = []
        for segment in manifest.segments:
            try:
                found += [f"{problem}." for problem in verify_files(self.folder / segment.name)]
                if not found:
                    self._load(segment)
            except IndexingError as error:
                found.append(str(error))
        return found

    def describe(self) -> dict[str, Any]:
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return {"images": len(self), "bytes": sum(path.stat().st_size for path in files)}

    def _fingerprint_of(self, snapshot: Snapshot) -> str:
        return f"{self._features}/{snapshot.setting('fingerprint')}"

    def _open(self, fingerprint: str) -> None:
        """Map the segments on disk, as far as they are whole and of this gallery as it is."""
        for _ in range(_LOADS):
            file, stored = self._stat(), self._read_manifest()
            fits = stored is not None and stored.fingerprint == fingerprint
            manifest = stored if stored is not None and fits else _Manifest(fingerprint)
            try:
                saved = [self._load(segment) for segment in manifest.segments]
                break
            except IndexingError:
                manifest, saved = _Manifest(fingerprint), []
        with self._lock.alone():
            self._manifest, self._manifest_file, self._saved = manifest, file, saved
            self._tail, self._last_id = Postings(self._num_words), manifest.last_id

    def _load(self, segment: _Segment) -> Postings:
        """A segment, mapped, its files held against their digest before anything believes what they say."""
        folder = self.folder / segment.name
        if _digest(folder) != segment.digest:
            raise IndexingError(f"The inverted file in {folder} is damaged or missing.")
        return Postings.load(folder)[0]

    def _add_after(self, snapshot: Snapshot) -> None:
        last_id = snapshot.last_id()
        if last_id <= self._last_id:
            return
        for rows in snapshot.stream_local_features(self._features, self._last_id):
            images = [(image_id, CompactFeatures.from_bytes(features)) for image_id, features in rows]
            with self._lock.alone():
                self._tail.add(images)
        self._last_id = last_id

    def _write(self, snapshot: Snapshot, fingerprint: str, kept: list[_Segment]) -> None:
        """Everything after the kept segments as a new one, then the manifest; what it does not name goes."""
        after_id, last_id = (kept[-1].last_id if kept else 0), snapshot.last_id()
        built = Postings(self._num_words)
        for rows in snapshot.stream_local_features(self._features, after_id):
            built.add([(image_id, CompactFeatures.from_bytes(features)) for image_id, features in rows])
        name = f"segment-{uuid.uuid4().hex[:12]}"
        built.save(self.folder / name, {})
        segment = _Segment(name, len(built), last_id, _digest(self.folder / name))
        manifest = _Manifest(fingerprint, (*kept, segment))
        content = asdict(manifest)
        write_atomically(self.folder / _MANIFEST, json.dumps({**content, "sha256": _sum(content)}).encode())
        named = {one.name for one in manifest.segments}
        for left in self.folder.glob("segment-*"):
            if left.name not in named:
                shutil.rmtree(left, ignore_errors=True)  # who has it mapped keeps it until it lets go

    def _was_rewritten(self) -> bool:
        """Whether another process, or this one, has written other segments since they were opened."""
        return self._stat() != self._manifest_file

    def _stat(self) -> tuple[int, int] | None:
        try:
            status = (self.folder / _MANIFEST).stat()
        except OSError:
            return None
        return status.st_ino, status.st_mtime_ns

    def _read_manifest(self) -> _Manifest | None:
        try:
            values = parse_json((self.folder / _MANIFEST).read_bytes())
            if values.pop("sha256") != _sum(values):
                return None
            return _Manifest(values["fingerprint"], tuple(_Segment(**segment) for segment in values["segments"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


def _digest(folder: Path) -> str:
    """What a segment's files are told by: their content, of a large one its length and pages spread over it."""
    digest = hashlib.sha256()
    try:
        for path in sorted(folder.glob("[!.]*")):
            found = hash_file(path) if path.stat().st_size <= _WHOLE_BYTES else sample_digest(path)
            digest.update(f"{path.name} {found}\n".encode())
    except OSError as error:
        raise IndexingError(f"The inverted file in {folder} cannot be read: {error}.") from error
    return digest.hexdigest()


def _sum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
