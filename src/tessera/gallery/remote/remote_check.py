"""Do the shards and the collection say the same? The shards are the truth; what is put right is the collection.

Everything goes shard by shard and range by range, so memory does not grow with the catalogue. A writer at work may have
a shard that is not sent yet: then a row is said to be lacking, and sending it twice does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tessera.errors import GalleryDamagedError
from tessera.gallery.check import CheckReport, Finding
from tessera.gallery.remote.remote_store import RemoteStore, ensure_collection
from tessera.gallery.remote.remote_writer import send_shards
from tessera.gallery.remote.shards import FAILED, IMAGES, REMOVED

_NEVER: tuple[str, dict[str, Any]] = ("", {})


@dataclass
class _Comparison:
    """Names of shards by what is wrong with their rows, and how many rows that is."""

    lacking: dict[str, int] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)  # doubled or removed
    damaged: list[str] = field(default_factory=list)
    damaged_rows: list[tuple[str, str]] = field(default_factory=list)  # of what failed or was removed: kind, name


def check_remote(store: RemoteStore, *, repair: bool, deep: bool = False) -> CheckReport:
    """repair: send what the collection lacks, take out what no shard has, drop rows that are doubled.

    deep: read every shard whole and hold it against its checksums.
    """
    report = CheckReport()
    shards, collection = store.shards, store.collection
    if collection.describe() is None:
        report.findings.append(Finding("damage", f"The collection in {collection.connection.uri} is missing.", repair))
        if not repair:
            return report
    store.refuse_empty_storage()
    if repair:
        ensure_collection(collection, store.settings)
    found = _compare(store, deep=deep)
    _add(report, found.damaged, "{} shards are damaged; `tessera index` describes their images again.", repair)
    for kind, what in (
        (FAILED, "could not be read: they are tried again"),
        (REMOVED, "were removed: they may be back"),
    ):
        names = [name for other, name in found.damaged_rows if other == kind]
        _add(report, names, f"{{}} lists of pictures that {what}, are damaged.", repair)
    if repair:
        for kind, name in [*((IMAGES, name) for name in found.damaged), *found.damaged_rows]:
            shards.set_aside(kind, name)
        send_shards(shards, collection, sorted(found.lacking))
    _add(report, found.lacking, "{} images of the shards are not in the collection.", repair)
    strange = _strange(store)
    if repair:
        collection.delete(strange)
    _add(report, strange, "{} images of the collection are in no shard, or were removed.", repair)
    if repair:
        dead = dict(_compare(store, deep=False).dead)
        for name in sorted(dead):
            _drop_dead(store, name)
        collection.settle()
    count = sum(found.dead.values())
    if count:
        message = f"{count} rows of the shards are doubled or of removed images. Repaired, they are dropped."
        report.findings.append(Finding("note", message, repair))
    report.images = collection.count()
    return report


def _compare(store: RemoteStore, *, deep: bool) -> _Comparison:
    shards = store.shards
    names = shards.names("images")
    there = set(names)
    found = _Comparison()
    removed = shards.read_rows(REMOVED, lambda name: found.damaged_rows.append((REMOVED, name)))
    shards.read_rows(FAILED, lambda name: found.damaged_rows.append((FAILED, name)))
    for name in names:
        try:
            if deep:
                shards.read_images(name)
            ids = shards.read_ids(name)
        except GalleryDamagedError:
            found.damaged.append(name)
            continue
        stored = store.collection.get(ids)
        lacking = dead = 0
        for image_id in ids:
            if removed.get(image_id, _NEVER)[0] > name:
                dead += 1
            elif image_id not in stored or stored[image_id].span.shard not in there:
                lacking += 1
            elif stored[image_id].span.shard != name:
                dead += 1
        if lacking:
            found.lacking[name] = lacking
        if dead:
            found.dead[name] = dead
    return found


def _strange(store: RemoteStore) -> list[int]:
    """Rows of the collection whose shard is not there, or that were removed after it was written."""
    removed = store.shards.read_rows(REMOVED, lambda _: None)
    strange: list[int] = []
    names: set[str] = set()
    for part in store.collection.stream():
        shard_of = {image_id: one.span.shard for image_id, one in part.items()}
        if not names.issuperset(shard_of.values()):
            names = set(store.shards.names("images"))  # after the rows: a shard is there before they are
        strange += [i for i, shard in shard_of.items() if shard not in names or removed.get(i, _NEVER)[0] > shard]
    return strange


def _drop_dead(store: RemoteStore, name: str) -> None:
    """Write the rows of a shard that count into a new one, and delete it."""
    shards, collection = store.shards, store.collection
    images, model = shards.read_images(name)
    stored = collection.get([image.id for image in images])
    living = [image for image in images if image.id in stored and stored[image.id].span.shard == name]
    if living:
        new, spans = shards.write_images(living, {key: model[key] for key in model if key != "layout"})
        collection.put_images(living, spans)
        shards.mark_sent(new)
    shards.delete(name)


def _add(report: CheckReport, found: list[str] | list[int] | dict[str, int], message: str, repair: bool) -> None:
    count = sum(found.values()) if isinstance(found, dict) else len(found)
    if count:
        report.findings.append(Finding("damage", message.format(count), repair))
