"""How deep a coded search must look again to reach a recall, measured on the gallery itself.

Some gallery descriptors are taken as queries (their own rows left out), their exact neighbours found by going through
everything once, and the places that the codes give to those neighbours say how deep one must go. Queries of users are
never seen here.
"""

from __future__ import annotations

import dataclasses
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
_DEEPEST = 8192
_SLACK = 1.1  # two hundred queries are a sample: look a little deeper
_LEAST_DEPTH = 64
_FAR_MISSES = 2.7  # of a hundred neighbours so many times more may be missed: the last of them are nearly ties
_FIRST_SHARES = (0.6, 0.8, 0.9, 0.95)  # of what may be missed, so much by the first look and lists not looked into
# Measured on one core: keeping one row more for the second look, and reading one descriptor more.
ROW_NS, EXACT_NS = 300.0, 1400.0

# queries Q D, depth, probes -> rows Q depth, best first, and the scores of the second look
Rough = Callable[[Float32s, int, int], tuple[Int64s, Float32s]]


@dataclass(frozen=True)
class Calibration:
    """For k = 10 and k = 100: how many rows the first look keeps, and how many of them the second passes on.

    probes: the number of lists to look into; recall: the recall@10 that was measured so; total: among how many rows.
    """

    depth_10: int
    depth_100: int
    exact_10: int
    exact_100: int
    probes: int
    recall: float
    total: int

    @classmethod
    def cautious(cls) -> Calibration:
        """Before anything was measured."""
        return cls(depth_10=512, depth_100=2048, exact_10=512, exact_100=2048, probes=1, recall=0.0, total=0)

    def depth_for(self, k: int, total: int) -> int:
        """How many of now `total` rows the second look is given for the k best."""
        return _between(k, self.depth_10, self.depth_100, self._growth(total))

    def exact_for(self, k: int, total: int) -> int:
        """How many of now `total` rows are scored by their descriptors for the k best."""
        return _between(k, self.exact_10, self.exact_100, self._growth(total))

    def _growth(self, total: int) -> float:
        """How much deeper to look in a gallery that has grown: more strangers come between a query and its neighbours.

        With Gaussian scores and codes as good as these, the depth grows as the cube root of the gallery or less: the
        nearest of more rows are nearer, too. The square root is on the safe side.
        """
        return float(np.sqrt(max(total, 1) / max(self.total, 1))) if total > self.total > 0 else 1.0

    def to_values(self) -> dict[str, Any]:
        return to_mapping(self)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Calibration:
        return from_mapping(cls, values)


def _between(k: int, at_10: int, at_100: int, growth: float) -> int:
    """Between the two measured depths, and in proportion beyond; times the growth."""
    if k <= 100:
        depth = at_10 + max(k - 10, 0) / 90 * (at_100 - at_10)
    else:
        depth = at_100 * k / 100
    return max(int(np.ceil(depth * growth)), k)


@dataclass(frozen=True)
class Probe:
    """Rows that stand for queries, and the exact neighbours of each: Q, Q D, Q K."""

    own: Int64s
    queries: Float32s
    truth: Int64s

    @classmethod
    def draw(cls, store: DescriptorStore, seed: int) -> Probe:
        own = sample_rows(len(store), _QUERIES, seed + 7)
        queries = store.take(own).astype(np.float32)
        return cls(own, queries, exact_neighbours(queries, own, store, max(min(100, len(store) - 1), 0)))


def calibrate(
    rough: Rough,
    probe: Probe,
    total: int,
    *,
    probes: tuple[int, ...],
    target: float,
    cost: Callable[[Calibration], float] = lambda _: 0.0,
) -> Calibration:
    """The least depths that give the target recall@10, and @100 2.7 times its misses; with the probes that cost least.

    probes: numbers of lists to try; the last should be all.
    """
    last = dataclasses.replace(Calibration.cautious(), probes=probes[-1])
    if len(probe.own) < 2:
        return last
    met = []
    for count in probes:
        rows, scores = rough(probe.queries, min(_DEEPEST, total), count)
        last = dataclasses.replace(_measure(rows, scores, probe, target), probes=count, total=total)
        if last.depth_100 < _DEEPEST and last.recall >= target:
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


def _measure(rows: Int64s, scores: Float32s, probe: Probe, target: float) -> Calibration:
    found: dict[int, tuple[int, int]] = {}
    first = np.stack([_places(*given) for given in zip(rows, probe.own, probe.truth, strict=True)])
    least = 1  # who asks for more neighbours must not find fewer of the first ten
    for k, misses in allowed_misses(target).items():
        options = []
        for share in _FIRST_SHARES:
            depth = max(depth_of(first[:, :k], 1 - share * misses), least)
            again = _places_again(rows[:, :depth], scores[:, :depth], probe, k)
            exact = depth_of(again, 1 - misses)
            options.append((depth * ROW_NS + exact * EXACT_NS, depth, exact, float((again < exact).mean())))
        _, *depths, reached = min(options)
        least, exact = depths
        found[k] = least, exact
        if k == 10:
            recall = reached
    (depth_10, exact_10), (depth_100, exact_100) = (tuple(map(_with_slack, depths)) for depths in found.values())
    return Calibration(
        depth_10=max(depth_10, _LEAST_DEPTH),
        depth_100=max(depth_10, depth_100, 2 * _LEAST_DEPTH),
        exact_10=max(exact_10, _LEAST_DEPTH // 2),
        exact_100=max(exact_10, exact_100, 2 * _LEAST_DEPTH),
        probes=1,
        recall=recall,
        total=0,
    )


def _places_again(rows: Int64s, scores: Float32s, probe: Probe, k: int) -> Int64s:
    """Where the second look puts the k true neighbours among the rows that the first one kept: Q k."""
    order = np.argsort(-scores, axis=1, kind="stable")
    listed = np.take_along_axis(rows, order, axis=1)
    return np.stack([_places(*given) for given in zip(listed, probe.own, probe.truth[:, :k], strict=True)])


def _with_slack(depth: int) -> int:
    return min(int(np.ceil(depth * _SLACK)) + 1, _DEEPEST)


def _places(listed: Int64s, own: int, truth: Int64s) -> Int64s:
    """Where a list of rows has each true neighbour; past the end if nowhere."""
    others = listed[listed != own]
    order = np.argsort(others)
    at = np.minimum(np.searchsorted(others, truth, sorter=order), len(others) - 1)
    return np.where(others[order[at]] == truth, order[at], _DEEPEST)


def depth_of(places: Int64s, target: float) -> int:
    """The least depth at which this share of the true neighbours has been met."""
    ordered = np.sort(places.reshape(-1))
    return int(min(ordered[min(int(np.ceil(target * len(ordered))) - 1, len(ordered) - 1)] + 1, _DEEPEST))


def expected_depth(scores: Float32s, neighbours: list[Float32s], total: int, kept: dict[int, float]) -> int:
    """How deep a first look must go among `total` rows, from the scores of a sample of them alone.

    scores: Q N, of the sample. neighbours: of each query, the scores of its true neighbours, nearest first; kept: for
    each k, the share of the first k that must be found. A neighbour's place is the share of the sample that scores
    higher, times the total.
    """
    places = [
        (scores.shape[1] - np.searchsorted(np.sort(mine), theirs, side="right")) * total // scores.shape[1]
        for mine, theirs in zip(scores, neighbours, strict=True)
    ]
    return max(depth_of(np.concatenate([theirs[:k] for theirs in places]), share) for k, share in kept.items())
