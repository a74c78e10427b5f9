"""Local features for what the catalogue holds without them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future

from tessera.data.photos.decoding import DEFAULT_LIMITS
from tessera.gallery.catalog.batch import FEATURES_LOST
from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.catalog.snapshot import Snapshot
from tessera.gallery.describing.local_describer import LocalDescriber
from tessera.gallery.ingest.reading import loader_source, read_ahead
from tessera.gallery.ingest.sources import look_at

_BATCH_IMAGES = 64


def fill_local_features(
    catalog: Catalog, describer: LocalDescriber, advance: Callable[[int, int], None] | None = None
) -> int:
    """Make the features of every content that has none, by the one writer; how many there are now that were lacking.

    For a gallery that was made without them. A picture whose file has gone or changed is passed over. A killed run
    goes on where it stopped.
    """
    fingerprint = describer.model.fingerprint
    with catalog.read() as snapshot:
        lacking = [row for rows in snapshot.stream_lacking_features(fingerprint) for row in rows]
    made = 0
    for start in range(0, len(lacking), _BATCH_IMAGES):
        made += _fill(catalog, describer, lacking[start : start + _BATCH_IMAGES])
        if advance is not None:
            advance(min(start + _BATCH_IMAGES, len(lacking)), len(lacking))
    return made


def features_were_lost(snapshot: Snapshot) -> bool:
    """Whether a repair of the catalogue could not save the local features of some images."""
    return bool(snapshot.setting(FEATURES_LOST))


def restore_local_features(
    catalog: Catalog, describer: LocalDescriber, advance: Callable[[int, int], None] | None = None
) -> int:
    """As `fill_local_features`, after a repair that lost some; tried again as long as a picture's file is away."""
    made = fill_local_features(catalog, describer, advance)
    with catalog.read() as snapshot:
        were_lost = features_were_lost(snapshot)
        lacking = next(snapshot.stream_lacking_features(describer.model.fingerprint), None)
    if were_lost and not lacking:
        with catalog.write() as batch:
            batch.set(FEATURES_LOST, None)
    return made


def _fill(catalog: Catalog, describer: LocalDescriber, lacking: Iterable[tuple[bytes, bytes]]) -> int:
    wanted = dict(lacking)
    waiting: list[tuple[bytes, Future[bytes]]] = []
    for read in read_ahead((look_at(path) for path in wanted), max_bytes=DEFAULT_LIMITS.max_bytes):
        if read.error is None and read.content_hash == wanted[read.found.path]:
            waiting.append((read.content_hash, describer.submit(loader_source(read), DEFAULT_LIMITS)))
    made = [(content_hash, future.result()) for content_hash, future in waiting]
    with catalog.write() as batch:
        for content_hash, features in made:
            batch.add_local_features(content_hash, describer.model.fingerprint, features)
    return len(made)
