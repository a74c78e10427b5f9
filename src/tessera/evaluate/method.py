"""What is evaluated: something that describes images and ranks a gallery. Here by one descriptor an image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tessera.data.ground_truth import Box
from tessera.data.sets.benchmark import Benchmark, IntArray
from tessera.evaluate.descriptors import DescribedImages, Describes, Descriptors, describe_images, take_rows
from tessera.evaluate.rankers import EXACT, rank_by_index, rank_exactly, rank_refined

__all__ = ["EXACT", "DescriptorMethod", "ImagesOf", "Method", "Progress"]

Progress = Callable[[str, int, int], None]  # stage, how many are done, of how many


@dataclass(frozen=True)
class ImagesOf:
    """The images of a benchmark: the gallery's, then the queries', cut by their boxes."""

    benchmark: Benchmark
    query_boxes: tuple[Box | None, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        return self.benchmark.gallery + self.benchmark.queries

    @property
    def boxes(self) -> tuple[Box | None, ...]:
        return (None,) * len(self.benchmark.gallery) + self.query_boxes


class Method(Protocol):
    """One way to rank images. `details` and `notes` are asked for at the end: they may be of what happened."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str:
        """Of everything that decides a ranking."""
        ...

    @property
    def details(self) -> dict[str, Any]:
        """What else decides the figures, for the result."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What the reader should know."""
        ...

    def describe(self, images: ImagesOf, hashes: Sequence[str], cache_dir: Path, progress: Progress) -> dict[int, str]:
        """Make what ranking needs. Why it cannot, by the image's number in the gallery and then the queries."""
        ...

    def rank(
        self, benchmark: Benchmark, boxes: Sequence[Box | None], kept: Sequence[int], *, codec: str, seed: int
    ) -> Iterator[IntArray]:
        """One ranking of gallery ids a query, best first; it may be truncated.

        benchmark: without what could not be described; kept: the rows of `describe` that are left.
        """
        ...


class DescriptorMethod:
    """One descriptor an image, by an extractor; expansion and re-ranking by descriptors, if asked for."""

    def __init__(
        self,
        extractor: Describes,
        name: str,
        *,
        expand: str | None = None,
        augment: bool = False,
        rerank: str | None = None,
        details: dict[str, Any] | None = None,
    ) -> None:
        self.extractor, self.name = extractor, name
        self.notes: tuple[str, ...] = ()
        self._refinement: dict[str, Any] = {"expand": expand, "rerank": rerank, "augment": augment}
        self._is_plain = expand is None and rerank is None and not augment
        self._details = dict(details or {}) | ({} if self._is_plain else self._refinement)
        self._described: DescribedImages | None = None
        self._cache_dir, self._codec = Path(), EXACT

    @property
    def fingerprint(self) -> str:
        return self.extractor.fingerprint

    @property
    def details(self) -> dict[str, Any]:
        assert self._described is not None
        counts = {"network": self._described.num_network, "cache": self._described.num_cached}
        return {"codec": self._codec, **self._details, "described": counts}

    def describe(self, images: ImagesOf, hashes: Sequence[str], cache_dir: Path, progress: Progress) -> dict[int, str]:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress("describing images", done, len(images.paths))

        self._cache_dir = cache_dir
        self._described = describe_images(
            self.extractor, images.paths, images.boxes, hashes, cache_dir=cache_dir, advance=advance
        )
        return self._described.failures

    def rank(
        self, benchmark: Benchmark, boxes: Sequence[Box | None], kept: Sequence[int], *, codec: str, seed: int
    ) -> Iterator[IntArray]:
        assert self._described is not None
        self._codec, descriptors = codec, self._described.descriptors
        if len(kept) < len(descriptors):
            descriptors = take_rows(descriptors, kept, self._cache_dir)
        split = len(benchmark.gallery)
        self.notes = self.look_at(benchmark, descriptors[:split], descriptors[split:])
        if not self._is_plain:
            return rank_refined(
                codec, benchmark, descriptors[:split], descriptors[split:], seed=seed, **self._refinement
            )
        if codec == EXACT:
            return rank_exactly(descriptors[:split], descriptors[split:])
        return rank_by_index(codec, descriptors[:split], descriptors[split:], seed=seed)

    def look_at(self, benchmark: Benchmark, gallery: Descriptors, queries: Descriptors) -> tuple[str, ...]:
        """What there is to say of the descriptors."""
        del benchmark, gallery, queries
        return ()
