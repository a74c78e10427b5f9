"""Decoding threads that run ahead of the network, within a bounded window, handing results out in order."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from tessera.data.images import Box, Limits, Photo, Source, load_benchmark, read_photo
from tessera.errors import TesseraError

if TYPE_CHECKING:
    from tessera.extract.extractor import Extractor


@dataclass(frozen=True)
class Extraction:
    """What became of one source: its descriptor (D float32, unit norm), or the error that says why there is none."""

    source: Source
    descriptor: npt.NDArray[np.float32] | None
    error: TesseraError | None
    width: int  # of the whole picture, after EXIF rotation; 0 when it could not be read
    height: int


class Pipeline:
    """The window: so many sources are decoded or waiting at once, and no more, whatever the collection's size."""

    def __init__(self, extractor: Extractor, *, loader: Literal["photo", "benchmark"], limits: Limits) -> None:
        self._extractor = extractor
        self._loader = loader
        self._limits = limits
        self._ahead = 4 * extractor.threads + 4

    def run(self, sources: Iterable[Source], boxes: Iterable[Box | None] | None = None) -> Iterator[Extraction]:
        pairs = zip(sources, boxes if boxes is not None else itertools.repeat(None), strict=False)
        waiting: deque[tuple[Source, Future[Photo | TesseraError]]] = deque()
        with ThreadPoolExecutor(self._extractor.threads, thread_name_prefix="decode") as decoders:
            try:
                for source, box in pairs:
                    waiting.append((source, decoders.submit(self._load, source, box)))
                    if len(waiting) >= self._ahead:
                        yield self._finish(*waiting.popleft())
                while waiting:
                    yield self._finish(*waiting.popleft())
            finally:
                decoders.shutdown(wait=True, cancel_futures=True)

    def _load(self, source: Source, box: Box | None) -> Photo | TesseraError:
        try:
            if self._loader == "photo":
                return read_photo(source, size=self._extractor.size, box=box, limits=self._limits)
            pixels = load_benchmark(source, size=self._extractor.size, box=box, limits=self._limits)
            return Photo(pixels, pixels.shape[1], pixels.shape[0])
        except TesseraError as error:
            return error

    def _finish(self, source: Source, future: Future[Photo | TesseraError]) -> Extraction:
        photo = future.result()
        if isinstance(photo, TesseraError):
            return Extraction(source, None, photo, 0, 0)
        return Extraction(source, self._extractor.describe(photo.pixels), None, photo.width, photo.height)
