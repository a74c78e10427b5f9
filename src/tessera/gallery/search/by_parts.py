"""The default ranking: global descriptor and local features together, verified by geometry, expanded, calibrated.

1. Score: every image by ASMK* over local features, the nearest by descriptor; both standardised by how strangers score.
2. Verify: the best by both are matched with the query, and a homography counts the places that agree. Of those in
   doubt the best are matched once more, by attention between their corners and the query's.
3. Expand: descriptors of the verified join the query's, and their features join its features where they show it. Score
   and verify again, twice.
4. Judge: one score of all evidence ranks, and gives each hit the probability that it shows the same thing. Neighbours
   of the verified, and theirs in turn, rank higher: views of one thing form chains.

A query that nothing verifies is tried in every direction, thirty degrees apart; one that little does, slanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tessera.gallery.catalog.records import Ids
from tessera.gallery.engines.engine import Allowed
from tessera.gallery.view import View
from tessera.index.expansion import spread
from tessera.local.calibration import VERIFIED_INLIERS, Calibration, fall
from tessera.local.compact import Codes, CompactFeatures, aggregate_codes
from tessera.local.lighterglue import Corners
from tessera.local.matching import Verified, attend, verify_many
from tessera.local.parts import ASMK_ASSIGNMENT, PartsFeatures, PartsModel, QueryFeatures
from tessera.local.postings import Postings, aggregate_query
from tessera.local.turning import DIRECTIONS, SLANTED, Direction

Vector = npt.NDArray[np.float32]

NUM_CANDIDATES = 400  # of either kind, where fewer hits are asked for
NUM_VERIFIED = 200  # candidates that are matched with the query, before and after expansion
EXPAND_INLIERS = 8  # an image with fewer does not expand the query
NUM_ATTENDED = (6, 3, 3)  # of the best that signs leave in doubt, matched by attention at first and after expansions
NUM_EXPANDING = 30  # descriptors, and
NUM_EXPANDING_LOCAL = 4  # images whose features join the query's
NUM_DIFFUSED = 400  # of the best, among which neighbours of the verified are looked for
_TURNED_INLIERS = 10  # a query is turned where so many places agree then, and more than before
_UPRIGHT_INLIERS = 60  # where so many agree with the query as it is, no other direction is tried
_FEW_FEATURES = 16  # too few to hold it against two pictures that they do not agree
_TURNED_CANDIDATES = 30  # of each direction
_TURNED_FEATURES = 400  # regions of a query that is tried in every direction
NUM_SHORTLISTED = 1000  # images of a gallery that is too large to scan


@dataclass(frozen=True)
class Judged:
    """Candidates of one query, best first. cosines: of descriptors; local_scores: ASMK*."""

    ids: Ids  # K
    probabilities: npt.NDArray[np.float64]  # K
    cosines: Vector  # K
    local_scores: Vector  # K
    inliers: npt.NDArray[np.int64]  # K; -1 where nothing was matched
    degrees: int  # by which the query was turned to be found, counter-clockwise
    verified: dict[int, Verified]  # by id
    evidence: npt.NDArray[np.float64]  # K E: what the probabilities were worked out from
    neighbours: Vector  # K: how near it is to what is verified, 1 for that itself


@dataclass(frozen=True)
class _Scored:
    """Candidates with both scores, standardised: in deviations above the mean of strangers."""

    ids: Ids
    cosines: Vector  # with the query's own descriptor
    likeness: Vector  # the same, from strangers, 0, to equal, 1
    local_scores: Vector
    global_z: Vector  # of the descriptor as it is, expanded or not
    local_z: Vector
    descriptors: Vector  # K D

    def best(self, calibration: Calibration, count: int) -> Ids:
        fused = calibration.fuse(self.global_z, self.local_z)
        return self.ids[np.argsort(-fused, kind="stable")[:count]]


@dataclass(frozen=True)
class Sample:
    """Images spread over the gallery, whose descriptors say how strangers score."""

    ids: Ids  # N
    descriptors: Vector  # N D

    def without(self, ids: Sequence[int]) -> Vector:
        """The descriptors of those that are strangers to a query which these images show."""
        return self.descriptors[~np.isin(self.ids, ids)] if len(ids) else self.descriptors


class Scorer(Protocol):
    """What scores images by local features: ids, ascending, and ASMK*'s similarity of each.

    is_filtered: whether these are only images that may be found.
    """

    is_filtered: bool

    def scores(self, words: npt.NDArray[np.int64], codes: Codes) -> tuple[Ids, Vector]: ...


class ShortlistPostings:
    """Of a gallery too large to scan, the images whose descriptors are nearest, as an inverted file of their own."""

    is_filtered = True

    def __init__(self, view: View, model: PartsModel, descriptor: Vector, allowed: Allowed | None) -> None:
        columns = min(NUM_SHORTLISTED, view.most_found(allowed))
        nearest = (
            view.index.search(descriptor[None], columns, allowed=allowed)[1][0] if columns else np.empty(0, np.int64)
        )
        found = view.snapshot.local_features(np.sort(nearest[nearest >= 0]).tolist(), model.fingerprint)
        self._postings = Postings(model.num_words)
        self._postings.add((image_id, CompactFeatures.from_bytes(found[image_id])) for image_id in sorted(found))

    def scores(self, words: npt.NDArray[np.int64], codes: Codes) -> tuple[Ids, Vector]:
        return self._postings.ids, self._postings.scores(words, codes)


class PartsSearch:
    """One query on one view. allowed: what may be found; None for all. own: an id that may not."""

    def __init__(
        self,
        view: View,
        postings: Scorer,
        model: PartsModel,
        calibration: Calibration,
        *,
        sample: Sample,
        num_candidates: int,
        allowed: Allowed | None = None,
        own: int | None = None,
        threads: int = 1,
    ) -> None:
        self._view, self._postings, self._model, self._calibration = view, postings, model, calibration
        self._sample, self._allowed, self._own, self._threads = sample, allowed, own, threads
        self._num_candidates = max(num_candidates, NUM_CANDIDATES)
        self._own_descriptor = np.empty(0, np.float32)
        self._stored: dict[int, CompactFeatures] = {}
        self._lacking: set[int] = set()  # images without local features: nothing is held against them
        self._verified: dict[int, Verified] = {}
        self._attended: set[int] = set()
        self._rows: dict[int, Vector] = {}

    def run(self, descriptor: Vector, features: PartsFeatures, *, use_global: bool = True) -> Judged:
        """use_global False: local features alone choose and judge."""
        weight = 1.0 if use_global else 0.0
        self._own_descriptor = descriptor
        query = self._model.encode_query(features)
        words, codes = aggregate_query(query)
        scored = self._score(descriptor, words, codes, weight)
        self._verify(query, scored.best(self._calibration, NUM_VERIFIED))
        degrees = 0
        inliers = self._most_inliers()
        if len(features) and inliers < _UPRIGHT_INLIERS:
            directions = DIRECTIONS if inliers < _TURNED_INLIERS else SLANTED
            degrees, seen = self._try_directions(features, directions, max(inliers + 1, _TURNED_INLIERS))
            if degrees:
                features = self._model.turn(features, degrees)
                query = self._model.encode_query(features)
                words, codes = aggregate_query(query)
                scored = self._score(descriptor, words, codes, weight)
                self._verified = {}
                self._verify(query, [*seen])
            self._keep_better(seen)
        corners = self._model.query_corners(features)
        self._attend(query, corners, scored, NUM_ATTENDED[0])
        known: list[int] = []
        for num_attended in NUM_ATTENDED[1:]:
            confirmed = self._confirmed()
            if confirmed == known:
                break
            known = confirmed
            expanded = self._expand_descriptor(descriptor, confirmed)
            scored = self._score(expanded, *self._expand_features(query, words, codes, confirmed), weight, confirmed)
            best = scored.best(self._calibration, NUM_VERIFIED)
            self._verify(query, [i for i in best.tolist() if i not in self._verified])
            self._attend(query, corners, scored, num_attended)
        neighbours = self._diffuse(scored) if use_global else np.zeros(len(scored.ids), np.float32)
        return self._judge(scored, neighbours, degrees, len(query))

    def _score(
        self, descriptor: Vector, words: npt.NDArray[np.int64], codes: Codes, weight: float, known: Sequence[int] = ()
    ) -> _Scored:
        """The nearest by descriptor and by local features, each with both scores. weight 0: without descriptors.

        known: images that are no strangers.
        """
        local_ids, local_scores = self._postings.scores(words, codes)
        usable = self._usable(local_ids)
        count = self._num_candidates
        best = usable[np.argsort(-local_scores[usable], kind="stable")[:count]]
        best = best[local_scores[best] > 0]
        chosen = [local_ids[best]]
        nearest = np.empty(0, np.int64)
        if weight:
            columns = min(count, self._view.most_found(self._allowed))
            if columns:
                nearest = self._view.index.search(descriptor[None], columns, allowed=self._allowed)[1][0]
                nearest = nearest[(nearest >= 0) & (nearest != self._own)]
            chosen.append(nearest)
        ids = np.unique(np.concatenate(chosen))
        stored = self._descriptors(ids)
        is_there = stored.any(axis=1)  # else it was removed, or came after the snapshot
        ids, stored = ids[is_there], stored[is_there]
        global_scores = stored @ descriptor
        places = np.searchsorted(local_ids, ids) if len(local_ids) else np.zeros(len(ids), np.int64)
        has_local = places < len(local_ids)
        has_local[has_local] = local_ids[places[has_local]] == ids[has_local]
        local = np.zeros(len(ids), np.float32)
        local[has_local] = local_scores[places[has_local]]
        background = self._calibration.background
        strangers = self._sample.without(known if self._own is None else [*known, self._own])
        others = usable[~np.isin(local_ids[usable], known)] if len(known) else usable
        cosines = stored @ self._own_descriptor
        return _Scored(
            ids,
            cosines,
            background.likeness(cosines, strangers @ self._own_descriptor) * np.float32(weight),
            local,
            weight * background.standardise("global", global_scores, strangers @ descriptor),
            background.standardise("local", local, local_scores[others]),
            stored,
        )

    def _descriptors(self, ids: Ids) -> Vector:
        """Descriptors K D, each read from the catalogue once a search; zeros where there is none."""
        lacking = [image_id for image_id in ids.tolist() if image_id not in self._rows]
        if lacking:
            self._rows.update(zip(lacking, self._view.descriptors(np.array(lacking, np.int64)), strict=True))
        return np.array([self._rows[image_id] for image_id in ids.tolist()], np.float32).reshape(
            len(ids), self._view.dim
        )

    def _usable(self, ids: Ids) -> npt.NDArray[np.int64]:
        """Which rows of the postings may be found."""
        kept = np.ones(len(ids), bool)
        if self._allowed is not None and not self._postings.is_filtered:
            kept = np.isin(ids, self._allowed.ids)
        if self._own is not None:
            kept &= ids != self._own
        return np.flatnonzero(kept)

    def _verify(self, query: QueryFeatures, ids: Sequence[int] | Ids) -> None:
        wanted = [int(image_id) for image_id in ids]
        self._verified.update(zip(wanted, self._match(query, wanted), strict=True))

    def _match(self, query: QueryFeatures, ids: list[int]) -> list[Verified]:
        self._load(ids)
        stored = [self._stored[image_id] for image_id in ids]
        return verify_many(query, stored, self._model.match_distances)

    def _attend(self, query: QueryFeatures, corners: Corners, scored: _Scored, count: int) -> None:
        """Match the best that are in doubt once more, by attention between their corners and the query's."""
        if not len(corners):
            return
        evidence, inliers = self._evidence(scored, len(query))
        order = np.argsort(-self._calibration.scores(evidence), kind="stable")
        in_doubt = scored.ids[order[(inliers[order] >= 0) & (inliers[order] < VERIFIED_INLIERS)]].tolist()
        wanted = [image_id for image_id in in_doubt if image_id not in self._attended][:count]
        self._attended.update(wanted)

        def match(image_id: int) -> Verified:
            stored = self._stored[image_id]
            return attend(query, corners, stored, self._model.stored_corners(stored), self._verified[image_id])

        with ThreadPoolExecutor(self._threads) as pool:
            self._verified.update(zip(wanted, pool.map(match, wanted), strict=True))

    def _load(self, ids: Sequence[int]) -> None:
        lacking = [image_id for image_id in ids if image_id not in self._stored]
        found = self._view.snapshot.local_features(lacking, self._model.fingerprint)
        self._lacking.update(image_id for image_id in lacking if image_id not in found)
        for image_id in lacking:
            features = found.get(image_id)
            self._stored[image_id] = (
                CompactFeatures.empty() if features is None else CompactFeatures.from_bytes(features)
            )

    def _confirmed(self, least: int = EXPAND_INLIERS) -> list[int]:
        """The images that geometry has confirmed by so many inliers: most inliers first, of as many fewest matches."""
        sure = [
            (-found.num_counted, found.num_matches, image_id)
            for image_id, found in self._verified.items()
            if found.num_counted >= least
        ]
        return [image_id for *_, image_id in sorted(sure)]

    def _most_inliers(self) -> int:
        return max((found.num_inliers for found in self._verified.values()), default=0)

    def _try_directions(
        self, features: PartsFeatures, directions: Sequence[Direction], least: int
    ) -> tuple[int, dict[int, Verified]]:
        """By how many degrees the query must be turned that most places agree, and what agrees in any direction.

        least: places that must agree; with fewer in every direction the query stays as it is.
        """
        turned = list(self._model.turn_regions(features, directions, _TURNED_FEATURES))
        with ThreadPoolExecutor(self._threads) as pool:
            queries = list(pool.map(lambda one: self._model.encode_query(one[1], ASMK_ASSIGNMENT), turned))
        best, seen = 0, dict[int, Verified]()
        for (degrees, _), query in zip(turned, queries, strict=True):
            ids, scores = self._postings.scores(*aggregate_query(query))
            usable = self._usable(ids)
            found = ids[usable[np.argsort(-scores[usable], kind="stable")[:_TURNED_CANDIDATES]]].tolist()
            for image_id, outcome in zip(found, self._match(query, found), strict=True):
                if outcome.num_inliers >= least:
                    least, best = outcome.num_inliers + 1, degrees
                known = seen.get(image_id)
                if outcome.num_inliers >= _TURNED_INLIERS and (
                    known is None or outcome.num_inliers > known.num_inliers
                ):
                    seen[image_id] = outcome
        return best, seen

    def _keep_better(self, seen: dict[int, Verified]) -> None:
        """Where an image agrees more with another direction of the query, it is verified by that.

        The transformation is not the query's, as it stands, and is left out.
        """
        for image_id, found in seen.items():
            known = self._verified.get(image_id)
            if known is None or found.num_inliers > known.num_inliers:
                self._verified[image_id] = replace(found, transformation=None)

    def _expand_descriptor(self, descriptor: Vector, confirmed: list[int]) -> Vector:
        joined = descriptor + self._descriptors(np.array(confirmed[:NUM_EXPANDING], np.int64)).sum(axis=0)
        return np.asarray(joined / max(float(np.linalg.norm(joined)), 1e-12), np.float32)

    def _expand_features(
        self, query: QueryFeatures, words: npt.NDArray[np.int64], codes: Codes, confirmed: list[int]
    ) -> tuple[npt.NDArray[np.int64], Codes]:
        """The query's words with those that confirmed images have where they show what the query shows."""
        all_words, all_codes = [words], [codes]
        width, height = query.image_size
        corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
        for image_id in confirmed[:NUM_EXPANDING_LOCAL]:
            transformation = self._verified[image_id].transformation
            if transformation is None:
                continue
            mapped = np.column_stack([corners, np.ones(4)]) @ transformation.T
            if (mapped[:, 2] <= 0).any() and (mapped[:, 2] >= 0).any():
                continue  # the horizon runs through it: there is no region to speak of
            features = self._stored[image_id]
            inside = features.inside(mapped[:, :2] / mapped[:, 2:])
            all_words.append(features.words[inside].astype(np.int64))
            all_codes.append(features.codes[inside])
        return aggregate_codes(np.concatenate(all_words), np.concatenate(all_codes))

    def _copies(self, scored: _Scored, inliers: npt.NDArray[np.int64], num_features: int) -> Vector:
        """The likeness of images that may be copies: where there are features, those of copies agree."""
        features = [self._stored.get(image_id) for image_id in scored.ids.tolist()]
        has_few = np.array([one is not None and max(len(one), num_features) < _FEW_FEATURES for one in features], bool)
        has_few |= np.isin(scored.ids, list(self._lacking))
        return np.where(has_few | (inliers >= VERIFIED_INLIERS), scored.likeness, np.float32(0))

    def _diffuse(self, scored: _Scored) -> Vector:
        """How near candidates, K, are to the confirmed images along the neighbour graph of the best, 1 for those."""
        neighbours = np.zeros(len(scored.ids), np.float32)
        best = np.searchsorted(scored.ids, scored.best(self._calibration, NUM_DIFFUSED))
        is_seed = np.isin(scored.ids[best], self._confirmed())
        if is_seed.any():
            flow = np.maximum(spread(is_seed.astype(np.float64), scored.descriptors[best]), 0)
            most = max(float(flow[~is_seed].max(initial=0)), 1e-12)
            neighbours[best] = np.where(is_seed, 1, np.sqrt(flow / most))
        return neighbours

    def _evidence(self, scored: _Scored, num_features: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
        """What is known of the candidates, K E, and their inliers, K, -1 where nothing was matched."""
        verified = [self._verified.get(image_id) for image_id in scored.ids.tolist()]
        inliers, counted = (
            np.array([-1 if one is None else getattr(one, name) for one in verified], np.int64)
            for name in ("num_inliers", "num_counted")
        )
        matches = np.array([0 if one is None else one.num_matches for one in verified], np.int64)
        likeness = self._copies(scored, counted, num_features)
        return self._calibration.evidence(scored.global_z, scored.local_z, counted, matches, likeness), inliers

    def _judge(self, scored: _Scored, neighbours: Vector, degrees: int, num_features: int) -> Judged:
        evidence, inliers = self._evidence(scored, num_features)
        order = np.lexsort((scored.ids, -self._calibration.rank_scores(evidence, neighbours)))
        return Judged(
            scored.ids[order],
            fall(self._calibration.probabilities(self._calibration.scores(evidence[order]))),
            scored.cosines[order],
            scored.local_scores[order],
            inliers[order],
            degrees,
            self._verified,
            evidence[order],
            neighbours[order],
        )
