"""Images to descriptors: the network at several scales, averaged, with decoding running ahead in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tessera.data.images import DEFAULT_LIMITS, Box, Limits, Pixels, Source
from tessera.errors import ModelError, UsageError, unknown_name
from tessera.extract.pipeline import Describe, Descriptors, Extraction, LoaderName, Pipeline, PipelineConfig
from tessera.extract.runtime import DEVICES, RUNTIMES, Outputs, Runtime, default_threads, open_runtime
from tessera.extract.scales import rescale
from tessera.models.bundle import Bundle

__all__ = ["Extraction", "Extractor"]

_EPS = 1e-12
# Each worker holds the maps of one image, some 400 MB at 1024 pixels; more cores than this share workers.
_MOST_WORKERS = 4
_GPU_BATCH = 16


class Extractor:
    """A bundle made ready to describe images.

    size, scales: the bundle's own unless given. They belong to the fingerprint: descriptors made at other scales are
    close, but not the same, and a gallery must not mix them.
    """

    def __init__(
        self,
        bundle: Bundle | str | Path = "lite",
        *,
        runtime: str = "onnx",
        device: str = "auto",
        size: int | None = None,
        scales: Sequence[float] | None = None,
        threads: int | None = None,
    ) -> None:
        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        card = self.bundle.card
        if card.kind != "global":
            raise ModelError(f"{card.name} is a {card.kind} model, which gives no descriptor. Use a global one here.")
        self.size = card.preprocessing.size if size is None else size
        self.scales = tuple(card.preprocessing.scales if scales is None else scales)
        if self.size < 1:
            raise UsageError(f"size must be at least 1 pixel, not {self.size}.")
        if not self.scales:
            raise UsageError("scales must hold at least one scale.")
        self.threads = threads or default_threads()
        for name, kind, known in ((runtime, "runtime", RUNTIMES), (device, "device", DEVICES)):
            if name not in known:
                raise UsageError(unknown_name(kind, name, known))
        self._runtime_name, self._device = runtime, device
        self._opened: dict[int, Runtime] = {}
        self._opening = threading.Lock()

    @property
    def dim(self) -> int:
        return self.bundle.card.dim

    @property
    def fingerprint(self) -> str:
        """Of everything that decides a descriptor: weights, graph, preprocessing, size and scales."""
        return self.bundle.fingerprint_at(self.size, self.scales)

    def describe(self, image: Pixels) -> Descriptors:
        """The descriptor, D, of one image, H W 3 uint8."""
        descriptor: Descriptors = self.describe_batch([image])[0]
        return descriptor

    def describe_batch(self, images: Sequence[Pixels]) -> Descriptors:
        """The descriptors, N D, of images of any sizes; those of equal shape run together."""
        descriptors = np.empty((len(images), self.dim), dtype=np.float32)
        groups: dict[tuple[int, ...], list[int]] = {}
        for i, image in enumerate(images):
            groups.setdefault(image.shape, []).append(i)
        for members in groups.values():
            descriptors[members] = self._describe_equal(self._runtime(), [images[i] for i in members])
        return descriptors

    def extract(
        self,
        sources: Iterable[Source],
        *,
        boxes: Iterable[Box | None] | None = None,
        loader: LoaderName = "photo",
        limits: Limits = DEFAULT_LIMITS,
        progress: Callable[[Extraction], None] | None = None,
    ) -> Iterator[Extraction]:
        """Describe many images, in order, in memory that does not grow with their number.

        A picture that cannot be read gives an Extraction with its error, and the rest goes on. `sources` may be a
        generator; it is read only a little ahead. progress: called with each Extraction before it is handed out.
        """
        describe, config = self._bulk()
        pipeline = Pipeline(describe, config, size=self.size, loader=loader, limits=limits)
        for extraction in pipeline.run(sources, boxes):
            if progress is not None:
                progress(extraction)
            yield extraction

    def outputs(self, image: Pixels, names: Sequence[str]) -> list[Outputs]:
        """The network's outputs for one image, a dictionary a scale (in the order of `scales`), with batch axis."""
        normalised = self.normalise([image])
        return [self._runtime().run(self._at_scale(normalised, scale), names) for scale in self.scales]

    @property
    def output_names(self) -> tuple[str, ...]:
        return self._runtime().output_names

    def normalise(self, images: Sequence[Pixels]) -> npt.NDArray[np.float32]:
        """Images of equal shape, H W 3 uint8, as the network's input B 3 H W."""
        return self.bundle.card.preprocessing.normalise(images)

    def _runtime(self, threads: int | None = None) -> Runtime:
        """The network on so many threads (all by default), opened on first use."""
        threads = threads or self.threads
        with self._opening:
            if threads not in self._opened:
                self._opened[threads] = open_runtime(
                    self.bundle, self._runtime_name, device=self._device, threads=threads
                )
            return self._opened[threads]

    def workers(self) -> tuple[Describe, int]:
        """What `extract` gives its images of equal shape to, and from how many threads at once: for benchmarks."""
        describe, config = self._bulk()
        return describe, config.workers

    def _bulk(self) -> tuple[Describe, PipelineConfig]:
        """How to run over many images: workers on a CPU with ONNX, batches where one network takes them all."""
        if self._runtime_name == "onnx":
            workers = min(self.threads, _MOST_WORKERS)
            runtime = self._runtime(max(1, self.threads // workers))
            if runtime.device == "cpu":
                config = PipelineConfig(decoders=self.threads, workers=workers, window=6 * self.threads + 4)
                return partial(self._describe_equal, runtime), config
        runtime = self._runtime()
        batch = _GPU_BATCH if runtime.device != "cpu" else 4
        config = PipelineConfig(decoders=self.threads, workers=1, batch=batch, window=6 * batch + self.threads)
        return partial(self._describe_equal, runtime), config

    def _describe_equal(self, runtime: Runtime, images: Sequence[Pixels]) -> Descriptors:
        """L2 per scale, mean over scales, L2. The network's output is of unit norm, but that is not relied on."""
        normalised = self.normalise(images)
        total = np.zeros((len(images), self.dim), dtype=np.float32)
        for scale in self.scales:
            values = runtime.run(self._at_scale(normalised, scale))["descriptor"]
            total += unit(np.asarray(values, dtype=np.float32))
        return unit(total / np.float32(len(self.scales)))

    def _at_scale(self, normalised: npt.NDArray[np.float32], scale: float) -> npt.NDArray[np.float32]:
        """The scaled images. An icon that is smaller than one position of the map has its edge repeated."""
        scaled = rescale(normalised, scale)
        height, width = scaled.shape[-2:]
        stride = self.bundle.card.stride
        if max(height, width) < stride:
            around = ((0, 0), (0, 0), (0, stride - height), (0, stride - width))
            scaled = np.pad(scaled, around, mode="edge")
        return scaled


def unit(vectors: Descriptors) -> Descriptors:
    """Rows divided by their length, as torch's normalize does (eps 1e-12)."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    scaled: Descriptors = vectors / np.maximum(norms, np.float32(_EPS))
    return scaled
