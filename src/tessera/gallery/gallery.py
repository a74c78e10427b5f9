"""The gallery: an indexed collection of images, made on first use, searched by picture."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np
import numpy.typing as npt

from tessera.data.boxes import Box
from tessera.data.images import DEFAULT_LIMITS, Limits
from tessera.errors import TesseraError, UsageError, unknown_name
from tessera.gallery.catalog.filters import Where, parse_where
from tessera.gallery.catalog.metadata import encode_metadata
from tessera.gallery.catalog.paths import to_blob
from tessera.gallery.catalog.records import Record
from tessera.gallery.describing.describer import Describer
from tessera.gallery.engines.engine import absolute_engine
from tessera.gallery.gallery_organiser import GalleryOrganiser
from tessera.gallery.ingest.sources import Source, look_at, resolve_source
from tessera.gallery.removing import PathOrId, remove_images
from tessera.gallery.results import Hit, IndexProgress, IndexReport, Problem, SearchResult
from tessera.gallery.search.local_feature_index import LocalFeatureIndex
from tessera.gallery.search.query import Query, QueryPicture
from tessera.gallery.search.search_options import SearchOptions
from tessera.gallery.search.searcher import Searcher
from tessera.gallery.search.stream import stream_answers
from tessera.gallery.store import Store

if TYPE_CHECKING:  # a search needs none of these, and would wait for them
    from tessera.gallery.check import CheckReport
    from tessera.gallery.ingest.importing import DescribedImage
    from tessera.gallery.ingest.indexing import ProgressCallback

__all__ = [
    "Gallery",
    "Hit",
    "IndexProgress",
    "IndexReport",
    "Problem",
    "Record",
    "SearchResult",
]

_MANY = 1000


class Gallery(GalleryOrganiser):
    """A collection of images that can be searched, in the folder `path`.

    model: a packaged model's name or a bundle's folder; codec, engine: how it is searched. Each is the gallery's own
    where it is not given, and for a new gallery the default. create False: an error where there is no gallery.
    reload: what a search does when another process has changed the gallery: catch up first, or answer from what it
    has while a thread catches up (for a service that must not pause; what was changed a moment ago may be missing).

    One gallery may be used from several threads at once: searches run side by side, writes one after the other.

    catalog "remote", with engine "milvus:URI" and storage, a folder or a URL of fsspec: the records lie in Milvus and
    the descriptors in Parquet shards, for many writers on many machines; `path` only says where (docs/remote.md).
    """

    def __new__(cls, path: str | os.PathLike[str], *_: Any, catalog: str | None = None, **__: Any) -> Self:
        if catalog not in (None, "local", "remote"):
            raise UsageError(unknown_name("catalogue", str(catalog), ("local", "remote")))
        if cls is Gallery and (catalog == "remote" or (Path(path) / "remote.json").is_file()):
            from tessera.gallery.remote.remote_gallery import RemoteGallery

            return cast(Self, object.__new__(RemoteGallery))
        return object.__new__(cls)

    def __init__(
        self,
        path: str | os.PathLike[str],
        model: str | os.PathLike[str] | None = None,
        codec: str | None = None,
        engine: str | None = None,
        *,
        device: str = "auto",
        runtime: str = "onnx",
        threads: int | None = None,
        create: bool = True,
        reload: Literal["inline", "background"] = "inline",
        catalog: str | None = None,
        storage: str | None = None,
    ) -> None:
        self.path = Path(path)
        self._store = self._open_store(
            storage,
            model=model,
            codec=codec,
            engine=engine,
            device=device,
            runtime=runtime,
            threads=threads,
            create=create,
            reload=reload,
        )
        self._catalog = self._store.catalog
        self._local = LocalFeatureIndex(self._store)
        self._searcher = Searcher(self._store, self._local)

    def _open_store(self, storage: str | None, **options: Any) -> Store:
        if storage is not None:
            raise UsageError("--storage is for --catalog remote: a local catalogue holds its descriptors itself.")
        return Store(self.path, **options)

    def index(
        self,
        *sources: str | os.PathLike[str],
        prune: bool = False,
        rebuild: bool = False,
        metadata: Mapping[str, Any] | None = None,
        progress: ProgressCallback | None = None,
        ray: str | None = None,
        local: str | None = None,
        video: bool = False,
    ) -> IndexReport:
        """Add folders, globs, CSV, Parquet or text lists and single pictures; resumes, and skips what it has.

        prune: take out images under the sources whose files are gone. rebuild: make the index anew and, when the model
        is another, every descriptor. metadata: given to each picture that a CSV says nothing of. ray: describe on the
        Ray cluster at this address ("local": on this machine's cores). local: store local features for re-ranking too,
        by an extractor's name, a local bundle, a system, or `dsm`; of the sources, or with none of the whole gallery.
        video: take one frame a scene of videos, too; their metadata say which video it was, and the time in seconds.
        """
        if not sources and not rebuild and local is None:
            raise UsageError(
                "Nothing to index: name a folder, a picture, a glob, or a CSV, Parquet or text file with paths."
            )
        found = [resolve_source(source) for source in sources]
        return self._index(
            found,
            prune=prune,
            rebuild=rebuild,
            metadata=metadata,
            progress=progress,
            ray=ray,
            local=local,
            video=video,
        )

    def index_file(self, path: str | os.PathLike[str], *, metadata: Mapping[str, Any] | None = None) -> IndexReport:
        """Add exactly one picture, whatever its name ends in: nothing that it holds is taken for a list of others."""
        blob = to_blob(path)
        return self._index([Source("file", blob, blob)], metadata=metadata)

    def follow(
        self,
        *folders: str | os.PathLike[str],
        links_within: Sequence[str | os.PathLike[str]],
        prune: bool = True,
    ) -> IndexReport:
        """As `index`, of folders that others may write into.

        links_within: symbolic links that lead out of these folders are passed over. Otherwise a link would publish
        files that its author may not read.
        """
        return self._index([resolve_source(folder, links_within) for folder in folders], metadata=None, prune=prune)

    def _index(
        self,
        found: Sequence[Source],
        *,
        metadata: Mapping[str, Any] | None,
        prune: bool = False,
        rebuild: bool = False,
        progress: ProgressCallback | None = None,
        ray: str | None = None,
        local: str | None = None,
        video: bool = False,
    ) -> IndexReport:
        from tessera.extract.blas import one_blas_thread
        from tessera.gallery.ingest.filling import features_were_lost, restore_local_features
        from tessera.gallery.ingest.indexing import IndexRun
        from tessera.gallery.ingest.planning.plan import Plan
        from tessera.gallery.ingest.rebuilding import ensure_model

        started = time.perf_counter()
        given = None if metadata is None else encode_metadata(metadata)
        with self._store.write():
            unreadable: list[Problem] = []
            if video:
                from tessera.gallery.ingest.videos import list_frames, without_videos

                lists = list_frames(self.path, found, lambda path, reason: unreadable.append(Problem(path, reason)))
                found = [*without_videos(found), *(resolve_source(path) for path in lists)]
            run = IndexRun(self._catalog, self.describer, self._store.local_describer, progress=progress, ray=ray)
            differing = Plan()
            try:
                if rebuild and prune:
                    run.look_for_vanished(found, prune=True)  # first: what is gone cannot be described anew
                switched = ensure_model(self._store, run, differing, rebuild=rebuild)
                extra = (look_at(file.path, file.metadata) for file in differing)
                with one_blas_thread():
                    report = run.run(found, metadata=given, prune=prune, extra=extra, retry=rebuild)
            finally:
                differing.close()
            self._store.ensure_codec()
            if report.added + report.changed >= _MANY:
                self.describer.release()  # an index of many is about to be made: not both in memory at once
            with self._catalog.read() as snapshot:
                were_lost = features_were_lost(snapshot)
            if rebuild or were_lost:
                restored = restore_local_features(self._catalog, self._store.local_describer, _told(progress))
                if restored and not rebuild:
                    self._store.postings.rebuild(self._catalog)
            if rebuild:
                with self._catalog.write() as batch:  # of pictures whose files have gone
                    batch.drop_earlier_features(self._store.local_describer.model.fingerprint)
            if rebuild and not switched:
                self._store.rebuild_indexes()
            self._store.write_indexes()
            if local is not None:
                report.local = self._local.index(local, progress, [source.root for source in found])
        for problem in unreadable:
            report.passed_over += 1
            report.add_problem(problem.path, problem.reason)
        report.images = len(self)
        report.seconds = time.perf_counter() - started
        return report

    def search(
        self,
        query: Query,
        k: int = 10,
        *,
        by: str = "auto",
        box: Box | None = None,
        where: Where | None = None,
        min_probability: float = 0.0,
        expand: str | None = None,
        augment: bool = False,
        rerank: str | None = None,
        rerank_timeout_s: float | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> SearchResult:
        """The k images most like a picture (path, bytes, PIL image, array), a descriptor or an image's id.

        by: `auto`, descriptor and local features together, verified and with a probability; `global` or `local`, one
        of them alone. A refiner makes it `global`. min_probability: hits below it are left out.
        box: x0, y0, x1, y1 in pixels of the picture as it is shown. where: conditions on metadata, such as
        "year>=1990" or {"label": "tower"}; all must hold. An id finds itself. expand, rerank: names of
        `tessera.refiners`. What they could not do is noted. augment: score the best hits by their descriptors joined
        with those of their neighbours in the gallery. rerank_timeout_s: stop comparing local features after so many
        seconds; the hits that are left keep their order. limits: what the picture may cost to decode.
        """
        options = SearchOptions(
            k, by, parse_where(where), expand, augment, rerank, rerank_timeout_s, min_probability=min_probability
        )
        return self.search_picture(QueryPicture(query, box, limits), options)

    def search_picture(self, query: QueryPicture, options: SearchOptions) -> SearchResult:
        """As `search`, for what is prepared and checked already."""
        (result,) = self._searcher.search([query], options)
        return result

    def search_many(
        self, queries: Iterable[Query], k: int = 10, *, by: str = "auto", where: Where | None = None
    ) -> list[SearchResult]:
        """Search for many at once: all cores, one pass and one moment of the gallery, for a service or a script.

        queries: as `search` takes them; rows of an array Q D are descriptors. Every result has the time of all.
        """
        asked = [QueryPicture(query) for query in queries]
        return self._searcher.search(asked, SearchOptions(k, by, parse_where(where))) if asked else []

    def search_stream(
        self,
        queries: Iterable[tuple[str, Query | TesseraError]],
        k: int = 10,
        *,
        by: str = "auto",
        where: Where | None = None,
        min_probability: float = 0.0,
        expand: str | None = None,
        augment: bool = False,
        rerank: str | None = None,
    ) -> Iterator[tuple[str, Query | TesseraError, SearchResult | TesseraError]]:
        """Search for any number of queries, each with a name, as fast as the network describes them.

        Queries are read only a little ahead. Gives, in order, each name, the query and its answer, or the error that
        says why there is none; the others go on.
        """
        options = SearchOptions(k, by, parse_where(where), expand, augment, rerank, min_probability=min_probability)
        with self._catalog.read() as snapshot:
            extractor = self._store.open_extractor(snapshot)
        yield from stream_answers(queries, extractor, lambda asked: self._searcher.search(asked, options))

    def describe(self, query: Query, *, box: Box | None = None) -> npt.NDArray[np.float32]:
        """The descriptor, D, that `search` would use."""
        with self._catalog.read() as snapshot:
            return QueryPicture(query, box).describe(snapshot, lambda: self._store.open_extractor(snapshot))

    def add(self, images: Iterable[DescribedImage]) -> int:
        """Store descriptors that this gallery's model made elsewhere, as many as there are; how many there were.

        Each is searched for under its path; a picture that is there is known by its content, and `index` skips it.
        """
        from tessera.gallery.ingest.importing import store_described

        with self._store.write():
            stored = store_described(self._store, images)
            self._store.write_indexes()
        return stored

    def writing(self) -> AbstractContextManager[None]:
        """Hold the writer's lock for a block: files that are kept beside the gallery are changed only inside one."""
        return self._store.write()

    def remove(self, paths: PathOrId | Iterable[PathOrId], *, ignore: bool = True) -> int:
        """Take images out, by path, by folder or by id; files are not touched. Returns how many images went.

        All or nothing: one that is not in the gallery is an error, and nothing is removed. ignore: the next `index`
        passes over what was removed, even if it has moved, unless that very picture or folder is named.
        """
        given = [paths] if isinstance(paths, str | os.PathLike | int) else list(paths)
        with self._store.write():
            removed = remove_images(self._catalog, given, ignore=ignore)
            self._store.write_indexes()
        return removed

    def ignore(self, path: str | os.PathLike[str]) -> None:
        """Let `index` pass over a folder, or a picture, until it is named itself."""
        with self._store.write(), self._catalog.write() as batch:
            batch.ignore(to_blob(path), None)

    def unignore(self, path: str | os.PathLike[str]) -> None:
        """Let `index` take a folder or a picture again."""
        with self._store.write(), self._catalog.write() as batch:
            batch.unignore(to_blob(path))

    def explain(self, query: Query, image_id: int, *, box: Box | None = None) -> Any:
        """Why an image of the gallery resembles a query: the places that agree, and what each pair of tokens added."""
        from tessera.explain.explanation import explain_image, pair_up
        from tessera.explain.matches import match_pair
        from tessera.local.matching import open_parts_reranker

        with self._catalog.read() as snapshot:
            extractor = self._store.open_extractor(snapshot)
            pictures = [QueryPicture(query, box), QueryPicture(image_id)]
            for picture in pictures:
                picture.locate(snapshot)
        reranker = open_parts_reranker(self._store.local_describer.model)
        query_part, other_part = (explain_image(extractor, picture.pixels(extractor.size)) for picture in pictures)
        return pair_up(
            query_part, other_part, match_pair(reranker, *(picture.pixels(reranker.size) for picture in pictures))
        )

    def stats(self) -> dict[str, Any]:
        """How many images, of which model, searched how, and what it all takes."""
        from tessera.gallery.stats import collect_stats

        self.refresh()
        return collect_stats(self._store)

    def check(self, *, repair: bool = False, deep: bool = False) -> CheckReport:
        """Look for damage in the catalogue, the index and the files; with repair, put right what can be.

        deep: read every picture, too, to find those that were changed without their size or time.
        """
        from tessera.gallery.check import check_catalog_file, check_gallery

        findings = check_catalog_file(self.path, repair=repair)
        with self._store.write() if repair else contextlib.nullcontext():
            report = check_gallery(self._store, repair=repair, deep=deep)
        report.findings[:0] = findings
        return report

    def migrate(self, engine: str) -> None:
        """Search with another engine from now on: `faiss` or `milvus:URI`. The catalogue stays as it is."""
        with self._store.write():
            self._store.replace_engine(absolute_engine(engine))

    def export_descriptors(self, output: str | os.PathLike[str], *, where: Where | None = None) -> int:
        """Write ids, paths, metadata and descriptors to a .npz, .parquet or .faiss file; how many there were."""
        from tessera.gallery.exporting import export_descriptors

        return export_descriptors(self, Path(output), where=where)

    def refresh(self) -> None:
        """Catch up with what other processes have changed, as every search does first."""
        if len(self):
            self._store.refresh()

    @property
    def describer(self) -> Describer:
        """The model that describes pictures for this gallery."""
        return self._store.describer

    def close(self) -> None:
        """Let go of files and connections. Nothing is lost without it."""
        self._local.close()
        self._store.close()

    def __enter__(self) -> Gallery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Gallery({str(self.path)!r})"


def _told(progress: ProgressCallback | None) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(IndexProgress(done, total, 0))
