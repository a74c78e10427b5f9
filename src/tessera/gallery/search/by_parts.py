"""The default ranking: global descriptor and local features together, verified by geometry, expanded, calibrated.

1. Score: every image by ASMK* over local features, the nearest by descriptor; both standardised by how strangers score.
2. Verify: the best by both are matched with the query, and a homography counts the places that agree.
3. Expand: descriptors of the verified join the query's, and their features join its features where they show it. Score
   and verify again, twice.
4. Judge: one logistic model gives each hit the probability that it shows the same thing, and ranks by it.

A query that nothing verifies is tried turned by quarter turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tessera.gallery.catalog.snapshot import Ids
from tessera.gallery.engines.engine import Allowed
from tessera.gallery.view import View
from tessera.local.calibration import Calibration
from tessera.local.compact import Codes, CompactFeatures, aggregate_codes
from tessera.local.features import LocalFeatures
from tessera.local.matching import Verified, verify_many
from tessera.local.parts import PartsModel, QueryFeatures, turn_features
from tessera.local.postings import Postings, aggregate_query

Vector = npt.NDArray[np.float32]

NUM_CANDIDATES = 400  # of either kind, where fewer hits are asked for
NUM_VERIFIED = 200  # candidates that are matched with the query, before and after expansion
EXPAND_INLIERS = 10  # an image with fewer does not expand the query
NUM_EXPANSIONS = 2  # the second by what the first has found
NUM_EXPANDING = 10  # descriptors, and
NUM_EXPANDING_LOCAL = 4  # images whose features join the query's
_TURNED_CANDIDATES = 30  # of each turn
NUM_SHORTLISTED = 1000  # images of a gallery that is too large to scan


@dataclass(frozen=True)
class Judged:
    """Candidates of one query, best first. cosines: of descriptors; local_scores: ASMK*."""

    ids: Ids  # K
    probabilities: npt.NDArray[np.float64]  # K
    cosines: Vector  # K
    local_scores: Vector  # K
    inliers: npt.NDArray[np.int64]  # K; -1 where nothing was matched
    turns: int  # quarter turns by which the query was turned to be found
    verified: dict[int, Verified]  # by id
    evidence: npt.NDArray[np.float64]  # K E: what the probabilities were worked out from


@dataclass(frozen=True)
class _Scored:
    """Candidates with both scores, standardised: in deviations above the mean of strangers."""

    ids: Ids
    cosines: Vector  # with the query's own descriptor
    likeness: Vector  # the same, from strangers, 0, to equal, 1
    local_scores: Vector
    global_z: Vector  # of the descriptor as it is, expanded or not
    local_z: Vector

    def best(self, calibration: Calibration, count: int) -> Ids:
        fused = calibration.fuse(self.global_z, self.local_z)
        return self.ids[np.argsort(-fused, kind="stable")[:count]]


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
        sample: Vector,
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
        self._verified: dict[int, Verified] = {}

    def run(self, descriptor: Vector, features: LocalFeatures, *, use_global: bool = True) -> Judged:
        """use_global False: local features alone choose and judge."""
        weight = 1.0 if use_global else 0.0
        self._own_descriptor = descriptor
        query = self._model.encode_query(features)
        words, codes = aggregate_query(query)
        scored = self._score(descriptor, words, codes, weight)
        self._verify(query, scored.best(self._calibration, NUM_VERIFIED))
        turns = 0
        if not self._confirmed():
            turns, turned, found = self._try_turns(features)
            if turns:
                query, (words, codes) = turned, aggregate_query(turned)
                scored = self._score(descriptor, words, codes, weight)
                self._verify(query, found)
        known: list[int] = []
        for _ in range(NUM_EXPANSIONS):
            confirmed = self._confirmed()
            if confirmed == known:
                break
            known = confirmed
            expanded = self._expand_descriptor(descriptor, confirmed)
            scored = self._score(expanded, *self._expand_features(query, words, codes, confirmed), weight)
            best = scored.best(self._calibration, NUM_VERIFIED)
            self._verify(query, [i for i in best.tolist() if i not in self._verified])
        return self._judge(scored, turns)

    def _score(self, descriptor: Vector, words: npt.NDArray[np.int64], codes: Codes, weight: float) -> _Scored:
        """The nearest by descriptor and by local features, each with both scores. weight 0: without descriptors."""
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
        stored = self._view.descriptors(ids)
        is_there = stored.any(axis=1)  # else it was removed, or came after the snapshot
        ids, stored = ids[is_there], stored[is_there]
        global_scores = stored @ descriptor
        places = np.searchsorted(local_ids, ids) if len(local_ids) else np.zeros(len(ids), np.int64)
        has_local = places < len(local_ids)
        has_local[has_local] = local_ids[places[has_local]] == ids[has_local]
        local = np.zeros(len(ids), np.float32)
        local[has_local] = local_scores[places[has_local]]
        background = self._calibration.background
        cosines = stored @ self._own_descriptor
        return _Scored(
            ids,
            cosines,
            background.likeness(cosines, self._sample @ self._own_descriptor) * np.float32(weight),
            local,
            weight * background.standardise("global", global_scores, self._sample @ descriptor),
            background.standardise("local", local, local_scores[usable]),
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
        self._load(wanted)
        outcomes = verify_many(
            query, [self._stored[image_id] for image_id in wanted], self._model.num_words, threads=self._threads
        )
        self._verified.update(zip(wanted, outcomes, strict=True))

    def _load(self, ids: Sequence[int]) -> None:
        lacking = [image_id for image_id in ids if image_id not in self._stored]
        found = self._view.snapshot.local_features(lacking, self._model.fingerprint)
        for image_id in lacking:
            features = found.get(image_id)
            self._stored[image_id] = (
                CompactFeatures.empty() if features is None else CompactFeatures.from_bytes(features)
            )

    def _confirmed(self) -> list[int]:
        """The images that geometry has confirmed beyond doubt, most inliers first."""
        sure = [(-found.num_inliers, i) for i, found in self._verified.items() if found.num_inliers >= EXPAND_INLIERS]
        return [image_id for _, image_id in sorted(sure)]

    def _try_turns(self, features: LocalFeatures) -> tuple[int, QueryFeatures, list[int]]:
        """By which quarter turn the query is confirmed by most places, the turned query, and its candidates."""
        upright = self._verified
        best: tuple[int, int, QueryFeatures | None, list[int]] = (EXPAND_INLIERS - 1, 0, None, [])
        for turns in (1, 2, 3):
            query = self._model.encode_query(turn_features(features, turns))
            ids, scores = self._postings.scores(*aggregate_query(query))
            usable = self._usable(ids)
            found = ids[usable[np.argsort(-scores[usable], kind="stable")[:_TURNED_CANDIDATES]]].tolist()
            self._verified = {}
            self._verify(query, found)
            inliers = max((one.num_inliers for one in self._verified.values()), default=0)
            if inliers > best[0]:
                best = (inliers, turns, query, found)
        self._verified = upright if best[2] is None else {}
        return best[1], best[2] or self._model.encode_query(features), best[3]

    def _expand_descriptor(self, descriptor: Vector, confirmed: list[int]) -> Vector:
        joined = descriptor + self._view.descriptors(np.array(confirmed[:NUM_EXPANDING], np.int64)).sum(axis=0)
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

    def _judge(self, scored: _Scored, turns: int) -> Judged:
        verified = [self._verified.get(image_id) for image_id in scored.ids.tolist()]
        inliers = np.array([-1 if one is None else one.num_inliers for one in verified], np.int64)
        matches = np.array([0 if one is None else one.num_matches for one in verified], np.int64)
        evidence = self._calibration.evidence(scored.global_z, scored.local_z, inliers, matches, scored.likeness)
        scores = self._calibration.scores(evidence)
        order = np.lexsort((scored.ids, -scores))
        return Judged(
            scored.ids[order],
            self._calibration.probabilities(scores[order]),
            scored.cosines[order],
            scored.local_scores[order],
            inliers[order],
            turns,
            self._verified,
            evidence[order],
        )
