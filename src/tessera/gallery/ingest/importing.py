"""Descriptors that were made elsewhere: on a cluster, in a notebook, by an earlier catalogue of one's own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.data.photos.decoding import DEFAULT_LIMITS
from tessera.errors import UsageError
from tessera.gallery.catalog.metadata import encode_metadata
from tessera.gallery.catalog.paths import printable, to_blob
from tessera.gallery.catalog.records import Descriptor, encode_descriptor, unit_descriptor
from tessera.gallery.ingest.reading import read_file
from tessera.gallery.ingest.rebuilding import claim_model
from tessera.gallery.ingest.sources import look_at, with_sidecar
from tessera.gallery.store import Store

_BATCH_IMAGES = 256


@dataclass(frozen=True)
class DescribedImage:
    """A picture's path and the descriptor, D, that the gallery's model gives it; width and height where they matter."""

    path: str | os.PathLike[str]
    descriptor: npt.NDArray[Any]
    width: int = 0
    height: int = 0
    metadata: Mapping[str, Any] | None = None


def store_described(store: Store, images: Iterable[DescribedImage]) -> int:
    """Store images in small batches, by the one writer; how many there were.

    A picture that can be read is known by its content from now on, so `index` finds it unchanged. One that cannot is
    known by its path and descriptor, until an `index` finds it.
    """
    claim_model(store)
    stored, iterator = 0, iter(images)
    while batch_images := list(islice(iterator, _BATCH_IMAGES)):
        checked = [(image, _checked(image, store.describer.dim)) for image in batch_images]
        with store.catalog.write() as batch:
            for image, descriptor in checked:
                path = to_blob(image.path)
                read = read_file(with_sidecar(look_at(path)), max_bytes=DEFAULT_LIMITS.max_bytes)
                content_hash = read.content_hash or hashlib.sha256(path + encode_descriptor(descriptor)).digest()
                content_id = batch.add_content(
                    content_hash, store.describer.fingerprint, image.width, image.height, descriptor
                )
                metadata = None if image.metadata is None else encode_metadata(image.metadata)
                batch.put_image(
                    path,
                    size=read.size,
                    mtime_ns=read.mtime_ns,
                    content_id=content_id,
                    error=None,
                    metadata=metadata,
                    facts=read.facts or "{}",
                    sidecar_ns=read.found.sidecar_ns,
                )
        stored += len(checked)
    return stored


def _checked(image: DescribedImage, dim: int) -> Descriptor:
    descriptor = unit_descriptor(np.asarray(image.descriptor))
    if len(descriptor) != dim:
        raise UsageError(
            f"The descriptor of {printable(image.path)} has {len(descriptor)} numbers, the gallery's have {dim}. "
            "Make it with the gallery's model."
        )
    return descriptor
