"""Competitors of `tessera bench search --curve` in one process, in turn, up to the recall that is asked for.

    python scripts/time_in_turn.py WORK -o in-turn.csv --only fast --only "faiss OPQ128 fast-scan refined"

WORK: a folder in which `tessera bench search --curve --keep` has built them. Each takes its settings in ascending order
until the target is reached; then all settings take turns, and of each query the least processor time of all rounds
counts. On a busy machine this is fairer than a process for each: they meet the same load. --summary FILE adds a row a
competitor to a file: milliseconds at the targets, and the most recall@100 that its settings reach.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from tessera.bench.competitors import Competitor, Point
from tessera.bench.contest import TARGETS, time_at
from tessera.bench.peers import make_competitor
from tessera.bench.worker import recall, saved_path

COLUMNS = ("competitor", "settings", "k", "recall", "cpu_ms", "build_cpu_s")
SUMMARY = ("descriptors", "competitor", "ms_at_10", "ms_at_100", "most_at_100", "build_cpu_s")


def settings_up_to(competitor: Competitor, k: int, queries: Any, truth: Any) -> list[tuple[Point, float]]:
    """Settings and their recall@k, the first that reaches the target being the last."""
    found: list[tuple[Point, float]] = []
    for point in competitor.points():
        competitor.use(point)
        found.append((point, recall(competitor.search(queries, k), truth, k)))
        if found[-1][1] >= TARGETS[k]:
            break
    return found


def summarise(descriptors: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row a competitor, the quickest at recall@10 first; empty where a target is not reached."""
    found = []
    for name in dict.fromkeys(row["competitor"] for row in rows):
        mine = [row for row in rows if row["competitor"] == name]
        times = {f"ms_at_{k}": time_at(mine, k, target) for k, target in TARGETS.items()}
        shown = {key: "" if value is None else f"{value:.3g}" for key, value in times.items()}
        most = max(row["recall"] for row in mine if row["k"] == max(TARGETS))
        found.append({"descriptors": descriptors, "competitor": name, **shown, "most_at_100": f"{most:.3f}"})
        found[-1]["build_cpu_s"] = mine[0]["build_cpu_s"]
    return sorted(found, key=lambda row: float(row["ms_at_10"] or "inf"))


def add_rows(path: Path, columns: tuple[str, ...], rows: list[dict[str, Any]]) -> None:
    there = path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        if not there:
            writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", action="append", required=True)
    parser.add_argument("--timed", type=int, default=16, help="how many of the queries are timed; recall takes all")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--summary", type=Path)
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    queries, truth = np.load(options.work / "queries.npy"), np.load(options.work / "truth.npy")
    ways: list[tuple[str, Competitor, int, Point, float]] = []
    builds = {}
    for name in options.only:
        competitor = make_competitor(name)
        path = saved_path(options.work, name)
        competitor.load(path)
        competitor.set_threads(1)
        builds[name] = json.loads(path.with_suffix(".json").read_text())["build_cpu_s"]
        for k in TARGETS:
            ways += [(name, competitor, k, *found) for found in settings_up_to(competitor, k, queries, truth)]
    least = np.full((len(ways), options.timed), np.inf)
    for _ in range(options.rounds):
        for w, (_, competitor, k, point, _) in enumerate(ways):
            competitor.use(point)
            for q, query in enumerate(queries[: options.timed]):
                began = time.process_time()
                competitor.search(query[None], k)
                least[w, q] = min(least[w, q], time.process_time() - began)
    rows = []
    for (name, _, k, point, reached), times in zip(ways, 1e3 * np.median(least, axis=1), strict=True):
        rows.append({"competitor": name, "settings": json.dumps(point), "k": k, "recall": round(reached, 4)})
        rows[-1] |= {"cpu_ms": round(float(times), 4), "build_cpu_s": round(builds[name], 1)}
    options.output.unlink(missing_ok=True)
    add_rows(options.output, COLUMNS, rows)
    summary = summarise(options.output.stem, rows)
    if options.summary:
        add_rows(options.summary, SUMMARY, summary)
    for row in summary:
        print(row)


if __name__ == "__main__":
    main()
