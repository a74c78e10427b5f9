"""How images reach a remote catalogue: a shard is written, its rows are sent, and the shard is marked as sent.

Killed in between, the shard is there and unmarked: whoever writes next sends it. Nothing is lost, and since a row's key
is made of the picture's content, nothing is doubled.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tessera.gallery.remote.remote_collection import RemoteCollection
from tessera.gallery.remote.shards import FAILED, REMOVED, RemoteImage, Shards, key_of

SHARD_IMAGES = 1024  # some 16 MB with local features
SHARD_SECONDS = 30.0  # what a killed writer has to do again


class RemoteWriter:
    """One writer of many; not for several threads."""

    def __init__(self, shards: Shards, collection: RemoteCollection, settings: dict[str, Any]) -> None:
        self._shards, self._collection = shards, collection
        self._model = {key: settings[key] for key in ("fingerprint", "local_fingerprint", "dim")}
        self._images: dict[int, RemoteImage] = {}
        self._failed: list[dict[str, Any]] = []
        self._removed: dict[int, dict[str, Any]] = {}
        self._flushed_at = time.monotonic()

    def holds(self, image_id: int) -> bool:
        """Whether an image waits for its shard."""
        return image_id in self._images

    def put(self, image: RemoteImage) -> None:
        self._images[image.id] = image
        self._removed.pop(image.id, None)
        if len(self._images) >= SHARD_IMAGES or time.monotonic() - self._flushed_at > SHARD_SECONDS:
            self.flush()

    def fail(self, path: bytes, size: int, mtime_ns: int, error: str) -> None:
        """Write down that a picture could not be read, or, with no error, that it can be now."""
        row = {"id": key_of(path), "path": path, "size": size, "mtime_ns": mtime_ns, "error": error}
        self._failed.append(row)

    def remove(self, image_id: int, path: bytes, *, ignore: bool) -> None:
        """Take an image out. ignore: for good, until it is named itself."""
        self._removed[image_id] = {"id": image_id, "path": path, "ignore": ignore}

    def flush(self) -> None:
        """Store all that waits; it is acknowledged, and can be found, from now on."""
        is_change = bool(self._images or self._removed)
        self._shards.write_rows(FAILED, self._failed)
        self._failed = []
        if self._images:
            images = list(self._images.values())
            name, spans = self._shards.write_images(images, self._model)
            self._collection.put_images(images, spans)
            self._shards.mark_sent(name)
            self._images = {}
        if self._removed:
            self._shards.write_rows(REMOVED, list(self._removed.values()))
            self._collection.delete(list(self._removed))
            self._removed = {}
        if is_change:
            self._collection.count()  # strong: it waits until every node has what was written
        self._flushed_at = time.monotonic()


def send_shards(shards: Shards, collection: RemoteCollection, names: Sequence[str]) -> int:
    """Send shards that the collection may lack, but for images that were removed since; how many rows there were."""
    removed = {image_id: name for image_id, (name, _) in shards.read_rows(REMOVED).items()} if names else {}
    sent = 0
    for name in names:
        images, _ = shards.read_images(name)
        living = [image for image in images if removed.get(image.id, "") < name]
        collection.put_images(living, shards.find_spans(name, living))
        shards.mark_sent(name)
        sent += len(living)
    return sent
