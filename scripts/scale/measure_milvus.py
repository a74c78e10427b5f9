"""What the Milvus engine costs and finds beside FAISS and beside bare pymilvus, all in one run on one real server.

    python scripts/scale/measure_milvus.py -n 50000 -o results/scale/milvus.csv

Descriptors are the benchmark's synthetic ones. `milvus-server` is found by TESSERA_MILVUS_SERVER or on the path.
"""

from __future__ import annotations

import argparse
import csv
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from milvus_server import MilvusServer, find_launcher

from tessera.bench.synthesis import Synthesis
from tessera.gallery.catalog.filters import parse_where
from tessera.gallery.engines.engine import Allowed
from tessera.gallery.gallery import Gallery
from tessera.gallery.ingest.importing import DescribedImage

DIM, K, QUERIES = 1024, 10, 100
# Half of the images meet each: of a field of its own, of a built-in field, of the JSON field, of a filter sent as ids.
FILTERS = {"label=tower": "text field", "year>=1960": "number field", "rare=yes": "JSON", "folder=even": "ids"}


def describe(count: int) -> Iterator[DescribedImage]:
    number = 0
    for block in Synthesis(count, DIM).blocks():
        for descriptor in block:
            metadata = {"label": ("tower", "castle")[number % 2], "year": str(1900 + number % 120)}
            metadata |= {f"key{i}": str(i) for i in range(6)}  # so that not every key has a field
            metadata |= {"rare": "yes"} if number % 2 else {}
            folder = ("even", "odd")[number // 2 % 2]
            yield DescribedImage(f"/photos/{folder}/{number}.jpg", descriptor, 640, 480, metadata)
            number += 1


def time_ms(queries: Any, ways: dict[str, Callable[[Any], Any]]) -> dict[str, float]:
    """The median of each way, query by query in turn, so that a busy machine is busy for all."""
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for query in queries:
        for name, way in ways.items():
            started = time.perf_counter()
            way(query[None])
            spent[name].append(1e3 * (time.perf_counter() - started))
    return {name: statistics.median(times) for name, times in spent.items()}


def recall(found: Any, truth: Any) -> float:
    return float(np.mean([len(set(a.tolist()) & set(b.tolist())) / K for a, b in zip(found, truth, strict=True)]))


def measure(gallery: Gallery, server: MilvusServer, queries: Any) -> Iterator[tuple[str, str, float]]:
    store = gallery._store
    gallery.migrate("faiss")
    with store.pin() as view:
        truth = view.index.search(queries, K)[1]
    for name, codec in (("FLAT", "flat"), ("HNSW", "fast"), ("IVF_FLAT", "ivf"), ("IVF_PQ", "pq8")):
        with store.catalog.write() as batch:
            batch.set("codec", codec)
        started = time.perf_counter()
        gallery.migrate(f"milvus:{server.uri}")
        yield name, "fill_and_build_s", time.perf_counter() - started
        with store.pin() as view:
            yield name, "recall_at_10", recall(view.index.search(queries, K)[1], truth)
            engine: Any = store.engine
            index = engine._pushed.index
            yield name, "effort", index.effort
            yield name, "candidates", index.candidates
            yield name, "measured_recall_at_10", index.recall
            limit = K + index.candidates  # the bare search gives as many, and leaves them as they are
            parameters = {"metric_type": "IP", "params": index.parameters_for(limit)}
            for one in FILTERS:  # the ids of a filter are found once a moment of the gallery: not what is timed
                gallery.search(queries[0], K, where=one)
            ways: dict[str, Callable[[Any], Any]] = {
                "bare_pymilvus_ms": partial(
                    _search_bare, engine._connection._client, engine._collection.name, parameters, limit
                ),
                "engine_ms": partial(view.index.search, k=K),
                "gallery_ms": partial(_search_gallery, gallery),
            }
            for one, kind in FILTERS.items():
                conditions = parse_where(one)
                allowed = Allowed(conditions, partial(view.snapshot.matching_ids, conditions))
                assert kind == "ids" or view.shown.can_filter(conditions)
                ways[f"half_by_{kind.replace(' ', '_')}_ms"] = partial(view.index.search, k=K, allowed=allowed)
            for _ in range(2):  # the first round warms
                times = time_ms(queries, ways)
            for way, milliseconds in times.items():
                yield name, way, milliseconds
            yield name, "engine_over_bare", times["engine_ms"] / times["bare_pymilvus_ms"]
            for way in (way for way in times if "half" in way):
                yield name, way.replace("_ms", "_over_all"), times[way] / times["engine_ms"]


def _search_bare(client: Any, collection: str, parameters: dict[str, Any], limit: int, query: Any) -> Any:
    return client.search(
        collection, data=list(query), limit=limit, search_params=parameters, consistency_level="Bounded", timeout=30
    )


def _search_gallery(gallery: Gallery, query: Any) -> Any:
    return gallery.search(query[0], K)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--count", type=int, default=50_000)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    launcher = find_launcher()
    if launcher is None:
        parser.error("milvus-server is not found: set TESSERA_MILVUS_SERVER")
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        server = MilvusServer(launcher, Path(folder) / "milvus")
        server.start()
        try:
            with Gallery(Path(folder) / "gallery", codec="flat") as gallery:
                gallery.add(describe(options.count))
                queries = Synthesis(options.count, DIM).queries(QUERIES)
                rows: dict[str, dict[str, str]] = {}
                for index, what, value in measure(gallery, server, queries):
                    print(f"{index:9} {what:42} {value:10.4f}", flush=True)
                    row = rows.setdefault(index, {"index": index, "images": str(options.count)})
                    row[what] = f"{value:.4g}"
        finally:
            server.kill()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with options.output.open("w", newline="") as file:
        table = csv.DictWriter(file, list(next(iter(rows.values()))), lineterminator="\n")
        table.writeheader()
        table.writerows(rows.values())


if __name__ == "__main__":
    main()
