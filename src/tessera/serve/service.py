"""One gallery behind the service: what the routes call, in threads, without knowing HTTP."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tessera.data.images import DEFAULT_LIMITS, Box, Limits, Photo, read_photo
from tessera.errors import GalleryError, ImageError, ImageLimitError, TesseraError, UsageError
from tessera.serve.organiser import Organiser
from tessera.serve.pictures import uploads
from tessera.serve.pictures.decoders import DecoderPool
from tessera.serve.pictures.file_manager import find_file_manager, reveal
from tessera.serve.pictures.thumbnails import DISPLAY_SIDE, THUMBNAIL_SIDE, ByteCache, encode_jpeg
from tessera.serve.problems import ProblemError
from tessera.serve.settings import Settings
from tessera.serve.why import Explainer, Matcher
from tessera.storage import write_atomically

if TYPE_CHECKING:
    from tessera.gallery.catalog.records import Record
    from tessera.gallery.gallery import Gallery
    from tessera.gallery.ingest.watching import Watcher
    from tessera.gallery.results import Hit, IndexReport, SearchResult

log = logging.getLogger("tessera.serve")

POLL_S = 1.0
FACET_VALUES = 200
MATCHED_SIDE = 1024  # pixels of the longer side that matches are looked for at
MAX_ORIGINAL_BYTES = 512 << 20
GONE = "This picture's file has gone or changed since it was indexed. Run `tessera index` again."
EMPTY_NOTE = "This gallery is empty. Index pictures into it with `tessera index`."
Query = bytes | int  # an uploaded picture, or the id of one in the gallery


class GalleryService:
    """Opens the gallery in the background, follows its changes, and answers from several threads at once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.limits = Limits(max_pixels=settings.max_pixels, max_bytes=settings.max_bytes)
        self._gallery: Gallery | None = None
        self._retired: Gallery | None = None  # one that was replaced: searches may still be using it
        self._opened: tuple[int, int] | None = None  # the catalogue that it was opened from
        self._opening = "The gallery is being opened."
        self._failure: str | None = None  # why the gallery could not be opened or followed when last tried
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="follow-gallery", daemon=True)
        self._watcher: Watcher | None = None
        self._thumbnails = ByteCache()
        self._facets: tuple[int, dict[str, Any]] | None = None  # with the generation that they are of
        self.organiser = Organiser(self)
        self._explainer = Explainer()
        self._matcher = Matcher()
        self._decoders = DecoderPool(self.limits, timeout_s=settings.decode_timeout_s)

    # -- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._stop_watching()
        self.organiser.stop()
        self._thread.join(timeout=10)
        for gallery in (self._gallery, self._retired):
            if gallery is not None:
                gallery.close()
        self._decoders.close()

    @property
    def is_ready(self) -> bool:
        return self._gallery is not None

    @property
    def loading_note(self) -> str:
        if self._failure is not None:
            return "The gallery cannot be opened. The service's log says why."
        return self._opening

    @property
    def gallery(self) -> Gallery:
        if self._gallery is None:
            raise ProblemError(503, self.loading_note, {"Retry-After": "1"})
        return self._gallery

    def _follow(self) -> None:
        """Open the gallery, then look whether another process changed it; searches go on meanwhile."""
        while not self._stopping.is_set():
            try:
                found = self._catalogue()
                made_anew = found is not None and found != self._opened  # deleted and made again at the same place
                if self._gallery is None or made_anew:
                    fresh = self._open()
                    self._opened = self._catalogue()
                    self._retired, self._gallery = self._gallery, fresh
                    self._start_watching(fresh)
                else:
                    self._gallery.refresh()
                self._failure = None
            except TesseraError as error:
                if self._failure != str(error):  # once, not every second
                    log.warning("%s", error)
                self._failure = str(error)
            except Exception:
                log.exception("the gallery could not be followed")
            self._stopping.wait(POLL_S)

    def _catalogue(self) -> tuple[int, int] | None:
        """Which file the catalogue is, or None where there is none."""
        from tessera.gallery.catalog.catalog import CATALOG_NAME

        with contextlib.suppress(OSError):
            status = (self.settings.gallery_path / CATALOG_NAME).stat()
            return status.st_dev, status.st_ino
        return None

    def _require_catalogue(self) -> None:
        """Searches may go on in a gallery that somebody deleted; what is written into it would be lost."""
        if self._catalogue() != self._opened:
            raise GalleryError(f"{self.settings.gallery_path} was deleted, or made anew, while it was served.")

    def _open(self) -> Gallery:
        from tessera.gallery.gallery import Gallery

        gallery = Gallery(
            self.settings.gallery_path, device=self.settings.device, threads=self.settings.threads, reload="background"
        )
        try:
            count = len(gallery)
            self._decoders.warm()
            self._opening = f"The gallery has {count:,} pictures; the network that describes them is being opened."
            gallery.describer.extractor.describe(np.zeros((64, 64, 3), np.uint8))  # its first run is its slowest
            self._opening = f"The index of {count:,} pictures is being loaded; it is made first where there is none."
            gallery.refresh()
        except BaseException:
            gallery.close()  # this is tried again every second
            raise
        return gallery

    def _start_watching(self, gallery: Gallery) -> None:
        """Follow the folders that the service was given, in a thread of its own: searches go on meanwhile."""
        from tessera.gallery.ingest.watching import Watcher

        self._stop_watching()
        if self.settings.watch:
            self._watcher = Watcher(gallery, self.settings.watch, say=log.warning, told=_log_report)
            threading.Thread(target=self._watcher.run, name="watch-folders", daemon=True).start()

    def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.stop.set()

    # -- searching ---------------------------------------------------------------------------------------------------

    def search(
        self,
        query: Query,
        *,
        k: int,
        by: str = "auto",
        min_probability: float = 0.0,
        box: Box | None = None,
        where: list[str] | None = None,
        expand: str | None = None,
        rerank: str | None = None,
        rerank_until: float = math.inf,
    ) -> dict[str, Any]:
        """rerank_until: when (`time.monotonic`) to be content with what local features have been compared."""
        try:
            result = self.gallery.search(
                query,
                k,
                by=by,
                min_probability=min_probability,
                box=box,
                where=where or None,
                expand=expand,
                rerank=rerank,
                rerank_timeout_s=max(0.0, rerank_until - time.monotonic()),
                limits=self.limits,
            )
        except ImageError as error:
            raise self._gone(error) if isinstance(query, int) else error from error
        except GalleryError:
            if len(self.gallery):
                if isinstance(query, int):
                    self.record(query)  # whether it is there is asked only now: each look costs a search a tenth
                raise
            return {"results": [], "timing_ms": dict.fromkeys(("embed", "search", "total"), 0.0), "note": EMPTY_NOTE}
        return self._answer(result)

    def search_ids(self, ids: list[int], *, k: int, where: tuple[str, ...]) -> list[dict[str, Any] | Exception]:
        """Searches by descriptors of several pictures of the gallery, made as one; for each its answer, or why not."""
        if len(ids) > 1:
            with contextlib.suppress(TesseraError):  # an id that is unknown must not spoil the others: each by itself
                return [
                    self._answer(result)
                    for result in self.gallery.search_many(ids, k, by="global", where=where or None)
                ]
        answers: list[dict[str, Any] | Exception] = []
        for image_id in ids:
            try:
                answers.append(self.search(image_id, k=k, by="global", where=list(where)))
            except (TesseraError, ProblemError) as error:
                answers.append(error)
        return answers

    def _answer(self, result: SearchResult) -> dict[str, Any]:
        shown = ("rank", "score", "probability", "verified", "inliers")
        results = [{key: getattr(hit, key) for key in shown} | self.image_json(hit) for hit in result]
        said = {"timing_ms": result.timing_ms, "certain": result.certain, "note": " ".join(result.notes)}
        return {"results": results, **said}

    def browse(
        self, *, after: int, limit: int, where: list[str], sort: str = "added", month: str | None = None
    ) -> dict[str, Any]:
        records = self.gallery.images(after_id=after, limit=limit, where=where or None, order=sort, month=month)
        return {
            "images": [self.image_json(record) for record in records],
            "total": self.gallery.count(where or None),
            "next": records[-1].id if len(records) == limit else None,
        }

    def months(self, where: list[str]) -> dict[str, int]:
        return self.gallery.months(where or None)

    def facets(self) -> dict[str, Any]:
        """Metadata, folders and places; made once a generation, since it looks at every picture."""
        gallery = self.gallery
        generation = gallery.generation
        if self._facets is None or self._facets[0] != generation:
            counts = gallery.facets(FACET_VALUES)
            folders = list(gallery.folders().items())[:FACET_VALUES]
            if folders:
                counts = {"folder": {_readable(name): count for name, count in folders}} | counts
            found = {
                "facets": {key: list(values) for key, values in counts.items()},
                "counts": counts,
                "places": [vars(place) for place in gallery.places()],
            }
            self._facets = generation, found
        return self._facets[1]

    def stats(self) -> dict[str, Any]:
        stats = self.gallery.stats()
        kept = ("images", "failed", "model", "codec", "dim", "generation")
        model = stats["model"] and Path(stats["model"]).name  # clients do not learn the bundle's folder
        return {
            "gallery": self.settings.gallery_path.name,
            "writable": self.settings.writer_key is not None,
            "own_machine": self.settings.is_own_machine,
            "reveals": self.settings.is_own_machine and find_file_manager() is not None,
            **{key: stats[key] for key in kept},
            "model": model,
        }

    # -- pictures ----------------------------------------------------------------------------------------------------

    def record(self, image_id: int) -> Record:
        found = self.gallery.record(image_id)
        if found is None or found.state != "ok":
            raise ProblemError(404, f"There is no picture {image_id} in this gallery.")
        return found

    def image(self, image_id: int) -> dict[str, Any]:
        return self.image_json(self.record(image_id))

    def original(self, image_id: int) -> tuple[bytes, str]:
        """The file's own bytes and its name; only what was indexed, whatever lies at its path by now."""
        record = self.record(image_id)
        return self._content(record, MAX_ORIGINAL_BYTES), str(self.image_json(record)["name"])

    def _content(self, record: Record, max_bytes: int) -> bytes:
        """The bytes of a picture's file, if they are those that were indexed."""
        from tessera.gallery.ingest.reading import read_indexed

        try:
            return read_indexed(record.path, record.content_hash, max_bytes=max_bytes)
        except ImageLimitError as error:
            log.warning("%s", error)
            raise ProblemError(413, "The picture's file is larger than the service gives away.") from error
        except ImageError as error:
            raise self._gone(error) from error

    def path(self, image_id: int) -> str:
        """The path of the picture, for clients on this machine."""
        return _readable(self.record(image_id).path)

    def reveal(self, image_id: int) -> None:
        """Show the picture's file in the file manager of this machine."""
        path = Path(self.record(image_id).path)
        if not path.exists():
            raise ProblemError(410, GONE)
        reveal(path)

    def thumbnail(self, image_id: int) -> tuple[bytes, str]:
        return self._jpeg(image_id, THUMBNAIL_SIDE)

    def display(self, image_id: int) -> tuple[bytes, str]:
        return self._jpeg(image_id, DISPLAY_SIDE)

    def _jpeg(self, image_id: int, side: int) -> tuple[bytes, str]:
        """The picture's bytes and its entity tag."""
        record = self.record(image_id)
        tag = f"{record.content_hash or ''}-{side}"[-80:]
        content = self._thumbnails.get(tag)
        if content is None:
            content = encode_jpeg(self._photo(image_id, side).pixels)
            self._thumbnails.put(tag, content)
        return content, tag

    def _photo(self, query: Query, size: int, box: Box | None = None) -> Photo:
        """An uploaded picture, or one of the gallery as it was indexed; no message may name its file."""
        if not isinstance(query, int):
            return self._decoders.read_photo(query, size=size, box=box)
        content = self._content(self.record(query), DEFAULT_LIMITS.max_bytes)
        try:
            return read_photo(content, size=size, box=box, limits=self.limits)
        except ImageError as error:
            raise self._gone(error) from error

    def _gone(self, error: ImageError) -> ProblemError:
        log.warning("%s", error)  # it names the file, which clients do not learn
        return ProblemError(410, GONE)

    def image_json(self, record: Record | Hit) -> dict[str, Any]:
        return {
            "id": record.id,
            "name": _readable(record.path.rpartition("/")[2]),
            "width": record.width or 0,
            "height": record.height or 0,
            "metadata": record.metadata,
        }

    # -- why ---------------------------------------------------------------------------------------------------------

    def explain(self, query: Query, box: Box | None, other_id: int) -> dict[str, Any]:
        extractor = self.gallery.describer.extractor  # one for both, whatever another process does meanwhile
        other = self._photo(other_id, extractor.size)
        answer = self._explainer.explain(extractor, self._photo(query, extractor.size, box), box, other)
        asked, found = self._photo(query, MATCHED_SIDE, box), self._photo(other_id, MATCHED_SIDE)
        return {**answer, "matches": self._matcher.match(asked, box, found)}

    # -- writing -----------------------------------------------------------------------------------------------------

    def add(self, name: str, content: bytes, metadata: dict[str, str]) -> dict[str, Any]:
        """Keep an uploaded picture below the gallery and index it. The same content twice is the same picture."""
        # Refuse what is none before anything is written; what could be decoded there at this size can be here.
        photo = self._photo(content, self.gallery.describer.extractor.size)
        with self.writing():
            target = uploads.place_for(content, name, photo.suffix, self.settings.gallery_path)
            try:
                write_atomically(target, content)
                self.gallery.index_file(target, metadata=metadata or None)
            finally:
                record = self.gallery.find(target)
                if record is None:
                    uploads.discard(target)
        if record is None or record.state != "ok":
            raise UsageError("The picture could not be indexed.")
        return self.image_json(record)

    def remove(self, image_id: int) -> None:
        with self.writing():
            path = Path(self.record(image_id).path)
            self.gallery.remove(image_id)
            if path.is_relative_to(self.settings.gallery_path / uploads.FOLDER):
                uploads.discard(path)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """The gallery's one writer, files of uploads included: another service must not discard what this one keeps."""
        self._require_catalogue()
        with self.gallery.writing():
            self._require_catalogue()
            yield


def _readable(name: str) -> str:
    """A name of a file as text; one that is no UTF-8 has marks in it."""
    return name.encode("utf-8", "replace").decode()


def _log_report(report: IndexReport) -> None:
    counts = {"added": report.added, "changed": report.changed, "moved": report.moved, "removed": report.pruned}
    log.info("watched folders: %s", ", ".join(f"{count} {what}" for what, count in counts.items() if count))
