"""The local features of pictures on their way into the catalogue: made in threads, beside the network."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tessera.data.decoding import DEFAULT_LIMITS, Limits
from tessera.data.images import load_photo
from tessera.errors import ImageError
from tessera.extract.runtime import default_threads
from tessera.gallery.catalog.catalog import Catalog
from tessera.gallery.ingest.sources import look_at
from tessera.local.compact import CompactFeatures
from tessera.local.parts import PartsModel

_BATCH_IMAGES = 64


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


def fill_local_features(
    catalog: Catalog, describer: LocalDescriber, advance: Callable[[int, int], None] | None = None
) -> int:
    """Make the features of every content that has none, by the one writer; how many there are now that were lacking.

    For a gallery that was made without them. A picture whose file has gone or changed is passed over. A killed run
    goes on where it stopped.
    """
    fingerprint = describer.model.fingerprint
    with catalog.read() as snapshot:
        lacking = [row for rows in snapshot.stream_lacking_features(fingerprint) for row in rows]
    made = 0
    for start in range(0, len(lacking), _BATCH_IMAGES):
        made += _fill(catalog, describer, lacking[start : start + _BATCH_IMAGES])
        if advance is not None:
            advance(min(start + _BATCH_IMAGES, len(lacking)), len(lacking))
    return made


def _fill(catalog: Catalog, describer: LocalDescriber, lacking: Iterable[tuple[bytes, bytes]]) -> int:
    from tessera.gallery.ingest.reading import loader_source, read_ahead

    wanted = dict(lacking)
    waiting: list[tuple[bytes, Future[bytes]]] = []
    for read in read_ahead((look_at(path) for path in wanted), max_bytes=DEFAULT_LIMITS.max_bytes):
        if read.error is None and read.content_hash == wanted[read.found.path]:
            waiting.append((read.content_hash, describer.submit(loader_source(read), DEFAULT_LIMITS)))
    made = [(content_hash, future.result()) for content_hash, future in waiting]
    with catalog.write() as batch:
        for content_hash, features in made:
            batch.add_local_features(content_hash, describer.model.fingerprint, features)
    return len(made)
