"""Putting a gallery in order: copies, groups, and what people say of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tessera.errors import UsageError
from tessera.gallery.catalog.filters import Where
from tessera.gallery.gallery_reader import GalleryReader
from tessera.gallery.store import Store

if TYPE_CHECKING:  # a search needs none of these, and would wait for them
    from tessera.gallery.organise.duplicates import CopyGroup
    from tessera.gallery.organise.groups import PhotoGroup


class GalleryOrganiser(GalleryReader):
    """What `Gallery` finds among its own images, and keeps."""

    _store: Store

    def duplicates(
        self,
        *,
        where: Where | None = None,
        renew: bool = True,
        progress: Callable[[int, int], None] = lambda *_: None,
    ) -> list[CopyGroup]:
        """Exact and near copies (resized, recompressed, cropped, turned, framed, written on), in groups.

        Of each group, which picture to keep and why. where: only among images that meet these conditions. renew False:
        compare nothing, and give what is known from the last time. Others may write meanwhile.
        """
        from tessera.gallery.organise.duplicates import find_duplicates, read_duplicates

        if not renew:
            return read_duplicates(self._store, self._matching(where))
        return find_duplicates(self._store, self._matching(where), progress)

    def groups(self, *, renew: bool = True, progress: Callable[[int, int], None] = lambda *_: None) -> list[PhotoGroup]:
        """Photos of the same place or thing, in groups with a cover each, the largest first.

        Only pairs that were never compared are compared now. The groups are kept: `record(id).group_id` says which
        group an image is in. renew False: the groups as they were found last. Others may write meanwhile.
        """
        from tessera.gallery.organise.groups import find_groups, read_groups

        if not renew:
            return read_groups(self._store)
        return find_groups(self._store, progress)

    def group_of(self, image_id: int) -> PhotoGroup | None:
        """The group that this image is in, as `groups` found it last."""
        from tessera.gallery.organise.groups import read_group

        return read_group(self._store, image_id)

    def rejoin_groups(self) -> None:
        """Put images that came back into the groups they were in; nothing is compared."""
        from tessera.gallery.organise.groups import rejoin_groups

        rejoin_groups(self._store)

    def take_apart(self, ids: Iterable[int]) -> None:
        """Say that these images are no copies of each other: `duplicates` does not join them again."""
        from tessera.gallery.organise.apart import take_apart
        from tessera.gallery.organise.duplicates import PAIR_KIND

        with self._store.write():
            take_apart(self._store, PAIR_KIND, [int(image_id) for image_id in ids])

    def leave_group(self, image_id: int) -> None:
        """Say that an image does not show what its group shows: it leaves, and `groups` does not join them again."""
        from tessera.gallery.organise.apart import take_apart
        from tessera.gallery.organise.groups import PAIR_KIND, join_groups, read_groups

        with self._store.write():
            for group in read_groups(self._store):
                members = [record.id for record in group.images]
                if image_id in members:
                    take_apart(self._store, PAIR_KIND, [other for other in members if other != image_id], image_id)
                    join_groups(self._store)
                    return
            raise UsageError(f"The image {image_id} is in no group.")
