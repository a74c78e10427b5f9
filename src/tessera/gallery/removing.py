"""Taking images out of the catalogue, by path, by folder or by id."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tessera.errors import GalleryError
from tessera.gallery.catalog.batch import Batch
from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.catalog.paths import printable, to_blob
from tessera.gallery.catalog.snapshot import Snapshot

PathOrId = str | os.PathLike[str] | int


def remove_images(catalog: Catalog, given: Sequence[PathOrId], *, ignore: bool) -> int:
    """How many images went: all that were named, or none and an error. The caller writes.

    ignore: write down what was named, for `index` to pass over.
    """
    with catalog.write() as batch:
        ids: set[int] = set()
        for item in given:
            found = _ids_of(batch, item)
            if not found:
                what = f"an image with the id {item}" if isinstance(item, int) else printable(item)
                raise GalleryError(f"The gallery does not hold {what}. Nothing was removed.")
            if ignore:
                _ignore(batch, item, found)
            ids.update(found)
        return batch.remove(sorted(ids))


def _ids_of(snapshot: Snapshot, item: PathOrId) -> list[int]:
    if isinstance(item, int):
        return [item] if snapshot.records([item]) else []
    return [image_id for image_id, _ in snapshot.stream_under(to_blob(item))]


def _ignore(batch: Batch, item: PathOrId, ids: list[int]) -> None:
    """A picture with its content, or a folder."""
    record = batch.records(ids[:1])[ids[0]]
    path = to_blob(record.path if isinstance(item, int) else item)
    is_picture = path == to_blob(record.path)
    batch.ignore(path, bytes.fromhex(record.content_hash) if is_picture and record.content_hash else None)
