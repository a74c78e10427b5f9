"""Arithmetic and simulation of sharded search: against a slow second writing, and against what must hold."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / "scale" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


shards = load("simulate_shards")
arithmetic = load("arithmetic")


def test_merged_shards_answer_as_one_index() -> None:
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


def test_times_have_the_spread_they_are_fitted_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "STRAGGLERS", 0.0)
    times = shards.draw_times(np.random.default_rng(1), (400_000,))
    assert np.quantile(times, 0.5) == pytest.approx(shards.MEDIAN_MS, rel=0.01)
    assert np.quantile(times, 0.99) / np.quantile(times, 0.5) == pytest.approx(shards.P99_OVER_P50, rel=0.01)
    # The slowest of 64 is below t with the chance that one is, to the 64th power.
    waited = shards.simulate(64, "wait", queries=20_000)
    assert waited.p50_ms == pytest.approx(np.quantile(times, 0.5 ** (1 / 64)), rel=0.02)


def test_recall_is_the_chance_that_a_neighbour_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_RECALL", 1.0)
    assert shards.simulate(16, "wait", queries=2000).recall == 1.0
    # Of two shards that send one each of the best two, one is lost where both lie in the same: half of the times.
    assert shards.simulate(2, "wait", k=2, answered=1, queries=40_000).recall == pytest.approx(0.75, abs=0.01)
    late = shards.simulate(16, "deadline", queries=4000)
    assert late.recall == pytest.approx(1 - shards.STRAGGLERS, abs=0.004)
    hedged, waited = (shards.simulate(256, way, queries=4000) for way in ("hedge", "wait"))
    assert hedged.p99_ms < waited.p99_ms
    assert hedged.extra_requests == pytest.approx(0.05, abs=0.005)


def test_the_arithmetic_is_that_of_the_figures() -> None:
    cost = {"descriptor_ms": 36.0, "local_features_ms": 36.0, "descriptor_bytes": 1000.0}
    cost |= {"local_features_bytes": 9000.0, "lists_bytes": 10000.0}
    row = arithmetic.estimate(100_000_000, local=True, cost=cost)
    assert row["core_hours"] == 2000
    assert row["extraction_usd"] == round(2000 / 8 * 0.68)
    assert row["stored_tb"] == 1.0
    assert row["fast_machines"] == 3  # 0.498 s of one core, in 50 ms by ten cores, four a machine
    with (ROOT / "results" / "scale" / "sizes.csv").open(newline="") as file:
        stored = list(csv.DictReader(file))
    assert stored == [{key: str(value) for key, value in row.items()} for row in arithmetic.rows()]
