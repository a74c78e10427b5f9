"""What is wrong with a catalogue: with its file, by SQLite, and with its rows, by their checksums."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import numpy as np

from tessera.errors import GalleryDamagedError, GalleryError, GalleryLockedError, StorageError
from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.catalog.commit_mark import read_mark, refuse_lost_commits
from tessera.gallery.catalog.records import decode_descriptors
from tessera.gallery.catalog.schema import check_identity, connect, translate
from tessera.gallery.catalog.snapshot import Snapshot

MAX_ID = 1 << 53  # ids are given one by one: a greater one is damage, and the next after it might not exist
_NORM_TOLERANCE = 0.01  # half precision leaves a unit descriptor far closer than this
_ALWAYS_SET = ("generation", "removals_since", "searchable", "uuid", "version")
_SET_WITH_CONTENTS = ("engine", "codec", "fingerprint", "dim")


def file_damage(catalog: Catalog) -> list[str]:
    """What SQLite itself finds wrong with the file, or what tells that it is no catalogue as any version makes it."""
    mark = read_mark(catalog.path)
    try:
        with closing(connect(catalog.path, read_only=True)) as connection:
            rows = connection.execute("PRAGMA integrity_check(3)").fetchall()
            if rows == [("ok",)]:
                if check_identity(connection, catalog.path) == 0:
                    catalog.refuse_emptied()
                else:
                    refuse_lost_commits(catalog.path, mark, connection)
    except sqlite3.DatabaseError as error:
        meaning = translate(error, catalog.path)
        if isinstance(meaning, StorageError | GalleryLockedError):  # out of reach, which says nothing of its content
            raise meaning from error
        return [f"The catalogue {catalog.path} is damaged: {error}."]
    except GalleryDamagedError as error:
        return [str(error)]
    except GalleryError:  # of another program, or of a newer version: opening it says so
        return []
    if rows != [("ok",)]:
        return [f"The catalogue {catalog.path} is damaged: {rows[0][0].splitlines()[0]}."]
    return []


def row_damage(catalog: Catalog, *, repair: bool) -> Iterator[str]:
    """Rows that cannot be right. Repaired, what they held is described again by the next `index`."""
    with catalog.read() as snapshot:
        settings = _damaged_settings(snapshot)
        dim = int((snapshot.commonest_model()[1] if "dim" in settings else snapshot.setting("dim", 0)) or 0)
        contents, images = (snapshot.damaged_rows(f"{table}.checksum") for table in ("contents", "images"))
        wrong = [content_id for part in snapshot.stream_blobs() for content_id, blob in part if not _is_unit(blob, dim)]
        unusable = {*contents, *wrong}
        lost = {*snapshot.images_of(unusable), *snapshot.images_without_content()} - {*images}
        counted, kept = snapshot.count_searchable(), snapshot.searchable
        facts = {*snapshot.damaged_rows("images.facts_checksum")} - {*images}
        signatures = {*snapshot.damaged_rows("contents.signature_checksum")} - unusable
        others = [name for name in ("removals", "ignored", "pairs") if snapshot.damaged_rows(f"{name}.checksum")]
        is_counter_wrong = not snapshot.highest_id() <= snapshot.last_id() <= MAX_ID
    if repair and (settings or unusable or lost or images or facts or signatures or others or is_counter_wrong):
        with catalog.write() as batch:
            if is_counter_wrong:
                batch.restore_last_id()
            batch.remove(images)
            batch.forget_descriptors(sorted(lost))
            batch.delete_contents(sorted(unusable))
            batch.forget_facts(sorted(facts - lost))
            batch.forget_signatures(signatures)
            for name in others:
                batch.delete_damaged(f"{name}.checksum")
            if "removals" in others:
                batch.forget_removals()
            batch.restore_settings(settings)
    if settings:
        yield f"The settings {', '.join(map(repr, settings))} are missing or do not have their checksums."
    if images:
        yield (
            f"{len(images)} images have paths or metadata that do not have their checksums. Repaired, they "
            "are taken out; the next `tessera index` finds their files again."
        )
    if lost or unusable:
        yield (
            f"{len(lost)} images have a descriptor that is missing, damaged or no unit vector of {dim} numbers. "
            "Repaired, they are described again by the next `tessera index`."
        )
    if facts:
        yield (
            f"What {len(facts)} files say of themselves, or the groups that they are in, does not have its checksum. "
            "Repaired, the next `tessera index` reads it again, and `tessera group` groups it."
        )
    for name in others:
        yield f"{_OTHERS[name]} do not have their checksums. Repaired, those entries are left out."
    if signatures:
        yield f"{len(signatures)} signatures do not have their checksums. `tessera duplicates` makes them again."
    if is_counter_wrong:
        yield "The catalogue's counter of ids is below ids that it has given."
    if counted != kept:
        if repair:
            with catalog.write() as batch:
                batch.set("searchable", batch.count_searchable())
        yield f"The catalogue counts {kept} images, but holds {counted}."


_OTHERS = {
    "removals": "Entries of what was removed lately",
    "ignored": "Entries of what `index` passes over, since it was removed,",
    "pairs": "Comparisons of pairs",
}


def _damaged_settings(snapshot: Snapshot) -> list[str]:
    expected = (*_ALWAYS_SET, *(_SET_WITH_CONTENTS if snapshot.has_contents else ()))
    missing = [key for key in expected if snapshot.setting(key) is None]
    return list(dict.fromkeys([*snapshot.damaged_rows("settings.checksum"), *missing]))


def _is_unit(blob: bytes, dim: int) -> bool:
    if len(blob) != 2 * dim:
        return False
    norm = float(np.linalg.norm(decode_descriptors([blob])[0].astype(np.float32)))
    return abs(norm - 1.0) < _NORM_TOLERANCE
