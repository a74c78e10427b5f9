"""`fast` beside its coarse scan alone: no residual codes, the best rows of the scan are scored by their descriptors.

    python scripts/time_one_stage.py WORK -o one-stage.csv

WORK: a folder that `tessera bench search --curve` has left (gallery.f16, queries.npy, truth.npy, setting.json). One
thread; the settings take turns, each with all queries, and the least of the rounds counts.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np

from tessera.index.codecs.coarse_scan import CoarseScan
from tessera.index.codecs.codec import Float32s, Int64s
from tessera.index.codecs.fast import FastCodec
from tessera.index.codecs.recall_calibration import CalibrationSet
from tessera.index.descriptor_file import BLOCK_ROWS, DescriptorStore, best, score_rows

TARGET = FastCodec.target_recall
DEPTHS = (0.25, 0.5, 0.7, 1.0, 1.4)  # of the calibrated depths of `fast`
CANDIDATES = (100, 200, 400, 800, 1600, 3200)
SUBSPACES = (64, 96, 128)
K = 100
Answer = Callable[[Float32s], Int64s]


def answers_of_fast(codec: FastCodec, store: DescriptorStore) -> dict[str, Answer]:
    def at(depth: float) -> Answer:
        scaled = FastCodec(codec._coarse, codec._residual, codec._calibration.scaled(depth))

        def answer(query: Float32s) -> Int64s:
            scores, rows = scaled.search(query[None], K, None, store)
            return best(scores[0], rows[0], K)[1]

        return answer

    return {f"depth {depth}": at(depth) for depth in DEPTHS}


def answers_of_scan(coarse: CoarseScan, store: DescriptorStore) -> dict[str, Answer]:
    """Exactly the best by code, and all above an estimated threshold, whichever is quicker."""

    def at(count: int) -> Answer:
        def answer(query: Float32s) -> Int64s:
            rows = np.sort(coarse.scan_above_threshold(coarse.projection.apply_query(query[None]), count)[0])
            return best(score_rows(query, rows, store), rows, K)[1]

        return answer

    return {f"{count} candidates": at(count) for count in CANDIDATES}


def fit_scan(store: DescriptorStore, subspaces: int) -> CoarseScan:
    coarse, _ = CoarseScan.fit(
        store,
        CalibrationSet.draw(store, 0),
        coordinates=4 * subspaces,
        ladder=(subspaces,),
        seed=0,
        target_recall=TARGET,
    )
    for _, block in store.blocks(BLOCK_ROWS):
        coarse.append(coarse.projection.apply(block))
    return coarse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    faiss.omp_set_num_threads(1)
    setting = json.loads((options.work / "setting.json").read_text())
    gallery = np.memmap(options.work / "gallery.f16", np.float16, "r", shape=(setting["count"], setting["dim"]))
    store = DescriptorStore.of(gallery)
    queries, truth = np.load(options.work / "queries.npy"), np.load(options.work / "truth.npy")
    ways: dict[tuple[str, str, int, float], Answer] = {}
    began = time.process_time()
    codec = FastCodec.fit(store, seed=0, target_recall=TARGET)
    build = time.process_time() - began
    ways |= {("fast", k, 128, build): a for k, a in answers_of_fast(codec, store).items()}
    print(f"fast: {build:.0f} s", flush=True)
    for subspaces in SUBSPACES:
        began = time.process_time()
        coarse = fit_scan(store, subspaces)
        build, name = time.process_time() - began, "coarse scan alone"
        ways |= {(name, k, subspaces // 2, build): a for k, a in answers_of_scan(coarse, store).items()}
        print(f"{subspaces // 2} bytes: {build:.0f} s", flush=True)
    times = np.zeros((options.rounds, len(ways)))
    found = np.zeros((len(ways), len(queries), K), np.int64)
    for turn in range(-1, options.rounds):  # the first touches the pages
        for w, answer in enumerate(ways.values()):
            for q, query in enumerate(queries):
                began = time.process_time()
                rows = answer(query)
                if turn >= 0:
                    times[turn, w] += time.process_time() - began
                found[w, q, : len(rows)] = rows[:K]
    with options.output.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["rows", "way", "code_bytes", "setting", "recall_10", "recall_100", "cpu_ms", "build_cpu_s"])
        for w, (name, setting_name, code_bytes, build) in enumerate(ways):
            recalls = [
                np.mean([len(np.intersect1d(found[w, q, :k], truth[q, :k])) / k for q in range(len(queries))])
                for k in (10, 100)
            ]
            taken = 1e3 * times[:, w].min() / len(queries)
            row = [
                len(store),
                name,
                code_bytes,
                setting_name,
                *(f"{r:.3f}" for r in recalls),
                f"{taken:.3f}",
                f"{build:.1f}",
            ]
            writer.writerow(row)
            print(row, flush=True)


if __name__ == "__main__":
    main()
