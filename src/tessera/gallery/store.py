"""A gallery's folder, opened: its catalogue, its engine, its model, and who may write."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from tessera.errors import (
    BundleDamagedError,
    EngineUnavailableError,
    GalleryError,
    GalleryLockedError,
    GalleryMismatchError,
    ModelError,
    StorageError,
    TesseraError,
    UsageError,
    unknown_name,
)
from tessera.gallery.catalog.catalog import CATALOG_NAME, Catalog
from tessera.gallery.catalog.lock import writer_lock
from tessera.gallery.catalog.paths import printable
from tessera.gallery.catalog.repair.salvage import finish_repair, repair_is_unfinished
from tessera.gallery.catalog.snapshot import Snapshot, stored_dim
from tessera.gallery.describing.describer import Describer
from tessera.gallery.describing.local_describer import LocalDescriber
from tessera.gallery.engines.engine import Engine, Shown, absolute_engine, open_engine
from tessera.gallery.engines.postings_index import PostingsIndex
from tessera.gallery.gallery_folder import make_gallery_folder
from tessera.gallery.view import View
from tessera.index.codecs import CODECS
from tessera.models.bundle import DEFAULT_MODEL

if TYPE_CHECKING:
    from tessera.extract.extractor import Extractor

log = logging.getLogger(__name__)

DEFAULT_CODEC, DEFAULT_ENGINE = "auto", "faiss"
# How long to wait for another process that makes the gallery: on a busy machine, importing FAISS alone takes seconds.
_MAKING_S, _BETWEEN_TRIES_S = 30.0, 0.02


class Store:
    """What the parts of a gallery share. The settings that were asked for win over those in the catalogue.

    has_postings: whether there is an inverted file of all local features, so that a search may score every image.
    """

    has_postings = True

    def __init__(
        self,
        path: Path,
        *,
        model: str | os.PathLike[str] | None,
        codec: str | None,
        engine: str | None,
        device: str,
        runtime: str,
        threads: int | None,
        create: bool,
        reload: Literal["inline", "background"],
    ) -> None:
        self.path = path
        self.catalog = Catalog(path / CATALOG_NAME)
        self._asked_model = (
            None if model is None else os.fspath(Path(model).absolute() if Path(model).is_dir() else model)
        )
        self._asked_codec = _known_codec(codec)
        self._device, self._runtime, self._threads = device, runtime, threads
        self._in_background = reload == "background"
        self._reloading = threading.Lock()
        self._writing, self._opening = threading.RLock(), threading.RLock()
        self._is_writing = False
        self._describer = None if self._asked_model is None else self._describe_by(self._asked_model)
        self._engine: Engine | None = None
        self._postings: PostingsIndex | None = None
        self._open(None if engine is None else absolute_engine(engine), create=create)

    def _open(self, engine: str | None, *, create: bool) -> None:
        shown = printable(self.path)
        if self.path.exists() and not self.path.is_dir():
            raise GalleryError(f"{shown} is a file, not a gallery. A gallery is a folder; choose another path with -g.")
        if repair_is_unfinished(self.catalog.path):
            with writer_lock(self.path):
                finish_repair(self.catalog.path)
        if not self.catalog.path.is_file():
            if not create:
                raise self._missing()
            make_gallery_folder(self.path)
        give_up = time.monotonic() + _MAKING_S
        while True:
            try:
                stored = self._make(engine, create=create)
                break
            except GalleryLockedError:
                if time.monotonic() >= give_up:
                    raise
                time.sleep(_BETWEEN_TRIES_S)
        if engine is not None and engine != stored:
            raise GalleryMismatchError(
                f"{shown} is searched by the engine '{stored}', not '{engine}'. "
                f"`tessera migrate --engine {engine}` changes that."
            )

    def _make(self, engine: str | None, *, create: bool) -> str:
        """Prepare the catalogue and give a new gallery its settings, where no other process has; the engine it has.

        Under one lock: whoever came between the two would choose. Who only looks never chooses.
        """
        if not self.catalog.needs_preparing() and (stored := self._stored_engine()) is not None:
            return stored
        with writer_lock(self.path):
            if self.catalog.needs_preparing():
                self.catalog.prepare()
            if (stored := self._stored_engine()) is not None:
                return stored
            with self.catalog.read() as snapshot:
                was_repaired = snapshot.highest_id() > 0  # and has lost its settings
            if not (create or was_repaired):
                raise self._missing()
            settings = {"engine": engine or DEFAULT_ENGINE, "codec": self._asked_codec or DEFAULT_CODEC}
            self._engine = self._open_engine(**settings)
            with self.catalog.write() as batch:
                for key, value in {**settings, "model": self._asked_model}.items():
                    batch.set(key, value)
        return settings["engine"]

    def _missing(self) -> GalleryError:
        shown = printable(self.path)
        return GalleryError(f"There is no gallery at {shown}. Make one with `tessera index PHOTOS -g {shown}`.")

    def _stored_engine(self) -> str | None:
        with self.catalog.read() as snapshot:
            return cast("str | None", snapshot.setting("engine"))

    @contextlib.contextmanager
    def write(self) -> Iterator[None]:
        """Be the one writer: threads of this process wait for each other, another process's writing is an error.

        Within such a block the same thread may write again: several calls are then one writer's work.
        """
        with self._writing:
            if self._is_writing:
                yield
                return
            with writer_lock(self.path):
                self._is_writing = True
                try:
                    yield
                finally:
                    self._is_writing = False

    @property
    def engine(self) -> Engine:
        with self._opening:
            if self._engine is None:
                with self.catalog.read() as snapshot:
                    engine, codec = str(snapshot.setting("engine")), str(snapshot.setting("codec"))
                self._engine = self._open_engine(engine, codec)
            return self._engine

    def _open_engine(self, engine: str, codec: str) -> Engine:
        with self.catalog.read() as snapshot:
            gallery_id = str(snapshot.setting("uuid"))
        return open_engine(engine, self.path, codec=codec, gallery_id=gallery_id, in_service=self._in_background)

    def replace_engine(self, name: str) -> None:
        """Fill another engine from the catalogue, then make it the gallery's; the caller writes."""
        with self.catalog.read() as snapshot:
            codec = str(snapshot.setting("codec"))
        target = self._open_engine(name, codec)
        try:
            target.rebuild(self.catalog)
            with self.catalog.write() as batch:
                batch.set("engine", name)
        except BaseException:
            target.close()
            raise
        with self._opening:
            old, self._engine = self._engine, target
        if old is not None:
            old.close()

    def ensure_codec(self) -> None:
        """Make the codec that was asked for the gallery's own; the next refresh builds the index with it."""
        with self.catalog.read() as snapshot:
            stored = snapshot.setting("codec")
        if self._asked_codec is None or self._asked_codec == stored:
            return
        with self.catalog.write() as batch:
            batch.set("codec", self._asked_codec)
        self.forget_engine()

    def forget_engine(self) -> None:
        """Open the engine anew when it is needed next, by the settings as they are then."""
        with self._opening:
            if self._engine is not None:
                self._engine.close()
                self._engine = None

    @contextlib.contextmanager
    def pin(self) -> Iterator[View]:
        """The gallery as one search sees it, in one transaction of the catalogue; an empty gallery is an error.

        The index catches up first. In the background it is taken as it is, and a thread brings it up to date; unless
        the catalogue has another model's descriptors by now, for an index of others must not answer.
        """
        engine = self.engine
        with self._pin(engine) as (snapshot, shown):
            if snapshot.searchable == 0 or shown is None:
                raise self._empty(snapshot.count_failed())
            yield View(snapshot, shown, stored_dim(snapshot))
        self._save(engine)

    @contextlib.contextmanager
    def _pin(self, engine: Engine) -> Iterator[tuple[Snapshot, Shown | None]]:
        if self._in_background:
            with self.catalog.read() as snapshot:
                shown = engine.shown
                if shown is not None and shown.fingerprint == snapshot.setting("fingerprint"):
                    if shown.generation != snapshot.generation:
                        self._reload(engine)
                    yield snapshot, shown
                    return
        if engine.is_behind(self.catalog):
            self._save(engine)
        with engine.pin(self.catalog) as pinned:
            yield pinned

    def refresh(self) -> None:
        """Let the engine catch up: now, or, where there is something to search meanwhile, in the background."""
        engine = self.engine
        if self._in_background and (shown := engine.shown) is not None:
            if shown.generation != self.catalog.generation():
                self._reload(engine)
            return
        self._catch_up(engine)

    def _catch_up(self, engine: Engine) -> None:
        engine.refresh(self.catalog)
        with self.catalog.read() as snapshot:
            if snapshot.has_local_features:
                self.postings.refresh(snapshot)
        self._save(engine)

    def _reload(self, engine: Engine) -> None:
        """Catch up in a thread, unless one is at it."""

        def catch_up() -> None:
            try:
                self._catch_up(engine)
            except TesseraError as error:
                log.warning("%s", error)
            finally:
                self._reloading.release()

        if self._reloading.acquire(blocking=False):
            threading.Thread(target=catch_up, name="reload", daemon=True).start()

    def _save(self, engine: Engine) -> None:
        """Write down an index that had to be made, for the next reader, unless someone else is writing."""
        if engine.worth_saving and self._writing.acquire(blocking=False):
            try:
                with contextlib.suppress(GalleryLockedError, StorageError), writer_lock(self.path):
                    self.write_indexes()
            except EngineUnavailableError as error:  # what it has can be searched, if it comes back
                log.warning("%s", error)
            finally:
                self._writing.release()

    def _empty(self, failed: int) -> GalleryError:
        unread = f" ({failed} pictures could not be read)" if failed else ""
        return GalleryError(
            f"The gallery {printable(self.path)} is empty{unread}. "
            "Add pictures with `tessera index PHOTOS`, then search again."
        )

    @cached_property
    def local_describer(self) -> LocalDescriber:
        """What makes the local features of pictures; opened when it is needed."""
        return LocalDescriber()

    @property
    def postings(self) -> PostingsIndex:
        with self._opening:
            if self._postings is None:
                model = self.local_describer.model
                self._postings = PostingsIndex(self.path, model.num_words, model.fingerprint)
            return self._postings

    def refresh_postings(self, snapshot: Snapshot) -> None:
        """Let the inverted file catch up with a search's view; in the background, where it has something already."""
        postings = self.postings
        if self._in_background and postings.shows_model_of(snapshot):
            return  # `refresh`, which follows every change, brings it up to date
        postings.refresh(snapshot)

    def write_indexes(self) -> None:
        """Bring what is derived from the catalogue up to date, by the one writer.

        A service has done its part when the catalogue has it: it sends the rest to its engine when that answers again.
        """
        self.postings.save(self.catalog)
        try:
            self.engine.refresh(self.catalog, writing=True)
        except EngineUnavailableError as error:
            if not self._in_background:
                raise
            log.warning("%s", error)

    def rebuild_indexes(self) -> None:
        """Make everything that is derived from the catalogue anew, by the one writer."""
        self.engine.rebuild(self.catalog)
        self.postings.rebuild(self.catalog)

    @property
    def describer(self) -> Describer:
        with self.catalog.read() as snapshot:
            return self._describer_of(snapshot)

    def model_of(self, snapshot: Snapshot) -> str:
        """The name or the folder of the model: the one that was asked for, else the gallery's own."""
        return str(self._asked_model or snapshot.setting("model") or DEFAULT_MODEL)

    def _describer_of(self, snapshot: Snapshot) -> Describer:
        model = self.model_of(snapshot)
        with self._opening:
            if self._describer is None or self._describer.model != model:
                try:
                    self._describer = self._describe_by(model)
                except BundleDamagedError:
                    raise
                except ModelError as error:
                    raise ModelError(
                        f"{error} {printable(self.path)} was made with it; if it was moved, "
                        "`tessera index PHOTOS --model BUNDLE` says where it is now."
                    ) from error
            return self._describer

    def _describe_by(self, model: str) -> Describer:
        return Describer(model, device=self._device, runtime=self._runtime, threads=self._threads)

    def matches_model(self) -> bool:
        """Whether the gallery's descriptors are of this model; a gallery without any is of every model."""
        with self.catalog.read() as snapshot:
            stored = snapshot.setting("fingerprint")
            return stored is None or stored == self._describer_of(snapshot).fingerprint

    def open_extractor(self, snapshot: Snapshot) -> Extractor:
        """The network, if it is the one that made the descriptors of the snapshot."""
        self.refuse_other_model(snapshot)
        return self._describer_of(snapshot).extractor

    def refuse_other_model(self, snapshot: Snapshot) -> None:
        describer = self._describer_of(snapshot)
        model, fingerprint = snapshot.setting("model"), snapshot.setting("fingerprint")
        if fingerprint in (None, describer.fingerprint):
            return
        asked = "" if self._asked_model is None else f" --model {self._asked_model}"
        raise GalleryMismatchError(
            f"{printable(self.path)} was made with the model '{model}' (fingerprint {fingerprint}); "
            f"'{describer.model}' here has the fingerprint {describer.fingerprint}, and their descriptors cannot be "
            f"compared. `tessera index --rebuild{asked} -g {printable(self.path)}` describes every picture anew; "
            "`tessera index --model` names a bundle that has the old weights; -g chooses another gallery."
        )

    def close(self) -> None:
        with self._reloading, self._opening:
            if self._engine is not None:
                self._engine.close()
                self._engine = None
            self.catalog.close()


def _known_codec(codec: str | None) -> str | None:
    """The codec, if there is such a one: a mistyped name must not become the gallery's own."""
    if codec is not None and codec != DEFAULT_CODEC and codec not in CODECS:
        raise UsageError(unknown_name("codec", codec, [DEFAULT_CODEC, *CODECS]))
    return codec


def _search_alone() -> None:
    """A fork has none of OpenMP's threads, and FAISS, in the thread that forked, would wait for them for ever."""
    if (faiss := sys.modules.get("faiss")) is not None:
        faiss.omp_set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_search_alone)
