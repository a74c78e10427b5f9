"""The revisited protocol as pure functions on ranks: easy, medium and hard, AP by trapezoids, mP@k, junk.

Equal to the field's own tool (Radenovic et al., "Revisiting Oxford and Paris", 2018) in every number it gives, oddities
included: figures made with it must compare. Where that tool crashes or divides by zero, an EvaluationError says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.data.ground_truth import as_ids
from tessera.errors import EvaluationError

KAPPAS = (1, 5, 10)

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


class UndefinedFigureError(EvaluationError):
    """Well-formed ranks whose figure does not exist: no query has a positive, or one found none of its own."""


@dataclass(frozen=True)
class Protocol:
    """Which lists of the ground truth are to be found and which are passed over."""

    positives: tuple[str, ...]
    junk: tuple[str, ...]


PROTOCOLS: Mapping[str, Protocol] = {
    "easy": Protocol(positives=("easy",), junk=("junk", "hard")),
    "medium": Protocol(positives=("easy", "hard"), junk=("junk",)),
    "hard": Protocol(positives=("hard",), junk=("junk", "easy")),
}


@dataclass(frozen=True)
class Relevance:
    """What one query should find and what counts neither for nor against it; ids of the gallery.

    An id twice among the positives counts twice in the divisor of the AP, as the field's tool has it.
    """

    positives: IntArray
    junk: IntArray


@dataclass(frozen=True)
class Score:
    """The figures of one protocol, in 0..1; NaN for a query without positives, which the means leave out.

    ap: Q. precision: Q K, one column for each of `kappas`.
    """

    map: float
    ap: FloatArray
    mp: dict[int, float]
    precision: FloatArray
    kappas: tuple[int, ...]

    @property
    def num_queries(self) -> int:
        """How many queries the means are over."""
        return int(np.count_nonzero(~np.isnan(self.ap)))

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON has them: null for NaN, string keys for k."""
        return {
            "map": self.map,
            "ap": [None if np.isnan(value) else float(value) for value in self.ap],
            "mp": {str(kappa): value for kappa, value in self.mp.items()},
        }


def average_precision(positions: npt.ArrayLike, num_positives: int) -> float:
    """The area under the precision-recall curve by trapezoids.

    positions: the zero-based ranks at which positives were found, ascending, junk already taken out.
    num_positives: all of them, found or not. A lone positive at rank 1 gives 0.25, not 0.5: the curve starts at 0.
    """
    ranks = np.asarray(positions, dtype=np.float64)
    if num_positives < 1:
        raise EvaluationError("average precision needs at least one positive: the query has none.")
    found = np.arange(len(ranks), dtype=np.float64)
    before = np.divide(found, ranks, out=np.ones_like(ranks), where=ranks != 0)
    after = (found + 1) / (ranks + 1)
    return float(np.sum(before + after) / (2 * num_positives))


def positions_without_junk(ranking: IntArray, relevance: Relevance) -> IntArray:
    """The ranks of the positives in a ranking from which the junk is removed.

    An id that is both positive and junk stays a positive, and yet is subtracted from every position after its own.
    """
    positions = np.flatnonzero(np.isin(ranking, relevance.positives))
    junk = np.flatnonzero(np.isin(ranking, relevance.junk))
    return (positions - np.searchsorted(junk, positions, side="left")).astype(np.int64)


def precision_at(positions: IntArray, kappas: Sequence[int]) -> FloatArray:
    """Precision at each k, with k cut to the rank of the last positive found: three positives on top give P@10 = 1."""
    if not kappas:
        return np.empty(0)
    if not len(positions):
        raise UndefinedFigureError(
            "precision at k is not defined for a query none of whose positives is in its ranking. "
            "Give longer rankings, or ask for no kappas."
        )
    last = int(positions.max()) + 1
    cuts = [min(last, kappa) for kappa in kappas]
    return np.array([np.count_nonzero(positions < cut) / cut for cut in cuts])


@dataclass(frozen=True)
class QueryScore:
    """The figures of one query: its AP, and its precision at each k, K."""

    ap: float
    precision: FloatArray


def score_query(
    ranking: npt.ArrayLike, relevance: Relevance, kappas: Sequence[int] = KAPPAS, *, partial: bool = False
) -> QueryScore | None:
    """Score the ranking of one query (gallery ids, best first; it may be truncated); None when it has no positives.

    A positive that a truncated ranking does not have counts as never found. Negative ids are padding. partial: a query
    that found nothing scores 0 at every k instead of being an error, for searches that return a part of the gallery.
    """
    if not len(relevance.positives):
        return None
    positions = positions_without_junk(_check_ranking(ranking), relevance)
    ap = average_precision(positions, len(relevance.positives))
    if partial and not len(positions):
        return QueryScore(ap, np.zeros(len(kappas)))
    return QueryScore(ap, precision_at(positions, kappas))


def average_scores(scores: Sequence[QueryScore | None], kappas: Sequence[int] = KAPPAS) -> Score:
    """The figures of a protocol from those of its queries; a query without positives leaves the means."""
    ap = np.full(len(scores), np.nan)
    precision = np.full((len(scores), len(kappas)), np.nan)
    for query, score in enumerate(scores):
        if score is not None:
            ap[query], precision[query] = score.ap, score.precision
    scored = ~np.isnan(ap)
    if not scored.any():
        raise UndefinedFigureError("no query has a positive, so that there is nothing to average.")
    means = precision[scored].mean(axis=0)
    return Score(
        map=float(ap[scored].mean()),
        ap=ap,
        mp={int(kappa): float(mean) for kappa, mean in zip(kappas, means, strict=True)},
        precision=precision,
        kappas=tuple(kappas),
    )


def score_rankings(
    rankings: Sequence[npt.ArrayLike], relevances: Sequence[Relevance], kappas: Sequence[int] = KAPPAS
) -> Score:
    """Score one ranking a query and average over queries."""
    kappas = _check_kappas(kappas)
    if len(rankings) != len(relevances):
        raise EvaluationError(
            f"there are rankings of {len(rankings)} queries and a ground truth of {len(relevances)}. "
            "An array of ranks has one column a query."
        )
    scores = []
    for query, (ranking, relevance) in enumerate(zip(rankings, relevances, strict=True)):
        try:
            scores.append(score_query(ranking, relevance, kappas))
        except EvaluationError as error:
            raise type(error)(f"query {query}: {error}") from error
    return average_scores(scores, kappas)


def relevance_for(truth: Mapping[str, Any], protocol: Protocol) -> Relevance:
    """The positives and the junk of one query's easy/hard/junk lists under a protocol; a list left out is empty."""
    return Relevance(positives=_gather(truth, protocol.positives), junk=_gather(truth, protocol.junk))


def score_protocol(
    name: str,
    rankings: Sequence[npt.ArrayLike],
    ground_truth: Sequence[Mapping[str, Any]],
    kappas: Sequence[int] = KAPPAS,
) -> Score:
    """Score rankings under `easy`, `medium` or `hard`."""
    if name not in PROTOCOLS:
        raise EvaluationError(f"protocol '{name}' is not known. Known: {', '.join(PROTOCOLS)}.")
    try:
        return score_rankings(rankings, [relevance_for(truth, PROTOCOLS[name]) for truth in ground_truth], kappas)
    except EvaluationError as error:
        raise type(error)(f"protocol {name}: {error}") from error


def score_revisited(
    rankings: Sequence[npt.ArrayLike],
    ground_truth: Sequence[Mapping[str, Any]],
    kappas: Sequence[int] = KAPPAS,
    protocols: Sequence[str] = tuple(PROTOCOLS),
) -> dict[str, Score]:
    """Score rankings under each protocol asked for, from one easy/hard/junk mapping a query."""
    return {name: score_protocol(name, rankings, ground_truth, kappas) for name in protocols}


def _gather(truth: Mapping[str, Any], lists: Sequence[str]) -> IntArray:
    return np.concatenate([as_ids(truth.get(name, ()), f"list '{name}'", EvaluationError) for name in lists])


def _check_ranking(ranking: npt.ArrayLike) -> IntArray:
    ids = as_ids(ranking, "the ranking", EvaluationError)
    real = ids[ids >= 0]
    values, counts = np.unique(real, return_counts=True)
    if len(values) != len(real):
        raise EvaluationError(f"id {int(values[counts > 1][0])} stands more than once in the ranking.")
    return ids


def _check_kappas(kappas: Sequence[int]) -> tuple[int, ...]:
    if any(kappa < 1 for kappa in kappas):
        raise EvaluationError(f"k of mP@k must be at least 1, not {min(kappas)}.")
    return tuple(int(kappa) for kappa in kappas)
