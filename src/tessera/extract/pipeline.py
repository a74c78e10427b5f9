"""Many images through the network: decoding threads run ahead, equal shapes share a batch, results come in order.

    sources -> decoding threads -> window -> batches of equal shape -> workers (networks) -> results, in order

On a CPU several single-threaded workers do a quarter more work than one network on all cores, because nothing waits for
the slowest thread of every layer. The window bounds memory: what is decoded, described or waiting never exceeds it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from tessera.data.images import Box, Limits, Photo, Pixels, Source, load_benchmark, read_photo
from tessera.data.signature import make_signature
from tessera.errors import BoxError, ImageError, TesseraError, UsageError, unknown_name

LoaderName: TypeAlias = Literal["photo", "benchmark"]
LOADERS = ("photo", "benchmark")
Descriptors: TypeAlias = npt.NDArray[np.float32]
Describe: TypeAlias = Callable[[Sequence[Pixels]], Descriptors]  # N images of equal shape to N D


@dataclass(frozen=True)
class Extraction:
    """What became of one source: its descriptor (D float32, unit norm), or the error that says why there is none."""

    source: Source
    descriptor: npt.NDArray[np.float32] | None
    error: TesseraError | None
    width: int  # of the whole picture, after EXIF rotation; 0 when it could not be read
    height: int
    signature: bytes | None = None  # `data.signature`, where the describer has the pixels at hand


@dataclass(frozen=True)
class PipelineConfig:
    """How wide the pipeline is. None of it changes a descriptor beyond float rounding."""

    decoders: int = 2
    workers: int = 2
    batch: int = 1  # images of equal shape in one run of the network
    window: int = 16  # sources that are decoded, described or waiting at once


class Pipeline:
    """describe: called from `workers` threads at once."""

    def __init__(
        self,
        describe: Describe,
        config: PipelineConfig,
        *,
        size: int,
        loader: LoaderName,
        limits: Limits,
    ) -> None:
        if loader not in LOADERS:
            raise UsageError(unknown_name("loader", loader, LOADERS))
        self._describe = describe
        self._config = config
        self._size = size
        self._loader = loader
        self._limits = limits

    def run(self, sources: Iterable[Source], boxes: Iterable[Box | None] | None = None) -> Iterator[Extraction]:
        pairs = iter(zip(sources, itertools.repeat(None) if boxes is None else boxes, strict=False))
        window: deque[_Entry] = deque()
        config = self._config
        decoders = ThreadPoolExecutor(config.decoders, thread_name_prefix="decode")
        workers = ThreadPoolExecutor(config.workers, thread_name_prefix="network")
        try:
            while True:
                room = config.window - len(window)
                for source, box in itertools.islice(pairs, room):
                    window.append(_Entry(source, decoders.submit(self._load, source, box)))
                if not window:
                    return
                self._submit_batches(window, workers)
                if not window[0].finished:
                    window[0].wait()
                    continue  # something was decoded or described: the workers may take more
                yield window.popleft().extraction()
        finally:
            decoders.shutdown(wait=True, cancel_futures=True)
            workers.shutdown(wait=True, cancel_futures=True)

    def _submit_batches(self, window: deque[_Entry], workers: ThreadPoolExecutor) -> None:
        """Give the workers what is decoded, oldest first, with one batch a worker in reserve."""
        running = {id(entry.run): entry.run for entry in window if entry.run is not None and not entry.run.done()}
        free = 2 * self._config.workers - len(running)
        ready = [entry for entry in window if entry.is_ready]
        while free > 0 and ready:
            batch = [entry for entry in ready if entry.shape == ready[0].shape][: self._config.batch]
            ready = [entry for entry in ready if all(entry is not member for member in batch)]
            run = workers.submit(self._describe, [entry.take_pixels() for entry in batch])
            for row, entry in enumerate(batch):
                entry.run, entry.row = run, row
            free -= 1

    def _load(self, source: Source, box: Box | None) -> Photo | TesseraError:
        try:
            if self._loader == "photo":
                return read_photo(source, size=self._size, box=box, limits=self._limits)
            pixels = load_benchmark(source, size=self._size, box=box, limits=self._limits)
            return Photo(pixels, pixels.shape[1], pixels.shape[0])
        except (ImageError, BoxError) as error:
            return error


class _Entry:
    """A source on its way: being decoded, then in a batch of the network."""

    def __init__(self, source: Source, decoding: Future[Photo | TesseraError]) -> None:
        self.source = source
        self.run: Future[Descriptors] | None = None
        self.row = 0
        self._decoding: Future[Photo | TesseraError] | None = decoding
        self._photo: Photo | None = None
        self._error: TesseraError | None = None
        self._size = (0, 0)
        self._signature: bytes | None = None

    @property
    def is_ready(self) -> bool:
        """Decoded well, and not yet with the network."""
        if self._decoding is not None and self._decoding.done():
            outcome = self._decoding.result()
            self._decoding = None
            if isinstance(outcome, TesseraError):
                self._error = outcome
            else:
                self._photo, self._size = outcome, (outcome.width, outcome.height)
        return self._photo is not None

    @property
    def shape(self) -> tuple[int, ...]:
        assert self._photo is not None
        return self._photo.pixels.shape

    def take_pixels(self) -> Pixels:
        """Hand the pixels over; the entry keeps none, so that a described image costs a descriptor only."""
        assert self._photo is not None
        pixels, self._photo = self._photo.pixels, None
        self._signature = make_signature(pixels)
        return pixels

    @property
    def finished(self) -> bool:
        return self._error is not None or (self.run is not None and self.run.done())

    def wait(self) -> None:
        if self._decoding is not None:
            self._decoding.exception()
        elif self.run is not None:
            self.run.exception()

    def extraction(self) -> Extraction:
        if self._error is not None:
            return Extraction(self.source, None, self._error, 0, 0)
        assert self.run is not None
        return Extraction(self.source, self.run.result()[self.row], None, *self._size, self._signature)
