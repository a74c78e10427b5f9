"""Photos to batches, ahead of the network, in threads or processes.

The pixels of an image depend on (seed, epoch, index) and on nothing else: neither on the number of workers nor on where
a run was resumed. A photo that cannot be read is replaced by the next of its class, counted and listed; above one in a
hundred the run stops, because something is wrong with the data.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from tessera.data.images import load_photo
from tessera.data.transforms import Pixels, TransformConfig, augment, plain, random_of
from tessera.data.unreadable import UnreadableLog
from tessera.errors import DataError, ImageError
from tessera.train.batches.sampler import Indices, members_of

_AHEAD = 3  # batches prepared before they are asked for


class PhotoCache:
    """Decoded photos in memory, up to a budget; what does not fit is decoded again each time."""

    def __init__(self, budget_gb: float) -> None:
        self._budget = int(budget_gb * (1 << 30))
        self._photos: dict[int, Pixels] = {}
        self._lock = threading.Lock()

    def get(self, index: int, load: Callable[[], Pixels]) -> Pixels:
        kept = self._photos.get(index)
        if kept is not None:
            return kept
        photo = load()
        with self._lock:
            if photo.nbytes <= self._budget:
                self._budget -= photo.nbytes
                self._photos[index] = photo
        return photo


@dataclass
class PhotoReader:
    """Reads and augments single images; picklable, so that worker processes can have one each.

    paths and labels: of all images. decode_size: longer side at which photos are decoded and kept, None for their own.
    """

    paths: Sequence[Path]
    labels: Indices
    transform: TransformConfig
    seed: int
    decode_size: int | None = None
    cache_gb: float = 0.0
    _cache: PhotoCache | None = field(default=None, repr=False)
    _next: Indices | None = field(default=None, repr=False)

    def read(self, index: int, epoch: int | None) -> tuple[Pixels, int, dict[int, str]]:
        """Pixels, the index they really are of, and what could not be read on the way. epoch None: no augmentation."""
        failed: dict[int, str] = {}
        actual = index
        for _ in range(len(self.paths)):
            try:
                photo = self._photo(actual)
            except ImageError as error:
                failed[actual] = str(error)
                actual = self._following(actual)
                if actual in failed:  # the whole class is unreadable
                    actual = (max(failed) + 1) % len(self.paths)
                continue
            if epoch is None:
                return plain(photo, self.transform), actual, failed
            return augment(photo, self.transform, random_of(self.seed, epoch, index)), actual, failed
        raise DataError(f"not one of {len(self.paths)} training images can be read; the first: {failed.get(index)}")

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_cache": None}

    def _photo(self, index: int) -> Pixels:
        if not self.cache_gb:
            return load_photo(self.paths[index], size=self.decode_size)
        if self._cache is None:
            self._cache = PhotoCache(self.cache_gb)
        return self._cache.get(index, lambda: load_photo(self.paths[index], size=self.decode_size))

    def _following(self, index: int) -> int:
        """The next image of the same class, in a circle."""
        if self._next is None:
            following = np.arange(len(self.labels), dtype=np.int64)
            for members in members_of(self.labels):
                following[members] = np.roll(members, -1)
            self._next = following
        return int(self._next[index])


@dataclass(frozen=True)
class Photos:
    """One batch: pixels of each image and the index it really has. Stacked when all have one shape."""

    pixels: list[Pixels]
    indices: Indices


class PhotoLoader:
    """Batches of photos, `_AHEAD` of them under way at any time. unreadable: a log shared with other feeds of a run."""

    def __init__(
        self,
        reader: PhotoReader,
        workers: int = 2,
        kind: Literal["thread", "process"] = "thread",
        *,
        unreadable: UnreadableLog | None = None,
    ) -> None:
        self.reader = reader
        self.workers = max(1, workers)
        self.unreadable = unreadable if unreadable is not None else UnreadableLog(len(reader.paths))
        self._kind = kind
        self._pool: Executor | None = None
        self._waiting: deque[list[Future[list[tuple[Pixels, int, dict[int, str]]]]]] = deque()

    def __len__(self) -> int:
        return len(self.reader.paths)

    def batches(self, batches: Iterable[Indices], epoch: int | None) -> Iterator[Photos]:
        """The photos of each batch of indices, in order."""
        waiting: deque[list[Future[list[tuple[Pixels, int, dict[int, str]]]]]] = deque()
        self._waiting = waiting
        pool = self._open()
        here = self.reader if self._kind == "thread" else None
        source = iter(batches)
        try:
            while True:
                while len(waiting) < _AHEAD and (wanted := next(source, None)) is not None:
                    pieces = np.array_split(wanted, min(self.workers, len(wanted)))
                    waiting.append([pool.submit(_read_piece, here, piece, epoch) for piece in pieces])
                if not waiting:
                    return
                yield self._collect(waiting.popleft())
        finally:
            for futures in waiting:
                for future in futures:
                    future.cancel()

    def wait_until_ready(self) -> None:
        """Wait until everything that was asked for ahead is ready."""
        for future in [future for futures in self._waiting for future in futures]:
            future.result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _collect(self, futures: list[Future[list[tuple[Pixels, int, dict[int, str]]]]]) -> Photos:
        read = [item for future in futures for item in future.result()]
        for _, _, failed in read:
            for index, reason in failed.items():
                self.unreadable.record(self.reader.paths[index], reason)
        return Photos([pixels for pixels, _, _ in read], np.array([actual for _, actual, _ in read], dtype=np.int64))

    def _open(self) -> Executor:
        if self._pool is None:
            if self._kind == "process":
                import multiprocessing

                self._pool = ProcessPoolExecutor(
                    self.workers, multiprocessing.get_context("spawn"), _take_reader, (self.reader,)
                )
            else:
                self._pool = ThreadPoolExecutor(self.workers, "photos")
        return self._pool


_READER: PhotoReader | None = None  # of a worker process, sent once instead of with each batch


def _take_reader(reader: PhotoReader) -> None:
    global _READER  # noqa: PLW0603
    _READER = reader


def _read_piece(
    reader: PhotoReader | None, indices: Indices, epoch: int | None
) -> list[tuple[Pixels, int, dict[int, str]]]:
    reader = _READER or reader
    assert reader is not None
    return [reader.read(int(index), epoch) for index in indices]
