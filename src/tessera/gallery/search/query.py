"""From what a user asks with to a descriptor."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from tessera.data.boxes import Box
from tessera.data.images import load_photo
from tessera.errors import GalleryError, UsageError
from tessera.gallery.catalog.catalog import Catalog

if TYPE_CHECKING:
    from tessera.extract.extractor import Extractor

Query = str | os.PathLike[str] | bytes | Image.Image | npt.NDArray[Any] | int
Descriptor = npt.NDArray[np.float32]


def describe_query(
    query: Query, box: Box | None, catalog: Catalog, open_extractor: Callable[[], Extractor]
) -> Descriptor:
    """The descriptor, D, of a picture (path, bytes, PIL image, H W 3 uint8), a part of it, or an image of the gallery.

    open_extractor: called only for a picture, since the gallery's own descriptors need no network.
    """
    if isinstance(query, int | np.integer) and not isinstance(query, bool):
        if box is None:
            return stored_descriptor(int(query), catalog)
        return _describe_picture(stored_path(int(query), catalog), box, open_extractor)
    if isinstance(query, np.ndarray) and query.ndim == 3 and query.dtype == np.uint8:
        return _describe_picture(Image.fromarray(query), box, open_extractor)
    if isinstance(query, np.ndarray):
        if box is not None:
            raise UsageError("A box needs a picture: with a descriptor there is nothing to cut it from.")
        return unit_descriptor(query)
    if isinstance(query, str | bytes | os.PathLike | Image.Image):
        return _describe_picture(query, box, open_extractor)
    raise UsageError(
        f"A query must be a path, bytes, a PIL image, an array or an id of the gallery, not {type(query).__name__}."
    )


def stored_descriptor(image_id: int, catalog: Catalog) -> Descriptor:
    with catalog.read() as snapshot:
        found = snapshot.descriptors([image_id])
    if image_id not in found:
        raise unknown_id(image_id)
    return unit_descriptor(found[image_id])


def stored_path(image_id: int, catalog: Catalog) -> str:
    with catalog.read() as snapshot:
        found = snapshot.records([image_id])
    if image_id not in found:
        raise unknown_id(image_id)
    return found[image_id].path


def unit_descriptor(values: npt.NDArray[Any]) -> Descriptor:
    """A descriptor of length one, whatever its scale was; half precision has rounded a stored one a little off."""
    if values.ndim != 1 or values.dtype.kind not in "fiu":
        raise UsageError(f"A descriptor must be one row of numbers, not shape {values.shape} of {values.dtype}.")
    descriptor = values.astype(np.float64)
    norm = float(np.linalg.norm(descriptor))
    if not np.isfinite(norm) or norm == 0.0:
        raise UsageError("The descriptor is zero or not finite; it has no direction to compare.")
    unit: Descriptor = (descriptor / norm).astype(np.float32)
    return unit


def _describe_picture(
    picture: str | os.PathLike[str] | bytes | Image.Image, box: Box | None, open_extractor: Callable[[], Extractor]
) -> Descriptor:
    extractor = open_extractor()
    return extractor.describe(load_photo(picture, size=extractor.size, box=box))


def unknown_id(image_id: int) -> GalleryError:
    return GalleryError(f"The gallery has no image with the id {image_id}. It may have been removed or changed.")
