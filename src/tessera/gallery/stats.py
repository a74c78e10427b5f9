"""What a gallery holds, and what that takes."""

from __future__ import annotations

from typing import Any

from tessera.gallery.catalog.catalog import CATALOG_NAME
from tessera.gallery.gallery_folder import LOCAL_NAME, size_on_disk
from tessera.gallery.store import Store


def collect_stats(store: Store) -> dict[str, Any]:
    """Images, settings, bytes on disk and the state of both indexes, of one moment of the catalogue."""
    with store.catalog.read() as snapshot:
        images, contents = snapshot.searchable, snapshot.count_contents()
        stored = {key: snapshot.setting(key) for key in ("model", "fingerprint", "dim", "codec", "engine")}
        generation, failed, ignored = snapshot.generation, snapshot.count_failed(), len(snapshot.ignored())
        local: dict[str, Any] = {"images": 0, "bytes": 0}
        if snapshot.has_local_features:
            count, size = snapshot.count_local_features(store.local_describer.model.fingerprint)
            local = {"images": count, "bytes": size, "index": store.postings.describe()}
    files = [path for path in store.path.glob(f"{CATALOG_NAME}*") if path.is_file()]
    return {
        "gallery": str(store.path),
        "images": images,
        "failed": failed,
        "ignored": ignored,
        "copies": images - contents,
        **stored,
        "generation": generation,
        "disk_bytes": size_on_disk(store.path),
        "catalog_bytes": sum(path.stat().st_size for path in files),
        "local_bytes": sum(path.stat().st_size for path in store.path.glob(f"{LOCAL_NAME}*")),
        "index": store.engine.describe(),
        "local_features": local,
    }
