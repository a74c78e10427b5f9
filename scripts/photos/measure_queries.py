"""Many queries in one run against the network alone, in turns, on the same photos.

Usage: python scripts/photos/measure_queries.py PHOTOS --gallery G.tessera -o results/photos/queries.json [--count 1000]
    [--by global]
--by auto, the default search, makes and compares local features, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path

import tessera


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--gallery", type=Path, required=True)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--by", choices=["global", "auto"], default="global")
    options = parser.parse_args()
    paths = [str(path) for path in itertools.islice(sorted(options.photos.rglob("*.jpg")), options.count)]
    rates: dict[str, list[float]] = {"network": [], "search": []}
    cpu: dict[str, list[float]] = {"network": [], "search": []}
    with tessera.Gallery(options.gallery) as gallery:
        extractor = gallery.describer.extractor
        list(extractor.extract(paths[:8]))
        list(gallery.search_stream(((path, path) for path in paths[:8]), by=options.by))
        for _ in range(options.rounds):
            for name in ("network", "search"):
                wall, used = time.perf_counter(), time.process_time()
                if name == "network":
                    list(extractor.extract(paths))
                else:
                    list(gallery.search_stream(((path, path) for path in paths), by=options.by))
                rates[name].append(len(paths) / (time.perf_counter() - wall))
                cpu[name].append(time.process_time() - used)
        images = len(gallery)
    answer = {
        "command": f"python scripts/photos/measure_queries.py PHOTOS --gallery G --by {options.by} -o OUT",
        "queries": len(paths),
        "images": images,
        "rounds": options.rounds,
        "network_per_s": [round(rate, 2) for rate in rates["network"]],
        "search_per_s": [round(rate, 2) for rate in rates["search"]],
        "ratio": round(statistics.median(rates["search"]) / statistics.median(rates["network"]), 3),
        "cpu_ratio": round(statistics.median(cpu["network"]) / statistics.median(cpu["search"]), 3),
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(answer, indent=1) + "\n")
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
