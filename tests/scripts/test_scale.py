"""Arithmetic and simulation of sharded search: against a slow second writing, and against what must hold."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
Load = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def shards(load_module: Load) -> ModuleType:
    return load_module("scripts/scale/simulate_shards.py")


@pytest.fixture(scope="module")
def arithmetic(load_module: Load) -> ModuleType:
    return load_module("scripts/scale/arithmetic.py")


def test_merged_shards_answer_as_one_index(shards: ModuleType) -> None:
    generator = np.random.default_rng(0)
    scores = np.round(generator.normal(size=500), 1)  # with ties
    home = generator.integers(0, 7, 500)
    answers = []
    for shard in range(7):
        ids = np.flatnonzero(home == shard)
        best = ids[np.lexsort((ids, -scores[ids]))[:10]]
        answers.append((scores[best], best))
    merged = shards.merge_top_k([a for a, _ in answers], [b for _, b in answers], 10)
    expected = sorted(range(500), key=lambda i: (-scores[i], i))[:10]
    assert merged[1].tolist() == expected
    assert merged[0].tolist() == scores[expected].tolist()


def test_times_have_the_spread_they_are_fitted_to(monkeypatch: pytest.MonkeyPatch, shards: ModuleType) -> None:
    monkeypatch.setattr(shards, "STRAGGLERS", 0.0)
    times = shards.draw_times(np.random.default_rng(1), (400_000,))
    assert np.quantile(times, 0.5) == pytest.approx(shards.MEDIAN_MS, rel=0.01)
    assert np.quantile(times, 0.99) / np.quantile(times, 0.5) == pytest.approx(shards.P99_OVER_P50, rel=0.01)
    # The slowest of 64 is below t with the chance that one is, to the 64th power.
    waited = shards.simulate(64, "wait", queries=20_000)
    assert waited.p50_ms == pytest.approx(np.quantile(times, 0.5 ** (1 / 64)), rel=0.02)


def test_recall_is_the_chance_that_a_neighbour_is_sent(monkeypatch: pytest.MonkeyPatch, shards: ModuleType) -> None:
    monkeypatch.setattr(shards, "SHARD_RECALL", 1.0)
    assert shards.simulate(16, "wait", queries=2000).recall == 1.0
    # Of two shards that send one each of the best two, one is lost where both lie in the same: half of the times.
    assert shards.simulate(2, "wait", k=2, answered=1, queries=40_000).recall == pytest.approx(0.75, abs=0.01)
    late = shards.simulate(16, "deadline", queries=4000)
    assert late.recall == pytest.approx(1 - shards.STRAGGLERS, abs=0.004)
    hedged, waited = (shards.simulate(256, way, queries=4000) for way in ("hedge", "wait"))
    assert hedged.p99_ms < waited.p99_ms
    assert hedged.extra_requests == pytest.approx(0.05, abs=0.005)


def test_the_arithmetic_is_that_of_the_figures(arithmetic: ModuleType) -> None:
    cost = {"descriptor_ms": 36.0, "local_features_ms": 36.0, "descriptor_bytes": 1000.0}
    cost |= {"local_features_bytes": 9000.0, "lists_bytes": 10000.0}
    row = arithmetic.estimate(100_000_000, local=True, cost=cost)
    assert row["core_hours"] == 2000
    assert row["extraction_usd"] == round(2000 / 8 * 0.68)
    assert row["stored_tb"] == 1.0
    assert row["fast_machines"] == 2  # 0.3 s of one core, in 50 ms by six cores, four a machine
    assert row["codes_machines"] == 1  # 14 GB
    assert row["query_core_ms"] == 300 + 904
    assert row["million_queries_usd"] == round(1204 / 3.6 / 4 * 0.624)
    with (ROOT / "results" / "scale" / "sizes.csv").open(newline="") as file:
        stored = list(csv.DictReader(file))
    assert stored == [{key: str(value) for key, value in row.items()} for row in arithmetic.rows()]
