"""Sharded search on paper: what becomes of recall and of the slowest query as one index is cut into many.

    python scripts/scale/simulate_shards.py -o results/scale/shards.csv

A query goes to every shard; each answers with its best k', and the answers are merged. The time of a shard is drawn
from a log-normal with the spread that the service was measured to have under load (results/serve/load.csv: p99 / p50),
and one answer in a hundred is ten times slower, which is assumed: a collection of garbage, a disk, a neighbour. Three
ways to live with that:

- wait: the answer is as slow as the slowest shard;
- hedge: after the time that 95 in 100 answers keep, a replica is asked too, and the first of both counts;
- deadline: shards that have not answered by then are left out, and so are the neighbours that they hold.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

SHARDS = (1, 4, 16, 64, 256, 1024)
STRATEGIES = ("wait", "hedge", "deadline")
MEDIAN_MS, P99_OVER_P50 = 5.0, 1.94  # results/search/million.csv: `fast`; results/serve/load.csv
SHARD_RECALL = 0.997  # results/search/million.csv: `fast`, recall@10
STRAGGLERS, STRAGGLER_FACTOR = 0.01, 10.0  # assumed
_P99_DEVIATIONS = 2.3263  # of a standard normal
_BLOCK = 1000  # queries at once: a thousand shards of all would not fit


@dataclass(frozen=True)
class Outcome:
    """Of many queries. extra_requests: beyond one a shard, as a share."""

    p50_ms: float
    p99_ms: float
    recall: float
    extra_requests: float


def merge_top_k(scores: list[Floats], ids: list[npt.NDArray[np.int64]], k: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """The k best of what the shards answered, each best first; equal scores by id, as one index orders them."""
    all_scores, all_ids = np.concatenate(scores), np.concatenate(ids)
    best = np.lexsort((all_ids, -all_scores))[:k]
    return all_scores[best], all_ids[best]


def draw_times(generator: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Milliseconds of as many answers of a shard."""
    spread = np.log(P99_OVER_P50) / _P99_DEVIATIONS
    times: Floats = MEDIAN_MS * np.exp(spread * generator.standard_normal(shape))
    return np.where(generator.random(shape) < STRAGGLERS, STRAGGLER_FACTOR * times, times)


def simulate(
    shards: int, strategy: str, *, k: int = 10, answered: int = 10, queries: int = 20_000, seed: int = 0
) -> Outcome:
    """answered: how many results each shard sends."""
    generator = np.random.default_rng([seed, shards, STRATEGIES.index(strategy), answered])
    patience = float(np.quantile(draw_times(np.random.default_rng(seed), (200_000,)), 0.95))
    latencies, found, asked_again = [], 0, 0
    for start in range(0, queries, _BLOCK):
        count = min(_BLOCK, queries - start)
        times = draw_times(generator, (count, shards))
        in_time = np.ones(times.shape, bool)
        if strategy == "hedge":
            late = times > patience
            asked_again += int(late.sum())
            times = np.where(late, np.minimum(times, patience + draw_times(generator, times.shape)), times)
        elif strategy == "deadline":
            in_time = times <= 2 * patience
            times = np.minimum(times, 2 * patience)
        latencies.append(times.max(axis=1))
        found += _count_found(generator, in_time, k, answered)
    all_latencies = np.concatenate(latencies)
    return Outcome(
        float(np.quantile(all_latencies, 0.5)),
        float(np.quantile(all_latencies, 0.99)),
        found / (queries * k),
        asked_again / (queries * shards),
    )


def _count_found(generator: np.random.Generator, in_time: npt.NDArray[np.bool_], k: int, answered: int) -> int:
    """How many of the k nearest of each query are in the merged answer. Images lie in shards at random."""
    count, shards = in_time.shape
    home = generator.integers(0, shards, (count, k))  # of the nearest, best first
    before = np.array([(home[:, :rank] == home[:, rank : rank + 1]).sum(axis=1) for rank in range(k)]).T
    seen = generator.random((count, k)) < SHARD_RECALL
    return int((seen & (before < answered) & np.take_along_axis(in_time, home, axis=1)).sum())


def rows(queries: int) -> Iterator[list[str | int]]:
    for strategy in STRATEGIES:
        for shards in SHARDS:
            for answered in (10, 3) if strategy == "wait" and shards > 1 else (10,):
                made = simulate(shards, strategy, answered=answered, queries=queries)
                yield [
                    *(shards, strategy, answered),
                    *(f"{made.p50_ms:.1f}", f"{made.p99_ms:.1f}", f"{made.recall:.4f}", f"{made.extra_requests:.3f}"),
                ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--queries", type=int, default=20_000)
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with options.output.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["shards", "strategy", "results_a_shard", "p50_ms", "p99_ms", "recall_10", "extra_requests"])
        table.writerows(rows(options.queries))


if __name__ == "__main__":
    main()
