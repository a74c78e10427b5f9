"""One competitor of `bench search` in its own process: its memory is its own, its threads are set from outside.

Run by `tessera.bench.search`, first to build, then to answer in batches on all cores and one by one on one, and by
`tessera.bench.contest` over all its settings:  python -m tessera.bench.worker FOLDER NAME build|batch|answer|curve
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessera.bench.competitors import Competitor, disk_bytes
from tessera.bench.peers import make_competitor

K = 100
BATCH = 64
_LONGEST_S = 20.0
_ADDED = 1000
_PASSES = 3
_REFINED = 5  # queries
_LONGEST_CURVE_S, _FEWEST_TIMED, _MOST_PASSES = 0.3, 32, 10

Float32s = npt.NDArray[np.float32]


def resident_bytes() -> int:
    """Memory of this process that is not pages of files."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def clock(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def saved_path(folder: Path, name: str) -> Path:
    return folder / f"saved-{name.replace(' ', '-')}"


def build(folder: Path, name: str, setting: dict[str, Any]) -> dict[str, Any]:
    """Build and save."""
    competitor = make_competitor(name)
    count = setting["graph_count"] if competitor.graph else setting["count"]
    descriptors = np.memmap(folder / "gallery.f16", np.float16, "r", shape=(setting["count"], setting["dim"]))[:count]
    saved = saved_path(folder, name)
    used = time.process_time()
    result: dict[str, Any] = {"count": count, "build_s": clock(lambda: competitor.build(descriptors))}
    result["build_cpu_s"] = time.process_time() - used
    result["save_s"] = clock(lambda: competitor.save(saved))
    result["build_peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result["disk_bytes"] = disk_bytes(saved) / count
    result["code_bytes"] = competitor.code_bytes(saved) / count
    return result | {"settings": competitor.settings()}


def batch(folder: Path, name: str, setting: dict[str, Any]) -> dict[str, Any]:
    """Open what was saved, answer in batches on all cores, add a thousand and one, delete one."""
    competitor = make_competitor(name)
    competitor.load(saved_path(folder, name))
    competitor.set_threads(setting["threads"])
    queries: Float32s = np.resize(np.load(folder / "queries.npy"), (BATCH, setting["dim"]))
    competitor.search(queries[:8], K)
    result: dict[str, Any] = {
        "batch_qps": BATCH / min(clock(lambda: competitor.search(queries, K)) for _ in range(_PASSES))
    }
    extra: Float32s = np.load(folder / "extra.npy")
    names = np.arange(_ADDED) + setting["count"]
    count = setting["graph_count"] if competitor.graph else setting["count"]
    result["add_1000_ms"] = _ms_of(lambda: competitor.add(names, extra[:_ADDED]))
    result["add_one_ms"] = _ms_of(lambda: competitor.add(names[-1:] + 1, extra[-1:]))
    result["delete_one_ms"] = _ms_of(lambda: competitor.delete(int(count // 2)))
    return result


def _ms_of(change: Callable[[], bool]) -> float | None:
    """How long a change takes; None where it is not offered."""
    start = time.perf_counter()
    done = change()
    return 1e3 * (time.perf_counter() - start) if done else None


def answer(folder: Path, name: str, setting: dict[str, Any]) -> dict[str, Any]:
    """Open what was saved and answer one query at a time on one thread."""
    competitor = make_competitor(name)
    queries: Float32s = np.load(folder / "queries.npy")
    truth = np.load(folder / ("truth-graph.npy" if competitor.graph else "truth.npy"))
    import faiss

    faiss.omp_set_num_threads(1)
    before = resident_bytes()
    result: dict[str, Any] = {"load_s": clock(lambda: competitor.load(saved_path(folder, name)))}
    competitor.set_threads(1)
    result["first_answer_s"] = result["load_s"] + clock(lambda: competitor.search(queries[:1], K))
    count = setting["graph_count"] if competitor.graph else setting["count"]
    result["memory_bytes"] = (resident_bytes() - before) / count
    wall, cpu, found = [], [], []
    started = time.perf_counter()
    # Queries are asked several times over, so that a fast competitor is timed on as many as it can answer meanwhile.
    for i in range(_PASSES * len(queries)):
        query = queries[i % len(queries)][None]
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        rows = competitor.search(query, K)
        wall.append(time.perf_counter() - wall_start)
        cpu.append(time.process_time() - cpu_start)
        if i < len(queries):
            found.append(rows[0])
        if i >= 4 and time.perf_counter() - started > _LONGEST_S:
            break
    missing = len(queries) - len(found)
    if missing:  # the slow ones answer the rest in batches: their recall needs every query, their time does not
        found.extend(competitor.search(queries[len(found) :], K))
    result |= {"median_ms": 1e3 * float(np.median(wall)), "p95_ms": 1e3 * float(np.quantile(wall, 0.95))}
    result |= {"cpu_ms": 1e3 * float(np.median(cpu)), "timed": len(wall)}
    result["refined_ms"] = {
        name: 1e3 * float(np.median([clock(lambda q=query, s=search: s(q[None], K)) for query in queries[:_REFINED]]))  # type: ignore[misc]
        for name, search in competitor.refinements().items()
    }
    result["recall"] = {str(k): recall(np.stack(found), truth, k) for k in (1, 10, 100)}
    return result


def curve(folder: Path, name: str, setting: dict[str, Any]) -> dict[str, Any]:
    """Time and recall at each setting of the search, for the best 10 and the best 100; on one thread."""
    competitor = make_competitor(name)
    queries: Float32s = np.load(folder / "queries.npy")
    truth = np.load(folder / ("truth-graph.npy" if competitor.graph else "truth.npy"))
    import faiss

    faiss.omp_set_num_threads(1)
    before = resident_bytes()
    competitor.load(saved_path(folder, name))
    competitor.set_threads(1)
    points = []
    for point in competitor.points():
        competitor.use(point)
        for k in (10, K):
            found = competitor.search(queries, k)  # and warms up what is timed next
            points.append(
                {"settings": point, "k": k, "recall": recall(found, truth, k), **_time(competitor, queries, k)}
            )
    count = setting["graph_count"] if competitor.graph else setting["count"]
    return {"points": points, "memory_bytes": (resident_bytes() - before) / count}


def _time(competitor: Competitor, queries: Float32s, k: int) -> dict[str, float]:
    """Median milliseconds of one query, by the wall's clock and the processor's.

    Each query is asked several times and the least counts: what another process took from the caches is not its own.
    """
    asked = queries[:_FEWEST_TIMED]
    times = np.full((2, len(asked)), np.inf)
    started = time.process_time()
    for done in range(_MOST_PASSES):
        for i, query in enumerate(asked):
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            competitor.search(query[None], k)
            taken = time.perf_counter() - wall_start, time.process_time() - cpu_start
            times[:, i] = np.minimum(times[:, i], taken)
        if done and time.process_time() - started > _LONGEST_CURVE_S:
            break
    wall, cpu = 1e3 * np.median(times, axis=1)
    return {"wall_ms": float(wall), "cpu_ms": float(cpu)}


def recall(found: npt.NDArray[np.int64], truth: npt.NDArray[np.int64], k: int) -> float:
    """The share of the k exact nearest that are among the k found."""
    return float(np.mean([np.isin(true[:k], rows[:k]).mean() for true, rows in zip(truth, found, strict=True)]))


PHASES = {"build": build, "batch": batch, "answer": answer, "curve": curve}


def main() -> None:
    folder, name, phase = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    setting = json.loads((folder / "setting.json").read_text())
    print(json.dumps(PHASES[phase](folder, name, setting)))


if __name__ == "__main__":
    main()
