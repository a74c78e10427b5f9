"""Describing a whole gallery anew with another model, while readers go on with the old one."""

from __future__ import annotations

from collections.abc import Iterator

from tessera.errors import GalleryError
from tessera.gallery.catalog.batch import Batch
from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.catalog.paths import from_blob, printable
from tessera.gallery.describing.describer import Describer
from tessera.gallery.ingest.indexing import IndexRun
from tessera.gallery.ingest.planning.plan import Plan
from tessera.gallery.ingest.sources import FoundFile, look_at
from tessera.gallery.store import Store

_PAGE_ROWS = 1000


def ensure_model(store: Store, run: IndexRun, differing: Plan, *, rebuild: bool) -> bool:
    """See that the gallery is of the run's model, or make it so; True if every image was given new descriptors.

    differing: takes the files that are not as the catalogue knows them, to be looked at afterwards.
    """
    if store.matches_model() or (not rebuild and _size_of(store.catalog) > 0):
        claim_model(store)
        return False
    _switch_model(store.catalog, store.describer, run, differing)
    return True


def claim_model(store: Store) -> None:
    """See that descriptors of the store's model may be added: a gallery without any takes it for its own.

    The same model in another place, a bundle that was moved, is looked for there from now on.
    """
    with store.catalog.read() as snapshot:
        store.refuse_other_model(snapshot)
    describer = store.describer
    with store.catalog.read() as snapshot:
        is_known = snapshot.setting("fingerprint") is not None and snapshot.setting("model") == describer.model
    if not is_known:
        with store.catalog.write() as batch:
            _remember_model(batch, describer)
            batch.set("fingerprint", describer.fingerprint)


def _switch_model(catalog: Catalog, describer: Describer, run: IndexRun, differing: Plan) -> None:
    """Make the descriptors of another model for every image, then give them to all images in one transaction.

    A killed run goes on where it stopped: what was described is stored by content and model.
    """
    _refuse_missing_files(catalog, describer.fingerprint)  # before hours of describing
    run.describe_contents(_known_files(catalog, describer.fingerprint), _size_of(catalog), differing)
    _refuse_missing_files(catalog, describer.fingerprint)  # a disk may have gone meanwhile
    with catalog.write() as batch:
        run.report.redescribed = batch.switch_fingerprint(describer.fingerprint)
        _remember_model(batch, describer)


def _refuse_missing_files(catalog: Catalog, fingerprint: str) -> None:
    """Raise where images would lose their descriptors because their files are out of reach: a disk that is not mounted.

    Files that are there but have changed or cannot be decoded are looked at afterwards, as in every run.
    """
    missing = [found for found, _ in _known_files(catalog, fingerprint) if found.error is not None]
    if missing:
        raise GalleryError(
            f"{len(missing)} files of this gallery cannot be reached, so no other model can describe them: "
            f"{printable(from_blob(missing[0].path))}{', ...' if len(missing) > 1 else ''} ({missing[0].error}). "
            "Nothing was changed. Mount their disk; or take them out first, by `tessera index FOLDER --rebuild "
            "--prune` or by `tessera remove`."
        )


def _remember_model(batch: Batch, describer: Describer) -> None:
    batch.set("model", describer.model)
    batch.set("dim", describer.dim)


def _size_of(catalog: Catalog) -> int:
    with catalog.read() as snapshot:
        return snapshot.searchable


def _known_files(catalog: Catalog, fingerprint: str) -> Iterator[tuple[FoundFile, bytes]]:
    """Every image's file with the hash of its content, but for those whose content is described already."""
    after_id = 0
    while True:
        with catalog.read() as snapshot:
            records = snapshot.page(after_id=after_id, limit=_PAGE_ROWS, state="ok", conditions=())
            missing = []
            for record in records:
                assert record.content_hash is not None
                content_hash = bytes.fromhex(record.content_hash)
                if snapshot.find_content(content_hash, fingerprint) is None:
                    missing.append((record.path, content_hash))
        for path, content_hash in missing:
            yield look_at(path.encode("utf-8", "surrogateescape")), content_hash
        if len(records) < _PAGE_ROWS:
            return
        after_id = records[-1].id
