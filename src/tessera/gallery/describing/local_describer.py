"""The local features of pictures on their way into the catalogue: made in threads, beside the network."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tessera.data.images import load_photo
from tessera.data.photos.decoding import DEFAULT_LIMITS, Limits
from tessera.errors import ImageError
from tessera.extract.runtime import default_threads
from tessera.local.compact import CompactFeatures
from tessera.local.parts import PartsModel


class LocalDescriber:
    """Makes compact local features with the packaged system, opened on first use; safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._model: PartsModel | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()

    @property
    def model(self) -> PartsModel:
        with self._lock:
            if self._model is None:
                self._model = PartsModel.open()
            return self._model

    def describe(self, source: bytes | str | Path, limits: Limits = DEFAULT_LIMITS) -> bytes:
        """The features of a picture as the catalogue keeps them; none for one that the loader refuses."""
        try:
            image = load_photo(source, size=self.model.size, limits=limits)
        except ImageError:
            return CompactFeatures.empty().to_bytes()  # the network's loader says why
        return self.model.encode(self.model.extract(image)).to_bytes()

    def submit(self, source: bytes | str, limits: Limits) -> Future[bytes]:
        with self._lock:
            if self._pool is None or self._pid != os.getpid():  # a fork has the pool, but none of its threads
                self._pid = os.getpid()
                self._pool = ThreadPoolExecutor(
                    default_threads(), thread_name_prefix="local-features", initializer=_use_one_thread
                )
        return self._pool.submit(self.describe, source, limits)

    def close(self) -> None:
        with self._lock:
            pool, self._pool = self._pool, None
            if pool is not None and self._pid == os.getpid():
                pool.shutdown(wait=True, cancel_futures=True)


def _use_one_thread() -> None:
    """FAISS takes every core for each call; there is a caller a core already. This holds for the calling thread."""
    import faiss

    faiss.omp_set_num_threads(1)
