"""A gallery that lies on no single machine, opened as any other: `Gallery` gives one where the catalogue is remote."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tessera.errors import GalleryError, UsageError
from tessera.gallery.catalog.metadata import encode_metadata
from tessera.gallery.catalog.paths import printable, to_blob
from tessera.gallery.catalog.records import Record
from tessera.gallery.gallery import Gallery
from tessera.gallery.ingest.sources import Source, refuse_missing, resolve_source
from tessera.gallery.remote.remote_collection import Stored
from tessera.gallery.remote.remote_store import RemoteStore, ensure_collection
from tessera.gallery.remote.remote_writer import RemoteWriter
from tessera.gallery.remote.shards import FAILED, REMOVED
from tessera.gallery.remote.work_units import is_handed_out
from tessera.gallery.removing import PathOrId
from tessera.gallery.results import IndexProgress, IndexReport

if TYPE_CHECKING:
    from tessera.gallery.check import CheckReport
    from tessera.gallery.ingest.indexing import ProgressCallback


class RemoteGallery(Gallery):
    """Records in a collection of Milvus, descriptors and local features in Parquet shards (docs/remote.md)."""

    _store: RemoteStore

    def _open_store(self, storage: str | None, **options: Any) -> RemoteStore:
        return RemoteStore(self.path, storage=storage, **options)

    def index(
        self,
        *sources: str | os.PathLike[str],
        prune: bool = False,
        rebuild: bool = False,
        metadata: Mapping[str, Any] | None = None,
        progress: ProgressCallback | None = None,
        ray: str | None = None,
        local: str | None = None,
        video: bool = False,
    ) -> IndexReport:
        for name, asked in {"--rebuild": rebuild, "--local": local, "--video": video}.items():
            if asked:
                raise self._refusal(f"index {name}")
        if not sources:
            raise UsageError(
                "Nothing to index: name a folder, a picture, a glob, a tar, or a CSV, Parquet or text file."
            )
        from tessera.gallery.remote.remote_run import RemoteRun

        given = None if metadata is None else encode_metadata(metadata)
        handed_out = ray is not None or any(map(is_handed_out, sources))
        here = [] if handed_out and not prune else [resolve_source(s) for s in sources if not is_handed_out(s)]
        started = time.perf_counter()
        self._refuse_strange_collection()
        if handed_out:
            report = self._hand_out(sources, given, progress, ray)
            if prune:
                pruning = RemoteRun(self._store)
                pruning.look_for_vanished(here, prune=True)
                report.vanished, report.pruned = pruning.report.vanished, pruning.report.pruned
        else:
            report = RemoteRun(self._store, progress=progress).run(here, metadata=given, prune=prune)
        report.images = len(self)
        report.seconds = time.perf_counter() - started
        return report

    def _index(
        self, found: Sequence[Source], *, metadata: Mapping[str, Any] | None, prune: bool = False, **_: Any
    ) -> IndexReport:
        from tessera.gallery.remote.remote_run import RemoteRun

        started = time.perf_counter()
        self._refuse_strange_collection()
        given = None if metadata is None else encode_metadata(metadata)
        report = RemoteRun(self._store).run(found, metadata=given, prune=prune)
        report.images = len(self)
        report.seconds = time.perf_counter() - started
        return report

    def _hand_out(
        self,
        sources: Sequence[str | os.PathLike[str]],
        metadata: str | None,
        progress: ProgressCallback | None,
        ray: str | None,
    ) -> IndexReport:
        """Units of work, by the actors of a Ray cluster, each of which writes its own shards, or by this process."""
        from tessera.gallery.remote.unit_runner import UnitRunner, add_report, run_on_ray
        from tessera.gallery.remote.work_units import make_units

        for source in sources:
            if not is_handed_out(source):
                refuse_missing(resolve_source(source))
        passed_over = IndexReport()

        def pass_over(path: bytes, reason: str) -> None:
            passed_over.passed_over += 1
            passed_over.add_problem(os.fsdecode(path), reason)

        def told(total: IndexReport) -> None:
            if progress is not None:
                progress(IndexProgress(total.found, total.found, total.failed))

        units = make_units(sources, pass_over)
        if ray is not None:
            report = run_on_ray(units, self._store, ray, metadata=metadata, told=told)
        else:
            report, runner = IndexReport(), UnitRunner(self._store, metadata=metadata)
            for unit in units:
                add_report(report, asdict(runner.run(unit)))
                told(report)
        add_report(report, asdict(passed_over))
        return report

    def _refuse_strange_collection(self) -> None:
        with self._catalog.read() as snapshot:
            self._store.refuse_other_model(snapshot)
        ensure_collection(self._store.collection, self._store.settings)

    def remove(self, paths: PathOrId | Iterable[PathOrId], *, ignore: bool = True) -> int:
        given = [paths] if isinstance(paths, str | os.PathLike | int) else list(paths)
        found: dict[int, Stored] = {}
        for item in given:
            if isinstance(item, int):
                those = self._store.collection.get([item])
            else:
                those = {one.record.id: one for one in self._store.collection.stream_under(_blob(item))}
            if not those:
                what = f"an image with the id {item}" if isinstance(item, int) else printable(item)
                raise GalleryError(f"The gallery does not hold {what}. Nothing was removed.")
            found |= those
        self._store.refuse_empty_storage()
        writer = RemoteWriter(self._store.shards, self._store.collection, self._store.settings)
        for image_id, stored in found.items():
            writer.remove(image_id, os.fsencode(stored.record.path), ignore=ignore)
        writer.flush()
        return len(found)

    def stats(self) -> dict[str, Any]:
        settings, shards, collection = self._store.settings, self._store.shards, self._store.collection
        removed = shards.read_rows(REMOVED)
        stored = {key: settings[key] for key in ("model", "fingerprint", "dim", "codec", "engine", "storage")}
        images, bytes_stored, unsent = len(self), shards.size(), len(shards.unsent())
        return {
            "gallery": str(self.path),
            "images": images,
            "failed": len(self.failures(limit=1 << 62)),
            "ignored": sum(bool(row["ignore"]) for _, row in removed.values()),
            "copies": 0,
            **stored,
            "generation": images,
            "disk_bytes": bytes_stored,
            "catalog_bytes": bytes_stored,
            "local_bytes": 0,
            "index": {
                "engine": settings["engine"],
                "collection": collection.name,
                "size": images,
                "type": collection.index.type,
            },
            "local_features": {"images": images, "bytes": 0},
            "shards": {"count": len(shards.names("images")), "bytes": bytes_stored, "unsent": unsent},
        }

    def failures(self, *, after_id: int = 0, limit: int = 100) -> list[Record]:
        rows = [row for _, row in self._store.shards.read_rows(FAILED).values() if row["error"]]
        rows = sorted((row for row in rows if row["id"] > after_id), key=lambda row: int(row["id"]))
        return [
            Record(
                row["id"], os.fsdecode(row["path"]), row["size"], row["mtime_ns"], "failed", row["error"], {},
                None, None, None,
            )
            for row in rows[:limit]
        ]  # fmt: skip

    def find(self, path: str | os.PathLike[str]) -> Record | None:
        blob = _blob(path)
        stored = self._store.collection.find_paths([blob]).get(blob)
        return None if stored is None else stored.record

    def holds(self, path: str | os.PathLike[str]) -> bool:
        return next(self._store.collection.stream_under(_blob(path)), None) is not None

    def check(self, *, repair: bool = False, deep: bool = False) -> CheckReport:
        from tessera.gallery.remote.remote_check import check_remote

        return check_remote(self._store, repair=repair, deep=deep)

    def _refusal(self, what: str) -> UsageError:
        return UsageError(f"{what} needs a catalogue on this machine; this gallery has a remote one.")


def _blob(path: str | os.PathLike[str]) -> bytes:
    return os.fsencode(path) if "://" in os.fspath(path) else to_blob(path)


def _refuse(name: str) -> Any:
    def refused(self: RemoteGallery, *_: Any, **__: Any) -> Any:
        raise self._refusal(name)

    refused.__name__ = name
    return refused


# What asks for every image of one machine, or changes what many have written.
for _name in (
    "add", "count", "duplicates", "explain", "export_descriptors", "facets", "folders", "group_of", "groups", "ignore",
    "images", "leave_group", "migrate", "months", "rejoin_groups", "spans", "take_apart",
    "unignore", "writing",
):  # fmt: skip
    setattr(RemoteGallery, _name, _refuse(_name.replace("_", "-")))
