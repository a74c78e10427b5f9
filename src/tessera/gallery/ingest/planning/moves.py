"""Files that have moved: the same content at another path, and the old file gone. The image stays the same image."""

from __future__ import annotations

from collections.abc import Mapping

from tessera.gallery.catalog.batch import Batch
from tessera.gallery.catalog.records import CatalogEntry
from tessera.gallery.ingest.sources import look_at


def follow_moves(
    batch: Batch, arrivals: Mapping[bytes, int], known: Mapping[bytes, CatalogEntry]
) -> tuple[dict[bytes, bytes], list[bytes]]:
    """Give images whose files have moved their new paths, so that id, metadata and group stay.

    arrivals: the content at each path of the batch; known: what the catalogue has at these paths. Files may have taken
    each other's names, or the name of one that is no more. Returns new paths with the old ones, and the new paths at
    which another image was overwritten.
    """
    moved: dict[bytes, bytes] = {}
    new_paths: dict[int, bytes] = {}
    for path, content_id in arrivals.items():
        if path in known and known[path].content_id == content_id:
            continue
        for image_id, old_path in batch.copies_of(content_id):
            if image_id not in new_paths and _has_left(old_path, content_id, arrivals):
                moved[path], new_paths[image_id] = old_path, path
                break
    overwritten = [path for path in moved if path in known and known[path].id not in new_paths]
    batch.remove([known[path].id for path in overwritten])
    batch.move_images(new_paths)
    return moved, overwritten


def _has_left(path: bytes, content_id: int, arrivals: Mapping[bytes, int]) -> bool:
    """Whether this content is no longer at a path: nothing is there, or another content of the same batch."""
    if path in arrivals:
        return arrivals[path] != content_id
    return look_at(path).gone
