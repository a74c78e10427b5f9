"""A gallery whose folder holds one small file, which says where its collection and its shards are."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tessera.errors import GalleryError, GalleryMismatchError, MissingExtraError, StorageError, UsageError
from tessera.gallery.catalog.catalog import CATALOG_NAME
from tessera.gallery.catalog.paths import printable
from tessera.gallery.engines.engine import Shown, parse_engine, split_index
from tessera.gallery.engines.milvus_connection import SERVICE_WAIT_S, WAIT_S, MilvusConnection
from tessera.gallery.gallery_folder import make_gallery_folder
from tessera.gallery.remote.remote_collection import RemoteCollection
from tessera.gallery.remote.remote_snapshot import RemoteCatalog, RemoteIndex, RemoteSnapshot, expression_of
from tessera.gallery.remote.shards import DAMAGED, IMAGES, Shards
from tessera.gallery.store import DEFAULT_CODEC, Store
from tessera.gallery.view import View
from tessera.models.bundle import DEFAULT_MODEL
from tessera.storage import parse_json, write_atomically

MARKER_NAME = "remote.json"


def is_remote(gallery_dir: Path) -> bool:
    return (gallery_dir / MARKER_NAME).is_file()


def refuse_remote(gallery_dir: Path, what: str) -> None:
    if is_remote(gallery_dir):
        raise UsageError(f"{what} needs a catalogue on this machine; {printable(gallery_dir)} has a remote one.")


class RemoteStore(Store):
    """A store without a catalogue file. Any number of processes may write at once, on any number of machines."""

    has_postings = False
    catalog: RemoteCatalog  # type: ignore[assignment]

    def __init__(self, path: Path, *, storage: str | None, **options: Any) -> None:
        self._asked_storage = storage
        super().__init__(path, **options)

    def _open(self, engine: str | None, *, create: bool) -> None:
        if find_spec("pymilvus") is None:
            raise MissingExtraError("--catalog remote", "milvus")
        shown, marker = printable(self.path), self.path / MARKER_NAME
        settings = _read_marker(marker) if marker.is_file() else None
        if settings is None and not create:
            raise GalleryError(f"There is no gallery at {shown}. Make one with `tessera index PHOTOS -g {shown}`.")
        asked = {"engine": engine, "storage": None if self._asked_storage is None else Shards(self._asked_storage).url}
        self.settings = self._join(asked) if settings is None else settings
        for key, value in asked.items():
            if value is not None and self.settings[key] != value:
                raise GalleryMismatchError(
                    f"{shown} has the {key} {self.settings[key]}, not {value}. Choose another gallery with -g."
                )
        self.shards = Shards(self.settings["storage"])
        self.collection = self._collection_of(self.settings)
        self.catalog = RemoteCatalog(self.collection.for_readers(), self.shards, self.settings)

    def _join(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Join a catalogue, or begin it, and write down where it is. The storage's address is the catalogue's name."""
        if asked["engine"] is None or parse_engine(asked["engine"])[0] != "milvus" or asked["storage"] is None:
            raise UsageError("--catalog remote needs --engine milvus:URI and --storage URL (a folder, s3://, gs://).")
        if (self.path / CATALOG_NAME).is_file():
            raise GalleryMismatchError(
                f"{printable(self.path)} has a catalogue of its own. Choose another folder for a remote one with -g."
            )
        describer = self._describe_by(str(self._asked_model or DEFAULT_MODEL))
        settings = {
            **asked,
            "collection": "tessera_" + hashlib.sha256(asked["storage"].encode()).hexdigest()[:24],
            "codec": self._asked_codec or DEFAULT_CODEC,
            "model": self._asked_model,
            "fingerprint": describer.fingerprint,
            "local_fingerprint": self.local_describer.model.fingerprint,
            "dim": describer.dim,
        }
        Shards(asked["storage"]).refuse_unwritable()
        collection = self._collection_of(settings)
        try:
            ensure_collection(collection, settings)
        finally:
            collection.connection.close()
        make_gallery_folder(self.path)
        write_atomically(self.path / MARKER_NAME, json.dumps(settings, indent=1).encode())
        return settings

    def _collection_of(self, settings: dict[str, Any]) -> RemoteCollection:
        uri, asked_type = split_index(parse_engine(settings["engine"])[1])
        wait_s = SERVICE_WAIT_S if self._in_background else WAIT_S
        connection = MilvusConnection(uri, wait_s=wait_s, holds_catalog=True)
        dim, codec = int(settings["dim"]), str(settings["codec"])
        return RemoteCollection(connection, settings["collection"], dim=dim, codec=codec, asked_type=asked_type)

    def refuse_empty_storage(self) -> None:
        """A storage without a single shard, of which the collection has images, is a disk that is not mounted."""
        is_empty = not (self.shards.names(IMAGES) or self.shards.names(DAMAGED))
        if is_empty and self.collection.describe() and (images := self.collection.count()):
            raise StorageError(
                f"The storage {self.shards.url} is empty, though {images} images lie there. Mount it, or check its "
                "address and credentials; if it is lost, begin another with --storage."
            )

    @contextlib.contextmanager
    def write(self) -> Iterator[None]:
        """Nobody waits for anybody."""
        yield

    @contextlib.contextmanager
    def pin(self) -> Iterator[View]:
        with self.catalog.read() as snapshot:
            if snapshot.searchable == 0:
                raise self._empty(snapshot.count_failed())
            yield View(snapshot, self._shown(snapshot), int(self.settings["dim"]))  # type: ignore[arg-type]

    def _shown(self, snapshot: RemoteSnapshot) -> Shown:
        index = RemoteIndex(self.catalog.collection, snapshot)
        return Shown(
            index,
            snapshot.generation,
            self.settings["fingerprint"],
            lambda: False,
            lambda conditions: bool(expression_of(conditions)),
        )

    def refresh(self) -> None:
        """There is nothing here that could be stale."""

    def close(self) -> None:
        with self._opening:
            self.local_describer.close()
            self.catalog.close()


def ensure_collection(collection: RemoteCollection, settings: dict[str, Any]) -> None:
    """Both models are the collection's: features of another system could not be compared either."""
    fingerprint = f"{settings['fingerprint']}+{settings['local_fingerprint']}"
    collection.ensure(fingerprint)


def _read_marker(path: Path) -> dict[str, Any]:
    try:
        settings = parse_json(path.read_bytes())
        texts = ("engine", "storage", "collection", "fingerprint", "local_fingerprint", "codec")
        if all(isinstance(settings[key], str) for key in texts) and isinstance(settings["dim"], int):
            return dict(settings)
    except (OSError, ValueError, TypeError, KeyError):
        pass
    raise GalleryError(
        f"{path} cannot be read. Delete it and name --catalog remote, --engine and --storage again: nothing is lost."
    )
