"""Evaluate the search that people use: a gallery is made of the benchmark's images, and every query is put to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tessera.config import fingerprint
from tessera.data.ground_truth import Box
from tessera.data.sets.benchmark import Benchmark, IntArray
from tessera.evaluate.method import ImagesOf, Progress
from tessera.gallery.describing.local_describer import LocalDescriber
from tessera.gallery.gallery import Gallery
from tessera.gallery.search.query import QueryPicture
from tessera.gallery.search.search_options import SearchOptions
from tessera.storage import write_atomically

_MOST_RANKED = 20_000  # hits that are asked for; what comes after them was never found


class SearchMethod:
    """A method that ranks by `Gallery.search`: by `auto` or `local`, boxes included, a query's own picture left out.

    Pictures go through the loader of `index` and `search`, so these figures are of the product, not of the field's
    protocol of extraction. The gallery stays in the cache: a stopped run goes on, and a second one describes nothing.
    """

    def __init__(self, model: str, by: str, *, device: str = "auto", runtime: str = "onnx") -> None:
        self._options = {"model": model, "device": device, "runtime": runtime}
        self._by = by
        self._gallery: Gallery | None = None
        self._ids: dict[str, int] = {}  # the gallery's number of each path
        self._local = LocalDescriber()
        self.notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.gallery.describer.bundle.card.name

    @property
    def gallery(self) -> Gallery:
        assert self._gallery is not None
        return self._gallery

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.gallery.describer.fingerprint, self._local.model.fingerprint, self._by)

    @property
    def details(self) -> dict[str, Any]:
        return {"by": self._by, "codec": "auto", "local": self._local.model.fingerprint}

    def describe(self, images: ImagesOf, hashes: Sequence[str], cache_dir: Path, progress: Progress) -> dict[int, str]:
        paths = [str(path.absolute()) for path in images.benchmark.gallery]
        key = fingerprint(self._options["model"], paths, list(hashes[: len(paths)]))
        folder = cache_dir / "galleries" / key
        listed = folder / "images.txt"
        write_atomically(listed, "\n".join(paths).encode("utf-8", "surrogateescape") + b"\n")
        self._gallery = Gallery(folder / "search.tessera", **self._options)  # type: ignore[arg-type]
        self._gallery.index(listed, progress=lambda told: progress("indexing images", told.done, told.total))
        found: dict[str, int] = {}
        last = 0
        while page := self._gallery.images(after_id=last, limit=1000):
            found |= {record.path: record.id for record in page}
            last = page[-1].id
        self._ids = found
        failed = {record.path: record.error or "it cannot be read" for record in self._failures()}
        return {row: failed.get(path, "it cannot be read") for row, path in enumerate(paths) if path not in found}

    def _failures(self) -> Iterator[Any]:
        last = 0
        while page := self.gallery.failures(after_id=last, limit=1000):
            yield from page
            last = page[-1].id

    def rank(
        self, benchmark: Benchmark, boxes: Sequence[Box | None], kept: Sequence[int], *, codec: str, seed: int
    ) -> Iterator[IntArray]:
        del kept, codec, seed
        ids = [self._ids[str(path.absolute())] for path in benchmark.gallery]
        rows = {image_id: row for row, image_id in reversed(list(enumerate(ids)))}
        options = SearchOptions(min(len(ids), _MOST_RANKED), self._by)
        for number, (path, box) in enumerate(zip(benchmark.queries, boxes, strict=True)):
            own = int(benchmark.own_ids[number])
            query = QueryPicture(str(path), box, exclude=ids[own] if own >= 0 else None)
            result = self.gallery.search_picture(query, options)
            yield np.array([rows[hit.id] for hit in result if hit.id in rows], np.int64)
