"""Is the gallery sound? The catalogue, the descriptors in it, the index beside it, and the files it speaks of."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tessera.errors import BundleDamagedError, ModelError
from tessera.gallery.catalog.catalog import CATALOG_NAME, Catalog
from tessera.gallery.catalog.lock import writer_lock
from tessera.gallery.catalog.paths import from_blob, printable, to_blob
from tessera.gallery.catalog.repair.damage import file_damage, row_damage
from tessera.gallery.catalog.repair.salvage import finish_repair, repair_is_unfinished, salvage_catalog
from tessera.gallery.gallery_folder import LOCAL_NAME
from tessera.gallery.ingest.filling import features_were_lost, restore_local_features
from tessera.gallery.ingest.sources import look_at
from tessera.gallery.store import Store
from tessera.local.feature_cache import FeatureCache, find_damage
from tessera.storage import hash_file, set_aside

_SHOWN_FILES = 20
_PAGE_ROWS = 1000
_LOST_FEATURES = (
    "Local features were lost with a damaged catalogue: searches find less by parts. `tessera index` and "
    "`tessera check --repair` make them again, of the pictures whose files are there."
)


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
    if repair_is_unfinished(catalog.path):
        message = f"A repair of the catalogue {catalog.path} was interrupted."
        if not repair:
            return [Finding("damage", message)]
        with writer_lock(gallery_dir):
            aside = finish_repair(catalog.path)
        finished = Finding("damage", f"{message} It was finished; the damaged file is kept as {aside.name}.", True)
        return [finished, *check_catalog_file(gallery_dir, repair=True)]
    if not catalog.path.is_file():
        return []
    damage = file_damage(catalog)
    if not damage or not repair:
        return [Finding("damage", message) for message in damage]
    with writer_lock(gallery_dir):
        outcome = salvage_catalog(catalog)
    return [Finding("damage", f"{damage[0]} {outcome}", repaired=True)]


def check_gallery(store: Store, *, repair: bool, deep: bool = False) -> CheckReport:
    """Go through everything but the file of the catalogue; with repair, by the one writer, put right what can be.

    deep: read every picture's file, too.
    """
    report = CheckReport(_model_findings(store))
    for message in row_damage(store.catalog, repair=repair):
        report.findings.append(Finding("damage", message, repair))
    if repair and report.findings:
        store.forget_engine()  # what it was opened with may have been damaged
    report.findings += _local_findings(store, repair=repair)
    _check_engine(store, report, repair=repair)
    _check_local_features(store, report, repair=repair)
    _look_at_files(store.catalog, report)
    if deep:
        report.findings += _changed_files(store.catalog, repair=repair)
        report.findings += _orphans(store)
    return report


def _check_engine(store: Store, report: CheckReport, *, repair: bool) -> None:
    """What is wrong with the index, and what was only not finished."""
    notes = store.engine.unfinished(store.catalog)
    if notes and repair:
        store.engine.refresh(store.catalog, writing=True)
    problems = store.engine.problems(store.catalog)
    advice = [] if problems or notes else _advice(store)
    if repair and (problems or advice):
        store.engine.rebuild(store.catalog)
    report.findings += [Finding("damage", problem, repair) for problem in problems]
    report.findings += [Finding("note", message, repair) for message in (*notes, *advice)]


def _check_local_features(store: Store, report: CheckReport, *, repair: bool) -> None:
    """The local features in the catalogue, and the inverted file that is derived from them."""
    with store.catalog.read() as snapshot:
        were_lost = features_were_lost(snapshot)
        if not (snapshot.has_local_features or were_lost):
            return
        damaged = snapshot.damaged_local_features()
    if damaged and repair:
        with store.catalog.write() as batch:
            batch.drop_local_features(damaged)
    if repair and (damaged or were_lost):
        restore_local_features(store.catalog, store.local_describer)
    if damaged:
        message = f"The local features of {len(damaged)} images are not what was stored. Repaired, they are made again."
        report.findings.append(Finding("damage", message, repair))
    if were_lost:
        with store.catalog.read() as snapshot:
            are_back = not features_were_lost(snapshot)
        report.findings.append(Finding("note", _LOST_FEATURES, are_back))
    problems, unfinished = store.postings.problems(), store.postings.unfinished(store.catalog)
    if repair and (problems or unfinished or damaged or were_lost):
        store.postings.rebuild(store.catalog)
    report.findings += [Finding("damage", problem, repair) for problem in problems]
    report.findings += [Finding("note", message, repair) for message in unfinished]


def _model_findings(store: Store) -> list[Finding]:
    """Whether the bundle that describes this gallery's queries is whole; one that is elsewhere now is only noted."""
    try:
        store.describer.bundle.verify()
    except BundleDamagedError as error:
        return [Finding("damage", str(error))]
    except ModelError as error:
        with store.catalog.read() as snapshot:
            is_there = (Path(store.model_of(snapshot)) / "model.json").is_file()
        return [Finding("damage" if is_there else "note", str(error))]
    return []


def _local_findings(store: Store, *, repair: bool) -> list[Finding]:
    """Local features can always be made again: a file that is damaged is set aside, an entry dropped."""
    path = store.path / LOCAL_NAME
    damage = find_damage(path)
    if damage is None:
        return []
    if repair:
        with contextlib.closing(FeatureCache(path)) as features:
            features.drop_damaged()
        if find_damage(path) is not None:
            set_aside(path)
    again = " Repaired, they are made again by `tessera index --local`, or by the searches that need them."
    return [Finding("damage", damage + again, repair)]


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
                f"Not there any more: {', '.join(shown)}{more} ({report.missing_files} altogether). What is gone can "
                "still be found; `tessera index FOLDER --prune` takes it out.",
            )
        )


def _changed_files(catalog: Catalog, *, repair: bool) -> list[Finding]:
    """Files whose content is not what was indexed, though their size and time are: an edit that set them back."""
    changed: list[int] = []
    shown: list[str] = []
    after_id = 0
    while True:
        with catalog.read() as snapshot:
            page = snapshot.page(after_id=after_id, limit=_PAGE_ROWS, state="ok", conditions=())
        if not page:
            break
        after_id = page[-1].id
        for record in page:
            found = look_at(record.path.encode("utf-8", "surrogateescape"))
            if (found.size, found.mtime_ns) != (record.size, record.mtime_ns):
                continue  # the next `index` looks at it anyway
            with contextlib.suppress(OSError):
                if hash_file(Path(record.path)) != record.content_hash:
                    changed.append(record.id)
                    shown.append(printable(record.path))
    if changed and repair:
        with catalog.write() as batch:
            batch.distrust(changed)
    if not changed:
        return []
    more = ", ..." if len(shown) > _SHOWN_FILES else ""
    message = f"{len(changed)} files were changed without their size or time: {', '.join(shown[:_SHOWN_FILES])}{more}."
    return [Finding("damage", f"{message} Repaired, the next `tessera index` reads them.", repair)]


def _orphans(store: Store) -> list[Finding]:
    """Files below `uploads` that no image is of: of an upload that was killed, and never acknowledged."""
    files = [path for path in (store.path / "uploads").rglob("*") if path.is_file()]
    with store.catalog.read() as snapshot:
        known = snapshot.lookup([to_blob(path) for path in files])
    orphans = [printable(path) for path in files if to_blob(path) not in known]
    if not orphans:
        return []
    more = ", ..." if len(orphans) > _SHOWN_FILES else ""
    shown = ", ".join(orphans[:_SHOWN_FILES])
    return [Finding("note", f"{len(orphans)} uploaded files are in no gallery: {shown}{more}. They may be deleted.")]
