"""What was removed on purpose and must not come back with the next `index`."""

from __future__ import annotations

from collections.abc import Sequence

from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.ingest.sources import Source, look_at


class IgnoreList:
    """Pictures and folders that were removed. Naming one of them as a source takes it off the list."""

    def __init__(self, catalog: Catalog, sources: Sequence[Source]) -> None:
        with catalog.read() as snapshot:
            entries = snapshot.ignored()
        self._wanted = {source.path for source in sources if source.kind == "file"}
        again = {source.path for source in sources if source.kind in ("file", "folder")} & entries.keys()
        if again:
            with catalog.write() as batch:
                for path in again:
                    batch.unignore(path)
        self._catalog = catalog
        self._paths = entries.keys() - again
        self._by_hash = {entries[path]: path for path in self._paths if entries[path] is not None}

    def holds(self, path: bytes) -> bool:
        """Whether a picture, or a folder above it, was removed."""
        if not self._paths or path in self._wanted:
            return False
        ends = (end for end, byte in enumerate(path) if byte == ord("/"))
        return path in self._paths or any(path[:end] in self._paths for end in ends)

    def follows(self, path: bytes, content_hash: bytes) -> bool:
        """Whether a removed picture has moved here; the list then knows it by its new path."""
        old_path = self._by_hash.get(content_hash)
        if old_path is None or path in self._wanted or not look_at(old_path).gone:
            return False
        with self._catalog.write() as batch:
            batch.unignore(old_path)
            batch.ignore(path, content_hash)
        self._by_hash[content_hash] = path
        return True
