"""How many candidates a coded search needs for a recall, measured on the gallery itself.

Some gallery descriptors are taken as queries, their own rows left out. One exact scan finds their true neighbours. The
ranks that the codes give to those neighbours say how many candidates it takes. Queries of users are never seen here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tessera.config import from_mapping, to_mapping
from tessera.index.codecs.block_scan import scan_blocks
from tessera.index.codecs.codec import Float32s, Int64s
from tessera.index.codecs.sampling import sample_rows
from tessera.index.descriptor_file import BLOCK_ROWS, DescriptorStore

_QUERIES = 200
_MOST_CANDIDATES = 8192
_SLACK = 1.1  # two hundred queries are a sample: take a few more
_FEWEST_CANDIDATES = 64
_FAR_MISSES = 2.7  # of a hundred neighbours so many times more may be missed: the last of them are nearly ties
# Of the allowed misses, so many by the coarse scan and by unprobed lists, where another stage follows: tried in turn.
COARSE_SHARES = (0.6, 0.8, 0.9, 0.95)
# Measured on one core: one more row to rescore by its residual, and one more descriptor to read.
RESCORE_NS, EXACT_NS = 300.0, 400.0

# queries Q D, num_candidates, nprobe -> rows Q num_candidates, best first by coarse score, and their rescored scores
CandidateSearch = Callable[[Float32s, int, int], tuple[Int64s, Float32s]]


@dataclass(frozen=True)
class RecallCalibration:
    """For k = 10 and k = 100: how many candidates the coarse scan gives, and how many of them are scored exactly.

    nprobe: how many inverted lists are scanned. recall: recall@10, measured with these numbers. total: among how many
    rows.
    """

    num_candidates_10: int
    num_candidates_100: int
    num_rescored_10: int
    num_rescored_100: int
    nprobe: int
    recall: float
    total: int

    @classmethod
    def cautious(cls) -> RecallCalibration:
        """Before anything was measured."""
        return cls(
            num_candidates_10=512,
            num_candidates_100=2048,
            num_rescored_10=512,
            num_rescored_100=2048,
            nprobe=1,
            recall=0.0,
            total=0,
        )

    def num_candidates_for(self, k: int, total: int) -> int:
        """How many candidates the coarse scan must give for the k best of now `total` rows."""
        return _between(k, self.num_candidates_10, self.num_candidates_100, self._growth(total))

    def num_rescored_for(self, k: int, total: int) -> int:
        """How many candidates are scored by their descriptors for the k best of now `total` rows."""
        return _between(k, self.num_rescored_10, self.num_rescored_100, self._growth(total))

    def _growth(self, total: int) -> float:
        """How many times more candidates a gallery that has grown needs.

        With Gaussian scores and codes as good as these they grow as the cube root of the gallery or less: the nearest
        of more rows are nearer, too. The square root is on the safe side.
        """
        return math.sqrt(total / self.total) if total > self.total > 0 else 1.0

    def scaled(self, depth: float) -> RecallCalibration:
        """The same with so many times the candidates: less or more recall than was asked for, and another time."""
        counts = {
            name: max(int(np.ceil(depth * value)), 1)
            for name, value in to_mapping(self).items()
            if name.startswith("num_")
        }
        return dataclasses.replace(self, **counts)

    def to_values(self) -> dict[str, Any]:
        return to_mapping(self)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> RecallCalibration:
        return from_mapping(cls, values)


def _between(k: int, at_10: int, at_100: int, growth: float) -> int:
    """Interpolate between the two measured numbers, in proportion to k beyond 100; times the growth."""
    if k <= 100:
        count = at_10 + max(k - 10, 0) / 90 * (at_100 - at_10)
    else:
        count = at_100 * k / 100
    return max(math.ceil(count * growth), k)


@dataclass(frozen=True)
class CalibrationSet:
    """Rows that stand for queries, and the exact neighbours of each: Q, Q D, Q K."""

    rows: Int64s
    queries: Float32s
    neighbours: Int64s

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def draw(cls, store: DescriptorStore, seed: int) -> CalibrationSet:
        rows = sample_rows(len(store), _QUERIES, seed + 7)
        queries = store.take(rows).astype(np.float32)
        return cls(rows, queries, exact_neighbours(queries, rows, store, max(min(100, len(store) - 1), 0)))


def calibrate(
    search_candidates: CandidateSearch,
    calibration_set: CalibrationSet,
    total: int,
    *,
    nprobe: tuple[int, ...] = (1,),
    coarse_shares: tuple[float, ...] = COARSE_SHARES,
    target: float,
    cost: Callable[[RecallCalibration], float] = lambda _: 0.0,
) -> RecallCalibration:
    """The fewest candidates that give the target recall@10, and 2.7 times its misses @100, at the cheapest nprobe.

    nprobe: numbers of lists to try, ascending; the last should be all. coarse_shares: of the allowed misses, so many
    by the candidates; 1 where all candidates are scored exactly.
    """
    last = dataclasses.replace(RecallCalibration.cautious(), nprobe=nprobe[-1])
    if len(calibration_set) < 2:
        return last
    met = []
    for count in nprobe:
        rows, scores = search_candidates(calibration_set.queries, min(_MOST_CANDIDATES, total), count)
        last = dataclasses.replace(
            _measure(rows, scores, calibration_set, target, coarse_shares), nprobe=count, total=total
        )
        if last.num_candidates_100 < _MOST_CANDIDATES and last.recall >= target:
            met.append(last)
        if len(met) > 1 and cost(met[-1]) > cost(met[-2]):
            break  # from here on it only gets dearer
    return min(met, key=cost) if met else last


def allowed_misses(target: float) -> dict[int, float]:
    """The share of the true neighbours that may be missed for a target recall@10: of the first 10, and of 100."""
    return {10: 1 - target, 100: _FAR_MISSES * (1 - target)}


def exact_neighbours(queries: Float32s, own: Int64s, store: DescriptorStore, k: int) -> Int64s:
    """The k nearest rows of each query, its own row left out: Q k, best first."""
    scores, rows = scan_blocks(queries, store.blocks(BLOCK_ROWS // 4), k + 1, None)
    scores = np.where(rows == own[:, None], -np.inf, scores)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(rows, order, axis=1)


def _measure(
    rows: Int64s, scores: Float32s, calibration_set: CalibrationSet, target: float, coarse_shares: tuple[float, ...]
) -> RecallCalibration:
    found: dict[int, tuple[int, int]] = {}
    coarse_ranks = _ranks(rows, calibration_set, calibration_set.neighbours.shape[1])
    least = 1  # who asks for more neighbours must not find fewer of the first ten
    for k, misses in allowed_misses(target).items():
        options = []
        for share in coarse_shares:
            candidates = max(count_reaching(coarse_ranks[:, :k], 1 - share * misses), least)
            among = candidates + 1  # the query's own row is there, too
            ranks = _rescored_ranks(rows[:, :among], scores[:, :among], calibration_set, k)
            rescored = count_reaching(ranks, 1 - misses)
            cost = candidates * RESCORE_NS + rescored * EXACT_NS
            options.append((cost, candidates, rescored, float((ranks < rescored).mean())))
        _, *counts, reached = min(options)
        least, rescored = counts
        found[k] = least, rescored
        if k == 10:
            recall = reached
    (candidates_10, rescored_10), (candidates_100, rescored_100) = (
        tuple(map(_with_slack, counts)) for counts in found.values()
    )
    return RecallCalibration(
        num_candidates_10=max(candidates_10, _FEWEST_CANDIDATES),
        num_candidates_100=max(candidates_10, candidates_100, 2 * _FEWEST_CANDIDATES),
        num_rescored_10=max(rescored_10, _FEWEST_CANDIDATES // 2),
        num_rescored_100=max(rescored_10, rescored_100, 2 * _FEWEST_CANDIDATES),
        nprobe=1,
        recall=recall,
        total=0,
    )


def _rescored_ranks(rows: Int64s, scores: Float32s, calibration_set: CalibrationSet, k: int) -> Int64s:
    """The ranks of the k true neighbours among these candidates in the order of the rescored scores: Q k."""
    order = np.argsort(-scores, axis=1, kind="stable")
    return _ranks(np.take_along_axis(rows, order, axis=1), calibration_set, k)


def _with_slack(count: int) -> int:
    return min(int(np.ceil(count * _SLACK)) + 1, _MOST_CANDIDATES)


def _ranks(ranked: Int64s, calibration_set: CalibrationSet, k: int) -> Int64s:
    """The rank of each query's k true neighbours in its ranked rows, Q k; past the end where they are missing."""
    found = []
    for rows, own, neighbours in zip(ranked, calibration_set.rows, calibration_set.neighbours[:, :k], strict=True):
        others = rows[rows != own]
        order = np.argsort(others)
        at = np.minimum(np.searchsorted(others, neighbours, sorter=order), len(others) - 1)
        found.append(np.where(others[order[at]] == neighbours, order[at], _MOST_CANDIDATES))
    return np.stack(found)


def count_reaching(ranks: Int64s, recall: float) -> int:
    """How many of the first ranked hold this share of the true neighbours; no more than a search would take."""
    return min(_rank_reaching(ranks, recall) + 1, _MOST_CANDIDATES)


def _rank_reaching(ranks: Int64s, recall: float) -> int:
    ordered = np.sort(ranks.reshape(-1))
    return int(ordered[min(int(np.ceil(recall * len(ordered))) - 1, len(ordered) - 1)])


def estimate_num_candidates(
    scores: Float32s, neighbours: list[Float32s], total: int, kept: dict[int, float]
) -> list[int]:
    """How many candidates a coarse scan of `total` rows must give for each k, from the scores of a sample alone.

    scores: Q N, of the sample. neighbours: of each query, the scores of its true neighbours, nearest first.
    kept: for each k, the recall@k that is needed. A neighbour's rank is the share of the sample that scores higher,
    times the total.
    """
    ranks = [
        (scores.shape[1] - np.searchsorted(np.sort(mine), theirs, side="right")) * total // scores.shape[1]
        for mine, theirs in zip(scores, neighbours, strict=True)
    ]
    return [_rank_reaching(np.concatenate([theirs[:k] for theirs in ranks]), share) + 1 for k, share in kept.items()]
