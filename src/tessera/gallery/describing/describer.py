"""The gallery's network, opened only when something must be described.

Opening one costs more than finding that ten thousand files are unchanged; its fingerprint is known from its card.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tessera.models.bundle import Bundle

if TYPE_CHECKING:
    from tessera.extract.extractor import Extractor
    from tessera.extract.ray import RayExtractor


class Describer:
    """A bundle by its name, its card read at once and its runtime on first use; safe to share between threads."""

    def __init__(self, model: str, *, device: str = "auto", runtime: str = "onnx", threads: int | None = None) -> None:
        self.model = model
        self.bundle = Bundle.open(model)
        self._device, self._runtime, self._threads = device, runtime, threads
        self._lock = threading.Lock()
        self._extractor: Extractor | None = None

    @property
    def dim(self) -> int:
        return self.bundle.card.dim

    @property
    def fingerprint(self) -> str:
        """Equal to the extractor's own, without opening it."""
        return self.bundle.fingerprint_at()

    @property
    def extractor(self) -> Extractor:
        with self._lock:
            if self._extractor is None:
                from tessera.extract.extractor import Extractor

                self._extractor = Extractor(
                    self.bundle, runtime=self._runtime, device=self._device, threads=self._threads
                )
            return self._extractor

    def open_bulk(self, ray: str | None = None) -> Extractor | RayExtractor:
        """What describes many images: the extractor itself, or the actors of the Ray cluster at an address."""
        if ray is None:
            return self.extractor
        from tessera.extract.ray import RayExtractor

        return RayExtractor(self.bundle, address=ray)

    def release(self) -> None:
        """Let go of the network's memory; it is opened again when it is needed."""
        with self._lock:
            self._extractor = None
