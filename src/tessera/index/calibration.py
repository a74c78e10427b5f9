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
from tessera.index.codec import Float32s, Int64s
from tessera.index.sampling import sample_rows
from tessera.index.scan import scan_blocks
from tessera.index.store import BLOCK_ROWS, DescriptorStore

_QUERIES = 100
_DEEPEST = 8192
_SLACK = 1.25  # queries from outside have fewer near neighbours than gallery rows have: look a little deeper
_LEAST_DEPTH = 64
_FAR_MISSES = 3  # of a hundred neighbours so many times more may be missed: the last of them are nearly ties

Rough = Callable[[Float32s, int, int], Int64s]  # queries Q D, depth, probes -> rows Q depth, best first


@dataclass(frozen=True)
class Calibration:
    """Depths for k = 10 and k = 100, the number of lists to look into, and the recall@10 that was measured so."""

    depth_10: int
    depth_100: int
    probes: int
    recall: float

    @classmethod
    def cautious(cls) -> Calibration:
        """Before anything was measured."""
        return cls(depth_10=512, depth_100=2048, probes=1, recall=0.0)

    def depth_for(self, k: int) -> int:
        """How many rows to score again for the k best: between the two measured depths, and in proportion beyond."""
        if k <= 10:
            return max(self.depth_10, k)
        if k <= 100:
            share = (k - 10) / 90
            return max(int(np.ceil(self.depth_10 + share * (self.depth_100 - self.depth_10))), k)
        return int(np.ceil(self.depth_100 * k / 100))

    def to_values(self) -> dict[str, Any]:
        return to_mapping(self)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> Calibration:
        return from_mapping(cls, values)


def calibrate(
    rough: Rough, store: DescriptorStore, *, probes: tuple[int, ...], seed: int, target: float
) -> Calibration:
    """Find the least depths, with the fewest probes, that give the target recall@10, and @100 thrice its misses."""
    chosen = sample_rows(len(store), _QUERIES, seed + 7)
    if len(chosen) < 2:
        return dataclasses.replace(Calibration.cautious(), probes=probes[-1])
    queries = store.take(chosen).astype(np.float32)
    truth = exact_neighbours(queries, chosen, store, min(100, len(store) - 1))
    best: Calibration | None = None
    for count in probes:
        found = _measure(rough(queries, min(_DEEPEST, len(store)), count), chosen, truth, target)
        best = dataclasses.replace(found, probes=count)
        if best.depth_100 < _DEEPEST and best.recall >= target:
            break
    assert best is not None
    return best


def exact_neighbours(queries: Float32s, own: Int64s, store: DescriptorStore, k: int) -> Int64s:
    """The k nearest rows of each query, its own row left out: Q k, best first."""
    scores, rows = scan_blocks(queries, store.blocks(BLOCK_ROWS // 4), k + 1, None)
    scores = np.where(rows == own[:, None], -np.inf, scores)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(rows, order, axis=1)


def _measure(rows: Int64s, own: Int64s, truth: Int64s, target: float) -> Calibration:
    places = np.empty(truth.shape, dtype=np.int64)  # where the codes put each true neighbour; past the end if nowhere
    for q in range(len(rows)):
        listed = rows[q][rows[q] != own[q]]
        order = np.argsort(listed)
        at = np.minimum(np.searchsorted(listed, truth[q], sorter=order), len(listed) - 1)
        hit = listed[order[at]] == truth[q]
        places[q] = np.where(hit, order[at], _DEEPEST)
    far_target = 1 - _FAR_MISSES * (1 - target)
    depths = [_depth_of(places[:, :10], target), _depth_of(places, far_target)]
    recall = float((places[:, :10] < max(depths)).mean())
    slack = [min(int(np.ceil(depth * _SLACK)) + 1, _DEEPEST) for depth in depths]
    return Calibration(max(slack[0], _LEAST_DEPTH), max(*slack, 2 * _LEAST_DEPTH), 1, recall)


def _depth_of(places: Int64s, target: float) -> int:
    """The least depth at which this share of the true neighbours has been met."""
    ordered = np.sort(places.reshape(-1))
    return int(min(ordered[min(int(np.ceil(target * len(ordered))) - 1, len(ordered) - 1)] + 1, _DEEPEST))
