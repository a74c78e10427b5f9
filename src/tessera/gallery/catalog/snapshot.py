"""What a reader sees: the catalogue at one moment, however much a writer adds meanwhile."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from tessera.errors import GalleryDamagedError
from tessera.gallery.catalog import filters
from tessera.gallery.catalog.checksums import GUARDED, damaged_rows, row_checksum
from tessera.gallery.catalog.feature_rows import STREAM_ROWS, VARIABLES, FeatureRows, marks
from tessera.gallery.catalog.paths import from_blob
from tessera.gallery.catalog.records import (
    VALUES,
    CatalogEntry,
    Descriptors,
    Entry,
    Ids,
    Record,
    decode_descriptors,
    entry_of_row,
)

# What a descriptor's checksum is of, and that checksum.
_CONTENT = "contents.checksum, " + ", ".join(f"contents.{column}" for column in GUARDED["contents.checksum"])
COMMONEST_MODEL = (
    "SELECT fingerprint, length(descriptor) / 2 FROM contents GROUP BY 1, 2 ORDER BY count(*) DESC, 1 LIMIT 1"
)
_ENTRY = (
    "SELECT images.id, path, hash, width, height, size, coalesce(facts, '{}'), metadata, "
    f"({VALUES}(coalesce(facts, '{{}}')) WHERE value IS NOT NULL), ({VALUES}(metadata) WHERE value IS NOT NULL) "
    "FROM images JOIN contents ON contents.id = images.content_id"
)


class Snapshot(FeatureRows):
    """Reads within one transaction. Nothing here loads a whole table: 10 million images must fit."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @property
    def generation(self) -> int:
        """Grows with every change, so that a reader can tell whether what it holds is stale."""
        return self.counter("generation")

    def query(self, statement: str, parameters: Sequence[Any] = ()) -> Iterator[Any]:
        """The rows of a statement, for those who read in ways of their own (`catalog.browsing`)."""
        return self._connection.execute(statement, parameters)

    def setting(self, key: str, default: Any = None) -> Any:
        # As bytes, since a damaged text may be none any more: `check` must be able to say so.
        value = "iif(typeof(value) = 'text', CAST(value AS BLOB), value)"
        row = self._connection.execute(f"SELECT {value} FROM settings WHERE key = ?", (key,)).fetchone()
        if row is None:
            return default
        return row[0].decode("utf-8", "replace") if isinstance(row[0], bytes) else row[0]

    @property
    def searchable(self) -> int:
        """How many images have a descriptor; kept by the writer, since counting ten million rows takes a second."""
        return self.counter("searchable")

    def count_searchable(self) -> int:
        """The same, counted."""
        return self._number("SELECT count(content_id) FROM images")

    def count_failed(self) -> int:
        return self._number("SELECT count(*) FROM images WHERE state = 'failed'")

    def count_contents(self) -> int:
        """How many distinct contents the images have; the rest are copies."""
        return self._number("SELECT count(DISTINCT content_id) FROM images WHERE content_id IS NOT NULL")

    def last_id(self) -> int:
        """The highest id ever given, removed ones included."""
        return self._number(
            "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'images' AND typeof(seq) = 'integer'"
        )

    def highest_id(self) -> int:
        """The highest id that the rows show."""
        return self._number(
            "SELECT coalesce(max(id), 0) FROM (SELECT id FROM images UNION ALL SELECT id FROM removals)"
        )

    def lookup(self, paths: Sequence[bytes]) -> dict[bytes, CatalogEntry]:
        found: dict[bytes, CatalogEntry] = {}
        for start in range(0, len(paths), VARIABLES):
            part = paths[start : start + VARIABLES]
            rows = self._connection.execute(
                "SELECT path, id, size, mtime_ns, state, metadata, content_id, facts, sidecar_ns FROM images "
                f"WHERE path IN ({marks(len(part))})",
                part,
            )
            found.update((row[0], CatalogEntry(*row[1:])) for row in rows)
        return found

    def find_content(self, content_hash: bytes, fingerprint: str) -> int | None:
        row = self._connection.execute(
            "SELECT id FROM contents WHERE hash = ? AND fingerprint = ?", (content_hash, fingerprint)
        ).fetchone()
        return None if row is None else int(row[0])

    def copies_of(self, content_id: int, limit: int = 100) -> list[tuple[int, bytes]]:
        """Ids and paths of the images that share a content."""
        return self._connection.execute(
            "SELECT id, path FROM images WHERE content_id = ? ORDER BY id LIMIT ?", (content_id, limit)
        ).fetchall()

    def ignored(self) -> dict[bytes, bytes | None]:
        """What was removed on purpose: paths of pictures with the hashes of their contents, and of folders."""
        return dict(self._connection.execute("SELECT path, hash FROM ignored"))

    def records(self, ids: Sequence[int]) -> dict[int, Record]:
        """The images of these ids; an id that is not there is left out."""
        found: dict[int, Record] = {}
        for start in range(0, len(ids), VARIABLES):
            part = [int(image_id) for image_id in ids[start : start + VARIABLES]]
            for record in self._select_records(f"images.id IN ({marks(len(part))})", part):
                found[record.id] = record
        return found

    def page(
        self, *, after_id: int, limit: int, state: str, conditions: Sequence[filters.AnyCondition]
    ) -> list[Record]:
        """At most `limit` images in the order of their ids, from the one after `after_id`."""
        clause, parameters = filters.to_sql(conditions)
        where = f"images.id > ? AND images.state = ? AND {clause} ORDER BY images.id LIMIT ?"
        return list(self._select_records(where, [after_id, state, *parameters, limit]))

    def count_matching(self, conditions: Sequence[filters.AnyCondition]) -> int:
        if not conditions:
            return self.searchable
        clause, parameters = filters.to_sql(conditions)
        return self._number(f"SELECT count(*) FROM images WHERE state = 'ok' AND {clause}", *parameters)

    def matching_ids(self, conditions: Sequence[filters.AnyCondition]) -> Ids:
        """The ids, ascending, of the images that meet every condition."""
        clause, parameters = filters.to_sql(conditions)
        rows = self._connection.execute(
            f"SELECT id FROM images WHERE state = 'ok' AND {clause} ORDER BY id", parameters
        )
        return np.fromiter((row[0] for row in rows), np.int64)

    def removed_ids(self, after_generation: int) -> Ids:
        """What was removed since a generation; complete only from the setting `removals_since` on."""
        rows = self._connection.execute("SELECT id FROM removals WHERE generation > ? ORDER BY id", (after_generation,))
        return np.fromiter((row[0] for row in rows), np.int64)

    def count_after(self, after_id: int) -> int:
        return self._number("SELECT count(content_id) FROM images WHERE id > ?", after_id)

    def stream_ids(self) -> Iterator[Ids]:
        """Every searchable id, ascending, in pieces."""
        cursor = self._connection.execute("SELECT id FROM images WHERE state = 'ok' ORDER BY id")
        while rows := cursor.fetchmany(65536):
            yield np.fromiter((row[0] for row in rows), np.int64, len(rows))

    def spread_ids(self, count: int) -> Ids:
        """About so many searchable ids, spread evenly over all."""
        step = max(1, self.searchable // max(count, 1))
        rows = self._connection.execute(
            "SELECT id FROM (SELECT id, row_number() OVER (ORDER BY id) AS place FROM images WHERE state = 'ok') "
            "WHERE place % ? = 0",
            (step,),
        )
        return np.fromiter((row[0] for row in rows), np.int64)[:count]

    def stream_descriptors(self, after_id: int = 0) -> Iterator[tuple[Ids, Descriptors]]:
        """Ids, ascending, and descriptors (N D) in pieces small enough to forget, each held against its checksum."""
        cursor = self._connection.execute(
            f"SELECT images.id, {_CONTENT} FROM images JOIN contents ON contents.id = images.content_id "
            "WHERE images.id > ? ORDER BY images.id",
            (after_id,),
        )
        while rows := cursor.fetchmany(STREAM_ROWS):
            ids = np.fromiter((row[0] for row in rows), np.int64, len(rows))
            yield ids, decode_descriptors([_verified(row) for row in rows])

    def stream_entries(self, after_id: int = 0) -> Iterator[list[Entry]]:
        """What filters may ask of each searchable image, in the order of ids, in pieces."""
        cursor = self._connection.execute(f"{_ENTRY} WHERE images.id > ? ORDER BY images.id", (after_id,))
        while rows := cursor.fetchmany(16 * STREAM_ROWS):
            yield [entry_of_row(row) for row in rows]

    def commonest_keys(self, count: int) -> list[str]:
        """The keys of metadata that most images have."""
        rows = self._connection.execute(
            "SELECT key, count(*) AS times FROM images, json_each(json_patch(coalesce(facts, '{}'), metadata)) "
            "WHERE state = 'ok' GROUP BY key ORDER BY times DESC, key LIMIT ?",
            (count,),
        )
        return [row[0] for row in rows]

    def damaged_rows(self, guard: str) -> list[Any]:
        """Which rows do not have their checksums, by the first column that the checksum is of."""
        return list(damaged_rows(self._connection, guard))

    def commonest_model(self) -> tuple[str | None, int | None]:
        """The fingerprint and the dimension that most contents have, whatever the settings say."""
        row = self._connection.execute(COMMONEST_MODEL).fetchone()
        return (None, None) if row is None else (row[0], row[1])

    def images_of(self, content_ids: Iterable[int]) -> list[int]:
        """The images that have one of these contents."""
        found: list[int] = []
        for content_id in content_ids:
            rows = self._connection.execute("SELECT id FROM images WHERE content_id = ?", (content_id,))
            found.extend(row[0] for row in rows)
        return found

    def stream_blobs(self) -> Iterator[list[tuple[int, bytes]]]:
        """Ids of contents and descriptors as they are stored, whatever their length, in pieces: for `check`."""
        cursor = self._connection.execute("SELECT id, CAST(descriptor AS BLOB) FROM contents")
        while rows := cursor.fetchmany(STREAM_ROWS):
            yield rows

    def images_without_content(self) -> list[int]:
        rows = self._connection.execute(
            "SELECT id FROM images WHERE content_id IS NOT NULL AND content_id NOT IN (SELECT id FROM contents)"
        )
        return [row[0] for row in rows]

    def descriptors(self, ids: Sequence[int]) -> dict[int, Descriptors]:
        """The descriptor (D) of each of these ids that is there."""
        found: dict[int, Descriptors] = {}
        for start in range(0, len(ids), VARIABLES):
            part = [int(image_id) for image_id in ids[start : start + VARIABLES]]
            rows = self._connection.execute(
                f"SELECT images.id, {_CONTENT} FROM images JOIN contents ON contents.id = images.content_id "
                f"WHERE images.id IN ({marks(len(part))})",
                part,
            )
            found.update((row[0], decode_descriptors([_verified(row)])[0]) for row in rows)
        return found

    def signatures(self, ids: Sequence[int]) -> dict[int, bytes]:
        """The signature of each of these ids whose picture has one."""
        found: dict[int, bytes] = {}
        for start in range(0, len(ids), VARIABLES):
            part = [int(image_id) for image_id in ids[start : start + VARIABLES]]
            found.update(
                self._connection.execute(
                    "SELECT images.id, signature FROM images JOIN contents ON contents.id = images.content_id "
                    f"WHERE signature IS NOT NULL AND images.id IN ({marks(len(part))})",
                    part,
                )
            )
        return found

    def compared_pairs(self, kind: str) -> dict[tuple[str, str], float]:
        """Scores of pairs of contents, by their hashes in order, that were compared before."""
        rows = self._connection.execute("SELECT first, second, score FROM pairs WHERE kind = ?", (kind,))
        return {(first.hex(), second.hex()): score for first, second, score in rows}

    def groups(self) -> dict[int, list[int]]:
        """The ids of each group's images, the cover first."""
        found: dict[int, list[int]] = {}
        for group_id, image_id in self._connection.execute(
            "SELECT group_id, id FROM images WHERE group_id IS NOT NULL ORDER BY group_id, group_rank, id"
        ):
            found.setdefault(group_id, []).append(image_id)
        return found

    def group(self, group_id: int) -> list[int]:
        """The ids of one group's images, the cover first."""
        rows = self._connection.execute("SELECT id FROM images WHERE group_id = ? ORDER BY group_rank, id", (group_id,))
        return [image_id for (image_id,) in rows]

    @property
    def has_contents(self) -> bool:
        return self._connection.execute("SELECT 1 FROM contents LIMIT 1").fetchone() is not None

    def damaged_local_features(self) -> list[int]:
        """The local features, by their own ids, that are not what was stored."""
        return self.damaged_rows("local_features.checksum")

    def stream_under(self, root: bytes, *, searchable: bool = False) -> Iterator[tuple[int, bytes]]:
        """Ids and paths of what lies at `root` or below it, in pieces: the caller may look at each file.

        searchable: leave out what could not be read.
        """
        below = root.rstrip(b"/") + b"/"
        cursor = self._connection.execute(
            "SELECT id, path FROM images "
            "WHERE (path = ? OR (path >= ? AND path < ?)) AND (content_id IS NOT NULL OR ?)",
            (root, below, below[:-1] + b"0", not searchable),  # "0" follows "/"
        )
        while rows := cursor.fetchmany(STREAM_ROWS):
            yield from rows

    def metadata_keys(self) -> list[str]:
        """Every key of metadata that an image has, of its file or of a caller."""
        rows = self._connection.execute(
            "SELECT DISTINCT key FROM images, json_each(json_patch(coalesce(facts, '{}'), metadata)) ORDER BY key"
        )
        return [row[0] for row in rows]

    def _select_records(self, where: str, parameters: Sequence[Any]) -> Iterator[Record]:
        rows = self._connection.execute(
            "SELECT images.id, path, size, mtime_ns, state, error, facts, metadata, width, height, hash, group_id "
            f"FROM images LEFT JOIN contents ON contents.id = images.content_id WHERE {where}",
            parameters,
        )
        for image_id, path, size, mtime_ns, state, error, facts, metadata, width, height, content_hash, group in rows:
            yield Record(
                id=image_id,
                path=from_blob(path),
                size=size,
                mtime_ns=mtime_ns,
                state=state,
                error=error,
                metadata={**json.loads(facts or "{}"), **json.loads(metadata)},
                width=width,
                height=height,
                content_hash=None if content_hash is None else content_hash.hex(),
                group_id=group,
            )

    def counter(self, key: str) -> int:
        """A setting that counts; 0 where it was damaged so far that it is no number."""
        value = self.setting(key, 0)
        return value if isinstance(value, int) else 0

    def _number(self, query: str, *parameters: Any) -> int:
        return int(self._connection.execute(query, parameters).fetchone()[0])


def stored_dim(snapshot: Snapshot) -> int:
    """How long the descriptors are, of a gallery that has some."""
    dim = snapshot.setting("dim")
    if not isinstance(dim, int) or dim <= 0:
        raise GalleryDamagedError(
            f"The catalogue is damaged: how long its descriptors are is {dim!r}. `tessera check --repair` mends it."
        )
    return dim


def _verified(row: Sequence[Any]) -> bytes:
    """The descriptor of a row of an image's id, `_CONTENT`: one that was damaged must not decide what is found."""
    _, stored, *content = row
    if row_checksum(*content) != stored:
        raise GalleryDamagedError(
            f"The descriptor of image {row[0]} is damaged. `tessera check --repair` takes it out, and `tessera index` "
            "makes it anew."
        )
    descriptor: bytes = content[-1]
    return descriptor
