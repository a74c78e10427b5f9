"""What a writer does: a few changes that are stored together or not at all."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy.typing as npt

from tessera.gallery.catalog.checksums import damage_in_sql, row_checksum, seal_in_sql
from tessera.gallery.catalog.records import encode_descriptor
from tessera.gallery.catalog.schema import latest_version, put_setting
from tessera.gallery.catalog.snapshot import Snapshot

LOST_DESCRIPTOR = "its descriptor was damaged: index it again"
FEATURES_LOST = "features_lost"  # the setting that a repair leaves where local features are to be made again


class Batch(Snapshot):
    """Writes within one transaction; the catalogue's generation grows by one if anything changed."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self._next_generation = self.generation + 1
        self.changed = False
        self._edited = False  # whether a row that stays has another path or other metadata
        self._released: set[int] = set()
        self._arrived = 0  # less those that left

    def finish(self) -> None:
        # Last of all: what one image gave up, another of the same batch may have taken.
        for content_id in self._released:
            gone = self._connection.execute(
                "DELETE FROM contents WHERE id = ? AND NOT EXISTS (SELECT 1 FROM images WHERE content_id = ?) "
                "RETURNING hash",
                (content_id, content_id),
            ).fetchone()
            if gone is not None:
                self._connection.execute(
                    "DELETE FROM local_features WHERE hash = ? AND NOT EXISTS (SELECT 1 FROM contents WHERE hash = ?)",
                    (gone[0], gone[0]),
                )
        if self.changed:
            self.set("generation", self._next_generation)
        if self._edited:
            self.set("edited", self._next_generation)  # engines that hold paths and metadata compare their rows
        if self._arrived:
            self.set("searchable", self.searchable + self._arrived)

    def set(self, key: str, value: Any) -> None:
        put_setting(self._connection, key, value)

    def add_content(
        self,
        content_hash: bytes,
        fingerprint: str,
        width: int,
        height: int,
        descriptor: npt.NDArray[Any],
        signature: bytes | None = None,
    ) -> int:
        """Store a descriptor (D) under the content it was made of; the one already there stays."""
        known = self.find_content(content_hash, fingerprint)
        if known is not None:
            return known
        content_id = self._number("SELECT coalesce(max(id), 0) + 1 FROM contents")
        row = (content_id, content_hash, fingerprint, width, height, encode_descriptor(descriptor))
        self._connection.execute(
            "INSERT INTO contents (id, hash, fingerprint, width, height, descriptor, checksum, signature, "
            "signature_checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, row_checksum(*row), signature, row_checksum(content_id, signature)),
        )
        return content_id

    def add_local_features(self, content_hash: bytes, fingerprint: str, features: bytes) -> None:
        """Store the compact local features of a content, instead of another system's; those already there stay."""
        self._connection.execute(
            "DELETE FROM local_features WHERE hash = ? AND fingerprint != ?", (content_hash, fingerprint)
        )
        row = (self._number("SELECT coalesce(max(id), 0) + 1 FROM local_features"), content_hash, fingerprint, features)
        self._connection.execute(
            "INSERT OR IGNORE INTO local_features VALUES (?, ?, ?, ?, ?)", (*row, row_checksum(*row))
        )
        self.changed = True

    def drop_local_features(self, ids: Iterable[int]) -> None:
        """Forget local features by their own ids: damaged ones, which are to be made again."""
        self._connection.executemany("DELETE FROM local_features WHERE id = ?", [(int(row),) for row in ids])
        self.changed = True

    def drop_earlier_features(self, fingerprint: str) -> None:
        """Forget the local features of other systems than this one."""
        self._connection.execute("DELETE FROM local_features WHERE fingerprint != ?", (fingerprint,))
        self.changed = True

    def put_image(
        self,
        path: bytes,
        *,
        size: int,
        mtime_ns: int,
        content_id: int | None,
        error: str | None,
        metadata: str | None,
        facts: str | None = None,
        sidecar_ns: int = 0,
    ) -> None:
        """Store what was found at a path. metadata None keeps what there was; the id stays if the content did.

        facts: what the file says of itself; they go with its content.
        """
        known = self.lookup([path]).get(path)
        if metadata is None:
            metadata = "{}" if known is None else known.metadata
        state = "failed" if content_id is None else "ok"
        self.changed = True
        if known is not None and known.content_id == content_id and known.state == state:
            self._edited = True
            self._connection.execute(
                "UPDATE images SET size = ?, mtime_ns = ?, error = ?, metadata = ?, facts = ?, sidecar_ns = ?, "
                "checksum = ? WHERE id = ?",
                (
                    *(size, mtime_ns, error, metadata, facts, sidecar_ns),
                    row_checksum(known.id, path, size, mtime_ns, error, content_id, metadata),
                    known.id,
                ),
            )
            self._seal("images.facts_checksum", "id = ?", known.id)
            return
        if known is not None:
            self.remove([known.id])
        image_id = self.last_id() + 1
        self._connection.execute(
            "INSERT INTO images (id, path, size, mtime_ns, state, error, content_id, metadata, facts, sidecar_ns, "
            "checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(image_id, path, size, mtime_ns, state, error, content_id, metadata, facts, sidecar_ns),
                row_checksum(image_id, path, size, mtime_ns, error, content_id, metadata),
            ),
        )
        self._seal("images.facts_checksum", "id = ?", image_id)
        self._arrived += content_id is not None

    def move_images(self, new_paths: Mapping[int, bytes]) -> None:
        """Give images other paths, all at once, since they may take each other's; nothing else of them changes."""
        self.changed, self._edited = self.changed or bool(new_paths), self._edited or bool(new_paths)
        for image_id in new_paths:
            self._connection.execute("UPDATE images SET path = ? WHERE id = ?", (b"\0moving %d" % image_id, image_id))
        for image_id, path in new_paths.items():
            self._connection.execute("UPDATE images SET path = ? WHERE id = ?", (path, image_id))
            self._seal("images.checksum", "id = ?", image_id)

    def ignore(self, path: bytes, content_hash: bytes | None) -> None:
        """Remember that a picture, or with no hash a folder, was removed on purpose."""
        self._connection.execute(
            "INSERT OR REPLACE INTO ignored VALUES (?, ?, ?)", (path, content_hash, row_checksum(path, content_hash))
        )

    def unignore(self, path: bytes) -> None:
        self._connection.execute("DELETE FROM ignored WHERE path = ?", (path,))

    def set_signatures(self, signatures: Mapping[int, bytes]) -> None:
        """Store signatures, which are caches, under the contents of these images."""
        its_content = "id = (SELECT content_id FROM images WHERE images.id = ?)"
        for image_id, signature in signatures.items():
            self._connection.execute(f"UPDATE contents SET signature = ? WHERE {its_content}", (signature, image_id))
            self._seal("contents.signature_checksum", its_content, image_id)

    def add_compared_pairs(self, kind: str, scores: Mapping[tuple[str, str], float]) -> None:
        """Remember how pairs of contents, by their hashes, compared; what is no longer in the gallery is forgotten."""
        rows: list[tuple[str | bytes | float, ...]] = [
            (kind, *sorted((bytes.fromhex(a), bytes.fromhex(b))), float(score)) for (a, b), score in scores.items()
        ]
        self._connection.executemany(
            "INSERT OR REPLACE INTO pairs VALUES (?, ?, ?, ?, ?)", ((*row, row_checksum(*row)) for row in rows)
        )
        self._connection.execute(
            "DELETE FROM pairs WHERE first NOT IN (SELECT hash FROM contents) "
            "OR second NOT IN (SELECT hash FROM contents)"
        )

    def set_groups(self, groups: Mapping[int, Sequence[int]]) -> None:
        """Keep these groups of images, the cover first, in place of all that were."""
        self.changed = True
        self._connection.execute("UPDATE images SET group_id = NULL, group_rank = NULL WHERE group_id IS NOT NULL")
        self._connection.executemany(
            "UPDATE images SET group_id = ?, group_rank = ? WHERE id = ?",
            ((number, rank, image_id) for number, ids in groups.items() for rank, image_id in enumerate(ids)),
        )
        self._seal("images.facts_checksum", "1")

    def set_metadata(self, image_id: int, metadata: str) -> None:
        self.changed = self._edited = True
        self._connection.execute("UPDATE images SET metadata = ? WHERE id = ?", (metadata, image_id))
        self._seal("images.checksum", "id = ?", image_id)

    def forget_descriptors(self, ids: Iterable[int]) -> None:
        """Images whose descriptor is lost keep their path and metadata, and are described by the next `index`."""
        for image_id in ids:
            self.changed = True
            row = self._connection.execute("SELECT content_id FROM images WHERE id = ?", (image_id,)).fetchone()
            self._connection.execute(
                "UPDATE images SET state = 'failed', content_id = NULL, mtime_ns = -1, error = ? WHERE id = ?",
                (LOST_DESCRIPTOR, image_id),
            )
            self._seal("images.checksum", "id = ?", image_id)
            if row is not None and row[0] is not None:
                self._release(image_id, row[0])

    def distrust(self, ids: Iterable[int]) -> None:
        """Have the next `index` read these images' files, whatever their sizes and times say."""
        for image_id in ids:
            self._connection.execute("UPDATE images SET mtime_ns = -1 WHERE id = ?", (image_id,))
            self._seal("images.checksum", "id = ?", image_id)

    def delete_contents(self, ids: Iterable[int]) -> None:
        """Delete contents whose rows are damaged, whether or not an image has them; the images were seen to."""
        self._connection.executemany("DELETE FROM contents WHERE id = ?", ((content_id,) for content_id in ids))

    def restore_settings(self, keys: Sequence[str]) -> None:
        """Put settings right whose checksums are not theirs: from the rows where those say it, else by default."""
        fingerprint, dim = self.commonest_model()
        defaults = {"engine": "faiss", "codec": "auto", "fingerprint": fingerprint, "dim": dim}
        for key in keys:
            if key in ("generation", "removals_since", "edited"):
                self._edited = True
                self.changed = True
                found = self._number("SELECT coalesce(max(generation), 0) FROM removals")
                self._next_generation = max(self._next_generation, found + 1)
                self.set("removals_since", self._next_generation)  # indexes start over
            elif key == "searchable":
                self.set(key, self.count_searchable())
            elif key == "version":
                self.set(key, latest_version())
            elif key == "uuid":
                self.set(key, self.setting(key) or uuid.uuid4().hex)
            elif key in ("model", "local"):
                self.set(key, self.setting(key))  # a name that leads nowhere is said when it is followed
            elif key in defaults:
                self.set(key, defaults[key])
        if keys:
            self.delete_damaged("settings.checksum")

    def forget_facts(self, ids: Iterable[int]) -> None:
        """Forget what files say of themselves and which groups images are in; the next `index` reads the files."""
        for image_id in ids:
            self.changed = self._edited = True
            self._connection.execute(
                "UPDATE images SET facts = NULL, sidecar_ns = 0, group_id = NULL, group_rank = NULL WHERE id = ?",
                (image_id,),
            )
            self._seal("images.facts_checksum", "id = ?", image_id)

    def forget_signatures(self, content_ids: Iterable[int]) -> None:
        for content_id in content_ids:
            self._connection.execute("UPDATE contents SET signature = NULL WHERE id = ?", (content_id,))
            self._seal("contents.signature_checksum", "id = ?", content_id)

    def forget_removals(self) -> None:
        """Let indexes start over, where it is not known any more what was removed."""
        self.changed = True
        self._connection.execute("DELETE FROM removals")
        self.set("removals_since", self._next_generation)

    def restore_last_id(self) -> None:
        """Give out ids above all that there are."""
        self.changed = True
        self._connection.execute("DELETE FROM sqlite_sequence WHERE name = 'images'")
        self._connection.execute("INSERT INTO sqlite_sequence VALUES ('images', ?)", (self.highest_id(),))

    def delete_damaged(self, guard: str) -> None:
        """Delete the rows of a table that do not have their checksums."""
        self._connection.execute(f"DELETE FROM {guard.partition('.')[0]} WHERE {damage_in_sql(guard)}")

    def _seal(self, guard: str, where: str, *parameters: Any) -> None:
        """Give rows that were changed in place their checksums."""
        self._connection.execute(f"{seal_in_sql(guard)} WHERE {where}", parameters)

    def _release(self, image_id: int, content_id: int) -> None:
        """An image that had this content has it no more: indexes must forget it, and nobody else may need it."""
        row = (image_id, self._next_generation)
        self._connection.execute("INSERT OR REPLACE INTO removals VALUES (?, ?, ?)", (*row, row_checksum(*row)))
        self._released.add(content_id)
        self._arrived -= 1

    def remove(self, ids: Iterable[int]) -> int:
        """Take images out, and the descriptors that no other image shares. Returns how many there were."""
        removed = 0
        for image_id in ids:
            row = self._connection.execute("SELECT content_id FROM images WHERE id = ?", (image_id,)).fetchone()
            if row is None:
                continue
            removed += 1
            self._connection.execute("DELETE FROM images WHERE id = ?", (image_id,))
            if row[0] is not None:
                self._release(image_id, row[0])
        self.changed = self.changed or removed > 0
        return removed

    def trim_removals(self, up_to_generation: int) -> None:
        """Forget removals that the stored index already has; readers that are older load the stored index."""
        self._connection.execute("DELETE FROM removals WHERE generation <= ?", (up_to_generation,))
        self.set("removals_since", max(up_to_generation, self.counter("removals_since")))

    def switch_fingerprint(self, fingerprint: str) -> int:
        """Give every image the descriptor of another model, once all are made; one moment for every reader.

        Images whose content has none become failed. Returns how many images have one.
        """
        self.changed = True
        offset = self.last_id()
        # New ids, since an id never changes its descriptor; above every old one, so that none collide meanwhile.
        self._connection.execute(
            "UPDATE images SET id = id + ?, content_id = (SELECT made.id FROM contents AS made JOIN contents AS old "
            "ON made.hash = old.hash WHERE old.id = images.content_id AND made.fingerprint = ?), "
            "state = CASE WHEN EXISTS (SELECT 1 FROM contents AS made JOIN contents AS old ON made.hash = old.hash "
            "WHERE old.id = images.content_id AND made.fingerprint = ?) THEN 'ok' ELSE 'failed' END, "
            "error = CASE WHEN content_id IS NULL THEN error ELSE NULL END",
            (offset, fingerprint, fingerprint),
        )
        self._connection.execute(
            "UPDATE images SET mtime_ns = -1, error = 'its file could not be read when the model was changed' "
            "WHERE state = 'failed' AND error IS NULL"
        )
        self._seal("images.checksum", "1")
        self._seal("images.facts_checksum", "1")
        self._connection.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'images'", (2 * offset,))
        self._connection.execute(
            "DELETE FROM contents WHERE fingerprint != ? OR id NOT IN "
            "(SELECT content_id FROM images WHERE content_id IS NOT NULL)",
            (fingerprint,),
        )
        self._connection.execute("DELETE FROM local_features WHERE hash NOT IN (SELECT hash FROM contents)")
        self._connection.execute("DELETE FROM removals")
        self.set("removals_since", self._next_generation)
        self.set("fingerprint", fingerprint)
        searchable = self.count_searchable()
        self.set("searchable", searchable)
        return searchable
