"""Comparing pairs of a gallery's images by local features and by pixels, each picture read once."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tessera.data.images import Pixels
from tessera.errors import ImageError
from tessera.extract.runtime import default_threads
from tessera.gallery.catalog.records import Record
from tessera.gallery.ingest.reading import load_indexed
from tessera.local.alignment import SIZE as PIXELS_SIZE
from tessera.local.alignment import Transformation, to_unit_squares
from tessera.local.features import LocalFeatures
from tessera.local.sift import SiftExtractor
from tessera.local.verification import VerificationConfig, verify

log = logging.getLogger(__name__)

FEATURES_SIZE = 640
_FEATURES = 600
_KEPT = 600  # pictures whose features, or small pixels, are remembered: 0.3 MB each
_AT_ONCE = 256

T = TypeVar("T")


@dataclass(frozen=True)
class PairMatch:
    """Inliers of one pair, the transformation from first to second, and the inliers' positions in the first, M 2.

    Both pictures are unit squares here, whatever size they were compared at.
    """

    inliers: int
    transformation: Transformation | None = None
    points: npt.NDArray[np.float64] | None = None


def order_pairs(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """These pairs so that those of one picture, and of pictures paired with it, come together: each is read less often.

    Breadth first through what the pairs connect, which keeps the band of what is in use narrow (Cuthill and McKee).
    """
    chosen = list(pairs)
    partners: dict[int, list[int]] = {}
    for first, second in chosen:
        partners.setdefault(first, []).append(second)
        partners.setdefault(second, []).append(first)
    rank: dict[int, int] = {}
    for start in partners:
        waiting = deque([start])
        while waiting:
            row = waiting.popleft()
            if row not in rank:
                rank[row] = len(rank)
                waiting.extend(other for other in partners[row] if other not in rank)
    return sorted(chosen, key=lambda pair: sorted((rank[pair[0]], rank[pair[1]]), reverse=True))


class PairReader:
    """Local features and small pixels of images by id. One that cannot be read, or has changed since, has none."""

    def __init__(self, records: Mapping[int, Record]) -> None:
        self._records = records
        self._unread: set[int] = set()
        self._features: OrderedDict[int, LocalFeatures | None] = OrderedDict()
        self._pixels: OrderedDict[int, Pixels | None] = OrderedDict()

    def verify_pairs(self, pairs: Sequence[tuple[int, int]], config: VerificationConfig) -> list[PairMatch]:
        """The geometric verification of each pair."""

        def compare(pair: tuple[int, int]) -> PairMatch:
            first, second = (self._features[image_id] for image_id in pair)
            if not first or not second:
                return PairMatch(0)
            found = verify(first, second, config)
            if found.transformation is None:
                return PairMatch(0)
            unit = to_unit_squares(found.transformation, first.image_size, second.image_size)
            points = first.positions[found.matches[found.inliers, 0]] / np.asarray(first.image_size, np.float64)
            return PairMatch(found.num_inliers, unit, points)

        matches: list[PairMatch] = []
        with ThreadPoolExecutor(default_threads()) as pool:
            for start in range(0, len(pairs), _AT_ONCE):
                part = pairs[start : start + _AT_ONCE]
                self._fill(self._features, part, self._extract, pool)
                matches += pool.map(compare, part)
        return matches

    def compare_pixels(
        self, pairs: Sequence[tuple[int, int]], compare: Callable[[int, Pixels, Pixels], T], nothing: T
    ) -> list[T]:
        """What `compare` says of each pair, given its number and both pictures; `nothing` where one cannot be read."""

        def compare_pair(pair: int) -> T:
            first, second = (self._pixels[image_id] for image_id in pairs[pair])
            return nothing if first is None or second is None else compare(pair, first, second)

        answers: list[T] = []
        with ThreadPoolExecutor(default_threads()) as pool:
            for start in range(0, len(pairs), _AT_ONCE):
                stop = min(start + _AT_ONCE, len(pairs))
                self._fill(self._pixels, pairs[start:stop], self._load, pool)
                answers += pool.map(compare_pair, range(start, stop))
        return answers

    def has_read(self, pair: tuple[int, int]) -> bool:
        """Whether both were read when they were asked for: else nothing is known of them, and they may be back."""
        return self._unread.isdisjoint(pair)

    def warn(self) -> None:
        """Say how many could not be read."""
        if self._unread:
            log.warning(
                "%d pictures are gone, cannot be read, or have changed since they were indexed; they are compared when "
                "they are back, or indexed again",
                len(self._unread),
            )

    def _fill(
        self,
        cache: OrderedDict[int, Any],
        pairs: Iterable[tuple[int, int]],
        make: Callable[[int], Any],
        pool: ThreadPoolExecutor,
    ) -> None:
        wanted = {image_id for pair in pairs for image_id in pair}
        for image_id in wanted & cache.keys():
            cache.move_to_end(image_id)
        lacking = sorted(wanted - cache.keys())
        cache.update(zip(lacking, pool.map(make, lacking), strict=True))
        while len(cache) > max(_KEPT, len(wanted)):
            cache.popitem(last=False)

    def _extract(self, image_id: int) -> LocalFeatures | None:
        picture = self._read(image_id, FEATURES_SIZE)
        return None if picture is None else SiftExtractor(count=_FEATURES).extract(picture)

    def _load(self, image_id: int) -> Pixels | None:
        return self._read(image_id, PIXELS_SIZE)

    def _read(self, image_id: int, size: int) -> Pixels | None:
        try:
            return np.ascontiguousarray(load_indexed(self._records[image_id], size))
        except ImageError:
            self._unread.add(image_id)
            return None
