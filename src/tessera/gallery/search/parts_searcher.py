"""What searches by parts need of a gallery: its inverted file, its local features, and the model that made them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tessera.errors import GalleryError, ImageError, UsageError
from tessera.extract.runtime import default_threads
from tessera.gallery.engines.engine import Allowed
from tessera.gallery.engines.postings_index import PostingsIndex
from tessera.gallery.search.by_parts import Judged, PartsSearch, Sample, Scorer, ShortlistPostings
from tessera.gallery.search.query import QueryPicture
from tessera.gallery.search.search_options import SearchOptions
from tessera.gallery.store import Store
from tessera.gallery.view import View
from tessera.local.calibration import Calibration, load_calibration
from tessera.local.parts import PartsFeatures, PartsModel

MOST_SCANNED = 200_000  # images; beyond, local features score only what the descriptor has chosen
_SAMPLE = 512  # images whose descriptors say how strangers score
WITHOUT = (
    "This gallery has no local features, so the descriptor alone decides. "
    "`tessera index --rebuild` adds them: the search then finds more, and says how sure it is."
)
EARLIER = (
    "The local features of this gallery are of an earlier version of Tessera, so the descriptor alone decides. "
    "`tessera index --rebuild` makes them anew."
)
PARTLY = (
    "Some images of this gallery have local features of an earlier version of Tessera: their descriptors alone find "
    "them. `tessera index --rebuild` makes these features anew."
)


class PartsSearcher:
    """Opened on the first search that needs it; used by as many threads as there are."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._sampled: tuple[tuple[int, str], Sample] | None = None

    @property
    def model(self) -> PartsModel:
        return self._store.local_describer.model

    @property
    def postings(self) -> PostingsIndex:
        return self._store.postings

    @cached_property
    def calibration(self) -> Calibration:
        return load_calibration(self.model.folder)

    def reasons_against(self, queries: Sequence[QueryPicture], view: View, options: SearchOptions) -> tuple[str, ...]:
        """Why local features cannot take part; none where they can. Where they were asked for, an error."""
        if not view.snapshot.has_features_of(self.model.fingerprint):
            reason = EARLIER if view.snapshot.has_earlier_features(self.model.fingerprint) else WITHOUT
            if options.by == "local":
                raise GalleryError(f"--by local: {reason}")
            return (reason,)
        if not all(query.is_picture for query in queries):
            if options.by == "local":
                raise UsageError("--by local needs a picture: a descriptor has no local features.")
            return ("A descriptor has no local features, so descriptors alone decide.",)
        return ()

    def remarks(self, view: View) -> tuple[str, ...]:
        """What local features cannot do here, though they take part."""
        return (PARTLY,) if view.snapshot.has_earlier_features(self.model.fingerprint) else ()

    def describe(self, query: QueryPicture) -> PartsFeatures:
        """The features of a query that is located, from its picture inside the box at full resolution."""
        try:
            return self.model.extract(query.pixels(self.model.size), default_threads())
        except ImageError:
            if query.image_id is None:
                raise
            return self.model.empty()  # its file has gone: its descriptor is left

    def search(
        self,
        view: View,
        descriptor: npt.NDArray[np.float32],
        features: PartsFeatures,
        options: SearchOptions,
        allowed: Allowed | None,
        own: int | None,
    ) -> Judged:
        scorer: Scorer
        if view.index.size > MOST_SCANNED or not self._store.has_postings:
            scorer = ShortlistPostings(view, self.model, descriptor, allowed)
        else:
            self._store.refresh_postings(view.snapshot)
            scorer = self.postings
        search = PartsSearch(
            view,
            scorer,
            self.model,
            self.calibration,
            sample=self._sample(view),
            num_candidates=options.k,
            allowed=allowed,
            own=own,
            threads=default_threads(),
        )
        return search.run(descriptor, features, use_global=options.by == "auto")

    def _sample(self, view: View) -> Sample:
        """Descriptors of images spread over the gallery, the same for everyone who sees the same gallery."""
        key = (view.snapshot.generation, view.shown.fingerprint)
        with self._lock:
            if self._sampled is None or self._sampled[0] != key:
                ids = view.snapshot.spread_ids(_SAMPLE)
                rows = view.descriptors(ids)
                is_there = rows.any(axis=1)
                self._sampled = key, Sample(ids[is_there], rows[is_there])
            return self._sampled[1]
