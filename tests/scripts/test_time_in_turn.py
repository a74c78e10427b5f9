"""Competitors timed in turn: their summary says what they reach, and a file of summaries grows."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "scripts"


def test_the_summary_says_when_a_target_is_not_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import time_in_turn

    measured = [("slow", 10, 0.97, 2.0), ("slow", 10, 0.99, 8.0), ("slow", 100, 0.7, 2.0), ("slow", 100, 0.9, 8.0)]
    measured += [("quick", 10, 0.99, 1.0), ("quick", 100, 0.96, 3.0)]
    rows = [{"competitor": c, "k": k, "recall": r, "cpu_ms": ms, "build_cpu_s": 1.5} for c, k, r, ms in measured]
    path = tmp_path / "summary.csv"
    for name in ("a million", "more"):
        time_in_turn.add_rows(path, time_in_turn.SUMMARY, time_in_turn.summarise(name, rows))
    with path.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [(row["descriptors"], row["competitor"]) for row in found] == [
        ("a million", "quick"), ("a million", "slow"), ("more", "quick"), ("more", "slow"),
    ]  # fmt: skip
    assert [found[0][key] for key in time_in_turn.SUMMARY[2:]] == ["1", "3", "0.960", "1.5"]
    assert found[1]["ms_at_10"] == "4"  # half the way, by the logarithm
    assert (found[1]["ms_at_100"], found[1]["most_at_100"]) == ("", "0.900")
