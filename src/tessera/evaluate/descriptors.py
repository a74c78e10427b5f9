"""The descriptors of a benchmark's images, from the cache where it has them and from the network where not."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tessera.data.ground_truth import Box
from tessera.errors import EvaluationError, TesseraError
from tessera.evaluate.cache import DescriptorCache, cache_key

Descriptors = npt.NDArray[np.float32]
MAPPED_ABOVE_BYTES = 1 << 30
_ROWS_AT_ONCE = 1 << 14


class Described(Protocol):
    """What `Extractor.extract` gives for one image."""

    @property
    def descriptor(self) -> Descriptors | None: ...
    @property
    def error(self) -> TesseraError | None: ...


class Describes(Protocol):
    """What an evaluation needs of an extractor: `tessera.extract.Extractor`, or anything that describes images."""

    @property
    def dim(self) -> int: ...
    @property
    def fingerprint(self) -> str: ...
    def extract(
        self, sources: Iterable[Any], *, boxes: Iterable[Box | None] | None = None, loader: Any = "benchmark"
    ) -> Iterator[Described]: ...


@dataclass
class DescribedImages:
    """Descriptors of N images in their order, N D; rows of `failures` (position to reason) are zero.

    num_cached, num_network: how many different images came from the cache and how many went through the network.
    """

    descriptors: Descriptors
    failures: dict[int, str] = field(default_factory=dict)
    num_cached: int = 0
    num_network: int = 0


def describe_images(
    extractor: Describes,
    paths: Sequence[Path],
    boxes: Sequence[Box | None],
    hashes: Sequence[str],
    *,
    cache_dir: Path,
    advance: Callable[[int], None] | None = None,
) -> DescribedImages:
    """Describe images through the benchmark loader; equal images (by content and box) are described once.

    Each descriptor is stored as soon as it is made, so that an interrupted run goes on where it stopped.
    advance: told how many images are done since the last call.
    """
    advance = advance or (lambda _: None)
    keys = [cache_key(content, box) for content, box in zip(hashes, boxes, strict=True)]
    rows: dict[str, list[int]] = {}
    for row, key in enumerate(keys):
        rows.setdefault(key, []).append(row)
    described = DescribedImages(allocate_rows(len(paths), extractor.dim, cache_dir))
    cache = DescriptorCache(cache_dir, extractor.fingerprint, extractor.dim)
    with contextlib.closing(cache):
        done = set()
        for key, descriptor in cache.get_many(list(rows)):
            described.descriptors[rows[key]] = descriptor
            done.add(key)
            described.num_cached += 1
            advance(len(rows[key]))
        todo = [key for key in rows if key not in done]
        first = [rows[key][0] for key in todo]
        extractions = extractor.extract(
            (paths[row] for row in first), boxes=(boxes[row] for row in first), loader="benchmark"
        )
        for key, extraction in zip(todo, extractions, strict=True):
            if extraction.descriptor is None:
                described.failures.update(dict.fromkeys(rows[key], str(extraction.error)))
            else:
                _check(extraction.descriptor, paths[rows[key][0]])
                cache.put(key, extraction.descriptor)
                described.descriptors[rows[key]] = extraction.descriptor
            described.num_network += 1
            advance(len(rows[key]))
    return described


def _check(descriptor: Descriptors, path: Path) -> None:
    if not np.isfinite(descriptor).all():
        raise EvaluationError(f"the descriptor of {path} is not finite: the model is damaged or cannot take this size.")


def allocate_rows(count: int, dim: int, folder: Path) -> Descriptors:
    """Zeros, N D; beyond a gigabyte in a temporary file of `folder` that vanishes with the array."""
    if 4 * count * dim <= MAPPED_ABOVE_BYTES:
        return np.zeros((count, dim), dtype=np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(prefix=".descriptors-", dir=folder) as file:
        return np.memmap(file.name, dtype=np.float32, mode="w+", shape=(count, dim))


def take_rows(descriptors: Descriptors, rows: Sequence[int], folder: Path) -> Descriptors:
    """Some of the rows, copied a part at a time into memory or a file as `allocate_rows` chooses."""
    taken = allocate_rows(len(rows), descriptors.shape[1], folder)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows[start : start + _ROWS_AT_ONCE]
        taken[start : start + len(part)] = descriptors[part]
    return taken
