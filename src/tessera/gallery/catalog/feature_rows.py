"""Reading the local features that the catalogue keeps, a row for each content and system."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from tessera.errors import GalleryDamagedError
from tessera.gallery.catalog.checksums import row_checksum

VARIABLES = 500  # SQLite admits more parameters a statement, but gains nothing from them
STREAM_ROWS = 256  # half a megabyte of descriptors
_FEATURES = (
    "SELECT images.id, made.checksum, made.id, made.hash, made.fingerprint, made.features FROM images "
    "JOIN contents ON contents.id = images.content_id "
    "JOIN local_features AS made ON made.hash = contents.hash AND made.fingerprint = ?"
)


class FeatureRows:
    """What a `Snapshot` says of local features, each system's apart by its fingerprint."""

    _connection: sqlite3.Connection

    def local_features(self, ids: Sequence[int], fingerprint: str) -> dict[int, bytes]:
        """The compact local features of each of these images that has them."""
        found: dict[int, bytes] = {}
        for start in range(0, len(ids), VARIABLES):
            part = [int(image_id) for image_id in ids[start : start + VARIABLES]]
            rows = self._connection.execute(
                f"{_FEATURES} WHERE images.id IN ({marks(len(part))})", [fingerprint, *part]
            )
            found.update(map(_verified, rows))
        return found

    def stream_local_features(self, fingerprint: str, after_id: int = 0) -> Iterator[list[tuple[int, bytes]]]:
        """Ids, ascending, and compact local features in pieces; an image without them is left out."""
        cursor = self._connection.execute(
            f"{_FEATURES} WHERE images.id > ? ORDER BY images.id", (fingerprint, after_id)
        )
        while rows := cursor.fetchmany(STREAM_ROWS):
            yield [*map(_verified, rows)]

    def stream_lacking_features(self, fingerprint: str) -> Iterator[list[tuple[bytes, bytes]]]:
        """The path and the content's hash, in pieces, of an image of each content that has no local features."""
        cursor = self._connection.execute(
            "SELECT min(images.path), contents.hash FROM images JOIN contents ON contents.id = images.content_id "
            "WHERE NOT EXISTS (SELECT 1 FROM local_features AS made WHERE made.hash = contents.hash "
            "AND made.fingerprint = ?) GROUP BY contents.hash",
            (fingerprint,),
        )
        while rows := cursor.fetchmany(STREAM_ROWS):
            yield rows

    def count_local_features(self, fingerprint: str) -> tuple[int, int]:
        """How many contents have local features, and their bytes."""
        row = self._connection.execute(
            "SELECT count(*), coalesce(sum(length(features)), 0) FROM local_features WHERE fingerprint = ?",
            (fingerprint,),
        ).fetchone()
        return int(row[0]), int(row[1])

    @property
    def has_local_features(self) -> bool:
        return self._connection.execute("SELECT 1 FROM local_features LIMIT 1").fetchone() is not None

    def has_features_of(self, fingerprint: str) -> bool:
        """Whether any content has local features of this system; counting them all would cost every search."""
        found = self._connection.execute("SELECT 1 FROM local_features WHERE fingerprint = ? LIMIT 1", (fingerprint,))
        return found.fetchone() is not None

    def has_earlier_features(self, fingerprint: str) -> bool:
        """Whether some local features are of another system: the first ever stored, which `--rebuild` replaces."""
        found = self._connection.execute("SELECT fingerprint FROM local_features ORDER BY id LIMIT 1").fetchone()
        return found is not None and found[0] != fingerprint


def _verified(row: Sequence[Any]) -> tuple[int, bytes]:
    """The id and the features of a row: what was damaged must not decide what is found."""
    image_id, stored, *content = row
    if row_checksum(*content) != stored:
        raise GalleryDamagedError(
            f"The local features of image {image_id} are damaged. `tessera check --repair` takes them out, and makes "
            "them anew."
        )
    return image_id, content[-1]


def marks(count: int) -> str:
    """The places of so many parameters in a statement."""
    return ",".join("?" * count)
