"""What a user asks with: a picture or a part of one, an image of the gallery, or a descriptor."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tessera.data.boxes import Box, reaches_beyond
from tessera.data.images import DEFAULT_LIMITS, Limits, Pixels, Source, read_photo
from tessera.errors import GalleryError, UsageError
from tessera.gallery.catalog.records import Descriptor, Record, unit_descriptor
from tessera.gallery.catalog.snapshot import Snapshot

if TYPE_CHECKING:
    from tessera.extract.extractor import Extractor

Query = str | os.PathLike[str] | bytes | Image.Image | npt.NDArray[Any] | int


class QueryPicture:
    """A query, decoded where its pixels are needed and only then: once for each size that is asked for.

    The network and the local features both see the part inside the box, cut from the picture's own pixels and then
    reduced, each to its size. limits: what the picture may cost; those of a service are narrower. exclude: an image of
    the gallery that is not to be found: the query itself, where a benchmark leaves one out.
    """

    def __init__(
        self, query: Query, box: Box | None = None, limits: Limits = DEFAULT_LIMITS, *, exclude: int | None = None
    ) -> None:
        self.box, self.limits, self.exclude = box, limits, exclude
        self.image_id: int | None = None
        self._record: Record | None = None  # of the image of the gallery, once it is located
        self._source: Source | None = None
        self._given: Descriptor | None = None
        self._pixels: dict[int, Pixels] = {}
        self._described: tuple[str, Descriptor] | None = None  # by which network
        self.notes: list[str] = []
        if isinstance(query, int | np.integer) and not isinstance(query, bool):
            self.image_id = int(query)
        elif isinstance(query, np.ndarray) and query.ndim == 3 and query.dtype == np.uint8:
            self._source = Image.fromarray(query)
        elif isinstance(query, np.ndarray):
            if box is not None:
                raise UsageError("A box needs a picture: with a descriptor there is nothing to cut it from.")
            self._given = unit_descriptor(query)
        elif isinstance(query, str | bytes | os.PathLike | Image.Image):
            self._source = query
        else:
            raise UsageError(
                "A query must be a path, bytes, a PIL image, an array or an id of the gallery, "
                f"not {type(query).__name__}."
            )

    @property
    def whole_picture(self) -> Source | None:
        """What is to be decoded to describe the query; None where it is a part of a picture, or needs no decoding."""
        return self._source if self.box is None and self.image_id is None else None

    def was_described(self, fingerprint: str, descriptor: Descriptor) -> None:
        """Take the descriptor that a network made of the whole picture."""
        self._described = fingerprint, descriptor

    @property
    def is_picture(self) -> bool:
        return self._given is None

    @property
    def content_hash(self) -> str | None:
        """Of the file, where the query is a whole image of the gallery: what is stored under it need not be made."""
        return self._record.content_hash if self._record is not None and self.box is None else None

    def describe(self, snapshot: Snapshot, open_extractor: Callable[[], Extractor]) -> Descriptor:
        """The descriptor, D. open_extractor: called only for pixels, since a stored descriptor needs no network."""
        if self._given is not None:
            return self._given
        if self.image_id is not None and self.box is None:
            found = snapshot.descriptors([self.image_id])
            if self.image_id not in found:
                raise unknown_id(self.image_id)
            return unit_descriptor(found[self.image_id])
        self.locate(snapshot)
        extractor = open_extractor()
        if self._described is None or self._described[0] != extractor.fingerprint:
            self._described = extractor.fingerprint, extractor.describe(self.pixels(extractor.size))
        return self._described[1]

    def locate(self, snapshot: Snapshot) -> None:
        """Find the file of an image of the gallery, before `pixels` is asked for."""
        if self.image_id is not None:
            self._record = snapshot.records([self.image_id]).get(self.image_id)
            if self._record is None:
                raise unknown_id(self.image_id)
            self._source = self._record.path

    def pixels(self, size: int) -> Pixels:
        """The picture inside the box, H W 3, its longer side at most `size`."""
        assert self._source is not None
        if size not in self._pixels:
            photo = read_photo(self._source, size=size, box=self.box, limits=self.limits)
            self._pixels[size] = photo.pixels
            if self.box is not None and reaches_beyond(self.box, photo.width, photo.height):
                size_text = f"{photo.width} x {photo.height}"
                self.notes = [f"the box reaches beyond the picture, which is {size_text} pixels: it was clipped"]
        return self._pixels[size]


def unknown_id(image_id: int) -> GalleryError:
    return GalleryError(f"The gallery has no image with the id {image_id}. It may have been removed or changed.")
