"""Is the gallery sound? The catalogue, the descriptors in it, the index beside it, and the files it speaks of."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tessera.errors import GalleryLockedError, StorageError
from tessera.gallery.catalog.catalog import CATALOG_NAME, Catalog
from tessera.gallery.catalog.lock import writer_lock
from tessera.gallery.catalog.paths import from_blob, printable
from tessera.gallery.catalog.salvage import salvage_catalog
from tessera.gallery.catalog.schema import connect, translate
from tessera.gallery.catalog.snapshot import decode_descriptors
from tessera.gallery.ingest.sources import look_at
from tessera.gallery.store import Store

_SHOWN_FILES = 20
_NORM_TOLERANCE = 0.01  # half precision leaves a unit descriptor far closer than this


@dataclass(frozen=True)
class Finding:
    """Something that was found. kind `damage` makes a gallery unsound until it is repaired; `note` does not."""

    kind: Literal["damage", "note"]
    message: str
    repaired: bool = False


@dataclass
class CheckReport:
    findings: list[Finding] = field(default_factory=list)
    images: int = 0
    missing_files: int = 0

    @property
    def ok(self) -> bool:
        """Whether the gallery is sound now."""
        return all(finding.repaired for finding in self.findings if finding.kind == "damage")

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "images": self.images,
            "missing_files": self.missing_files,
            "findings": [
                {"kind": finding.kind, "message": finding.message, "repaired": finding.repaired}
                for finding in self.findings
            ],
        }


def check_catalog_file(gallery_dir: Path, *, repair: bool) -> list[Finding]:
    """Look at the catalogue alone, as a file: the first thing to do with a gallery that cannot be opened."""
    catalog = Catalog(gallery_dir / CATALOG_NAME)
    if not catalog.path.is_file():
        return []
    damage = catalog_damage(catalog)
    if not damage or not repair:
        return [Finding("damage", message) for message in damage]
    with writer_lock(gallery_dir):
        outcome = salvage_catalog(catalog)
    return [Finding("damage", f"{damage[0]} {outcome}", repaired=True)]


def check_gallery(store: Store, *, repair: bool) -> CheckReport:
    """Go through everything but the file of the catalogue; with repair, by the one writer, put right what can be."""
    report = CheckReport()
    for message in _content_damage(store.catalog, repair=repair):
        report.findings.append(Finding("damage", message, repair))
    problems = store.engine.problems(store.catalog)
    if problems and repair:
        store.engine.rebuild(store.catalog)
    report.findings += [Finding("damage", problem, repair) for problem in problems]
    if not problems and (advice := _advice(store)):
        if repair:
            store.engine.rebuild(store.catalog)
        report.findings += [Finding("note", message, repair) for message in advice]
    _look_at_files(store.catalog, report)
    return report


def catalog_damage(catalog: Catalog) -> list[str]:
    """What SQLite itself finds wrong with the file."""
    try:
        with closing(connect(catalog.path, read_only=True)) as connection:
            rows = connection.execute("PRAGMA integrity_check(3)").fetchall()
    except sqlite3.DatabaseError as error:
        meaning = translate(error, catalog.path)
        if isinstance(meaning, StorageError | GalleryLockedError):  # out of reach, which says nothing of its content
            raise meaning from error
        return [f"The catalogue {catalog.path} is damaged: {error}."]
    if rows != [("ok",)]:
        return [f"The catalogue {catalog.path} is damaged: {rows[0][0].splitlines()[0]}."]
    return []


def _content_damage(catalog: Catalog, *, repair: bool) -> Iterator[str]:
    """Rows that cannot be right. Repaired, such images are forgotten and described again by the next `index`."""
    with catalog.read() as snapshot:
        dim = int(snapshot.setting("dim", 0) or 0)
        counted, kept = snapshot.count_searchable(), snapshot.searchable
        orphans = snapshot.images_without_content()
        wrong = [image_id for part in snapshot.stream_blobs() for image_id, blob in part if not _is_unit(blob, dim)]
    if wrong or orphans:
        if repair:
            with catalog.write() as batch:
                batch.remove([*wrong, *orphans])
        yield (
            f"{len(wrong) + len(orphans)} images have a descriptor that is missing or no unit vector of {dim} numbers. "
            "Repaired, they are described again by the next `tessera index`."
        )
    if counted != kept:
        if repair:
            with catalog.write() as batch:
                batch.set("searchable", batch.count_searchable())
        yield f"The catalogue counts {kept} images, but holds {counted}."


def _is_unit(blob: bytes, dim: int) -> bool:
    if len(blob) != 2 * dim:
        return False
    norm = float(np.linalg.norm(decode_descriptors([blob])[0].astype(np.float32)))
    return abs(norm - 1.0) < _NORM_TOLERANCE


def _advice(store: Store) -> list[str]:
    with store.catalog.read() as snapshot:
        if snapshot.searchable == 0:
            return []
    store.engine.refresh(store.catalog)
    return store.engine.advice()


def _look_at_files(catalog: Catalog, report: CheckReport) -> None:
    shown: list[str] = []
    with catalog.read() as snapshot:
        report.images = snapshot.searchable
        for _, path in snapshot.stream_under(b"/", searchable=True):
            found = look_at(path)
            if found.error is not None and found.gone:
                report.missing_files += 1
                if len(shown) < _SHOWN_FILES:
                    shown.append(printable(from_blob(path)))
    if report.missing_files:
        more = ", ..." if report.missing_files > len(shown) else ""
        report.findings.append(
            Finding(
                "note",
                f"{report.missing_files} files are not there any more: {', '.join(shown)}{more}. They can still be "
                "found; `tessera index FOLDER --prune` takes them out.",
            )
        )
