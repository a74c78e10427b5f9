"""Looking into a gallery without a query: records, pages, counts, descriptors. All of it reads the catalogue alone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tessera.errors import GalleryError
from tessera.gallery.catalog import browsing
from tessera.gallery.catalog.browsing import Place
from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.catalog.filters import Where, parse_where
from tessera.gallery.catalog.paths import to_blob
from tessera.gallery.catalog.records import Record


class GalleryReader:
    """What `Gallery` reads from its catalogue, each call at one moment of it."""

    path: Path
    _catalog: Catalog

    def descriptors(self, ids: Iterable[int]) -> npt.NDArray[np.float32]:
        """The stored descriptors, N D, of these images."""
        wanted = [int(image_id) for image_id in ids]
        with self._catalog.read() as snapshot:
            found = snapshot.descriptors(wanted)
            dim = int(snapshot.setting("dim", 0) or 0)
        lacking = [image_id for image_id in wanted if image_id not in found]
        if lacking:
            raise GalleryError(
                f"The gallery has no image with the id {lacking[0]}. It may have been removed or changed."
            )
        rows = [found[image_id].astype(np.float32) for image_id in wanted]
        return np.stack(rows) if rows else np.empty((0, dim), np.float32)

    def record(self, image_id: int) -> Record | None:
        """What the gallery knows of an image, or None."""
        with self._catalog.read() as snapshot:
            return snapshot.records([image_id]).get(image_id)

    def records(self, ids: Iterable[int]) -> dict[int, Record]:
        """What the gallery knows of these images; an id that is not there is left out."""
        with self._catalog.read() as snapshot:
            return snapshot.records([int(image_id) for image_id in ids])

    def find(self, path: str | os.PathLike[str]) -> Record | None:
        """The record of a picture by its path, or None."""
        blob = to_blob(path)
        with self._catalog.read() as snapshot:
            known = snapshot.lookup([blob]).get(blob)
            return None if known is None else snapshot.records([known.id]).get(known.id)

    def holds(self, path: str | os.PathLike[str]) -> bool:
        """Whether there is an image at a path or below it."""
        with self._catalog.read() as snapshot:
            return next(snapshot.stream_under(to_blob(path), searchable=True), None) is not None

    def count(self, where: Where | None = None) -> int:
        """How many images meet the conditions."""
        conditions = parse_where(where)
        with self._catalog.read() as snapshot:
            return snapshot.count_matching(conditions)

    def images(
        self,
        *,
        after_id: int = 0,
        limit: int = 100,
        where: Where | None = None,
        order: str = "added",
        month: str | None = None,
    ) -> list[Record]:
        """A page of images; go on with `after_id` of the last one. order: added, newest, oldest or name.

        month: only those of a month that `months` gives, "" for those without a date.
        """
        conditions = parse_where(where)
        with self._catalog.read() as snapshot:
            if order == "added" and month is None:
                return snapshot.page(after_id=after_id, limit=limit, state="ok", conditions=conditions)
            return browsing.sorted_page(
                snapshot, order=order, after_id=after_id, limit=limit, conditions=conditions, month=month
            )

    def months(self, where: Where | None = None) -> dict[str, int]:
        """How many images are from each month, the last first; "" for those without a date."""
        conditions = parse_where(where)
        with self._catalog.read() as snapshot:
            return browsing.count_by_month(snapshot, conditions)

    def folders(self) -> dict[str, int]:
        """How many images lie in or below each folder, as `where="folder=…"` takes it."""
        with self._catalog.read() as snapshot:
            return browsing.count_by_folder(snapshot, to_blob(self.path))

    def places(self, most: int = 100) -> list[Place]:
        """Where photos were taken, to some two kilometres, those with most photos first."""
        with self._catalog.read() as snapshot:
            return browsing.find_places(snapshot, most)

    def failures(self, *, after_id: int = 0, limit: int = 100) -> list[Record]:
        """A page of the pictures that could not be read; `error` says why."""
        with self._catalog.read() as snapshot:
            return snapshot.page(after_id=after_id, limit=limit, state="failed", conditions=())

    def facets(self, values_a_key: int = 20) -> dict[str, dict[str, int]]:
        """Every metadata key with its most frequent values and how many images have each."""
        with self._catalog.read() as snapshot:
            return browsing.count_values(snapshot, values_a_key)

    @property
    def generation(self) -> int:
        """Grows with every change, by whatever process."""
        return self._catalog.generation()

    def __len__(self) -> int:
        with self._catalog.read() as snapshot:
            return snapshot.searchable

    def _matching(self, where: Where | None) -> list[int] | None:
        """The ids of the images that meet conditions; None where there are none, which is all."""
        conditions = parse_where(where)
        if not conditions:
            return None
        with self._catalog.read() as snapshot:
            return [int(image_id) for image_id in snapshot.matching_ids(conditions)]
