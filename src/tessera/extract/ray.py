"""Bulk extraction on Ray Data: the extractor's own surface, its work spread over a cluster's actors.

Ray does what is hard: it places actors, streams batches to them, and gives a lost actor's batch to another. Here is
only the translation: sources to rows, rows to Extractions, in order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import tessera.errors
from tessera.data.images import DEFAULT_LIMITS, Limits, Source
from tessera.errors import ImageError, MissingExtraError, TesseraError, UsageError
from tessera.extract.pipeline import Extraction
from tessera.models.bundle import Bundle

LOCAL = "local"  # a Ray of this machine's own, ended with the process

# One dataset holds so many sources, or so many bytes of them. Actors live as long as their dataset, so it is large.
_CHUNK_SOURCES = 8192
_CHUNK_BYTES = 1 << 29
_BATCH = 32

Row = dict[str, Any]


class RayActor:
    """One network in a worker process. Ray makes as many as there are cores, and new ones for those that die."""

    def __init__(self, bundle_path: str, size: int, scales: Sequence[float], limits: Limits) -> None:
        from tessera.extract.extractor import Extractor

        self._extractor = Extractor(bundle_path, size=size, scales=scales, threads=1)
        self._limits = limits

    def __call__(self, batch: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        sources = [
            os.fsdecode(content) if is_path else bytes(content)
            for content, is_path in zip(batch["content"], batch["is_path"], strict=True)
        ]
        extractions = list(self._extractor.extract(sources, limits=self._limits))
        nothing = np.zeros(self._extractor.dim, np.float32)
        errors = [extraction.error for extraction in extractions]
        return {
            "index": batch["index"],
            "descriptor": np.stack([nothing if e.descriptor is None else e.descriptor for e in extractions]),
            "error": np.array(["" if error is None else str(error) for error in errors]),
            "kind": np.array(["" if error is None else type(error).__name__ for error in errors]),
            "width": np.array([e.width for e in extractions], np.int64),
            "height": np.array([e.height for e in extractions], np.int64),
        }


class RayExtractor:
    """Describe many images on a Ray cluster; one image at a time is a case for Extractor.

    address: of the cluster ("auto", "ray://host:port", "host:port"), or "local" for the cores of this machine. The
    bundle must lie at the same path on every machine, as a packaged one does. Contents travel with the sources;
    sources given as paths are read where the actor runs.
    """

    def __init__(
        self,
        bundle: Bundle | str | Path = "lite",
        *,
        address: str = LOCAL,
        size: int | None = None,
        scales: Sequence[float] | None = None,
        actors: int | None = None,
        actor: Callable[..., Any] = RayActor,
    ) -> None:
        self.bundle = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
        preprocessing = self.bundle.card.preprocessing
        self.size = preprocessing.size if size is None else size
        self.scales = tuple(preprocessing.scales if scales is None else scales)
        self._address = address
        self._actors = actors
        self._actor = actor

    @property
    def dim(self) -> int:
        return self.bundle.card.dim

    @property
    def fingerprint(self) -> str:
        """Equal to the Extractor's: where a descriptor was computed does not change it."""
        return self.bundle.fingerprint_at(self.size, self.scales)

    def extract(
        self,
        sources: Iterable[Source],
        *,
        limits: Limits = DEFAULT_LIMITS,
        progress: Callable[[Extraction], None] | None = None,
    ) -> Iterator[Extraction]:
        """As `Extractor.extract` with the photo loader: in order, errors included."""
        ray = connect_ray(self._address)
        for chunk in chunked(sources):
            for extraction in self._extract_chunk(ray, chunk, limits):
                if progress is not None:
                    progress(extraction)
                yield extraction

    def _extract_chunk(self, ray: Any, sources: list[Source], limits: Limits) -> Iterator[Extraction]:
        rows = [_to_row(index, source) for index, source in enumerate(sources)]
        cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        actors = min(self._actors or cores, -(-len(rows) // _BATCH))
        described = ray.data.from_items(rows, override_num_blocks=-(-len(rows) // _BATCH)).map_batches(
            self._actor,
            fn_constructor_args=(str(self.bundle.path), self.size, self.scales, limits),
            batch_size=_BATCH,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(size=actors),
            num_cpus=1,
            max_restarts=-1,  # an actor that dies is started again, and its batch is done again
            max_task_retries=-1,
        )
        early: dict[int, Row] = {}
        index = 0
        for row in described.iter_rows():
            early[int(row["index"])] = row
            while index in early:
                yield _to_extraction(sources[index], early.pop(index))
                index += 1
        if index != len(sources):
            raise TesseraError(f"Ray gave {index} of {len(sources)} descriptors. Run the command again: it resumes.")


def connect_ray(address: str) -> Any:
    """Ray, connected to a cluster, or started here for the address "local"."""
    # OpenCV's import ends by putting sys.path back: in another thread, beside Ray's, it takes away Ray's own folder.
    import cv2  # noqa: F401

    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise MissingExtraError("--ray", "ray") from error
    except ImportError as error:
        raise TesseraError(f"Ray is installed and cannot be loaded: {error}. Try again, or without --ray.") from error
    if not ray.is_initialized():
        remote = None if address == LOCAL else address
        options: dict[str, Any] = {} if remote else {"include_dashboard": False}
        try:
            ray.init(address=remote, log_to_driver=False, logging_level="ERROR", **options)
        except Exception as error:  # Ray raises bare ones when a node does not come up in time
            reason = str(error).strip().partition("\n")[0]
            if remote is None:
                raise TesseraError(f"Ray could not be started here: {reason} Try again, or without --ray.") from error
            raise UsageError(
                f"no Ray answers at '{address}': {reason} Start it with `ray start --head`, or use --ray "
                "alone for this machine."
            ) from error
    ray.data.DataContext.get_current().enable_progress_bars = False
    return ray


def chunked(sources: Iterable[Source], most: int = _CHUNK_SOURCES, most_bytes: int = _CHUNK_BYTES) -> Iterator[Any]:
    """Lists of sources, none longer than `most` and, beyond its first, none with more than `most_bytes` of content."""
    remaining = iter(sources)
    for first in remaining:
        chunk, size = [], 0
        for source in chain([first], remaining):
            chunk.append(source)
            size += len(source) if isinstance(source, bytes) else 0
            if len(chunk) >= most or size >= most_bytes:
                break
        yield chunk


def _to_row(index: int, source: Source) -> Row:
    # Names that are no UTF-8 are not strings to Arrow, so paths travel as bytes too.
    if isinstance(source, bytes):
        return {"index": index, "content": source, "is_path": False}
    if isinstance(source, str | os.PathLike):
        return {"index": index, "content": os.fsencode(source), "is_path": True}
    raise UsageError(f"Ray can be given paths and the bytes of files, not {type(source).__name__}.")


def _to_extraction(source: Source, row: Row) -> Extraction:
    if row["error"]:
        kind = getattr(tessera.errors, str(row["kind"]), ImageError)
        return Extraction(source, None, kind(str(row["error"])), 0, 0)
    descriptor = np.array(row["descriptor"], dtype=np.float32)
    return Extraction(source, descriptor, None, int(row["width"]), int(row["height"]))
