"""What an index run has to do: the files that are new or changed, on disk rather than in memory."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.catalog.records import CatalogEntry
from tessera.gallery.ingest.sources import FoundFile
from tessera.gallery.results import IndexReport

_LOOKUP_FILES = 500


class Plan:
    """A temporary table of files. It gives the run a total to count towards, and drops paths that come twice."""

    def __init__(self) -> None:
        # An empty name is SQLite's anonymous file on disk, gone when it is closed.
        self._connection = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        self._connection.execute(
            "CREATE TABLE files (path BLOB PRIMARY KEY, size INTEGER, mtime_ns INTEGER, error TEXT, metadata TEXT, "
            "sidecar_ns INTEGER, place INTEGER)"
        )
        self._connection.execute("CREATE INDEX in_order ON files (place)")

    def close(self) -> None:
        self._connection.close()

    def __len__(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM files").fetchone()[0])

    def __iter__(self) -> Iterator[FoundFile]:
        rows = self._connection.execute(
            "SELECT path, size, mtime_ns, error, metadata, sidecar_ns FROM files ORDER BY place"
        )
        for row in rows:
            yield FoundFile(*row)

    def add(self, files: Iterable[FoundFile]) -> None:
        self._connection.executemany(
            "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, coalesce((SELECT max(place) FROM files), 0) + 1) "
            "ON CONFLICT (path) DO UPDATE SET metadata = coalesce(excluded.metadata, metadata)",
            ((file.path, file.size, file.mtime_ns, file.error, file.metadata, file.sidecar_ns) for file in files),
        )


def make_plan(
    catalog: Catalog,
    files: Iterable[FoundFile],
    plan: Plan,
    report: IndexReport,
    *,
    metadata: str | None = None,
    may_prune: Callable[[], bool] = lambda: False,
    retry: bool = False,
    ignored: Callable[[bytes], bool] = lambda _: False,
) -> None:
    """Hold files against the catalogue by size and time, reading no content; the new and the changed go on the plan.

    metadata: given to every file that comes with none of its own. may_prune: whether those that are gone are taken
    out. retry: try those that failed before once more. ignored: whether a file that is not in the catalogue is to stay
    out of it. Metadata that has changed is stored at once.
    """
    iterator = iter(files)
    while chunk := list(islice(iterator, _LOOKUP_FILES)):
        if metadata is not None:
            chunk = [replace(file, metadata=metadata) if file.metadata is None else file for file in chunk]
        with catalog.read() as snapshot:
            known = snapshot.lookup([file.path for file in chunk])
        admitted = [file for file in chunk if file.path in known or not ignored(file.path)]
        report.ignored += len(chunk) - len(admitted)
        chunk = admitted
        to_read = [file for file in chunk if _must_read(file, known.get(file.path), retry=retry)]
        plan.add(to_read)
        planned = {file.path for file in to_read}
        settled = [(file, known[file.path]) for file in chunk if file.path not in planned]
        gone = [match.id for file, match in settled if file.gone and match.state == "ok"]
        report.vanished += len(gone)
        if gone and may_prune():
            with catalog.write() as batch:
                report.pruned += batch.remove(gone)
        report.failed_before += sum(match.state == "failed" for _, match in settled)
        report.unchanged += sum(match.state == "ok" for _, match in settled) - len(gone)
        report.metadata_given += _store_metadata(catalog, settled)


def _must_read(file: FoundFile, known: CatalogEntry | None, *, retry: bool) -> bool:
    if known is None or (retry and known.state == "failed"):
        return True
    if file.error is not None:
        # It cannot be looked at now. If it was indexed, keep what there is: a disk that comes and goes loses nothing.
        return known.state == "failed" and known.size != file.size
    if known.facts is None and known.state == "ok":
        return True  # indexed by a version that did not look at what a file says of itself
    return (file.size, file.mtime_ns, file.sidecar_ns) != (known.size, known.mtime_ns, known.sidecar_ns)


def _store_metadata(catalog: Catalog, settled: list[tuple[FoundFile, CatalogEntry]]) -> int:
    """Store what is new about files that need no reading; how many files something was said of."""
    changes = [
        (known.id, file.metadata)
        for file, known in settled
        if file.metadata is not None and file.metadata != known.metadata
    ]
    if changes:
        with catalog.write() as batch:
            for image_id, metadata in changes:
                batch.set_metadata(image_id, metadata)
    return sum(file.metadata not in (None, "{}") for file, _ in settled)
